/* The process's environment, for libraries that read it without ewe_libcgi.h.
 *
 * There is one `environ` in a process, so the calls of such libraries take turns: in the order in which they came,
 * each for at most its limit. The variables of the request stand first, those of the process behind them: other
 * threads that ask for TZ or PATH meanwhile find the same strings as before. Of the process's variables those are
 * left out that a library could take for the request's.
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static struct waiter *first, **last = &first;
static int taken;
static char **saved, **lent;

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

/* Return the environment of a call, as environ is laid out; the strings are not copied. NULL without memory. */
static char **merged(const libcgi_call *call, char **process)
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

static int wait_for_turn(int limit_ms)
{
    struct waiter own = {.has_turn = 0};
    struct timespec until;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&own.called, &clock);
    pthread_condattr_destroy(&clock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    *last = &own;
    last = &own.next;
    while (!own.has_turn && pthread_cond_timedwait(&own.called, &lock, &until) != ETIMEDOUT)
        ;
    if (!own.has_turn) {
        struct waiter **place = &first;
        while (*place != &own)
            place = &(*place)->next;
        *place = own.next;
        if (last == &own.next)
            last = place;
    }
    pthread_cond_destroy(&own.called);
    return own.has_turn ? 0 : -1;
}

static void pass_turn(void)
{
    struct waiter *next = first;
    if (next == NULL) {
        taken = 0;
        return;
    }
    first = next->next;
    if (first == NULL)
        last = &first;
    next->has_turn = 1;
    pthread_cond_signal(&next->called);
}

int environment_enter(const libcgi_call *call, int limit_ms)
{
    pthread_mutex_lock(&lock);
    int outcome = taken ? wait_for_turn(limit_ms) : 0;
    if (outcome == 0) {
        taken = 1;
        lent = merged(call, environ);
        if (lent == NULL) {
            pass_turn();
            outcome = -1;
        } else {
            saved = environ;
            environ = lent;
        }
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

void environment_leave(void)
{
    pthread_mutex_lock(&lock);
    environ = saved;
    free(lent); /* if a library has called setenv(), environ was another list, which is lost */
    lent = saved = NULL;
    pass_turn();
    pthread_mutex_unlock(&lock);
}

void environment_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    if (saved != NULL)
        environ = saved; /* the thread that was to restore it is not in this process */
    saved = NULL;
    taken = 0;
    first = NULL;
    last = &first;
}
