/* A program for tests: threads read the environment while another one gives it to one call after the other. It prints
 * how often a thread has not found the process's own variable. Argument: the number of calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static _Atomic int over, wrong;

/* Read as localtime() and others do, without a lock. */
static void *read_environment(void *argument)
{
    while (!over) {
        const char *zone = getenv("TZ");
        if (zone == NULL || strcmp(zone, "Europe/Berlin") != 0)
            wrong++;
        getenv("NO_SUCH_VARIABLE");
    }
    return argument;
}

/* Return a new block of `count` variables. */
static char *block(int count)
{
    char *block = calloc(1, 32 * (size_t)count + 1), *to = block;
    for (int i = 0; i < count; i++)
        to += sprintf(to, "HTTP_X_%d=%d", i, i) + 1;
    return block;
}

int main(int count, char **words)
{
    pthread_t threads[2];
    setenv("TZ", "Europe/Berlin", 1);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, read_environment, NULL);
    for (int i = 0; i < atoi(words[count - 1]); i++) {
        libcgi_call call = {.variables = {block(i % 7 * 20 + 1), block(3)}};
        environment_enter(&call, 1000);
        environment_leave();
        free(call.variables[0]);
        free(call.variables[1]);
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", wrong);
    return 0;
}
