"""The trace: what happens to each connection, and which worker does it. Each event is one line of text.

    SECONDS EVENT CONNECTION WORKER TEXT
    8123.551207 accepted 7120.4 7120/7120 127.0.0.1:40112 backlog=0.000
    8123.551311 runs 7120.4 7120/7131
    8123.551330 waits 7120.4 7120/7131 request
    8123.551502 goes-on 7120.4 7120/7131
    8123.551540 request 7120.4 7120/7131 GET /a.html
    8123.551590 answered 7120.4 7120/7131 200 files
    8123.551598 sends 7120.4 7120/7131
    8123.551640 sent 7120.4 7120/7131 1280

SECONDS is the monotonic clock, which all processes of a machine share. CONNECTION is PID.NUMBER; "-": none. WORKER
is the process and the thread, as the kernel numbers them: PID/TID. The events:

    model       a process begins to serve           the model's name, and its description
    stops       a process ends
    workers     a pool has more threads, or fewer   how many
    begins      a worker begins: a thread or a process
    ends        it ends; `stops` ends all workers of a process
    refused     a connection is not accepted        the client, and the setting whose limit was reached;
                                                    overload: its request was dropped from the queue
    lost        events could not be written         how many of all processes, up to now

    accepted    the server has a new connection     the client's address and port; backlog=SECONDS in the backlog
    runs        the worker takes the conversation, at its begin or after a pause
    parked      the conversation pauses, and leaves its worker     the event that it waits for
    ready       that event has happened: the conversation is in the queue for a worker
    waits       the conversation waits              for the next request, for bytes, a program, a server, or a call
    goes-on     that wait is over                   "", timeout, or left
    request     the head of a request is complete   the method and the target
    answered    the site has a response             the status, and the feature that answers
    sends       a part of the response begins       the first one is the first byte of the response
    sent        that part is in the kernel          its bytes
    program     a program was started for it        its pid
    exited      that program has ended              its pid
    ended       the conversation has ended          why
    closed      the connection is closed

The text of `accepted` says for how long the connection was in the kernel's listen backlog before. Only Linux knows
this time, and not for a Unix socket (ewe.streams.backlog). Otherwise the text is the address and the port alone.

A conversation that waits, and is not parked, occupies its worker. That is the difference between the models: the
page of `ewe-watch` shows it.

X-Switch writes these (ewe/xswitch/switch/trace.py). CONNECTION is a request of X-Switch, and ENGINE a name such as
7300.2. SERVER is the connection of ewe that asks, "-" if another server does.

    x-begins    X-Switch's main process begins to serve         x-stops: it ends
    x-engine    an engine is begun for a user       ENGINE USER LANGUAGE
    x-process   its process runs                    ENGINE PID
    x-ended     the engine is closed                ENGINE, and why
    x-request   a script is asked for               SERVER USER LANGUAGE, and the path of the script
    x-queued    the request waits for an engine     how many requests wait
    x-runs      an engine takes the request         ENGINE
    x-left      its client has left, and the engine still runs the script
    x-answered  the request has ended               "ok", "left", or a status and the cause

The database daemon writes these (ewe/database/traced.py). CONNECTION is a request of the daemon. In db-opened,
db-closed, db-runs and db-answered, WORKER is the thread that has the connection to the database.

    db-begins   the daemon begins to serve          its databases; db-stops: it ends
    db-opened   a connection to a database is open  DATABASE
    db-closed   it is closed
    db-request  a statement is asked for            SERVER, the account that asks, DATABASE
    db-runs     a connection takes it               the statement without its values
    db-answered the statement has ended             milliseconds, and "ok" or the kind of error
    db-lost     a process with connections ended    its pid

The system call is the largest part of an event's cost. A worker therefore writes events that come directly after
each other with one write(2):

    hold(goes-on)  write(request) │ a feature's handler │ hold(answered)  write(sends) │ send(2) │ hold(sent) ...
    hold(accepted)  hold(runs)  write(waits) │ recv(2) │ ...

hold() keeps a line in the memory of its thread, and the next write() writes it before its own line. An event may be
held only if ewe's own code leads from it to the next write(), and nothing on this way can wait: no system call that
blocks, no handler, no program. (The access log is the exception: a log that blocks is not seen.) A reader therefore
sees the event by which a worker began to wait, and kill -9 loses no event that a wait has followed.
streams/traced.py decides which events are held.

Lines go to a file that is opened for appending, so lines of several processes and threads are never mixed. The
lines of one worker are in order; a held line may come after later lines of other workers. A forked child writes to
the same file. The file may be a named pipe (FIFO), from which another program reads the events live. A full pipe, a
full disk and the limit MAX_BYTES lose events, and never stop a conversation. The lost events are counted, and the
next line that can be written is `lost`. The count is in memory that all processes of a program share. It is no
exact one: two processes may count at the same time, and a full disk may take the first of the lines that are
counted. It may also take the beginning of a line. That part stays, as a separate line before the line `lost`.

Another program that writes to the same file inherits the descriptor (`fd://N`), so that it needs no right to open
the file, and no reader of a pipe at its start.

The file belongs to the account that starts the server, and no other account may read it (mode 0600). Root follows
no symbolic link that another account may have made (ewe.log_files.path_to_open). A file that has events already
gets a warning: they and the new ones would be one picture.

Without the setting `trace` no part of the server calls this module.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import stat
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from ewe.log_files import APPEND_FLAGS, path_to_open

MAX_BYTES = 256 * 1024 * 1024  # the size at which a trace file takes no more events
MAX_TEXT_CHARS = 430  # of one event: its line has at most 500
MAX_HELD_CHARS = 1500  # with one more event below PIPE_BUF, so that a write to a pipe is not split
NONE = "-"  # stands for a name that is not known
INHERITED = "fd://"  # before the number of an inherited descriptor, in place of a path
CHECK_EVERY = 256  # writes of a process between two looks at the file's size


class RunningStream(Protocol):
    """The stream of a conversation that a thread runs (ewe.streams.traced). complete: see there."""

    name: str
    complete: bool


class CallingThread:
    """A thread: its name, its held lines, and the stream whose conversation it runs (None: it runs none)."""

    __slots__ = ("held", "name", "stream")

    def __init__(self) -> None:
        self.name = f"{os.getpid()}/{threading.get_native_id()}"
        self.held = ""
        self.stream: RunningStream | None = None

    @property
    def connection(self) -> str:
        """The name of the connection whose conversation this thread runs; "-": none."""
        return self.stream.name if self.stream is not None else NONE


class Threads(threading.local):
    """Holds one object for each thread: a thread-local attribute costs three times as much as that object's own."""

    def __init__(self) -> None:
        self.calling = CallingThread()


