/* A client of the database daemon `ewe-dbd`, for programs in C and C++: CGI, FastCGI and LibCGI. One file, no library.
 *
 * The daemon keeps connections to databases open. A program sends it a statement, and gets the result as text that
 * fits into a page: an HTML table, the options of a selection, JSON, CSV. A whole CGI program:
 *
 *     #include <stdio.h>
 *     #include <ewe_db.h>
 *
 *     int main(void)
 *     {
 *         ewe_db *db = ewe_db_new("unix:/run/ewe-dbd.sock");
 *         const char *piece;
 *         long length;
 *
 *         ewe_db_text(db, NULL, "10.0.0.1");
 *         if (ewe_db_ask(db, "log", "SELECT at, request FROM log WHERE address = ?", "TABLE") != 0) {
 *             printf("Status: %d\nContent-Type: text/plain\n\nNo data.\n", ewe_db_status(db));
 *             fprintf(stderr, "%s\n", ewe_db_error(db));
 *             return 0;
 *         }
 *         printf("Content-Type: text/html\n\n");
 *         while ((length = ewe_db_read(db, &piece)) > 0)
 *             fwrite(piece, 1, length, stdout);
 *         ewe_db_free(db);
 *         return length < 0;
 *     }
 *
 *     cc -O2 -I $(ewe's directory)/database -o goods goods.c
 *
 * Never paste a visitor's text into a statement. Write ? or :name there, and give the value by ewe_db_text() and its
 * siblings: the database then never takes the text for SQL.
 *
 * A program that stays loaded (FastCGI, LibCGI) makes one ewe_db and asks again and again. The connection stays open.
 * After a restart of the daemon it is made again. Two threads must not use one ewe_db at the same time.
 *
 * Each wait for the daemon ends after the timeout (30 s, ewe_db_timeout()). The peer's bytes are checked: a bad answer
 * is an error of ewe_db_ask() or ewe_db_read(), never a crash. No call raises a signal.
 *
 * The protocol is defined in protocol.py, beside this file.
 */
#ifndef EWE_DB_H
#define EWE_DB_H

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EWE_DB_FUNCTION static inline __attribute__((unused))
#define EWE_DB_MAX_FRAME (1u << 20) /* bytes of a message without its length */

/* The fields are private: use the functions. */
typedef struct ewe_db {
    char address[256], key[256];
    int sock;               /* -1: not connected */
    int timeout_ms;
    int status;             /* the HTTP status for the last error; 200 after a success */
    int more_frames;        /* the next frame of a result is still to come */
    int first_piece_unread; /* the first piece was received by ewe_db_ask(), and ewe_db_read() has not returned it */
    int no_memory;          /* a parameter of the next request did not fit */
    long long rows;         /* limits of the next request: ewe_db_limits() */
    double seconds;
    char *parameters;       /* the fields P of the next request */
    size_t parameters_length;
    char *frame;            /* the last frame that came */
    const char *piece;      /* its ResponseFragment */
    size_t piece_length;
    char error[512];
} ewe_db;

/* ---- making a client ---- */

/* Return a client of the daemon at "unix:PATH" or "HOST:PORT"; NULL without memory. It connects at the first question.
   All functions below accept NULL, and fail. */
EWE_DB_FUNCTION ewe_db *ewe_db_new(const char *address)
{
    ewe_db *db = (ewe_db *)calloc(1, sizeof *db);

    if (db == NULL)
        return NULL;
    db->sock = -1;
    db->timeout_ms = 30000;
    db->status = 200;
    if (strlen(address) < sizeof db->address)
        strcpy(db->address, address);
    return db;
}

/* Close the connection. The next question makes a new one. */
EWE_DB_FUNCTION void ewe_db_close(ewe_db *db)
{
    if (db != NULL && db->sock >= 0)
        close(db->sock);
    if (db != NULL) {
        db->sock = -1;
        db->more_frames = db->first_piece_unread = 0;
    }
}

/* Close the connection, and free the client. */
EWE_DB_FUNCTION void ewe_db_free(ewe_db *db)
{
    if (db == NULL)
        return;
    ewe_db_close(db);
    free(db->parameters);
    free(db->frame);
    free(db);
}

/* Set the key of a database, which the daemon asks for on TCP. At most 255 bytes. */
EWE_DB_FUNCTION void ewe_db_key(ewe_db *db, const char *key)
{
    if (db != NULL)
        snprintf(db->key, sizeof db->key, "%s", key);
}

