/* A process for each connection. Run it with: ./server PORT DIRECTORY

   parent: accept -> fork -> close its copy -> accept ...      reaps the children that have ended
                      +----> child: close the listening socket -> conversation -> exit */

#include "conversation.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t children; /* that have not been reaped */
static volatile sig_atomic_t stopping;

/* Read the status of every ended child. Until then each of them stays a zombie. */
static void reap(int number)
{
    (void)number;
    /* --- solution */
    int saved = errno; /* this handler runs between any two instructions */
    while (waitpid(-1, NULL, WNOHANG) > 0)
        children--;
    errno = saved;
    /* --- starter */
    // /* One SIGCHLD may stand for several children. waitpid() must not block if no child has ended. */
    /* --- end */
}

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

/* Fork a child that runs the conversation. The parent closes its copy of the connection. */
static void start_child(int listener, int connection, const char *root)
{
    /* --- solution */
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGCHLD);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &before); /* the child must not be reaped before it is counted */
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGCHLD, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* the kernel kills this child if its parent ends first */
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        close(listener);
        converse(connection, root);
        close(connection);
        _exit(0); /* the child must not continue the loop of the parent */
    }
    if (pid > 0)
        children++;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        usleep(PAUSE_US); /* the limit of processes is reached */
    close(connection);    /* the connection ends when the child closes its copy */
    /* --- starter */
    // /* Parent and child now both have every descriptor. Which process closes the connection, which one the
    //    listening socket? Where does the child end? */
    // (void)listener;
    // if (fork() == 0)
    //     converse(connection, root);
    /* --- end */
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PORT DIRECTORY\n", argv[0]);
        return 2;
    }
    int listener = listen_on(argv[1]);
    struct sigaction action = {.sa_handler = reap};
    sigaction(SIGCHLD, &action, NULL);
    action.sa_handler = stop;
    sigaction(SIGTERM, &action, NULL); /* without SA_RESTART: ppoll() below ends */
    sigset_t term, none;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &term, NULL); /* SIGTERM comes only during ppoll(), so none is missed before accept() */
    while (!stopping) {
        struct pollfd watched = {listener, POLLIN, 0};
        if (ppoll(&watched, 1, NULL, &none) <= 0)
            continue;
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0)
            start_child(listener, connection, argv[2]);
        else if (errno != EINTR)
            usleep(PAUSE_US);
    }
    close(listener);
    /* --- solution */
    time_t deadline = time(NULL) + GRACE_S;
    while (children > 0 && time(NULL) < deadline)
        usleep(PAUSE_US); /* reap() runs in between. The kernel kills the remaining children. */
    /* --- starter */
    // /* Children that still run when their parent ends become orphans. */
    /* --- end */
    return 0;
}
