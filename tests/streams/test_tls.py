"""HTTPS, under every model: it is one stream over another, so it behaves alike everywhere."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trustme
from support.memory import MemoryStream
from support.proc import children
from support.server import ROOT, Server, Start, wait_until, write_program, write_waiting_program
from support.wire import read_all, read_response

from ewe.config.settings import Config
from ewe.streams.base import Disconnected, Stream
from ewe.streams.blocking import run
from ewe.streams.tls import MAX_SILENT_BYTES, RECORD_BYTES, BadCertificate, SecureStream, server_context

GET = b"GET / HTTP/1.1\r\nHost: ewe\r\n\r\n"


class Authority:
    """A certificate authority for tests, and contexts that trust it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.certificate = directory / "server.pem"
        self.key = directory / "server.key"
        self.issue()

    def issue(self) -> None:
        """Write another certificate for localhost."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))

    @property
    def options(self) -> tuple[str, ...]:
        """The server's options."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))

    def client(self) -> ssl.SSLContext:
        """A client's context."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    def connect(
        self, server: Server, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
    ) -> ssl.SSLSocket:
        """Return a secured connection; an end without close_notify is an error."""
        return (context or self.client()).wrap_socket(
            server.connect(), server_hostname="localhost", suppress_ragged_eofs=False, session=session
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_files_and_programs(start: Start, variant: str, authority: Authority) -> None:
    server = start(variant, *authority.options)
    assert f"https://127.0.0.1:{server.port}/" in server.log()
    body = os.urandom(3_000_000)
    (server.root / "large").write_bytes(body)
    write_program(server.cgi / "echo", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s ' $HTTPS; cat\n")
    with authority.connect(server) as sock:
        for _ in range(3):
            sock.sendall(GET)
            assert read_response(sock)[0] == 200
        sock.sendall(GET + GET)
        assert [read_response(sock)[0] for _ in range(2)] == [200, 200]
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert read_response(sock)[2] == body
        sock.sendall(
            b"POST /cgi-bin/echo HTTP/1.1\r\nHost: ewe\r\nContent-Length: 500000\r\n\r\n" + body[:500_000]
        )
        assert read_response(sock)[2] == b"on " + body[:500_000]
        sock.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert b"welcome" in read_all(sock)  # and ends in close_notify, or this would have raised
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


@pytest.mark.takes_time
def test_a_stop_does_not_wait_for_a_client_that_has_sent_nothing(
    start: Start, variant: str, authority: Authority
) -> None:
    """A connection that is open without a handshake, as of a health check, is no request in progress."""
    server = start(variant, *authority.options, "--tls-timeout", "40s", "--grace", "40s")
    with server.connect():
        time.sleep(0.5)  # until the server has accepted it
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 20
    assert "in progress" not in server.log()


def test_a_client_that_has_ended_its_side_reads_the_whole_answer(
    start: Start, variant: str, authority: Authority
) -> None:
    """Its close_notify is a record that the server does not read: it must not turn into a reset."""
    server = start(variant, *authority.options)
    begun, go = write_waiting_program(server.cgi / "slow", 1_000_000)
    with authority.connect(server) as sock:
        sock.sendall(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n")
        wait_until(begun.exists, 30)
        sock.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):  # it sends close_notify, and waits for the server's
            sock.unwrap()
        sock.settimeout(60)
        go.touch()
        time.sleep(0.5)  # time for a server that would close at once
        assert len(read_response(sock)[2]) == 1_000_000
        with pytest.raises(ssl.SSLZeroReturnError):  # the server's close_notify
            sock.recv(1)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions_alpn_and_resumption(start: Start, model: str, authority: Authority) -> None:
    server = start(model, *authority.options)
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = authority.client()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with authority.connect(server, context) as sock:
            assert (sock.version(), sock.selected_alpn_protocol()) == (name, "http/1.1")
            sock.sendall(GET)
            assert read_response(sock)[0] == 200  # and with it came the session's ticket
            session = sock.session
        for _ in range(3):  # whichever worker or child takes it
            with authority.connect(server, context, session) as sock:
                assert sock.session_reused
    old = authority.client()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    block_mode = authority.client()
    block_mode.maximum_version = ssl.TLSVersion.TLSv1_2
    block_mode.set_ciphers("ECDHE+AES:!AESGCM:!AESCCM")
    for refused in (old, block_mode):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            authority.connect(server, refused)


@pytest.mark.parametrize("name", ["fork", "thread", "pool", "asyncio", "asyncio --loop asyncio"])
def test_a_slow_handshake_holds_nobody(start: Start, authority: Authority, name: str) -> None:
    server = start(name, *authority.options, "--tls-timeout", "40s", "--poolthreads", "2")
    silent = [server.connect() for _ in range(4)]
    half = [server.connect() for _ in range(4)]
    for sock in half:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    with authority.connect(server) as sock:  # half the time that the others have
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    for sock in silent + half:
        sock.close()


def test_a_slow_handshake_ends(start: Start, model: str, authority: Authority) -> None:
    server = start(model, *authority.options, "--tls-timeout", "300ms")
    with server.connect() as silent, server.connect() as half:
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert silent.recv(1) == half.recv(1) == b""


def test_silent_clients_do_not_stop_accepting(start: Start, authority: Authority) -> None:
    """With parking = idle a handshake waits in recv(2): in a worker, never in the thread that accepts."""
    options = ("--tls-timeout", "40s", "--poolthreads", "6")
    server = start("pool --parking idle", *authority.options, *options)
    silent = [server.connect() for _ in range(4)]
    with (
        server.connect() as below,  # less time than the silent clients may take
        authority.client().wrap_socket(below, server_hostname="localhost") as sock,
    ):
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    for sock in silent:
        sock.close()


def test_the_wrong_protocol(start: Start, model: str, authority: Authority) -> None:
    secure = start(model, *authority.options)
    with secure.connect() as sock:
        sock.sendall(GET)
        status, _, body = read_response(sock)
    assert status == 400 and body.endswith(b"use https://...\r\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        plain = start(model)
        authority.connect(plain)
    garbage = secure.ask(b"\x00\x01\x02garbage")
    assert garbage[:1] in (b"", b"\x15")  # an alert at most
    with authority.connect(secure) as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert "Traceback" not in secure.log()


def test_a_reload_renews_the_certificate(start: Start, model: str, authority: Authority) -> None:
    server = start(model, *authority.options)

    def serial() -> object:
        with authority.connect(server) as sock:
            return (sock.getpeercert() or {})["serialNumber"]

    before = serial()
    workers = set(children(server.pid)) if model == "prefork" else set()
    authority.issue()
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: serial() != before, 30, server.log)
    # Of several workers, the old ones may answer until all new ones serve
    wait_until(lambda: not workers & set(children(server.pid)), 30, server.log)
    authority.key.write_text("not a key")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("the old one stays")
    assert serial() != before


def test_idle_connections_end_at_a_stop(start: Start, variant: str, authority: Authority) -> None:
    server = start(variant, *authority.options, "--grace", "40s")
    with authority.connect(server) as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
        assert server.stop(seconds=20) == 0, server.log()  # half the grace


def test_resets_and_cuts_leave_it_idle(start: Start, model: str, authority: Authority) -> None:
    server = start(model, *authority.options)
    for count in (0, 1, 5, 100, 250):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        with server.connect() as sock:
            sock.sendall(outgoing.read()[:count] or b"\x16")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with authority.connect(server) as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    assert "Traceback" not in server.log()


def test_a_download_that_its_client_leaves(start: Start, model: str, authority: Authority) -> None:
    """The cut download is a line in both logs, as over plain TCP, and no error."""
    server = start(model, *authority.options, "--log-format", "%U %s %X")
    with (server.root / "big").open("wb") as file:
        file.truncate(1 << 28)
    with authority.connect(server) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wait_until(lambda: server.access_file.read_text() == "/big 200 X\n", 30, server.log)
    with authority.connect(server) as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200
    log = server.log()
    assert ": 200, aborted after " in log and "Traceback" not in log


def test_it_is_a_whole_stream() -> None:
    """Each attribute of a stream exists over TLS, too: the conversation uses them by name."""
    below = Stream(("192.0.2.1", 50000), ("192.0.2.2", 443), Config())
    below.peer = ("192.0.2.7", 50001)  # the PROXY protocol sets it before the handshake
    stream = SecureStream(below, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    below.aborted = below.finishing = below.stopping = below.idle = True
    below.requests = 3
    for name, value in vars(below).items():
        assert getattr(stream, name) == value, name


class Below:
    """A stream whose client sends records without end. Counts what was taken of them."""

    client = server = ("", 0)
    scheme = "http"
    timeouts = programs = endpoints = peer = None
    taken = 0

    async def receive(self) -> bytes:
        self.taken += 256 * 1024
        return bytes(256 * 1024)


class NoData:
    """The TLS library, which finds no data in a record: it changes keys, say."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self.incoming = incoming
        self.most = 0

    def read(self, size: int) -> bytes:
        self.most = max(self.most, len(self.incoming.read()))
        raise ssl.SSLWantReadError

    def pending(self) -> int:
        return 0


