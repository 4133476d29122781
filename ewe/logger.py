"""The access log and the error log.

ewe.log_files writes the lines. Control characters are escaped (\\x1b, \\n), so that no client can forge a line.

Each process has one pair of logs, `errors` and `access`. open_logs() opens them once.

**Every request writes a line of the access log**, so the format is compiled (AccessLog.compile). The parts that
depend only on the request are filled in once and cached for the Request, which many exchanges may share. For each
line, only the rest is filled in: time, status, size, duration.
"""

from __future__ import annotations

import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ewe.http.dates import MONTHS
from ewe.http.messages import Request, RequestCache, Response
from ewe.http.virtual_hosts import VirtualHost, VirtualHosts
from ewe.log_files import PIPE_BUF, STANDARD_ERROR, STANDARD_OUTPUT, LogFile, has_room, open_log

LEVELS = {"error": 0, "warning": 1, "info": 2, "debug": 3}
NONE: Mapping[str, int] = {}
# Characters of a client's value, if a JSON line must be short. JSON writes one character as up to six (\u00e9).
SHORT_VALUE_CHARS = 120


class Escapes(dict[int, str]):
    """A table for str.translate(), which runs in C: a client may send 30,000 characters to be escaped.

    Quotes and backslashes get a backslash, other characters that match the pattern become \\xHH, like Apache's, or
    \\uHHHH and \\UHHHHHHHH if they need more digits, like Python's.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)
        super().__init__((code, self[code]) for code in range(256))

    def __missing__(self, code: int) -> str:
        """Return the text for one character. A surrogate from U+DC80 to U+DCFF represents a byte of a file name."""
        character = chr(code)
        if self.pattern.match(character) is None:
            return character
        if character in '"\\':
            return "\\" + character
        if 0xDC80 <= code <= 0xDCFF:
            return f"\\x{code - 0xDC00:02x}"
        return f"\\x{code:02x}" if code < 0x100 else ascii(character)[1:-1]


UNPRINTABLE = Escapes(r'[^\x20-\x7e]|["\\]')
UNPRINTABLE_IN_MESSAGE = Escapes(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def escaped(text: str, escapes: Escapes = UNPRINTABLE) -> str:
    """Return a text with the characters that match the pattern of `escapes` escaped."""
    # Nearly every text is printable ASCII. These four checks take a quarter of the time of the pattern's search.
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return text.translate(escapes) if escapes.pattern.search(text) else text


class ErrorLog:
    """Messages for the administrator: error, warning, info, debug. Messages above the level are dropped."""

    def __init__(self, path: str = "-", level: str = "info", open_files: Mapping[str, int] = NONE) -> None:
        """Open path ("-": standard error, "off": no log). open_files: as in LogFile. Raises OSError."""
        self.file = open_log(path, STANDARD_ERROR, open_files)
        self.level = LEVELS[level]

    def write(self, level: str, message: str) -> None:
        """Write one line: time, pid, level, message."""
        if LEVELS[level] > self.level or self.file.descriptor < 0:
            return
        self.file.write(self.line(level, message), level)

    def line(self, level: str, message: str) -> str:
        """Return the line of a message. The journal and a log daemon add the time and the process id themselves."""
        text = escaped(message, UNPRINTABLE_IN_MESSAGE)
        if self.file.reader_adds_time:
            return f"{level}: {text}\n"
        return f"{time.strftime('%Y-%m-%d %H:%M:%S')} [{os.getpid()}] {level}: {text}\n"

    def tell(self, message: str) -> None:
        """Write a message for the administrator to this log or, if that fails, to standard error.

        The reports of lost lines are such messages. A failure here is therefore not counted as a lost line: it
        would cause the next report. Nothing is written if the log is off, or if writing would wait for a slow
        reader.
        """
        if self.file.descriptor < 0:
            return
        line = self.line("error", message)
        if not self.file.try_to_write(line, "error") and self.file.descriptor != STANDARD_ERROR:
            try:
                if has_room(STANDARD_ERROR):
                    os.write(STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))
            except OSError:
                pass  # standard error cannot be written either: the message is lost

    def error(self, message: str) -> None:
        """Write about a failure that the administrator must repair."""
        self.write("error", message)

    def warning(self, message: str) -> None:
        """Write about a failure that the server could handle."""
        self.write("warning", message)

    def info(self, message: str) -> None:
        """Write about an action of the server, or a request that it refused."""
        self.write("info", message)

    def debug(self, message: str) -> None:
        """Write a message that only helps to find a fault."""
        self.write("debug", message)

    def exception(self, message: str, fault: BaseException | None = None) -> None:
        """Write an error with the traceback of `fault`, by default the current exception: a fault in ewe itself."""
        self.error(message)
        fault = sys.exception() if fault is None else fault
        for line in traceback_of(fault).splitlines():
            self.error("| " + line)


def load_traceback() -> None:
    """Load the modules that format a traceback. Python loads some of them with the first one that it formats."""
    try:
        # Python looks for a similar name, and that takes one more module
        raise NameError("no name", name="no_name")
    except NameError as fault:
        traceback_of(fault)


def traceback_of(fault: BaseException | None) -> str:
    """Return the traceback of a fault; the fault alone if Python cannot load the modules that format it.

    A process that has given up root may not be allowed to read Python's directories. Its log still names the fault.
    """
    try:
        import traceback

        return "".join(traceback.format_exception(fault))
    except Exception as reason:
        return f"{fault!r} (no traceback: {reason})"


# ---------------------------------------------------------------------------------------------------------
# The access log

# "auto" and "short" have no format here: AccessLog chooses or writes them. The empty text is a valid format.
FORMATS = {
    "auto": "",
    "short": "",
    "common": '%h %l %u %t "%r" %>s %b',
    "combined": '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" %D %{model}n %{worker}n',
}


# How an exchange has ended, as Apache's %X writes it: its response was aborted; it is complete, and the connection
# is kept, or closed
ABORTED, KEPT_OPEN, CLOSED = "X", "+", "-"


class AccessLogEntry:
    """The data of one line of the access log."""

    __slots__ = ("client", "ending", "micros", "request", "response", "sent", "server", "user")

    def __init__(
        self,
        client: str,
        server: tuple[str, int],
        request: Request,
        response: Response,
        sent: int,
        micros: int,
        ending: str,
        user: str = "",
    ) -> None:
        self.client = client
        self.user = user  # the name that a guard has authenticated
        self.server = server  # (address, port) of the listening socket
        self.request = request
        self.response = response
        self.sent = sent  # bytes of the body
        self.ending = ending  # ABORTED, KEPT_OPEN or CLOSED
        self.micros = micros  # microseconds from the request's head to the end of the response


Getter = Callable[[AccessLogEntry], object]


class FormattedTime:
    """The formatted time for the access log. timestamp() updates it once a second."""

    second = -1
    text = ""


def timestamp() -> str:
    """Return [20/Nov/2026:11:12:13 +0000]."""
    second = int(time.time())
    if second != FormattedTime.second:
        local = time.localtime(second)
        clock = time.strftime("%H:%M:%S %z", local)
        FormattedTime.text = f"[{local.tm_mday:02}/{MONTHS[local.tm_mon - 1]}/{local.tm_year}:{clock}]"
        FormattedTime.second = second
    return FormattedTime.text


# The text for each letter of a format. The texts of OF_REQUEST depend only on the request, and are cached. The user
# depends on more, but most requests have no user. The text of a request with a user is not cached.
OF_REQUEST: dict[str, Callable[[Request], str]] = {
    "r": lambda request: escaped(request.line),
    "m": lambda request: escaped(request.method),
    "U": lambda request: escaped(request.path.encode("utf-8", "surrogateescape").decode("latin-1")),
    "q": lambda request: "?" + escaped(request.query) if request.query is not None else "",
    "H": lambda request: request.protocol,
    "v": lambda request: escaped(request.host) or "-",
    "l": lambda request: "-",
    "u": lambda request: "-",
}
USER = OF_REQUEST["u"]
OF_EXCHANGE: dict[str, Getter] = {
    "h": attrgetter("client"),
    "a": attrgetter("client"),
    "t": lambda exchange: timestamp(),
    "s": attrgetter("response.status"),
    "b": lambda exchange: exchange.sent or "-",
    "B": attrgetter("sent"),
    "D": attrgetter("micros"),
    "T": lambda exchange: exchange.micros // 1_000_000,
    "p": lambda exchange: exchange.server[1],
    "P": lambda exchange: os.getpid(),
    "X": attrgetter("ending"),
}
NOTES = {"model": "-", "worker": "0"}  # for %{model}n and %{worker}n, until name_worker() is called
DIRECTIVE = re.compile(r"%(?:[<>])?(?:\{([^}]*)\})?([a-zA-Z%])")


class AccessLog:
    """The log with one line for each request, written after the response: in Apache's format, as JSON, or short.

    writes: the log is on. enabled: it is on, or the requests are counted, so an exchange needs its AccessLogEntry.
    """

    def __init__(
        self,
        path: str = "off",
        form: str = "combined",
        notes: Mapping[str, str] = NOTES,
        open_files: Mapping[str, int] = NONE,
        file: LogFile | None = None,
    ) -> None:
        """Open path ("-": standard output, "off": no log). open_files: as in LogFile.

        file: the open file of path, if a log in another format has opened it. Raises OSError; ValueError for an
        invalid format.
        """
        self.notes = dict(notes)
        self.form = form
        if form == "auto":
            self.form = "short" if path == "-" and os.isatty(STANDARD_OUTPUT) else "combined"
        self.compile()
        self.file = file or open_log(path, STANDARD_OUTPUT, open_files)
        self.files = [self.file]
        self.writes = self.enabled = self.file.descriptor >= 0

    def compile(self) -> None:
        """Compile the format into parts and getters. Raises ValueError."""
        self.parts, self.getters = compile_format(FORMATS.get(self.form, self.form), self.notes)
        # The part of a line that depends only on the request
        self.templates: RequestCache[str] = RequestCache()

    def name_worker(self, model: str, worker: str) -> None:
        """Set the texts for %{model}n and %{worker}n. Each new worker process calls this."""
        self.notes |= {"model": model, "worker": worker}
        self.compile()

    def write(self, exchange: AccessLogEntry) -> None:
        """Write the line of one exchange."""
        if self.form == "short":
            from ewe.short_line import short_line

            line, status = escaped(exchange.request.line), exchange.response.status
            aborted = exchange.ending == ABORTED
            self.file.write(
                short_line(line, exchange.client, status, exchange.sent, exchange.micros, aborted)
            )
            return
        if self.form == "json":
            line = json_line(exchange, self.notes)
            # A pipe takes at most PIPE_BUF bytes at once (each character of `line` is one byte), so LogFile cuts a
            # longer line off. The rest would not be JSON.
            if len(line) > PIPE_BUF and self.file.may_block:
                line = json_line(exchange, self.notes, max_chars=SHORT_VALUE_CHARS)
            self.file.write(line)
            return
        request = exchange.request
        template = self.templates.get(request)
        # A template contains the user, who does not depend on the request alone. The cached ones have no user.
        if template is None or exchange.user:
            template = self.template_for(request, exchange.user)
            if not exchange.user:
                self.templates[request] = template
        self.file.write(template % tuple([get(exchange) for get in self.getters]))

    def template_for(self, request: Request, user: str) -> str:
        """Return the line, with %s in place of each part that depends on more than the request and the user."""
        name = escaped(user.encode().decode("latin-1")) or "-"
        return "".join([
            part if isinstance(part, str) else (name if part is USER else part(request)).replace("%", "%%")
            for part in self.parts
        ])  # fmt: skip


class SiteLog(NamedTuple):
    """The settings of one site's access log. form: its format, as in AccessLog."""

    host: VirtualHost
    path: str
    form: str


