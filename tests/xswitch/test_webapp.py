"""Web applications of X-Switch, found from the variables that web servers send; no JVM is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ewe.config.messages import ConfigError
from ewe.xswitch.engine_kinds import BUILT_IN, EngineKind
from ewe.xswitch.settings import Settings, from_toml
from ewe.xswitch.switch.scheduler import Scheduler
from ewe.xswitch.tools.java import BuildError, build
from ewe.xswitch.user_limits import NO_LIMITS
from ewe.xswitch.webapp import Applications, NoApplication, WebApplication, split_path


@pytest.mark.parametrize(
    ("script_name", "path_info", "inner", "expected"),
    [
        ("/~a/shop", "/do/it", b"", ("/~a/shop", b"/do/it")),  # ewe: the application is the script
        ("/~a/shop", "", b"", ("/~a/shop", b"")),
        ("/~a/shop/", "", b"", ("/~a/shop", b"/")),
        ("/~a/shop/do/it", "", b"/do/it", ("/~a/shop", b"/do/it")),  # nginx: the whole path is
        ("/~a/shop/do", "/it", b"/do", ("/~a/shop", b"/do/it")),  # Apache: the existing part of the path
        ("/~a/shop/do", "/it", b"/do/it", ("/~a/shop", b"/do/it")),
        ("/~a/x/x", "/x", b"/x", ("/~a/x", b"/x/x")),
        ("/do", "", b"/do", ("", b"/do")),
    ],
)
def test_what_an_application_and_its_path_are(
    script_name: str, path_info: str, inner: bytes, expected: tuple[str, bytes]
) -> None:
    params = {b"SCRIPT_NAME": script_name.encode(), b"PATH_INFO": path_info.encode()}
    assert split_path(params, inner) == expected


@pytest.mark.parametrize("script_name", ["", "/other", "shop/do"])
def test_what_does_not_fit(script_name: str) -> None:
    with pytest.raises(NoApplication, match="end alike"):
        split_path({b"SCRIPT_NAME": script_name.encode()}, b"/do")


def test_which_directories_are_applications(tmp_path: Path) -> None:
    """The nearest with a WEB-INF that is no link, below a root or a user's own directory; nothing above."""
    site = tmp_path / "site"
    for inf in ("WEB-INF", "site/WEB-INF", "site/a/WEB-INF", "site/a/b/WEB-INF", "u/public_html/c/WEB-INF"):
        (tmp_path / inf).mkdir(parents=True)
    (site / "linked").mkdir()
    (site / "linked" / "WEB-INF").symlink_to(site / "a" / "WEB-INF")
    (site / "alias").symlink_to(site / "a")
    settings = Settings(roots=(str(site),))

    def find(path: str, method: bytes = b"GET") -> WebApplication | None:
        params = {b"REQUEST_METHOD": method, b"SCRIPT_NAME": f"/{path}".encode()}
        return Applications().find(f"{tmp_path}/{path}", params, settings)

    assert find("site/a/x/y") == WebApplication(f"{site}/a", "/site/a", b"/x/y")
    assert find("site/a/b/x") == WebApplication(f"{site}/a/b", "/site/a/b", b"/x")
    assert find("site/alias/x") == WebApplication(f"{site}/alias", "/site/alias", b"/x")
    assert find("u/public_html/c") == WebApplication(f"{tmp_path}/u/public_html/c", "/u/public_html/c", b"")
    for path in ("", "/", "/;jsessionid=1", "/x/", "/x;y/;z"):  # the last may be empty
        assert find(f"site/a{path}") == WebApplication(f"{site}/a", "/site/a", path.encode())
    for path in ("site/x.py", "site/linked/x", "u/x", "x", "site"):
        assert find(path) is None
    with pytest.raises(NoApplication, match="method"):
        find("site/a/x", b"M-SEARCH")
    for path, status in (
        ("a/web-inf/x", 404), ("a/x/META-INF;a", 404), ("a/x/../y", 400), ("a/./y", 400),
        ("a//x", 400), ("a/;/x", 400), ("a/x/;y=1/z", 400), ("/a/x", 400),
    ):  # fmt: skip
        with pytest.raises(NoApplication) as caught:
            find(f"site/{path}")
        assert caught.value.status == status


def test_a_path_that_no_file_can_have_is_not_cached() -> None:
    applications = Applications()
    for length in (10, 5000):
        assert applications.directory_of("/" + "x" * length, Settings()) == ""
    assert len(applications.directories) == 1


def test_only_what_jetty_can_read(tmp_path: Path) -> None:
    """Jetty's connector does not answer a request if a parameter has an unexpected value."""
    odd = {
        b"HTTP_X__Y": b"1", b"HTTP_": b"1", b"HTTP_X_": b"1", b"HTTP_EXPECT": b"100-continue", b"HTTP_HOST": b"a b",
        b"HTTP_CONTENT_LENGTH": b"7", b"CONTENT_LENGTH": b"5", b"CONTENT_TYPE": b"a/b", b"HTTP_COOKIE": b"c=1",
        b"REMOTE_ADDR": b"unix:", b"REMOTE_PORT": b"70000", b"SERVER_PORT": b"65000", b"SERVER_NAME": b"[::1]",
        b"REQUEST_METHOD": b"GET", b"SERVER_PROTOCOL": b"HTTP/9", b"QUERY_STRING": b"a=%20b#c d\xff",
        b"HTTPS": b"off",
    }  # fmt: skip
    application = WebApplication("/srv/shop", "/~a/shop", "/a b%/ü?;c=1".encode())
    assert application.variables(odd) == {
        b"HTTP_HOST": b"[::1]", b"HTTP_CONTENT_LENGTH": b"5", b"HTTP_CONTENT_TYPE": b"a/b", b"HTTP_COOKIE": b"c=1",
        b"CONTENT_LENGTH": b"5", b"CONTENT_TYPE": b"a/b", b"SERVER_PORT": b"65000", b"SERVER_NAME": b"[::1]",
        b"REQUEST_METHOD": b"GET", b"SERVER_PROTOCOL": b"HTTP/1.1", b"QUERY_STRING": b"a=%20b%23c%20d%FF",
        b"DOCUMENT_URI": b"/~a/shop/a%20b%25/%C3%BC%3F;c=1",
        b"XSWITCH_APPLICATION": b"/srv/shop", b"XSWITCH_CONTEXT": b"/~a/shop",
    }  # fmt: skip


