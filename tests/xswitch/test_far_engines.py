"""Engines on another machine: two X-Switches with certificates, real sockets, and each failure between them."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import web
from support.certificates import Authority, authority, tls_settings
from support.server import Server, Start, free_port, wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, XSwitch, account, xswitch

from ewe.xswitch.switch.far_engine import RETRY_S, SILENT_S
from ewe.xswitch.switch.tls_acceptor import HANDSHAKE_S

pytestmark = pytest.mark.starts_processes

ECHO = f"import sys\nprint('{HEAD}', flush=True)\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"
SLEEP = f"""import sys, time
print("began", file=sys.stderr, flush=True)
time.sleep(float(open(__file__ + ".seconds").read()))
print("{HEAD}\\nslept")
"""
LARGE = f"import sys\nprint('{HEAD}', flush=True)\nsys.stdout.buffer.write(b'x' * 30_000_000)\n"
MB = 1 << 20


@pytest.fixture(scope="module")
def ca() -> Iterator[Authority]:
    with authority() as made:
        yield made


@contextmanager
def near_of(ca: Authority, port: int, settings: str = "", tables: str = "") -> Iterator[XSwitch]:
    """Run an X-Switch whose engines for the files below /far/ are at a port. Its own scripts run here."""
    far = (
        f'[engines.far]\naddress = "127.0.0.1:{port}"\nextensions = [".far"]\n[directories]\n"/far" = "far"\n'
    )
    with xswitch(f"{settings or tls_settings(ca, 'near')}\n{far}{tables}") as running:
        yield running


@contextmanager
def far_at(ca: Authority, port: int, settings: str = "") -> Iterator[XSwitch]:
    """Run an X-Switch that has engines for others."""
    with xswitch(f"{tls_settings(ca, 'far')}\n{settings}", listen=f"tls:127.0.0.1:{port}") as running:
        yield running


class Pair:
    """Two X-Switches. Requests for the files of `far` go there by the extension .far, or by the directory."""

    def __init__(self, near: XSwitch, far: XSwitch) -> None:
        self.near, self.far = near, far

    def script(self, name: str, text: str, seconds: float = 0) -> Path:
        """Write a script there, which sleeps for so long."""
        path = self.far.script(name, text)
        path.with_name(f"{path.name}.seconds").write_text(str(seconds))
        return path


@contextmanager
def pair_of(ca: Authority, settings: str = "", port: int = 0) -> Iterator[Pair]:
    """Run two X-Switches. settings: of the far one."""
    port = port or free_port()
    python = f'{settings}\n[engines.python]\nextensions = [".py", ".far"]\n'
    with far_at(ca, port, python) as far, near_of(ca, port) as near:
        wait_for_state(near, "up")
        yield Pair(near, far)


@pytest.fixture(scope="module")
def pair(ca: Authority) -> Iterator[Pair]:
    with pair_of(ca, 'max-engines-per-user = 40\nabandoned = "300ms"') as made:
        yield made


def state_of(near: XSwitch) -> dict[str, Any]:
    [state] = near.status()["far"]
    return dict(state)


def wait_for_state(near: XSwitch, state: str, seconds: float = 15) -> None:
    wait_until(lambda: state_of(near)["state"] == state, seconds, lambda: f"{state_of(near)}\n{near.log()}")


def wait_for_running(near: XSwitch, count: int) -> None:
    wait_until(lambda: state_of(near)["running"] == count, 10, lambda: f"{state_of(near)}\n{near.log()}")


def seconds_of(reply: Any) -> float:
    """Return how long a call takes."""
    began = time.monotonic()
    reply()
    return time.monotonic() - began


# Requests


def test_a_script_runs_there_and_others_run_here(pair: Pair) -> None:
    """The file is only there; its environment is made there, and the connection is kept."""
    code = f"import os\nprint('{HEAD}')\nprint(os.environ['SCRIPT_FILENAME'], os.environ['REMOTE_ADDR'])\n"
    there = pair.script("where.far", code)
    here = pair.near.script("here.py", PYTHON_HELLO)
    before = state_of(pair.near)["requests"]
    for _ in range(5):
        assert pair.near.ask(there, REMOTE_ADDR="192.0.2.9").text == f"{there} 192.0.2.9\n"
    assert pair.near.ask(here).text == "hello\n"
    state = state_of(pair.near)
    assert (state["state"], state["running"]) == ("up", 0)
    assert state["requests"] == before + 5
    assert state["connections"] < 5
    assert [engine["script"] for engine in pair.near.engines()] == [str(here)]


def test_what_the_other_machine_refuses_is_its_answer(pair: Pair) -> None:
    """A script that is not there, one that others may write, and one that writes nothing."""
    assert pair.near.ask("/far/none.far").status == 404
    writable = pair.far.script("open.far", PYTHON_HELLO, 0o777)
    assert pair.near.ask(writable).status == 403
    assert pair.near.ask(pair.script("silent.far", "")).status == 502
    pair.far.wait_for_log("chmod go-w")


def test_megabytes_go_both_ways(pair: Pair) -> None:
    body = os.urandom(5 * MB)
    reply = pair.near.ask(pair.script("echo.far", ECHO), body)
    assert (reply.status, len(reply.body), reply.body == body) == (200, len(body), True)


def test_the_directory_and_the_parameter_lead_there(pair: Pair) -> None:
    """A web server may name the engine. The far X-Switch must not see that name: it has no such engine."""
    path = pair.far.script("named.py", PYTHON_HELLO)
    assert pair.near.ask(path, XSWITCH_ENGINE="far").text == "hello\n"
    assert pair.near.ask("/far/any.py").status == 404
    pair.far.wait_for_log("/far/any.py: 404")


def test_many_requests_run_at_once(pair: Pair) -> None:
    path = pair.script("slow.far", SLEEP, 1.5)
    waiting = [pair.near.asking(path) for _ in range(30)]
    wait_until(lambda: state_of(pair.near)["running"] == 30, 10, lambda: str(state_of(pair.near)))
    assert [wait().status for wait in waiting] == [200] * 30


def test_a_slow_client_delays_no_other(pair: Pair) -> None:
    """A client that reads nothing of 30 MB: the next request does not wait behind it, and all bytes come."""
    large, hello = pair.script("large.far", LARGE), pair.script("hello.far", PYTHON_HELLO)
    pair.near.ask(hello)
    with pair.near.connect() as slow:
        slow.send(large)
        time.sleep(0.5)
        assert max(seconds_of(lambda: pair.near.ask(hello)) for _ in range(5)) < 5
        assert len(slow.read().body) == 30_000_000, pair.near.log() + pair.far.log()


def test_a_client_that_leaves_ends_the_request_there(pair: Pair) -> None:
    path = pair.script("left.far", SLEEP, 60)
    with pair.near.connect() as connection:
        connection.send(path)
        pair.far.wait_for_log("left.far: began")
        assert state_of(pair.near)["running"] == 1
    wait_for_running(pair.near, 0)
    pair.far.wait_for_log("left.far: its client left, and it was ended (abandoned)")


def test_a_body_that_breaks_off_ends_the_request_there(pair: Pair) -> None:
    path = pair.script("echo.far", ECHO)
    pair.near.ask(path)  # the next request has a connection already
    with pair.near.connect() as connection:
        connection.send(path, None, CONTENT_LENGTH="1000000")
        connection.sock.sendall(connection.requester.input(b"x" * 1000))
        wait_for_running(pair.near, 1)
    wait_for_running(pair.near, 0)
    pair.far.wait_for_log("the client left before its body was complete")


# The other machine ends, hangs, comes back


def test_a_machine_that_dies_and_comes_back(ca: Authority) -> None:
    """A running POST gets 502; others get 503 with Retry-After at once; afterwards all is as before."""
    port = free_port()
    with ExitStack() as stack, pair_of(ca, port=port) as first, first.near.connect() as connection:
        connection.send(first.script("slow.far", SLEEP, 60), b"x")
        first.far.wait_for_log("slow.far: began")
        os.kill(first.far.process.pid, signal.SIGKILL)
        assert connection.read().status == 502
        wait_for_state(first.near, "down")
        reply = first.near.ask("/far/hello.far")
        assert (reply.status, "retry-after" in reply.fields) == (503, True)
        assert first.near.ask(first.near.script("here.py", PYTHON_HELLO)).status == 200
        second = stack.enter_context(far_at(ca, port))
        wait_for_state(first.near, "up", RETRY_S + 10)
        path = second.script("hello.py", PYTHON_HELLO)
        assert first.near.ask(path, XSWITCH_ENGINE="far").text == "hello\n"
        log = first.near.log()
        assert [log.count(f"127.0.0.1:{port}: {word}") for word in ("down", "it answers")] == [1, 2]


def test_a_get_is_repeated_when_the_other_x_switch_starts_again(pair: Pair) -> None:
    """Its main module is killed while a GET runs. The supervisor there keeps the socket open."""
    path = pair.script("again.far", SLEEP, 2)
    short = pair.script("short.far", SLEEP, 0.5)
    for each in [pair.near.asking(short) for _ in range(10)]:  # ten connections that the near end keeps
        assert each().status == 200
    wait = pair.near.asking(path)
    wait_for_running(pair.near, 1)
    os.kill(pair.far.members()["main"], signal.SIGKILL)
    assert wait().text == "slept\n"
    wait_for_state(pair.near, "up")


def test_a_machine_that_hangs(ca: Authority) -> None:
    """Requests get 503 at once after SILENT_S. One that runs meanwhile is answered when the machine goes on."""
    with pair_of(ca) as pair:
        here = pair.near.script("here.py", PYTHON_HELLO)
        pair.near.ask(pair.script("hello.far", PYTHON_HELLO))  # the next request has a connection already
        wait = pair.near.asking(pair.script("slow.far", SLEEP, 1))
        wait_for_running(pair.near, 1)
        main = pair.far.members()["main"]
        os.kill(main, signal.SIGSTOP)
        try:
            wait_for_state(pair.near, "down", SILENT_S + 10)
            assert seconds_of(lambda: pair.near.ask(here)) < 5
            reply = pair.near.ask("/far/hello.far")
            assert (reply.status, "retry-after" in reply.fields) == (503, True)
            assert f"no answer for {SILENT_S:g} s" in state_of(pair.near)["reason"]
        finally:
            os.kill(main, signal.SIGCONT)
        assert wait().text == "slept\n"
        wait_for_state(pair.near, "up")
        assert pair.near.ask(pair.script("hello.far", PYTHON_HELLO)).text == "hello\n"


def test_a_script_that_takes_too_long_there(ca: Authority) -> None:
    with pair_of(ca, 'time-limit = "1s"') as pair:
        assert pair.near.ask(pair.script("slow.far", SLEEP, 60)).status == 504


class Cable:
    """A relay between the two X-Switches that can lose everything, as a network without a route does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.is_cut = threading.Event()
        self.ends = threading.Event()
        self.peers: dict[socket.socket, socket.socket] = {}
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.ends.is_set():
            if self.is_cut.is_set():
                time.sleep(0.05)
                continue
            for sock in select.select([self.listener, *self.peers], [], [], 0.05)[0]:
                if sock is self.listener:
                    end, other = sock.accept()[0], socket.create_connection(("127.0.0.1", self.port))
                    self.peers[end], self.peers[other] = other, end
                elif sock in self.peers and not self.forward(sock):
                    other = self.peers.pop(sock)
                    del self.peers[other]
                    sock.close()
                    other.close()

    def forward(self, sock: socket.socket) -> bool:
        try:
            data = sock.recv(65536)
            self.peers[sock].sendall(data)
        except OSError:
            return False
        return bool(data)

    def close(self) -> None:
        self.ends.set()
        self.thread.join()
        for sock in (self.listener, *self.peers):
            sock.close()


