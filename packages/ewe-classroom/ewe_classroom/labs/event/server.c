/* The event loop: one thread for all clients. Run it with: ./server PORT DIRECTORY

   epoll_pwait() -> the listening socket is ready: accept, and watch the connection
         ^     +--> a connection can be read:      receive its bytes; if the head is complete, prepare the response
         |     +--> a connection can be written:   send as many bytes as the kernel takes, and keep the rest
         +------------- no call in between may block: while one client is served, all others wait */

#include "conversation.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 64 /* the number of events that one epoll_pwait() reports at most */

/* One connection, in a list of all. buffer: the received bytes that are not answered yet; used: their number. response:
   the one to send; sent: how many of its bytes the kernel has taken. last: the time of the last activity. */
struct client {
    int connection;
    size_t used;
    size_t sent;
    struct response response; /* data: NULL if there is none to send */
    time_t last;
    struct client *next, *before;
    char buffer[MAX_HEAD_BYTES + 1];
};

static const char *root;
static int loop, listener;
static bool listening; /* the loop watches the listening socket */
static struct client *clients;
static volatile sig_atomic_t stopping;

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

/* Watch a client for reading, or for writing while there are bytes to send. */
static void watch(struct client *client, int operation)
{
    struct epoll_event event = {.data.ptr = client};
    /* --- solution */
    event.events = client->response.data ? EPOLLOUT : EPOLLIN;
    /* --- starter */
    // /* While a part of a response is not sent yet, wait until the socket can be written. */
    // event.events = EPOLLIN;
    /* --- end */
    epoll_ctl(loop, operation, client->connection, &event);
}

/* Begin or stop to watch the listening socket. */
static void watch_listener(bool wanted)
{
    if (wanted == listening)
        return;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(loop, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener, &event);
    listening = wanted;
}

/* Close a connection. */
static void drop(struct client *client)
{
    if (client->before)
        client->before->next = client->next;
    else
        clients = client->next;
    if (client->next)
        client->next->before = client->before;
    close(client->connection);
    free(client->response.data);
    free(client);
}

/* Accept one connection, and watch it. */
static void accept_one(void)
{
    /* --- solution */
    int connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            watch_listener(false); /* no descriptor is free: epoll_pwait() would return at once, again and again */
        return;
    }
    struct client *client = calloc(1, sizeof *client);
    if (!client) {
        close(connection);
        return;
    }
    client->connection = connection;
    client->last = time(NULL);
    client->next = clients;
    if (clients)
        clients->before = client;
    clients = client;
    watch(client, EPOLL_CTL_ADD);
    /* --- starter */
    // /* This blocks the loop until the client has sent its request: all others wait. */
    // int connection = accept(listener, NULL, NULL);
    // if (connection >= 0) {
    //     converse(connection, root);
    //     close(connection);
    // }
    /* --- end */
}

/* Prepare the response to the client's next request if its head is complete; then wait for the next event. */
static void answer(struct client *client)
{
    /* --- solution */
    size_t length = head_length(client->buffer, client->used);
    if (length > 0) {
        client->response = response_to(client->buffer, length, root);
        client->used -= length;
        memmove(client->buffer, client->buffer + length, client->used);
    } else if (client->used == sizeof client->buffer) {
        client->response = refusal(431);
    }
    client->sent = 0;
    watch(client, EPOLL_CTL_MOD);
    /* --- starter */
    // /* head_length() and response_to() are the same as in the other labs. */
    // (void)client;
    /* --- end */
}

/* Read from a client, or write to it, as much as possible without blocking. */
static void serve(struct client *client)
{
    /* --- solution */
    struct response *response = &client->response;
    ssize_t count;
    if (response->data) {
        count = send(client->connection, response->data + client->sent, response->size - client->sent, MSG_NOSIGNAL);
        if (count > 0)
            client->sent += (size_t)count;
    } else {
        count = recv(client->connection, client->buffer + client->used, sizeof client->buffer - client->used, 0);
        if (count == 0)
            return drop(client);
        if (count > 0)
            client->used += (size_t)count;
    }
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR)
            drop(client);
        return;
    }
    client->last = time(NULL);
    if (response->data) {
        if (client->sent < response->size)
            return;
        free(response->data);
        response->data = NULL;
        if (!response->keeps_open || stopping)
            return drop(client);
    }
    answer(client);
    /* --- starter */
    // /* recv() and send() return immediately, and do as much as is possible. Store the rest in the client
    //    until epoll reports that more is possible. */
    // drop(client);
    /* --- end */
}

/* Drop silent clients; after SIGTERM, drop all clients without a response in progress. */
static void drop_idle(void)
{
    /* --- solution */
    time_t now = time(NULL);
    for (struct client *client = clients, *next; client; client = next) {
        next = client->next;
        if (now - client->last > SILENCE_S || (stopping && !client->response.data))
            drop(client);
    }
    /* --- starter */
    // /* No timeout of a socket ends the wait for a silent client here. Find and drop the silent clients. */
    /* --- end */
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PORT DIRECTORY\n", argv[0]);
        return 2;
    }
    root = argv[2];
    listener = listen_on(argv[1]);
    loop = epoll_create1(EPOLL_CLOEXEC);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigset_t term, none;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &term, NULL); /* SIGTERM comes only during epoll_pwait(), and ends it */
    watch_listener(true);
    time_t deadline = 0, next_check = time(NULL) + 1;
    while (!stopping || (clients && time(NULL) < deadline)) {
        struct epoll_event events[EVENTS];
        /* wake up after a pause in accepting, or to look for silent clients; -1: only for an event */
        int timeout_ms = !listening && !stopping ? PAUSE_US / 1000 : clients ? 1000 : -1;
        int count = epoll_pwait(loop, events, EVENTS, timeout_ms, &none);
        bool was_listening = listening;
        for (int number = 0; number < count; number++) {
            if (events[number].data.ptr)
                /* each client is in the list only once, so no earlier event has dropped it */
                serve(events[number].data.ptr);
            else
                accept_one();
        }
        if (stopping && deadline == 0) {
            deadline = time(NULL) + GRACE_S;
            watch_listener(false);
            close(listener);
            drop_idle();
        }
        if (time(NULL) >= next_check) {
            next_check = time(NULL) + 1;
            drop_idle();
        }
        if (!was_listening && !stopping)
            watch_listener(true); /* after a pause */
    }
    return 0;
}
