/* A server's part of LibCGI inside a Python process: close memory to a library, call it, and catch its faults.
 *
 * ewe_lab/load/protected_calls.py loads this file, names the pages of the interpreter's heap, and calls
 * call_library(). Three methods:
 *
 *     OPEN      a plain call
 *     KEYS      the pages have a separate protection key; one instruction (WRPKRU) closes it for this thread
 *     MPROTECT  a system call for each piece of memory closes it for the whole process
 *
 * The library is a function of this file as well: it either writes its answer, or does one kind of damage.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OPEN, KEYS, MPROTECT };
enum { ANSWER, WRITE, READ, SYSTEM_CALL, C_HEAP, CALLER, MEMORY_FILE, REOPEN, UNMAP };
enum { PAGE = 4096, MAX_PIECES = 65536, ANSWER_BYTES = 28, ALL_OPEN = 0, READ_WRITE = PROT_READ | PROT_WRITE };

static struct { char *start; size_t length; } pieces[MAX_PIECES];
static int piece_count, method, key = -1;
static sigjmp_buf before_call;
static volatile sig_atomic_t inside;
static char answer[ANSWER_BYTES];

/* The register of the protection keys: two bits for each key, 1 closes it for reading and writing. */
static void write_rights(uint32_t rights)
{
#if defined(__x86_64__)
    __asm__ volatile(".byte 0x0f, 0x01, 0xef" : : "a"(rights), "c"(0), "d"(0) : "memory");
#else
    (void)rights;
#endif
}

/* Return a new protection key, or -errno. */
int allocate_key(void)
{
#if defined(__x86_64__) && defined(SYS_pkey_alloc)
    key = (int)syscall(SYS_pkey_alloc, 0, 0);
    return key < 0 ? -errno : key;
#else
    return -ENOSYS;
#endif
}

/* Choose the method. Return 0, or the errno of the piece that could not get the key. */
int choose_method(int wanted)
{
    method = wanted;
#if defined(__x86_64__) && defined(SYS_pkey_mprotect)
    for (int i = 0; method == KEYS && i < piece_count; i++)
        if (syscall(SYS_pkey_mprotect, pieces[i].start, pieces[i].length, READ_WRITE, key))
            return errno;
#endif
    return 0;
}

/* Add a piece of memory to those that are closed. Return whether there was room for it. */
int add_piece(char *start, size_t length)
{
    if (piece_count == MAX_PIECES)
        return 0;
    pieces[piece_count].start = start;
    pieces[piece_count++].length = length;
    return 1;
}

/* PyObjectArenaAllocator of CPython's C API: the functions that give the interpreter its arenas. */
struct arena_allocator {
    void *context;
    void *(*allocate)(void *, size_t);
    void (*release)(void *, void *, size_t);
};
static struct arena_allocator original;

static void *allocate_arena(void *context, size_t length)
{
    char *start = original.allocate(context, length);
    if (start && !add_piece(start, length)) {
        original.release(context, start, length);
        return NULL;
    }
    return start;
}

static void release_arena(void *context, void *start, size_t length)
{
    for (int i = 0; i < piece_count; i++)
        if (pieces[i].start == start)
            pieces[i] = pieces[--piece_count];
    original.release(context, start, length);
}

/* Add each arena that the interpreter gets from now on. Return whether this interpreter has arenas. */
int watch_arenas(void)
{
    void (*get)(struct arena_allocator *) = dlsym(RTLD_DEFAULT, "PyObject_GetArenaAllocator");
    void (*set)(struct arena_allocator *) = dlsym(RTLD_DEFAULT, "PyObject_SetArenaAllocator");
    if (!get || !set)
        return 0;
    get(&original);
    struct arena_allocator own = {original.context, allocate_arena, release_arena};
    set(&own);
    return 1;
}

/* Return the start of a piece, and its end by `end`; NULL behind the last one. */
char *piece(int number, char **end)
{
    if (number >= piece_count)
        return NULL;
    *end = pieces[number].start + pieces[number].length;
    return pieces[number].start;
}

