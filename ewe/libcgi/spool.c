/* A flush() for long output: into a temporary file without a name. The caller sends the file afterwards.
 *
 * The library runs at full speed, however slowly the client reads, and then is free for the next call. Otherwise a slow
 * client would occupy a thread, and perhaps the process's environment, without a limit. Moreover no byte is sent before
 * the call has ended: after a fault the client gets an error status, not half a document.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

static int temporary_file(void)
{
    char name[4096];
    const char *directory = getenv("TMPDIR");
    if (directory == NULL || directory[0] == 0)
        directory = "/tmp";
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return file;
    snprintf(name, sizeof name, "%s/ewe-XXXXXX", directory);
    file = mkostemp(name, O_CLOEXEC);
    if (file >= 0)
        unlink(name);
    return file;
}

int libcgi_spool(libcgi_call *call, const char *data, size_t length)
{
    int file = (int)(intptr_t)call->context - 1;
    if (file < 0) {
        file = temporary_file();
        if (file < 0)
            return -1;
        call->context = (void *)(intptr_t)(file + 1);
    }
    while (length > 0) {
        ssize_t written = write(file, data, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return -1;
        data += written;
        length -= (size_t)written;
    }
    return 0;
}