def test_a_connection_that_is_half_open(ca: Authority) -> None:
    """Nothing more arrives, and no end of a connection: the state is down after SILENT_S, and up again later."""
    port = free_port()
    with far_at(ca, port) as far, closing(Cable(port)) as cable, near_of(ca, cable.address[1]) as near:
        wait_for_state(near, "up")
        path = far.script("hello.py", PYTHON_HELLO)
        assert near.ask(path, XSWITCH_ENGINE="far").status == 200
        cable.is_cut.set()
        wait_for_state(near, "down", SILENT_S + 10)
        assert near.ask(path, XSWITCH_ENGINE="far").status == 503
        cable.is_cut.clear()
        wait_for_state(near, "up", RETRY_S + 15)
        assert near.ask(path, XSWITCH_ENGINE="far").status == 200


# Connections of strangers, and certificates


def client_context(certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
    """Return the context of a stranger, who believes every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def what_a_client_gets(far: XSwitch, certificate: tuple[Path, Path] | None) -> bytes:
    """Ask a question of FastCGI over TLS; return the first bytes of the answer."""
    host, _, port = far.address.removeprefix("tls:").partition(":")
    ask = bytes.fromhex("0101000100080000 0001000000000000 0104000100000000 0105000100000000")
    with socket.create_connection((host, int(port)), 20) as plain:
        try:
            with client_context(certificate).wrap_socket(plain) as sock:
                sock.sendall(ask)
                return sock.recv(1000)
        except (ssl.SSLError, ConnectionResetError):
            return b""


def test_a_stranger_gets_nothing(ca: Authority, pair: Pair) -> None:
    """No certificate, that of another CA, an expired one, one for servers alone: a line of the log each."""
    with authority() as other:
        for certificate in (
            None,
            other.sign("mallory"),
            ca.sign("old", days=-1),
            ca.sign("server", usage="serverAuth"),
        ):
            before = pair.far.log().count("127.0.0.1 was refused")
            assert what_a_client_gets(pair.far, certificate) == b""
            wait_until(
                lambda before=before: pair.far.log().count("127.0.0.1 was refused") == before + 1,
                10, pair.far.log,
            )  # fmt: skip
    assert what_a_client_gets(pair.far, ca.sign("client", usage="clientAuth")) != b""


def test_garbage_before_and_after_the_handshake(ca: Authority, pair: Pair) -> None:
    host, _, port = pair.far.address.removeprefix("tls:").partition(":")
    for garbage in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0" * 1000,
        os.urandom(4000),
        b"\x16\x03\x01\x40\x00" + b"A" * 16384,
    ):
        with socket.create_connection((host, int(port)), 20) as sock:
            try:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1000):  # an alert of TLS at most
                    pass
            except OSError:  # it is closed already
                pass
    plain = socket.create_connection((host, int(port)), 20)
    with client_context(ca.sign("trusted")).wrap_socket(plain) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert sock.recv(1000) == b""
    pair.far.wait_for_log("this is not FastCGI 1.0")
    assert pair.near.ask(pair.script("hello.far", PYTHON_HELLO)).text == "hello\n"


def test_two_hundred_slow_handshakes_hold_nobody_up(pair: Pair) -> None:
    """Each sends the first byte of a handshake. The others are served, and each is closed after HANDSHAKE_S."""
    host, _, port = pair.far.address.removeprefix("tls:").partition(":")
    hello = pair.script("hello.far", PYTHON_HELLO)
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(200)]
        for sock in held:
            sock.sendall(b"\x16")
        assert max(seconds_of(lambda: pair.near.ask(hello)) for _ in range(10)) < 2
        began = time.monotonic()
        for sock in held:
            assert sock.recv(100) == b""
        assert time.monotonic() - began < HANDSHAKE_S + 10
    assert pair.far.log().count("no handshake within") <= 30


def test_the_far_machine_must_show_its_certificate(ca: Authority) -> None:
    """A certificate of another CA, and one for another address: requests get 503, and the log says why."""
    with authority() as other:
        for settings, words in (
            (tls_settings(other, "far", trusted=ca.certificate), "its certificate is not trusted"),
            (tls_settings(ca, "elsewhere", address="192.0.2.1"), "IP address mismatch"),
        ):
            port = free_port()
            with xswitch(settings, listen=f"tls:127.0.0.1:{port}"), near_of(ca, port) as near:
                wait_for_state(near, "down")
                assert words in state_of(near)["reason"]
                assert near.ask("/far/hello.far").status == 503
                assert near.log().count("down, its certificate is not trusted") == 1


def test_pinned_certificates(ca: Authority) -> None:
    """tls-ca may hold the peer's own certificate: another one of the same CA is then refused."""
    port = free_port()
    near_pem, near_key = ca.sign("near")
    far_pem, far_key = ca.sign("far")
    pinned = f'tls-cert = "{far_pem}"\ntls-key = "{far_key}"\ntls-ca = "{near_pem}"\n'
    with xswitch(pinned, listen=f"tls:127.0.0.1:{port}") as far:
        near_settings = f'tls-cert = "{near_pem}"\ntls-key = "{near_key}"\ntls-ca = "{far_pem}"\n'
        with near_of(ca, port, near_settings) as near:
            wait_for_state(near, "up")
            assert what_a_client_gets(far, ca.sign("third")) == b""


def test_renewed_certificates_count_after_hup(ca: Authority, tmp_path: Path) -> None:
    """Both get certificates of a new CA. The old ones count no more, and a request that runs goes on."""
    port = free_port()
    files = {name: tmp_path / name for name in ("cert", "key", "ca")}
    settings = "".join(f'tls-{name} = "{path}"\n' for name, path in files.items())

    def install(authority: Authority) -> tuple[Path, Path]:
        pair = authority.sign("both")
        for name, source in (("cert", pair[0]), ("key", pair[1]), ("ca", authority.certificate)):
            files[name].write_bytes(source.read_bytes())
            files[name].chmod(0o600)
        return pair

    old = install(ca)
    with xswitch(settings, listen=f"tls:127.0.0.1:{port}") as far, near_of(ca, port, settings) as near:
        wait_for_state(near, "up")
        slow = far.script("slow.py", SLEEP)
        slow.with_name("slow.py.seconds").write_text("2")
        wait = near.asking(slow, XSWITCH_ENGINE="far")
        wait_for_running(near, 1)
        with authority() as other:
            install(other)
            for each in (far, near):
                each.process.send_signal(signal.SIGHUP)
                each.wait_for_log("the settings were read again")
        assert wait().text == "slept\n"
        wait_for_state(near, "up")
        assert near.ask(far.script("hello.py", PYTHON_HELLO), XSWITCH_ENGINE="far").text == "hello\n"
        assert what_a_client_gets(far, old) == b""


def test_a_certificate_that_is_no_longer_trusted(ca: Authority, tmp_path: Path) -> None:
    """The far machine trusts another CA after a restart: the state is down, although each handshake succeeds."""
    port = free_port()
    certificate, key = ca.sign("far")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(ca.certificate.read_bytes())
    settings = f'tls-cert = "{certificate}"\ntls-key = "{key}"\ntls-ca = "{trusted}"\n'
    with (
        xswitch(settings, listen=f"tls:127.0.0.1:{port}") as far,
        near_of(ca, port) as near,
        authority() as other,
    ):
        wait_for_state(near, "up")
        trusted.write_bytes(other.certificate.read_bytes())
        far.process.send_signal(signal.SIGHUP)
        far.wait_for_log("the settings were read again")
        os.kill(far.members()["main"], signal.SIGKILL)
        wait_for_state(near, "down")
        assert "it refuses the certificate of this X-Switch" in near.log()


def test_the_address_of_the_engines_changes_by_reload(ca: Authority) -> None:
    """A request that runs on the former machine is answered; the next one goes to the other machine."""
    ports = free_port(), free_port()
    with far_at(ca, ports[0]) as first, far_at(ca, ports[1]) as second, near_of(ca, ports[0]) as near:
        wait_for_state(near, "up")
        slow = first.script("slow.py", SLEEP)
        slow.with_name("slow.py.seconds").write_text("2")
        wait = near.asking(slow, XSWITCH_ENGINE="far")
        wait_for_running(near, 1)
        config = near.directory / "xswitch.toml"
        config.write_text(config.read_text().replace(str(ports[0]), str(ports[1])))
        near.process.send_signal(signal.SIGHUP)
        wait_until(lambda: state_of(near)["address"].endswith(str(ports[1])), 10)
        path = second.script("hello.py", PYTHON_HELLO)
        assert near.ask(path, XSWITCH_ENGINE="far").text == "hello\n"
        assert wait().text == "slept\n"


# Behind ewe, which sees none of the files


@pytest.fixture
def ewe_before(pair: Pair, start: Start) -> Server:
    """Run ewe in front of the near X-Switch. Its cgi-path is a directory of the other machine."""
    config = str(pair.near.directory / "xswitch.toml")
    cgi = pair.far.site / "cgi"
    cgi.mkdir(exist_ok=True)
    return start("thread", "--xswitch", pair.near.address, "--xswitch-config", config, "--cgi-path", str(cgi))


def test_ewe_asks_for_a_script_without_a_look_at_its_file(pair: Pair, ewe_before: Server) -> None:
    """ewe would refuse each of these files: they are not executable, as files that are not there."""
    code = f"import os\nprint('{HEAD}')\nprint(os.environ['SCRIPT_NAME'], os.environ.get('PATH_INFO'))\n"
    pair.far.script("cgi/shop/where.far", code, 0o644)
    pair.far.script("cgi/echo.far", ECHO, 0o644)
    pair.far.script("cgi/.hidden.far", PYTHON_HELLO, 0o644)
    with web.Client(base_url=ewe_before.url, timeout=20) as client:
        assert client.get("cgi-bin/shop/where.far/a/b.far").text == "/cgi-bin/shop/where.far /a/b.far\n"
        body = os.urandom(MB)
        assert client.post("cgi-bin/echo.far", content=body).content == body
        refused = client.get("cgi-bin/none.far")
        assert (refused.status_code, refused.text[:9]) == (404, "<!DOCTYPE")  # the page of the site
        assert client.get("cgi-bin/.hidden.far").status_code == 404
        assert client.get("where.far").status_code == 404  # among documents the extension counts for nothing
    pair.far.wait_for_log("cgi/none.far: 404")


def test_ewe_lets_the_other_machine_divide_a_path(ca: Authority, start: Start) -> None:
    """[directories] names a directory: ewe cannot know where the name of the script ends. Then the machine ends."""
    port = free_port()
    with ExitStack() as stack:
        far = stack.enter_context(far_at(ca, port))
        near = stack.enter_context(near_of(ca, port, tables=f'"{far.site}/cgi" = "far"\n'))
        wait_for_state(near, "up")
        code = f"import os\nprint('{HEAD}')\nprint(os.environ['SCRIPT_NAME'], os.environ['PATH_INFO'])\n"
        far.script("cgi/any.py", code, 0o644)
        config = str(near.directory / "xswitch.toml")
        cgi = ("--cgi-path", f"{far.site}/cgi")
        ewe = start("asyncio", "--xswitch", near.address, "--xswitch-config", config, *cgi)
        with web.Client(base_url=ewe.url, timeout=20) as client:
            for rest in ("/", "/a/b"):
                assert client.get(f"cgi-bin/any.py{rest}").text == f"/cgi-bin/any.py {rest}\n"
            far.stop(signal.SIGKILL)
            wait_for_state(near, "down")
            reply = client.get("cgi-bin/any.py/")
            assert (reply.status_code, "retry-after" in reply.headers) == (503, True)


@pytest.mark.needs("root")
def test_a_user_whose_home_is_closed_to_ewe(ca: Authority, start: Start) -> None:
    """The web server's account may not enter the home, as if it were on the other machine alone."""
    port = free_port()
    with account() as alice, far_at(ca, port) as far, ExitStack() as stack:
        home = Path(alice.pw_dir)
        near = stack.enter_context(near_of(ca, port, tables=f'"{home}/public_html" = "far"\n'))
        wait_for_state(near, "up")
        script = home / "public_html" / "cgi-bin" / "me.py"
        script.parent.mkdir(parents=True)
        script.write_text(f"import os\nprint('{HEAD}')\nprint(os.getuid())\n")
        for path in (home / "public_html", script.parent, script):
            os.chown(path, alice.pw_uid, alice.pw_gid)
        home.chmod(0o700)
        config = str(near.directory / "xswitch.toml")
        users = ("--userdir", "public_html", "--user", "nobody")
        ewe = start("thread", "--xswitch", near.address, "--xswitch-config", config, *users)
        reply = web.get(f"{ewe.url}~{alice.pw_name}/cgi-bin/me.py")
        assert (reply.status_code, reply.text) == (200, f"{alice.pw_uid}\n"), ewe.log() + far.log()
        assert web.get(f"{ewe.url}~{alice.pw_name}/cgi-bin/none.py").status_code == 404
        assert web.get(f"{ewe.url}~root/cgi-bin/me.py").status_code == 404