class Trace:
    """Writes the events of this server."""

    def __init__(self, path: str) -> None:
        """Open a file, a named pipe that another program reads, or an inherited descriptor, fd://N.

        Raises OSError.
        """
        if path.startswith(INHERITED):
            number = path.removeprefix(INHERITED)
            # 10 digits may not fit into a C int
            is_number = number.isascii() and number.isdecimal() and len(number) < 10
            self.file = int(number) if is_number else -1
            os.set_inheritable(self.file, False)  # raises OSError if there is no such descriptor
        else:
            target, flag = path_to_open(path)  # flag: O_NOFOLLOW, or 0
            self.file = os.open(target, APPEND_FLAGS | flag, 0o600)
        about = os.fstat(self.file)
        self.is_file = stat.S_ISREG(about.st_mode)
        # The program that passed the descriptor has written the events of an inherited file, in this run
        self.had_events = self.is_file and about.st_size > 0 and not path.startswith(INHERITED)
        self.threads = Threads()
        shared = memoryview(mmap.mmap(-1, 16)).cast("Q")  # two numbers, shared with forked children
        self.lost, self.cut = shared[:1], shared[1:]  # how many events; whether the last line has no end
        self.reported = 0  # the number in the last line `lost`
        self.until_check = CHECK_EVERY  # writes until the next look at the size of the file
        self.connections = itertools.count(1)
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Forget the parent's thread, in a forked child."""
        self.threads = Threads()

    @property
    def worker(self) -> CallingThread:
        """The calling thread."""
        return self.threads.calling

    def new_connection(self) -> str:
        """Return the name of another connection."""
        return f"{os.getpid()}.{next(self.connections)}"

    def hold(self, event: str, connection: str, text: object = "") -> None:
        """Keep one event of a connection until this thread's next write(), which follows before any wait.

        text: short, and by the server itself, since it is not checked.
        """
        worker = self.threads.calling
        line = f"{monotonic():.6f} {event} {connection} {worker.name} {text}\n"
        worker.held += line
        if len(worker.held) > MAX_HELD_CHARS:
            self.write_lines(worker, "")

    def writer(self, may_hold: bool) -> Callable[..., None]:
        """Return hold() if the event's line may be held until this thread's next event; else write()."""
        return self.hold if may_hold else self.write

    def write(self, event: str, connection: str, text: object = "") -> None:
        """Write one event of a connection, after the held ones. It never raises, and never waits."""
        text = str(text)
        if len(text) > MAX_TEXT_CHARS or not text.isprintable():
            text = checked(text)
        worker = self.threads.calling
        self.write_lines(worker, f"{monotonic():.6f} {event} {connection} {worker.name} {text}\n")

    def write_lines(self, worker: CallingThread, more: str) -> None:
        """Write the held lines of the calling thread, and then `more`."""
        # A signal handler may write events, too. It runs before or after these two statements, and not between
        # them, since they call nothing.
        lines = worker.held + more
        worker.held = ""
        try:
            if self.lost[0] != self.reported or self.until_check <= 0:
                self.note_losses()
            self.until_check -= 1
            self.append(lines.encode("utf-8", "backslashreplace"))
        except OSError:
            self.lost[0] += lines.count("\n")

    def append(self, lines: bytes) -> None:
        """Write lines by one system call. Raises OSError, also if the disk took only their beginning."""
        if os.write(self.file, lines) < len(lines):
            self.cut[0] = 1
            raise OSError

    def note_losses(self) -> None:
        """Check the file's size, and report lost events. Raises OSError if events are still lost."""
        self.until_check = CHECK_EVERY
        if self.is_file and os.fstat(self.file).st_size >= MAX_BYTES:
            self.until_check = 0
            raise OSError
        if (lost := self.lost[0]) != self.reported:
            end = "\n" if self.cut[0] else ""
            self.append(f"{end}{monotonic():.6f} lost - {self.worker.name} {lost}\n".encode())
            self.cut[0] = 0
            self.reported = lost