def test_a_host_that_jetty_cannot_read_is_replaced_by_the_servers_name() -> None:
    """nginx passes any port and any text in brackets on. Jetty would not answer such a request."""
    good = [b"a-b.example:65535", b"a:1", b"[::1]", b"[::ffff:1.2.3.4]:80"]
    bad = [b"a:0", b"a:65536", b"a:", b"[1.2.3.4]", b"[::::]", b"[::1]:99999", b""]
    application = WebApplication("/srv/shop", "/shop", b"/")
    hosts = [
        application.variables({b"HTTP_HOST": host, b"SERVER_NAME": b"server"})[b"HTTP_HOST"]
        for host in (*good, *bad)
    ]
    assert hosts == [*good, *[b"server"] * len(bad)]


# Several requests to one engine


class Request:
    def __init__(self) -> None:
        self.user = "alice"
        self.key = ("alice", "java")
        self.limits = NO_LIMITS
        self.queued_at = 0.0
        self.engine: Engine | None = None

    def refuse(self, status: int, cause: str) -> None:
        raise AssertionError(cause)


class Engine:
    """Runs three at once."""

    def __init__(self, scheduler: Scheduler[Request, Engine]) -> None:
        self.scheduler = scheduler
        self.user, self.language = "alice", "java"
        self.key = ("alice", "java")
        self.used_at = 0.0
        self.deadline = float("inf")
        self.ended_requests = self.running = 0
        self.retired = False

    def has_room(self) -> bool:
        return self.running < 3

    def check_spinning(self) -> bool:
        return False

    def assign(self, request: Request) -> None:
        assert self.has_room() and not self.retired
        self.running += 1
        request.engine = self

    def done(self) -> None:
        self.running -= 1
        self.ended_requests += 1
        if self.running:
            self.scheduler.dispatch()
        else:
            self.scheduler.release(self)

    def close(self) -> None:
        self.retired = True

    def expire(self) -> None:
        raise AssertionError("nothing takes long")

    def memory_bytes(self) -> int:
        return 300 << 20


def test_an_engine_that_runs_several() -> None:
    """Per user one process: a fourth request waits; limits count processes; it is idle when it runs none."""
    kinds = {"java": EngineKind("java", ("x",), per_user=1, connections=3, max_memory=0, max_requests=0)}
    started: list[Engine] = []

    def start(request: Request) -> Engine:
        started.append(Engine(scheduler))
        started[-1].assign(request)
        return started[-1]

    scheduler: Scheduler[Request, Engine] = Scheduler(Settings(engines=kinds, max_requests=2), start)
    requests = [Request() for _ in range(5)]
    for request in requests:
        scheduler.submit(request)
    assert len(started) == 1 and scheduler.waiting == 2 and started[0].running == 3
    started[0].done()
    assert scheduler.waiting == 1 and started[0].running == 3
    for _ in range(4):
        started[0].done()
    assert scheduler.waiting == 0 and all(request.engine is started[0] for request in requests)
    assert scheduler.idle[("alice", "java")] == started
    scheduler.tick(100)
    assert not started[0].retired  # neither its memory nor what it has served
    scheduler.tick(1000)
    assert started[0].retired and not scheduler.engines


# Settings, and the build


def test_settings_of_an_engine() -> None:
    settings = from_toml({"max-memory": "99m", "engines": {"java": {"connections": 2, "max-memory": 0}}}, "x")
    assert settings.engines["java"].connections == 2
    assert settings.max_memory_of("java") == float("inf") == settings.max_requests_of("java")
    assert settings.max_memory_of("python") == 99 << 20 and settings.max_requests_of("none") == 10_000
    limits = settings.engine_limits(settings.engines["java"])
    assert (limits.memory, limits.processes, limits.files) == (0, 256, settings.limits.files)
    assert settings.engine_limits(settings.engines["perl"]) == settings.limits
    assert BUILT_IN["java"].program  # and another command needs nothing built
    assert not from_toml({"engines": {"java": {"command": ["x"]}}}, "x").engines["java"].program
    with pytest.raises(ConfigError, match=r'\[engines.perl\]: connections needs protocol = "fastcgi"'):
        from_toml({"engines": {"perl": {"connections": 2}}}, "x")


@pytest.mark.starts_processes
def test_a_build_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"^mvn is not installed: .*Maven"):
        build()
    for name in ("mvn", "java", "javac"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    source = tmp_path / "source"
    source.mkdir()
    (source / "pom.xml").write_text("")
    monkeypatch.setattr("ewe.xswitch.tools.java.SOURCE", source)
    with pytest.raises(BuildError, match=r"^mvn failed: no network$"):
        build()
