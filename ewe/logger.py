"""The access log and the error log.

Each line is one write(2) to a descriptor opened with O_APPEND, so lines of several processes never mix. A log
that cannot be written never stops the server: if the disk is full, or the reader of a pipe has ended, the line is
lost, and the error log counts lost lines. Control characters are escaped (\\x1b, \\n), so that no client can forge
a line.

Each process has one pair of logs, `errors` and `access`. open_logs() opens them once.

**The access log is on the path of every request**, so its format is compiled (AccessLog.compile). The parts that
depend on the request alone are filled in once and kept with the Request, which many exchanges may share. Writing a
line then fills in only the rest: time, status, size, duration.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from ewe.http.dates import MONTHS
from ewe.http.messages import Request, Response
from ewe.http.virtual_hosts import Host, VirtualHosts

LEVELS = {"error": 0, "warning": 1, "info": 2, "debug": 3}
UNPRINTABLE = re.compile(r'[^\x20-\x7e]|["\\]')
UNPRINTABLE_IN_MESSAGE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Linux writes up to this many bytes to a pipe in one piece or not at all: pipe(7)
PIPE_BUF = 4096
SHORT = 120  # characters of a client's value in a JSON line that must fit; JSON writes one as six at most (\u00e9)


def escaped(text: str, what: re.Pattern[str] = UNPRINTABLE) -> str:
    """Return text with quotes, backslashes, control characters and raw bytes as \\xHH, as Apache does."""
    return what.sub(escape_one, text)


def escape_one(match: re.Match[str]) -> str:
    """Return the escape of one character; a surrogate stands for a byte of a file name."""
    code = ord(match[0])
    return "\\" + match[0] if match[0] in '"\\' else f"\\x{code - 0xDC00 if code > 0xD800 else code:02x}"


class LogFile:
    """A file that lines are appended to. path: its name, "-" for a standard stream, "off" for none."""

    def __init__(self, path: str, standard: int) -> None:
        """Open path, and create it if it does not exist. Raises OSError."""
        self.path = path
        self.standard = standard
        self.lost = 0
        self.descriptor = -1
        self.may_block = False
        self.open()

    def open(self) -> None:
        """Open the file, or open it again after it was renamed (USR1).

        Raises OSError; the old file then stays in use.
        """
        if self.path == "off":
            return
        if self.path == "-":
            self.descriptor = self.standard
        else:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            fresh = os.open(self.path, flags, 0o640)
            if self.descriptor >= 0:
                os.dup2(fresh, self.descriptor, inheritable=False)
                os.close(fresh)
            else:
                self.descriptor = fresh
        try:
            self.may_block = not os.path.isfile(f"/proc/self/fd/{self.descriptor}")
        except OSError:
            self.may_block = True

    def take_over(self, old: LogFile) -> None:
        """Use the descriptor of an old log from now on: a thread may be writing to that number."""
        if old.descriptor > 2 and self.descriptor > 2:
            os.dup2(self.descriptor, old.descriptor, inheritable=False)
            os.close(self.descriptor)
            self.descriptor = old.descriptor

    def close(self) -> None:
        """Close a log that was opened for nothing."""
        if self.descriptor > 2:
            os.close(self.descriptor)

    def write(self, line: str) -> None:
        """Write one line, which ends in a line feed. Never raises, and never waits for a slow reader of a pipe."""
        data = line.encode("utf-8", "backslashreplace")
        try:
            if self.may_block:
                data = data if len(data) <= PIPE_BUF else data[: PIPE_BUF - 1] + b"\n"
                if not has_room(self.descriptor):
                    self.lost += 1
                    return
            if os.write(self.descriptor, data) == len(data):
                return
        except OSError:
            pass
        self.lost += 1


def has_room(descriptor: int) -> bool:
    """Return whether a line can be written to this pipe or terminal without waiting."""
    from select import POLLOUT, poll

    poller = poll()
    poller.register(descriptor, POLLOUT)
    return bool(poller.poll(0))


class ErrorLog:
    """Messages for the administrator: error, warning, info, debug. Messages above the level are dropped."""

    def __init__(self, path: str = "-", level: str = "info") -> None:
        """Open path ("-" is standard error). Raises OSError."""
        self.file = LogFile(path, 2)
        self.level = LEVELS[level]

    def write(self, level: str, message: str) -> None:
        """Write one line: time, pid, level, message."""
        if LEVELS[level] > self.level or self.file.descriptor < 0:
            return
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        text = escaped(message, UNPRINTABLE_IN_MESSAGE)
        self.file.write(f"{now} [{os.getpid()}] {level}: {text}\n")

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

    def exception(self, message: str) -> None:
        """Write an error with the current traceback, line by line: a fault in ewe itself."""
        import traceback

        self.error(message)
        for line in traceback.format_exc().splitlines():
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

    __slots__ = ("client", "micros", "request", "response", "sent", "server")

    def __init__(
        self,
        client: str,
        server: tuple[str, int],
        request: Request,
        response: Response,
        sent: int,
        micros: int,
    ) -> None:
        self.client = client
        self.server = server  # address and port that listen
        self.request = request
        self.response = response
        self.sent = sent  # bytes of the body
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


def user_of(request: Request) -> str:
    """Return the user that a request was sent by, "" if no guard has asked; bytes as Latin-1 characters."""
    return request.variables.get(b"REMOTE_USER", b"").decode("latin-1")


# The text for each letter of a format. Those of OF_REQUEST depend on the request alone, and are kept with it.
OF_REQUEST: dict[str, Callable[[Request], str]] = {
    "r": lambda request: escaped(request.line),
    "m": lambda request: escaped(request.method),
    "U": lambda request: escaped(request.path.encode("utf-8", "surrogateescape").decode("latin-1")),
    "q": lambda request: "?" + escaped(request.query) if request.query is not None else "",
    "H": lambda request: request.protocol,
    "v": lambda request: escaped(request.host) or "-",
    "l": lambda request: "-",
    "u": lambda request: escaped(user_of(request)) or "-",
}
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
}
NOTES = {"model": "-", "worker": "0"}  # for %{model}n and %{worker}n, until they are known
DIRECTIVE = re.compile(r"%(?:[<>])?(?:\{([^}]*)\})?([a-zA-Z%])")


class AccessLog:
    """One line for each request, written after the response: in a format of Apache's letters, as JSON, or short."""

    def __init__(self, path: str = "off", form: str = "combined", notes: Mapping[str, str] = NOTES) -> None:
        """Open path ("-" is standard output, "off" nothing). Raises OSError, ValueError for a bad format."""
        self.notes = dict(notes)
        self.form = form
        if form == "auto":
            self.form = "short" if path == "-" and os.isatty(1) else "combined"
        self.compile()
        self.file = LogFile(path, 1)
        self.files = [self.file]
        self.enabled = self.file.descriptor >= 0

    def compile(self) -> None:
        """Turn the format into parts and getters. Raises ValueError."""
        self.parts, self.getters = compiled(FORMATS.get(self.form, self.form), self.notes)
        # Requests keep their part of a line. The mark shows whether this format has made it, or an older one.
        self.mark = object()

    def name_worker(self, model: str, worker: str) -> None:
        """Set the texts for %{model}n and %{worker}n. Each new worker process calls it."""
        self.notes |= {"model": model, "worker": worker}
        self.compile()

    def write(self, exchange: Exchange) -> None:
        """Write the line of one exchange."""
        if self.form == "short":
            from ewe.short_line import short_line

            line, status = escaped(exchange.request.line), exchange.response.status
            self.file.write(short_line(line, exchange.client, status, exchange.sent, exchange.micros))
            return
        if self.form == "json":
            line = json_line(exchange, self.notes)
            if len(line) > PIPE_BUF and self.file.may_block:  # a line that is cut would not be JSON
                line = json_line(exchange, self.notes, SHORT)
            self.file.write(line)
            return
        mark, template = exchange.request.noted
        if mark is not self.mark:
            template = self.template_for(exchange.request)
            exchange.request.noted = self.mark, template
        self.file.write(template % tuple([get(exchange) for get in self.getters]))

    def template_for(self, request: Request) -> str:
        """Return the line with %s in each place that depends on more than the request."""
        return "".join(
            [part if isinstance(part, str) else part(request).replace("%", "%%") for part in self.parts]
        )


