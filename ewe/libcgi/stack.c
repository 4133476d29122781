/* A stack for library code, separate from the program's.
 *
 *     thread's stack       library's stack
 *     ┌─────────────┐      ┌─────────────┐ no access: a write that runs upward ends here
 *     │ the program │      │ SLACK       │ zeros, never read
 *     │ guard_run() │ ───▶ │ entry()     │
 *     └─────────────┘      │ processfunc │
 *                          │     ▼       │
 *                          └─────────────┘ no access: a full stack ends here
 *
 * An array of a function lies below the return addresses of the function and its callers. A library that writes past
 * the end of such an array destroys them. On the thread's stack these callers would be guard_run() and the program: the
 * jump out of a fault would continue in frames that contain the library's bytes. On this stack nothing above
 * processfunc() is needed again. guard_run() continues by siglongjmp() in every case, which loads all registers from
 * memory elsewhere.
 *
 * A stack is made with a thread's first call and stays until the thread ends. Its pages use memory once they are
 * accessed.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

#define LIBRARY_STACK ((size_t)8 * 1024 * 1024) /* bytes, as many as the system gives to a program */
#define GUARD ((size_t)1024 * 1024)             /* bytes without access, on either side */
#define SLACK 1024                              /* bytes above the first frame: a short overrun alone is no fault */

int library_stack_make(struct guard_thread *thread)
{
    size_t whole = GUARD + LIBRARY_STACK + GUARD;
    char *low = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (low == MAP_FAILED)
        return -1;
    if (mprotect(low + GUARD, LIBRARY_STACK, PROT_READ | PROT_WRITE) != 0) {
        munmap(low, whole);
        return -1;
    }
    thread->library_stack = low;
    thread->library_stack_size = whole;
    thread->library_top = low + GUARD + LIBRARY_STACK - SLACK;
    return 0;
}

void library_stack_free(struct guard_thread *thread)
{
    if (thread->library_stack != NULL)
        munmap(thread->library_stack, thread->library_stack_size);
    thread->library_stack = NULL;
}

/* The frame pointer is 0, so a debugger's list of callers ends at entry(). */
void library_stack_enter(void *top, void (*entry)(void))
{
#if defined(__x86_64__)
    __asm__ volatile("movq %0, %%rsp\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "callq *%1\n\t"
                     "ud2"
                     :
                     : "D"(top), "S"(entry)
                     : "memory");
#elif defined(__aarch64__)
    register void *begin __asm__("x0") = top;
    register void (*first)(void) __asm__("x1") = entry;
    __asm__ volatile("mov sp, %0\n\t"
                     "mov x29, xzr\n\t"
                     "mov x30, xzr\n\t"
                     "br %1"
                     :
                     : "r"(begin), "r"(first)
                     : "memory");
#else
    /* Other processors are untested: the library gets the thread's stack. */
    (void)top;
    entry();
#endif
    __builtin_unreachable();
}