class SiteLogs(AccessLog):
    """The access logs of several sites. Each exchange is written to the log of its site. Sites may share a log."""

    def __init__(
        self, sites: Sequence[SiteLog], notes: Mapping[str, str], open_files: Mapping[str, int]
    ) -> None:
        """Open the log of each site. Raises OSError, ValueError."""
        logs: dict[tuple[str, str], AccessLog] = {}
        # Formats may share a file: its lost lines count once
        files: dict[str, LogFile] = {}
        self.notes = dict(notes)
        try:
            for _, path, form in sites:
                if (path, form) not in logs:
                    log = logs[path, form] = AccessLog(path, form, notes, open_files, files.get(path))
                    files[path] = log.file
        except (OSError, ValueError):
            for file in files.values():
                file.close()
            raise
        self.logs = list(logs.values())
        self.files = list(files.values())
        self.file = self.files[0]
        self.hosts = VirtualHosts([(host, logs[path, form]) for host, path, form in sites])
        self.writes = self.enabled = any(log.writes for log in self.logs)

    def name_worker(self, model: str, worker: str) -> None:
        """Set the texts of all logs."""
        self.notes |= {"model": model, "worker": worker}
        for log in self.logs:
            log.name_worker(model, worker)

    def write(self, exchange: AccessLogEntry) -> None:
        """Write the line of one exchange to its site's log."""
        log = self.hosts.choose(exchange.request.host, exchange.server)
        if log.writes:
            log.write(exchange)


