/* bytes.h as a CGI program. */
#include "bytes.h"
#include <unistd.h>

static int put(const char *data, size_t length)
{
    while (length > 0) {
        ssize_t done = write(1, data, length);
        if (done < 0)
            return 1;
        data += done;
        length -= (size_t)done;
    }
    return 0;
}

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