def test_records_without_data_have_an_end() -> None:
    """Each record may cost the server much more than its sender, and contains no request."""
    below = Below()
    stream = SecureStream(below, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # type: ignore[arg-type]
    library = NoData(stream.incoming)
    stream.tls = library  # type: ignore[assignment]
    with pytest.raises(Disconnected):
        run(stream.receive())
    assert below.taken == 256 * 1024 and library.most == RECORD_BYTES < MAX_SILENT_BYTES
    assert not stream.has_client()


class InMemory(Below):
    """A stream whose client is a TLS client in memory. It delivers at most `cut` bytes at a time."""

    timeouts = Config()  # type: ignore[assignment]

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client_side = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.cut = 1 << 20

    async def receive(self) -> bytes:
        if not self.outgoing.pending:  # the handshake
            with suppress(ssl.SSLWantReadError):
                self.client_side.do_handshake()
        return self.outgoing.read(self.cut)

    async def next_request(self, seconds: float) -> bytes:
        return await self.receive()

    async def send(self, *parts: bytes) -> None:
        self.incoming.write(b"".join(parts))

    def set_deadline(self, seconds: float) -> None:
        pass


class CountedReads:
    """The TLS library; counts how often it wanted more than had arrived, which costs an exception."""

    def __init__(self, library: ssl.SSLObject) -> None:
        self.library = library
        self.wanted_more = 0

    def read(self, size: int) -> bytes:
        try:
            return self.library.read(size)
        except ssl.SSLWantReadError:
            self.wanted_more += 1
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)


