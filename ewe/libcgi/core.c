/* The life of a library: a private copy is loaded, called by many threads, retired, and unloaded by the last of them.
 *
 *     libcgi_load ──▶ loaded ── enter/leave, any number of threads ──▶ retired ── the last leaves ──▶ unloaded
 *
 * `users` counts the threads inside, and one for "not retired". The thread that brings it to 0 unloads the library.
 * This happens once, and with no thread inside. A thread may enter only while the count is not 0.
 *
 * The copy. If dlopen() gets the same file again, it returns the library that it has already loaded. A library whose
 * file is overwritten while it is loaded crashes. Each load therefore copies the file into memory without a name
 * (memfd), which is a separate file for the loader. The descriptor stays open while the library is loaded, because the
 * name /proc/self/fd/N must not be reused for another file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* The longest time for terminatefunc() and dlclose(): after a fault they may wait for a lock that is never released. */
#define MAX_END_MS 5000

struct libcgi_library {
    void *handle;
    void (*process)(char *input);
    void (*terminate)(void);
    int reentrant;
    int limit_ms;
    int copy; /* descriptor */
    char name[64];
    void *base;                /* the address at which it is loaded */
    struct library_threads threads;
    _Atomic int users;         /* threads inside, and 1 while it is not retired */
    _Atomic int retired;
    _Atomic int unloaded;
    _Atomic int holders;       /* references to the structure: the caller's, and one while the library is loaded */
    _Atomic uint64_t calls, faults, nanoseconds, longest;
};

static void (*report)(const char *line);

int libcgi_start(void (*reporter)(const char *line))
{
    report = reporter;
    return guard_start();
}

/* Functions with one argument, for guard_run(). */

static void run_process(void *argument)
{
    struct guard_thread *thread = guard_thread();
    ((libcgi_library *)argument)->process(thread->call->input);
}

static void run_plain(void *argument)
{
    (*(void (**)(void))argument)();
}

static void run_close(void *argument)
{
    dlclose(argument);
}

/* Store the outcome of a call; after a fault, also its place. */
static void store_outcome(libcgi_call *call, const struct guard_thread *thread, const libcgi_library *library,
                          const char *function, int outcome)
{
    Dl_info about;
    call->outcome = outcome;
    call->function = function;
    if (outcome == LIBCGI_DONE)
        return;
    call->number = thread->number;
    call->address = outcome == LIBCGI_FAULT ? thread->address : NULL;
    call->place[0] = 0;
    if (outcome != LIBCGI_EXIT && outcome != LIBCGI_EXEC && outcome != LIBCGI_OUTPUT &&
        thread->counter != NULL && dladdr(thread->counter, &about) != 0) {
        const char *file = about.dli_fbase == library->base ? library->name : about.dli_fname;
        const char *slash = file != NULL ? strrchr(file, '/') : NULL;
        file = slash != NULL ? slash + 1 : file != NULL ? file : "?";
        if (about.dli_sname != NULL)
            snprintf(call->place, sizeof call->place, "%s+0x%zx in %s", about.dli_sname,
                     (size_t)((char *)thread->counter - (char *)about.dli_saddr), file);
        else
            snprintf(call->place, sizeof call->place, "0x%zx in %s",
                     (size_t)((char *)thread->counter - (char *)about.dli_fbase), file);
    }
}

/* Run initfunc(), terminatefunc(), the destructors or dlclose() under the guard. No client waits, so their output is
 * dropped. `function`: the name for messages; `run` calls it with `argument`. Without memory for this thread's record
 * nothing runs, and the outcome is LIBCGI_BUSY. */
static void run_outside_requests(libcgi_library *library, libcgi_call *call, const char *function,
                                 void (*run)(void *), void *argument)
{
    static __thread char dropped_output[512];
    struct guard_thread *thread = guard_thread();
    call->outcome = LIBCGI_BUSY;
    call->function = function;
    call->output = dropped_output;
    call->capacity = sizeof dropped_output;
    call->used = 0;
    call->failed = 0;
    call->flush = NULL;
    call->max_output = 0;
    call->number = 0;
    call->remote_host[0] = 0;
    if (thread != NULL) {
        thread->call = call;
        thread->name = library->name;
        thread->threads = &library->threads;
        int is_end = strcmp(function, "initfunc") != 0;
        int limit_ms = is_end && library->limit_ms > MAX_END_MS ? MAX_END_MS : library->limit_ms;
        int outcome = guard_run(thread, run, argument, limit_ms);
        thread->call = NULL;
        store_outcome(call, thread, library, function, outcome);
    }
}

