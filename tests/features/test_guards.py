"""Guards alone, without a server: whom they let pass, what they change, and what they say of bad settings."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ewe.config.feature_table import STEPS, feature
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.features import static
from ewe.features.base import Handler, Middleware
from ewe.features.field_filter import FILTERED_BYTES
from ewe.features.guards import auth, htpasswd
from ewe.features.guards.auth import Auth, parse_basic
from ewe.features.guards.client import client_key
from ewe.gateway import programs, wsgi
from ewe.gateway.shared_table import BUCKET_SLOTS, Rate, SharedLock, SharedTable
from ewe.http.messages import Request, Response, Source, StorableResponse, hides_authorization
from ewe.http.request_head import passed_fields
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.streams.base import Disconnected, Stream
from ewe.streams.blocking import run

PLACE = "ewe.toml line 3:"


def io_of(address: str = "192.0.2.1") -> Stream:
    """A client's stream, as far as guards look at it: no guard but limit-rate waits."""
    return Stream((address, 5000), ("127.0.0.1", 80), None)  # type: ignore[arg-type]


class Inner:
    """The handler inside a middleware. seen: the request that passed. variables: those of that request."""

    def __init__(self, response: Response | None = None) -> None:
        self.response = response or Response(200)
        self.seen: Request | None = None
        self.variables: dict[bytes, bytes] = {}

    async def respond(self, request: Request, io: Stream) -> Response:
        self.seen = request
        self.variables = io.variables
        return self.response


def made(key: str, value: object) -> Any:
    """Return the guard that a key of a site asks for. Raises ConfigError."""
    return feature(STEPS[key].module).keys[key].middleware(PLACE, value)


def ask(guard: Middleware, request: Request, io: Stream | None = None) -> Response | None:
    """Return the answer of a middleware, None if the request goes on. Raises HTTPError."""
    inner = Inner()
    response = run(guard.around(inner, inner).respond(request, io or io_of()))
    return response if inner.seen is None else None


def verdict(guard: Middleware, request: Request, address: str = "192.0.2.1") -> int:
    """Return the status with which a middleware answers; 0: the request goes on."""
    try:
        response = ask(guard, request, io_of(address))
    except HTTPError as error:
        return error.status
    return response.status if response is not None else 0


def test_methods() -> None:
    guard = made("methods", ["GET", "PROPFIND"])
    asked = {name: verdict(guard, Request(name, "/", (1, 1))) for name in
             ("GET", "HEAD", "PROPFIND", "POST", "DELETE", "OPTIONS", "BREW", "get")}  # fmt: skip
    assert asked == {
        "GET": 0, "HEAD": 0, "PROPFIND": 0, "POST": 405, "DELETE": 405, "OPTIONS": 405, "BREW": 501, "get": 501,
    }  # fmt: skip
    with pytest.raises(HTTPError) as refused:
        ask(guard, Request("POST", "/", (1, 1)))
    assert refused.value.fields == (("Allow", "GET, HEAD, PROPFIND"),)


@pytest.mark.parametrize(
    "settings, passes, refused",
    [
        ({"allow": ["192.0.2.0/24", "2001:db8::/32"]},
         ("192.0.2.9", "::ffff:192.0.2.9", "2001:db8::1", "2001:db8:ffff::1%eth0"),
         ("192.0.3.1", "2001:db9::1", "unix:", "::1", "somebody")),
        ({"deny": ["192.0.2.66", "unix"]}, ("192.0.2.65", "::1"), ("192.0.2.66", "::ffff:192.0.2.66", "unix:")),
        ({"allow": "192.0.2.0/24", "deny": "192.0.2.66"}, ("192.0.2.1",), ("192.0.2.66", "10.0.0.1")),
        ({"deny": "0.0.0.0/0", "allow": "192.0.2.1"}, ("::1",)[:0], ("192.0.2.1", "10.0.0.1")),
        ({"allow": ["unix", "192.0.2.128/25"]}, ("unix:", "192.0.2.200"), ("192.0.2.1", "unknown", "unix", "")),
        ({"allow": ["0.0.0.0/0"]}, ("10.0.0.1", "::ffff:10.0.0.1"), ("::1",)),
    ],
)  # fmt: skip
def test_addresses(settings: dict[str, object], passes: tuple[str, ...], refused: tuple[str, ...]) -> None:
    guards = [made(key, settings[key]) for key in ("deny", "allow") if key in settings]
    request = Request("GET", "/", (1, 1))
    for address, status in [*((each, 0) for each in passes), *((each, 403) for each in refused)]:
        statuses = [verdict(guard, request, address) for guard in guards]
        assert max(statuses) == status, address


