/* A form: GET shows it, POST answers it. http://127.0.0.1:4000/libcgi-bin/form.so
 *
 * A field comes percent-encoded, with "+" for a space. A program that writes such a text into a page must escape the
 * characters that mean something in HTML. Otherwise a visitor could send others a link that runs a script in this
 * page.
 */
#include <ewe_libcgi.h>
#include <string.h>

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Write one character as HTML. */
static void escaped(char c)
{
    switch (c) {
    case '&': lputs("&amp;"); break;
    case '<': lputs("&lt;"); break;
    case '>': lputs("&gt;"); break;
    case '"': lputs("&quot;"); break;
    default: lwrite(&c, 1);
    }
}

/* Write the value of a field of the form as HTML. */
static void write_field(const char *form, const char *name)
{
    size_t length = strlen(name);
    while (strncmp(form, name, length) || form[length] != '=') {
        form = strchr(form, '&');
        if (!form)
            return; /* the form has no such field */
        form++;
    }
    for (form += length + 1; *form && *form != '&'; form++) {
        if (*form == '+') {
            escaped(' ');
        } else if (*form == '%' && digit(form[1]) >= 0 && digit(form[2]) >= 0) {
            escaped((char)(digit(form[1]) * 16 + digit(form[2])));
            form += 2;
        } else {
            escaped(*form);
        }
    }
}

void processfunc(char *input)
{
    const char *form = input ? input : getenv("QUERY_STRING");

    lputs("Content-Type: text/html; charset=utf-8\n\n"
          "<!DOCTYPE html>\n<html lang=\"en\"><title>A form</title>\n<h1>A form</h1>\n");
    if (form && *form) {
        lputs("<p>Hello, ");
        write_field(form, "name");
        lputs("! You say:</p>\n<blockquote>");
        write_field(form, "text");
        lputs("</blockquote>\n");
    }
    lputs("<form method=\"post\">\n"
          "<p><label>Name <input name=\"name\"></label>\n"
          "<p><label>Text <textarea name=\"text\"></textarea></label>\n"
          "<p><button>Send</button>\n</form>\n</html>\n");
}
