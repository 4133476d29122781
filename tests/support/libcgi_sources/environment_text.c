/* A program for tests: a thread reads the environment while another one gives it to one call after the other. The value
 * of a long variable contains "TRAP=", at the place where the call before had its last variable. The program prints how
 * often the thread has found a variable of that name. Argument: the number of calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { VARIABLES = 20000, VARIABLE_BYTES = 9 };

static _Atomic int over, found;

static void *read_environment(void *argument)
{
    while (!over)
        if (getenv("TRAP") != NULL)
            found++;
    return argument;
}

int main(int count, char **words)
{
    pthread_t thread;
    char *many = calloc(1, VARIABLES * VARIABLE_BYTES + 1), *one = calloc(1, VARIABLES * VARIABLE_BYTES + 1);
    for (int i = 0; i < VARIABLES; i++)
        sprintf(many + i * VARIABLE_BYTES, "U_%05d=", i);
    memset(one, 'x', VARIABLES * VARIABLE_BYTES - 1);
    memcpy(one, "U=", 2);
    memcpy(one + (VARIABLES - 1) * VARIABLE_BYTES, "TRAP=", 5);
    pthread_create(&thread, NULL, read_environment, NULL);
    for (int i = 0; i < atoi(words[count - 1]); i++) {
        libcgi_call call = {.variables = {i % 2 ? one : many}};
        environment_enter(&call, 1000);
        usleep(100); /* the other thread reads the call's list by then */
        environment_leave();
    }
    over = 1;
    pthread_join(thread, NULL);
    free(many);
    free(one);
    printf("%d\n", found);
    return 0;
}
