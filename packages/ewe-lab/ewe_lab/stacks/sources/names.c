/* A library that answers with the client's address, or with its name if the query is "name". */
#include <ewe_libcgi.h>
#include <string.h>

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING"), *address = getenv("REMOTE_ADDR");

    (void)input;
    lprintf("Content-Type: text/plain\r\n\r\nclient %s\n",
            query && strcmp(query, "name") == 0 ? get_remote_host() : address);
}
