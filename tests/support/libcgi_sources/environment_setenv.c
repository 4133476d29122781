/* A program for tests: it has called setenv() itself, and so do the calls. It prints its own variable after each call. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

int main(void)
{
    setenv("TZ", "Europe/Berlin", 1); /* as Python does at its start without a locale */
    void *behind = malloc(64); /* so that the list in front of it cannot grow where it is */
    for (int i = 0; i < 3; i++) {
        libcgi_call call = {.variables = {"HTTP_A=1\0HTTP_B=2\0HTTP_C=3\0", "HTTP_D=1\0"}};
        environment_enter(&call, 1000);
        setenv("LEFT", "behind", 1);
        environment_leave();
        printf("%s %s\n", getenv("TZ"), getenv("LEFT") ? "left" : "-");
    }
    free(behind);
    return 0;
}
