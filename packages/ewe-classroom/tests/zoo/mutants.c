/* The zoo in C: servers that are wrong in one way each. ./mutants NAME PORT ROOT WORKERS

   Five small servers without known faults (serial, fork, thread, pool, event), and faults that C makes easy. A fault is a
   name: at the place where a correct program does one thing, fault("Name") does the other. The table at the end says
   which server a fault belongs to. test_zoo_in_c.py says which check must catch it. */

#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 65536, GRACE_S = 10 };

static const char *name, *root;
static char real_root[PATH_MAX];
static int listener, workers, wake[2];
static volatile sig_atomic_t stopping;

static bool fault(const char *of)
{
    return strcmp(name, of) == 0;
}

static void on_term(int number)
{
    int kept = errno;
    (void)number;
    stopping = 1;
    shutdown(listener, SHUT_RDWR); /* ends an accept() that begins after the look at `stopping`, too */
    if (write(wake[1], "", 1) < 0)
        errno = kept;
    errno = kept;
}

/* Responses: a head, and the bytes of a file */

struct response {
    char head[160];
    size_t head_size;
    char *body;
    size_t size;
    bool keep;
};

static void set_head(struct response *made, const char *status, bool keep)
{
    made->keep = keep;
    size_t length = fault("StringLength") && made->body ? strlen(made->body) : made->size;
    made->head_size = (size_t)snprintf(made->head, sizeof made->head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n", status,
        length, keep ? "" : "Connection: close\r\n");
    if (fault("StringLength"))
        made->size = length;
}

/* Read a whole file; NULL if it is none, or lies outside the root. */
static char *read_file(const char *target, size_t *size)
{
    char path[PATH_MAX], found[PATH_MAX], decoded[PATH_MAX];
    size_t used = 0;
    for (const char *at = target; *at && *at != '?'; at++) {
        int byte = (unsigned char)*at;
        if (byte == '%' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2])) {
            char digits[3] = {at[1], at[2], 0};
            byte = (int)strtol(digits, NULL, 16);
            at += 2;
        }
        if (byte == 0 || used >= sizeof decoded - 1)
            return NULL;
        decoded[used++] = (char)byte;
    }
    decoded[used] = 0;
    size_t length = strlen(real_root);
    if (length + used >= sizeof path)
        return NULL;
    memcpy(path, real_root, length);
    memcpy(path + length, decoded, used + 1);
    struct stat about;
    if (!realpath(path, found) || strncmp(found, real_root, length) != 0 || found[length] != '/')
        return NULL;
    int file = open(found, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    char *body = NULL;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && (body = malloc((size_t)about.st_size + 1))) {
        *size = 0;
        ssize_t count;
        while ((count = read(file, body + *size, (size_t)about.st_size - *size)) > 0)
            *size += (size_t)count;
        body[*size] = 0;
    }
    close(file);
    return body;
}

/* Make the response to the head of a request, which ends with a NUL. */
static struct response respond(char *head)
{
    struct response made = {.body = NULL, .size = 0};
    char *end = strstr(head, "\r\n");
    if (end)
        *end = 0;
    char *target = strchr(head, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || strncmp(version + 1, "HTTP/1.", 7) != 0) {
        set_head(&made, "400 Bad Request", false);
        return made;
    }
    *target++ = 0;
    *version++ = 0;
    bool keep = strcmp(version, "HTTP/1.1") == 0 && !(end && strcasestr(end + 2, "connection: close"));
    made.body = read_file(target, &made.size);
    set_head(&made, made.body ? "200 OK" : "404 Not Found", keep);
    return made;
}

/* Return how many bytes of the buffer are a head with its empty line; 0: there is no whole one. */
static size_t head_length(const char *buffer, size_t used)
{
    const char *end = memmem(buffer, used, "\r\n\r\n", 4);
    return end ? (size_t)(end - buffer) + 4 : 0;
}

/* Conversations that may block */

static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER, sends = PTHREAD_MUTEX_INITIALIZER;

static bool send_all(int connection, const char *data, size_t size)
{
    int flags = fault("SigPipe") ? 0 : MSG_NOSIGNAL;
    while (size > 0) {
        ssize_t count = send(connection, data, size, flags);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        data += count;
        size -= (size_t)count;
    }
    return true;
}

static bool send_response(int connection, struct response *response)
{
    /* A file: its lock, then the lock of sending. A missing one: its 404 is sent first, and then noted. */
    pthread_mutex_t *first = response->body ? &files : &sends, *second = response->body ? &sends : &files;
    if (fault("LockOrder"))
        pthread_mutex_lock(first);
    bool sent = send_all(connection, response->head, response->head_size);
    if (sent && response->body && fault("LockOrder"))
        sent = send_all(connection, response->body, response->size);
    if (fault("LockOrder")) {
        pthread_mutex_lock(second);
        pthread_mutex_unlock(second);
        pthread_mutex_unlock(first);
    } else if (sent && response->body) {
        sent = send_all(connection, response->body, response->size);
    }
    free(response->body);
    return sent && response->keep;
}

