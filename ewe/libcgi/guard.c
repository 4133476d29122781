/* The guard: library code runs between guard_run()'s sigsetjmp() and a siglongjmp(), and can be ended at any point.
 *
 *     guard_run()   sigsetjmp ──▶ another stack, inside = 1 ──▶ processfunc() ──▶ inside = 0 ──┐
 *                       ▲                                          │ SIGSEGV, SIGBUS, SIGFPE,    │
 *                       │                                          │ SIGILL, SIGABRT, SIGTRAP    │
 *                       │                                          │ the watchdog's signal       │
 *                       │                                          ▼                             │
 *                       └──── siglongjmp ◀──────────────────── handle()             LIBCGI_DONE  │
 *                       └──── siglongjmp ◀───────────────────────────────────────────────────────┘
 *
 * The library runs on another stack (stack.c). guard_run() never returns through a frame that the library could have
 * overwritten: even after a call that returns, it continues by siglongjmp().
 *
 * Every thread has a flag, `inside`. The handler acts only while the flag of the interrupted thread is set. In all
 * other cases it does the action that was set up before (Python's faulthandler, or the default, which ends the
 * process). A fault of the program itself is therefore never hidden. The jump leaves only library frames: the
 * program's frames are above guard_run().
 *
 * The handler needs a third stack, because a full stack of the library may be the cause of the fault.
 *
 * The time limit. A timer for each call would cost three system calls. Instead one thread, the watchdog, checks all
 * threads some times per limit: a thread that was in the same turn for the whole limit gets a signal. The limit is
 * wall-clock time, because a library that sleeps forever blocks the thread just as one that loops. A call only writes
 * its turn, which costs almost nothing. If no call runs, the watchdog sleeps until the next call.
 *
 * The interpreter's lock. A thread that holds it keeps it through a short call (core.h, libcgi_quick_held()). If the
 * watchdog finds a thread in one turn at two checks, HELD_SLEEP_NS apart, it sends the signal, and the handler
 * releases the lock. That is safe: the thread is in library code, and so not within the interpreter.
 *
 * If the signal finds the thread in libc or in the loader, the thread may hold one of their locks (malloc's, stdio's),
 * and after a jump nothing would release it. The handler then returns, and the watchdog tries again a millisecond
 * later, MAX_DELAYS times. A call that blocks in the kernel is ended after that. A fault cannot be delayed in this
 * way: a library that has destroyed the heap may leave malloc's lock held.
 *
 * A library can avoid signals.c by a system call or through another library, block the watchdog's signal, and then not
 * return. The thread may hold the interpreter's lock: then no thread of the process runs Python any more, and TERM
 * has no effect. If the watchdog has sent signals in vain for twice the limit, it ends the process; the supervisor
 * starts another.
 */
/* A compiler's defaults may ask for a longjmp() that refuses to leave one stack for another. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "internal.h"

#define STACK_SIZE (64 * 1024)
#define MAX_DELAYS 200 /* milliseconds */
#define CHECKS 8 /* checks of the watchdog within the shortest limit */
#define MAX_SLEEP_NS INT64_C(500000000) /* a call that begins meanwhile may have a shorter limit */
#define HELD_SLEEP_NS 5000000 /* while threads hold the interpreter's lock: Python's own interval */
#define STOP (SIGRTMIN + 7)
/* A call that ignores STOP for so many limits, and at least so long, ends the process */
#define IN_VAIN_LIMITS 2
#define MIN_IN_VAIN_NS INT64_C(2000000000)
#define EXIT_SIGNAL_BLOCKED 70 /* exit status: EX_SOFTWARE */

static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
enum { FAULT_COUNT = sizeof FAULTS / sizeof *FAULTS };