def compile_format(
    form: str, notes: Mapping[str, str]
) -> tuple[list[str | Callable[[Request], str]], list[Getter]]:
    """Return the parts of a format (texts, and functions of a request), and the getters for its %s."""
    parts: list[str | Callable[[Request], str]] = []
    getters: list[Getter] = []
    position = 0
    for match in DIRECTIVE.finditer(form):
        parts.append(form[position : match.start()].replace("%", "%%"))
        position = match.end()
        argument, letter = match.groups()
        of_request = getter_of_request(letter, argument)
        if letter == "%":
            parts.append("%%")
        elif letter == "n" and argument in notes:
            parts.append(notes[argument].replace("%", "%%"))
        elif of_request is not None:
            parts.append(of_request)
        else:
            parts.append("%s")
            getters.append(getter_of_exchange(match[0], letter, argument))
    if "%" in DIRECTIVE.sub("", form):
        raise ValueError(f"log format: a % without a known letter in {form!r}")
    parts.append(form[position:] + "\n")
    joined: list[str | Callable[[Request], str]] = []
    for are_texts, neighbours in groupby(parts, lambda part: isinstance(part, str)):
        # A new head costs a step for each part, so neighbouring texts become one part.
        same_kind = list(neighbours)
        joined += ["".join(map(str, same_kind))] if are_texts else same_kind
    return joined, getters


