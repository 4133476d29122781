/* The process's environment, for libraries that read it without ewe_libcgi.h.
 *
 * There is one `environ` in a process, so the calls of such libraries take turns: in the order of their arrival, each
 * for at most its limit. A variable of the process is left out if a library could mistake it for one of the request.
 *
 * Other threads may read the environment at any time: localtime() asks for TZ. getenv() takes no lock, so a thread may
 * still read the list of a call when that call has ended. Therefore
 *
 *     the memory of a list and its strings is never freed. The next call uses it again.
 *     the variables of the process stand first, each at the same place in every call. A thread that asks for TZ thus
 *     finds the same string as before, unless the request has a variable of this name, which then takes that place.
 *
 * setenv() allocates a list when it adds a variable, and reallocates this list the next time, even if environ has
 * another value by then. If the process had called setenv() before, the setenv() of a library would free the process's
 * list. Therefore the process's list is a copy, which setenv() does not know.
 *
 * Possible failures:
 *
 *     another thread of the process calls setenv() during a call. The change ends with the call, as a change of the
 *     library does.
 *     a library calls setenv(), and a thread still reads the new list when a library of a later call does so, too. A
 *     glibc older than 2.41 then frees the list that the thread reads.
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
static int has_call_environ; /* environ is the list of a call */

/* Memory for variables. The last element is always NULL: a thread that reads while another writes comes to an end.
 * Memory that has become too small is not freed, either. Each new piece is at least twice as long as the piece before,
 * so all pieces of a list together are less than twice as long as its newest piece. */
struct list {
    char **variables;
    size_t length; /* without the last NULL */
};

static struct list of_process, of_call;
static char *strings; /* of the call, in memory of the same kind */
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

/* Make room in a list for `length` variables. Returns 0, or -1 without memory. */
static int reserve(struct list *list, size_t length)
{
    if (length > list->length) {
        size_t longer = length > 2 * list->length ? length : 2 * list->length;
        char **memory = calloc(longer + 1, sizeof *memory);
        if (memory == NULL)
            return -1;
        *list = (struct list){memory, longer};
    }
    return 0;
}

/* Make room in `strings` for `size` bytes. Returns 0, or -1 without memory. */
static int reserve_strings(size_t size)
{
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

/* Make environ a copy of the process's environment, unless it is this copy. Returns 0, or -1 without memory. */
static int copy_environ(void)
{
    size_t length = 0;
    if (environ == of_process.variables && environ != NULL)
        return 0;
    while (environ != NULL && environ[length] != NULL)
        length++;
    if (reserve(&of_process, length > 0 ? length : 1) != 0)
        return -1;
    for (size_t i = 0; i < length; i++)
        of_process.variables[i] = environ[i];
    of_process.variables[length] = NULL;
    environ = of_process.variables;
    return 0;
}

/* Return the place of the variable with the name of `variable` among the first `count` of the call; NULL: none. */
static char **place_of(const char *variable, size_t count)
{
    const char *end = strchr(variable, '=');
    size_t length = end != NULL ? (size_t)(end - variable) + 1 : strlen(variable) + 1;
    for (char **each = of_call.variables; each < of_call.variables + count; each++)
        if (**each == *variable && strncmp(*each, variable, length) == 0)
            return each;
    return NULL;
}

/* Make the environment of a call in `of_call`. Returns 0, or -1 without memory. */
static int merge_environ(const libcgi_call *call)
{
    size_t length = 1, size = 0, count = 0;
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1) {
            length++;
            size += strlen(each) + 1;
        }
    for (char **each = of_process.variables; *each != NULL; each++)
        length++;
    if (reserve(&of_call, length) != 0 || reserve_strings(size) != 0)
        return -1;
    for (char **each = of_process.variables; *each != NULL; each++)
        if (!belongs_to_request(*each))
            of_call.variables[count++] = *each;
    char **end = of_call.variables + count, *to = strings;
    /* A thread may still read the list of the last call. It must not find the text in the middle of a new value. */
    for (char **each = end; *each != NULL; each++)
        *each = NULL;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++)
        for (const char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1) {
            /* Variables of the process with such names were left out above. */
            char **place = belongs_to_request(each) ? NULL : place_of(each, count);
            /* The value of the first block counts: do not replace it by that of the second. */
            if (place != NULL && *place >= strings && *place < to)
                continue;
            *(place != NULL ? place : end++) = strcpy(to, each);
            to += strlen(each) + 1;
        }
    *end = NULL;
    return 0;
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
        if (copy_environ() != 0 || merge_environ(call) != 0) {
            pass_turn();
            outcome = -1;
        } else {
            has_call_environ = 1;
            environ = of_call.variables;
        }
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

/* Restore the process's environment, and give the turn to the next call. */
void environment_leave(void)
{
    pthread_mutex_lock(&lock);
    /* If the library has called setenv(), libc has put another list into environ. */
    environ = of_process.variables;
    has_call_environ = 0;
    pass_turn();
    pthread_mutex_unlock(&lock);
}

/* Restore the process's environment in a forked child. No other thread of the parent exists in the child. */
void environment_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    if (has_call_environ)
        environ = of_process.variables; /* the thread that should restore it does not exist in this process */
    has_call_environ = 0;
    turn_is_taken = 0;
    first = NULL;
    last = &first;
}
