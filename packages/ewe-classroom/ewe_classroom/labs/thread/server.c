/* A thread for each connection. Run it with: ./server PORT DIRECTORY

   main thread: accept -> start a thread -> accept ...
                               +----> conversation -> close the connection -> the thread ends */

#include "conversation.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *root;
static volatile sig_atomic_t stopping;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* protects `threads` */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;  /* signals that `threads` is smaller */
static int threads; /* the number of threads in a conversation */

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

/* Run one conversation, in a thread. argument: the connection. */
static void *run_conversation(void *argument)
{
    int connection = (int)(intptr_t)argument;
    converse(connection, root);
    close(connection);
    pthread_mutex_lock(&lock);
    threads--;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Start a thread for a connection; if there can be no thread, close the connection. */
static void start_thread(int connection)
{
    /* --- solution */
    pthread_t thread;
    pthread_mutex_lock(&lock);
    threads++;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, run_conversation, (void *)(intptr_t)connection) == 0) {
        pthread_detach(thread); /* no thread joins it; its resources are freed at its end */
        return;
    }
    close(connection); /* the limit of threads is reached */
    pthread_mutex_lock(&lock);
    threads--;
    pthread_mutex_unlock(&lock);
    usleep(PAUSE_US);
    /* --- starter */
    // /* This runs the conversation in the only thread. `threads` must count the started threads. */
    // pthread_mutex_lock(&lock);
    // threads++;
    // pthread_mutex_unlock(&lock);
    // run_conversation((void *)(intptr_t)connection);
    /* --- end */
}

/* Wait until every conversation has ended, for at most GRACE_S seconds. */
static void drain(void)
{
    /* --- solution */
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += GRACE_S;
    pthread_mutex_lock(&lock);
    while (threads > 0 && pthread_cond_timedwait(&changed, &lock, &deadline) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&lock);
    /* --- starter */
    // /* The process ends when main() returns, with all threads. */
    /* --- end */
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PORT DIRECTORY\n", argv[0]);
        return 2;
    }
    root = argv[2];
    int listener = listen_on(argv[1]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigset_t term, none;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigemptyset(&none);
    pthread_sigmask(SIG_BLOCK, &term, NULL); /* threads inherit it: only ppoll() below takes SIGTERM */
    while (!stopping) {
        struct pollfd watched = {listener, POLLIN, 0};
        if (ppoll(&watched, 1, NULL, &none) <= 0)
            continue;
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0)
            start_thread(connection);
        else if (errno != EINTR)
            usleep(PAUSE_US);
    }
    close(listener);
    drain();
    return 0;
}
