/* A library for tests: one commonplace fault of a library's author for each query. */
#define _GNU_SOURCE
#include <ewe_libcgi.h>

#include <dlfcn.h>
#include <err.h>
#include <error.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
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

extern char **environ;

static void endless(void)
{
    for (;;)
        pause();
}

/* A child writes what it has to say to its parent, as a program would. */
static void ask_child(void)
{
    int ends[2];
    char text[8] = "";
    if (pipe(ends) != 0)
        abort();
    if (fork() == 0) {
        if (lputs("the child speaks") != -1 || write(ends[1], "child", 5) != 5)
            abort();
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], text, 5) != 5)
        abort();
    close(ends[0]);
    lputs(text);
}

static void processes(const char *query)
{
    static const char *const SHELL[] = {"sh", "-c", "exit 3", NULL};
    static char much[1000000];
    int status = 0;
    pid_t child = 0;
    if (is(query, "fork-return") && (child = fork()) == 0)
        return;
    if (is(query, "fork-write") && (child = fork()) == 0) {
        lputs("the child speaks");
        lwrite(much, sizeof much);
        return;
    }
    if (is(query, "fork-exit") && (child = fork()) == 0)
        exit(0);
    if (is(query, "fork-fault") && (child = fork()) == 0)
        *(volatile int *)8 = 1;
    if (is(query, "fork-thread") && (child = fork()) == 0)
        pthread_exit(NULL);
    if (is(query, "vfork") && (child = vfork()) == 0)
        _exit(3);
    if (is(query, "clone") && (child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0)
        return;
    if (is(query, "clone-exit") && (child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0)
        exit(0);
    if (is(query, "spawn") && posix_spawn(&child, "/bin/sh", NULL, NULL, (char **)SHELL, environ) != 0)
        abort();
    if (is(query, "fork-stays") && fork() == 0)
        endless();
    if (is(query, "fork-twice") && fork() == 0 && fork() == 0)
        endless();
    if (is(query, "fork-program") && fork() == 0)
        execlp("sleep", "sleep", "1000", (char *)NULL);
    if (is(query, "system") && system("exit 3") != 3 << 8)
        abort();
    if (is(query, "popen")) {
        char word[16] = "";
        FILE *pipe = popen("echo word", "r");
        if (pipe == NULL || fscanf(pipe, "%15s", word) != 1 || strcmp(word, "word") != 0 || pclose(pipe) != 0)
            abort();
    }
    if (child > 0)
        while (waitpid(child, &status, 0) < 0)
            ;
    if (is(query, "fork-pipe"))
        ask_child();
}

static void ignore(int number)
{
    (void)number;
}

static void signals(const char *query)
{
    sigset_t all;
    struct sigaction action = {.sa_handler = ignore};
    if (strncmp(query, "thread-", 7) == 0 || strncmp(query, "fork-", 5) == 0)
        return; /* those fault elsewhere */
    sigfillset(&all);
    if (is(query, "block") || is(query, "block-loop") || is(query, "block-fault"))
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    if (is(query, "block-process"))
        sigprocmask(SIG_SETMASK, &all, NULL);
    if (is(query, "handle") || is(query, "handle-loop") || is(query, "handle-fault"))
        for (int each = 1; each < 64; each++)
            if (each != SIGKILL && each != SIGSTOP)
                sigaction(each, &action, NULL);
    if (is(query, "ignore") || is(query, "ignore-loop") || is(query, "ignore-fault"))
        for (int each = 1; each < 64; each++)
            signal(each, SIG_IGN);
    if (is(query, "default"))
        for (int each = 1; each < 64; each++)
            signal(each, SIG_DFL);
    if (is(query, "raw-block-loop")) {
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, 8);
        for (;;) /* it ends only after seconds: a computation would take a processor meanwhile */
            syscall(SYS_nanosleep, &(struct timespec){0, 1000000}, NULL);
    }
    if (strstr(query, "-loop"))
        for (;;)
            zero = 0;
    if (strstr(query, "-fault"))
        *(volatile int *)8 = 1;
}

static volatile long spoken;

static void *thread(void *query)
{
    if (is(query, "thread-fault"))
        *(volatile int *)8 = 1;
    if (is(query, "thread-abort"))
        abort();
    if (is(query, "thread-recursion"))
        zero = deeper("");
    if (is(query, "thread-exit"))
        exit(0);
    if (is(query, "thread-fork") && fork() == 0)
        return NULL;
    if (is(query, "thread-stays"))
        endless();
    if (is(query, "thread-speaks"))
        spoken = lputs("the thread speaks") + lprintf("%d", 1) + lwrite("x", 1);
    return NULL;
}

static void threads(const char *query)
{
    pthread_t other;
    if (strncmp(query, "thread-", 7) != 0)
        return;
    if (pthread_create(&other, NULL, thread, (void *)query) != 0)
        abort();
    if (is(query, "thread-stays"))
        return;
    if (strstr(query, "fault") || strstr(query, "abort") || strstr(query, "recursion"))
        for (struct timespec left = {0, 300000000}; nanosleep(&left, &left) != 0;)
            continue; /* nobody can wait for a thread that is stopped for good */
    else
        pthread_join(other, NULL);
    if (is(query, "thread-speaks") && spoken != -3)
        abort();
}

static void output(const char *query)
{
    static char piece[100000];
    if (is(query, "endless-short"))
        for (;;)
            lputs("x");
    if (is(query, "endless"))
        for (;;)
            lwrite(piece, sizeof piece);
    if (is(query, "endless-print"))
        for (;;)
            lprintf("%0100000d", 1);
    if (is(query, "slow-endless")) /* the buffer is full about twice within the limit */
        for (;;) {
            lwrite(piece, 10000);
            usleep(20000);
        }
}

static void ends(const char *query)
{
    static char *words[] = {"true", NULL};
    if (is(query, "end-err"))
        err(3, "the library %s", "ends");
    if (is(query, "end-errx"))
        errx(3, "the library ends");
    if (is(query, "end-error"))
        error(3, 0, "the library ends");
    if (is(query, "end-error-0"))
        error(0, 0, "the library goes %s", "on");
    if (is(query, "end-daemon") && daemon(1, 1) != 0)
        abort();
    if (is(query, "end-hidden"))
        ((void (*)(int))dlsym(RTLD_DEFAULT, "exit"))(3);
    if (is(query, "end-execv"))
        execv("/bin/true", words);
    if (is(query, "end-execlp"))
        execlp("true", "true", "word", (char *)NULL);
    if (is(query, "end-execle"))
        execle("/bin/true", "true", (char *)NULL, environ);
    if (is(query, "exec-in-child")) {
        int status = 0;
        pid_t child = fork();
        if (child == 0)
            execle("/bin/sh", "sh", "-c", "test $WORD = word && exit 7", (char *)NULL, (char *[]){"WORD=word", NULL});
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
            abort();
    }
}

static void at_end(void)
{
    abort();
}

static void at_end_loop(void)
{
    for (;;)
        zero = 0;
}

static void destructors(const char *query)
{
    if (is(query, "atexit-aborts") && atexit(at_end) == 0)
        exit(0);
    if (is(query, "atexit-spins") && atexit(at_end_loop) == 0)
        exit(0);
}

static sigjmp_buf back;

static void jump(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static void timers(const char *query)
{
    struct itimerval often = {{0, 1000}, {0, 1000}};
    if (is(query, "alarm"))
        alarm(1);
    if (is(query, "alarm-spins")) {
        alarm(1);
        for (;;)
            zero = 0;
    }
    if (is(query, "alarm-jump")) {
        signal(SIGALRM, jump);
        if (sigsetjmp(back, 1) == 0) {
            setitimer(ITIMER_REAL, &often, NULL);
            for (;;)
                pause();
        }
    }
    if (is(query, "timer-real"))
        setitimer(ITIMER_REAL, &often, NULL);
    if (is(query, "timer-profile"))
        setitimer(ITIMER_PROF, &often, NULL);
}

static void *nothing(void *argument)
{
    return argument;
}

static void thread_state(const char *query)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    int old;
    pthread_t other;
    if (is(query, "cancel"))
        pthread_cancel(pthread_self());
    if (is(query, "cancel-spins")) {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
        pthread_cancel(pthread_self());
        for (;;)
            zero = 0;
    }
    if (is(query, "cancel-own") && pthread_create(&other, NULL, nothing, NULL) == 0) {
        pthread_cancel(other);
        pthread_join(other, NULL);
    }
    if (is(query, "no-handler-stack")) {
        sigaltstack(&none, NULL);
        zero = deeper("");
    }
#ifdef __x86_64__
    if (is(query, "direction"))
        __asm__ volatile("std");
#endif
}

static void waits(const char *query)
{
    sigset_t all;
    struct epoll_event event;
    int number;
    sigfillset(&all);
    if (is(query, "wait-suspend"))
        for (;;)
            sigsuspend(&all);
    if (is(query, "wait-sigwait"))
        for (;;)
            sigwait(&all, &number);
    if (is(query, "wait-info"))
        for (;;)
            sigwaitinfo(&all, NULL);
    if (is(query, "wait-ppoll"))
        for (;;)
            ppoll(NULL, 0, NULL, &all);
    if (is(query, "wait-pselect"))
        for (;;)
            pselect(0, NULL, NULL, NULL, NULL, &all);
    if (is(query, "wait-epoll"))
        for (number = epoll_create1(EPOLL_CLOEXEC);;)
            epoll_pwait(number, &event, 1, -1, &all);
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    (void)input;
    if (getenv("HTTP_X_NUMBER") == NULL)
        return;
    lputs("Content-Type: text/plain\n\n");
    stack(query);
    processes(query);
    signals(query);
    output(query);
    threads(query);
    ends(query);
    destructors(query);
    timers(query);
    waits(query);
    thread_state(query);
    lprintf("%s", getenv("HTTP_X_NUMBER"));
}
