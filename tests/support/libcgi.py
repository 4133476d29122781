"""LibCGI libraries for tests: compiled once for a run, from C that does what the query says."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from ewe.libcgi import build as shim
from ewe.xswitch.tools import libcgi as host
from support import needs
from support.server import ROOT

SAMPLES = ROOT / "libcgi-bin"

# What a library of a bad or hasty author does. The query names it; "late-" writes much before.
DOES = r"""
#include <ewe_libcgi.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int calls;
static volatile int zero;
#define HEAD "Content-Type: text/plain\n\n"

__attribute__((noinline)) static int deeper(volatile char *above)
{
    volatile char own[4096];
    own[0] = *above;
    return deeper(own) + own[0];
}

static void whole(void)
{
    static char piece[200000];
    memset(piece, 'x', sizeof piece);
    lputs(HEAD);
    lwrite(piece, sizeof piece);
}

static void echo(const char *input)
{
    const char *length = getenv("CONTENT_LENGTH");
    lputs(HEAD);
    if (input)
        lwrite(input, strtoul(length, NULL, 10));
}

/* The server's signal may interrupt a sleep: ewe_libcgi.h. */
static void nap(void)
{
    struct timespec left = {0, 200000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    calls++;
    if (!strncmp(query, "late-", 5)) {
        whole();
        query += 5;
    }
    if (!strcmp(query, "segv")) *(volatile int *)8 = 1;
    if (!strcmp(query, "abort")) abort();
    if (!strcmp(query, "divide")) zero = 100 / zero;
    if (!strcmp(query, "loop")) for (;;) zero = 0;
    if (!strcmp(query, "exit")) exit(0);
    if (!strcmp(query, "overflow")) zero = deeper("");
    if (!strcmp(query, "heap")) { char *own = malloc(8); memset(own - 64, 'z', 4096); free(own); free(own); }
    if (!strcmp(query, "write")) { if (write(0, HEAD, sizeof HEAD) + write(3, "\0040\n", 3) > 0) abort(); }
    if (!strcmp(query, "close")) for (int each = 0; each < 1024; each++) close(each);
    if (!strncmp(query, "nap", 3)) nap();
    if (!strcmp(query, "nap-much")) { whole(); whole(); return; }
    if (!strcmp(query, "silent")) return;
    if (!strcmp(query, "no-head")) { lputs("Hello\n\n"); whole(); return; }
    if (!strcmp(query, "half-head")) { lputs("Content-Type: text/plain\n"); return; }
    if (!strcmp(query, "echo")) { echo(input); return; }
    if (!strcmp(query, "change")) {
        if (chdir("/") || setenv("LEFT", "behind", 1)) abort();
        umask(0);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGTERM, SIG_IGN);
    }
    lputs(HEAD);
    if (!strcmp(query, "print")) { printf("to the log\n"); fflush(stdout); }
    if (!strcmp(query, "fork") && fork() == 0) { lputs("child"); return; }
    if (!strcmp(query, "background") && system("true &") != 0) abort();
    if (!strcmp(query, "cwd")) { char at[4096]; lputs(getcwd(at, sizeof at)); return; }
    lprintf("%d %d %d %s", calls, (int)getpid(), (int)geteuid(), getenv("VALUE") ? getenv("VALUE") : "-");
}
"""

# Faults in the two functions that are not asked for an answer.
INIT = "#include <ewe_libcgi.h>\nvoid initfunc(void) { abort(); }\nvoid processfunc(char *i) { (void)i; }\n"
END = """#include <ewe_libcgi.h>
#include <stdio.h>
void terminatefunc(void) { puts("it terminates"); fflush(stdout); abort(); }
void processfunc(char *i) { (void)i; lputs("Content-Type: text/plain\\n\\nfirst"); }
"""
NONE = "int nothing;\n"
# It knows no header of ewe, and finds its variables in the process's environment.
PLAIN = """#include <stdlib.h>
int lprintf(const char *, ...);
void processfunc(char *i) { (void)i; lprintf("Content-Type: text/plain\\n\\n%s", getenv("VALUE")); }
"""
SECOND = """#include <ewe_libcgi.h>
void processfunc(char *i) { (void)i; lputs("Content-Type: text/plain\\n\\nsecond"); }
"""
# What the client sends is the whole answer, head and all.
SAYS = """#include <ewe_libcgi.h>
void processfunc(char *i) { if (i) lwrite(i, strtoul(getenv("CONTENT_LENGTH"), NULL, 10)); }
"""


def compiled(directory: Path, name: str, text: str) -> Path:
    """Compile a library in C; return where it is. It appears at once, under a new inode."""
    needs.require("gcc")
    source = directory / f"{name}.c"
    source.write_text(text)
    new = directory / f"{name}.new"
    subprocess.run(
        [
            "cc",
            "-O1",
            "-w",
            "-fno-builtin",
            "-shared",
            "-fPIC",
            f"-I{shim.DIRECTORY}",
            "-o",
            str(new),
            str(source),
        ],
        check=True,
    )
    new.chmod(0o755)
    return new.rename(directory / f"{name}.so")


def install(library: Path, path: Path) -> Path:
    """Copy a library, so that the copy has its own owner and directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, path)
    return path


@cache
def engine() -> str:
    """Build the host of libraries; return its path."""
    needs.require("gcc")
    return host.build()
