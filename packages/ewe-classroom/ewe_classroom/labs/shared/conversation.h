/* One conversation: read a request, send a response, and repeat this until the connection ends.

   response_to() uses no socket, so every server of the course can use it. converse() is the loop around it for
   servers with blocking sockets. RFC 9110 defines the meaning of HTTP/1.1, and RFC 9112 its bytes. */

#ifndef CONVERSATION_H
#define CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_HEAD_BYTES (16 * 1024) /* bytes of a request's head; the server refuses a longer head */
#define SILENCE_S 10               /* a client that sends or receives nothing for so many seconds is disconnected */
#define PAUSE_US 50000             /* microseconds of pause when no descriptor is free */
#define GRACE_S 10                 /* seconds for the conversations in progress after SIGTERM */

/* Bytes that belong to the response: free() them. */
struct response {
    char *data;
    size_t size;
    bool keeps_open;
};

/* Return the length of the first head in `size` bytes, with its empty line; 0 if the head is incomplete. */
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
