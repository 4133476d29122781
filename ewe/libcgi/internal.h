/* Declarations that the shim's files share. Other programs use core.h. */
#ifndef EWE_LIBCGI_INTERNAL_H
#define EWE_LIBCGI_INTERNAL_H

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "core.h"

/* The threads that a library has started. */
struct library_threads {
    _Atomic int started; /* the library has started a thread */
    _Atomic int faulted; /* one of them was stopped ... */
    _Atomic int number;  /* ... by this signal; 0: it called exit() */
    int limit_ms;        /* of the library's calls */
};

/* A thread that calls libraries. The thread itself writes its record; the watchdog reads `turn` and `limit_ms`. */
struct guard_thread {
    sigjmp_buf escape;              /* where the thread continues after the end of a call */
    volatile sig_atomic_t inside;   /* the library's code is running */
    volatile sig_atomic_t forks;    /* the library's code is within fork() */
    _Atomic uint64_t turn;          /* odd: within a call; another number for each call */
    _Atomic uint64_t overdue;       /* the turn that the watchdog wants to end */
    _Atomic int limit_ms;
    _Atomic int64_t outside_since;  /* when the call entered the program's code, 0 while it is in the library's */
    _Atomic int64_t outside;        /* nanoseconds that this call has spent there */
    int delays_left;                /* how often the end of a call within libc's code may still be delayed */
    libcgi_call *call;
    int outcome, number;            /* of the call that was ended */
    void *address, *counter;        /* of a fault: the memory, the program counter */
    sigset_t mask;                  /* of the interrupted code */
    sigset_t mask_before;           /* before the library changed it ... */
    volatile sig_atomic_t mask_changed; /* ... if it did */
    const char *volatile name;      /* of the library, for messages */
    struct library_threads *threads; /* of the library */
    volatile sig_atomic_t holds;    /* the interpreter's lock, while the library runs */
    void *volatile released;        /* the value to take the lock again, once it was released */
    pid_t id;
    void *stack;                    /* for signal handlers, if the shim has made it */
    size_t stack_size;
    void *library_stack;            /* the stack on which library code runs, with its guard pages */
    size_t library_stack_size;
    void *library_top;              /* the address at which that stack begins */
    void (*function)(void *);       /* the function to call there */
    void *argument;
    uint64_t seen;                  /* for the watchdog: the turn at its last check ... */
    int64_t since;                  /* ... and when it saw that turn first */
    struct guard_thread *next;
};

/* guard.c: ends calls that fault or take too long. */

int guard_start(void);
/* Return the calling thread's record, NULL without memory. */
struct guard_thread *guard_thread(void);
/* Call function(argument) as library code. Returns the outcome; number, address and counter are in the record. */
int guard_run(struct guard_thread *thread, void (*function)(void *), void *argument, int limit_ms);
/* Within a call: enter and leave the program's own code. */
void guard_outside(struct guard_thread *thread);
void guard_inside(struct guard_thread *thread);
/* The interpreter's lock: set by libcgi_interpreter(), NULL in a program without one. */
extern void *(*interpreter_release)(void);
extern void (*interpreter_take)(void *released);
/* Release the lock until the call has ended, because later code may block. Only outside of library code. */
void guard_release_lock(struct guard_thread *thread);
/* End the call of this thread; return if there is none. */
void guard_escape(int outcome, int number);
/* Return the call that this thread is in, NULL if it is in none. */
libcgi_call *guard_call(void);
/* Return the call of this thread if this process may answer: NULL in the child of a library. */
libcgi_call *guard_answer(void);
/* Return the record for threads of the library whose code this thread runs, NULL if it runs none. */
struct library_threads *guard_threads(void);
/* Is this a signal by which the guard ends calls? */
int guard_uses(int number);
/* The library is about to change the thread's signal mask: restore it when the call has ended. */
void guard_keep_mask(void);
int64_t guard_now(void); /* nanoseconds */

/* stack.c: the stack of library code. */

/* Give the thread such a stack. Returns 0, or -1 without memory. */
int library_stack_make(struct guard_thread *thread);
void library_stack_free(struct guard_thread *thread);
/* Continue in entry(), on the stack that begins at `top`. entry() must not return: it leaves by siglongjmp(). */
__attribute__((noreturn, noinline)) void library_stack_enter(void *top, void (*entry)(void));

/* threads.c: threads that a library starts. */

/* Return the record of the library that has started this thread, NULL for a thread of the program. */
struct library_threads *threads_here(void);
/* Stop this thread for good. A library has started it, and it has got a signal. Called in a signal handler. */
__attribute__((noreturn)) void threads_stop(int number);
/* End this thread. A library has started it, and it has called exit(). */
__attribute__((noreturn)) void threads_exit(void);
/* Replaces pthread_create() in libraries. */
int threads_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

/* signals.c: the functions about signals that a library may call. */

/* Return the replacement of a function about signals; 0: none. */
uintptr_t signals_replacement(const char *name);
/* Block the server's signals in a thread that a library has started: the server's threads receive them. */
void signals_leave_to_server(void);

/* child.c: a process that a library has made. */

int child_start(void);
/* Is this process a library's child? */
int child_of_library(void);
/* Mark this child as made by the server: it may answer. */
void child_of_server(void);
/* Is this process the server's, and not one that a library has made by sharing its memory (vfork())? */
int process_of_server(void);
/* Mark this child as made by a library. limit_ms: the longest time that it may live. */
void child_begins(int limit_ms);

/* environment.c: the process's environment, which belongs to one call at a time. */

/* Wait for the turn, and set environ. Returns 0, or -1 if the turn has not come within the limit. */
int environment_enter(const libcgi_call *call, int limit_ms);
void environment_leave(void);
/* Reset the state in the child of a fork. */
void environment_forked(void);

/* ends.c: functions that would end the process, or replace it. */

/* Return the replacement of such a function; 0: none. */
uintptr_t ends_replacement(const char *name);

/* destructors.c: functions that dlclose() would run while it holds the loader's lock. */

struct library_destructors {
    void (**functions)(void);
    size_t count;
    void (*last)(void);
};

/* Take a library's destructors out of the table that dlclose() reads. handle: of dlopen(). */
void destructors_take(void *handle, struct library_destructors *found);
/* Run them; each runs once, also if this is called again after a fault. */
void destructors_run(void *destructors);

/* patch.c: changes the functions that a library calls. */

/* Make a library's exit() and related functions end the call. handle: of dlopen(). */
void patch_exits(void *handle);

#endif
