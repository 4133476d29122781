/* Threads that a library starts.
 *
 * Such a thread belongs to no call: it cannot write to an answer (lwrite() returns -1), and no time limit ends it.
 * After a fault in it, there is no call to end. The thread is stopped for good, at that point. The library's next
 * answer, or the present one, is 500, and the library is loaded again. exit() in such a thread does the same.
 *
 *     pthread_create() in a library ──▶ begin(): a stack for signal handlers, the server's signals blocked
 *     a fault there ──▶ handle() in guard.c ──▶ threads_stop(): stores the fault, waits until the process ends
 *
 * A library that has started a thread is never unmapped: the thread could be running its code.
 *
 * Possible failure: a lock that the stopped thread holds, such as malloc's, stays held.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define HANDLER_STACK ((size_t)64 * 1024)

struct beginning {
    void *(*start)(void *);
    void *argument;
    struct library_threads *threads;
};

/* The record of the library that has started this thread. Initial-exec: a signal handler reads it. */
static __thread struct library_threads *here __attribute__((tls_model("initial-exec")));

struct library_threads *threads_here(void)
{
    return here;
}

void threads_stop(int number)
{
    sigset_t all;
    sigfillset(&all);
    here->number = number;
    here->faulted = 1;
    for (;;)
        sigsuspend(&all);
}

void threads_exit(void)
{
    here->number = 0;
    here->faulted = 1;
    pthread_exit(NULL);
}

static void free_stack(void *stack)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    munmap(stack, HANDLER_STACK);
}

static void *begin(void *argument)
{
    struct beginning thread = *(struct beginning *)argument;
    void *result;
    free(argument);
    here = thread.threads;
    signals_leave_to_server();
    void *stack = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) /* without it, a full stack ends the process */
        return thread.start(thread.argument);
    stack_t handlers = {.ss_sp = stack, .ss_size = HANDLER_STACK};
    sigaltstack(&handlers, NULL);
    pthread_cleanup_push(free_stack, stack);
    result = thread.start(thread.argument);
    pthread_cleanup_pop(1);
    return result;
}

int threads_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    struct library_threads *threads = here != NULL ? here : guard_threads();
    if (threads == NULL || child_of_library()) /* a thread of the program, in a library that both use */
        return pthread_create(thread, attributes, start, argument);
    struct beginning *beginning = malloc(sizeof *beginning);
    if (beginning == NULL)
        return EAGAIN;
    *beginning = (struct beginning){start, argument, threads};
    threads->started = 1;
    int failure = pthread_create(thread, attributes, begin, beginning);
    if (failure != 0)
        free(beginning);
    return failure;
}