class SiteLogs(AccessLog):
    """The access logs of several sites: each exchange is written to its site's. Sites may share a log."""

    def __init__(self, sites: Sequence[tuple[Host, str, str]], notes: Mapping[str, str]) -> None:
        """Open the log of each site: (what it answers for, path, format). Raises OSError, ValueError."""
        logs: dict[tuple[str, str], AccessLog] = {}
        self.notes = dict(notes)
        try:
            for _, path, form in sites:
                if (path, form) not in logs:
                    logs[path, form] = AccessLog(path, form, notes)
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
                "user": cut(user_of(request)),
                "method": request.method[:most],
                "target": request.target[:most],
                "protocol": request.protocol,
                "status": response.status,
                "bytes": exchange.sent,
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
    own = ErrorLog(logfile, loglevel)
    other: AccessLog
    try:
        if sites:
            other = SiteLogs(sites, access.notes)
        else:
            other = AccessLog(access_log, log_format, access.notes)
    except (OSError, ValueError):
        own.file.close()
        raise
    own.file.take_over(errors.file)
    if len(access.files) == len(other.files) == 1:
        other.file.take_over(access.file)
    else:  # a log that is no longer written stays open: a thread may still be writing to its number
        before = {file.path: file for file in access.files}
        for file in other.files:
            if file.path in before:
                file.take_over(before[file.path])
    errors, access = own, other


def reopen_logs() -> None:
    """Open both files again, after a log rotation (USR1)."""
    for log in (errors.file, *access.files):
        try:
            log.open()
        except OSError as reason:
            errors.error(f"log {log.path}: {reason.strerror}; the old file stays in use")


def report_losses() -> None:
    """Write to the error log how many lines were lost."""
    for log in (errors.file, *access.files):
        if log.lost:
            lost, log.lost = log.lost, 0
            errors.warning(f"log {log.path}: {lost} lines could not be written")
