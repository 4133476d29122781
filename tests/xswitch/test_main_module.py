"""The parts of the main process put together. There is no suexecme: the test holds its end of the socket pair."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.counting import Calls
from support.server import ROOT, wait_until
from support.xswitch_client import Connection

from ewe.gateway.records import PARAMS, Began, Input, Requester, Responder, end_records, record
from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import BUILT_IN, EngineKind
from ewe.xswitch.privileged.suexecme import Suexecme
from ewe.xswitch.protocol import SUCCESS
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.engine import HOLD_SECONDS, Engine, EngineState
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import State
from ewe.xswitch.switch.far_engine import CONNECT_S, SILENT_S, FarConnection, FarEngine, HostState
from ewe.xswitch.switch.identify import Answer, IdentifiedScript, own_variables
from ewe.xswitch.switch.installations import Installations
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.main import Switch
from ewe.xswitch.switch.shared_engine import SharedEngine
from ewe.xswitch.switch.web_server_connection import ConnectionState, WebServerConnection

HEAD = b"Content-Type: text/plain\n\n"


class Client:
    """A web server's connection: notes how its exchange has ended."""

    exchange: Exchange | None = None
    sent = data = b""
    ended = ""

    def send_output(self, data: bytes) -> None:
        self.sent += data

    def end_response(self, data: bytes, status: int) -> None:
        assert not self.ended
        self.data = data
        self.ended = data.split(b"\r\n")[0].decode()

    def break_off(self) -> None:
        assert not self.ended
        self.ended = "broken off"

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_overdue(self, now: float) -> bool:
        return False


class Bench:
    """A main process, and the suexecme that the test plays."""

    def __init__(self, **settings: Any) -> None:
        main, self.suexecme = channel.pair()
        self.suexecme.settimeout(5)
        self.switch = Switch(Settings(**settings), main, ErrorLog("off"))
        self.switch.loop.on_fault = lambda fault: pytest.fail(str(fault))
        self.main = main

    def exchange(self, language: str = "python", user: str = "alice") -> tuple[Client, Exchange]:
        """Return the exchange of a GET, and its client."""
        client = Client()
        exchange = Exchange(client, self.switch.context, {b"REQUEST_METHOD": b"GET"}, "/x.py")
        exchange.body_arrived(b"")
        exchange.user, exchange.key, exchange.uid = user, (user, language), os.getuid()
        exchange.own_variables = own_variables(user, "/", "/x.py")
        client.exchange = exchange
        self.switch.connections.open.add(client)  # type: ignore[arg-type]
        return client, exchange

    def next_start(self) -> tuple[dict[str, Any], list[int]]:
        """Read orders until one starts an engine; return it, and the descriptors of the engine."""
        while True:
            received = channel.receive(self.suexecme)
            assert received is not None
            if received[0]["order"] == "start":
                return received

    def identify_and_start(self, script: Path) -> list[int]:
        """Answer as suexecme: alice owns the script, and its engine runs. Return the engine's descriptors."""
        message, _ = channel.receive(self.suexecme) or ({}, [])
        owner = {"user": "alice", "uid": os.getuid(), "groups": [], "home": "/"}
        about = {"path": str(script), "language": "python", "interpreter": "", "environment": {}}
        channel.send(self.suexecme, {"id": message["id"], **owner, **about})
        message, descriptors = self.next_start()
        channel.send(self.suexecme, {"id": message["id"], "pid": 4_000_000})
        return descriptors

    def start_engine(self, pid: int) -> None:
        """Read the order that starts an engine, and answer it."""
        received = channel.receive(self.suexecme)
        assert received is not None and received[0]["order"] == "start"
        for descriptor in received[1]:
            os.close(descriptor)
        self.switch.handle_message({"id": received[0]["id"], "pid": pid}, [])

    def close(self) -> None:
        for engine in list(self.switch.scheduler.engines):
            engine.close()
        self.suexecme.close()
        self.main.close()
        self.switch.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(max_engines=4, max_engines_per_user=4)
    yield made
    made.close()


