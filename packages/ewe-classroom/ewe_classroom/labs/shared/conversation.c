#include "conversation.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

struct request {
    char method[8];
    char path[MAX_HEAD_BYTES];
    bool is_1_1;
    bool close;
};

size_t head_length(const char *data, size_t size)
{
    /* --- solution */
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    return end ? (size_t)(end - data) + 4 : 0;
    /* --- starter */
    // /* The head ends with an empty line. A client may send it in any number of pieces, and the next request with
    //    it. This starter assumes that it has exactly one request. */
    // (void)data;
    // return size;
    /* --- end */
}

/* Return the status with which a head is refused; 0 if it is a request, whose parts are then in *request. */
static int parse(const char *head, size_t size, struct request *request)
{
    /* --- solution */
    if (memchr(head, '\0', size))
        return 400;
    char text[MAX_HEAD_BYTES + 1];
    if (size > MAX_HEAD_BYTES)
        return 431;
    memcpy(text, head, size);
    text[size] = '\0';
    char *line_end = strstr(text, "\r\n");
    *line_end = '\0';
    char version[16];
    int used = -1; /* characters that sscanf() has used: %n */
    if (sscanf(text, "%7s %16383s %15s%n", request->method, request->path, version, &used) != 3 || text[used] != '\0')
        return 400;
    if (request->path[0] != '/' || (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0))
        return 400;
    request->is_1_1 = strcmp(version, "HTTP/1.1") == 0;
    request->close = false;
    for (char *line = line_end + 2; strcmp(line, "\r\n") != 0; line = line_end + 2) {
        line_end = strstr(line, "\r\n");
        char *colon = memchr(line, ':', (size_t)(line_end - line));
        if (!colon || colon == line || isspace((unsigned char)line[0]) || isspace((unsigned char)colon[-1]))
            return 400;
        if (colon - line == 10 && strncasecmp(line, "connection", 10) == 0 && strcasestr(colon, "close") != NULL
            && strcasestr(colon, "close") < line_end)
            request->close = true;
    }
    request->path[strcspn(request->path, "?")] = '\0';
    return 0;
    /* --- starter */
    // /* The first line has a method, a target and a version; each further line is "Name: value".
    //    Which inputs are not a request? */
    // (void)size;
    // strcpy(request->method, "GET");
    // sscanf(head, "%*s %16383s", request->path);
    // request->is_1_1 = false;
    // request->close = true;
    // return 0;
    /* --- end */
}

/* Percent-decode a path in place; return false if it contains a NUL. */
static bool decode(char *path)
{
    char *to = path;
    for (const char *from = path; *from; from++) {
        unsigned byte;
        if (*from == '%' && isxdigit((unsigned char)from[1]) && isxdigit((unsigned char)from[2])) {
            sscanf(from + 1, "%2x", &byte);
            from += 2;
            if (byte == 0)
                return false;
            *to++ = (char)byte;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    return true;
}

/* Open the file that a path names below root; return -1 if there is none. */
static int open_below(const char *root, char *path)
{
    /* --- solution */
    char base[PATH_MAX], name[PATH_MAX + MAX_HEAD_BYTES + 16], real[PATH_MAX];
    if (!decode(path) || !realpath(root, base))
        return -1;
    snprintf(name, sizeof name, "%s%s", base, path);
    struct stat about;
    if (stat(name, &about) == 0 && S_ISDIR(about.st_mode))
        strcat(name, "/index.html");
    size_t length = strlen(base);
    if (!realpath(name, real) || strncmp(real, base, length) != 0 || real[length] != '/')
        return -1;
    if (stat(real, &about) != 0 || !S_ISREG(about.st_mode))
        return -1;
    return open(real, O_RDONLY | O_CLOEXEC);
    /* --- starter */
    // /* Which file does this read for the path "/../secret.txt"? */
    // char name[PATH_MAX + MAX_HEAD_BYTES];
    // decode(path);
    // snprintf(name, sizeof name, "%s%s", root, path);
    // return open(name, O_RDONLY | O_CLOEXEC);
    /* --- end */
}

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Head Too Large";
    default: return "Internal Server Error";
    }
}

