"""Build a server in C or Go with a race detector, and read the reports of the detector.

    server.c conversation.c Makefile ── make CFLAGS='... -fsanitize=thread' ─┐
    server.go conversation.go go.mod ── go build -race ──────────────────────┴─▶ a second program, not graded

ThreadSanitizer and Go's race detector keep, for each place in memory, the last accesses and what orders them:
locks, thread creation, channels. Two accesses without an order, of which one writes, are a *data race*. The two
accesses must happen in one run, and may be seconds apart. Therefore a few bursts of clients are enough, and no
unlucky moment is needed. The detector sees neither a lost wake-up nor a wrong order of correct locking:
race_bursts.py finds these.

The build is a copy, so the student's files stay as they are, and runs as the server's account. In this copy, waits
for a condition have bad luck (unlucky/). A report in which a signal handler has an access is not a race: a handler
that sets a flag of type sig_atomic_t may run in any thread.

The detector writes its reports to a separate file: a server may lead its error output elsewhere, as into a log.
A program that has had a report, and then ends by exit(), has the status REPORTED_STATUS. If the file is not there,
it was removed.

A source that names the detector could switch it off, or be another program where the detector is on: its line is
the failure (mention_in_sources). The name may be hidden in a macro or in an assembler's line. In C the build
therefore keeps the text after the preprocessor and the assembler's text, and these are searched, too. A program
could also start itself again with other options of the detector: race_bursts.py looks at the processes. A
submission that is written to deceive may still find a way. The other checks watch the graded program.

Possible failures: no compiler, or a compiler without the detector (MissingProgram); the program does not build.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.scene import MissingProgram
from ewe_classroom.grader.sources import SourceFiles, read_regular
from ewe_classroom.grader.subject import BadSubject
from ewe_classroom.grader.submission import BUILD_TIMEOUT_S, Submission, copy

UNLUCKY = Path(__file__).with_name("unlucky")
CFLAGS = (
    "-std=gnu11 -D_GNU_SOURCE -O1 -g -fno-omit-frame-pointer -fsanitize=thread -include ewe_unlucky.h"
    " -U__SANITIZE_THREAD__ -save-temps"
)
# The status of a program that ends after a report, or after a crash. Not 66, the default of both detectors: a
# program may use it itself (EX_NOINPUT of sysexits.h).
REPORTED_STATUS = 113
# A detector sleeps before the program ends, by default for a second. On a busy machine a program that ends would
# look like one that hangs (race_bursts.MIN_HANG_S). SanitizedBuild.environment adds the file of the reports.
OPTIONS = {
    "TSAN_OPTIONS": "report_thread_leaks=0:report_signal_unsafe=0:second_deadlock_stack=1:history_size=5"
    f":atexit_sleep_ms=200:exitcode={REPORTED_STATUS}",
    "GORACE": f"history_size=3:atexit_sleep_ms=200:exitcode={REPORTED_STATUS}",
}
# For a program without a Makefile: its source with the lab's conversation.c, its source alone, or all sources.
MAKEFILE_OF_SOURCES = """BUILD = $(CC) $(CFLAGS) -o $@ $<
LIBRARIES = -lpthread -lm -lrt
OTHERS = $(filter-out first_test.c,$(wildcard *.c))
%: %.c
\t$(BUILD) $(wildcard conversation.c) $(LIBRARIES) || $(BUILD) $(LIBRARIES) \\
\t|| $(BUILD) $(filter-out $<,$(OTHERS)) $(LIBRARIES)
"""
# Words of a source that knows of the detector: macros, functions and attributes; build tags
NAMES_DETECTOR = {
    "c": re.compile(r"__SANITIZE_|__tsan_|\bno_sanitize|\bthread_sanitizer\b"),
    "go": re.compile(
        r"^//\s*(?:go:build|\+build)\b.*\brace\b|^//go:norace\b|\binternal/race\b|\bruntime\.[Rr]ace\w*",
        re.MULTILINE,
    ),
}
# Calls in an assembler's text that no compiler makes by itself
CALLS_DETECTOR = re.compile(
    r"\b__tsan_(?!init|func_|read|write|unaligned_|atomic|vptr_|volatile_|mem|range)\w+"
    r"|\bAnnotate[A-Z]\w+|\b__sanitizer_\w+"
)
MAX_TEXT_BYTES = 64 << 20  # of a text that the compiler keeps
MAX_PROGRAM_BYTES = 256 << 20  # of a built program: submission.build() allows no larger file
MAX_LINE_CHARS = 80  # of a source line in a message
DETECTOR = {"c": b"__tsan_init", "go": b"runtime.racefini"}
NEEDS = {
    "c": "a C compiler with ThreadSanitizer (of gcc: the package libtsan)",
    "go": "Go and a C compiler for `go build -race`",
}
MAX_REPORT_BYTES = 1 << 20  # of one file
MAX_REPORTED_BYTES = 20 << 20  # of all files together
GO_REPLACEMENTS = (
    (re.compile(r"\bsync\.NewCond\b"), "eweNewCond"),
    (re.compile(r"\bsync\.Cond\b"), "eweCond"),
)
ACCESS_C = re.compile(
    r"^  (?:Previous )?(?:atomic )?(\w+) of size \d+ at 0x\w+ by (main thread|thread T\d+)[^(\n]*"
    r"(?:\(mutexes: (.*)\))?:",
    re.IGNORECASE,
)
ACCESS_GO = re.compile(
    r"^(?:Previous )?(read|write) at 0x\w+ by (main goroutine|goroutine \d+):", re.IGNORECASE
)
# int() refuses a text of thousands of digits, and the program may have written these lines itself.
FRAME_C = re.compile(r"^    #\d+ (\S+) (\S+?):(\d{1,9})(?::\d+)? ")
FUNCTION_GO = re.compile(r"^  (\S.*)\(.*\)$")
POSITION_GO = re.compile(r"^      (\S+):(\d{1,9}) ")
KIND_C = re.compile(r"^WARNING: ThreadSanitizer: (.+?) \(pid=", re.MULTILINE)
LOCATION_C = re.compile(r"^  Location is global '(\w+)'", re.MULTILINE)
REPORT_BORDER = "=================="  # both detectors write this line before and after a report
SECTIONS = re.compile(r"\n\s*\n")
IN_HANDLER = "CallUserSignalHandler"
DATA_RACE = "data race"


@dataclass(frozen=True)
class Access:
    """One side of a report. what: "read", "write" or "". position: "server.c:49".

    line: the text of the source line. locks: the held mutexes, or "" for none; None: unknown.
    """

    what: str
    thread: str
    position: str
    function: str
    line: str
    locks: str | None

    def __str__(self) -> str:
        """Return the access as a part of a sentence: "thread T2 writes at server.c:49 in put(): `count++;`"."""
        what = {"write": "writes", "read": "reads"}.get(self.what.lower(), "is")
        thread = f"the {self.thread}" if self.thread.startswith("main") else self.thread
        return f"{thread} {what} at {self.position} in {self.function}: `{self.line}`"


@dataclass(frozen=True)
class RaceReport:
    """One report of a detector with its places in the student's files. variable: the global one, "" if unknown."""

    kind: str
    accesses: tuple[Access, ...]
    variable: str = ""

    def did(self) -> str:
        """Return what the threads did, in one sentence."""
        if self.kind != DATA_RACE or len(self.accesses) < 2:
            return f"{self.kind}: {'; '.join(map(str, self.accesses))}"
        what = f"`{self.variable}`" if self.variable else "the same memory"
        first, second = self.accesses[:2]
        return f"a data race on {what}: {first}; {second}; nothing orders the two"

    def cause(self) -> str:
        """Return the cause in one sentence."""
        if "inversion" in self.kind:
            return "the program takes two locks in two orders, so two threads can wait for each other forever"
        if self.kind != DATA_RACE or len(self.accesses) < 2:
            return "a lock is used in a way that its documentation forbids"
        first, second = self.accesses[:2]
        if first.locks is None:
            return "no lock, channel or WaitGroup orders these two places"
        if not first.locks and not second.locks:
            return "neither of the two places holds a lock"
        if first.locks and second.locks:
            return "the two places hold different locks"
        locked, unlocked = (first, second) if first.locks else (second, first)
        holds = f"{locked.position} holds a lock and {unlocked.position} holds none"
        return f"{holds}: a lock protects only if both places take it"

    def change(self) -> str:
        """Return what to change."""
        if "inversion" in self.kind:
            return "take the two locks in one order everywhere"
        if self.kind != DATA_RACE or len(self.accesses) < 2:
            return "correct the use of the lock at this place"
        positions = " and ".join(dict.fromkeys(access.position for access in self.accesses[:2]))
        return f"hold one and the same lock at {positions}"