def getter_of_exchange(directive: str, letter: str, argument: str | None) -> Getter:
    """Return the function that gets the text of a directive from the exchange. Raises ValueError if it is unknown.

    directive: the directive as it is written, for the message. letter, argument: as in getter_of_request().
    """
    if letter == "o" and argument:
        return field_of_response(argument)
    if letter not in OF_EXCHANGE or argument:
        raise ValueError(f"log format: {directive} is unknown")
    return OF_EXCHANGE[letter]


def getter_of_request(letter: str, argument: str | None) -> Callable[[Request], str] | None:
    """Return the function that gets a directive's text from the request; None if it needs more than the request.

    letter, argument: the two parts of a directive in the format. %r has the letter r and no argument. %{Referer}i
    has the letter i and the argument Referer.
    """
    if letter == "i" and argument:
        name = argument.lower()
        return lambda request: escaped(request.values.get(name) or "-")
    return None if argument else OF_REQUEST.get(letter)


def field_of_response(name: str) -> Getter:
    """Return the function that gets the text of %{Name}o, a field of the response."""
    lower = name.lower()
    return lambda exchange: escaped(exchange.response.get(lower) or "-")


def json_line(exchange: AccessLogEntry, notes: Mapping[str, str], max_chars: int | None = None) -> str:
    """Return one line of JSON. Values from the client are truncated to `max_chars` characters; None: no limit.

    notes: the values of %{name}n in the format, such as the name of the worker.
    """
    from json import dumps

    request, response = exchange.request, exchange.response

    def shortened(text: str | None) -> str | None:
        return text[:max_chars] if text else None

    return (
        dumps(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "client": exchange.client,
                "user": shortened(exchange.user.encode().decode("latin-1")),
                "method": request.method[:max_chars],
                "target": request.target[:max_chars],
                "protocol": request.protocol,
                "status": response.status,
                "bytes": exchange.sent,
                "complete": exchange.ending != ABORTED,
                "micros": exchange.micros,
                "referer": shortened(request.values.get("referer")),
                "agent": shortened(request.values.get("user-agent")),
                "host": shortened(request.host),
                "model": notes["model"],
                "worker": notes["worker"],
                "pid": os.getpid(),
            }
        )
        + "\n"
    )


