/* The process's environment, for libraries that read it without ewe_libcgi.h.
 *
 * There is one `environ` in a process, so the calls of such libraries take turns: in the order of their arrival, each
 * for at most its limit. The variables of the request stand first, those of the process after them: other threads that
 * ask for TZ or PATH meanwhile find the same strings as before. A variable of the process is left out if a library
 * could mistake it for one of the request.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct waiter {
    pthread_cond_t called;
    int has_turn;
    struct waiter *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct waiter *first, **last = &first;
static int turn_is_taken;
static char **process_environ, **call_environ; /* while a call has the turn; else NULL */

static const char *const REQUESTS_OWN[] = {
    "HTTP_", "HTTPS=", "CONTENT_", "QUERY_STRING=", "REMOTE_", "REQUEST_", "SCRIPT_", "SERVER_", "PATH_INFO=",
    "PATH_TRANSLATED=", "GATEWAY_INTERFACE=", "DOCUMENT_ROOT=", "AUTH_TYPE=",
};

static int belongs_to_request(const char *variable)
{
    for (size_t i = 0; i < sizeof REQUESTS_OWN / sizeof *REQUESTS_OWN; i++)
        if (strncmp(variable, REQUESTS_OWN[i], strlen(REQUESTS_OWN[i])) == 0)
            return 1;
    return 0;
}

/* Return the environment of a call, in the layout of environ; the strings are not copied. NULL without memory. */
static char **merge_environ(const libcgi_call *call, char **process)
{
    size_t count = 1;
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1)
            count++;
    for (char **each = process; each != NULL && *each != NULL; each++)
        count++;
    char **list = malloc(count * sizeof *list), **end = list;
    if (list == NULL)
        return NULL;
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1)
            *end++ = (char *)each;
    for (char **each = process; each != NULL && *each != NULL; each++)
        if (!belongs_to_request(*each))
            *end++ = *each;
    *end = NULL;
    return list;
}

/* Wait at the end of the queue, with `lock` held. Returns 0, or -1 after limit_ms. */
static int wait_for_turn(int limit_ms)
{
    struct waiter waiter = {.has_turn = 0};
    struct timespec until;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&waiter.called, &clock);
    pthread_condattr_destroy(&clock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    *last = &waiter;
    last = &waiter.next;
    while (!waiter.has_turn && pthread_cond_timedwait(&waiter.called, &lock, &until) != ETIMEDOUT)
        ;
    if (!waiter.has_turn) {
        struct waiter **place = &first;
        while (*place != &waiter)
            place = &(*place)->next;
        *place = waiter.next;
        if (last == &waiter.next)
            last = place;
    }
    pthread_cond_destroy(&waiter.called);
    return waiter.has_turn ? 0 : -1;
}

/* Give the turn to the call that has waited longest. The lock is held. */
static void pass_turn(void)
{
    struct waiter *next = first;
    if (next == NULL) {
        turn_is_taken = 0;
        return;
    }
    first = next->next;
    if (first == NULL)
        last = &first;
    next->has_turn = 1;
    pthread_cond_signal(&next->called);
}

/* Wait for the turn, and give the call its environment. Returns 0, or -1 after limit_ms or without memory. */
int environment_enter(const libcgi_call *call, int limit_ms)
{
    pthread_mutex_lock(&lock);
    int outcome = turn_is_taken ? wait_for_turn(limit_ms) : 0;
    if (outcome == 0) {
        turn_is_taken = 1;
        call_environ = merge_environ(call, environ);
        if (call_environ == NULL) {
            pass_turn();
            outcome = -1;
        } else {
            process_environ = environ;
            environ = call_environ;
        }
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

/* Restore the process's environment, and give the turn to the next call. */
void environment_leave(void)
{
    pthread_mutex_lock(&lock);
    environ = process_environ;
    /* If the library has called setenv(), libc has put another list into environ. Its memory is lost. */
    free(call_environ);
    call_environ = process_environ = NULL;
    pass_turn();
    pthread_mutex_unlock(&lock);
}

/* Restore the process's environment in a forked child. No other thread of the parent exists in the child. */
void environment_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    if (process_environ != NULL)
        environ = process_environ; /* the thread that should restore it does not exist in this process */
    process_environ = NULL;
    turn_is_taken = 0;
    first = NULL;
    last = &first;
}
