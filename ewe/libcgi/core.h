/* The LibCGI shim: loads libraries, calls them, survives their faults, unloads them. For two programs:
 *
 *     ewe           loads the shim itself as a shared object, with RTLD_GLOBAL, and calls it by ctypes
 *     the host      is compiled together with it, and linked with -rdynamic
 *
 * Either way the libraries find lwrite(), lputs(), lprintf(), get_remote_host() and ewe_libcgi_getenv() in the
 * shim. Nothing here knows Python, HTTP, or what a CGI head looks like: the output comes out as it was written.
 *
 *     libcgi_start(report)                         once in a process
 *     library = libcgi_load(file, ...)             dlopen() of a private copy, initfunc()
 *     libcgi_call_library(library, &call)          processfunc(), from any number of threads
 *     libcgi_retire(library)                       no further calls; the last thread that leaves it runs
 *                                                  terminatefunc() and dlclose()
 *     libcgi_release(library)                      the caller does not use the pointer any more
 *
 * A library whose call faults is retired by the shim itself: each later call returns LIBCGI_GONE, and the caller
 * loads the file again if it wants to.
 */
#ifndef EWE_LIBCGI_CORE_H
#define EWE_LIBCGI_CORE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

typedef struct libcgi_library libcgi_library;

/* How a call ended. */
enum libcgi_outcome {
    LIBCGI_DONE = 0,    /* processfunc() returned */
    LIBCGI_FAULT = 1,   /* a signal: `number` has which; `address` and `place` say where */
    LIBCGI_TIMEOUT = 2, /* it took longer than the library's limit */
    LIBCGI_EXIT = 3,    /* the library called exit(): `number` has the status */
    LIBCGI_GONE = 4,    /* not called: the library was retired before */
    LIBCGI_BUSY = 5,    /* not called: other calls had the process's environment for the whole limit */
    LIBCGI_OUTPUT = 6,  /* it wrote more than `max_output` bytes */
    LIBCGI_THREAD = 7,  /* a thread that the library has started met a signal, `number`, or called exit(): 0 */
    LIBCGI_EXEC = 8,    /* the library called execve() or one of its relatives */
};

typedef struct libcgi_call libcgi_call;

/* One call. A caller may use the same structure again and again; one call at a time uses it. */
struct libcgi_call {
    /* What the caller sets. */

    /* The environment: two blocks of "NAME=VALUE", each string with its NUL, and an empty string at the end of a
       block, as execve() lays them out. NULL: no block. Of a name in both the first block has the value. The
       blocks must stay until the call has ended. */
    const char *variables[2];
    /* For processfunc(). Its owner has put a NUL behind the body: see libcgi_map_input(). NULL: no body. */
    char *input;
    /* Where output is collected: `capacity` bytes. */
    char *output;
    size_t capacity;
    /* What becomes of output when the buffer is full: flush() must take all bytes, and return 0. If it returns
       anything else, the library's lwrite() returns -1 from now on, and the call's `failed` is set. flush() runs in
       the calling thread, outside the library: a fault in it is the program's, and its time is not counted. The
       library's time limit does not begin again.
       NULL: the call fails when the buffer is full. What is still in the buffer when the call ends
       (`used` bytes) is the caller's to take; flush() is not called for it. */
    int (*flush)(libcgi_call *call, const char *data, size_t length);
    void *context; /* for flush() */
    uint64_t max_output; /* bytes that flush() may be given; a call that writes more is ended. 0: no limit */

    /* What the shim sets. */

    size_t used;          /* bytes in `output` */
    uint64_t flushed;     /* bytes that flush() has taken */
    int failed;           /* flush() failed, or there was none */
    int outcome;          /* of enum libcgi_outcome */
    int number;           /* a signal, or an exit status */
    void *address;        /* of a fault: the memory that was accessed */
    const char *function; /* in which it ended: "processfunc", "initfunc" or "terminatefunc" */
    char place[96];       /* of a fault: "symbol+0x12" or "library+0x1234"; "" if unknown */
    char remote_host[256]; /* what get_remote_host() has found; "" if it was not called */
};