errors = ErrorLog()
access = AccessLog()
# Counts the exchanges, beside the access log (setting `status`). The second argument is the feature that answered.
count_exchange: Callable[[AccessLogEntry, str], None] | None = None


def count_with(function: Callable[[AccessLogEntry, str], None]) -> None:
    """Have each exchange of this process counted by a function, which many threads may call at once."""
    global count_exchange
    count_exchange = function
    access.enabled = True  # an exchange needs its AccessLogEntry from now on


def open_logs(
    logfile: str,
    loglevel: str,
    access_log: str,
    log_format: str,
    sites: Sequence[SiteLog] = (),
) -> None:
    """Open both logs in place of the open ones.

    sites: the access logs of several sites, instead of access_log. Sites that all have the same log need no choice
    for each line: it is an AccessLog then, and no SiteLogs. Raises OSError; ValueError for an invalid format.
    """
    global errors, access
    open_files = {file.path: file.descriptor for file in (errors.file, *access.files)}
    new_errors = ErrorLog(logfile, loglevel, open_files)
    new_access: AccessLog
    try:
        logs = {(path, form) for _, path, form in sites} or {(access_log, log_format)}
        if len(logs) > 1:
            new_access = SiteLogs(sites, access.notes, open_files)
        else:
            [(path, form)] = logs
            new_access = AccessLog(path, form, access.notes, open_files)
    except (OSError, ValueError):
        new_errors.file.close()
        raise
    # A new log takes over the old one's descriptor number, so that a thread that is writing meets no closed file.
    new_errors.file.take_over(errors.file)
    if len(access.files) == len(new_access.files) == 1:
        new_access.file.take_over(access.file)
    else:  # a log that is no longer used stays open, since a thread may still be writing to its descriptor
        old = {file.path: file for file in access.files}
        for file in new_access.files:
            if file.path in old:
                file.take_over(old[file.path])
    for file in (new_errors.file, *new_access.files):
        if file.descriptor >= 0:
            file.losses.share()  # the workers that are forked later count the lost lines together
    new_access.enabled = new_access.writes or count_exchange is not None
    errors, access = new_errors, new_access


def reopen_logs() -> None:
    """Open the files of both logs again, after a log rotation (USR1)."""
    for log in (errors.file, *access.files):
        try:
            log.open()
        except OSError as reason:
            errors.error(f"cannot write {log.path}: {reason.strerror}; the old file stays in use")


def report_losses() -> None:
    """Write to the error log the number of lines lost since the last report."""
    for log in (errors.file, *access.files):
        log.report()


def lost_lines() -> int:
    """Return the number of log lines that all processes of the server have lost since its start."""
    return sum(log.losses.total.value() for log in (errors.file, *access.files))


def tell(message: str) -> None:
    """Write a message about a log to the error log, or to standard error."""
    errors.tell(message)


def log_unraisable(fault: sys.UnraisableHookArgs) -> None:
    """Log an exception that no caller can catch (sys.unraisablehook), for example in a finalizer.

    Python's own hook writes to standard error, and waits for its reader. A client can cause such an exception: the
    ssl module decodes the client's server name (SNI) before it calls ewe, and fails if the name is not ASCII.
    """
    what = fault.err_msg or "Exception ignored in"
    # From Python 3.14 on, the name is part of the message.
    of_a_name = isinstance(fault.object, bytes) or "servername" in what
    if fault.object is not None:
        what += f": {reprlib.repr(fault.object)}"
    if of_a_name and isinstance(fault.exc_value, UnicodeDecodeError):
        errors.info(f"{what}: {fault.exc_value}")
    elif fault.exc_value is None:
        errors.error(f"{what}: {fault.exc_type.__name__}")
    else:
        errors.exception(what, fault.exc_value)


def be_forked() -> None:
    """Check, in a forked process, whether lines were lost: its next line may show that the log works again."""
    for log in (errors.file, *access.files):
        log.careful = log.careful or log.losses.is_open()


LogFile.tell = staticmethod(tell)
os.register_at_fork(after_in_child=be_forked)