/* Set the longest wait for the daemon, in ms: to connect, to send the request, for each piece of the result. */
EWE_DB_FUNCTION void ewe_db_timeout(ewe_db *db, int ms)
{
    if (db != NULL)
        db->timeout_ms = ms;
}

/* Return the last error in one line, for the log: a visitor should not see the names of tables. */
EWE_DB_FUNCTION const char *ewe_db_error(const ewe_db *db)
{
    return db == NULL ? "no memory" : db->error;
}

/* Return the HTTP status for the last error: 403, 500, 503 or 504. 200 after a success. */
EWE_DB_FUNCTION int ewe_db_status(const ewe_db *db)
{
    return db == NULL ? 500 : db->status;
}

/* ---- parameters of the next question. name: NULL for the next ?, "status" for :status ---- */

/* Store an error, and close the connection, because its next bytes have no meaning; return -1. */
__attribute__((format(printf, 3, 4)))
EWE_DB_FUNCTION int ewe_db_fail(ewe_db *db, int status, const char *format, ...)
{
    va_list more;

    va_start(more, format);
    vsnprintf(db->error, sizeof db->error, format, more);
    va_end(more);
    for (char *at = db->error; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = ' ';
    db->status = status;
    ewe_db_close(db);
    return -1;
}

/* Write a number at `at`, in 4 bytes, the highest first; return the position after it. */
EWE_DB_FUNCTION char *ewe_db_put_number(char *at, size_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (char)(number >> shift);
    return at;
}

/* Write a field at `at`: letter, length, content; return the position after it. */
EWE_DB_FUNCTION char *ewe_db_put_field(char *at, char letter, const char *content, size_t length)
{
    *at++ = letter;
    at = ewe_db_put_number(at, length);
    if (length > 0)
        memcpy(at, content, length);
    return at + length;
}

/* Add a parameter: a field P with the name, NUL, the letter of the type, and the value. */
EWE_DB_FUNCTION void ewe_db_bind(ewe_db *db, const char *name, char type, const void *value, size_t length)
{
    size_t named = name == NULL ? 0 : strlen(name), content;
    char *grown, *at;

    if (db == NULL)
        return;
    content = named + 2 + length;
    /* ewe_db_ask() refuses a request that is too long for a frame */
    if (length > EWE_DB_MAX_FRAME || named > EWE_DB_MAX_FRAME || db->parameters_length > EWE_DB_MAX_FRAME
        || (grown = (char *)realloc(db->parameters, db->parameters_length + 5 + content)) == NULL) {
        db->no_memory = 1;
        return;
    }
    db->parameters = grown;
    at = grown + db->parameters_length;
    *at++ = 'P';
    at = ewe_db_put_number(at, content);
    if (named > 0)
        memcpy(at, name, named);
    at += named;
    *at++ = '\0';
    *at++ = type;
    if (length > 0)
        memcpy(at, value, length);
    db->parameters_length += 5 + content;
}

/* Bind a text in UTF-8. NULL binds SQL's NULL. */
EWE_DB_FUNCTION void ewe_db_text(ewe_db *db, const char *name, const char *value)
{
    ewe_db_bind(db, name, value == NULL ? 'n' : 't', value, value == NULL ? 0 : strlen(value));
}

EWE_DB_FUNCTION void ewe_db_integer(ewe_db *db, const char *name, long long value)
{
    char digits[32];

    ewe_db_bind(db, name, 'i', digits, (size_t)snprintf(digits, sizeof digits, "%lld", value));
}

EWE_DB_FUNCTION void ewe_db_real(ewe_db *db, const char *name, double value)
{
    char digits[64];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%.17g", value);

    for (size_t at = 0; at < length; at++)
        if (digits[at] == ',') /* the decimal sign of a locale */
            digits[at] = '.';
    ewe_db_bind(db, name, 'f', digits, length);
}

EWE_DB_FUNCTION void ewe_db_bytes(ewe_db *db, const char *name, const void *value, size_t length)
{
    ewe_db_bind(db, name, 'b', value, length);
}

/* Set limits of the next question: the largest number of rows (0: the daemon's own), and the seconds that the statement
   may run (0, or 1e9 and more: the daemon's own). Neither can raise the daemon's limits. */
EWE_DB_FUNCTION void ewe_db_limits(ewe_db *db, long long rows, double seconds)
{
    if (db != NULL) {
        db->rows = rows;
        db->seconds = seconds;
    }
}

/* ---- the connection ---- */

EWE_DB_FUNCTION long long ewe_db_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for an event of the socket; 0: it has come, -1: deadline_ms (of ewe_db_now_ms()) has passed. A signal does not
   end the wait, because LibCGI uses signals. */
EWE_DB_FUNCTION int ewe_db_wait(ewe_db *db, short events, long long deadline_ms)
{
    for (;;) {
        struct pollfd one = {db->sock, events, 0};
        long long left = deadline_ms - ewe_db_now_ms();
        int found = poll(&one, 1, left > 0 ? (int)left : 0);
        if (found > 0)
            return 0;
        if (found == 0)
            return ewe_db_fail(db, 503, "the daemon at %s has not answered within %d ms", db->address, db->timeout_ms);
        if (errno != EINTR)
            return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(errno));
    }
}

