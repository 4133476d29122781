/* The answer of the programs that are measured: as many bytes as the query says, 28 without one.
 *
 * It is the program of the LibCGI paper's section 5, which "does nothing but to write a memory-resident data packet".
 * bytes_cgi.c, bytes_fcgi.c and bytes_lib.c send the same bytes: x, and a line end at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (128 << 10)
#define HEAD 128

static char packet[MOST];

__attribute__((unused)) static void make_packet(void)
{
    memset(packet, 'x', sizeof packet);
}

/* Return how many bytes a query asks for. */
static size_t wanted(const char *query, size_t length)
{
    size_t bytes = 0;

    for (size_t at = 0; at < length && query[at] >= '0' && query[at] <= '9' && bytes < MOST; at++)
        bytes = bytes * 10 + (size_t)(query[at] - '0');
    return bytes == 0 ? 28 : bytes < MOST ? bytes : MOST;
}

/* Write the head of an answer into `room` of HEAD bytes; return its length. */
static size_t head_of(char *room, size_t bytes)
{
    return (size_t)snprintf(room, HEAD, "Content-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", bytes);
}
