/* The output of a CGI program. */
#include <stddef.h>
#include <unistd.h>

/* Write to standard output; return 0 when all is written. */
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