/* Connect a new socket to an address; 0: connected. */
EWE_DB_FUNCTION int ewe_db_connect_to(ewe_db *db, int family, const struct sockaddr *address, socklen_t length)
{
    long long deadline_ms = ewe_db_now_ms() + db->timeout_ms;
    int error = 0, on = 1;
    socklen_t size = sizeof error;

    db->sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (db->sock < 0)
        return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(errno));
    if (family != AF_UNIX)
        setsockopt(db->sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (connect(db->sock, address, length) != 0) {
        if (errno == EAGAIN) { /* the Unix socket's backlog is full: the kernel does not report when it has room */
            struct timespec pause = {0, 2000000}; /* 2 ms */
            if (ewe_db_now_ms() >= deadline_ms)
                return ewe_db_fail(db, 503, "%s: the daemon does not take more connections", db->address);
            nanosleep(&pause, NULL);
            continue;
        }
        if (errno != EINPROGRESS && errno != EINTR && errno != EALREADY)
            return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(errno));
        if (ewe_db_wait(db, POLLOUT, deadline_ms) != 0)
            return -1;
        if (getsockopt(db->sock, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
            return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(error));
        return 0;
    }
    return 0;
}

/* Connect to the daemon, unless a usable connection is open; 0: connected. ewe_db_ask() calls this function. A program
   calls it itself only to measure the time of connecting. */
EWE_DB_FUNCTION int ewe_db_connect(ewe_db *db)
{
    char host[sizeof db->address], *port, byte;
    ssize_t surprise;
    struct addrinfo hints, *found, *each;
    int problem;

    if (db == NULL)
        return -1;
    if (db->sock >= 0) {
        /* The daemon has ended, or has sent bytes that were not asked for: then the next answer cannot be trusted */
        surprise = recv(db->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (db->more_frames || surprise >= 0 || errno != EAGAIN)
            ewe_db_close(db);
    }
    db->more_frames = db->first_piece_unread = 0;
    if (db->sock >= 0)
        return 0;
    if (strncmp(db->address, "unix:", 5) == 0) {
        struct sockaddr_un local;
        memset(&local, 0, sizeof local);
        local.sun_family = AF_UNIX;
        if (strlen(db->address + 5) >= sizeof local.sun_path)
            return ewe_db_fail(db, 500, "%s: the path is too long for a socket", db->address);
        strcpy(local.sun_path, db->address + 5);
        return ewe_db_connect_to(db, AF_UNIX, (struct sockaddr *)&local, sizeof local);
    }
    strcpy(host, db->address);
    port = strrchr(host, ':');
    if (port == NULL || port == host || port[1] == '\0')
        return ewe_db_fail(db, 500, "'%s' is no address of a daemon: unix:PATH or HOST:PORT", db->address);
    *port++ = '\0';
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (host[0] == '[' && port[-2] == ']') { /* IPv6 */
        port[-2] = '\0';
        problem = getaddrinfo(host + 1, port, &hints, &found);
    } else {
        problem = getaddrinfo(host, port, &hints, &found);
    }
    if (problem != 0)
        return ewe_db_fail(db, 503, "%s: %s", db->address, gai_strerror(problem));
    problem = -1;
    for (each = found; each != NULL && problem != 0; each = each->ai_next)
        problem = ewe_db_connect_to(db, each->ai_family, each->ai_addr, each->ai_addrlen);
    freeaddrinfo(found);
    return problem;
}

/* Send all bytes; 0: done, or the daemon has closed the connection; -1: another error. */
EWE_DB_FUNCTION int ewe_db_send(ewe_db *db, const char *data, size_t length)
{
    long long deadline_ms = ewe_db_now_ms() + db->timeout_ms;

    while (length > 0) {
        ssize_t done = send(db->sock, data, length, MSG_NOSIGNAL);
        if (done >= 0) {
            data += done;
            length -= (size_t)done;
        } else if (errno == EAGAIN) {
            if (ewe_db_wait(db, POLLOUT, deadline_ms) != 0)
                return -1;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return 0; /* the daemon may have sent the reason before it closed the connection: ewe_db_next() reads it */
        } else if (errno != EINTR) {
            return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(errno));
        }
    }
    return 0;
}

