/* Signals that a library may neither block nor take: those of the guard, and those that stop and steer the server.
 *
 * The guard ends a call by a signal to its thread (guard.c). Many libraries block all signals around a thread or a
 * lock, and some leave them blocked: then no time limit would end the call, and, where this is the thread that hears
 * TERM, nothing would stop the server. patch.c leads a library's calls to the functions here.
 *
 *     pthread_sigmask(), sigprocmask()    leave the guard's signals open; guard_run() restores the mask afterwards
 *     sigaction(), signal(), ...          change nothing for the signals of guard and server, and report success
 *
 * In a library's child (child.c) all of them do what they always do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "internal.h"

static const int SERVERS[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE};

static int belongs_to_server(int number)
{
    for (size_t i = 0; i < sizeof SERVERS / sizeof *SERVERS; i++)
        if (SERVERS[i] == number)
            return !child_of_library();
    return guard_uses(number) && !child_of_library();
}

void signals_leave_to_server(void)
{
    sigset_t servers;
    sigemptyset(&servers);
    for (size_t i = 0; i < sizeof SERVERS / sizeof *SERVERS; i++)
        sigaddset(&servers, SERVERS[i]);
    pthread_sigmask(SIG_BLOCK, &servers, NULL);
}

static int library_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    if (set == NULL || child_of_library())
        return pthread_sigmask(how, set, old);
    sigset_t wanted = *set;
    if (how != SIG_UNBLOCK)
        for (int number = 1; number <= SIGRTMAX; number++)
            if (guard_uses(number))
                sigdelset(&wanted, number);
    guard_keep_mask();
    return pthread_sigmask(how, &wanted, old);
}

static int library_sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    int failure = library_sigmask(how, set, old);
    if (failure == 0)
        return 0;
    errno = failure;
    return -1;
}

static int library_sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    return sigaction(number, belongs_to_server(number) ? NULL : action, old);
}

static sighandler_t library_signal(int number, sighandler_t handler)
{
    return belongs_to_server(number) ? SIG_DFL : signal(number, handler);
}

static int library_sigignore(int number)
{
    return library_signal(number, SIG_IGN) == SIG_ERR ? -1 : 0;
}

uintptr_t signals_replacement(const char *name)
{
    static const struct {
        const char *name;
        uintptr_t function;
    } TABLE[] = {
        {"pthread_sigmask", (uintptr_t)library_sigmask}, {"sigprocmask", (uintptr_t)library_sigprocmask},
        {"sigaction", (uintptr_t)library_sigaction},     {"signal", (uintptr_t)library_signal},
        {"bsd_signal", (uintptr_t)library_signal},       {"ssignal", (uintptr_t)library_signal},
        {"sysv_signal", (uintptr_t)library_signal},      {"__sysv_signal", (uintptr_t)library_signal},
        {"sigset", (uintptr_t)library_signal},           {"sigignore", (uintptr_t)library_sigignore},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (strcmp(TABLE[i].name, name) == 0)
            return TABLE[i].function;
    return 0;
}
