"""LibCGI libraries behind X-Switch: each runs as its owner, and harms nobody else's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import web
from support.libcgi import DOES, SECOND, compiled, engine, install
from support.server import MODELS, ROOT, Start
from support.xswitch_client import XSwitch, account, xswitch

pytestmark = pytest.mark.starts_processes
LARGE = 100_000_000  # bytes
BODY = os.urandom(1_000_000)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine()
    return compiled(tmp_path_factory.mktemp("libraries"), "does", DOES)


@pytest.fixture(scope="module")
def second(library: Path) -> Path:
    return compiled(library.parent, "second", SECOND)


@pytest.fixture(scope="module")
def running(library: Path) -> Iterator[XSwitch]:
    with xswitch("time-limit = '2s'") as started:
        install(library, started.site / "does.so")
        yield started


def ask(running: XSwitch, query: str) -> tuple[int, str]:
    reply = running.ask(running.site / "does.so", QUERY_STRING=query)
    return reply.status, reply.text


def test_a_library_stays_and_runs_as_the_configured_user(running: XSwitch) -> None:
    first, second = (ask(running, "")[1].split() for _ in range(2))
    assert (int(second[0]), second[1]) == (int(first[0]) + 1, first[1])
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert int(first[2]) == user


def test_a_fault_is_one_answer(running: XSwitch) -> None:
    """500 if nothing was sent, a cut if something was; the next request has another engine."""
    for query in ("segv", "exit", "overflow"):
        assert ask(running, query)[0] == 500
        running.wait_for_log("does.so: 500: processfunc()")
        assert ask(running, f"late-{query}")[0] == 0
        assert ask(running, "")[0] == 200
    running.wait_for_log("cut within its response")
    assert ask(running, "loop")[0] == 504
    assert ask(running, "close")[0] in (200, 502)  # it has closed the host's own descriptors
    assert ask(running, "")[0] == 200


def test_a_changed_library_is_another(running: XSwitch, library: Path, second: Path) -> None:
    path = install(library, running.site / "changing.so")
    assert running.ask(path, QUERY_STRING="").status == 200
    install(second, running.site / "new").rename(path)
    assert running.ask(path).text == "second"
    install(library, path)  # written into the same file
    assert running.ask(path, QUERY_STRING="").text.split()[0] == "1"


def test_nothing_of_a_request_stays(running: XSwitch) -> None:
    assert ask(running, "change")[0] == 200
    assert ask(running, "cwd")[1] == str(running.site)


def test_a_host_that_is_not_built(library: Path) -> None:
    """The answer is 503, since the host may be built later. The log names the command."""
    with xswitch(copy_mode=0o755) as running:
        copy = install(library, running.site / "does.so")
        host = running.directory / "copy" / Path(engine()).relative_to(ROOT)
        assert running.ask(copy).status == 503
        running.wait_for_log("the engine libcgi is not built: run `ewe-xswitch libcgi`")
        install(Path(engine()), host)
        assert running.ask(copy, QUERY_STRING="").status == 200


@pytest.mark.parametrize("model", [*MODELS, "asyncio --loop asyncio"])
def test_libraries_of_the_site_behind_every_model(
    start: Start, site: Path, running: XSwitch, library: Path, model: str
) -> None:
    """One engine keeps the library for all workers; a client gets what the library wrote, or notices a cut."""
    (site / "libcgi-bin").symlink_to(running.site)
    server = start(
        model, "--xswitch", running.address, "--libcgi-path", str(site / "libcgi-bin"),
        "--libcgi-isolation", "process", "--libcgi-timeout", "500ms",
    )  # fmt: skip
    (running.site / "notes.txt").write_text("secret")
    with web.Client(base_url=f"{server.url}libcgi-bin/", timeout=30) as client:
        pids = {client.get("does.so?-").text.split()[1] for _ in range(5)}
        assert len(pids) == 1 and int(pids.pop()) not in server.processes()
        assert client.post("does.so/a/b?echo", content=BODY).content == BODY
        assert client.post("does.so?echo", content=iter((b"in ", b"chunks"))).content == b"in chunks"
        for query in ("segv", "loop", "no-head"):
            assert client.get(f"does.so?{query}").status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("does.so?late-segv")
        assert client.head("does.so?-").status_code == 200
        assert [client.get(name).status_code for name in ("notes.txt", "none.so", "")] == [404, 404, 404]
        assert client.get("does.so?-").status_code == 200
    running.wait_for_log("longer than its limit (libcgi-timeout)")


def test_a_model_with_its_own_x_switch(start: Start, site: Path, library: Path) -> None:
    install(library, site / "libcgi-bin" / "does.so")
    options = ("--libcgi-path", str(site / "libcgi-bin"), "--libcgi-isolation", "process")
    server = start("xswitch", *options)
    with web.Client(base_url=f"{server.url}libcgi-bin/", timeout=30) as client:
        assert client.get("does.so?segv").status_code == 500
        assert client.get("does.so?-").text.split()[0] == "1"
        large = os.urandom(LARGE)
        assert client.post("does.so?echo", content=large).content == large
    with pytest.raises(AssertionError, match=r"libcgi-isolation.*need X-Switch"):
        start("thread", *options)


@pytest.fixture
def alice() -> Iterator[pwd.struct_passwd]:
    with account() as made:
        yield made


@pytest.mark.needs("root")
def test_a_users_libraries(alice: pwd.struct_passwd, start: Start, site: Path, library: Path) -> None:
    """Libraries in cgi-bin and libcgi-bin run as their owner. One that others may have written does not run."""
    public = Path(alice.pw_dir) / "public_html"
    install(library, public / "cgi-bin" / "does.so")
    install(library, public / "libcgi-bin" / "does.so")
    install(library, public / "libcgi-bin" / "loose.so").chmod(0o777)
    (public / "libcgi-bin" / "does.c").write_text("secret")
    for path in (public, *public.rglob("*")):
        os.chown(path, alice.pw_uid, alice.pw_gid)
    install(library, public / "libcgi-bin" / "roots.so")
    server = start("xswitch")
    with web.Client(base_url=f"{server.url}~{alice.pw_name}/", timeout=30) as client:
        found = [client.get(f"{each}/does.so?-").text.split() for each in ("cgi-bin", "libcgi-bin")]
        assert {int(words[2]) for words in found} == {alice.pw_uid}, server.log()
        assert client.get("libcgi-bin/loose.so").status_code == 403
        assert client.get("libcgi-bin/roots.so").status_code == 403
        source = client.get("libcgi-bin/does.c")
        assert source.status_code >= 400 and "secret" not in source.text
        assert client.get("libcgi-bin/none.so").status_code == 404
        assert client.get("libcgi-bin/does.so?segv").status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("libcgi-bin/does.so?late-segv")
        assert client.get("libcgi-bin/does.so?-").status_code == 200
    server.wait_for_log("writable by others")
