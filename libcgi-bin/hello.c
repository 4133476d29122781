/* The smallest LibCGI library: http://127.0.0.1:4000/libcgi-bin/hello.so */
#include <ewe_libcgi.h>

void processfunc(char *input)
{
    const char *address = getenv("REMOTE_ADDR");

    (void)input; /* a GET has no body */
    lputs("Content-Type: text/plain; charset=utf-8\n\n");
    lprintf("Hello from C, %s!\n", address ? address : "unknown client");
}