def test_an_engine_whose_first_connection_fails_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java has one engine for each user: if it were kept, none could start for this user."""

    def connect(self: SharedEngine) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(SharedEngine, "connect", connect)
        client, exchange = bench.exchange("java")
        exchange.identified()
    assert client.ended.startswith("Status: 502") and not bench.switch.scheduler.engines
    _, exchange = bench.exchange("java")
    exchange.identified()
    assert exchange.state is State.RUNNING and len(bench.switch.scheduler.engines) == 1


def test_an_idle_engine_ends_if_another_lacks_a_descriptor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else requests for the other one would get 503 until the idle engine ends, in five minutes."""
    scheduler = bench.switch.scheduler
    for user in ("alice", "bob"):
        _, exchange = bench.exchange(user=user)
        exchange.identified()
        bench.start_engine(1 << 30)
    idle, busy = sorted(scheduler.engines, key=lambda engine: engine.user)
    idle.take_exchange()
    scheduler.release(idle)

    def socketpair() -> tuple[socket.socket, socket.socket]:
        if idle.state is not EngineState.CLOSED:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pair()

    pair = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", socketpair)
    client, exchange = bench.exchange("perl")
    exchange.identified()
    assert exchange.state is State.RUNNING and idle not in scheduler.engines and busy in scheduler.engines
    idle = busy  # no engine is left that could end
    refused, exchange = bench.exchange("cgi")
    exchange.identified()
    assert refused.ended.startswith("Status: 503") and not client.ended


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOBUFS])
def test_an_idle_engine_does_not_end_if_another_lacks_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its memory is free only later: one request would end the idle engines of all users."""
    _, exchange = bench.exchange()
    exchange.identified()
    bench.start_engine(1 << 30)
    [idle] = bench.switch.scheduler.engines
    idle.take_exchange()
    bench.switch.scheduler.release(idle)
    monkeypatch.setattr(socket, "socketpair", Mock(side_effect=OSError(number, os.strerror(number))))
    refused, exchange = bench.exchange("perl", user="bob")
    exchange.identified()
    assert refused.ended.startswith("Status: 503") and idle in bench.switch.scheduler.engines


def test_the_socket_of_an_engine_leaves_no_directory_where_no_descriptor_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of PHP takes four: its listening socket, the connection, and a pipe."""
    with tempfile.TemporaryDirectory(prefix="test-") as base:  # short: a socket's name has 108 bytes at most
        monkeypatch.setattr(tempfile, "tempdir", base)
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        free = [number for number in range(max(used) + 5) if number not in used]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[3] + 1, hard))
        try:
            engine, descriptors = bench.switch.starter.open_engine(("alice", "php"), BUILT_IN["php"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.listdir(base) == []
        engine.close()
        for descriptor in descriptors:
            os.close(descriptor) if isinstance(descriptor, int) else descriptor.close()


@pytest.mark.parametrize("name", ["settings", "log"])
def test_settings_that_lack_their_descriptor_change_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel drops a descriptor for which the process has no number left: both processes go on."""
    errors: list[str] = []
    monkeypatch.setattr(bench.switch.log, "error", errors.append)
    bench.switch.handle_message({name: True}, [])
    suexecme = Suexecme.__new__(Suexecme)
    suexecme.to_supervisor, supervisor = channel.pair()
    suexecme.log = bench.switch.log
    with suexecme.to_supervisor, supervisor:
        channel.send(supervisor, {name: True})
        assert suexecme.receive_settings_or_log()
    assert errors == ["new settings, or a new log, did not arrive: too many open files; reload again"] * 2


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_post_to_a_jvm_that_has_ended_gets_another(bench: Bench, kept: int) -> None:
    """Its connections are closed, or refused, so no byte of the request was sent."""
    exchanges = [bench.exchange("java")[1] for _ in range(max(kept, 1))]
    for each in exchanges:
        each.identified()
    bench.start_engine(4_000_000)  # and it dies: no process holds its sockets
    [jvm] = bench.switch.scheduler.engines
    for connection in list(jvm.connections):
        connection.response_complete(HEAD, 0, not kept)
    assert len(jvm.unused_connections) == kept
    client, exchange = bench.exchange("java")
    exchange.params[b"REQUEST_METHOD"] = b"POST"
    exchange.identified()
    assert not client.ended and jvm.state is EngineState.CLOSED
    [other] = bench.switch.scheduler.engines
    assert other is not jvm and exchange.state is State.RUNNING


def test_a_jvm_that_starts_does_not_end_for_lack_of_a_descriptor(bench: Bench) -> None:
    """The request for which it starts waits on; only the second one fails."""
    _, first = bench.exchange("java")
    first.identified()
    [jvm] = bench.switch.scheduler.engines
    jvm.connect = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    client, second = bench.exchange("java")
    second.identified()
    assert client.ended == "Status: 503 Service Unavailable" and second.state is State.DONE
    assert first.state is State.RUNNING and jvm.state is not EngineState.CLOSED


@pytest.mark.parametrize("has_other_request", [True, False])
def test_a_jvm_does_not_end_because_the_main_process_lacks_a_descriptor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, has_other_request: bool
) -> None:
    """Its end would cost the sessions of all visitors, and make the other requests fail."""
    _, first = bench.exchange("java")
    first.identified()
    bench.start_engine(4_000_000)
    [jvm] = bench.switch.scheduler.engines
    if not has_other_request:
        [connection] = jvm.connections
        connection.response_complete(HEAD, 0, True)  # the connection closes, as after a POST
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with monkeypatch.context() as patched:
        patched.setattr(SharedEngine, "connect", Mock(side_effect=full))
        client, exchange = bench.exchange("java")
        exchange.identified()
    assert client.ended == "Status: 503 Service Unavailable" and exchange.state is State.DONE
    assert jvm.state is not EngineState.CLOSED and jvm.running_count() == int(has_other_request)
    assert bench.switch.scheduler.idle.get(jvm.key, []) == ([] if has_other_request else [jvm])


def test_a_request_that_its_engine_never_got_is_given_to_another(bench: Bench) -> None:
    """The engine died while it was idle, and the main process had not seen that. A POST is safe to repeat then."""
    _, first = bench.exchange()
    first.identified()
    bench.start_engine(4_000_000)  # and it dies: no process holds its sockets
    [dead] = bench.switch.scheduler.engines
    dead.response_complete(HEAD, 0)
    client, post = bench.exchange()
    post.params[b"REQUEST_METHOD"] = b"POST"
    post.body_pieces.insert(0, b"a=1")
    post.make_engine_request()
    post.identified()
    assert dead.state is EngineState.CLOSED and dead not in bench.switch.scheduler.engines
    assert post.state is State.RUNNING and not client.ended
    message, ends = bench.next_start()
    with socket.socket(fileno=ends[0]) as data, socket.socket(fileno=ends[2]) as control:
        os.close(ends[1])
        assert (
            message["order"] == "start"
            and data.recv(9) == b"a=1"
            and control.recv(9000) == post.engine_request
        )


def test_a_request_that_its_fastcgi_engine_never_got_is_given_to_another(bench: Bench) -> None:
    """The same with an engine that speaks FastCGI, as that of PHP does."""
    _, first = bench.exchange("php")
    first.identified()
    bench.start_engine(4_000_000)  # and it dies: no process holds its listening socket
    [dead] = bench.switch.scheduler.engines
    dead.response_complete(HEAD, 0)
    client, post = bench.exchange("php")
    post.params[b"REQUEST_METHOD"] = b"POST"
    post.body_pieces.insert(0, b"a=1")
    post.identified()
    assert dead.state is EngineState.CLOSED and dead not in bench.switch.scheduler.engines
    assert post.state is State.RUNNING and not client.ended
    message, (listening, errors) = bench.next_start()
    os.close(errors)
    with socket.socket(fileno=listening) as listener, listener.accept()[0] as data:
        began, *body = Responder().feed(data.recv(9000))
        assert isinstance(began, Began) and began.params[b"REQUEST_METHOD"] == b"POST"
        assert message["order"] == "start" and body == [Input(b"a=1"), Input(b"")]


def test_a_post_that_its_jvm_never_got_takes_another_connection(bench: Bench) -> None:
    """The JVM has closed the connection of the request before."""
    _, first = bench.exchange("java")
    first.identified()
    message, (listening, errors) = bench.next_start()
    bench.switch.handle_message({"id": message["id"], "pid": 4_000_000}, [])
    os.close(errors)
    [jvm] = bench.switch.scheduler.engines
    with socket.socket(fileno=listening) as listener, listener.accept()[0]:  # it carries no requests
        listener.accept()[0].close()
        [connection] = jvm.connections
        connection.response_complete(HEAD, 0)
        client, post = bench.exchange("java")
        post.params |= {b"REQUEST_METHOD": b"POST", b"CONTENT_LENGTH": b"3"}
        post.body_pieces.insert(0, b"a=1")
        post.identified()
        assert connection.state is EngineState.CLOSED
        assert post.state is State.RUNNING and not client.ended
        with listener.accept()[0] as data:
            _began, *body = Responder().feed(data.recv(9000))
            assert body == [Input(b"a=1"), Input(b"")]


@pytest.mark.parametrize("is_seen_by", ["exit status", "connection", "refused request"])
def test_a_response_that_a_jvm_has_completed_before_its_end_arrives(bench: Bench, is_seen_by: str) -> None:
    """The event loop may come to the end of the process before it comes to the response."""
    (complete_client, complete), (begun_client, begun) = bench.exchange("java"), bench.exchange("java")
    complete.identified()
    message, (listening, errors) = bench.next_start()
    bench.switch.handle_message({"id": message["id"], "pid": 4_000_000}, [])
    os.close(errors)
    begun.identified()
    [jvm] = bench.switch.scheduler.engines
    with socket.socket(fileno=listening) as listener:
        data = [listener.accept()[0] for _ in range(3)]
        for connection, end in ((data[1], True), (data[2], False)):
            responder = Responder()
            list(responder.feed(connection.recv(9000)))
            connection.sendall(responder.output(HEAD) + (responder.end() if end else b""))
    for connection in data:
        connection.close()
    begun.params[b"REQUEST_METHOD"] = b"POST"
    if is_seen_by == "exit status":
        bench.switch.handle_message({"ended": 4_000_000, "status": 1, "cause": ""}, [])
    elif is_seen_by == "connection":
        jvm.on_data()
    else:
        _, later = bench.exchange("java")
        later.identified()
        assert later.state is State.RUNNING
    assert complete.state is State.DONE and complete_client.data == HEAD
    assert begun.state is State.DONE and begun_client.ended.startswith("broken off")
    assert jvm not in bench.switch.scheduler.engines and not bench.switch.scheduler.idle


def test_an_engine_that_ended_after_its_response_gets_no_other_request(bench: Bench) -> None:
    """Leftover processes of its script keep its sockets open, so that a request can still be written to them."""
    bench.switch.scheduler.settings = Settings(max_engines_per_user=1)
    first_client, first = bench.exchange()
    first.identified()
    message, ends = bench.next_start()
    bench.switch.handle_message({"id": message["id"], "pid": 4_000_000}, [])
    _, second = bench.exchange()
    second.identified()
    assert second.state is State.WAITING
    with socket.socket(fileno=ends[0]) as data, socket.socket(fileno=ends[2]) as control:
        os.close(ends[1])
        data.sendall(HEAD)
        control.sendall(b"\x040\n")
        bench.switch.handle_message({"ended": 4_000_000, "status": 0, "cause": ""}, [])
        assert first.state is State.DONE and first_client.data == HEAD
        message, ends = bench.next_start()  # for the second request
        assert second.state is State.RUNNING and message["order"] == "start"
        for descriptor in ends:
            os.close(descriptor)


def test_the_backlog_of_an_engine_has_room_for_connections_that_were_closed(bench: Bench) -> None:
    """Until a JVM has started, it accepts none; clients that leave within a body would fill the backlog."""
    kind = bench.switch.context.settings.engines["java"]
    engine, (listener, errors) = bench.switch.starter.fastcgi_engine(("alice", "java"), kind)
    assert isinstance(engine, SharedEngine) and isinstance(errors, int)
    for _ in range(3 * kind.connections):
        engine.connect()
    engine.close()
    os.close(listener if isinstance(listener, int) else listener.detach())
    os.close(errors)


def test_an_engine_that_starts_is_not_taken_for_one_whose_script_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primed engine may load modules for longer than CLEANUP_SECONDS."""
    _, exchange = bench.exchange()
    exchange.identified()
    [engine] = bench.switch.scheduler.engines
    now = time.monotonic()
    monkeypatch.setattr("ewe.xswitch.switch.engine.cpu_seconds", lambda pid: 9.0)
    spins = []
    for ended_requests in (0, 1):
        engine.ended_requests, engine.used_at = ended_requests, now - 10
        engine.last_cpu_reading = now - 1, 0.0
        spins.append(engine.check_spinning())
    assert spins == [False, True]


def test_the_timer_of_an_earlier_installation_lets_no_later_request_go_on(bench: Bench) -> None:
    loop = bench.switch.loop
    loop.timers.clear()
    installations = Installations(loop)
    gone_on: list[str] = []
    installations.wait("/home/alice", lambda: gone_on.append("first"))
    [(first_due_at, *_)] = loop.timers
    installations.ended("/home/alice")
    installations.wait("/home/alice", lambda: gone_on.append("second"))
    loop.call_due_timers(first_due_at)
    assert gone_on == ["first"]
    installations.ended("/home/alice")
    loop.call_due_timers(first_due_at)
    assert gone_on == ["first", "second"]


@pytest.mark.parametrize(
    ("file", "is_far"),
    [("/srv/x.far", True), ("/srv/x.py", False), ("", False), ("/" + "a/" * 2045 + "x.far", False)],
)
def test_a_path_that_no_file_can_have_is_not_far(bench: Bench, file: str, is_far: bool) -> None:
    """To look up each directory of a path of 256 KB would keep the event loop for seconds."""
    far = EngineKind("far", extensions=(".far",), address="192.0.2.7:9443")
    bench.switch.context.settings = Settings(engines={**BUILT_IN, "far": far})
    assert bench.switch.peers.far_kind_of(file, {}) is (far if is_far else None)


def test_a_renewed_certificate_does_not_put_another_machine_down() -> None:
    engine = FarEngine(Mock(), EngineKind("ruby", address="192.0.2.7:9443"), Mock())
    check = engine.health_check = Mock(has_answered=False)
    check.close.side_effect = lambda: engine.connection_closed(check)
    engine.use_certificate(Mock())
    assert engine.state is HostState.UNKNOWN and engine.health_check is None and engine.ended_requests == 0
    assert engine.next_check_at == 0  # the next tick() connects


def test_another_machine_is_not_down_because_this_one_lacks_a_descriptor() -> None:
    """The kept connections to it serve on."""
    engine, exchange = FarEngine(Mock(), EngineKind("ruby", address="192.0.2.7:9443"), Mock()), Mock()
    engine.state, engine.connect = HostState.UP, Mock(side_effect=OSError(errno.EMFILE, "too many"))
    engine.assign(exchange)
    exchange.fail.assert_called_once_with(503, "engines ruby on 192.0.2.7:9443: too many")
    engine.tick(1e9)  # the health check
    assert engine.state is HostState.UP and engine.health_check is None


def test_the_time_for_an_answer_begins_after_the_handshake() -> None:
    """A handshake over a slow network may take nearly CONNECT_S."""
    engine = FarEngine(Mock(), EngineKind("ruby", address="192.0.2.7:9443"), Mock())
    check = engine.health_check = Mock(handshake=Mock(), connects_until=100 + CONNECT_S)
    engine.silent_since = engine.pinged_at = 100.0  # as begin_health_check() sets them
    connected_at = 100 + CONNECT_S - 0.1
    engine.tick(connected_at)
    check.handshake = None
    engine.tick(connected_at + SILENT_S - 0.1)
    assert not check.close.called
    engine.tick(connected_at + SILENT_S + 0.1)
    assert check.close.called and engine.state is HostState.DOWN


@pytest.mark.parametrize(("state", "is_closed"), [(State.RUNNING, True), (State.ABANDONED, False)])
def test_a_client_that_leaves_within_its_body_costs_no_other_connection(
    state: State, is_closed: bool
) -> None:
    connection = FarConnection.__new__(FarConnection)
    engine, exchange = Mock(), Mock(state=state)
    vars(connection).update(
        far_engine=engine, exchange=exchange, tls=Mock(fault=""), state=EngineState.CLOSED
    )
    connection.fail("the client left before its body was complete")
    assert exchange.engine_failed.called and engine.close_unused.called == is_closed


@pytest.fixture
def connected(bench: Bench) -> Iterator[tuple[WebServerConnection, socket.socket]]:
    """A connection of a web server, and the web server's end of it."""
    sock, other = socket.socketpair()
    bench.switch.connections.connected(sock)
    [connection] = bench.switch.connections.open
    with other:
        yield connection, other
        connection.close()


def test_a_handshake_that_ends_at_a_stop_does_not_delay_it(bench: Bench) -> None:
    """No request can come over the new connection. Its peer may keep it open."""
    bench.switch.stop()
    sock, other = socket.socketpair()
    bench.switch.connections.connected(sock)
    with other:
        assert not bench.switch.connections.open and other.recv(1) == b""


def test_a_web_server_that_takes_no_responses_has_its_requests_read_later(
    connected: tuple[WebServerConnection, socket.socket],
) -> None:
    connection, other = connected
    request = Requester().begin([(b"SCRIPT_NAME", b"/x.py")], keep=True)
    for _ in range(9000):
        other.sendall(request)
        connection.on_data()
        if not connection.is_reading:
            break
    assert connection.outbox.is_full() and not connection.is_reading
    other.setblocking(False)
    while connection.outbox.pending:
        assert other.recv(1 << 20).startswith(b"\1")
        connection.outbox.on_writable()
    assert connection.is_reading


def test_a_web_server_that_takes_no_answers_to_its_records_is_closed(
    connected: tuple[WebServerConnection, socket.socket],
) -> None:
    """The response of its request comes later. Until then, the answers would wait here, without a limit."""
    connection, other = connected
    other.sendall(Requester().begin([(b"SCRIPT_FILENAME", b"/x.py")], keep=True))
    connection.on_data()
    assert connection.exchange is not None
    for _ in range(99):
        other.sendall(record(99, 0) * 1000)
        connection.on_data()
        if connection.state is ConnectionState.CLOSED:
            break
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.parametrize("keep", [True, False])
def test_an_aborted_request_does_not_begin(
    connected: tuple[WebServerConnection, socket.socket], keep: bool
) -> None:
    """Even if the end of its parameters, or its body, comes together with the abort. It has one end."""
    connection, other = connected
    requester = Requester()
    request = requester.begin([(b"SCRIPT_FILENAME", b"/x.py")], keep)
    end_of_params = record(PARAMS, 1)
    assert request.endswith(end_of_params)
    other.sendall(request.removesuffix(end_of_params) + requester.abort() + end_of_params)
    connection.on_data()
    assert connection.exchange is None
    assert other.recv(1000) == end_records(1, app_status=0)
    assert connection.state is (ConnectionState.OPEN if keep else ConnectionState.SHUT)


def test_an_abort_of_a_request_that_has_just_ended_adds_no_second_end(
    connected: tuple[WebServerConnection, socket.socket],
) -> None:
    """The body is longer than its CONTENT_LENGTH, which ends the request. The abort comes with that body."""
    connection, other = connected
    requester = Requester()
    params = [(b"SCRIPT_FILENAME", b"/x.py"), (b"CONTENT_LENGTH", b"1")]
    other.sendall(requester.begin(params, keep=True))
    connection.on_data()
    assert connection.exchange is not None
    other.sendall(requester.input(b"too long") + requester.abort())
    connection.on_data()
    received = other.recv(10_000)
    assert b"Status: 400" in received and received.endswith(end_records(1, app_status=0))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("length", "is_accepted"), [(b"4", True), (b"5", False), (b"three", False)])
def test_a_body_for_the_status_page_counts_however_it_arrives(
    bench: Bench,
    connected: tuple[WebServerConnection, socket.socket],
    length: bytes,
    is_accepted: bool,
    count: int,
) -> None:
    """Its first records may come together with the parameters. count: of the pieces that come first."""
    connection, other = connected
    requester = Requester()
    params = [(b"SCRIPT_NAME", b"/xswitch-status"), (b"XSWITCH_STATUS", b"1"), (b"CONTENT_LENGTH", length)]
    pieces = [requester.begin(params, keep=True), *map(requester.input, (b"ab", b"cd", b""))]
    for together in (pieces[:count], pieces[count:]):
        if together:
            other.sendall(b"".join(together))
            connection.on_data()
    assert (connection.exchange is not None) == is_accepted
    if is_accepted:
        measure = channel.receive(bench.suexecme)
        assert measure is not None and measure[0]["order"] == "measure"
        bench.switch.handle_message({"id": measure[0]["id"], "memory": {}, "limits": ""}, [])
    received = other.recv(10_000)
    assert (b"Status: 400" in received) != is_accepted
    assert received.endswith(end_records(1, app_status=0))


def test_an_action_with_a_wrong_body_is_not_carried_out(
    bench: Bench, connected: tuple[WebServerConnection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, other = connected
    monkeypatch.setattr(
        bench.switch.status_requests.control, "carry_out", lambda action: pytest.fail(str(action))
    )
    requester = Requester()
    params = [(b"SCRIPT_NAME", b"/xswitch-status"), (b"XSWITCH_ACTION", b"drain"), (b"CONTENT_LENGTH", b"1")]
    other.sendall(requester.begin(params, keep=True) + requester.input(b"too long"))
    connection.on_data()
    assert connection.exchange is None and b"Status: 400" in other.recv(10_000)


def test_when_suexecme_is_gone_every_exchange_ends_and_no_engine_starts(bench: Bench) -> None:
    clients: dict[State, Client] = {}
    clients[State.HEAD], head = bench.exchange()
    clients[State.RESPONDING], responding = bench.exchange()
    clients[State.ABANDONED], abandoned = bench.exchange()
    for pid, each in enumerate((head, responding, abandoned)):
        each.identified()
        bench.start_engine(4_000_000 + pid)
    head.output_arrived(HEAD[:9])
    responding.output_arrived(HEAD)
    abandoned.client_left()
    clients[State.RUNNING], running = bench.exchange()
    running.identified()  # the order to start its engine is not answered
    clients[State.WAITING], waiting = bench.exchange()
    waiting.identified()
    clients[State.IDENTIFYING], identifying = bench.exchange()
    bench.switch.identifier.identify(
        "/y.py", (), lambda answer: bench.switch.requests.identified(identifying, answer)
    )
    for state, client in clients.items():
        assert client.exchange is not None and client.exchange.state is state

    bench.switch.end_all("suexecme does not answer", 503)
    assert {state: client.ended[:11] for state, client in clients.items()} == {
        State.IDENTIFYING: "Status: 503",
        State.WAITING: "Status: 503",
        State.RUNNING: "Status: 503",
        State.HEAD: "Status: 502",
        State.RESPONDING: "broken off",
        State.ABANDONED: "",
    }
    assert not bench.switch.scheduler.engines and bench.switch.scheduler.counters["started"] == 4
    bench.switch.tick()


@pytest.mark.takes_time
def test_a_fault_while_suexecme_is_replaced_does_not_keep_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, exchange = bench.exchange()
    exchange.identified()
    monkeypatch.setattr(Engine, "fail", lambda self, cause: 1 / 0)
    monkeypatch.setattr(bench.switch.orders, "refuse_all", lambda: None)
    with pytest.raises(ZeroDivisionError):
        bench.switch.end_all("suexecme has gone", 502)
    bench.switch.loop.is_running = True
    bench.switch.loop.call_due_timers(time.monotonic() + 1)
    assert not bench.switch.loop.is_running


def test_a_fault_in_one_request_does_not_keep_those_that_wait_for_the_same_answer(bench: Bench) -> None:
    faults: list[Exception] = []
    bench.switch.loop.on_fault = faults.append
    answers: list[Answer] = []
    bench.switch.identifier.identify("/x.py", (), lambda answer: answers.append(1 // 0))  # type: ignore[arg-type]
    bench.switch.identifier.identify("/x.py", (), answers.append)
    bench.switch.handle_message({"id": 1, "refused": "no", "status": 403}, [])
    assert len(answers) == len(faults) == 1


def test_a_user_whose_name_is_not_utf8_gets_answers(bench: Bench) -> None:
    """pwd gives such a byte as a surrogate, which cannot be encoded as UTF-8."""
    answers: list[Answer] = []
    bench.switch.identifier.identify("/x.py", (), answers.append)
    owner = {"user": "j\udcf6rg", "uid": os.getuid(), "groups": [], "home": "/home/j\udcf6rg"}
    about = {"path": "/x.py", "language": "python", "interpreter": "", "environment": {}}
    bench.switch.handle_message({"id": 1, **owner, **about}, [])
    [answer] = answers
    assert isinstance(answer, IdentifiedScript)
    assert (answer.variables[b"USER"], answer.variables[b"HOME"]) == (b"j\xf6rg", b"/home/j\xf6rg")


class RunningEngine:
    """An engine that runs an exchange, and its process, which the test plays."""

    def __init__(self, bench: Bench) -> None:
        self.client, exchange = bench.exchange()
        exchange.identified()
        self.loop = bench.switch.loop
        _, (data, errors, control) = bench.next_start()
        os.close(errors)
        self.data, self.control = socket.socket(fileno=data), socket.socket(fileno=control)
        [self.engine] = bench.switch.scheduler.engines

    def write(self, data: bytes) -> None:
        """Write output, which the main process reads."""
        self.data.sendall(data)
        self.engine.on_data()

    def __enter__(self) -> RunningEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()
        self.control.close()


def test_the_first_output_waits_for_the_end_of_a_short_response(bench: Bench) -> None:
    """The web server then knows the length of the response. The mark comes a moment after the output."""
    with RunningEngine(bench) as running:
        running.write(HEAD)
        running.write(b"short")
        running.control.sendall(b"\x040\n")
        running.engine.on_control()
        assert running.client.sent == b"" and running.client.data == HEAD + b"short"


def test_the_output_of_a_script_that_goes_on_is_held_once_and_shortly(bench: Bench) -> None:
    with RunningEngine(bench) as running:
        running.write(HEAD + b"begun")
        running.loop.call_due_timers(time.monotonic() + HOLD_SECONDS)
        assert running.client.sent == HEAD + b"begun"
        running.write(b", goes on")
        assert running.client.sent.endswith(b"begun, goes on")
    assert HOLD_SECONDS <= 0.001


def test_a_long_output_is_not_held(bench: Bench) -> None:
    with RunningEngine(bench) as running:
        running.write(HEAD + b"x" * (RECEIVE_BYTES - len(HEAD)))
        assert len(running.client.sent) == RECEIVE_BYTES


def test_a_response_that_is_held_has_begun(bench: Bench) -> None:
    """The request is not given to another engine: this one has written something before it died."""
    with RunningEngine(bench) as running:
        running.write(HEAD + b"begun")
        running.engine.fail("ended by signal 9")
    assert (running.client.sent, running.client.ended) == (HEAD + b"begun", "broken off")


def test_a_script_without_an_engine_is_logged_for_its_user(bench: Bench) -> None:
    client, exchange = bench.exchange(user="")
    answer = IdentifiedScript((), time.monotonic(), "alice", os.getuid(), None, "/x.txt", {})
    bench.switch.requests.identified(exchange, answer)
    assert b"no-engine" in client.data and exchange.user == "alice"


# A main process that may not read Python's directories any more. Each request meets a fault.
FAULTY = """
import sys
from ewe.xswitch import cli, supervisor
from ewe.xswitch.switch.requests import ScriptRequests

def closed(*arguments):  # the last step of the change of account
    sys.path.clear()
    sys.path_importer_cache.clear()
    return 0

def begin(self, *arguments):
    raise RuntimeError("a fault of the test")

supervisor.prctl = closed
ScriptRequests.begin = begin
sys.exit(cli.main(["--listen", sys.argv[1]]))
"""


@pytest.mark.starts_processes
def test_a_fault_is_logged_with_its_traceback_once_python_cannot_be_read(tmp_path: Path) -> None:
    address, log = f"unix:{tmp_path / 'socket'}", tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", FAULTY, address], stdout=output, stderr=output, cwd=ROOT
        )
    try:
        wait_until(lambda: "listens on" in log.read_text(), 30, log.read_text)
        with Connection(address) as connection:
            connection.send("/a.py")
            wait_until(
                lambda: "error: | RuntimeError: a fault of the test" in log.read_text(), 20, log.read_text
            )
        with Connection(address) as connection:
            connection.send("/a.py")
            wait_until(lambda: log.read_text().count("error: the main module failed") == 2, 20, log.read_text)
    finally:
        server.terminate()
        server.wait(30)
    assert "Traceback (most recent call last)" in log.read_text() and "has ended" not in log.read_text()


# A system that refuses the processes of X-Switch at their first starts.
REFUSED_STARTS = """
import errno, sys
from ewe.xswitch import cli, supervisor

refused = iter(range(int(sys.argv[2])))
start = supervisor.Supervisor.start_children

def start_children(self):
    if next(refused, None) is not None:
        raise OSError(errno.EAGAIN, "no process is left")
    start(self)

supervisor.RETRY_S = float(sys.argv[3])
supervisor.Supervisor.start_children = start_children
sys.exit(cli.main(["--listen", sys.argv[1]]))
"""


@contextmanager
def refused_starts(
    tmp_path: Path, count: int, pause_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run an X-Switch whose first starts are refused, and that pauses after each; give its process and its log."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", REFUSED_STARTS, f"unix:{tmp_path / 'socket'}", str(count), str(pause_s)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        wait_until(lambda: "do not start: no process is left" in log.read_text(), 30, log.read_text)
        yield server, log
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.starts_processes
def test_a_start_that_succeeds_after_a_refused_one_is_announced(tmp_path: Path) -> None:
    """A service manager waits for READY=1, which comes with this line."""
    with refused_starts(tmp_path, 1, 0.1) as (_, log):
        wait_until(lambda: "X-Switch listens on" in log.read_text(), 30, log.read_text)


@pytest.mark.starts_processes
def test_a_stop_between_two_starts_is_a_stop(tmp_path: Path) -> None:
    with refused_starts(tmp_path, 1000, 60.0) as (server, log):
        server.terminate()
        assert server.wait(30) == 0, log.read_text()
    assert "SIGTERM: stopping" in log.read_text()


def test_a_fault_without_the_modules_for_a_traceback_is_still_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "traceback", None)
    try:
        raise RuntimeError("a fault")
    except RuntimeError:
        ErrorLog().exception("it failed")
    said = capfd.readouterr().err
    assert "error: it failed" in said and "| RuntimeError('a fault') (no traceback: " in said


def test_without_the_setting_prime_no_engine_is_expected(bench: Bench) -> None:
    assert bench.switch.early_starts.primer is None
    assert bench.switch.scheduler.expected_engines(("alice", "python")) == 0


def test_a_warm_request_makes_few_calls(
    bench: Bench, connected: tuple[WebServerConnection, socket.socket], tmp_path: Path
) -> None:
    """The script's owner is known, and its engine is idle. The test plays web server, suexecme and engine."""
    script = tmp_path / "x.py"
    script.write_text("")
    params = [(b"SCRIPT_FILENAME", bytes(script)), (b"REQUEST_METHOD", b"GET"), (b"SCRIPT_NAME", b"/x.py")]
    _, web_server = connected
    calls = Calls()

    def run_loop() -> None:
        sys.setprofile(calls)
        bench.switch.loop.run()

    def begin() -> None:
        requester = Requester()  # each request has the id 1
        web_server.sendall(requester.begin(params, keep=True) + requester.input(b""))

    loop = threading.Thread(target=run_loop, daemon=True)
    loop.start()
    begin()
    data_end, errors, control_end = bench.identify_and_start(script)
    with socket.socket(fileno=data_end) as data, socket.socket(fileno=control_end) as control:
        for _ in range(30):
            assert control.recv(9000).startswith(bytes(script))
            data.sendall(HEAD)
            control.sendall(SUCCESS)
            response = b""
            while not response.endswith(end_records(1, app_status=0)):
                response += web_server.recv(9000)
            begin()
        bench.switch.loop.stop()  # the next tick() wakes the loop
        loop.join(30)
        os.close(errors)
    made = calls.of_a_request("WebServerConnection.on_data")
    assert len(made) <= 80, made
    assert len({file for file, _ in made}) <= 18, made