def mention_in_sources(sources: SourceFiles) -> str:
    """Return the first place where a source names the race detector, as "server.c:7, `...`"; "" if none does."""
    for name in sources.names:
        try:
            text = read_regular(sources.program.parent / name).decode(errors="replace")
        except OSError:
            continue  # Submission.take() refuses this file, and says why
        if found := NAMES_DETECTOR[sources.language].search(text):
            number = text.count("\n", 0, found.start()) + 1
            return f"{name}:{number}, `{line_at(text, found.start())}`"
    return ""


def line_at(text: str, position: int) -> str:
    """Return the line of a text with the character at `position`, without its indentation."""
    # Not splitlines(): a form feed, which a source may have, ends no line of a compiler.
    return text[text.rfind("\n", 0, position) + 1 :].partition("\n")[0].strip()


class SanitizedBuild:
    """A copy of a program's sources, built with a race detector."""

    def __init__(self, sources: SourceFiles, limits: SandboxLimits, parent: str | None) -> None:
        """Build. Raises BadSubject if the program does not build, and MissingProgram if the detector is missing."""
        self.sources = sources
        self.submission = Submission(sources.program.parent, limits, parent)
        self.directory = self.submission.path.resolve()
        self.program = self.directory / "sanitized"
        # The detector adds a dot and the process id to this name. The directory belongs to the server's account.
        self.report_file = self.submission.temporary.resolve() / "report"
        # The quotation marks: the path may have a character that separates two options.
        self.environment = {
            "TSAN_OPTIONS": f"{OPTIONS['TSAN_OPTIONS']}:log_path='{self.report_file}'",
            "GORACE": f"{OPTIONS['GORACE']}:log_path='{self.report_file}'",
        }
        try:
            self.submission.take(sources.names)
            (self.build_c if sources.language == "c" else self.build_go)()
        except ConfigError as problem:  # also BadSubject
            # First: a build that has filled the disk would also end the build of has_detector().
            self.close()
            if not has_detector(sources.language):
                raise MissingProgram(f"needs {NEEDS[sources.language]}") from None
            raise BadSubject(str(problem)) from None
        except BaseException:
            self.close()
            raise

    def build_c(self) -> None:
        """Build with make and the flags of ThreadSanitizer; without a Makefile, by MAKEFILE_OF_SOURCES.

        Raises BadSubject, ConfigError.
        """
        # The conditions with bad luck: CFLAGS includes this file in each source.
        copy(UNLUCKY / "ewe_unlucky.h", self.directory / "ewe_unlucky.h")
        if not (self.directory / "Makefile").exists():
            (self.directory / "Makefile").write_text(MAKEFILE_OF_SOURCES)
        name = self.sources.program.name
        (self.directory / name).unlink(missing_ok=True)  # make would take an existing program for finished
        self.submission.build(f"make -f Makefile CFLAGS={shlex.quote(CFLAGS)} {shlex.quote(name)}")
        self.take_program(self.directory / name)

    def build_go(self) -> None:
        """Build with eweCond, a condition with bad luck, in place of sync.Cond.

        If the program does not build with eweCond, build it as it is. Raises BadSubject, ConfigError.
        """
        command = "go build -race -o sanitized ."
        original_texts = {
            file: file.read_text(errors="surrogateescape") for file in self.directory.glob("*.go")
        }
        for file, text in original_texts.items():
            for pattern, replacement in GO_REPLACEMENTS:
                text = pattern.sub(replacement, text)
            file.write_text(text, errors="surrogateescape")
        copy(UNLUCKY / "ewe_unlucky.go", self.directory / "ewe_unlucky.go")
        try:
            self.submission.build(command)
        except BadSubject:  # the fault may be that of the replacement, and not the student's
            (self.directory / "ewe_unlucky.go").unlink()
            for file, text in original_texts.items():
                file.unlink(missing_ok=True)  # the build has run as the student: no link may lead elsewhere
                file.write_text(text, errors="surrogateescape")
            self.submission.build(command)
        self.take_program(self.program)

    def take_program(self, built: Path) -> None:
        """Check that the built program contains the detector; rename it to `program`. Raises BadSubject."""
        # A Makefile of the student may make no program of this name, or a FIFO in its place.
        if not built.is_file():
            raise BadSubject(f"the build has made no program {built.name}")
        with built.open("rb") as file:
            program = file.read(MAX_PROGRAM_BYTES)
        if DETECTOR[self.sources.language] not in program:
            raise BadSubject(
                "the Makefile does not use $(CFLAGS), so the race detector is not in the program"
            )
        if built != self.program:
            built.rename(self.program)

    def mention_in_kept_texts(self) -> str:
        """Return the first line that names the race detector, of the texts that the compiler has kept; "" for none.

        mention_in_sources() searches the sources. This method finds a name that a macro or an assembler's line
        hides there. The compiler keeps its texts by -save-temps (CFLAGS); Go keeps none.
        """
        # server.i is the text after the preprocessor, server.s the assembler's text.
        for file in sorted(self.directory.glob("*.[is]")):
            pattern = NAMES_DETECTOR["c"] if file.suffix == ".i" else CALLS_DETECTOR
            by = "the preprocessor" if file.suffix == ".i" else "the compiler"
            try:
                text = read_regular(file, MAX_TEXT_BYTES).decode(errors="replace")
            except OSError:
                return f"after {by}, {file.name} is not a regular file"
            if found := pattern.search(text):
                return f"after {by}, `{line_at(text, found.start())[:MAX_LINE_CHARS]}`"
        return ""

    def close(self) -> None:
        self.submission.close()

    def report_files(self) -> list[Path]:
        """Return the files into which the detector has written, one for each process with a report."""
        return sorted(self.report_file.parent.glob(f"{self.report_file.name}.*"))

    def reported_text(self) -> str:
        """Return what the detector has written. A file that is no longer a regular one is left out.

        The server can write other files of such names, so the smallest ones come first: a report has a few KB.
        """
        sizes = {}
        for file in self.report_files():
            with suppress(OSError):
                sizes[file] = min(file.lstat().st_size, MAX_REPORT_BYTES)
        texts, left_bytes = [], MAX_REPORTED_BYTES
        for file in sorted(sizes, key=sizes.__getitem__):
            with suppress(OSError):
                text = read_regular(file, min(MAX_REPORT_BYTES, left_bytes))
                left_bytes -= len(text)
                texts.append(text.decode(errors="replace"))
        return "\n".join(texts)

    def forget_reports(self) -> None:
        """Remove the reports of an earlier run of the program."""
        for file in self.report_files():
            with suppress(OSError):
                file.unlink()

    def reports(self, text: str) -> list[RaceReport]:
        """Return the reports of the detector in the output of the program, each only once."""
        # dict.fromkeys() drops repeated reports, and keeps the order.
        found = [parse(block, self.directory) for block in text.split(REPORT_BORDER)]
        return list(dict.fromkeys(report for report in found if report is not None))


