/* Signals that a library may not handle: those of the guard, which it may not block either, and those that control the
 * server.
 *
 * The guard ends a call by a signal to its thread (guard.c). Many libraries block all signals around a thread or a
 * lock, and some leave them blocked. Then no time limit would end the call, and if this thread receives TERM,
 * nothing would stop the server. patch.c redirects a library's calls to the functions here.
 *
 *     pthread_sigmask(), sigprocmask()    never block the guard's signals; guard_run() restores the mask afterwards
 *     sigaction(), signal(), ...          change nothing for the signals of guard and server, and report success
 *     sigsuspend(), ppoll(), sigwait()    wait with a mask that does not block the guard's signals
 *     alarm(), setitimer(), sigaltstack() change nothing: the process, or the thread, belongs to the server
 *
 * In a library's child (child.c) all of them have their usual effects.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include "internal.h"

static const int SERVERS[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGALRM};

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

/* Copy a mask to `room` without the guard's signals. In a child, or for NULL, return the mask unchanged. */
static const sigset_t *without_guard_signals(const sigset_t *mask, sigset_t *room)
{
    if (mask == NULL || child_of_library())
        return mask;
    *room = *mask;
    for (int number = 1; number <= SIGRTMAX; number++)
        if (guard_uses(number))
            sigdelset(room, number);
    return room;
}

static int library_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    sigset_t room;
    if (set != NULL && !child_of_library())
        guard_keep_mask();
    return pthread_sigmask(how, how == SIG_UNBLOCK ? set : without_guard_signals(set, &room), old);
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

/* sigaltstack() is per thread, and the guard's handler needs the present stack when the library's stack is full. */
static int library_sigaltstack(const stack_t *stack, stack_t *old)
{
    return sigaltstack(child_of_library() ? stack : NULL, old);
}

/* Timers of the process. Their signals would end it, or run a handler of the library in any thread. */

static unsigned library_alarm(unsigned seconds)
{
    return child_of_library() ? alarm(seconds) : 0;
}

static useconds_t library_ualarm(useconds_t first, useconds_t next)
{
    return child_of_library() ? ualarm(first, next) : 0;
}

static int library_setitimer(__itimer_which_t which, const struct itimerval *value, struct itimerval *old)
{
    return child_of_library() ? setitimer(which, value, old) : old != NULL ? getitimer(which, old) : 0;
}

/* Waits with another mask */

static int library_sigsuspend(const sigset_t *mask)
{
    sigset_t room;
    return sigsuspend(without_guard_signals(mask, &room));
}

static int library_sigwait(const sigset_t *mask, int *number)
{
    sigset_t room;
    return sigwait(without_guard_signals(mask, &room), number);
}

static int library_sigwaitinfo(const sigset_t *mask, siginfo_t *about)
{
    sigset_t room;
    return sigwaitinfo(without_guard_signals(mask, &room), about);
}

static int library_sigtimedwait(const sigset_t *mask, siginfo_t *about, const struct timespec *limit)
{
    sigset_t room;
    return sigtimedwait(without_guard_signals(mask, &room), about, limit);
}

static int library_ppoll(struct pollfd *files, nfds_t count, const struct timespec *limit, const sigset_t *mask)
{
    sigset_t room;
    return ppoll(files, count, limit, without_guard_signals(mask, &room));
}

static int library_pselect(int count, fd_set *read, fd_set *write, fd_set *except, const struct timespec *limit,
                           const sigset_t *mask)
{
    sigset_t room;
    return pselect(count, read, write, except, limit, without_guard_signals(mask, &room));
}

static int library_epoll_pwait(int epoll, struct epoll_event *events, int most, int limit_ms, const sigset_t *mask)
{
    sigset_t room;
    return epoll_pwait(epoll, events, most, limit_ms, without_guard_signals(mask, &room));
}

static int library_sighold(int number)
{
    sigset_t one;
    sigemptyset(&one);
    return sigaddset(&one, number) != 0 ? -1 : library_sigprocmask(SIG_BLOCK, &one, NULL);
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
        {"sighold", (uintptr_t)library_sighold},         {"sigaltstack", (uintptr_t)library_sigaltstack},
        {"alarm", (uintptr_t)library_alarm},             {"ualarm", (uintptr_t)library_ualarm},
        {"setitimer", (uintptr_t)library_setitimer},     {"sigsuspend", (uintptr_t)library_sigsuspend},
        {"sigwait", (uintptr_t)library_sigwait},         {"sigwaitinfo", (uintptr_t)library_sigwaitinfo},
        {"sigtimedwait", (uintptr_t)library_sigtimedwait}, {"ppoll", (uintptr_t)library_ppoll},
        {"__ppoll_chk", (uintptr_t)library_ppoll}, /* compilers add one argument (_FORTIFY_SOURCE) */
        {"pselect", (uintptr_t)library_pselect},         {"epoll_pwait", (uintptr_t)library_epoll_pwait},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (strcmp(TABLE[i].name, name) == 0)
            return TABLE[i].function;
    return 0;
}
