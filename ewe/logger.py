"""The access log and the error log.

Each line is one write(2), so lines of several processes never mix. A log that cannot be written never stops the
server: the line is lost, and counted (ewe.log_files). Control characters are escaped (\\x1b, \\n), so that no
client can forge a line.

Each process has one pair of logs, `errors` and `access`. open_logs() opens them once.

**The access log is on the path of every request**, so its format is compiled (AccessLog.compile). The parts that
depend on the request alone are filled in once and kept with the Request, which many exchanges may share. Writing a
line then fills in only the rest: time, status, size, duration.
"""

from __future__ import annotations

import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ewe.http.dates import MONTHS
from ewe.http.messages import MadeOfRequests, Request, Response
from ewe.http.virtual_hosts import Host, VirtualHosts
from ewe.log_files import PIPE_BUF, LogFile, has_room, open_log

LEVELS = {"error": 0, "warning": 1, "info": 2, "debug": 3}
UNPRINTABLE = re.compile(r'[^\x20-\x7e]|["\\]')
UNPRINTABLE_IN_MESSAGE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
NONE: Mapping[str, int] = {}
SHORT = 120  # characters of a client's value in a JSON line that must fit; JSON writes one as six at most (\u00e9)


def escaped(text: str, what: re.Pattern[str] = UNPRINTABLE) -> str:
    """Return text with quotes, backslashes, control characters and raw bytes as \\xHH, as Apache does."""
    return what.sub(escape_one, text)


def escape_one(match: re.Match[str]) -> str:
    """Return the escape of one character; a surrogate stands for a byte of a file name."""
    code = ord(match[0])
    return "\\" + match[0] if match[0] in '"\\' else f"\\x{code - 0xDC00 if code > 0xD800 else code:02x}"


class ErrorLog:
    """Messages for the administrator: error, warning, info, debug. Messages above the level are dropped."""

    def __init__(self, path: str = "-", level: str = "info", before: Mapping[str, int] = NONE) -> None:
        """Open path ("-" is standard error, "off" nothing). before: as for LogFile. Raises OSError."""
        self.file = open_log(path, 2, before)
        self.level = LEVELS[level]

    def write(self, level: str, message: str) -> None:
        """Write one line: time, pid, level, message."""
        if LEVELS[level] > self.level or self.file.descriptor < 0:
            return
        self.file.write(self.line(level, message), level)

    def line(self, level: str, message: str) -> str:
        """Return a message as a line. The journal and a log daemon add time and process."""
        text = escaped(message, UNPRINTABLE_IN_MESSAGE)
        if self.file.has_clock:
            return f"{level}: {text}\n"
        return f"{time.strftime('%Y-%m-%d %H:%M:%S')} [{os.getpid()}] {level}: {text}\n"

    def tell(self, message: str) -> None:
        """Write what must be told although logs may be full: here, or on standard error if this log is, too."""
        if self.file.descriptor < 0:
            return
        line = self.line("error", message)
        if not self.file.try_to_write(line, "error") and self.file.descriptor != 2:
            try:
                if has_room(2):
                    os.write(2, line.encode("utf-8", "backslashreplace"))
            except OSError:
                pass  # nothing is left that could be written

    def error(self, message: str) -> None:
        """Write that something failed which the administrator must repair."""
        self.write("error", message)

    def warning(self, message: str) -> None:
        """Write that something went wrong which the server could handle."""
        self.write("warning", message)

    def info(self, message: str) -> None:
        """Write what the server did, or which request it refused."""
        self.write("info", message)

    def debug(self, message: str) -> None:
        """Write what helps only in the search for a fault."""
        self.write("debug", message)

    def exception(self, message: str, fault: BaseException | None = None) -> None:
        """Write an error with the current traceback, or that of `fault`: a fault in ewe itself."""
        import traceback

        self.error(message)
        text = traceback.format_exc() if fault is None else "".join(traceback.format_exception(fault))
        for line in text.splitlines():
            self.error("| " + line)


# ---------------------------------------------------------------------------------------------------------
# The access log

# Of a format that is chosen or made elsewhere, the text stands for a valid one.
FORMATS = {
    "auto": "",
    "short": "",
    "common": '%h %l %u %t "%r" %>s %b',
    "combined": '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" %D %{model}n %{worker}n',
}


class Exchange:
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
        self.user = user  # that a guard has asked for
        self.server = server  # address and port that listen
        self.request = request
        self.response = response
        self.sent = sent  # bytes of the body
        self.ending = ending  # as Apache's %X: X cut short, + the connection is kept, - it is not
        self.micros = micros  # microseconds from the request's head to the end of the response


Getter = Callable[[Exchange], object]


class Stamp:
    """The time in the access log's form. stamp() updates it once a second."""

    second = -1
    text = ""


def stamp() -> str:
    """Return [20/Nov/2026:11:12:13 +0000]."""
    second = int(time.time())
    if second != Stamp.second:
        local = time.localtime(second)
        clock = time.strftime("%H:%M:%S %z", local)
        Stamp.text = f"[{local[2]:02}/{MONTHS[local[1] - 1]}/{local[0]}:{clock}]"
        Stamp.second = second
    return Stamp.text


