/* The destructors of a library: those of global C++ objects, and the functions that it has passed to atexit().
 *
 * dlclose() runs them while it holds the loader's lock. If a destructor faults, or the time limit ends it, a jump
 * leaves it, and the lock stays held: no library could be loaded any more. The shim therefore removes the
 * destructors from the table that dlclose() reads, and runs them itself beforehand, under the guard.
 *
 *     DT_FINI_ARRAY     the functions; gcc's first one runs the library's atexit() functions
 *     DT_FINI           one more function, which runs last
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

static void nothing(void)
{
}

/* Change an entry of the table, which the loader may have made read-only. Returns 0, or -1. */
static int change(ElfW(Dyn) *entry, uintptr_t value)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)entry & ~(size - 1);
    uintptr_t end = (uintptr_t)(entry + 1);
    if (mprotect((void *)begin, end - begin, PROT_READ | PROT_WRITE) != 0)
        return -1;
    entry->d_un.d_ptr = value;
    return 0;
}

void destructors_take(void *handle, struct library_destructors *found)
{
    struct link_map *map = NULL;
    ElfW(Dyn) *functions = NULL, *bytes = NULL, *last = NULL;
    *found = (struct library_destructors){0};
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL)
        return;
    for (ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_FINI_ARRAY: functions = entry; break;
        case DT_FINI_ARRAYSZ: bytes = entry; break;
        case DT_FINI: last = entry; break;
        }
    }
    if (functions != NULL && bytes != NULL) {
        size_t count = bytes->d_un.d_val / sizeof(void (*)(void));
        if (change(bytes, 0) == 0) {
            found->functions = (void (**)(void))(map->l_addr + functions->d_un.d_ptr);
            found->count = count;
        }
    }
    if (last != NULL) {
        void (*function)(void) = (void (*)(void))(map->l_addr + last->d_un.d_ptr);
        if (change(last, (uintptr_t)nothing - map->l_addr) == 0)
            found->last = function;
    }
}

void destructors_run(void *destructors)
{
    struct library_destructors *found = destructors;
    while (found->count > 0)
        found->functions[--found->count]();
    if (found->last != NULL)
        found->last();
}