def test_a_wait_for_a_handshake_says_so(authority: Authority) -> None:
    """Such a wait is in next_request(), but neither the trace nor the status may call it one for a request."""

    class Silent(MemoryStream):
        async def next_request(self, seconds: float) -> bytes:
            self.did.append(f"in handshake: {self.in_handshake}")
            return b""

    below = Silent([])
    stream = SecureStream(below, server_context(str(authority.certificate), str(authority.key)))
    assert not run(stream.handshake(10))
    assert below.did == ["in handshake: True"] and not below.in_handshake


@pytest.mark.parametrize("cut", [1, 4, 5, 21, 22, 100, 1 << 20])
def test_a_request_that_arrives_whole_costs_no_exception(authority: Authority, cut: int) -> None:
    below = InMemory(authority.client())
    stream = SecureStream(below, server_context(str(authority.certificate), str(authority.key)))  # type: ignore[arg-type]
    assert run(stream.handshake(10))
    library = stream.tls = CountedReads(stream.tls)  # type: ignore[assignment]
    below.cut = cut
    for size in (200, 300, 20_000):  # the last one comes in two records, which are not decrypted at once
        request = os.urandom(size)
        below.client_side.write(request)
        arrived = run(stream.next_request(10))
        while len(arrived) < len(request):
            arrived += run(stream.receive())
        assert arrived == request
        if cut == 1 << 20:
            assert library.wanted_more == (size > RECORD_BYTES)


class Broken:
    """The TLS library, once the client has sent what is no record: OpenSSL may give no reason then."""

    def fail(self, _: object) -> NoReturn:
        error = ssl.SSLError(1, "unknown error")
        error.reason = None  # type: ignore[assignment]
        raise error

    read = write = fail

    def pending(self) -> int:
        return 1


