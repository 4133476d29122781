/* One conversation: read a request, answer it, until the client has had enough.

   response_to() knows no socket, so every server of the course uses it as it is. converse() is the loop around it for
   a server whose recv() blocks. HTTP/1.1: RFC 9110 (meaning) and RFC 9112 (bytes). */

#ifndef CONVERSATION_H
#define CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_HEAD (16 * 1024) /* bytes of a request's head; a longer one is refused */
#define SILENCE 10           /* seconds that a client may send nothing, or take nothing */
#define PAUSE_US 50000       /* microseconds without accepting when no descriptor is left */
#define GRACE 10             /* seconds that conversations in progress have once the server is to end */

/* Bytes that belong to the response: free() them. */
struct response {
    char *data;
    size_t size;
    bool keeps_open;
};

/* Return the length of the first head in `size` bytes, with its empty line; 0 if it is not whole yet. */
size_t head_length(const char *data, size_t size);

/* Return the response to a head of head_length() bytes. root: the directory whose files are served. */
struct response response_to(const char *head, size_t size, const char *root);

/* Return the response that refuses a request. */
struct response refusal(int status);

/* Answer the requests of one connection until it ends. The caller closes it. */
void converse(int connection, const char *root);

/* Return a socket that listens on a port of this machine; end the program if there is none. */
int listen_on(const char *port);

#endif