/* Loading */

/* Return a descriptor of an unnamed copy of the file (see above); -1, with the reason in errno. */
static int private_copy(const char *file, const char *name)
{
    static char piece[64 * 1024]; /* one thread uses it at a time; another gets memory by malloc() */
    static _Atomic int busy;
    char *buffer = atomic_exchange(&busy, 1) ? malloc(sizeof piece) : piece;
    int failure = 0, source = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), copy = -1;
    struct stat about;
    ssize_t count = 0;
    if (buffer == NULL || source < 0 || fstat(source, &about) != 0)
        failure = buffer == NULL ? ENOMEM : errno;
    else if (!S_ISREG(about.st_mode))
        failure = ENOEXEC;
    else if ((copy = memfd_create(name, MFD_CLOEXEC)) < 0)
        failure = errno;
    while (failure == 0 && (count = read(source, buffer, sizeof piece)) > 0)
        if (write(copy, buffer, (size_t)count) != count)
            failure = ENOSPC;
    if (failure == 0 && count < 0)
        failure = errno;
    if (source >= 0)
        close(source);
    if (buffer == piece)
        busy = 0;
    else
        free(buffer);
    if (failure != 0 && copy >= 0) {
        close(copy);
        copy = -1;
    }
    errno = failure;
    return copy;
}

/* Load the copy and find its functions. Returns 0, or -1 with the reason in `failure`. */
static int open_copy(libcgi_library *library, char *failure, size_t room)
{
    char path[64];
    Dl_info about;
    snprintf(path, sizeof path, "/proc/self/fd/%d", library->copy);
    library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library->handle == NULL) {
        const char *reason = dlerror();
        size_t skip = reason != NULL && strncmp(reason, path, strlen(path)) == 0 ? strlen(path) + 2 : 0;
        snprintf(failure, room, "%s", reason != NULL ? reason + skip : "dlopen() fails");
        return -1;
    }
    library->process = (void (*)(char *))dlsym(library->handle, "processfunc");
    if (library->process == NULL) {
        snprintf(failure, room, "it has no function processfunc()");
        dlclose(library->handle);
        return -1;
    }
    library->terminate = (void (*)(void))dlsym(library->handle, "terminatefunc");
    library->reentrant = dlsym(library->handle, "ewe_libcgi_reentrant") != NULL;
    if (dladdr((void *)library->process, &about) != 0)
        library->base = about.dli_fbase;
    patch_exits(library->handle);
    return 0;
}

libcgi_library *libcgi_load(const char *file, const char *name, int limit_ms, char *failure, size_t room,
                            libcgi_call *call)
{
    libcgi_call unused_call;
    char none[1];
    if (failure == NULL)
        failure = none, room = sizeof none;
    if (room > 0)
        failure[0] = 0;
    if (call == NULL) {
        memset(&unused_call, 0, sizeof unused_call);
        call = &unused_call;
    }
    call->outcome = LIBCGI_DONE;
    if (guard_start() != 0 || guard_thread() == NULL) {
        snprintf(failure, room, "the process has no memory or no thread left");
        return NULL;
    }
    libcgi_library *library = calloc(1, sizeof *library);
    if (library == NULL) {
        snprintf(failure, room, "%s", strerror(ENOMEM));
        return NULL;
    }
    library->limit_ms = limit_ms;
    library->threads.limit_ms = limit_ms;
    library->users = 1;
    library->holders = 2;
    snprintf(library->name, sizeof library->name, "%s", name);
    library->copy = private_copy(file, library->name);
    if (library->copy < 0 || open_copy(library, failure, room) != 0) {
        if (library->copy < 0)
            snprintf(failure, room, "%s", strerror(errno));
        else
            close(library->copy);
        free(library);
        return NULL;
    }
    void (*init)(void) = (void (*)(void))dlsym(library->handle, "initfunc");
    if (init != NULL) {
        run_outside_requests(library, call, "initfunc", run_plain, &init);
        if (call->outcome != LIBCGI_DONE) {
            libcgi_explain(call, failure, room);
            libcgi_release(library);
            return NULL;
        }
    }
    return library;
}

/* Unloading */

