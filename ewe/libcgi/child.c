/* The children that a library makes by fork().
 *
 * The child is a copy of the server, with one thread, which is inside processfunc(). If processfunc() returned there,
 * a second server would answer on the client's connection. The child therefore
 *
 *     ends by _exit() where it returns to the server: at return, exit(), a fault, or when output must be sent
 *     has no socket of the server: those that exec() would close are closed at once
 *     ends by SIGALRM after the time limit of the call at the latest, even if it has become another program
 *
 * A child may do its own work, and write into a pipe to its parent. lwrite() and related functions return -1 in it.
 *
 * pthread_atfork() reports a fork() by any library. A page that the kernel clears in each child (MADV_WIPEONFORK) shows
 * the other ways: vfork(), clone(), and direct system calls.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static const int SERVERS_OWN[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD};

static volatile int *original; /* 1 in a process that may answer; 0 in the child of a library */
static pid_t server; /* the process in which `original` was set */

int child_start(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *place = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return -1;
#ifdef MADV_WIPEONFORK
    madvise(place, page, MADV_WIPEONFORK); /* an old kernel has only pthread_atfork() */
#endif
    original = place;
    child_of_server();
    return 0;
}

int child_of_library(void)
{
    return *original == 0;
}

void child_of_server(void)
{
    *original = 1;
    server = getpid();
}

int process_of_server(void)
{
    return getpid() == server;
}

/* Close the sockets of the server: a port or a connection must not stay open as long as this process lives. */
static void close_sockets(void)
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    struct stat about;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        int number = atoi(entry->d_name);
        if (number > 2 && number != dirfd(directory) && (fcntl(number, F_GETFD) & FD_CLOEXEC) &&
            fstat(number, &about) == 0 && S_ISSOCK(about.st_mode))
            close(number);
    }
    if (directory != NULL)
        closedir(directory);
}

void child_begins(int limit_ms)
{
    sigset_t open;
    *original = 0;
    close_sockets();
    sigemptyset(&open);
    for (size_t i = 0; i < sizeof SERVERS_OWN / sizeof *SERVERS_OWN; i++) {
        signal(SERVERS_OWN[i], SIG_DFL);
        sigaddset(&open, SERVERS_OWN[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &open, NULL);
    alarm((unsigned)(limit_ms / 1000) + 1);
}
