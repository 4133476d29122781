/* A library for tests that fails: in processfunc() as the query says, in initfunc() and terminatefunc() as files say. */
#include <ewe_libcgi.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int zero;

static int overflow(int depth)
{
    volatile char frame[4096];
    frame[0] = (char)depth;
    return overflow(depth + 1) + frame[0];
}

static void fail(const char *kind)
{
    if (strcmp(kind, "segv") == 0) {
        *(volatile int *)16 = 1;
    } else if (strcmp(kind, "libc") == 0) {
        zero = (int)strlen((const char *)(size_t)(zero + 8)); /* within a function of libc */
    } else if (strcmp(kind, "bus") == 0) {
        FILE *file = tmpfile();
        volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        page[0] = 1; /* the file has no such byte */
    } else if (strcmp(kind, "fpe") == 0) {
        zero = 1000 / zero;
    } else if (strcmp(kind, "ill") == 0) {
        __builtin_trap();
    } else if (strcmp(kind, "abort") == 0) {
        abort();
    } else if (strcmp(kind, "stack") == 0) {
        zero = overflow(1);
    } else if (strcmp(kind, "exit") == 0) {
        exit(3);
    } else if (strcmp(kind, "_exit") == 0) {
        _exit(4);
    } else if (strcmp(kind, "thread") == 0) {
        pthread_exit(NULL);
    } else if (strcmp(kind, "loop") == 0) {
        for (;;)
            free(malloc(1000)); /* most of the time in libc, where locks are held */
    } else if (strcmp(kind, "sleep") == 0) {
        for (;;)
            sleep(1000);
    }
}

static void fail_by_file(const char *name)
{
    char kind[16] = "";
    FILE *file = fopen(name, "r");
    if (file != NULL) {
        if (fscanf(file, "%15s", kind) != 1)
            kind[0] = 0;
        fclose(file);
    }
    fail(kind);
}

void initfunc(void)
{
    fail_by_file(DIRECTORY "/init");
}

void terminatefunc(void)
{
    fail_by_file(DIRECTORY "/terminate");
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    (void)input;
    if (strncmp(query, "early-", 6) == 0)
        fail(query + 6);
    lputs("Content-Type: text/plain\n\nthe beginning");
    if (strncmp(query, "late-", 5) == 0)
        fail(query + 5);
    lputs(", the end");
}