def test_a_fault_without_a_reason_is_a_client_that_has_left() -> None:
    stream = SecureStream(Below(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # type: ignore[arg-type]
    stream.tls = Broken()  # type: ignore[assignment]
    for call in (stream.receive, lambda: stream.send(b"data")):
        stream.fault = None
        with pytest.raises(Disconnected, match=r"^$"):
            run(call())
        assert not stream.has_client()  # although its connection may be open


def test_an_answer_cut_short_never_looks_whole(start: Start, model: str, authority: Authority) -> None:
    """No close_notify, and a reset, where only the close tells where the body ends."""
    server = start(model, *authority.options)
    program = "#!/bin/sh\nprintf 'Content-Type: a/b\\n\\nbeginning'\nkill -9 $$\n"
    write_program(server.cgi / "dies", program)
    with authority.connect(server) as sock, pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
        sock.sendall(b"GET /cgi-bin/dies HTTP/1.0\r\n\r\n")
        while sock.recv(4096):
            pass


def test_self_signed(start: Start) -> None:
    server = start("thread", "--tls", "self")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(server.connect(), server_hostname="localhost") as sock:
        sock.sendall(GET)
        assert read_response(sock)[0] == 200


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "server.pem' is not there"),
        ("no certificate", "server.pem' holds no certificate in PEM format ("),
        ("der", "openssl x509 -inform der"),
        ("no key", "server.key' holds no private key in PEM format ("),
        ("no key file", "server.key' is not there"),
        ("a directory", "server.pem': Is a directory"),
        ("wrong key", "MISMATCH"),
    ],
)
def test_a_bad_certificate_is_one_line(tmp_path: Path, authority: Authority, what: str, said: str) -> None:
    (tmp_path / "htdocs").mkdir()
    if what in ("missing", "a directory"):
        authority.certificate.unlink()
    if what == "a directory":
        authority.certificate.mkdir()
    elif what == "no certificate":
        authority.certificate.write_text("hello")
    elif what == "der":
        authority.certificate.write_bytes(ssl.PEM_cert_to_DER_cert(authority.certificate.read_text()))
    elif what == "no key":
        authority.key.write_text("hello")
    elif what == "no key file":
        authority.key.unlink()
    elif what == "wrong key":
        authority.key.write_bytes(Authority(tmp_path / "htdocs").key.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "ewe", "0", *authority.options],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("ewe: ") and "tls-cert" in done.stderr and done.stderr.count("\n") == 1
    assert said in done.stderr


def stream_and_client(authority: Authority) -> tuple[SecureStream, InMemory]:
    """Return a stream after its handshake, and its client."""
    below = InMemory(authority.client())
    stream = SecureStream(below, server_context(str(authority.certificate), str(authority.key)))  # type: ignore[arg-type]
    assert run(stream.handshake(10))
    return stream, below


def spoiled(record: bytes) -> bytes:
    """Return a record whose authentication tag is wrong."""
    return record[:-1] + bytes([record[-1] ^ 1])


@pytest.mark.parametrize("is_tunnel", [False, True])
def test_a_fault_behind_data_is_not_forgotten(authority: Authority, is_tunnel: bool) -> None:
    """Half a head and a bad record, in one segment: the worker must not wait for the rest of the head."""
    stream, below = stream_and_client(authority)
    below.client_side.write(b"GET / HT")
    first = below.outgoing.read()
    below.client_side.write(b"TP/1.1")
    stream.keep_encrypted(first + spoiled(below.outgoing.read()))
    if is_tunnel:
        assert run(stream.either(0, 5))
    assert run(stream.receive()) == b"GET / HT"
    for _ in range(2):
        with pytest.raises(Disconnected):
            run(stream.receive())


def test_a_wait_for_either_side_needs_whole_data(authority: Authority) -> None:
    """A part of a record is no data: receive() would wait for the rest, and the upstream would not be read."""
    stream, below = stream_and_client(authority)
    below.client_side.write(b"hello")
    record = below.outgoing.read()
    arrivals = [record[:10], record[10:-1], record[-1:]]
    upstream_ready = [False, False, True, False]

    async def either(descriptor: int, seconds: float) -> bool:
        return not upstream_ready.pop(0)

    async def receive() -> bytes:
        return arrivals.pop(0)

    below.either, below.receive = either, receive  # type: ignore[attr-defined, method-assign]
    assert not run(stream.either(0, 5)) and len(arrivals) == 1
    assert run(stream.either(0, 5)) and not arrivals
    assert run(stream.either(0, 5)) and not upstream_ready  # without a wait
    assert run(stream.receive()) == b"hello"


def test_an_openssl_that_may_not_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", "openssl")

    monkeypatch.setattr(subprocess, "run", denied)
    with pytest.raises(BadCertificate, match=r"could not make a certificate: .*denied: 'openssl'"):
        server_context(None, None)
