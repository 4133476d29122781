/* bytes.h as a LibCGI library. */
#include <ewe_libcgi.h>

#include "bytes.h"

void initfunc(void)
{
    make_packet();
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    size_t bytes = wanted(query ? query : "", query ? strlen(query) : 0);
    char head[HEAD];

    (void)input;
    lwrite(head, head_of(head, bytes));
    lwrite(packet, bytes - 1);
    lwrite("\n", 1);
}
