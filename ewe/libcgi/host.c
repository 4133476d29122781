/* The host of LibCGI libraries: an engine of X-Switch that runs the libraries of one user, in a separate process.
 *
 * ewe can call a library in-process. A library of another user must not run there: it could read the server's memory.
 * X-Switch starts this host as the library's owner, as it starts the interpreter of a script:
 *
 *     X-Switch                                      host
 *     control  -- the library, its environment -->  loads the library, unless it is loaded and its file is unchanged
 *     data     -- the body --------------------->   in memory, with a NUL after it
 *                                                   core.c calls processfunc()
 *     data     <-- the answer -------------------   from a buffer: its head is examined first
 *     control  <-- the mark ---------------------   EOT, the status, LF
 *
 * docs/xswitch-internals.md defines this protocol. The libraries stay loaded until their files change or the process
 * ends. When X-Switch ends the process (idle, max-requests, max-memory), no terminatefunc() is called: X-Switch kills
 * it.
 *
 * Possible failures:
 *
 *   a fault    core.c brings the thread out of the library. If nothing was sent, the client gets 500. Otherwise the
 *              process kills itself, which tells X-Switch that the answer is incomplete. In both cases the process
 *              ends: heap and locks may be broken, and another process costs 2 ms.
 *   the head   is malformed: the rest of the output is dropped, the client gets 500, and the library is unloaded
 *              (LibCGI paper, section 4.1). The process continues.
 *   fork()     in a library: the child must not answer, too. It ends where it returns to the host.
 *   orphans    of programs that a library has started: suexecme adopts them, and kills them when this process ends.
 *
 * A library that prints to the standard output writes to the log: descriptor 1 is a copy of 2.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

#define MAX_LINES (200 * 1024)     /* both lines of a request: ewe/xswitch/protocol.py */
#define BUFFER (64 * 1024)         /* of the output; the head must fit */
#define SMALL_BODY (64 * 1024)     /* a body up to this size uses a buffer that stays allocated */
#define MAX_LIBRARIES 64           /* loaded at once; above it, the least recently used one is unloaded */
#define FIRST_DESCRIPTOR 20        /* of the host's own copies: lower numbers are free for the libraries */
#define NO_LIMIT_MS 86400000       /* a day: X-Switch has a time limit itself */
#define LIMIT "LIBCGI_TIMEOUT_MS=" /* the variable with which ewe sends its own limit, for the libraries of the site */

/* A loaded library, with the signature of its file at that time. */
struct loaded {
    char *file;
    struct stat signature;
    libcgi_library *library;
    uint64_t used; /* the number of the last request that used it */
};

/* The state of the answer. */
struct answer {
    int raw;       /* the library writes its own status line (nph-): its head is not examined */
    int malformed; /* the head was examined, and is not a CGI head */
    int sent;      /* bytes were sent to X-Switch */
};

static int data = -1, control = -1;
static pid_t self;
static uint64_t requests;
static struct loaded table[MAX_LIBRARIES];
static char lines[MAX_LINES + 1];
static char output[BUFFER];
static char small_body[SMALL_BODY + 1];

/* Log a line; X-Switch adds the user and the library. */
static void say(const char *what, const char *why)
{
    dprintf(2, "%s%s%s\n", what, *why ? ": " : "", why);
}

static void report(const char *line)
{
    say(line, "");
}

/* Kill this process: X-Switch then knows that the answer is incomplete. */
static void end_broken(void)
{
    kill(getpid(), SIGKILL);
    _Exit(1);
}

/* Sockets */

