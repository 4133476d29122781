/* The LibCGI shim: loads libraries, calls them, recovers from their faults, unloads them. Two programs use it:
 *
 *     ewe           loads the shim itself as a shared object, with RTLD_GLOBAL, and calls it by ctypes
 *     the host      is compiled together with it, and linked with -rdynamic
 *
 * In both, the libraries find lwrite(), lputs(), lprintf(), get_remote_host() and ewe_libcgi_getenv() in the shim.
 * The shim does not interpret Python, HTTP or CGI heads: it passes the output on unchanged.
 *
 *     libcgi_start(report)                         once in a process
 *     library = libcgi_load(file, ...)             dlopen() of a private copy, initfunc()
 *     libcgi_call_library(library, &call)          processfunc(), from any number of threads
 *     libcgi_retire(library)                       no further calls; the last thread to leave it runs
 *                                                  terminatefunc() and dlclose()
 *     libcgi_release(library)                      the caller gives the pointer up
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
    LIBCGI_FAULT = 1,   /* a signal: `number` is the signal; `address` and `place` tell where */
    LIBCGI_TIMEOUT = 2, /* the call took longer than the library's limit */
    LIBCGI_EXIT = 3,    /* the library called exit(): `number` has the status */
    LIBCGI_GONE = 4,    /* not called: the library was retired before */
    LIBCGI_BUSY = 5,    /* not called: other calls had the process's environment for the whole limit, or no memory */
    LIBCGI_OUTPUT = 6,  /* the library wrote more than `max_output` bytes */
    LIBCGI_THREAD = 7,  /* a thread that the library has started got a signal, `number`, or called exit(): 0 */
    LIBCGI_EXEC = 8,    /* the library called execve() or a related function */
};

typedef struct libcgi_call libcgi_call;

/* One call. A caller may use the same structure again and again; one call at a time uses it. */
struct libcgi_call {
    /* The caller sets these. */

    /* The environment: two blocks of "NAME=VALUE", each string with its NUL, and an empty string at the end of a
       block, in the layout of execve(). NULL: no block. If both blocks have a name, the first one's value counts. The
       blocks must stay until the call has ended. A library may write into them: ewe_libcgi_getenv() returns an address
       in them. */
    char *variables[2];
    /* For processfunc(). Its owner has put a NUL after the body: see libcgi_map_input(). NULL: no body. */
    char *input;
    /* The buffer for output: `capacity` bytes. */
    char *output;
    size_t capacity;
    /* Called when the buffer is full: flush() must take all bytes, and return 0. If it returns anything else, the
       library's lwrite() returns -1 from now on, and the call's `failed` is set. flush() runs in the calling thread,
       outside the library: a fault in it belongs to the program, and its time does not count. The library's time
       limit does not start again.
       NULL: the call fails when the buffer is full. The caller takes the bytes that are in the buffer when the call
       ends (`used` bytes); flush() is not called for them. */
    int (*flush)(libcgi_call *call, const char *data, size_t length);
    void *context; /* for flush() */
    uint64_t max_output; /* bytes that flush() may be given; a call that writes more is ended. 0: no limit */

    /* The shim sets these. */

    size_t used;          /* bytes in `output` */
    uint64_t flushed;     /* bytes that flush() has taken */
    int failed;           /* flush() failed, or there was none */
    int outcome;          /* of enum libcgi_outcome */
    int number;           /* a signal, or an exit status */
    void *address;        /* of a fault: the memory that was accessed */
    const char *function; /* the function in which the call ended: "processfunc", "initfunc" or "terminatefunc" */
    char place[96];       /* of a fault: "symbol+0x12" or "library+0x1234"; "" if unknown */
    char remote_host[256]; /* the result of get_remote_host(); "" if it was not called */
};

/* The counters of a library. */
typedef struct libcgi_info {
    uint64_t calls;       /* that have begun */
    uint64_t faults;      /* calls whose outcome was neither DONE, GONE nor BUSY */
    uint64_t nanoseconds; /* spent in the library, wall clock */
    uint64_t longest;     /* of these, in one call */
    int inside;           /* threads that are in the library now */
    int reentrant;        /* compiled with ewe_libcgi.h: several threads may call it at once */
    int retired;
    int unloaded;
} libcgi_info;

/* Prepare the process: signal handlers and other state of the process. It may be called again; after a fork() no call
   is needed. report: called with one line about each fault during the unloading of a library, where no call can carry
   the outcome; any thread may call it. Returns 0, or an errno value. */
int libcgi_start(void (*report)(const char *line));

/* Load a library and call its initfunc(). file: its path; it is copied, so the file may be replaced while it is loaded.
   name: for messages. limit_ms: the time that each call may take, wall clock.
   failure: room for one line with the reason of a failure; NULL if the caller does not want it.
   call: if not NULL, the end of initfunc(), in outcome, number, address and place; its output is dropped.
   Returns NULL if the library cannot be loaded. */
libcgi_library *libcgi_load(const char *file, const char *name, int limit_ms, char *failure, size_t room,
                            libcgi_call *call);

/* Call processfunc(). Returns the outcome, as in call->outcome. Blocks as long as the library does. A library that only
   one thread at a time may call also makes its callers wait for their turn. Any thread may call this function. */
int libcgi_call_library(libcgi_library *library, libcgi_call *call);

/* The same with few arguments, for callers to whom each argument costs time: it sets the environment's blocks and the
   input in `call`. Returns the number of bytes in the buffer if processfunc() returned and they are the whole output;
   -1 in all other cases, which `call` describes. */
long libcgi_quick(libcgi_library *library, libcgi_call *call, char *first, char *second, char *input);

/* For a program whose threads share an interpreter's lock. libcgi_interpreter() names the functions that release the
   lock and take it again. libcgi_quick_held() is called with the lock held and returns with it held, but does not keep
   it through a call that takes longer than some milliseconds: then the watchdog makes the thread release it. Releasing
   it for each call would cost more than most calls, because other threads would wake up and compete for it. */
void libcgi_interpreter(void *(*release)(void), void (*take)(void *released));
long libcgi_quick_held(libcgi_library *library, libcgi_call *call, char *first, char *second, char *input);

/* A flush() that writes into a temporary file, in TMPDIR or /tmp. `context` is NULL before the call. Afterwards it is
   the file's descriptor plus 1, or NULL if there is no file. The caller closes the descriptor. */
int libcgi_spool(libcgi_call *call, const char *data, size_t length);

/* Stop all further calls of a library. The last thread to leave it unloads it; if no thread is inside, this function
   does. It may be called again. */
void libcgi_retire(libcgi_library *library);

/* Retire a library, and give the pointer up. No call with the pointer may be in progress in the caller's threads. */
void libcgi_release(libcgi_library *library);

/* Return the counters of a library. */
void libcgi_describe(libcgi_library *library, libcgi_info *info);

/* Write a line about the end of a call ("processfunc: segmentation fault at address 0x0, in broken+0x12"). */
void libcgi_explain(const libcgi_call *call, char *line, size_t room);

/* Map a file of `length` bytes as input: private, so the library may write into it, and with a NUL after it. Memory is
   used only for pages that are accessed, and the kernel can take back unchanged ones.
   Returns NULL if there is no memory. */
char *libcgi_map_input(int descriptor, size_t length);
void libcgi_unmap_input(char *input, size_t length);

#pragma GCC visibility pop

#endif