# The text for each letter of a format. Those of OF_REQUEST depend on the request alone, and are remembered. The
# user does not, but most requests have none; the text of a request with a user is not remembered.
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
    "h": lambda exchange: exchange.client,
    "a": lambda exchange: exchange.client,
    "t": lambda exchange: stamp(),
    "s": lambda exchange: exchange.response.status,
    "b": lambda exchange: exchange.sent or "-",
    "B": lambda exchange: exchange.sent,
    "D": lambda exchange: exchange.micros,
    "T": lambda exchange: exchange.micros // 1_000_000,
    "p": lambda exchange: exchange.server[1],
    "P": lambda exchange: os.getpid(),
    "X": lambda exchange: exchange.ending,
}
NOTES = {"model": "-", "worker": "0"}  # for %{model}n and %{worker}n, until they are known
DIRECTIVE = re.compile(r"%(?:[<>])?(?:\{([^}]*)\})?([a-zA-Z%])")


class AccessLog:
    """One line for each request, written after the response: in a format of Apache's letters, as JSON, or short."""

    def __init__(
        self,
        path: str = "off",
        form: str = "combined",
        notes: Mapping[str, str] = NOTES,
        before: Mapping[str, int] = NONE,
    ) -> None:
        """Open path ("-" is standard output, "off" nothing). before: as for LogFile.

        Raises OSError, ValueError for a bad format.
        """
        self.notes = dict(notes)
        self.form = form
        if form == "auto":
            self.form = "short" if path == "-" and os.isatty(1) else "combined"
        self.compile()
        self.file = open_log(path, 1, before)
        self.files = [self.file]
        self.enabled = self.file.descriptor >= 0

    def compile(self) -> None:
        """Turn the format into parts and getters. Raises ValueError."""
        self.parts, self.getters = compiled(FORMATS.get(self.form, self.form), self.notes)
        # The part of a line that depends on the request alone
        self.templates: MadeOfRequests[str] = MadeOfRequests()

    def name_worker(self, model: str, worker: str) -> None:
        """Set the texts for %{model}n and %{worker}n. Each new worker process calls it."""
        self.notes |= {"model": model, "worker": worker}
        self.compile()

    def write(self, exchange: Exchange) -> None:
        """Write the line of one exchange."""
        if self.form == "short":
            from ewe.short_line import short_line

            line, status = escaped(exchange.request.line), exchange.response.status
            cut = exchange.ending == "X"
            self.file.write(short_line(line, exchange.client, status, exchange.sent, exchange.micros, cut))
            return
        if self.form == "json":
            line = json_line(exchange, self.notes)
            if len(line) > PIPE_BUF and self.file.may_block:  # a line that is cut would not be JSON
                line = json_line(exchange, self.notes, SHORT)
            self.file.write(line)
            return
        request = exchange.request
        template = self.templates.get(request)
        if template is None or exchange.user:
            template = self.template_for(request, exchange.user)
            if not exchange.user:
                self.templates[request] = template
        self.file.write(template % tuple([get(exchange) for get in self.getters]))

    def template_for(self, request: Request, user: str) -> str:
        """Return the line with %s in each place that depends on more than the request and the user."""
        name = escaped(user.encode().decode("latin-1")) or "-"
        return "".join([
            part if isinstance(part, str) else (name if part is USER else part(request)).replace("%", "%%")
            for part in self.parts
        ])  # fmt: skip


class SiteLogs(AccessLog):
    """The access logs of several sites: each exchange is written to its site's. Sites may share a log."""

    def __init__(
        self, sites: Sequence[tuple[Host, str, str]], notes: Mapping[str, str], before: Mapping[str, int]
    ) -> None:
        """Open the log of each site: (what it answers for, path, format). Raises OSError, ValueError."""
        logs: dict[tuple[str, str], AccessLog] = {}
        self.notes = dict(notes)
        try:
            for _, path, form in sites:
                if (path, form) not in logs:
                    logs[path, form] = AccessLog(path, form, notes, before)
        except (OSError, ValueError):
            for log in logs.values():
                log.file.close()
            raise
        self.logs = list(logs.values())
        self.files = [log.file for log in self.logs]
        self.file = self.files[0]
        self.hosts = VirtualHosts([(host, logs[path, form]) for host, path, form in sites])
        self.enabled = any(log.enabled for log in self.logs)

    def name_worker(self, model: str, worker: str) -> None:
        """Set the texts of all logs."""
        self.notes |= {"model": model, "worker": worker}
        for log in self.logs:
            log.name_worker(model, worker)

    def write(self, exchange: Exchange) -> None:
        """Write the line of one exchange to its site's log."""
        log = self.hosts.choose(exchange.request.host, exchange.server)
        if log.enabled:
            log.write(exchange)