def has_detector(language: str) -> bool:
    """Return whether this machine can build and run an empty program with a race detector."""
    with tempfile.TemporaryDirectory() as scratch:
        if language == "c":
            (Path(scratch) / "empty.c").write_text("int main(void) { return 0; }\n")
            build = ["cc", "-fsanitize=thread", "-o", "empty", "empty.c"]
        else:
            (Path(scratch) / "empty.go").write_text("package main\n\nfunc main() {}\n")
            build = ["go", "build", "-race", "-o", "empty", "empty.go"]
        # Go builds the detector with a C compiler.
        if shutil.which(build[0]) is None or shutil.which("make" if language == "c" else "cc") is None:
            return False
        try:
            for command in (build, ["./empty"]):
                subprocess.run(command, cwd=scratch, capture_output=True, check=True, timeout=BUILD_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError):
            return False
    return True


def parse(block: str, directory: Path) -> RaceReport | None:
    """Return the report of a block of output; None if there is none, or not about files of a directory.

    block: the text between two lines REPORT_BORDER. A data race counts if both of its places are in the directory.
    """
    kind = KIND_C.search(block)  # None for a report of Go, which is always a data race
    if IN_HANDLER in block or (kind is None and "WARNING: DATA RACE" not in block):
        return None
    found = tuple(accesses(block, directory))
    if kind is None:
        return RaceReport(DATA_RACE, found) if len(found) == 2 else None
    if kind[1].startswith(DATA_RACE):
        variable = LOCATION_C.search(block)
        return RaceReport(DATA_RACE, found, variable[1] if variable else "") if len(found) == 2 else None
    # Another fault, such as two locks in two orders: the first place of each stack, but where a thread was created.
    positions = [
        next(positions_c(section, directory), None)
        for section in SECTIONS.split(block)
        if "created" not in section
    ]
    found = tuple(dict.fromkeys(position for position in positions if position is not None))
    return RaceReport(kind[1], found[:2]) if found else None


