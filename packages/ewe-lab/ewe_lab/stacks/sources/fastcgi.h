/* A FastCGI responder: standard input is its listening socket (FastCGI specification, section 2.2).
 *
 * One process serves all its connections with poll(2), and keeps those that the web server wants kept. It reads the
 * parameters only for QUERY_STRING. A connection sends its requests one after the other.
 *
 * The program that includes this file, after `#define _GNU_SOURCE`, defines answer() and calls serve_all().
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BEGIN = 1, END = 3, PARAMS = 4, STDIN = 5, STDOUT = 6 };
enum { HEADER = 8, ROOM = 1 << 17, CONNECTIONS = 1024, RECORD = 65528 };

struct connection {
    char data[ROOM];      /* what has come and is not handled yet */
    size_t filled;
    char query[1 << 13];
    size_t query_length;
    uint16_t id;
    int keep;
};

/* Return the length of the answer to a query, a CGI head and a document, and where it is. It is sent before the next
   request is answered. */
static size_t answer(const char *query, size_t length, const char **where);

static struct pollfd polled[CONNECTIONS + 1];
static struct connection *known[CONNECTIONS + 1];
static nfds_t count = 1;

static size_t length_at(const uint8_t **at)
{
    size_t length = **at;

    if (length < 128) {
        *at += 1;
        return length;
    }
    length = (length & 127) << 24 | (size_t)(*at)[1] << 16 | (size_t)(*at)[2] << 8 | (*at)[3];
    *at += 4;
    return length;
}

static void read_params(struct connection *of, const uint8_t *at, const uint8_t *end)
{
    while (end - at >= 2) {
        size_t name = length_at(&at), value = length_at(&at);
        if (at > end || name + value > (size_t)(end - at))
            return;
        if (name == 12 && memcmp(at, "QUERY_STRING", 12) == 0 && value <= sizeof of->query) {
            memcpy(of->query, at + name, value);
            of->query_length = value;
        }
        at += name + value;
    }
}

static void header(uint8_t *at, uint8_t type, uint16_t id, size_t length)
{
    uint8_t record[HEADER] = {1, type, (uint8_t)(id >> 8), (uint8_t)id, (uint8_t)(length >> 8), (uint8_t)length, 0, 0};
    memcpy(at, record, HEADER);
}

static int send_all(int sock, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t done = send(sock, data, length, MSG_NOSIGNAL);
        if (done < 0 && errno == EAGAIN) {
            struct pollfd room = {sock, POLLOUT, 0};
            poll(&room, 1, 10000);
        } else if (done < 0) {
            return -1;
        } else {
            data += done;
            length -= (size_t)done;
        }
    }
    return 0;
}

static int respond(int sock, struct connection *of)
{
    static uint8_t *out;
    static size_t room;
    const char *source;
    size_t left = answer(of->query, of->query_length, &source), at = 0;
    size_t needed = left + left / RECORD * HEADER + 4 * HEADER;

    if (needed > room) {
        free(out);
        room = 2 * needed;
        if ((out = malloc(room)) == NULL) {
            room = 0;
            return -1;
        }
    }
    while (left > 0) {
        size_t part = left < RECORD ? left : RECORD;
        header(out + at, STDOUT, of->id, part);
        memcpy(out + at + HEADER, source, part);
        at += HEADER + part;
        source += part;
        left -= part;
    }
    header(out + at, STDOUT, of->id, 0);
    header(out + at + HEADER, END, of->id, 8);
    memset(out + at + 2 * HEADER, 0, 8);
    return send_all(sock, out, at + 2 * HEADER + 8) || !of->keep ? -1 : 0;
}

/* Handle the complete records of a connection; -1: close it. */
static int handle(int sock, struct connection *of)
{
    uint8_t *at = (uint8_t *)of->data, *end = at + of->filled;

    while (end - at >= HEADER) {
        size_t length = (size_t)at[4] << 8 | at[5], whole = HEADER + length + at[6];
        uint8_t *content = at + HEADER;
        if ((size_t)(end - at) < whole)
            break;
        if (at[1] == BEGIN) {
            of->id = (uint16_t)(at[2] << 8 | at[3]);
            of->keep = content[2] & 1;
            of->query_length = 0;
        } else if (at[1] == PARAMS) {
            read_params(of, content, content + length);
        } else if (at[1] == STDIN && length == 0 && respond(sock, of) != 0) {
            return -1;
        }
        at += whole;
    }
    of->filled = (size_t)(end - at);
    memmove(of->data, at, of->filled);
    return 0;
}

static void forget(nfds_t which)
{
    close(polled[which].fd);
    free(known[which]);
    count--;
    polled[which] = polled[count];
    known[which] = known[count];
}

static void meet(void)
{
    int sock = accept4(0, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (sock < 0)
        return;
    if (count > CONNECTIONS || (known[count] = calloc(1, sizeof *known[count])) == NULL) {
        close(sock);
        return;
    }
    polled[count].fd = sock;
    polled[count].events = POLLIN;
    polled[count++].revents = POLLIN;  /* its request has mostly come with it */
}

static int serve(int sock, struct connection *of)
{
    ssize_t got = recv(sock, of->data + of->filled, ROOM - of->filled, 0);

    if (got < 0 && errno == EAGAIN)
        return 0;
    if (got <= 0)
        return -1;
    of->filled += (size_t)got;
    return handle(sock, of);
}

static int serve_all(void)
{
    signal(SIGPIPE, SIG_IGN);
    fcntl(0, F_SETFL, O_NONBLOCK); /* of several processes that are told of a connection, one gets it */
    polled[0].fd = 0;
    polled[0].events = POLLIN;
    while (poll(polled, count, -1) > 0 || errno == EINTR) {
        if (polled[0].revents)
            meet();
        for (nfds_t which = count; which-- > 1;)
            if (polled[which].revents && serve(polled[which].fd, known[which]) != 0)
                forget(which);
    }
    return 1;
}
