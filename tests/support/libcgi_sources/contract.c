/* A library for tests: what LibCGI's contract promises, one part for each query. */
#include <ewe_libcgi.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int started, calls;

/* NOTES: a file in which the library notes when its functions run. */
static void note(const char *line)
{
    int file = open(NOTES, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (file >= 0) {
        if (write(file, line, strlen(line)) < 0)
            abort();
        close(file);
    }
}

void initfunc(void)
{
    started++;
    note("init\n");
}

void terminatefunc(void)
{
    note("terminate\n");
}

static int is(const char *query, const char *name)
{
    return strncmp(query, name, strlen(name)) == 0;
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    const char *length = getenv("CONTENT_LENGTH");
    calls++;
    if (is(query, "say")) { /* the body is the whole output */
        if (input != NULL)
            lwrite(input, (size_t)atol(length));
        return;
    }
    lputs("Content-Type: text/plain\n\n");
    if (is(query, "count"))
        lprintf("%d %d", started, calls);
    else if (is(query, "body"))
        lprintf("%s %s %d", input == NULL ? "none" : "some", length == NULL ? "none" : length,
                input == NULL ? 0 : (int)strlen(input));
    else if (is(query, "echo"))
        lwrite(input, (size_t)atol(length));
    else if (is(query, "change")) { /* the body is the library's to change */
        input[0] = 'X';
        lputs(input);
    } else if (is(query, "env="))
        lprintf("%s", getenv(query + 4) ? getenv(query + 4) : "(none)");
    else if (is(query, "host"))
        lprintf("%s", get_remote_host());
    else if (is(query, "long")) /* longer than the buffer, by a format and in pieces */
        for (int i = 0; i < 4; i++)
            lprintf("%0100000d", i);
    else if (is(query, "bytes=")) {
        static char block[1000003];
        memset(block, 'x', sizeof block);
        for (long left = atol(query + 6); left > 0; left -= (long)sizeof block)
            lwrite(block, left < (long)sizeof block ? (size_t)left : sizeof block);
    } else if (is(query, "sum")) { /* of the body: every page of it is touched */
        unsigned long sum = 0;
        for (long i = 0, count = atol(length); i < count; i++)
            sum += (unsigned char)input[i];
        lprintf("%lu %d", sum, input[atol(length)]);
    } else if (is(query, "wait=")) { /* until a file is there */
        note("enter\n");
        while (access(query + 5, F_OK) != 0)
            usleep(1000);
        note("leave\n");
        lputs("waited");
    } else if (is(query, "traps")) { /* leave the floating point's traps switched on */
        extern int feenableexcept(int);
        feenableexcept(4);
        lputs("on");
    } else if (is(query, "crash")) {
        *(volatile int *)16 = 1;
    } else
        lputs(VERSION);
}