def accesses(block: str, directory: Path) -> Iterator[Access]:
    """Yield the accesses of a data race, each with its first place in the directory.

    block: one report of a detector. Its sections are separated by empty lines. An access is a section: a head, then
    a stack.
    """
    for section in SECTIONS.split(block):
        lines = section.strip("\n").splitlines()
        for index, line in enumerate(lines):  # the stack of an access follows its head
            # head[3]: the held locks, none without this group. Go's detector does not report locks: None
            if head := ACCESS_C.match(line):
                yield from first(positions_c("\n".join(lines[index + 1 :]), directory), head, head[3] or "")
            elif head := ACCESS_GO.match(line):
                yield from first(positions_go(lines[index + 1 :], directory), head, None)


def first(positions: Iterator[Access], head: re.Match[str], locks: str | None) -> Iterator[Access]:
    """Yield the first place, if there is one, as the access that a head describes (ACCESS_C, ACCESS_GO)."""
    for position in islice(positions, 1):
        yield replace(position, what=head[1].lower(), thread=head[2], locks=locks)


def positions_c(text: str, directory: Path) -> Iterator[Access]:
    """Yield the places of a stack of ThreadSanitizer that are in the directory; each is one line."""
    for line in text.splitlines():
        if frame := FRAME_C.match(line):
            function, file, number = frame.groups()
            if position := position_in(directory, file, int(number), f"{function}()"):
                yield position


