/* The process's environment, for libraries that read it without ewe_libcgi.h.
 *
 * There is one `environ` in a process, so the calls of such libraries take turns: in the order of their arrival, each
 * for at most its limit. A variable of the process is left out if a library could mistake it for one of the request.
 *
 * Other threads may read the environment at any time: localtime() asks for TZ. getenv() takes no lock, so a thread may
 * still read the list of a call when that call has ended. Therefore
 *
 *     the memory of a list and its strings is never freed. The next call uses it again.
 *     the variables of the process stand first, each at the same place in every call. A variable of the request with
 *     the same name takes that place. A thread that asks for TZ thus finds the same string as before.
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
static char **process_environ; /* while a call has the turn; else NULL */

/* The memory of the calls' lists and strings. Their last elements are always NULL and NUL: a thread that reads while
 * another call writes comes to an end. Memory that has become too small is not freed, either. Each list is at least
 * twice as long as the one before, so that all of them together take less than twice the memory of the longest. */
static char **list;
static size_t list_length; /* without the last NULL */
static char *strings;
static size_t strings_size; /* without the last NUL */

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

/* Let the memory have room for `length` variables, and for strings of `size` bytes. Returns 0, or -1 without memory. */
static int reserve(size_t length, size_t size)
{
    if (length > list_length) {
        size_t longer = length > 2 * list_length ? length : 2 * list_length;
        char **memory = calloc(longer + 1, sizeof *memory);
        if (memory == NULL)
            return -1;
        list = memory;
        list_length = longer;
    }
    if (size > strings_size) {
        size_t larger = size > 2 * strings_size ? size : 2 * strings_size;
        char *memory = calloc(larger + 1, 1);
        if (memory == NULL)
            return -1;
        strings = memory;
        strings_size = larger;
    }
    return 0;
}

/* Return the place of the variable with the name of `variable` among the first `count` of the list; NULL: none. */
static char **place_of(const char *variable, size_t count)
{
    const char *end = strchr(variable, '=');
    size_t length = end != NULL ? (size_t)(end - variable) + 1 : strlen(variable) + 1;
    for (char **each = list; each < list + count; each++)
        if (**each == *variable && strncmp(*each, variable, length) == 0)
            return each;
    return NULL;
}

/* Return the environment of a call, in the layout of environ: `list`. NULL without memory. */
static char **merge_environ(const libcgi_call *call, char **process)
{
    size_t length = 0, size = 0, count = 0;
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1) {
            length++;
            size += strlen(each) + 1;
        }
    for (char **each = process; each != NULL && *each != NULL; each++)
        length++;
    if (reserve(length, size) != 0)
        return NULL;
    for (char **each = process; each != NULL && *each != NULL; each++)
        if (!belongs_to_request(*each))
            list[count++] = *each;
    char **end = list + count, *to = strings;
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1) {
            char **place = place_of(each, count);
            /* The value of the first block counts: do not replace it by that of the second. */
            if (place != NULL && *place >= strings && *place < to)
                continue;
            *(place != NULL ? place : end++) = strcpy(to, each);
            to += strlen(each) + 1;
        }
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
        char **merged = merge_environ(call, environ);
        if (merged == NULL) {
            pass_turn();
            outcome = -1;
        } else {
            process_environ = environ;
            environ = merged;
        }
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

/* Restore the process's environment, and give the turn to the next call. */
void environment_leave(void)
{
    pthread_mutex_lock(&lock);
    /* If the library has called setenv(), libc has put another list into environ. Its memory is lost. */
    environ = process_environ;
    process_environ = NULL;
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