/* Receive exactly `length` bytes; 0: done, -1: an error. */
EWE_DB_FUNCTION int ewe_db_receive(ewe_db *db, char *room, size_t length, long long deadline_ms)
{
    while (length > 0) {
        ssize_t done = recv(db->sock, room, length, 0);
        if (done > 0) {
            room += done;
            length -= (size_t)done;
        } else if (done == 0) {
            return ewe_db_fail(db, 503, "%s: the daemon has closed the connection", db->address);
        } else if (errno == EAGAIN) {
            if (ewe_db_wait(db, POLLIN, deadline_ms) != 0)
                return -1;
        } else if (errno != EINTR) {
            return ewe_db_fail(db, 503, "%s: %s", db->address, strerror(errno));
        }
    }
    return 0;
}

/* Return the number of 4 bytes at `at`. */
EWE_DB_FUNCTION size_t ewe_db_number_at(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;

    return (size_t)byte[0] << 24 | (size_t)byte[1] << 16 | (size_t)byte[2] << 8 | byte[3];
}

/* ---- the answer ---- */

/* Return whether a field's content is this word. */
EWE_DB_FUNCTION int ewe_db_is(const char *content, size_t length, const char *word)
{
    return content != NULL && length == strlen(word) && memcmp(content, word, length) == 0;
}

/* Store the error of a daemon's response: its kind, NUL, a text. The connection stays open. */
EWE_DB_FUNCTION int ewe_db_refused(ewe_db *db, const char *content, size_t length)
{
    static const struct {
        const char *kind;
        int status;
    } known[] = {{"MESSAGE", 500}, {"FORBIDDEN", 403}, {"STATEMENT", 500}, {"TIMEOUT", 504},
                 {"TOO MANY ROWS", 500}, {"UNAVAILABLE", 503}};
    const char *nul = (const char *)memchr(content, '\0', length);
    size_t kind = nul == NULL ? length : (size_t)(nul - content), text = nul == NULL ? 0 : length - kind - 1;
    int sock = db->sock;

    for (size_t which = 0; which < sizeof known / sizeof *known; which++)
        if (ewe_db_is(content, kind, known[which].kind)) {
            db->sock = -1; /* otherwise ewe_db_fail() would close it */
            ewe_db_fail(db, known[which].status, "%s: %.*s", known[which].kind,
                        (int)(text < 400 ? text : 400), nul == NULL ? "" : nul + 1);
            db->sock = sock;
            return -1;
        }
    return ewe_db_fail(db, 500, "%s: an error of a kind that the protocol does not have", db->address);
}

/* Receive the next ServerResponse; 0: db->piece is its part of the result. */
EWE_DB_FUNCTION int ewe_db_next(ewe_db *db)
{
    long long deadline_ms = ewe_db_now_ms() + db->timeout_ms;
    /* of the fields R (ResponseFragment), C (ContinueFlow) and E (error) */
    const char *field[3] = {NULL, NULL, NULL}, *letters = "RCE", *which, *at, *end;
    size_t length[3] = {0, 0, 0}, size;
    char head[4];
    int more;

    if (ewe_db_receive(db, head, sizeof head, deadline_ms) != 0)
        return -1;
    size = ewe_db_number_at(head);
    if (size > EWE_DB_MAX_FRAME)
        return ewe_db_fail(db, 500, "%s: a message of %zu bytes, which no daemon sends", db->address, size);
    free(db->frame);
    db->frame = (char *)malloc(size + 1);
    if (db->frame == NULL)
        return ewe_db_fail(db, 500, "no memory for a message of %zu bytes", size);
    if (ewe_db_receive(db, db->frame, size, deadline_ms) != 0)
        return -1;
    end = db->frame + size;
    for (at = db->frame; at < end; at += size) {
        if (end - at < 5 || (size = ewe_db_number_at(at + 1)) > (size_t)(end - at - 5))
            return ewe_db_fail(db, 500, "%s: a field is longer than its message", db->address);
        which = *at == '\0' ? NULL : strchr(letters, *at);
        if (which == NULL || field[which - letters] != NULL)
            return ewe_db_fail(db, 500, "%s: a field that is unknown, or comes twice", db->address);
        at += 5;
        field[which - letters] = at;
        length[which - letters] = size;
    }
    more = ewe_db_is(field[1], length[1], "YES");
    if (!more && !ewe_db_is(field[1], length[1], "NO"))
        return ewe_db_fail(db, 500, "%s: a response without ContinueFlow", db->address);
    db->more_frames = more && field[2] == NULL;
    if (field[2] != NULL)
        return ewe_db_refused(db, field[2], length[2]);
    db->piece = field[0] == NULL ? "" : field[0];
    db->piece_length = length[0];
    return 0;
}