/* Initial-exec: the first use of another kind may call malloc(), which no signal handler may. */
static __thread struct guard_thread *self __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct guard_thread *threads;
static struct sigaction earlier_actions[FAULT_COUNT];
static int started;
static pthread_key_t key; /* its destructor runs at a thread's end */
static pthread_cond_t woken;
static _Atomic int watching; /* the watchdog exists and is awake */
static int has_watchdog;
static struct { uintptr_t begin, end; } libc_code[2];

void *(*interpreter_release)(void);
void (*interpreter_take)(void *released);

int64_t guard_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Return the program counter of the code that a signal has interrupted, NULL on other machines. */
static void *counter_of(const void *context)
{
    const ucontext_t *machine = context;
#if defined(__x86_64__)
    return (void *)machine->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)machine->uc_mcontext.pc;
#else
    (void)machine;
    return NULL;
#endif
}

/* Is this an address of code of libc or of the loader? A call is not ended there at once: it may hold a lock. */
static int in_libc(const void *counter)
{
    for (size_t i = 0; i < sizeof libc_code / sizeof *libc_code; i++)
        if ((uintptr_t)counter >= libc_code[i].begin && (uintptr_t)counter < libc_code[i].end)
            return 1;
    return 0;
}

/* Did the interrupted code cause the signal, and not another process? */
static int caused_here(const siginfo_t *about)
{
    return about->si_code > 0 || (about->si_code == SI_TKILL && about->si_pid == getpid());
}

/* Give a signal to the program's own handler, or let it have its usual effect: no library has caused it. */
static void pass_on(int number, siginfo_t *about, void *context)
{
    for (int i = 0; i < FAULT_COUNT; i++) {
        if (FAULTS[i] != number)
            continue;
        if (earlier_actions[i].sa_flags & SA_SIGINFO) {
            earlier_actions[i].sa_sigaction(number, about, context);
        } else if (earlier_actions[i].sa_handler != SIG_DFL && earlier_actions[i].sa_handler != SIG_IGN) {
            earlier_actions[i].sa_handler(number);
        } else {
            /* A fault happens again as soon as this handler returns; a signal that was sent must be sent again. */
            sigaction(number, &earlier_actions[i], NULL);
            if (about->si_code <= 0)
                syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
        }
    }
}

/* The handler of STOP and of the faults: end the call of this thread, or pass the signal on. */
static void handle(int number, siginfo_t *about, void *context)
{
    struct guard_thread *thread = self;
    if (number == STOP) {
        if (thread == NULL || !thread->inside)
            return;
        if (thread->holds && thread->released == NULL) {
            int kept = errno;
            thread->released = interpreter_release();
            errno = kept;
        }
        if (thread->overdue != thread->turn)
            return;
        if (in_libc(counter_of(context)) && thread->delays_left-- > 0)
            return;
        thread->outcome = LIBCGI_TIMEOUT;
    } else {
        if (threads_here() != NULL && caused_here(about) && !child_of_library())
            threads_stop(number);
        if (thread == NULL || !thread->inside || !caused_here(about) || child_of_library()) {
            pass_on(number, about, context);
            return;
        }
        thread->outcome = LIBCGI_FAULT;
        thread->address = about->si_code > 0 ? about->si_addr : NULL;
    }
    thread->number = number;
    thread->counter = counter_of(context);
    thread->mask = ((ucontext_t *)context)->uc_sigmask;
    thread->inside = 0;
    siglongjmp(thread->escape, 1);
}

/* The first function on the library's stack. */
static void entry(void)
{
    self->function(self->argument);
#ifdef __x86_64__
    __asm__ volatile("cld"); /* the direction of string instructions, on which functions rely */
#endif
    atomic_signal_fence(memory_order_seq_cst);
    if (child_of_library())
        _exit(0);
    /* From here on, the library's changes to its stack and to the registers do not matter. */
    struct guard_thread *thread = self;
    thread->inside = 0;
    thread->outcome = LIBCGI_DONE;
    siglongjmp(thread->escape, 1);
}

