/* Answers with as many bytes as the query says: /libcgi-bin/bytes.so?10240. Without a query, 28 bytes.
 *
 * Tables 2 and 3 of the LibCGI paper (Venkitachalam and Chiueh, section 5) measure such a program: it "does nothing
 * but to write a memory-resident data packet" of 28 bytes to 100 KB. The packet is made once, in initfunc().
 */
#include <ewe_libcgi.h>
#include <string.h>

#define DEFAULT_BYTES 28
#define MAX_BYTES (100 << 20)
#define PACKET (128 << 10)

static char packet[PACKET];

void initfunc(void)
{
    for (size_t at = 0; at < sizeof packet; at++)
        packet[at] = (char)(at % 64 == 63 ? '\n' : 'a' + at % 26);
}

void processfunc(char *input)
{
    static const char head[] = "Content-Type: text/plain\n\n";
    const char *query = getenv("QUERY_STRING");
    long bytes = query && *query ? strtol(query, NULL, 10) : DEFAULT_BYTES;

    (void)input;
    if (bytes < 0 || bytes > MAX_BYTES) {
        lputs("Status: 400 Bad Request\nContent-Type: text/plain\n\nThe query is a number of bytes, up to 100 MB.\n");
        return;
    }
    lwrite(head, sizeof head - 1);
    for (; bytes > PACKET; bytes -= PACKET)
        lwrite(packet, PACKET);
    lwrite(packet, (size_t)bytes);
}