/* Send a statement to the daemon. database: a name of the daemon's settings; layout: TABLE, PRE, OPTION, JSON, CSV or
   XML. The parameters and limits given before apply to this question only. Return 0 when the result begins: now the
   program can write the head of its answer. Return -1 after an error, which ewe_db_error() describes. */
EWE_DB_FUNCTION int ewe_db_ask(ewe_db *db, const char *database, const char *statement, const char *layout)
{
    char digits[3][32], *message, *at;
    size_t number[3], content;
    int failed;

    if (db == NULL)
        return -1;
    /* the fields I (process id), N (rows) and T (seconds) as texts; the length 0: no such field */
    number[0] = (size_t)snprintf(digits[0], sizeof digits[0], "%ld", (long)getpid());
    number[1] = db->rows > 0 ? (size_t)snprintf(digits[1], sizeof digits[1], "%lld", db->rows) : 0;
    number[2] = 0;
    if (db->seconds > 0 && db->seconds < 1e9) /* without "%f", whose decimal sign depends on the locale */
        number[2] = (size_t)snprintf(digits[2], sizeof digits[2], "%d.%06d", (int)db->seconds,
                                     (int)(1e6 * (db->seconds - (int)db->seconds)));
    /* 35: a letter and a length (5 bytes) for each of the fields D K S L I N T */
    content = 35 + strlen(database) + strlen(statement) + strlen(layout) + strlen(db->key) + number[0] + number[1]
              + number[2] + db->parameters_length;
    message = db->no_memory || content > EWE_DB_MAX_FRAME ? NULL : (char *)malloc(4 + content);
    if (message != NULL) {
        at = ewe_db_put_field(message + 4, 'D', database, strlen(database));
        if (db->key[0] != '\0') /* before the long fields: see protocol.py */
            at = ewe_db_put_field(at, 'K', db->key, strlen(db->key));
        at = ewe_db_put_field(at, 'S', statement, strlen(statement));
        at = ewe_db_put_field(at, 'L', layout, strlen(layout));
        if (db->parameters_length > 0)
            memcpy(at, db->parameters, db->parameters_length);
        at = ewe_db_put_field(at + db->parameters_length, 'I', digits[0], number[0]);
        if (number[1] > 0)
            at = ewe_db_put_field(at, 'N', digits[1], number[1]);
        if (number[2] > 0)
            at = ewe_db_put_field(at, 'T', digits[2], number[2]);
        ewe_db_put_number(message, (size_t)(at - message) - 4);
    }
    free(db->parameters);
    db->parameters = NULL;
    db->parameters_length = 0;
    db->rows = 0;
    db->seconds = 0;
    failed = db->no_memory;
    db->no_memory = 0;
    if (message == NULL)
        return ewe_db_fail(db, 500, failed || content > EWE_DB_MAX_FRAME ? "the statement and its parameters are longer "
                           "than a message" : "no memory");
    failed = ewe_db_connect(db) != 0 || ewe_db_send(db, message, (size_t)(at - message)) != 0 || ewe_db_next(db) != 0;
    free(message);
    if (failed)
        return -1;
    db->first_piece_unread = 1;
    db->status = 200;
    db->error[0] = '\0';
    return 0;
}

/* Receive the next piece of the result. Return its length, 0 at the end, -1 if the rest cannot come (ewe_db_error()).
   After -1 the page is incomplete, and the program should end with an error, so that the page does not look complete.
   The piece is valid until the next call, and does not end in NUL. */
EWE_DB_FUNCTION long ewe_db_read(ewe_db *db, const char **piece)
{
    if (db == NULL || db->status != 200)
        return -1;
    for (;;) {
        if (db->first_piece_unread) {
            db->first_piece_unread = 0;
        } else if (!db->more_frames) {
            return 0;
        } else if (ewe_db_next(db) != 0) {
            return -1;
        }
        if (db->piece_length > 0) {
            *piece = db->piece;
            return (long)db->piece_length;
        }
    }
}

#endif
