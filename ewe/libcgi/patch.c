/* Replaces functions that a library calls. exit() and related functions would end the whole program (ends.c). vfork()
 * becomes fork() (child.c), and the functions about signals and timers become those of signals.c.
 *
 * A library does not contain exit(). It contains a table with the addresses of functions in other libraries (the global
 * offset table), which the loader fills in. After dlopen() the shim walks the library's relocations. They say where in
 * the table the address of exit() is. The shim puts its own function there: the library's call of exit() then ends the
 * call of processfunc(). Of other libraries the shim changes only the C++ library, for std::thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#if defined(__x86_64__)
#define IS_ADDRESS(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_ADDRESS(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#endif

#ifdef IS_ADDRESS

static uintptr_t replacement(const char *name)
{
    /* The child of vfork() shares the server's memory and stack. The child of fork() may do everything that it may. */
    if (strcmp(name, "vfork") == 0 || strcmp(name, "_Fork") == 0)
        return (uintptr_t)fork;
    if (strcmp(name, "pthread_create") == 0)
        return (uintptr_t)threads_create;
    uintptr_t ends = ends_replacement(name);
    return ends != 0 ? ends : signals_replacement(name);
}

/* Write an address into a table that the loader may have made read-only. */
static void put(uintptr_t *place, uintptr_t value)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)place & ~(size - 1));
    if (mprotect(page, size, PROT_READ | PROT_WRITE) == 0)
        *place = value;
}

/* only: the one function to replace, NULL for all. */
static void walk(const struct link_map *map, const ElfW(Rela) *table, size_t size, const ElfW(Sym) *symbols,
                 const char *names, const char *only)
{
    for (size_t i = 0; table != NULL && i < size / sizeof *table; i++) {
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(table[i].r_info)];
        if (!IS_ADDRESS(ELF64_R_TYPE(table[i].r_info)) || symbol->st_shndx != SHN_UNDEF)
            continue;
        if (only != NULL && strcmp(names + symbol->st_name, only) != 0)
            continue;
        uintptr_t value = replacement(names + symbol->st_name);
        if (value != 0)
            put((uintptr_t *)(map->l_addr + table[i].r_offset), value + (uintptr_t)table[i].r_addend);
    }
}

static void patch(const struct link_map *map, const char *only)
{
    uintptr_t symbols = 0, names = 0, calls = 0, data = 0;
    size_t calls_size = 0, data_size = 0;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        /* glibc has added the library's address to these values; other loaders have not */
        uintptr_t value = entry->d_un.d_ptr < map->l_addr ? entry->d_un.d_ptr + map->l_addr : entry->d_un.d_ptr;
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols = value; break;
        case DT_STRTAB: names = value; break;
        case DT_JMPREL: calls = value; break;
        case DT_RELA: data = value; break;
        case DT_PLTRELSZ: calls_size = entry->d_un.d_val; break;
        case DT_RELASZ: data_size = entry->d_un.d_val; break;
        }
    }
    if (symbols == 0 || names == 0)
        return;
    walk(map, (const ElfW(Rela) *)calls, calls_size, (const ElfW(Sym) *)symbols, (const char *)names, only);
    walk(map, (const ElfW(Rela) *)data, data_size, (const ElfW(Sym) *)symbols, (const char *)names, only);
}

void patch_exits(void *handle)
{
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL)
        return;
    patch(map, NULL);
    /* std::thread calls pthread_create() in the C++ library, which the program may use, too: threads.c checks which
       thread calls. */
    while (map->l_prev != NULL)
        map = map->l_prev;
    for (; map != NULL; map = map->l_next)
        if (strstr(map->l_name, "/libstdc++.so") != NULL)
            patch(map, "pthread_create");
}

#else

void patch_exits(void *handle)
{
    (void)handle;
}

#endif