def compiled(
    form: str, notes: Mapping[str, str]
) -> tuple[list[str | Callable[[Request], str]], list[Getter]]:
    """Return the parts of a format (texts, and functions of a request), and the getters for its %s."""
    parts: list[str | Callable[[Request], str]] = []
    getters: list[Getter] = []
    place = 0
    for match in DIRECTIVE.finditer(form):
        parts.append(form[place : match.start()].replace("%", "%%"))
        place = match.end()
        argument, letter = match.groups()
        of_request = letter_of_request(letter, argument)
        if letter == "%":
            parts.append("%%")
        elif letter == "n" and argument in notes:
            parts.append(notes[argument].replace("%", "%%"))
        elif of_request is not None:
            parts.append(of_request)
        else:
            parts.append("%s")
            getters.append(letter_of_exchange(match[0], letter, argument))
    if "%" in DIRECTIVE.sub("", form):
        raise ValueError(f"log format: a % without a known letter in {form!r}")
    parts.append(form[place:] + "\n")
    return parts, getters


def letter_of_exchange(directive: str, letter: str, argument: str | None) -> Getter:
    """Return the getter of a letter that depends on more than the request. Raises ValueError."""
    if letter == "o" and argument:
        return field_of_response(argument)
    if letter not in OF_EXCHANGE or argument:
        raise ValueError(f"log format: {directive} is unknown")
    return OF_EXCHANGE[letter]


def letter_of_request(letter: str, argument: str | None) -> Callable[[Request], str] | None:
    """Return the getter of a letter that depends on the request alone; None for other letters."""
    if letter == "i" and argument:
        name = argument.lower()
        return lambda request: escaped(request.values.get(name) or "-")
    return None if argument else OF_REQUEST.get(letter)


def field_of_response(name: str) -> Getter:
    """Return the getter of %{Name}o: a field of the response."""
    lower = name.lower()
    return lambda exchange: escaped(exchange.response.get(lower) or "-")


def json_line(exchange: Exchange, notes: Mapping[str, str], most: int | None = None) -> str:
    """Return one line of JSON; values that the client chose are cut to `most` characters."""
    from json import dumps

    request, response = exchange.request, exchange.response

    def cut(text: str | None) -> str | None:
        return text[:most] if text else None

    return (
        dumps(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "client": exchange.client,
                "user": cut(exchange.user.encode().decode("latin-1")),
                "method": request.method[:most],
                "target": request.target[:most],
                "protocol": request.protocol,
                "status": response.status,
                "bytes": exchange.sent,
                "complete": exchange.ending != "X",
                "micros": exchange.micros,
                "referer": cut(request.values.get("referer")),
                "agent": cut(request.values.get("user-agent")),
                "host": cut(request.host),
                "model": notes["model"],
                "worker": notes["worker"],
                "pid": os.getpid(),
            }
        )
        + "\n"
    )


errors = ErrorLog()
access = AccessLog()


def open_logs(
    logfile: str,
    loglevel: str,
    access_log: str,
    log_format: str,
    sites: Sequence[tuple[Host, str, str]] = (),
) -> None:
    """Open both logs as configured. sites: the access logs of several sites, instead of access_log.

    Raises OSError, or ValueError for a bad format.
    """
    global errors, access
    before = {file.path: file.descriptor for file in (errors.file, *access.files)}
    own = ErrorLog(logfile, loglevel, before)
    other: AccessLog
    try:
        if sites:
            other = SiteLogs(sites, access.notes, before)
        else:
            other = AccessLog(access_log, log_format, access.notes, before)
    except (OSError, ValueError):
        own.file.close()
        raise
    own.file.take_over(errors.file)
    if len(access.files) == len(other.files) == 1:
        other.file.take_over(access.file)
    else:  # a log that is no longer written stays open: a thread may still be writing to its number
        old = {file.path: file for file in access.files}
        for file in other.files:
            if file.path in old:
                file.take_over(old[file.path])
    for file in (own.file, *other.files):
        if file.descriptor >= 0:
            file.losses.share()
    errors, access = own, other


def reopen_logs() -> None:
    """Open both files again, after a log rotation (USR1)."""
    for log in (errors.file, *access.files):
        try:
            log.open()
        except OSError as reason:
            errors.error(f"log {log.path}: {reason.strerror}; the old file stays in use")


def report_losses() -> None:
    """Write to the error log how many lines were lost since the last report."""
    for log in (errors.file, *access.files):
        log.report()


def lost_lines() -> int:
    """Return how many lines of the logs all processes of the server have lost since its start."""
    return sum(log.losses.total.value() for log in (errors.file, *access.files))


def tell(message: str) -> None:
    """Write a message about a log where it can be written."""
    errors.tell(message)


def ignored(fault: sys.UnraisableHookArgs) -> None:
    """Write an exception to the error log that no caller can get (sys.unraisablehook): of a finalizer, say.

    Python's own hook writes to standard error, and waits for its reader. A client can cause one: the ssl module
    decodes the name that a client asks for (SNI) before it calls ewe, and a name that is not ASCII fails there.
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
    """In a new process: look whether others have lost lines. What this one writes may show that this is over."""
    for log in (errors.file, *access.files):
        log.careful = log.careful or log.losses.is_open()


LogFile.tell = staticmethod(tell)
os.register_at_fork(after_in_child=be_forked)