static char shared[HEAD + 1]; /* of the fault SharedBuffer */

static void converse(int connection)
{
    char *own = malloc(HEAD + 1), *buffer = fault("SharedBuffer") ? shared : own;
    char small[2048]; /* of the fault Overflow */
    size_t used = 0;
    if (fault("Overflow"))
        small[0] = 0;
    while (own) {
        size_t length = head_length(buffer, used);
        if (length == 0 && used == HEAD) {
            struct response refusal = {.body = NULL, .size = 0};
            set_head(&refusal, "431 Request Header Fields Too Large", false);
            send_response(connection, &refusal);
            break;
        }
        if (length == 0) {
            ssize_t count = recv(connection, buffer + used, HEAD - used, 0);
            if (count < 0 && errno == EINTR)
                continue;
            if (count <= 0)
                break;
            if (fault("Overflow")) {
                buffer[used + (size_t)count] = 0;
                strcat(small, buffer + used);
            }
            used += (size_t)count;
            continue;
        }
        buffer[length - 2] = 0;
        struct response response = respond(buffer);
        used -= length;
        memmove(buffer, buffer + length, used);
        small[0] = 0;
        if (!send_response(connection, &response))
            break;
    }
    free(own);
    close(connection);
}

/* Accept a connection; -1: try again, or stop. */
static int accept_one(void)
{
    int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0 && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
        usleep(fault("TriesAgain") ? 0 : 100000); /* no descriptor is left */
    if (connection < 0 && errno == EINTR && !stopping && fault("DiesOfEintr")) {
        perror("accept");
        exit(1);
    }
    return connection;
}

/* Five models */

static void serial(void)
{
    while (!stopping) {
        int connection = accept_one();
        if (connection >= 0)
            converse(connection);
    }
}

static void on_child(int number)
{
    int kept = errno;
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    errno = kept;
}

static void by_fork(void)
{
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP};
    if (!fault("NoWaitpid"))
        sigaction(SIGCHLD, &action, NULL);
    while (!stopping) {
        int connection = accept_one();
        if (connection < 0)
            continue;
        pid_t child = fork();
        if (child == 0) {
            signal(SIGTERM, SIG_DFL);
            close(listener);
            converse(connection);
            _exit(0);
        }
        if (!fault("ParentKeeps"))
            close(connection);
    }
    close(listener);
    signal(SIGCHLD, SIG_DFL);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
static int held, waiting[1024], first, queued;
enum { ROOM = 64, SILENCE_S = 10 };