def positions_go(lines: list[str], directory: Path) -> Iterator[Access]:
    """Yield the places of a stack of Go that are in the directory; each is two lines, function and position."""
    function = ""
    for line in lines:
        if name := FUNCTION_GO.match(line):
            function = f"{name[1].removeprefix('main.')}()"
        elif found := POSITION_GO.match(line):
            file, number = found.groups()
            if position := position_in(directory, file, int(number), function):
                yield position


def position_in(directory: Path, file: str, number: int, function: str) -> Access | None:
    """Return line `number` of a source file as an Access; None if the file is not directly in the directory.

    The frame of a stack gives only a function, a file and a line. first() fills in what, thread and locks.
    """
    # The result is `file` itself if that is an absolute path.
    path = directory / file
    # The grader has added ewe_unlucky.h or ewe_unlucky.go to the student's files.
    if path.parent != directory or path.name.startswith("ewe_unlucky"):
        return None
    return Access(
        what="",
        thread="a thread",
        position=f"{path.name}:{number}",
        function=function,
        line=source_line(path, number),
        locks=None,
    )


def source_line(path: Path, number: int) -> str:
    """Return a line of a source file, without its indentation; "" if there is none, or the file cannot be read."""
    try:
        # Not splitlines(), as in line_at().
        lines = read_regular(path).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return lines[number - 1].strip()[:MAX_LINE_CHARS] if 0 < number <= len(lines) else ""


@contextmanager
def sanitized_build(sources: SourceFiles, limits: SandboxLimits, parent: str) -> Iterator[SanitizedBuild]:
    """Yield a program that is built with a race detector; remove it at the end. Raises as SanitizedBuild does."""
    build = SanitizedBuild(sources, limits, parent)
    try:
        yield build
    finally:
        build.close()
