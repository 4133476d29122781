"""A request on its way through the main module: from a web server's connection to an engine and back."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from ewe.http import REASONS
from ewe.xswitch.protocol import request_lines

if TYPE_CHECKING:
    from ewe.xswitch.front import Front
    from ewe.xswitch.links import Link
    from ewe.xswitch.pool import Key
    from ewe.xswitch.webapp import Application

SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
MAX_INPUT = 64 * 1024  # bytes of a body that are kept while no engine is there to take them
# Names of variables; not those that no web server has reason to set and that would change how an interpreter or
# the loader works.
NAME = re.compile(
    rb"(?!(?:LD_|PYTHON|PERL|RUBY|NODE_|PHP|BASH|GLIBC_|MALLOC_|FCGI_|XSWITCH_|HTTP_PROXY\Z|IFS\Z|ENV\Z|SHELL\Z))"
    rb"[A-Za-z_][A-Za-z0-9_]*"
)
MAX_NAMES = 2000  # names that are remembered to be good
good_names: set[bytes] = set()
RETRY_AFTER = 5  # seconds
# The field X-Switch of answers of our own: ewe then may run the program itself, or shows a page of its own.
NO_ENGINE, REFUSED = "no-engine", "refused"


class Task:
    """One request. script: its path. user: whose it is, once that is known. key: of the engines for it."""

    def __init__(self, front: Front, params: dict[bytes, bytes], script: str) -> None:
        self.front: Front | None = front
        self.switch = front.switch
        self.params = params
        self.script = script
        self.application: Application | None = None  # of Java, whose WEB-INF is the script then
        self.user = ""
        self.own: dict[bytes, bytes] = {}  # variables, see own_variables()
        self.key: Key = ("", "")
        self.since = time.monotonic()
        self.link: Link | None = None
        self.begun = False  # some of the answer has been sent
        self.writable = True  # the web server takes more
        self.retried = False
        self.ended = False
        self.lines = b""  # for an engine that speaks the engine protocol
        self.input: list[bytes] = []
        self.input_length = 0
        self.input_left = body_length(params)  # bytes that have not come
        self.input_over = False

    # What an engine is told

    def arguments(self) -> list[bytes]:
        """Return the command line of an indexed query, one without "=": RFC 3875 section 4.4."""
        query = self.params.get(b"QUERY_STRING", b"")
        if not query or b"=" in query or self.params.get(b"REQUEST_METHOD") not in (b"GET", b"HEAD"):
            return []
        words = [unquote_to_bytes(word) for word in query.split(b"+")]
        return [] if any(b"\0" in word for word in words) else words

    def environment(self) -> dict[bytes, bytes]:
        """Return what the script's environment will be."""
        variables = self.params.copy()
        if not variables.keys() <= good_names:
            variables = {name: value for name, value in variables.items() if is_good(name)}
        variables.setdefault(b"GATEWAY_INTERFACE", b"CGI/1.1")
        variables.setdefault(b"REDIRECT_STATUS", b"200")  # php-cgi asks for it
        if b"PATH_TRANSLATED" in variables:
            # Apache says both where it has rewritten, and php-cgi would run that file, which nobody has checked.
            variables.pop(b"REDIRECT_URL", None)
        variables.update(self.own)
        return variables if self.application is None else self.application.variables(variables)

    def write_lines(self) -> None:
        """Make the two lines of the engine protocol. Raises ProtocolError."""
        self.lines = request_lines(self.own[b"SCRIPT_FILENAME"], self.arguments(), self.environment())

    # The body

    def on_input(self, data: bytes) -> None:
        """More of the body has come; b"": its end."""
        self.input_over = self.input_over or not data
        self.input_left -= len(data)
        if self.input_left < 0 or (self.input_over and self.input_left):
            self.refuse_input()
            return
        if self.link is not None:
            if data:
                self.link.heard(self.input_left)
            self.link.body(data)
            return
        self.input.append(data)
        self.input_length += len(data)
        if self.input_length > MAX_INPUT:
            self.hold_input()

    def refuse_input(self) -> None:
        """Answer to a body of another length than said. An engine might take what is too much for the next body."""
        if self.params.get(b"CONTENT_LENGTH"):
            self.fail(400, "its body is not as long as CONTENT_LENGTH says")
        else:
            self.fail(411, "a body without CONTENT_LENGTH: have the web server buffer what comes in chunks")
        if self.link is not None:
            self.link.task = None
            self.link.end()
        else:
            self.switch.pool.withdraw(self)

    def take_input(self) -> list[bytes]:
        """Return what has come of the body, for an engine that is there now."""
        taken, self.input = self.input, []
        self.input_length = 0
        self.want_input()
        return taken

    def hold_input(self) -> None:
        """Read no more of the body for now."""
        if self.front is not None:
            self.front.hold()

    def want_input(self) -> None:
        """Read on."""
        if self.front is not None:
            self.front.read_on()

    # The answer

    def write(self, data: bytes) -> None:
        """Send more of the answer."""
        self.begun = True
        if self.front is not None:
            self.front.output(data)

    def end(self, data: bytes, status: int) -> None:
        """Send the rest of the answer, and its end."""
        self.ended = True
        if self.front is None:
            return
        if not self.begun and not data:
            self.fail(502, f"it wrote nothing (exit status {status})")
            return
        self.begun = True
        self.front.end(data, status)
        self.front = None

    def died(self, cause: str) -> None:
        """Its engine has ended within it: try once more, or say so."""
        self.link = None
        safe = self.params.get(b"REQUEST_METHOD") in SAFE and self.params.get(b"CONTENT_LENGTH") in (
            None,
            b"",
            b"0",
        )
        if (
            safe
            and not self.begun
            and not self.retried
            and self.front is not None
            and not self.switch.stopping
        ):
            self.retried = True
            self.switch.pool.counters["retried"] += 1
            self.switch.say(self.user, f"{self.script}: {cause}; trying once more on a fresh engine")
            self.input = [b""]
            self.switch.pool.submit(self)
        else:
            self.fail(502, cause)

    def expired(self) -> None:
        """Its engine was ended, since it took too long, or some time after its client had gone."""
        settings, counters = self.switch.settings, self.switch.pool.counters
        if self.front is not None:
            counters["timed_out"] += 1
            self.fail(504, f"ended after {settings.time_limit:g} s (time-limit)")
        else:
            counters["abandoned"] += 1
            self.ended = True
            self.switch.say(
                self.user, f"{self.script}: its client left, and it was ended (abandoned)", "info"
            )

    def refuse(self, status: int, cause: str) -> None:
        """Answer with an error: nothing has been sent."""
        self.fail(status, cause)

    def fail(self, status: int, cause: str, kind: str = REFUSED) -> None:
        """Answer with an error; where some of the answer was sent, the connection breaks off instead."""
        self.ended = True
        self.switch.pool.counters[f"status_{status}"] += 1
        level = "info" if kind == NO_ENGINE else "warning"  # the web server may know how
        self.switch.say(self.user, f"{self.script}: {status}, {cause}", level)
        if self.front is None:
            return
        if self.begun:
            self.front.break_off()
        else:
            self.front.end(error_page(status, kind), 0)
        self.front = None

    def abandon(self) -> None:
        """The client has gone: nobody wants the answer."""
        self.front = None
        if self.ended:
            return
        if self.link is None:
            self.switch.pool.withdraw(self)
            self.ended = True
        elif not self.input_over:
            self.link.broken("the client left within its body")
        else:
            self.writable = True
            self.link.resume()
            self.link.abandon()


def body_length(params: dict[bytes, bytes]) -> int:
    """Return how long the body is said to be, -1 where that is no number."""
    said = params.get(b"CONTENT_LENGTH") or b"0"
    return int(said) if said.isdigit() and len(said) < 19 else -1


def is_good(name: bytes) -> bool:
    """May a script have a variable of this name? Good names are remembered."""
    if name in good_names:
        return True
    if NAME.fullmatch(name) is None:
        return False
    if len(good_names) < MAX_NAMES:
        good_names.add(name)
    return True


def error_page(status: int, kind: str = REFUSED) -> bytes:
    """Return an answer that tells no details, but that it is our own."""
    reason = REASONS[status]
    retry = f"Retry-After: {RETRY_AFTER}\r\n" if status == 503 else ""
    text = f"{status} {reason}\n"
    return (
        f"Status: {status} {reason}\r\nX-Switch: {kind}\r\n{retry}"
        f"Content-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode()