/* Return a response with room for `size` bytes of a body. *where is set to the place of the body, which the caller
   writes. Without has_body (HEAD), the response has the length of the body, but not the body. */
static struct response encode(int status, size_t size, bool keeps_open, bool has_body, char **where)
{
    struct response made = {malloc(256 + size), 0, keeps_open};
    if (!made.data)
        abort();
    made.size = (size_t)snprintf(made.data, 256, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\nConnection: %s\r\n\r\n", status,
                                 reason(status), size, keeps_open ? "keep-alive" : "close");
    *where = made.data + made.size;
    made.size += has_body ? size : 0;
    return made;
}

/* Return the response that refuses a request. has_body: as in encode(). */
static struct response refuse(int status, bool has_body)
{
    char text[64], *where;
    int size = snprintf(text, sizeof text, "%d %s\n", status, reason(status));
    struct response made = encode(status, (size_t)size, false, has_body, &where);
    memcpy(where, text, (size_t)size);
    return made;
}

struct response refusal(int status)
{
    return refuse(status, true);
}

struct response response_to(const char *head, size_t size, const char *root)
{
    struct request request;
    int refused = parse(head, size, &request);
    if (refused)
        return refusal(refused);
    bool is_head = strcmp(request.method, "HEAD") == 0;
    if (!is_head && strcmp(request.method, "GET") != 0)
        return refusal(405);
    int file = open_below(root, request.path);
    if (file < 0)
        return refuse(404, !is_head);
    struct stat about;
    fstat(file, &about);
    char *where;
    size_t left = (size_t)about.st_size;
    struct response made = encode(200, left, request.is_1_1 && !request.close, !is_head, &where);
    while (left > 0) {
        ssize_t count = read(file, where, left);
        if (count <= 0)
            break; /* the file has become shorter */
        where += count;
        left -= (size_t)count;
    }
    close(file);
    if (left > 0) {
        free(made.data);
        return refuse(404, !is_head);
    }
    return made;
}

/* Send all bytes; return false if the client does not receive them any more. */
static bool send_all(int connection, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t count = send(connection, data, size, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        data += count;
        size -= (size_t)count;
    }
    return true;
}

void converse(int connection, const char *root)
{
    struct timeval silence = {SILENCE_S, 0};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
    char buffer[MAX_HEAD_BYTES + 1];
    size_t used = 0;
    /* --- solution */
    for (;;) {
        size_t length = head_length(buffer, used);
        while (length == 0) {
            if (used == sizeof buffer) {
                struct response refused = refusal(431);
                send_all(connection, refused.data, refused.size);
                free(refused.data);
                return;
            }
            ssize_t count = recv(connection, buffer + used, sizeof buffer - used, 0);
            if (count < 0 && errno == EINTR)
                continue;
            if (count <= 0)
                return; /* the client has disconnected, or is silent */
            used += (size_t)count;
            length = head_length(buffer, used);
        }
        struct response response = response_to(buffer, length, root);
        bool sent = send_all(connection, response.data, response.size);
        free(response.data);
        if (!sent || !response.keeps_open)
            return;
        used -= length; /* the bytes after the empty line belong to the next request */
        memmove(buffer, buffer + length, used);
    }
    /* --- starter */
    // /* One recv() is not one request. A client may disconnect after any byte, and may send several requests. */
    // used = (size_t)recv(connection, buffer, sizeof buffer, 0);
    // struct response response = response_to(buffer, head_length(buffer, used), root);
    // send_all(connection, response.data, response.size);
    // free(response.data);
    /* --- end */
}

int listen_on(const char *port)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 128) != 0) {
        perror(port);
        exit(1);
    }
    return listener;
}