def test_who_is_counted_together() -> None:
    assert client_key("2001:db8::1") == client_key("2001:db8::ffff:1") != client_key("2001:db8:0:1::1")
    assert (
        client_key("::ffff:192.0.2.1")
        == client_key("192.0.2.1")
        != client_key("192.0.2.2")
        != client_key("unix:")
    )


def test_the_rate_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    guard = made("requests-per-second", {"rate": 2, "burst": 3})
    request = Request("GET", "/", (1, 1))
    statuses = [verdict(guard, request) for _ in range(5)]
    assert statuses == [0, 0, 0, 429, 429]
    assert verdict(guard, request, "192.0.2.2") == 0
    with pytest.raises(HTTPError) as refused:
        ask(guard, request)
    assert refused.value.fields == (("Retry-After", "1"),)
    now += 0.5  # one more, and no request that was refused has counted
    assert [verdict(guard, request) for _ in range(2)] == [0, 429]
    now += 100  # the burst is there again, and no more than that
    assert [verdict(guard, request) for _ in range(4)] == [0, 0, 0, 429]


def test_a_full_table_keeps_those_that_wait_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    rate = Rate(1, 2, SharedTable(buckets=1))
    assert [bool(rate.take(b"one")) for _ in range(3)] == [False, False, True]
    for number in range(100):
        assert not rate.take(b"%d" % number)
    assert rate.take(b"one")
    held = sum(rate.table.get(rate.table.digest(b"rate", b"%d" % number)) > 0 for number in range(100))
    assert held == BUCKET_SLOTS - 1


