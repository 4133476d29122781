/* bytes.h as a CGI program. */
#include "bytes.h"
#include "put.h"

int main(void)
{
    const char *query = getenv("QUERY_STRING");
    size_t bytes = wanted(query ? query : "", query ? strlen(query) : 0);
    static char answer[HEAD + MOST];
    size_t head = head_of(answer, bytes);

    memset(answer + head, 'x', bytes - 1);
    answer[head + bytes - 1] = '\n';
    return put(answer, head + bytes);
}
