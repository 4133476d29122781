/* The pool: n threads and a bounded queue. Run it with: ./server PORT DIRECTORY WORKERS

   main thread: accept -> put -> [ queue, bounded ] -> get -> worker 1 of n: conversation, and again
                 waits while the queue is full          +---> worker n of n  each waits while it is empty */

#include "conversation.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM 64 /* connections that may wait in the queue */
#define MAX_WORKERS 256

static const char *root;
static volatile sig_atomic_t stopping;

/* A bounded queue: put() waits while it is full, get() while it is empty. Any thread may call both. */
static struct {
    int items[ROOM];
    int first, count;
    int busy; /* workers in a conversation */
    bool closed;
    pthread_mutex_t lock;
    pthread_cond_t not_empty, not_full, idle;
} queue = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .not_empty = PTHREAD_COND_INITIALIZER,
    .not_full = PTHREAD_COND_INITIALIZER,
    .idle = PTHREAD_COND_INITIALIZER,
};

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

/* Add a connection at the end. */
static void put(int item)
{
    pthread_mutex_lock(&queue.lock);
    /* --- solution */
    while (queue.count == ROOM)
        pthread_cond_wait(&queue.not_full, &queue.lock);
    queue.items[(queue.first + queue.count) % ROOM] = item;
    queue.count++;
    pthread_cond_signal(&queue.not_empty);
    /* --- starter */
    // /* Wait without spinning while the queue is full; then wake one thread that waits for an item. */
    // queue.items[(queue.first + queue.count) % ROOM] = item;
    // queue.count++;
    /* --- end */
    pthread_mutex_unlock(&queue.lock);
}

/* Take the first connection; -1 once the queue is closed and empty. */
static int get(void)
{
    int item = -1;
    pthread_mutex_lock(&queue.lock);
    /* --- solution */
    while (queue.count == 0 && !queue.closed)
        pthread_cond_wait(&queue.not_empty, &queue.lock); /* and test again: another worker may have taken the item */
    if (queue.count > 0) {
        item = queue.items[queue.first];
        queue.first = (queue.first + 1) % ROOM;
        queue.count--;
        queue.busy++;
        pthread_cond_signal(&queue.not_full);
    }
    /* --- starter */
    // /* This wait uses a whole core. Between the unlock and the lock, another worker may take the item. */
    // while (queue.count == 0 && !queue.closed) {
    //     pthread_mutex_unlock(&queue.lock);
    //     pthread_mutex_lock(&queue.lock);
    // }
    // if (queue.count > 0) {
    //     item = queue.items[queue.first];
    //     queue.first = (queue.first + 1) % ROOM;
    //     queue.count--;
    //     queue.busy++;
    // }
    /* --- end */
    pthread_mutex_unlock(&queue.lock);
    return item;
}

/* Take one connection after the other, run its conversation, and close it. */
static void *work(void *argument)
{
    (void)argument;
    /* --- solution */
    for (int connection; (connection = get()) >= 0;) {
        converse(connection, root);
        close(connection);
        pthread_mutex_lock(&queue.lock);
        queue.busy--;
        pthread_cond_signal(&queue.idle);
        pthread_mutex_unlock(&queue.lock);
    }
    /* --- starter */
    // /* This worker ends after one connection. `busy` counts the workers in a conversation. */
    // int connection = get();
    // converse(connection, root);
    // close(connection);
    /* --- end */
    return NULL;
}

/* Let the workers serve the rest of the queue, for at most GRACE_S seconds. */
static void drain(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += GRACE_S;
    pthread_mutex_lock(&queue.lock);
    queue.closed = true;
    pthread_cond_broadcast(&queue.not_empty);
    while ((queue.count > 0 || queue.busy > 0) && pthread_cond_timedwait(&queue.idle, &queue.lock, &deadline) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&queue.lock);
}

int main(int argc, char **argv)
{
    int workers = argc > 3 ? atoi(argv[3]) : 4;
    if (argc < 3 || workers < 1 || workers > MAX_WORKERS) {
        fprintf(stderr, "usage: %s PORT DIRECTORY [WORKERS], 1 to %d of them\n", argv[0], MAX_WORKERS);
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
    /* --- solution */
    for (int number = 0; number < workers; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0) {
            perror("pthread_create");
            return 1;
        }
        pthread_detach(thread);
    }
    /* --- end */
    while (!stopping) {
        struct pollfd watched = {listener, POLLIN, 0};
        if (ppoll(&watched, 1, NULL, &none) <= 0)
            continue;
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0) {
            put(connection);
            /* --- solution */
            /* --- starter */
            // /* Start `workers` threads before the first client comes. This starter serves all clients itself. */
            // work(NULL);
            /* --- end */
        } else if (errno != EINTR) {
            usleep(PAUSE_US);
        }
    }
    close(listener);
    drain();
    return 0;
}