def checked(text: str) -> str:
    """Return a text of at most MAX_TEXT_CHARS, without line breaks: a file's name may contain a false event."""
    text = text[:MAX_TEXT_CHARS]
    # An escape has up to ten characters.
    return text if text.isprintable() else escaped(text)[:MAX_TEXT_CHARS]


def escaped(text: str) -> str:
    """Return a text in which unprintable characters are written as in Python's literals."""
    # Not by a codec: its module may not be readable any more, once root is dropped
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def word(text: str) -> str:
    """Return a name as one word of an event: without spaces, and not empty."""
    return "_".join(text.split()) or NONE


TRACES: dict[str, Trace] = {}


def trace_at(path: str) -> Trace:
    """Return the trace that writes to this file, always the same object. Raises OSError."""
    if path not in TRACES:
        TRACES[path] = Trace(path)
    return TRACES[path]


def failure_to_open(path: str, reason: OSError) -> str:
    """Return the line for an error of trace_at()."""
    why = "no program reads this pipe" if reason.errno == errno.ENXIO else reason.strerror
    return f"cannot write {path!r}: {why} (trace)"


def earlier_run_warning(path: str) -> str:
    """Return a warning if the file had events when it was opened, else "". Only the first call returns it."""
    trace = trace_at(path)
    if not trace.had_events:
        return ""
    trace.had_events = False
    return (
        f"trace: {path} has events of an earlier run, and the new ones follow them; remove it before a start"
    )


def exposure_warning(path: str) -> str:
    """Return a warning if other accounts may read the file, else ""."""
    try:
        about = os.stat(path)
    except OSError:
        return ""
    if stat.S_ISREG(about.st_mode) and about.st_mode & 0o044:
        return f"trace: other accounts may read {path}, and so see what all users run: chmod 600 {path}"
    return ""
