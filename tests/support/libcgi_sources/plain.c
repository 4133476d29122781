/* A library for tests as one wrote them without ewe_libcgi.h: it asks libc for its variables, and is not thread-safe. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int lputs(const char *text);
extern int lprintf(const char *format, ...);
extern char **environ;

static volatile int inside;

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING"), *listed = "";
    (void)input;
    lputs("Content-Type: text/plain\n\n");
    if (inside++)
        lputs("another call is inside! ");
    for (char **each = environ; *each != NULL; each++)
        if (strncmp(*each, "QUERY_STRING=", 13) == 0)
            listed = *each + 13;
    if (query != NULL && strcmp(query, "long") == 0)
        usleep(300000);
    lprintf("%s %s %s", query, listed, getenv("REMOTE_ADDR"));
    lprintf(" %s %s", getenv("HOME_OF_TEST") ? "process" : "-", getenv("HTTP_OF_TEST") ? "foreign" : "-");
    inside--;
}
