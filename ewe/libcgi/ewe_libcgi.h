/* The contract of a LibCGI library with the server. Compile the library with this header.
 *
 * A library is a shared object that the server loads once and then calls for each request, in its own process
 * (Venkitachalam and Chiueh, "High-Performance Common Gateway Interface Invocation", section 4). It defines one
 * function, and two more if it needs them:
 *
 *     void processfunc(char *input);   answers one request
 *     void initfunc(void);             is called once, before the first request
 *     void terminatefunc(void);        is called before the library is unloaded, and after a fault of the library:
 *                                      it must not rely on the state of its data
 *
 * A whole library:
 *
 *     #include <ewe_libcgi.h>
 *
 *     void processfunc(char *input)
 *     {
 *         lputs("Content-Type: text/plain\n\n");
 *         lprintf("You asked for %s\n", getenv("REQUEST_URI"));
 *     }
 *
 *     cc -shared -fPIC -O2 -o hello.so hello.c -I $(ewe's directory)/libcgi
 *
 * The server defines the functions below. A library must not end the process, and must return from processfunc(). If
 * it crashes, calls exit(), or takes longer than `libcgi-timeout`, the server ends the call, answers 500 and unloads
 * the library. Nothing frees the memory or unlocks the locks that the call held.
 *
 * Processes. A child that the library makes by fork() cannot answer: lputs() and related functions return -1 there. It
 * has none of the server's sockets, and ends when it returns from processfunc(). SIGALRM ends it when the time limit of
 * the call is over.
 *
 * Threads. Several threads may be inside processfunc() at once, if the library was compiled with this header. Each
 * finds the variables of the request that it answers: getenv() below asks the calling thread. The library must
 * protect its global variables itself. A library that is not ready for that says so before the #include:
 *
 *     #define EWE_LIBCGI_ONE_AT_A_TIME
 *
 * A library without this header is called by one thread at a time, too.
 *
 * A thread that the library starts belongs to no request: lputs() and related functions return -1 there, and getenv()
 * finds the variables of the process. After a fault in it, the present or the next request is answered with 500.
 *
 * Signals. A signal of the server may interrupt a call that lasts longer than 5 ms. read() and write() then continue by
 * themselves; sleep(), poll() and select() may return early with EINTR, so call them in a loop. A library can neither
 * block nor handle the signals of faults. It cannot handle the signals that stop the server, and can block them only
 * until the call ends. Calls that try more report success and change nothing. alarm() and setitimer() do nothing: the
 * server has the time limit.
 */
#ifndef EWE_LIBCGI_H
#define EWE_LIBCGI_H

#include <stddef.h>
#include <stdlib.h>
#ifdef __cplusplus
#include <cstdlib>
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Write `length` bytes of the answer: a CGI head ("Content-Type: text/html", an empty line), then the document.
   Returns the number of bytes, -1 if they cannot be written. */
long lwrite(const void *data, size_t length);

/* Write a string, without its NUL and without a line end. Returns the number of bytes, -1 on an error. */
int lputs(const char *text);

/* Write the text that printf() would print. Returns the number of bytes, -1 on an error. */
int lprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Return the name of the client's host, or its address if it has no name. The first call in a request asks the DNS,
   which may take seconds. The string is valid until processfunc() returns. */
const char *get_remote_host(void);

/* Return a variable of this thread's request (RFC 3875 section 4.1), NULL if it has no such variable. The string
   is valid until processfunc() returns. The library may change its bytes, as strtok() does. */
char *ewe_libcgi_getenv(const char *name);

/* Answer one request. input: its body; NULL without one. A NUL follows the body, so a body of text is a string. If the
   body contains NUL itself, CONTENT_LENGTH has its length. The library may change the bytes, and must not free them. */
void processfunc(char *input);

void initfunc(void);
void terminatefunc(void);

#pragma GCC visibility pop

#ifndef EWE_LIBCGI_ONE_AT_A_TIME
/* This symbol tells the server that several threads may be inside at once. */
__attribute__((weak, visibility("default"))) extern const int ewe_libcgi_reentrant;
const int ewe_libcgi_reentrant = 1; /* with the attributes above; C++ takes them only there */
#endif

#ifdef __cplusplus
}
namespace std {
using ::ewe_libcgi_getenv;
}
#endif

#define getenv ewe_libcgi_getenv
#define secure_getenv ewe_libcgi_getenv

#endif