static void send_all(int socket, const char *bytes, size_t length)
{
    while (length) {
        ssize_t count = send(socket, bytes, length, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            end_broken(); /* X-Switch has closed the socket */
        bytes += count;
        length -= (size_t)count;
    }
}

/* Read exactly `length` bytes of the body. X-Switch closes the socket if it gives the request up. */
static void read_body(char *into, size_t length)
{
    while (length) {
        ssize_t count = recv(data, into, length, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            _Exit(0);
        into += count;
        length -= (size_t)count;
    }
}

/* Read the two lines of a request. Returns the address of the second line. */
static char *read_lines(void)
{
    size_t length = 0;
    char *second = NULL;
    int found = 0;
    while (found < 2) {
        ssize_t count = recv(control, lines + length, MAX_LINES - length, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) /* the end, or lines longer than the protocol allows */
            _Exit(0);
        for (char *at = lines + length; at < lines + length + count; at++)
            if (*at == '\n' && !found++)
                second = at + 1;
        length += (size_t)count;
    }
    return second;
}

/* The request */

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decode a line in its own memory: its words become strings, one after the other. Empty words are dropped. Returns
 * the end of the strings, at the latest just after the line feed. */
static char *decode(char *line)
{
    char *from = line, *to = line, *word = line;
    for (;; from++) {
        if (*from == '\t' || *from == '\n') {
            int last = *from == '\n';
            if (to > word)
                *to++ = 0;
            if (last)
                return to;
            word = to;
        } else if (*from == '%' && digit_of(from[1]) >= 0 && digit_of(from[2]) >= 0) {
            *to++ = (char)(digit_of(from[1]) * 16 + digit_of(from[2]));
            from += 2;
        } else {
            *to++ = *from;
        }
    }
}

/* Return the value of a variable in a block, NULL if the block lacks it. name: with its "=". */
static const char *variable(const char *block, const char *name)
{
    for (size_t length = strlen(name); *block; block += strlen(block) + 1)
        if (!strncmp(block, name, length))
            return block + length;
    return NULL;
}

static size_t number_of(const char *text)
{
    return text && *text ? (size_t)strtoull(text, NULL, 10) : 0;
}

/* The answer */

static void fail(const char *status)
{
    char page[512];
    int length = snprintf(page, sizeof page,
                          "Status: %s\nContent-Type: text/html; charset=utf-8\n\n"
                          "<!DOCTYPE html>\n<title>%s</title>\n<h1>%s</h1>\n",
                          status, status, status);
    send_all(data, page, (size_t)length);
}

static int is_token(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int is_named(const char *line, const char *name)
{
    return !strncasecmp(line, name, strlen(name));
}

/* Return whether the output begins with a CGI head: fields, among them one that RFC 3875 section 6.2 requires, and an
 * empty line. The web server checks the values. */
static int is_head(const char *bytes, size_t length)
{
    const char *end = bytes + length;
    int complete = 0;
    while (bytes < end) {
        const char *feed = memchr(bytes, '\n', (size_t)(end - bytes));
        if (!feed)
            return 0;
        if (feed == bytes || (feed == bytes + 1 && *bytes == '\r'))
            return complete;
        if (!complete && is_named(bytes, "HTTP/")) { /* ewe accepts it as the status, as other servers do */
            complete = 1;
            bytes = feed + 1;
            continue;
        }
        const char *name = bytes;
        while (is_token(*name))
            name++;
        if (name == bytes || *name != ':')
            return 0;
        complete |= is_named(bytes, "content-type:") || is_named(bytes, "location:") || is_named(bytes, "status:");
        bytes = feed + 1;
    }
    return 0;
}

/* Send output: core.c calls this when its buffer is full, and run() at the end. */
static int flush(libcgi_call *call, const char *bytes, size_t length)
{
    struct answer *answer = call->context;
    if (getpid() != self)
        _Exit(0); /* a library has forked: the child must not answer */
    if (!answer->sent && !answer->raw && !is_head(bytes, length))
        answer->malformed = 1;
    if (answer->malformed)
        return -1;
    answer->sent = 1;
    send_all(data, bytes, length);
    return 0;
}

/* The libraries */

static int is_same_file(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec &&
           one->st_ctim.tv_sec == other->st_ctim.tv_sec && one->st_ctim.tv_nsec == other->st_ctim.tv_nsec;
}

static void unload(struct loaded *slot)
{
    if (slot->file) {
        libcgi_release(slot->library);
        free(slot->file);
        slot->file = NULL;
    }
}

/* Return the table entry for a library: its own, a free one, or that of the least recently used library. */
static struct loaded *slot_of(const char *file)
{
    struct loaded *best = table;
    for (struct loaded *each = table; each < table + MAX_LIBRARIES; each++) {
        if (each->file && !strcmp(each->file, file))
            return each;
        if (best->file && (!each->file || each->used < best->used))
            best = each;
    }
    unload(best);
    return best;
}

/* End a call that the library did not end itself. */
static void end_faulty(const libcgi_call *call, int sent)
{
    char why[256] = "";
    libcgi_explain(call, why, sizeof why);
    say(sent ? "the answer is cut" : "500", why);
    if (sent)
        end_broken();
    fail("500 Internal Server Error");
    _Exit(1);
}

/* Return the library of a file, loaded from the file's present version; NULL if it cannot be loaded. */
static struct loaded *find(const char *file, int limit_ms)
{
    char why[512] = "";
    libcgi_call call = {.outcome = LIBCGI_DONE};
    struct loaded *slot = slot_of(file);
    struct stat now;
    if (stat(file, &now)) {
        say(file, strerror(errno));
        return NULL;
    }
    if (slot->file && !is_same_file(&slot->signature, &now))
        unload(slot);
    if (!slot->file) {
        const char *slash = strrchr(file, '/');
        libcgi_library *library = libcgi_load(file, slash ? slash + 1 : file, limit_ms, why, sizeof why, &call);
        if (getpid() != self)
            _Exit(0);
        if (!library && call.outcome != LIBCGI_DONE)
            end_faulty(&call, 0);
        if (!library) {
            say("the library cannot be loaded", why);
            return NULL;
        }
        *slot = (struct loaded){.file = strdup(file), .signature = now, .library = library};
    }
    slot->used = requests;
    return slot;
}

/* Call a library, and send its answer. Returns the status for the end mark. */
static int run(const char *file, char *variables, char *input)
{
    const char *slash = strrchr(file, '/');
    struct answer answer = {.raw = slash && !strncmp(slash, "/nph-", 5)};
    const char *given = variable(variables, LIMIT);
    libcgi_call call = {.variables = {variables}, .input = input, .output = output, .capacity = sizeof output,
                        .flush = flush, .context = &answer};
    struct loaded *slot = find(file, given ? (int)number_of(given) : NO_LIMIT_MS);
    if (!slot) {
        fail("500 Internal Server Error");
        return 1;
    }
    int outcome = libcgi_call_library(slot->library, &call);
    if (getpid() != self)
        _Exit(0);
    if (outcome != LIBCGI_DONE)
        end_faulty(&call, answer.sent);
    if (!answer.malformed && (call.used || !answer.sent))
        flush(&call, output, call.used);
    if (answer.malformed) {
        say("500", "it writes no CGI head (\"Content-Type: text/plain\" and an empty line); it is unloaded");
        unload(slot);
        fail("500 Internal Server Error");
        return 1;
    }
    return 0;
}

/* Read a request, answer it, and write the end mark. */
static void serve(void)
{
    char *variables = read_lines(), *file = lines, mark[8], *input = NULL;
    *decode(variables) = 0; /* an empty string ends the block */
    decode(file);
    requests++;
    size_t length = number_of(variable(variables, "CONTENT_LENGTH="));
    int status = 1;
    if (length > SMALL_BODY) {
        input = mmap(NULL, length + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (input == MAP_FAILED) {
            say("413", "its body does not fit into the memory of an engine (limits, memory)");
            fail("413 Content Too Large");
            _Exit(1); /* the body is still in the socket */
        }
    } else if (length) {
        input = small_body;
        input[length] = 0;
    }
    read_body(input, length);
    char *slash = strrchr(file, '/');
    if (slash > file) {
        *slash = 0;
        if (chdir(file))
            say(file, strerror(errno));
        *slash = '/';
    }
    umask(022);
    status = run(file, variables, input);
    if (length > SMALL_BODY)
        munmap(input, length + 1);
    send_all(control, mark, (size_t)snprintf(mark, sizeof mark, "\004%d\n", status));
}

/* Give the libraries descriptors that do not lead to X-Switch, and keep copies for the host. */
static int prepare(void)
{
    data = fcntl(0, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
    control = fcntl(3, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (data < 0 || control < 0 || nothing < 0 || dup2(nothing, 0) < 0 || dup2(2, 1) < 0)
        return errno;
    close(nothing);
    close(3);
    /* X-Switch has made this process a subreaper. A library may wait for its own children, so the host reaps none:
       orphans among their children would stay as zombies, and count towards the limit of the user's processes.
       suexecme adopts and reaps them instead. */
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    self = getpid();
    return libcgi_start(report);
}

int main(void)
{
    int reason = prepare();
    if (reason) {
        say("the host of libraries cannot start", strerror(reason));
        return 1;
    }
    for (;;)
        serve();
}