int guard_run(struct guard_thread *thread, void (*function)(void *), void *argument, int limit_ms)
{
#ifdef __x86_64__
    volatile unsigned modes = __builtin_ia32_stmxcsr();
#endif
    atomic_store_explicit(&thread->limit_ms, limit_ms, memory_order_relaxed);
    atomic_store_explicit(&thread->outside, 0, memory_order_relaxed);
    thread->delays_left = MAX_DELAYS;
    thread->function = function;
    thread->argument = argument;
    if (sigsetjmp(thread->escape, 0) == 0) {
        thread->turn++;
        if (!watching) {
            pthread_mutex_lock(&lock);
            pthread_cond_signal(&woken);
            pthread_mutex_unlock(&lock);
        }
        thread->inside = 1;
        atomic_signal_fence(memory_order_seq_cst);
        library_stack_enter(thread->library_top, entry);
    }
    struct guard_thread *here = self; /* after the jump, registers may have lost their values */
    here->turn++;
#ifdef __x86_64__
    /* If a library has enabled floating-point traps, the program must not get them. */
    if (__builtin_ia32_stmxcsr() != modes)
        __builtin_ia32_ldmxcsr(modes);
#endif
    if (here->mask_changed)
        pthread_sigmask(SIG_SETMASK, &here->mask_before, NULL);
    else if (here->outcome != LIBCGI_DONE)
        pthread_sigmask(SIG_SETMASK, &here->mask, NULL);
    here->mask_changed = 0;
    return here->outcome;
}

void guard_outside(struct guard_thread *thread)
{
    thread->inside = 0;
    thread->outside_since = guard_now();
}

/* The limit continues: if it started again, a library that writes without an end would never be ended. */
void guard_inside(struct guard_thread *thread)
{
    thread->outside += guard_now() - thread->outside_since;
    thread->outside_since = 0;
    thread->inside = 1;
}

void guard_escape(int outcome, int number)
{
    struct guard_thread *thread = self;
    if (thread == NULL || !thread->inside || child_of_library())
        return;
    thread->inside = 0;
    thread->outcome = outcome;
    thread->number = number;
    thread->address = thread->counter = NULL;
    pthread_sigmask(SIG_SETMASK, NULL, &thread->mask);
    siglongjmp(thread->escape, 1);
}

void guard_release_lock(struct guard_thread *thread)
{
    if (thread->holds && thread->released == NULL)
        thread->released = interpreter_release();
}

int guard_uses(int number)
{
    for (int i = 0; i < FAULT_COUNT; i++)
        if (FAULTS[i] == number)
            return 1;
    return number == STOP;
}

void guard_keep_mask(void)
{
    if (self != NULL && self->inside && !self->mask_changed) {
        pthread_sigmask(SIG_SETMASK, NULL, &self->mask_before);
        self->mask_changed = 1;
    }
}

struct library_threads *guard_threads(void)
{
    return self != NULL && self->inside ? self->threads : NULL;
}

libcgi_call *guard_call(void)
{
    return self != NULL ? self->call : NULL;
}

libcgi_call *guard_answer(void)
{
    return self != NULL && !child_of_library() ? self->call : NULL;
}

/* Threads */

