"""The connections to a responder: their limit, and the queue for room. The models are in test_fastcgi.py."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Coroutine, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.memory import MemoryStream

from ewe.config.settings import Config
from ewe.features import fastcgi
from ewe.gateway.affinity import Affinity
from ewe.gateway.connections import Connections
from ewe.gateway.upstream import Upstream, UpstreamAddress
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.base import Disconnected
from ewe.streams.blocking import run
from ewe.streams.poller import BlockingPoller


class Pause:
    """`await Pause()` gives control back to the test."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Client(MemoryStream):
    """A client whose event pauses, until the test resumes its request. upstream: what the request got."""

    def __init__(self, connections: Connections, **how: Any) -> None:
        super().__init__([])
        self.is_set = False
        self.upstream: Upstream | None = None
        self.opening: Coroutine[Any, Any, Upstream] = connections.open(self, **how)
        made.append(self)
        self.resume()

    def resume(self) -> None:
        """Run the request up to its next wait."""
        try:
            self.opening.send(None)
        except StopIteration as done:
            self.upstream = done.value

    def poller(self) -> Any:
        return self

    def forget(self, descriptor: int) -> None:
        """Do nothing: this poller watches no descriptor."""

    def wake_event(self) -> Client:  # type: ignore[override]
        return self

    def set(self) -> None:
        assert not self.is_set
        self.is_set = True

    async def wait(self, seconds: float) -> bool:
        await Pause()
        return self.is_set

    def close(self) -> None:
        """Nothing is open."""


made: list[Client] = []


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    """Close what the requests of a test got, or still wait for."""
    yield
    for client in made:
        client.opening.close()
        if client.upstream is not None:
            client.upstream.close()
    made.clear()


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[list[str]]:
    """Two addresses at which a server listens."""
    listening = []
    for name in ("a", "b"):
        listening.append(socket.socket(socket.AF_UNIX))
        listening[-1].bind(str(tmp_path / name))
        listening[-1].listen(50)
    yield [f"unix:{tmp_path / name}" for name in ("a", "b")]
    for each in listening:
        each.close()


def limited(addresses: list[str], limit: int = 1, keeps: bool = False) -> Connections:
    return Connections(addresses, keeps, retry_s=1000, limit=limit, queue_timeout_s=1000)


@pytest.mark.parametrize("keeps", [False, True])
def test_first_come_first_served(paths: list[str], keeps: bool) -> None:
    connections = limited(paths[:1], 2, keeps)
    clients = [Client(connections) for _ in range(6)]
    assert [bool(client.upstream) for client in clients] == [True, True] + [False] * 4
    order = []
    for number in range(4):
        upstream = clients[number].upstream
        assert upstream is not None
        connections.release(upstream, reusable=True)
        late = Client(connections)  # it comes when there is room, but others came before it
        assert late.upstream is None
        order += [each for each in range(2, 6) if clients[each].is_set and each not in order]
        clients[order[-1]].resume()
        kept = clients[order[-1]].upstream is upstream
        assert kept is keeps
    assert order == [2, 3, 4, 5] and connections.addresses[0].open_count == 2


def test_without_a_limit_nobody_waits(paths: list[str]) -> None:
    connections = Connections(paths[:1], keeps=False)
    assert all(Client(connections).upstream for _ in range(40))


def test_a_limit_is_for_each_address(paths: list[str]) -> None:
    connections = limited(paths)
    first, second, third = (Client(connections) for _ in range(3))
    assert first.upstream and second.upstream and third.upstream is None
    assert first.upstream.address is not second.upstream.address
    connections.release(second.upstream)
    third.resume()
    assert third.upstream and third.upstream.address is second.upstream.address


def test_a_request_waits_for_the_place_of_its_client(paths: list[str]) -> None:
    """Those behind it find room at the other place, and it keeps its turn among those that want the same."""
    connections = limited(paths)
    there = connections.addresses[0]
    first, second = Client(connections, preferred=there), Client(connections, preferred=there)
    assert first.upstream and first.upstream.address is there and second.upstream is None
    other = Client(connections)
    if other.upstream is None:
        other.resume()
    assert other.upstream and other.upstream.address is not there
    third = Client(connections, preferred=there)
    connections.release(other.upstream)
    assert not second.is_set and not third.is_set
    connections.release(first.upstream)
    assert second.is_set and not third.is_set
    second.resume()
    assert second.upstream and second.upstream.address is there
    connections.release(second.upstream)
    third.resume()
    assert third.upstream and third.upstream.address is there