static void set_closed(int closed)
{
    if (method == KEYS)
        write_rights(closed ? 1u << (2 * key) : ALL_OPEN);
    for (int i = 0; method == MPROTECT && i < piece_count; i++)
        mprotect(pieces[i].start, pieces[i].length, closed ? PROT_NONE : READ_WRITE);
}

static void on_fault(int number)
{
    if (inside)
        siglongjmp(before_call, 1);
    signal(number, SIG_DFL); /* a fault outside of a library ends the process */
}

void catch_faults(void)
{
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

/* The library. target: where it does its damage; callers: a variable in its caller's frame. */
static __attribute__((noinline)) void library(int deed, char *target, volatile long *callers)
{
    char *page = (char *)((uintptr_t)target & ~(uintptr_t)(PAGE - 1));
    memset(answer, 'x', ANSWER_BYTES);
    if (deed == WRITE || deed == C_HEAP)
        *(volatile char *)target ^= 1;
    else if (deed == READ)
        answer[0] = *(volatile char *)target;
    else if (deed == CALLER)
        *callers += 1;
    else if (deed == UNMAP)
        munmap(page, PAGE);
    else if (deed == SYSTEM_CALL) {
        int zeros = open("/dev/zero", O_RDONLY);
        if (read(zeros, target, 1) < 0)
            answer[0] = 'x';
        close(zeros);
    } else if (deed == MEMORY_FILE) {
        int memory = open("/proc/self/mem", O_RDWR);
        if (pwrite(memory, "!", 1, (off_t)(uintptr_t)target) < 0)
            answer[0] = 'x';
        close(memory);
    } else if (deed == REOPEN) {
        if (method == KEYS)
            write_rights(ALL_OPEN);
        else
            mprotect(page, PAGE, READ_WRITE);
        *(volatile char *)target ^= 1;
    }
}

/* Called through a pointer, as a library that dlopen() loaded is. */
static void (*volatile loaded)(int, char *, volatile long *) = library;

/* Call the library. Return 0, 1 if a fault was caught, 2 if the library changed this frame. */
int call_library(int deed, char *target)
{
    volatile long own = 0;
    if (sigsetjmp(before_call, 0)) {
        inside = 0;
        if (key >= 0)
            write_rights(ALL_OPEN); /* the kernel closes every key for a signal's handler */
        set_closed(0);
        return 1;
    }
    inside = 1;
    set_closed(1);
    loaded(deed, target, &own);
    set_closed(0);
    inside = 0;
    return own ? 2 : 0;
}

/* Return the first byte of the library's answer. */
int first_answered(void)
{
    return answer[0];
}

static double nanoseconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

/* Return the nanoseconds of a call, the mean of `count` calls. */
double time_calls(int count)
{
    double began = nanoseconds();
    for (int i = 0; i < count; i++)
        call_library(ANSWER, NULL);
    return (nanoseconds() - began) / count;
}

/* Return the same for a library in another process, over a socket pair; -errno after a failure. */
double time_exchanges(int count)
{
    int ends[2];
    long deed = ANSWER;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return -errno;
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (!child) {
        close(ends[0]);
        while (read(ends[1], &deed, sizeof deed) == sizeof deed) {
            call_library((int)deed, NULL);
            if (write(ends[1], answer, ANSWER_BYTES) != ANSWER_BYTES)
                break;
        }
        _exit(0);
    }
    close(ends[1]);
    double began = nanoseconds(), found = 0;
    for (int i = 0; i < count && found >= 0; i++)
        if (write(ends[0], &deed, sizeof deed) != sizeof deed || read(ends[0], answer, ANSWER_BYTES) <= 0)
            found = -EPIPE;
    if (found >= 0)
        found = (nanoseconds() - began) / count;
    close(ends[0]);
    waitpid(child, NULL, 0);
    return found;
}