/* Free the record of a thread that ends (destructor of `key`). */
static void forget(void *argument)
{
    struct guard_thread *thread = argument;
    pthread_mutex_lock(&lock);
    for (struct guard_thread **place = &threads; *place != NULL; place = &(*place)->next) {
        if (*place == thread) {
            *place = thread->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    self = NULL;
    library_stack_free(thread);
    if (thread->stack != NULL) {
        stack_t none = {.ss_flags = SS_DISABLE};
        sigaltstack(&none, NULL);
        munmap(thread->stack, thread->stack_size);
    }
    free(thread);
}

/* Give this thread a stack for signal handlers, unless it has one. Returns 0, or -1 without memory. */
static int give_stack(struct guard_thread *thread)
{
    stack_t handler_stack;
    if (sigaltstack(NULL, &handler_stack) == 0 && !(handler_stack.ss_flags & SS_DISABLE))
        return 0;
    long least = sysconf(_SC_MINSIGSTKSZ);
    thread->stack_size = STACK_SIZE + (least > 0 ? (size_t)least : 0);
    thread->stack_size = (thread->stack_size + 4095) & ~(size_t)4095;
    thread->stack = mmap(NULL, thread->stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (thread->stack == MAP_FAILED) {
        thread->stack = NULL;
        return -1;
    }
    handler_stack = (stack_t){.ss_sp = thread->stack, .ss_size = thread->stack_size};
    return sigaltstack(&handler_stack, NULL);
}

/* Make the record of this thread, with its stacks. Returns NULL without memory. */
static struct guard_thread *new_thread(void)
{
    struct guard_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return NULL;
    if (library_stack_make(thread) != 0 || give_stack(thread) != 0) {
        library_stack_free(thread);
        free(thread);
        return NULL;
    }
    thread->id = (pid_t)syscall(SYS_gettid);
    /* A library that cancels this thread would unwind the program's frames. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &(int){0});
    self = thread;
    pthread_setspecific(key, thread);
    pthread_mutex_lock(&lock);
    thread->next = threads;
    threads = thread;
    pthread_mutex_unlock(&lock);
    return thread;
}

/* The watchdog */

/* End the process: a call ignores the signal. Python's log cannot be used, because the call may hold the lock. */
static void end_process(const struct guard_thread *thread)
{
    const char *name = thread->name;
    dprintf(2, "ewe: error: %s: blocks the signal that ends its call, and does not return (libcgi-timeout);"
               " this process ends\n", name != NULL ? name : "a library");
    _exit(EXIT_SIGNAL_BLOCKED);
}

/* Check all threads; return how long to sleep until the next check, in nanoseconds; -1: until a call begins. */
static int64_t check_threads(int64_t now)
{
    int64_t next = -1;
    for (struct guard_thread *thread = threads; thread != NULL; thread = thread->next) {
        uint64_t turn = thread->turn;
        int64_t limit = (int64_t)thread->limit_ms * 1000000;
        int64_t sleep = limit / CHECKS;
        if (thread->holds && sleep > HELD_SLEEP_NS)
            sleep = HELD_SLEEP_NS;
        if (turn != thread->seen) {
            thread->seen = turn;
            thread->since = now;
        } else if (turn % 2 == 0) {
            continue;
        } else if (thread->outside_since == 0 && now - thread->since - thread->outside >= limit) {
            int64_t in_vain = IN_VAIN_LIMITS * limit > MIN_IN_VAIN_NS ? IN_VAIN_LIMITS * limit : MIN_IN_VAIN_NS;
            if (now - thread->since - thread->outside >= limit + in_vain)
                end_process(thread);
            thread->overdue = turn;
            syscall(SYS_tgkill, getpid(), thread->id, STOP);
            sleep = 1000000;
        } else {
            if (thread->holds && thread->released == NULL)
                syscall(SYS_tgkill, getpid(), thread->id, STOP);
            if (thread->since + thread->outside + limit - now < sleep)
                sleep = thread->since + thread->outside + limit - now;
        }
        if (sleep > MAX_SLEEP_NS)
            sleep = MAX_SLEEP_NS;
        if (sleep < 1000000)
            sleep = 1000000;
        if (next < 0 || sleep < next)
            next = sleep;
    }
    return next;
}

/* The watchdog's thread: check all calls, and sleep until the next check or call. */
static void *watch(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        int64_t now = guard_now(), sleep = check_threads(now);
        if (sleep < 0) {
            watching = 0;
            /* Check again for a call that began before it could see that the watchdog sleeps. */
            if ((sleep = check_threads(now)) < 0)
                pthread_cond_wait(&woken, &lock);
            watching = 1;
            if (sleep < 0)
                continue;
        }
        struct timespec until = {.tv_sec = (now + sleep) / 1000000000, .tv_nsec = (now + sleep) % 1000000000};
        pthread_mutex_unlock(&lock);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

/* Start the watchdog, with all signals blocked. Returns 0, or an error number. */
static int start_watchdog(void)
{
    sigset_t all, old;
    pthread_attr_t attributes;
    pthread_t watchdog;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failure = pthread_create(&watchdog, &attributes, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return failure;
}

struct guard_thread *guard_thread(void)
{
    struct guard_thread *thread = self != NULL ? self : new_thread();
    if (thread != NULL && !has_watchdog) {
        pthread_mutex_lock(&lock);
        if (!has_watchdog && start_watchdog() == 0) {
            has_watchdog = 1;
            watching = 1;
        }
        pthread_mutex_unlock(&lock);
        if (!has_watchdog)
            return NULL;
    }
    return thread;
}

/* A call must not be ended while it holds `lock`. */
static void fork_begins(void)
{
    if (self != NULL && self->inside) {
        self->inside = 0;
        self->forks = 1;
    }
    pthread_mutex_lock(&lock);
}

static void fork_ends(void)
{
    pthread_mutex_unlock(&lock);
    if (self != NULL && self->forks) {
        self->forks = 0;
        self->inside = 1;
    }
}

/* In the child of a fork: only this thread exists. Note whether a library or the server has made the child. */
static void forked(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&woken, NULL);
    has_watchdog = 0;
    threads = self; /* the only thread that a child has */
    if (self != NULL) {
        self->next = NULL;
        self->id = (pid_t)syscall(SYS_gettid);
    }
    if (threads_here() != NULL || (self != NULL && self->forks)) {
        child_begins(threads_here() != NULL ? threads_here()->limit_ms : self->limit_ms);
        return;
    }
    child_of_server();
    environment_forked();
}

/* Start */

/* Note where the code of libc (malloc) and of the loader (__tls_get_addr) lies in memory. */
static int find_code(struct dl_phdr_info *object, size_t size, void *argument)
{
    const char *const *symbol = argument;
    (void)size;
    for (int i = 0; i < 2; i++) {
        uintptr_t address = (uintptr_t)dlsym(RTLD_DEFAULT, symbol[i]);
        for (int j = 0; j < object->dlpi_phnum; j++) {
            const ElfW(Phdr) *part = &object->dlpi_phdr[j];
            uintptr_t begin = object->dlpi_addr + part->p_vaddr;
            if (part->p_type == PT_LOAD && address >= begin && address < begin + part->p_memsz) {
                libc_code[i].begin = begin;
                libc_code[i].end = begin + part->p_memsz;
            }
        }
    }
    return 0;
}

/* Install the handlers, and keep those that the program had. Returns 0, or an error number. */
static int install(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigaction old;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < FAULT_COUNT; i++) {
        if (sigaction(FAULTS[i], NULL, &old) != 0)
            return errno;
        if ((old.sa_flags & SA_SIGINFO) && old.sa_sigaction == handle)
            continue;
        earlier_actions[i] = old;
        if (sigaction(FAULTS[i], &action, NULL) != 0)
            return errno;
    }
    return sigaction(STOP, &action, NULL) != 0 ? errno : 0;
}

int guard_start(void)
{
    static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
    static const char *const symbols[] = {"malloc", "__tls_get_addr"};
    int failure = 0;
    pthread_mutex_lock(&starting);
    if (!started) {
        dl_iterate_phdr(find_code, (void *)symbols);
        pthread_cond_init(&woken, NULL);
        failure = child_start() == 0 ? pthread_key_create(&key, forget) : ENOMEM;
        if (failure == 0)
            failure = pthread_atfork(fork_begins, fork_ends, forked);
        started = failure == 0;
    }
    if (failure == 0)
        failure = install(); /* each time: faulthandler.enable() may have replaced the handlers */
    pthread_mutex_unlock(&starting);
    return failure;
}