/* Give up a reference to the structure; free it with the last one. */
static void drop(libcgi_library *library)
{
    if (atomic_fetch_sub(&library->holders, 1) == 1)
        free(library);
}

/* Report a failure in the unloading of a library, if there was one. */
static void tell(const libcgi_library *library, const libcgi_call *call)
{
    char line[256], reason[160];
    if (call->outcome == LIBCGI_DONE || report == NULL)
        return;
    libcgi_explain(call, reason, sizeof reason);
    snprintf(line, sizeof line, "%s: %s", library->name, reason);
    report(line);
}

/* Run terminatefunc() and the destructors, close the library, and drop its reference. No thread is inside. */
static void unload(libcgi_library *library)
{
    libcgi_call call;
    struct guard_thread *thread = guard_thread();
    memset(&call, 0, sizeof call);
    if (thread != NULL)
        guard_release_lock(thread);
    if (library->terminate != NULL) {
        run_outside_requests(library, &call, "terminatefunc", run_plain, &library->terminate);
        tell(library, &call);
    }
    if (library->threads.started) {
        library->unloaded = 1;
        return; /* a thread may run its code, and may store a fault in this structure: both stay */
    }
    struct library_destructors destructors;
    destructors_take(library->handle, &destructors);
    run_outside_requests(library, &call, "destructors", destructors_run, &destructors);
    tell(library, &call);
    run_outside_requests(library, &call, "dlclose", run_close, library->handle);
    tell(library, &call);
    /* If dlclose() was ended, or not called, the loader still has the name of the copy: the copy must stay. */
    if (call.outcome == LIBCGI_DONE)
        close(library->copy);
    library->unloaded = 1;
    drop(library);
}

/* Count this thread as inside. Returns 1, or 0 if the library is being unloaded. */
static int enter(libcgi_library *library)
{
    int users = library->users;
    while (users > 0)
        if (atomic_compare_exchange_weak(&library->users, &users, users + 1))
            return 1;
    return 0;
}

/* Count this thread as outside; the last one unloads a retired library. */
static void leave(libcgi_library *library)
{
    if (atomic_fetch_sub(&library->users, 1) == 1)
        unload(library);
}

void libcgi_retire(libcgi_library *library)
{
    if (!atomic_exchange(&library->retired, 1))
        leave(library);
}

void libcgi_release(libcgi_library *library)
{
    libcgi_retire(library);
    drop(library);
}

/* Calls */

/* Make a call; after a fault, retire the library. Returns the outcome, which is also in `call`. */
static int call_inside(libcgi_library *library, libcgi_call *call)
{
    struct guard_thread *thread = guard_thread();
    if (thread == NULL || (!library->reentrant && environment_enter(call, library->limit_ms) != 0)) {
        call->outcome = LIBCGI_BUSY;
        return LIBCGI_BUSY;
    }
    int outcome = LIBCGI_GONE;
    /* While this call waited for its turn, another call may have destroyed the library's data. */
    if (!library->retired) {
        int64_t began = guard_now();
        atomic_fetch_add_explicit(&library->calls, 1, memory_order_relaxed);
        thread->call = call;
        thread->name = library->name;
        thread->threads = &library->threads;
        outcome = library->threads.faulted ? LIBCGI_THREAD
                                           : guard_run(thread, run_process, library, library->limit_ms);
        if (outcome == LIBCGI_DONE && library->threads.faulted)
            outcome = LIBCGI_THREAD;
        if (outcome == LIBCGI_THREAD) {
            thread->number = library->threads.number;
            thread->address = thread->counter = NULL;
        }
        thread->call = NULL;
        store_outcome(call, thread, library, "processfunc", outcome);
        uint64_t took = (uint64_t)(guard_now() - began), longest = library->longest;
        atomic_fetch_add_explicit(&library->nanoseconds, took, memory_order_relaxed);
        while (took > longest && !atomic_compare_exchange_weak(&library->longest, &longest, took))
            ;
    } else {
        call->outcome = LIBCGI_GONE;
    }
    if (!library->reentrant)
        environment_leave();
    if (outcome != LIBCGI_DONE && outcome != LIBCGI_GONE) {
        library->faults++;
        libcgi_retire(library);
    }
    return outcome;
}