/* What a library has done so far. */
typedef struct libcgi_info {
    uint64_t calls;       /* that have begun */
    uint64_t faults;      /* FAULT, TIMEOUT and EXIT */
    uint64_t nanoseconds; /* spent inside, wall clock */
    uint64_t longest;     /* of these, in one call */
    int inside;           /* threads that are inside now */
    int reentrant;        /* compiled with ewe_libcgi.h: threads call it at once */
    int retired;
    int unloaded;
} libcgi_info;

/* Prepare the process: signal handlers and what is per process. May be called again; after a fork() nothing has to
   be called. report: is told, in one line, what goes wrong while a library is unloaded, when no call is there to
   hold the outcome; it may be called in any thread. Returns 0, or an errno value. */
int libcgi_start(void (*report)(const char *line));

/* Load a library and call its initfunc(). file: where it is; it is copied, so it may be replaced while it is loaded.
   name: for messages. limit_ms: the time that each call may take, wall clock.
   failure: room for one line that says why it failed; the caller gives NULL if it does not want it.
   call: if not NULL, how initfunc() ended, in outcome, number, address and place; what it wrote is dropped.
   Returns NULL if it cannot be loaded. */
libcgi_library *libcgi_load(const char *file, const char *name, int limit_ms, char *failure, size_t room,
                            libcgi_call *call);

/* Call processfunc(). Returns the outcome, as in call->outcome. Blocks as long as the library does, and, for a
   library that is called by one thread at a time, until its turn has come. Any thread may call it. */
int libcgi_call_library(libcgi_library *library, libcgi_call *call);

/* The same with few arguments, for callers that pay for each: the environment's blocks and the input are set in
   `call`. Returns the bytes in the buffer if processfunc() returned and they are the whole output; -1 in all other
   cases, and `call` says which. */
long libcgi_quick(libcgi_library *library, libcgi_call *call, const char *first, const char *second, char *input);

/* For a program whose threads share an interpreter's lock. libcgi_interpreter() names the functions that release the
   lock and take it again. libcgi_quick_held() is called with the lock held and returns with it held, but does not keep
   it through a call that takes longer than some milliseconds: then the watchdog has it released. To release it for
   each call would cost more than most calls do, since other threads would wake and fight for it. */
void libcgi_interpreter(void *(*release)(void), void (*take)(void *released));
long libcgi_quick_held(libcgi_library *library, libcgi_call *call, const char *first, const char *second, char *input);

/* A flush() that writes into a temporary file, in TMPDIR or /tmp. `context` is NULL before the call; afterwards it is
   the file's descriptor plus 1, NULL if there is none, and the caller closes it. */
int libcgi_spool(libcgi_call *call, const char *data, size_t length);

/* Have a library called no more. The last thread that leaves it unloads it; with no thread inside, this one does,
   before the function returns. May be called again. */
void libcgi_retire(libcgi_library *library);

/* Retire a library, and give the pointer up. No call with the pointer may be in progress in the caller's threads. */
void libcgi_release(libcgi_library *library);

/* Tell what a library has done. */
void libcgi_describe(libcgi_library *library, libcgi_info *info);

/* Write a line about how a call ended ("processfunc: segmentation fault at address 0x0, in broken+0x12"). */
void libcgi_explain(const libcgi_call *call, char *line, size_t room);

/* Map a file of `length` bytes as input: private, so that the library may write into it, and with a NUL behind it.
   Memory is taken only for pages that are used, and the kernel can take back those that were not changed.
   Returns NULL if there is no memory. */
char *libcgi_map_input(int descriptor, size_t length);
void libcgi_unmap_input(char *input, size_t length);

#pragma GCC visibility pop

#endif