def test_the_place_of_a_client_has_died(paths: list[str]) -> None:
    connections = limited(paths)
    there, elsewhere = connections.addresses
    Path(there.text.removeprefix("unix:")).unlink()
    first = Client(connections, preferred=there)
    assert first.upstream and first.upstream.address is elsewhere and there.left_out_until
    connections.release(first.upstream)
    second = Client(connections, preferred=there)
    assert second.upstream and second.upstream.address is elsewhere


@pytest.mark.parametrize(
    ("cookie", "number"),
    [
        ("ewe=2", 2), ("a=b; ewe=1", 1), ("ewe=2; ewe=1", 2), ("ewe=02", 2), ("", 0), ("ewe", 0), ("ewe=", 0),
        ("ewe=0", 0), ("ewe=3", 0), ("ewe=-1", 0), ("ewe=999999999999", 0), ("ewe=x", 0), ("xewe=1", 0),
        ("ewe=\xb2", 0), ("EWE=1", 0), ('ewe="1"', 0),
    ],
)  # fmt: skip
def test_cookies_that_a_client_may_send(cookie: str, number: int) -> None:
    """Forged ones lead nowhere, or where a turn could have led."""
    addresses = Connections(["unix:/a", "unix:/b"], keeps=False).addresses
    request = Request("GET", "/", (1, 1), (("cookie", cookie),))
    assert Affinity("ewe", "/app", addresses).preferred(request) is (
        addresses[number - 1] if number else None
    )


def test_the_cookie_that_ewe_sets() -> None:
    addresses = Connections(["unix:/a", "unix:/b"], keeps=False).addresses
    field = Affinity("ewe", "/app", addresses).field(addresses[1], "http")
    assert field == ("Set-Cookie", "ewe=2; Path=/app; HttpOnly; SameSite=Lax")
    field = Affinity("ewe", ".php", addresses).field(addresses[0], "https")
    assert field == ("Set-Cookie", "ewe.php=1; Path=/; HttpOnly; SameSite=Lax; Secure")


@pytest.mark.parametrize(
    ("where", "begin"),
    [
        ("/日;本", "ewe=1; Path=/%E6%97%A5%3B%E6%9C%AC;"),
        (".é", "ewe.%C3%A9=1; Path=/;"),
        (r"^/(?=a).*; \.php$", r"ewe%5E%2F%28%3F%3Da%29.%2A%3B%20%5C.php%24=1; Path=/;"),
    ],
)
def test_a_cookie_has_no_character_that_ends_it(where: str, begin: str) -> None:
    """A pattern of a location has such characters, and a field of a response can only have those of Latin-1."""
    addresses = Connections(["unix:/a", "unix:/b"], keeps=False).addresses
    affinity = Affinity("ewe", where, addresses)
    name, value = affinity.field(addresses[0], "http")
    assert value.startswith(begin) and Response(200, ((name, value),)).encoded()
    request = Request("GET", "/", (1, 1), (("cookie", value.partition(";")[0]),))
    assert affinity.preferred(request) is addresses[0]