int libcgi_call_library(libcgi_library *library, libcgi_call *call)
{
    call->used = 0;
    call->flushed = 0;
    call->failed = 0;
    call->remote_host[0] = 0;
    if (library->retired || !enter(library)) {
        call->outcome = LIBCGI_GONE;
        return LIBCGI_GONE;
    }
    int outcome = call_inside(library, call);
    leave(library);
    return outcome;
}

long libcgi_quick(libcgi_library *library, libcgi_call *call, char *first, char *second, char *input)
{
    call->variables[0] = first;
    call->variables[1] = second;
    call->input = input;
    int outcome = libcgi_call_library(library, call);
    return outcome == LIBCGI_DONE && call->flushed == 0 && !call->failed ? (long)call->used : -1;
}

void libcgi_interpreter(void *(*release)(void), void (*take)(void *released))
{
    interpreter_release = release;
    interpreter_take = take;
}

long libcgi_quick_held(libcgi_library *library, libcgi_call *call, char *first, char *second, char *input)
{
    struct guard_thread *thread = guard_thread();
    void *released;
    long count;
    if (thread == NULL || !library->reentrant) { /* the call may have to wait for its turn */
        released = interpreter_release();
        count = libcgi_quick(library, call, first, second, input);
        interpreter_take(released);
        return count;
    }
    thread->released = NULL;
    thread->holds = 1;
    count = libcgi_quick(library, call, first, second, input);
    thread->holds = 0;
    if (thread->released != NULL)
        interpreter_take(thread->released);
    return count;
}

/* Reports */

void libcgi_describe(libcgi_library *library, libcgi_info *info)
{
    int users = library->users;
    info->calls = library->calls;
    info->faults = library->faults;
    info->nanoseconds = library->nanoseconds;
    info->longest = library->longest;
    info->retired = library->retired;
    info->inside = users - !info->retired > 0 ? users - !info->retired : 0;
    info->reentrant = library->reentrant;
    info->unloaded = library->unloaded;
}

static const char *signal_name(int number)
{
    switch (number) {
    case SIGSEGV: return "segmentation fault";
    case SIGBUS: return "bus error";
    case SIGFPE: return "arithmetic fault";
    case SIGILL: return "illegal instruction";
    case SIGABRT: return "abort()";
    case SIGTRAP: return "trap";
    case SIGSYS: return "forbidden system call";
    default: return "a fault";
    }
}

void libcgi_explain(const libcgi_call *call, char *line, size_t room)
{
    const char *function = call->function != NULL ? call->function : "processfunc";
    const char *in = call->place[0] ? ", in " : "";
    switch (call->outcome) {
    case LIBCGI_FAULT:
        if (call->number == SIGSEGV || call->number == SIGBUS)
            snprintf(line, room, "%s(): %s at address %p%s%s", function, signal_name(call->number), call->address,
                     in, call->place);
        else
            snprintf(line, room, "%s(): %s%s%s", function, signal_name(call->number), in, call->place);
        break;
    case LIBCGI_TIMEOUT:
        snprintf(line, room, "%s() took longer than its limit (libcgi-timeout)%s%s", function, in, call->place);
        break;
    case LIBCGI_EXIT:
        snprintf(line, room, "%s() called exit(%d): a library must return", function, call->number);
        break;
    case LIBCGI_EXEC:
        snprintf(line, room, "%s() called exec(): another program would replace the server (fork() first)", function);
        break;
    case LIBCGI_OUTPUT:
        snprintf(line, room, "%s() wrote more than it may (libcgi-max-output)", function);
        break;
    case LIBCGI_THREAD:
        snprintf(line, room, "a thread that it started: %s",
                 call->number != 0 ? signal_name(call->number) : "it called exit()");
        break;
    case LIBCGI_GONE: snprintf(line, room, "the library was unloaded"); break;
    case LIBCGI_BUSY:
        snprintf(line, room, "no memory, or other calls had the environment for the whole limit (libcgi-timeout)");
        break;
    default: snprintf(line, room, "%s() returned", function);
    }
}

/* Input */

char *libcgi_map_input(int descriptor, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (length / page + 1) * page;
    char *place = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return NULL;
    /* The rest of the last page is zero. If there is no rest, the anonymous page after it is zero. */
    if (length > 0 && mmap(place, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, descriptor,
                           0) == MAP_FAILED) {
        munmap(place, whole);
        return NULL;
    }
    return place;
}

void libcgi_unmap_input(char *input, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(input, (length / page + 1) * page);
}
