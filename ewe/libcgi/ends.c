/* Functions that would end the program, or replace it by another. patch.c redirects a library's calls to this file.
 *
 *     exit(), _exit(), err(), error(), daemon(), ...    end the call, as exit() does
 *     execve() and related functions                    end the call, too: nothing would be left of the server
 *     pthread_exit()                                    ends the call, or the thread that the library has started
 *
 * In a library's child (child.c) each of them has its usual effect. To start a program, a library uses fork() and
 * execve(), posix_spawn(), system() or popen().
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <error.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define MAX_WORDS 1024 /* of a program's arguments */

/* End the call; in another thread of a library end the thread; in a library's child end the process. */
static void end_call(int status)
{
    guard_escape(LIBCGI_EXIT, status);
    if (threads_here() != NULL && !child_of_library())
        threads_exit();
    _exit(status);
}

/* As pthread_exit(): end the call, the thread that a library has started, or the child with its only thread. */
static void end_thread(void *value)
{
    guard_escape(LIBCGI_EXIT, 0);
    if (child_of_library())
        _exit(0);
    pthread_exit(value);
}

/* Messages, then the end */

static void library_verr(int status, const char *format, va_list arguments)
{
    vwarn(format, arguments);
    end_call(status);
}

static void library_verrx(int status, const char *format, va_list arguments)
{
    vwarnx(format, arguments);
    end_call(status);
}

static void library_err(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vwarn(format, arguments);
    va_end(arguments);
    end_call(status);
}

static void library_errx(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vwarnx(format, arguments);
    va_end(arguments);
    end_call(status);
}

static void library_error(int status, int number, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error(0, number, "%s", text);
    if (status != 0)
        end_call(status);
}

static void library_error_at_line(int status, int number, const char *file, unsigned line, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_at_line(0, number, file, line, "%s", text);
    if (status != 0)
        end_call(status);
}

/* daemon() ends its parent, and that would be the server. */
static int library_daemon(int keep_directory, int keep_files)
{
    if (!child_of_library())
        end_call(0);
    return daemon(keep_directory, keep_files);
}

/* Other programs */

/* Return in a process that a library has made, even if it shares the memory (vfork()); otherwise end the call. */
static void only_in_child(void)
{
    if (child_of_library() || !process_of_server())
        return;
    guard_escape(LIBCGI_EXEC, 0);
    if (threads_here() != NULL)
        threads_exit();
}

static int library_execve(const char *file, char *const words[], char *const variables[])
{
    only_in_child();
    return execve(file, words, variables);
}

static int library_execv(const char *file, char *const words[])
{
    only_in_child();
    return execv(file, words);
}

static int library_execvp(const char *file, char *const words[])
{
    only_in_child();
    return execvp(file, words);
}

static int library_execvpe(const char *file, char *const words[], char *const variables[])
{
    only_in_child();
    return execvpe(file, words, variables);
}

static int library_fexecve(int file, char *const words[], char *const variables[])
{
    only_in_child();
    return fexecve(file, words, variables);
}

/* Collect the arguments of execl(). Afterwards `arguments` continues after the NULL. Returns 0, or -1. */
static int collect(char *words[MAX_WORDS], const char *first, va_list *arguments)
{
    int count = 0;
    for (const char *word = first; word != NULL; word = va_arg(*arguments, const char *)) {
        if (count == MAX_WORDS - 1) {
            errno = E2BIG;
            return -1;
        }
        words[count++] = (char *)word;
    }
    words[count] = NULL;
    return 0;
}

static int library_execl(const char *file, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list arguments;
    only_in_child();
    va_start(arguments, first);
    int failure = collect(words, first, &arguments);
    va_end(arguments);
    return failure != 0 ? failure : execv(file, words);
}

static int library_execlp(const char *file, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list arguments;
    only_in_child();
    va_start(arguments, first);
    int failure = collect(words, first, &arguments);
    va_end(arguments);
    return failure != 0 ? failure : execvp(file, words);
}

static int library_execle(const char *file, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list arguments;
    only_in_child();
    va_start(arguments, first);
    int failure = collect(words, first, &arguments);
    char *const *variables = failure == 0 ? va_arg(arguments, char *const *) : NULL;
    va_end(arguments);
    return failure != 0 ? failure : execve(file, words, variables);
}

uintptr_t ends_replacement(const char *name)
{
    static const struct {
        const char *name;
        uintptr_t function;
    } TABLE[] = {
        {"exit", (uintptr_t)end_call},           {"_exit", (uintptr_t)end_call},
        {"_Exit", (uintptr_t)end_call},          {"quick_exit", (uintptr_t)end_call},
        {"pthread_exit", (uintptr_t)end_thread}, {"thrd_exit", (uintptr_t)end_thread},
        {"err", (uintptr_t)library_err},         {"errx", (uintptr_t)library_errx},
        {"verr", (uintptr_t)library_verr},       {"verrx", (uintptr_t)library_verrx},
        {"error", (uintptr_t)library_error},     {"error_at_line", (uintptr_t)library_error_at_line},
        {"daemon", (uintptr_t)library_daemon},   {"execve", (uintptr_t)library_execve},
        {"execv", (uintptr_t)library_execv},     {"execvp", (uintptr_t)library_execvp},
        {"execvpe", (uintptr_t)library_execvpe}, {"fexecve", (uintptr_t)library_fexecve},
        {"execl", (uintptr_t)library_execl},     {"execlp", (uintptr_t)library_execlp},
        {"execle", (uintptr_t)library_execle},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (strcmp(TABLE[i].name, name) == 0)
            return TABLE[i].function;
    return 0;
}
