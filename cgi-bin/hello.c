/* The smallest CGI program in C: header fields, an empty line, the body.
 *
 * A server runs programs, not sources, so build it first (`make` does it where there is a compiler):
 *
 *     cc -O2 -o cgi-bin/hello-c cgi-bin/hello.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    const char *method = getenv("REQUEST_METHOD");

    printf("Content-Type: text/plain; charset=utf-8\n");
    printf("\n");
    if (method == NULL || strcmp(method, "HEAD") != 0)  /* HEAD asks for the header fields alone */
        printf("Hello from C!\n");
    return 0;
}
