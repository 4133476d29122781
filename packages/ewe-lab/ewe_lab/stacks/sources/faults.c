/* A library that fails as its query says: loop, crash, abort, exit; without a query it answers 28 bytes.
 *
 * Compiled without ewe_libcgi.h (-DPROGRAM) it is a CGI program that fails in the same ways.
 */
#ifndef PROGRAM
#include <ewe_libcgi.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char answer[] = "Content-Type: text/plain\r\nContent-Length: 28\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
static volatile int always = 1;

static void fail(const char *how)
{
    if (strcmp(how, "loop") == 0)
        while (always)
            ;
    if (strcmp(how, "crash") == 0)
        *(volatile int *)8 = 1;
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "exit") == 0)
        exit(3);
}

#ifdef PROGRAM
int main(void)
{
    const char *how = getenv("QUERY_STRING");

    fail(how ? how : "");
    return write(1, answer, sizeof answer - 1) < 0;
}
#else
void processfunc(char *input)
{
    const char *how = getenv("QUERY_STRING");

    (void)input;
    fail(how ? how : "");
    lwrite(answer, sizeof answer - 1);
}
#endif