def test_a_pattern_is_no_path_of_a_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser would send the cookie to no URL, and each request would go to the next address in turn."""
    asked: list[Any] = []

    async def ask(*arguments: object) -> None:
        asked.append(arguments[-1])

    monkeypatch.setattr(fastcgi, "ask", ask)
    location: Any = SimpleNamespace(
        config=Config(fastcgi_affinity="ewe"),
        plan=SimpleNamespace(limits=None, static=SimpleNamespace(root="/")),
        table=SimpleNamespace(match_key="pattern", match_value="/shop/[0-9]+"),
    )
    runner = fastcgi.gateway(location, "fastcgi", ("unix:/a", "unix:/b"))
    run(runner.run(None, None, None))  # type: ignore[arg-type]
    assert asked[0].path == "/" and asked[0].name.startswith("ewe~")


def test_who_comes_later_does_not_overtake(paths: list[str]) -> None:
    """For example when an address that was left out may be tried again."""
    connections = limited(paths)
    connections.addresses[0].left_out_until = math.inf
    first, second = (Client(connections) for _ in range(2))
    assert first.upstream and second.upstream is None
    connections.addresses[0].left_out_until = 0.0
    late = Client(connections)
    assert second.is_set and late.upstream is None
    second.resume()
    assert second.upstream and second.upstream.address is connections.addresses[0]


def test_the_queue_timeout_ends_a_wait(paths: list[str]) -> None:
    connections = limited(paths[:1])
    first, second, third = (Client(connections) for _ in range(3))
    with pytest.raises(HTTPError, match="no connection to the responder was free for 1000 s") as refused:
        second.resume()
    assert (refused.value.status, refused.value.fields) == (503, (("Retry-After", "1"),))
    assert first.upstream
    connections.release(first.upstream)
    third.resume()
    assert third.upstream and not connections.queue


@pytest.mark.parametrize("is_set", [False, True])
def test_a_client_that_leaves_passes_its_room_on(paths: list[str], is_set: bool) -> None:
    """Also if the client got the room just before."""
    connections = limited(paths[:1], keeps=True)
    first, second, third = (Client(connections) for _ in range(3))
    assert first.upstream
    if is_set:
        connections.release(first.upstream, reusable=True)
    with pytest.raises(Disconnected):
        second.opening.throw(Disconnected())
    assert second.is_set is is_set
    if not is_set:
        connections.release(first.upstream, reusable=True)
    third.resume()
    assert third.upstream is first.upstream and connections.addresses[0].open_count == 1


def test_room_at_an_address_that_has_died_meanwhile(paths: list[str]) -> None:
    """The request goes to the other address, before those that came later; the dead one's room is not lost."""
    connections = limited(paths)
    first, second, third, fourth = (Client(connections) for _ in range(4))
    assert first.upstream and second.upstream
    dead = first.upstream.address
    Path(dead.text.removeprefix("unix:")).unlink()
    connections.release(first.upstream)
    third.resume()
    assert third.upstream is None and dead.left_out_until and dead.open_count == 0
    third.is_set = False
    connections.release(second.upstream)
    assert third.is_set and not fourth.is_set
    third.resume()
    assert third.upstream and third.upstream.address is second.upstream.address


def test_nobody_waits_where_nothing_can_be_reached(tmp_path: Path) -> None:
    connections = limited([f"unix:{tmp_path / name}" for name in ("none", "neither")])
    for _ in range(3):
        with pytest.raises(HTTPError, match="cannot be reached") as refused:
            Client(connections)
        assert refused.value.status == 503
    assert [address.open_count for address in connections.addresses] == [0, 0]


def test_a_kept_connection_that_has_ended_leaves_its_room(paths: list[str]) -> None:
    connections = limited(paths[:1], keeps=True)
    first = Client(connections)
    assert first.upstream
    connections.release(first.upstream, reusable=True)
    first.upstream.socket.shutdown(socket.SHUT_RDWR)
    second = Client(connections)
    assert (
        second.upstream and second.upstream is not first.upstream and connections.addresses[0].open_count == 1
    )
    connections.release(second.upstream, reusable=True)
    third = Client(connections, must_be_new=True)  # the kept one gives its room to a new one
    assert (
        third.upstream and third.upstream is not second.upstream and connections.addresses[0].open_count == 1
    )


def test_a_kept_connection_shows_that_its_address_can_be_reached(paths: list[str]) -> None:
    """A busy server may refuse new connections for a moment, and still answer on those that are kept."""
    connections = limited(paths, keeps=True)
    first = Client(connections)
    assert first.upstream
    address = first.upstream.address
    connections.release(first.upstream, reusable=True)
    address.left_out_until = 0.001  # it was left out, and that time is over
    second = Client(connections, preferred=address)
    assert second.upstream is first.upstream and address.left_out_until == 0.0


