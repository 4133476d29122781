/* A library for tests: it counts the words of its variables with strtok_r(), which writes into them. With PLAIN it asks
 * libc for them. */
#ifndef PLAIN
#include <ewe_libcgi.h>
#else
#include <stdlib.h>
extern int lprintf(const char *format, ...);
#endif
#include <string.h>

static int words(char *text)
{
    int count = 0;
    char *place;
    for (char *word = strtok_r(text, "&", &place); word != NULL; word = strtok_r(NULL, "&", &place))
        count++;
    return count;
}

void processfunc(char *input)
{
    (void)input;
    lprintf("Content-Type: text/plain\n\n%d %d", words(getenv("QUERY_STRING")), words(getenv("REMOTE_ADDR")));
}