static void *hold(void *connection)
{
    converse((int)(long)connection);
    pthread_mutex_lock(&lock);
    held--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void by_thread(void)
{
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (fault("SpinningAccept"))
        fcntl(listener, F_SETFL, O_NONBLOCK);
    while (!stopping) {
        int connection = accept_one();
        pthread_t thread;
        if (connection < 0)
            continue;
        pthread_mutex_lock(&lock);
        held++;
        pthread_mutex_unlock(&lock);
        if (pthread_create(&thread, &detached, hold, (void *)(long)connection) != 0) {
            close(connection);
            hold((void *)-1L);
        }
    }
    close(listener);
    pthread_mutex_lock(&lock);
    while (held > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void *work(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (queued == 0 && !stopping)
            pthread_cond_wait(&changed, &lock);
        if (queued == 0)
            break;
        int connection = waiting[first];
        first = (first + 1) % 1024;
        queued--;
        pthread_cond_signal(&not_full);
        if (!fault("HoldsTheLock"))
            pthread_mutex_unlock(&lock);
        converse(connection);
        if (!fault("HoldsTheLock"))
            pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void by_pool(void)
{
    pthread_t threads[16];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals come to the main thread */
    for (int number = 0; number < workers; number++)
        pthread_create(&threads[number], NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (!stopping) {
        int connection = accept_one();
        if (connection < 0)
            continue;
        pthread_mutex_lock(&lock);
        while (queued >= (fault("NoBound") ? 1024 : ROOM))
            pthread_cond_wait(&not_full, &lock);
        waiting[(first + queued++) % 1024] = connection;
        if (queued == 1 || !fault("WakesIfEmpty"))
            pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
    }
    close(listener);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int number = 0; number < workers; number++)
        pthread_join(threads[number], NULL);
}

struct client {
    struct client *before, *after; /* in the ring of all clients */
    time_t last;                   /* when it has sent or received the last bytes */
    int connection;
    size_t used, sent;
    struct response response; /* head_size: 0 if there is none to send */
    char buffer[HEAD + 1];
};

static int loop;
static struct client ring = {.before = &ring, .after = &ring};

static time_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void drop(struct client *client)
{
    client->before->after = client->after;
    client->after->before = client->before;
    close(client->connection);
    free(client->response.body);
    free(client);
}

static void watch(struct client *client, int operation)
{
    struct epoll_event event = {.events = client->response.head_size ? EPOLLOUT : EPOLLIN, .data.ptr = client};
    epoll_ctl(loop, operation, client->connection, &event);
}

/* Send what the kernel takes; return whether all has been sent. -1: the client has gone. */
static int push(struct client *client)
{
    struct response *response = &client->response;
    size_t whole = response->head_size + (response->body ? response->size : 0);
    while (client->sent < whole) {
        bool head = client->sent < response->head_size;
        const char *from = head ? response->head + client->sent : response->body + client->sent - response->head_size;
        size_t size = head ? response->head_size - client->sent : whole - client->sent;
        ssize_t count = send(client->connection, from, size, MSG_NOSIGNAL);
        if (count < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        client->sent += (size_t)count;
        if (!head && fault("ShortSend"))
            break;
    }
    free(response->body);
    response->body = NULL;
    response->head_size = client->sent = 0;
    return response->keep ? 1 : -1;
}

static void step(struct client *client)
{
    int done = 1;
    client->last = seconds();
    if (client->response.head_size) {
        done = push(client);
    } else {
        ssize_t count = recv(client->connection, client->buffer + client->used, HEAD - client->used, 0);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
            return drop(client);
        client->used += count > 0 ? (size_t)count : 0;
    }
    while (done > 0) {
        size_t length = head_length(client->buffer, client->used);
        if (length == 0 && client->used < HEAD)
            break;
        if (length == 0) {
            set_head(&client->response, "431 Request Header Fields Too Large", false);
        } else {
            client->buffer[length - 2] = 0;
            client->response = respond(client->buffer);
            client->used -= length;
            memmove(client->buffer, client->buffer + length, client->used);
        }
        done = push(client);
    }
    if (done < 0)
        return drop(client);
    watch(client, EPOLL_CTL_MOD);
}

static void by_events(void)
{
    struct epoll_event found[64], event = {.events = EPOLLIN, .data.ptr = NULL}, end = {.events = EPOLLIN, .data.ptr = wake};
    loop = epoll_create1(EPOLL_CLOEXEC);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
    epoll_ctl(loop, EPOLL_CTL_ADD, wake[0], &end);
    while (!stopping) {
        int count = epoll_wait(loop, found, 64, ring.after == &ring ? -1 : 1000);
        for (int number = 0; number < count; number++) {
            if (found[number].data.ptr == wake)
                continue;
            if (found[number].data.ptr) {
                step(found[number].data.ptr);
                continue;
            }
            int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (connection < 0) {
                if (errno != EAGAIN)
                    usleep(100000);
                continue;
            }
            struct client *client = calloc(1, sizeof *client);
            client->connection = connection;
            client->last = seconds();
            client->before = ring.before;
            client->after = &ring;
            client->before->after = client;
            ring.before = client;
            watch(client, EPOLL_CTL_ADD);
        }
        for (struct client *client = ring.after, *next; client != &ring; client = next) {
            next = client->after;
            if (seconds() - client->last > SILENCE_S && !fault("WaitsWithoutEnd"))
                drop(client);
        }
    }
}

/* Which model a fault is built into; each model alone is a correct server. */
static const struct { const char *name; void (*run)(void); } models[] = {
    {"serial", serial}, {"fork", by_fork}, {"thread", by_thread}, {"pool", by_pool}, {"event", by_events},
    {"StringLength", by_thread}, {"ShortSend", by_events}, {"Overflow", by_thread}, {"SigPipe", by_thread},
    {"SharedBuffer", by_thread}, {"LockOrder", by_thread}, {"SpinningAccept", by_thread}, {"BacklogZero", serial},
    {"NoWaitpid", by_fork}, {"ParentKeeps", by_fork}, {"DiesOfEintr", by_fork}, {"HoldsTheLock", by_pool},
    {"WakesIfEmpty", by_pool}, {"NoBound", by_pool}, {"TriesAgain", by_thread}, {"WaitsWithoutEnd", by_events},
};

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    name = argv[1];
    root = argv[3];
    workers = atoi(argv[4]);
    if (!realpath(root, real_root) || workers > 16 || pipe2(wake, O_NONBLOCK | O_CLOEXEC) != 0)
        return 2;
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((unsigned short)atoi(argv[2]));
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, fault("BacklogZero") ? 0 : 128) != 0) {
        perror(argv[2]);
        return 1;
    }
    for (size_t number = 0; number < sizeof models / sizeof *models; number++) {
        if (fault(models[number].name)) {
            models[number].run();
            return 0;
        }
    }
    fprintf(stderr, "no fault is called %s\n", name);
    return 2;
}
