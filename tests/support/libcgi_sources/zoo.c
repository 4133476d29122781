/* A library for tests: one commonplace fault of a library's author for each query. */
#include <ewe_libcgi.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int zero;
/* The compiler knows neither the function nor the length, so that it cannot leave a wrong call out. */
static void *(*volatile fill)(void *, int, size_t) = memset;
static volatile size_t bytes;

__attribute__((noinline)) static void overrun(size_t count)
{
    char name[16];
    fill(name, 'A', count);
}

__attribute__((noinline)) static void overrun_by_hand(size_t count)
{
    volatile char name[16];
    for (size_t i = 0; i < count; i++)
        name[i] = 'A';
    zero = name[0] - 'A';
}

__attribute__((noinline)) static int deeper(volatile char *above)
{
    volatile char frame[4096];
    frame[0] = *above;
    return deeper(frame) + frame[0];
}

__attribute__((noinline)) static void step_over(size_t size)
{
    volatile char *frame = __builtin_alloca(size);
    for (size_t i = 0; i < 100; i++)
        frame[i] = 1;
}

static int is(const char *query, const char *name)
{
    return strcmp(query, name) == 0;
}

static void stack(const char *query)
{
    if (is(query, "overrun"))
        overrun(bytes = 64);
    else if (is(query, "overrun-far"))
        overrun(bytes = 4000);
    else if (is(query, "overrun-up"))
        overrun_by_hand(bytes = 64 * 1024 * 1024);
    else if (is(query, "recursion"))
        zero = deeper("");
    else if (is(query, "large-frame"))
        step_over(bytes = 8 * 1024 * 1024 + 512 * 1024);
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    (void)input;
    if (getenv("HTTP_X_NUMBER") == NULL)
        return;
    lputs("Content-Type: text/plain\n\n");
    stack(query);
    lprintf("%s", getenv("HTTP_X_NUMBER"));
}
