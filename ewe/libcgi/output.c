/* The shim's functions for libraries: output, variables, the client's name. All use the calling thread's call. */
#define _GNU_SOURCE
#include <netdb.h>
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define EWE_LIBCGI_ONE_AT_A_TIME /* the shim is no library */
#include "ewe_libcgi.h"
#include "internal.h"
#undef getenv

/* Empty the buffer. Returns 0, or -1 if no byte can be written any more. */
static int flush(libcgi_call *call)
{
    if (call->failed || child_of_library())
        return -1;
    if (call->used == 0)
        return 0;
    if (call->max_output != 0 && call->flushed + call->used > call->max_output) {
        call->failed = 1;
        guard_escape(LIBCGI_OUTPUT, 0);
        return -1;
    }
    struct guard_thread *thread = guard_thread();
    int failed = 1;
    if (call->flush != NULL) {
        guard_outside(thread);
        guard_release_lock(thread);
        failed = call->flush(call, call->output, call->used) != 0;
        guard_inside(thread);
    }
    if (failed) {
        call->failed = 1;
        return -1;
    }
    call->flushed += call->used;
    call->used = 0;
    return 0;
}

long lwrite(const void *data, size_t length)
{
    libcgi_call *call = guard_answer();
    if (call == NULL || call->failed)
        return -1;
    const char *next = data;
    size_t left = length, room;
    /* Copy through the buffer even if the data is long: a wrong address then faults here, as the library's fault. */
    while (left > (room = call->capacity - call->used)) {
        memcpy(call->output + call->used, next, room);
        call->used += room;
        next += room;
        left -= room;
        if (flush(call) != 0)
            return -1;
    }
    if (left > 0) /* without a body, `data` may be NULL, which memcpy() does not allow */
        memcpy(call->output + call->used, next, left);
    call->used += left;
    return (long)length;
}

int lputs(const char *text)
{
    return (int)lwrite(text, strlen(text));
}

int lprintf(const char *format, ...)
{
    libcgi_call *call = guard_answer();
    if (call == NULL || call->failed)
        return -1;
    va_list arguments;
    size_t room = call->capacity - call->used;
    va_start(arguments, format);
    int length = vsnprintf(call->output + call->used, room, format, arguments);
    va_end(arguments);
    if (length < 0)
        return -1;
    if ((size_t)length < room) { /* the NUL that vsnprintf() adds must fit, too */
        call->used += (size_t)length;
        return length;
    }
    char *text = malloc((size_t)length + 1);
    if (text == NULL)
        return -1;
    va_start(arguments, format);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    long written = lwrite(text, (size_t)length);
    free(text);
    return (int)written;
}

char *ewe_libcgi_getenv(const char *name)
{
    libcgi_call *call = guard_call();
    if (call == NULL)
        return getenv(name);
    size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        for (char *each = call->variables[i]; each != NULL && *each; each += strlen(each) + 1)
            if (strncmp(each, name, length) == 0 && each[length] == '=')
                return each + length + 1;
    }
    return NULL;
}

const char *get_remote_host(void)
{
    libcgi_call *call = guard_call();
    if (call == NULL)
        return NULL;
    if (call->remote_host[0] != 0)
        return call->remote_host;
    const char *address = ewe_libcgi_getenv("REMOTE_ADDR");
    if (address == NULL)
        return NULL;
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    char host[sizeof call->remote_host] = "";
    int failure = -1;
    if (inet_pton(AF_INET, address, &four.sin_addr) == 1)
        failure = getnameinfo((struct sockaddr *)&four, sizeof four, host, sizeof host, NULL, 0, NI_NAMEREQD);
    else if (inet_pton(AF_INET6, address, &six.sin6_addr) == 1)
        failure = getnameinfo((struct sockaddr *)&six, sizeof six, host, sizeof host, NULL, 0, NI_NAMEREQD);
    snprintf(call->remote_host, sizeof call->remote_host, "%s", failure == 0 ? host : address);
    return call->remote_host;
}