def test_one_request_tries_an_address_that_was_left_out(paths: list[str]) -> None:
    """Wherever the address stands in the turn; an address without room is not tried, and not left out."""
    connections = limited(paths)
    address, other = connections.addresses
    for _ in range(2):
        address.left_out_until = 0.001  # this time is over
        address.open_count, other.open_count = 1, 0
        room = connections.find_room((), False, None)
        assert room is not None and room[0] is other and address.left_out_until == 0.001
    for _ in range(2):
        address.left_out_until = 0.001
        address.open_count, other.open_count = 0, 1
        room = connections.find_room((), False, None)
        assert room is not None and room[0] is address and address.left_out_until > 0.001


def test_a_path_that_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    connections = Connections([f"unix:{tmp_path / ('a' * 200)}"], keeps=False)
    with pytest.raises(HTTPError, match="cannot be reached: AF_UNIX path too long"):
        Client(connections)


def test_a_name_that_has_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is often ::1 first, and a server often listens at 127.0.0.1 only."""
    here, there = socket.socketpair()
    with here, there, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **how: found)
        client = MemoryStream([])
        monkeypatch.setattr(client, "poller", lambda: BlockingPoller(here))
        upstream = run(Connections([f"localhost:{port}"], keeps=False).open(client))
        assert upstream.socket.getpeername() == ("127.0.0.1", port)
        upstream.close()


def test_a_name_with_an_address_that_drops_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often the address of IPv6. The next one answers; later connections do not wait for the silent one again."""
    here, there = socket.socketpair()
    with here, there, socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as held:
        silent = held.enter_context(socket.create_server(("127.0.0.2", 0), backlog=0))
        # No second connection fits into its backlog
        held.enter_context(socket.create_connection(silent.getsockname()))
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", each.getsockname()) for each in (silent, listening)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **how: found)
        client = MemoryStream([])
        monkeypatch.setattr(client, "poller", lambda: BlockingPoller(here))
        connections = Connections(["two.example:80"], keeps=False, connect_timeout_s=2.0)
        for least_s, most_s in ((0.9, 1.9), (0.0, 0.9)):
            began = time.monotonic()
            upstream = run(connections.open(client))
            assert upstream.socket.getpeername() == listening.getsockname()
            assert least_s < time.monotonic() - began < most_s
            upstream.close()


def test_an_answer_that_comes_before_a_reset_is_read() -> None:
    """A server refuses a long body, and closes the connection before it has read it (RFC 9112 section 9.6)."""
    client, client_end = socket.socketpair()
    with client, client_end, socket.create_server(("127.0.0.1", 0)) as listening:
        address = UpstreamAddress(f"127.0.0.1:{listening.getsockname()[1]}")
        upstream = run(address.connect(BlockingPoller(client), 10))
        server, _ = listening.accept()
        body = memoryview(bytes(1 << 20))
        while upstream.send(body):  # until the buffers are full
            pass
        server.sendall(b"HTTP/1.1 413 Content Too Large\r\n\r\n")
        server.close()
        unsent, data = run(upstream.exchange(body, 10))
        assert (bytes(unsent), data) == (b"", b"HTTP/1.1 413 Content Too Large\r\n\r\n")
        for _ in range(2):  # an answer that ends with the connection is not complete
            with pytest.raises(ConnectionResetError):
                run(upstream.receive(10))
        upstream.close()


def test_each_process_begins_anywhere_in_the_circle() -> None:
    """A child of the fork model starts with its parent's state, and answers perhaps one request."""
    connections = Connections(["unix:/a", "unix:/b", "unix:/c"], keeps=False)
    first = set()
    for child in range(200):
        connections.process, connections.turn = -child, 0  # as another process left it
        first.add(connections.take_turn()[0])
    assert first == set(connections.addresses)


def test_one_place_that_has_refused_is_not_asked_again() -> None:
    connections = Connections(["unix:/a"], keeps=False)
    with pytest.raises(HTTPError, match="overloaded"):
        run(connections.open(MemoryStream([]), connections.addresses))
