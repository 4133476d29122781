/* Conditions with bad luck, for the check queue-races: `cc -include ewe_unlucky.h` puts them around each
   pthread_cond_wait() of a program. Both kinds of bad luck are legal, so a correct program passes them.

   1. A woken thread gets its mutex back late: other threads go first. Always.
   2. A wait returns although no thread has called pthread_cond_signal(); POSIX calls this a spurious wake-up.
      At one place, which EWE_SPURIOUS names: "server.c:52".

   Each wait and each return is a line in the file of EWE_TRACE: "+server.c:52", "-server.c:52". */

#ifndef EWE_UNLUCKY_H
#define EWE_UNLUCKY_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EWE_LATE_US 2000

/* ThreadSanitizer takes write() to a file, and read() of any file by another thread, for an order between the two.
   It does not see syscall(), so these notes hide no race. */
static inline void ewe_note(char sign, const char *place)
{
    char text[128];
    int size = snprintf(text, sizeof text, "%c%s\n", sign, place);
    const char *trace = getenv("EWE_TRACE");
    long file = trace ? syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CLOEXEC, 0) : -1;
    if (file >= 0) {
        syscall(SYS_write, file, text, (size_t)size);
        syscall(SYS_close, file);
    }
}

/* Wait for a condition, with bad luck. At the place of EWE_SPURIOUS, every other call returns without a wait. */
static inline int ewe_unlucky_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, const char *file, int line)
{
    static __thread unsigned turn;
    char place[100];
    snprintf(place, sizeof place, "%s:%d", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line);
    ewe_note('+', place);
    int result = 0;
    const char *spurious = getenv("EWE_SPURIOUS");
    if (!spurious || strcmp(spurious, place) != 0 || turn++ % 2 == 1)
        result = pthread_cond_wait(condition, mutex);
    ewe_note('-', place);
    pthread_mutex_unlock(mutex);
    usleep(EWE_LATE_US);
    pthread_mutex_lock(mutex);
    return result;
}

/* ThreadSanitizer runs the handler of a signal when the thread next enters or leaves a call that it knows. It knows
   poll() and ppoll(), but neither of these two: their EINTR would come before the handler has set its flag, and the
   next wait would have no end. usleep() is such a call. */
static inline int ewe_select(int count, fd_set *reads, fd_set *writes, fd_set *others, struct timeval *timeout)
{
    usleep(0);
    int result = select(count, reads, writes, others, timeout), reason = errno;
    usleep(0);
    errno = reason;
    return result;
}

static inline int ewe_pselect(int count, fd_set *reads, fd_set *writes, fd_set *others,
                              const struct timespec *timeout, const sigset_t *mask)
{
    int result = pselect(count, reads, writes, others, timeout, mask), reason = errno;
    usleep(0);
    errno = reason;
    return result;
}

/* Without parameters: a member of a structure may have one of these names. */
#define select ewe_select
#define pselect ewe_pselect
#define pthread_cond_wait(condition, mutex) ewe_unlucky_wait(condition, mutex, __FILE__, __LINE__)

#endif