@pytest.mark.starts_processes
def test_processes_and_threads_count_together() -> None:
    rate = Rate(0.001, 500, SharedTable())

    def take(found: list[int]) -> None:
        found.append(sum(not rate.take(b"client") for _ in range(200)))

    read, write = os.pipe()
    children = []
    for _ in range(3):
        if not (pid := os.fork()):
            found: list[int] = []
            take(found)
            os.write(write, b"%d\n" % found[0])
            os._exit(0)
        children.append(pid)
    own: list[int] = []
    threads = [threading.Thread(target=take, args=(own,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    os.close(write)
    with os.fdopen(read) as told:
        assert sum(own) + sum(int(line) for line in told) == 500


@pytest.mark.starts_processes
def test_a_lock_is_shared_by_processes_and_threads_and_ends_with_its_process() -> None:
    lock = SharedLock()
    file = lock.file
    for is_alone, takes in ((True, [False, False]), (False, [True, False])):
        assert lock.acquire(0, exclusive=is_alone)
        assert takes_of_thread(lock) == takes
        lock.release()
        pid = holding_child(lock, is_alone)
        try:
            assert takes_of_thread(lock) == takes
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert takes_of_thread(lock) == [True, True]
    del lock
    with pytest.raises(OSError):
        os.fstat(file)


def takes_of_thread(lock: SharedLock) -> list[bool]:
    """Return whether another thread can take a lock together with its holders, and alone; it gives it back."""
    found: list[bool] = []

    def take() -> None:
        for exclusive in (False, True):
            found.append(lock.acquire(0.02, exclusive=exclusive))
            if found[-1]:
                lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found


def holding_child(lock: SharedLock, exclusive: bool) -> int:
    """Fork a process that takes a lock and holds it, and return its pid when it has the lock."""
    taken, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:  # no fault of the child may run on into pytest
            os.write(told, b"1" if lock.acquire(20, exclusive=exclusive) else b"0")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(told)
    with os.fdopen(taken, "rb") as answer:
        assert answer.read(1) == b"1"
    return pid


def finished(guard: Any, response: Response, path: str = "/a.html") -> list[tuple[str, str]]:
    before = response.fields
    inner = Inner(response)
    made: Response = run(guard.around(inner, inner).respond(Request("GET", path, (1, 1), path=path), io_of()))
    assert response.fields == before and made.encoded()
    return list(made.fields)


def test_headers() -> None:
    replaced = {"X-Frame-Options": "DENY", "X-Name": "Zoë"}
    table = {"set": replaced, "add": {"Link": ["<a>", "<b>"]}, "remove": ["x-powered-by"]}
    guard = made("headers", table)
    fields = (("X-Powered-By", "PHP"), ("x-frame-options", "SAMEORIGIN"), ("Link", "<c>"))
    assert finished(guard, Response(404, fields, b"none")) == [
        ("Link", "<c>"), ("X-Frame-Options", "DENY"), ("X-Name", "Zo\xc3\xab"), ("Link", "<a>"), ("Link", "<b>"),
    ]  # fmt: skip


@pytest.mark.parametrize("failure", [Disconnected(), OSError(errno.EMFILE, "no descriptor is left")])
def test_a_response_is_closed_if_its_error_page_fails(failure: Exception) -> None:
    """The client leaves while a program makes the page: the connection to an upstream must be given back."""

    class Body(Source):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    class Page:
        async def respond(self, request: Request, io: Stream) -> Response:
            raise failure

    body = Body()
    pages = made("error-pages", {"500": "/page.cgi"}).around(Inner(Response(500, (), body)), Page())
    with pytest.raises(type(failure)):
        run(pages.respond(Request("GET", "/", (1, 1)), io_of()))
    assert body.closed == 1


def test_an_error_page_has_no_fields_of_the_body_that_it_replaces() -> None:
    """A proxy's 404 may be compressed, and the page is not: the client could not decode it."""
    of_404 = (
        ("Content-Type", "text/plain"), ("content-encoding", "gzip"), ("ETag", '"1"'), ("Allow", "GET"),
        ("Set-Cookie", "a=b"), ("Content-Language", "en"),
    )  # fmt: skip
    of_page = (("Content-Type", "text/html"), ("Content-Language", "de"), ("ETag", '"2"'))
    pages = made("error-pages", {"404": "/page"})
    guard = pages.around(
        Inner(Response(404, of_404, b"compressed")), Inner(Response(200, of_page, b"<p>none"))
    )
    response = run(guard.respond(Request("GET", "/", (1, 1)), io_of()))
    assert (response.status, response.body) == (404, b"<p>none")
    assert response.fields == (
        ("Content-Type", "text/html"), ("Content-Language", "de"), ("Allow", "GET"), ("Set-Cookie", "a=b"),
    )  # fmt: skip


def test_an_nph_script_makes_no_error_page() -> None:
    """It writes the status line itself: the client would get its 200 in place of the 404."""

    class Raw(Source):
        raw = True
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    body = Raw()
    before = Response(404, (), b"none")
    guard = made("error-pages", {"404": "/cgi-bin/nph-page"}).around(
        Inner(before), Inner(Response(200, (), body))
    )
    assert run(guard.respond(Request("GET", "/", (1, 1)), io_of())) is before
    assert body.closed == 1


@pytest.mark.parametrize("body", [b"<p>none", (b"<p>none",)])
def test_an_error_page_keeps_the_reason(body: bytes | tuple[bytes, ...]) -> None:
    """A program may name the reason: Status: 404 No such book."""
    before = Response(404, (), b"none", reason="No such book")
    guard = made("error-pages", {"404": "/page"}).around(Inner(before), Inner(Response(200, (), body)))
    response = run(guard.respond(Request("GET", "/", (1, 1)), io_of()))
    assert (response.status, response.reason, response.body) == (404, "No such book", body)


def test_the_name_of_an_error_page_may_have_any_letters() -> None:
    page = Inner(Response(200, (), b"none"))
    guard = made("error-pages", {"404": "/größe.html?lang=de"}).around(Inner(Response(404)), page)
    assert run(guard.respond(Request("GET", "/", (1, 1)), io_of())).body == b"none"
    assert page.seen is not None and (page.seen.path, page.seen.query) == ("/größe.html", "lang=de")


def test_a_command_for_which_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error goes on to the conversation, which answers 503: the command has not failed."""
    guard = made("auth", {"realm": "Members", "command": ["/bin/true"]})

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(programs, "start", none_left)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        ask(guard, Request("GET", "/", (1, 1), (("authorization", "Basic YTpi"),)))


def test_a_password_that_no_pipe_can_hold_reaches_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a full pipe would wait without end: nothing reads before the program is started."""
    guard = made("auth", {"realm": "Members", "command": ["/bin/true"]})

    class Right:
        status = 0

        async def receive(self) -> bytes:
            return b""

    lines: list[bytes] = []

    def start(
        io: Stream, command: object, environment: object, directory: str, stdin: int, *_: object
    ) -> Right:
        lines.append(os.read(stdin, 1 << 20))
        return Right()

    monkeypatch.setattr(programs, "start", start)
    assert log_in(guard, "ada", "x" * 200_000) == 0
    assert lines == [b"ada\n" + b"x" * 200_000 + b"\n"]


def test_expires() -> None:
    guard = made("expires", {"text/html": "0s", "image/*": "30d", "default": "1h"})
    for kind, age in (("text/html; charset=utf-8", 0), ("image/png", 2592000), ("a/b", 3600)):
        fields = dict(finished(guard, Response(200, (("Content-Type", kind),), b"x")))
        assert fields["Cache-Control"] == f"max-age={age}" and fields["Expires"].endswith("GMT")
    assert dict(finished(guard, Response(304), "/a.png"))["Cache-Control"] == "max-age=2592000"
    for kept in (Response(404, (), b"x"), Response(200, (("cache-control", "no-store"),), b"x")):
        assert finished(guard, kept) == list(kept.fields)
    other = (("Content-Type", "c/d"),)
    assert finished(made("expires", {"a/b": "1d"}), Response(200, other)) == list(other)


def test_cache_control() -> None:
    guard = made("cache-control", "public, immutable")
    expires = made("expires", "1y")
    assert finished(guard, Response(200)) == [("Cache-Control", "public, immutable")]
    inner = Inner()
    after = run(expires.around(inner, inner).respond(Request("GET", "/", (1, 1)), io_of()))
    assert dict(finished(guard, after))["Cache-Control"] == "public, immutable, max-age=31536000"
    assert dict(finished(made("cache-control", "no-store"), after))["Cache-Control"] == "no-store"
    assert finished(guard, Response(200, (("Cache-Control", "private"),))) == [("Cache-Control", "private")]
    lines = [("Expires", "0"), ("Cache-Control", "max-age=0"), ("cache-control", "private")]
    assert finished(guard, Response(200, lines)) == lines  # the second line would be lost
    assert finished(guard, Response(500)) == []


def cached_response(take_room: Callable[[int], bool]) -> StorableResponse:
    response = StorableResponse(200, (("X-Powered-By", "PHP"),), b"wool")
    response.prepare_variants(take_room)
    return response


def chain(response: Response, **filters: object) -> Handler:
    """Return the handler for a response with filters around it, the first one innermost."""
    handler: Handler = Inner(response)
    for key, value in filters.items():
        handler = made(key.replace("_", "-"), value).around(handler, handler)
    return handler


def test_the_fields_of_a_cached_response_are_changed_once() -> None:
    asked: list[int] = []
    response = cached_response(lambda size: asked.append(size) is None)
    filters = chain(response, headers={"remove": "x-powered-by"}, cache_control="public")
    first, second = (run(filters.respond(Request("GET", "/", (1, 1)), io_of())) for _ in range(2))
    assert first is second is not response and len(asked) == 2
    assert (list(first.fields), first.body) == ([("Cache-Control", "public")], b"wool")
    assert response.fields == (("X-Powered-By", "PHP"),)
    # Another location's filter of the same kind makes its own response.
    other = run(chain(response, cache_control="private").respond(Request("GET", "/", (1, 1)), io_of()))
    assert dict(other.fields) == {"X-Powered-By": "PHP", "Cache-Control": "private"}


def test_a_field_with_the_time_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room for it is taken once, however many seconds pass."""
    now = 1_000_000_000.2
    monkeypatch.setattr(time, "time", lambda: now)
    asked: list[int] = []
    response = cached_response(lambda size: asked.append(size) is None)
    filters = chain(response, expires="1h", cache_control="public")

    def answer() -> Response:
        found = run(filters.respond(Request("GET", "/", (1, 1)), io_of()))
        assert found.get("cache-control") == "public, max-age=3600"
        return found

    first = answer()
    now += 0.5
    assert answer() is first and first.get("expires") == "Sun, 09 Sep 2001 02:46:40 GMT"
    now += 0.5
    assert answer().get("expires") == "Sun, 09 Sep 2001 02:46:41 GMT"
    assert asked == [FILTERED_BYTES]


def test_changed_fields_are_not_kept_without_room() -> None:
    response = cached_response(lambda size: False)
    filters = chain(response, headers={"set": {"A": "b"}}, expires="1h")
    for _ in range(2):
        found = run(filters.respond(Request("GET", "/", (1, 1)), io_of()))
        assert found.get("a") == "b" and found.get("expires") is not None and not response.filtered


def test_the_cache_counts_responses_with_changed_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each filter's response counts as one more entry of the cache, however many seconds pass."""
    (tmp_path / "ewe.toml").write_text(
        f'documentroot = "{tmp_path}"\ncgi-path = "none"\ncache = "10k"\n[[site]]\n'
        'headers = { set = { A = "b" } }\nexpires = "1h"\ncache-control = "public"\n'
    )
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("wool")
    monkeypatch.setattr(static, "SETTLED_S", -1e9)
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))
    files = site.built[0].plan.static
    now = time.time()
    for path in (*("/0.txt",) * 5, *("/1.txt",) * 5, "/2.txt", "/3.txt"):
        now += 1
        monkeypatch.setattr(time, "time", lambda now=now: now)
        found = run(site.respond(Request("GET", path, (1, 1), path=path), io_of()))
        assert (found.get("a"), found.get("cache-control")) == ("b", "public, max-age=3600")
        known = files.cache.get(path)
        # The first two files fit together; the third one empties the cache.
        assert known is not None or path in ("/2.txt", "/3.txt")
        assert known is None or known.cost == 4 + 4 * static.ENTRY_BYTES
        assert files.used_bytes == sum(entry.cost for entry in files.cache.values()) <= files.room


BAD = [
    ("methods", [], "expected a list of methods"),
    ("methods", ["get"], "in capitals"),
    ("methods", ["G T"], "in capitals"),
    ("methods", ["TRACE"], "no TRACE"),
    ("methods", 3, "expected a list"),
    ("allow", ["192.0.2.1/24"], "the network is 192.0.2.0/24"),
    ("deny", ["x"], "expected addresses"),
    ("allow", ["all"], "leave the setting out"),
    ("allow", [], "expected addresses"),
    ("requests-per-second", 0, "above 0"),
    ("requests-per-second", True, "above 0"),
    ("requests-per-second", {"burst": 3}, "above 0"),
    ("requests-per-second", {"rate": 3, "bust": 3}, 'did you mean "burst"'),
    ("requests-per-second", {"rate": 1, "burst": 0.5}, "from 1"),
    ("requests-per-second", float("nan"), "above 0"),
    ("headers", {"set": {"X-A": "a\r\nSet-Cookie: b"}}, "in one line"),
    ("headers", {"set": {"X-A:": "a"}}, "the name of"),
    ("headers", {"add": {"Content-Length": "3"}}, "ewe itself writes"),
    ("headers", {"remove": ["Date"]}, "ewe itself"),
    ("headers", {"set": {"X\nY": "a"}}, "the name of"),
    ("headers", {"ad": {}}, 'did you mean "add"'),
    ("headers", {"set": {"X-A": 3}}, "in one line"),
    ("headers", {"set": {"X-A": " a"}}, "in one line"),
    ("expires", "soon", "a time such as"),
    ("expires", {"text": "1d"}, "a type such as"),
    ("expires", "99y", "at most 10y"),
    ("cache-control", "a\nb", "in one line"),
    ("cache-control", "", "directives"),
    ("error-pages", {"404": "/<none>"}, "a path, such as"),
    ("error-pages", {"404": "/50%"}, "a path, such as"),
    ("limit-rate", "0", "for each second"),
    ("limit-rate", "fast", "a size in bytes"),
    ("auth", {"realm": "x"}, "either file or command"),
    ("auth", {"file": "/x"}, "realm"),
    ("auth", "x", "expected"),
    ("auth", {"realm": "x\ny", "file": "/x"}, "a name in ASCII"),
    ("auth", {"realm": "x", "file": "/none"}, "No such file"),
    ("auth", {"realm": "x", "command": "check"}, "an absolute path"),
    ("auth", {"realm": "x", "fil": "/x"}, 'mean "file"'),
    ("auth", {"realm": "x", "command": "/x", "timeout": -1}, "a time"),
]


@pytest.mark.parametrize("key, value, words", BAD)
def test_bad_settings(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(key, value)
    text = str(refused.value)
    assert text.startswith(PLACE) and words in text and "\n" not in text


# Of `htpasswd -nb FLAG ada sécret`, FLAG: -B, -5, -2, -m, -s; then those that are refused: -d, -p
HASHES = {
    "bcrypt": "$2y$05$w/Gtb/PpkjcuAjtP4fZSru4YWiDvMhgUFAhZrP3bzRi.k5Clw1nIm",
    "sha512": "$6$pcNgdxhVrFLZx59V$GCMtsUA9dwWcNphZSvQv44gwsm3ZDEdkkEmyUla0AC8DNS"
    "gzgNMZmiAGQ7p5qwOjbbSrFIAvmn8QQm7ZwAmGp.",
    "sha256": "$5$4mAU3Js6zjQ9goZi$34NJYSNMF0hSvlVbFGsmD7j/0rZo7HmiDrldEh86Rf.",
    "apr1": "$apr1$Xk0ziHZh$cwx07GiQ6Z9QW7R5/PW4E1",
    "sha1": "{SHA}4NPDM/3N1xhO4z/lGdXdb9NzViA=",
}  # fmt: skip


def test_every_kind_of_hash() -> None:
    for kind, stored in HASHES.items():
        htpasswd.check_ms_of(stored)
        assert htpasswd.check(stored, "sécret".encode()), kind
        assert not htpasswd.check(stored, b"secret") and not htpasswd.check(stored, b""), kind
    assert not htpasswd.check(HASHES["bcrypt"], b"x" * 200)


@pytest.mark.parametrize(
    "line, words",
    [
        ("ada", "expected NAME:HASH"), (":x", "expected NAME:HASH"), ("ada:RKG0Q6ZHNayco", "DES crypt"),
        ("ada:sécret", "plain text or of an unknown kind"), ("ada:", "plain text"),
        ("ada:$2y$31$w/Gtb/PpkjcuAjtP4fZSru4YWiDvMhgUFAhZrP3bzRi.k5Clw1nIm", "its cost is 31"),
        ("ada:$5$rounds=999$aa$" + "a" * 43, "takes 1000 to"),
        ("ada:$5$rounds=01000$aa$" + "a" * 43, "of an unknown kind"),
        ("ada:$6$rounds=999999999$aa$" + "a" * 86, "rounds"), ("ada:$6$aa$aa", "not complete"),
        (f"ok:{HASHES['sha1']}", "in line 2 already"),
    ],
)  # fmt: skip
def test_bad_lines(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "htpasswd"
    file.write_text(f"# members\nok:{HASHES['sha1']}\n\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        made("auth", {"realm": "x", "file": str(file)})
    assert f"{file} line 4: " in str(refused.value) and words in str(refused.value)


@pytest.mark.parametrize(
    "value, found",
    [
        ("Basic YWRhOnNlY3JldA==", (b"ada", b"secret")), ("bAsIc  YWRhOnNlY3JldA==", (b"ada", b"secret")),
        ("Basic YWRhOg==", (b"ada", b"")), ("Basic YWRhOmE6Yg==", (b"ada", b"a:b")),
        ("Basic YWRhOuk=", (b"ada", "é".encode())), ("Basic YWRhOsOp", (b"ada", "é".encode())),
        ("Basic", None), ("Basic YWRh", None), ("Basic OnNlY3JldA==", None), ("Basic YWRhCjp4", None),
        ("Basic YWRhOnNlY3JldA", None), ("Basic YWRhOnNlY3JldA==, Basic YWRhOnNlY3JldA==", None),
        ("Bearer YWRhOnNlY3JldA==", None), ("Basic é", None), ("", None),
    ],
)  # fmt: skip
def test_credentials(value: str, found: tuple[bytes, bytes] | None) -> None:
    assert parse_basic(value) == found


class Asked:
    """A stand-in for check(): counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes: list[str] = []
        monkeypatch.setattr(htpasswd, "check", self)

    def __call__(self, stored: str, password: bytes) -> bool:
        self.hashes.append(stored)
        return password == b"secret"


def log_in(guard: Auth, name: str, password: str, address: str = "192.0.2.1") -> int:
    from base64 import b64encode

    text = b64encode(f"{name}:{password}".encode()).decode()
    request = Request("GET", "/", (1, 1), (("authorization", f"Basic {text}"),))
    return verdict(guard, request, address)


@pytest.fixture
def guard(tmp_path: Path) -> Auth:
    (tmp_path / "htpasswd").write_text(f"ada:{HASHES['bcrypt']}\nbob:{HASHES['sha1']}\n")
    return made("auth", {"realm": 'The "club"', "file": str(tmp_path / "htpasswd")})


def test_log_in(guard: Auth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = Asked(monkeypatch)
    response = ask(guard, Request("GET", "/", (1, 1)))
    assert response is not None and response.status == 401
    assert response.get("www-authenticate") == 'Basic realm="The \\"club\\"", charset="UTF-8"'
    assert log_in(guard, "ada", "secret") == log_in(guard, "ada", "secret") == 0
    assert asked.hashes == [HASHES["bcrypt"]]  # the second time it is remembered,
    assert log_in(guard, "ada", "secret", "192.0.2.2") == 0
    assert len(asked.hashes) == 2  # but not for another client.
    assert log_in(guard, "ada", "wrong") == 401
    count = len(asked.hashes)
    # Is no further guess, and no further check
    assert {log_in(guard, "ada", "wrong") for _ in range(50)} == {401}
    assert len(asked.hashes) == count
    # An unknown name costs as much as the most expensive known one, and never gets in.
    asked.hashes.clear()
    assert log_in(guard, "eve", "secret") == 401 and asked.hashes == [HASHES["bcrypt"]]
    assert log_in(guard, "ada", "x" * 300) == 401 and len(asked.hashes) == 1
    # A change of the file counts at once, also for those who are remembered.
    monkeypatch.setattr(htpasswd, "CHECK_EVERY_S", -1.0)
    (tmp_path / "htpasswd").write_text(f"ada:plain\nbob:{HASHES['sha1']}\n")
    assert log_in(guard, "ada", "secret") == 401 and log_in(guard, "bob", "secret") == 0
    (tmp_path / "htpasswd").unlink()
    assert log_in(guard, "bob", "secret") == 500
    os.mkfifo(tmp_path / "htpasswd")  # is not waited for
    assert log_in(guard, "bob", "secret") == 500


def test_a_file_that_is_too_long_is_read_once_for_many_requests(
    guard: Auth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Asked(monkeypatch)
    file, by = tmp_path / "htpasswd", guard.checker
    assert isinstance(by, htpasswd.Htpasswd)
    load, loads = by.load, [0]

    def counted() -> tuple[tuple[int, ...], bytes]:
        loads[0] += 1
        return load()

    monkeypatch.setattr(by, "load", counted)
    monkeypatch.setattr(htpasswd, "CHECK_EVERY_S", 3600.0)
    by.bounds = htpasswd.Bounds(100)
    file.write_text(f"bob:{HASHES['sha1']}\n" + "#" * 100)
    by.checked_at -= 7200
    assert [log_in(guard, "bob", "secret") for _ in range(3)] == [500] * 3 and loads == [1]
    file.write_text(f"bob:{HASHES['sha1']}\n")
    assert log_in(guard, "bob", "secret") == 500 and loads == [1]  # until the next check
    by.checked_at -= 7200
    assert log_in(guard, "bob", "secret") == log_in(guard, "bob", "secret") == 0 and loads == [2]


def test_a_slow_thread_does_not_hide_a_newer_password_file(
    guard: Auth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two threads load the file at once. The slower one has read it before its last change."""
    Asked(monkeypatch)
    file, read = tmp_path / "htpasswd", htpasswd.read

    def slow_read(*arguments: Any) -> dict[bytes, htpasswd.PasswordEntry]:
        monkeypatch.setattr(htpasswd, "read", read)
        users = read(*arguments)
        file.write_text("# bob has left\n")
        assert log_in(guard, "bob", "secret") == 401  # in the other thread
        return users

    monkeypatch.setattr(htpasswd, "CHECK_EVERY_S", -1.0)
    monkeypatch.setattr(htpasswd, "read", slow_read)
    file.write_text(f"bob:{HASHES['sha1']}\n")
    assert log_in(guard, "bob", "secret") == 0  # the file as this thread has read it
    assert log_in(guard, "bob", "secret") == 401


def test_what_goes_on(guard: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch)
    request = Request("GET", "/", (1, 1), (("authorization", "Basic YWRhOnNlY3JldA=="), ("accept", "a")))
    inner = Inner()
    run(guard.around(inner, inner).respond(request, io := io_of()))
    assert inner.seen is request  # which equal heads share
    said = inner.variables
    assert said == {b"REMOTE_USER": b"ada", b"AUTH_TYPE": b"Basic"} and not io.variables
    assert io.user == "ada" and hides_authorization(said)
    for passes, variables in ((False, said), (True, {})):
        environ: dict[str, str] = {}
        io.variables = variables
        wsgi.add_request(environ, request, io, "/", 0)
        assert ("HTTP_AUTHORIZATION" in environ) == passes
        lines = passed_fields(request, hides_authorization=hides_authorization(variables))
        assert any("Authorization" in line for line in lines) == passes
    assert not hides_authorization({**said, b"HTTP_AUTHORIZATION": b"passed on"})


def test_the_same_wrong_password_at_once_counts_once(guard: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser sends an old password with many requests. All of them begin before the first check has ended."""
    left = [auth.CLIENT_BURST + 5]

    def check(stored: str, password: bytes) -> bool:
        if left[0]:
            left[0] -= 1
            assert log_in(guard, "ada", "old") == 401
        return password == b"secret"

    monkeypatch.setattr(htpasswd, "check", check)
    assert log_in(guard, "ada", "old") == 401 and left == [0]
    assert log_in(guard, "ada", "secret") == 0


def test_a_client_that_leaves_before_the_answer_is_counted(guard: Auth) -> None:
    """A check takes up to seconds of a processor, also if its client does not wait for the result."""

    class Leaving(Stream):
        async def call(self, *_: object, **__: object) -> Any:
            raise Disconnected

    request = Request("GET", "/", (1, 1), (("authorization", "Basic YWRhOnNlY3JldA=="),))
    for _ in range(auth.CLIENT_BURST):
        with pytest.raises(Disconnected):
            ask(guard, request, Leaving(("192.0.2.1", 5000), ("127.0.0.1", 80), None))  # type: ignore[arg-type]
    assert log_in(guard, "ada", "secret") == 429


def test_guessing(guard: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    asked = Asked(monkeypatch)
    assert log_in(guard, "ada", "secret", "192.0.2.99") == 0
    statuses = [log_in(guard, "ada", f"guess {number}") for number in range(auth.CLIENT_BURST + 3)]
    assert statuses == [401] * auth.CLIENT_BURST + [429] * 3
    # Right or wrong, nothing is told
    assert log_in(guard, "ada", "secret") == log_in(guard, "bob", "secret") == 429
    assert len(asked.hashes) == auth.CLIENT_BURST + 1
    # From many addresses: the name is protected, and its owner still gets in.
    statuses = [log_in(guard, "ada", "guess", f"198.51.100.{number}") for number in range(60)]
    assert statuses.count(401) == auth.USER_BURST - auth.CLIENT_BURST and statuses[-1] == 429
    assert log_in(guard, "ada", "secret", "203.0.113.1") == 429
    now += 70  # past what is remembered
    monkeypatch.setattr(auth, "USER_INTERVAL_S", 5.0)
    for number in range(20):
        log_in(guard, "ada", "guess", f"198.51.101.{number}")
    assert log_in(guard, "ada", "secret", "192.0.2.99") == 0
    assert log_in(guard, "bob", "secret", "203.0.113.1") == 0
    with pytest.raises(HTTPError) as refused:
        request = Request("GET", "/", (1, 1), (("authorization", "Basic YWRhOnNlY3JldA=="),))
        ask(guard, request, io_of("203.0.113.1"))
    assert refused.value.status == 429 and 1 <= int(dict(refused.value.fields)["Retry-After"]) <= 5
