"""The clients of the page's buttons: the same ones for every model, and what each of them saw.

All clients live in one event loop in one thread, so a thousand of them cost little. They connect only to the ports
of the models, on the loopback interface. Each kind has a limit for its number, and every client one for its time.

A client binds its port before it connects. The page can then name the connection of the trace, "silent 2", from the
address in its event `accepted`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from ewe.http.response_head import parse_response_head
from ewe.http.response_reader import ResponseReader
from ewe.http.status import HTTPError
from ewe_watch.live.demonstration import MOST_MS

LIMIT_S = 300.0  # the longest life of a client
FLOOD_S = 5.0  # the longest flood
FLOOD_REQUESTS = 2000  # of one flood, to each model
FLOOD_CONNECTIONS = 50
MOST_ALIVE = 600  # clients of one model at the same time
MOST_LABELS = 4000
TIMES_KEPT = 200
RECENT = 8  # clients that have ended and that the page lists, by the time of their ends
CHUNK_BYTES = 64 * 1024
STOP_S = 5.0  # the longest wait for clients that are to end
# How long pages and pauses take at normal speed; slow motion multiplies them
SLOWED_PAGE_MS = 5  # only in slow motion: the page takes no time else
SCRIPT_MS = 20
SLOW_SEND_S = 0.3  # between two bytes of a slow sender
SLOW_READ_S = 0.2  # between two reads of a slow reader
SLOW_READ_BYTES = 4096  # of one read, and of the receive buffer
# The number to which each statement of a report counts. Slow motion does not multiply it: the daemon cancels a
# statement after its time-limit of ten seconds, which is less far away on a busy machine.
REPORT_COUNT = 500_000
USER_SCRIPT = "ewe-watch.py"  # in cgi-bin of a user's public_html


class ClientEnd(StrEnum):
    """How a client ended, in a word of the page."""

    ANSWERED = "answered"
    ERROR = "error"  # a response with a status from 400 on, but 503: that one refuses
    REFUSED = "refused"  # no connection, or a response with the status 503
    LOST = "lost"  # the connection ended before the response was complete
    LET_GO = "let go"  # by the button
    UNFINISHED = "unfinished"  # when the time of a flood was over


@dataclass
class ClientKind:
    """A kind of client.

    usual, most: how many one press of a button sends, and may send. holds: it stays until it is let go. talk: its
    conversation with the server; returns how it ended, and raises OSError. button: whether the page has a button
    for it; scenes may send all kinds.
    """

    name: str
    title: str
    usual: int
    most: int
    talk: Callable[[LiveClient], Awaitable[ClientEnd]]
    holds: bool = False
    button: bool = True


@dataclass
class Tally:
    """The results of the clients of one kind at one model."""

    sent: int = 0
    ends: Counter[ClientEnd] = field(default_factory=Counter)
    alive: dict[int, float] = field(default_factory=dict)  # id() of a client -> its begin
    times_ms: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the tally as an object for JSON; its times are in milliseconds. now: by time.monotonic()."""
        return {
            "sent": self.sent,
            "waiting": len(self.alive),
            # By `default`, not by a test before: the clients' thread may remove the last client in between
            "longest": round((now - min(self.alive.values(), default=now)) * 1000),
            "median": round(median(self.times_ms), 1) if self.times_ms else None,
            "worst": round(max(self.times_ms), 1) if self.times_ms else None,
            **{end.value: self.ends[end] for end in ClientEnd if end != ClientEnd.UNFINISHED},
        }


class LiveClient:
    """One client and its connection.

    number: among those of its kind. gate: the number of the gate at which its pages wait (demonstration.py).
    slowdown: the factor of slow motion, from 1.
    """

    def __init__(
        self, group: ModelClients, kind: ClientKind, number: int, gate: int, slowdown: float
    ) -> None:
        self.group = group
        self.kind = kind
        self.label = f"{kind.name} {number}"
        self.gate = gate
        self.slowdown = slowdown
        self.address = ""  # of its end of the connection
        self.writer: asyncio.StreamWriter | None = None

    async def connect(self, receive_bytes: int = 0) -> asyncio.StreamReader:
        """Connect to the model. receive_bytes: the size of the receive buffer; 0: the system's. Raises OSError."""
        sock = socket.socket()
        try:
            sock.setblocking(False)
            if receive_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            sock.bind(("127.0.0.1", 0))
            self.address = "{}:{}".format(*sock.getsockname())
            self.group.note_client(self.address, self.label)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.group.port))
            reader, self.writer = await asyncio.open_connection(sock=sock, limit=CHUNK_BYTES)
        except BaseException:  # also a cancellation by let_go(): no writer has the socket yet
            sock.close()
            raise
        return reader

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        assert self.writer is not None
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, target: str, *, close: bool = True, pause_s: float = 0.0) -> ClientEnd:
        """Make one request and read its response; return how it ended. pause_s: between two pieces of the body."""
        reader = await self.connect()
        await self.send(head(target, close=close))
        return await self.read_response(reader, pause_s)

    async def read_response(
        self, reader: asyncio.StreamReader, pause_s: float = 0.0, piece_bytes: int = CHUNK_BYTES
    ) -> ClientEnd:
        """Read a response; return how it ended. A response with the status 503 ends with its head.

        pause_s: between two pieces of the response, of which each has piece_bytes at most.
        """
        response = ResponseReader(parse_response_head)
        try:
            while not response.finished:
                if data := await reader.read(piece_bytes):
                    response.feed(data)
                else:
                    response.end()
                if response.head is not None and response.head.status == 503:
                    return ClientEnd.REFUSED
                if pause_s:
                    await asyncio.sleep(pause_s)
        except HTTPError:  # a server that is still being written may send anything
            return ClientEnd.LOST
        return ClientEnd.ERROR if response.head is None or response.head.status >= 400 else ClientEnd.ANSWERED

    def close(self) -> None:
        """Close the connection."""
        self.group.unaccepted.pop(self.address, None)
        if self.writer is not None:
            self.writer.close()


def head(target: str, *, close: bool = True) -> bytes:
    """Return the head of a request."""
    connection = "close" if close else "keep-alive"
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\n\r\n".encode()


def page_for(client: LiveClient) -> str:
    """Return the target of a page, which takes no time; in slow motion SLOWED_PAGE_MS times the factor."""
    if client.slowdown <= 1:
        return "/page"
    return f"/page?ms={round(SLOWED_PAGE_MS * client.slowdown)}&gate={client.gate}"


async def visit(client: LiveClient) -> ClientEnd:
    """Ask for one page."""
    return await client.ask(page_for(client))


async def be_silent(client: LiveClient) -> ClientEnd:
    """Connect and say nothing, until the server closes."""
    reader = await client.connect()
    return await client.read_response(reader)


async def send_slowly(client: LiveClient) -> ClientEnd:
    """Send a request byte by byte, as a client behind a slow link does: it occupies a worker that waits for it."""
    reader = await client.connect()
    for byte in head(page_for(client)):
        await client.send(bytes((byte,)))
        await asyncio.sleep(SLOW_SEND_S * client.slowdown)
    return await client.read_response(reader)


async def read_slowly(client: LiveClient) -> ClientEnd:
    """Ask for a large file, and read a little of it at a time.

    The small receive buffer is soon full, so the server's send has to wait for this client.
    """
    reader = await client.connect(receive_bytes=SLOW_READ_BYTES)
    await client.send(head("/large.bin"))
    return await client.read_response(reader, SLOW_READ_S * client.slowdown, SLOW_READ_BYTES)


async def download(client: LiveClient) -> ClientEnd:
    """Ask for a large file. In slow motion, pause after each piece: 1 ms for each unit of the factor above 1."""
    return await client.ask("/large.bin", pause_s=(client.slowdown - 1) / 1000)


async def run_program(client: LiveClient) -> ClientEnd:
    """Ask for a program that runs for a second."""
    return await client.ask(f"/cgi-bin/slow?ms={round(1000 * client.slowdown)}&gate={client.gate}")


async def run_held_program(client: LiveClient) -> ClientEnd:
    """Ask for a program that runs until it is let go."""
    return await client.ask(f"/cgi-bin/slow?ms={MOST_MS}&gate={client.gate}")


async def run_script(client: LiveClient) -> ClientEnd:
    """Ask for a program that X-Switch runs in an engine. In slow motion it takes longer."""
    milliseconds = 0 if client.slowdown <= 1 else round(SCRIPT_MS * client.slowdown)
    return await client.ask(f"/cgi-bin/slow.py?ms={milliseconds}&gate={client.gate}")


async def ask_as(client: LiveClient, user_index: int) -> ClientEnd:
    """Ask for a script of a user of --users. Without such a user, ask for one of the site."""
    users = client.group.users
    path = f"/~{users[user_index]}/cgi-bin/{USER_SCRIPT}" if user_index < len(users) else "/cgi-bin/slow.py"
    return await client.ask(f"{path}?ms={round(SCRIPT_MS * client.slowdown)}&gate={client.gate}")


async def ask_first(client: LiveClient) -> ClientEnd:
    """Ask for a script of the first user."""
    return await ask_as(client, 0)


async def ask_second(client: LiveClient) -> ClientEnd:
    """Ask for a script of the second user."""
    return await ask_as(client, 1)


async def report(client: LiveClient) -> ClientEnd:
    """Ask for a page whose statements keep the database busy for some seconds."""
    return await client.ask(f"/count.sql.html?n={REPORT_COUNT}")


async def block(client: LiveClient) -> ClientEnd:
    """Ask for a page that blocks its thread for two seconds."""
    return await client.ask(f"/blocking?ms={round(2000 * client.slowdown)}&gate={client.gate}")


async def hold(client: LiveClient) -> ClientEnd:
    """Ask for a page that blocks its thread until it is let go."""
    return await client.ask(f"/blocking?ms={MOST_MS}&gate={client.gate}")


async def keep(client: LiveClient) -> ClientEnd:
    """Ask for one page, and keep the connection until the server closes it, or the client is let go."""
    reader = await client.connect()
    await client.send(head(page_for(client), close=False))
    if (end := await client.read_response(reader)) != ClientEnd.ANSWERED:
        return end
    client.group.note_end(client, ClientEnd.ANSWERED)  # now, not at the end: the page has come
    await reader.read(1)  # the server sends nothing more: this returns when it closes
    return ClientEnd.ANSWERED


async def flood(client: LiveClient) -> ClientEnd:
    """Ask for pages as fast as they come, on many connections; at most FLOOD_REQUESTS, for FLOOD_S seconds.

    Return ANSWERED if one request was answered, else ERROR or REFUSED if one ended so, else LOST. The numbers of
    all ends are stored in ModelClients.flooded.
    """
    deadline = time.monotonic() + FLOOD_S
    unsent = FLOOD_REQUESTS
    ends: Counter[ClientEnd] = Counter()

    async def one() -> None:
        """Make one request after another, each on a new connection, until the flood ends."""
        nonlocal unsent
        while unsent > 0 and (left_s := deadline - time.monotonic()) > 0:
            unsent -= 1
            visitor = LiveClient(
                client.group, client.kind, number=0, gate=client.gate, slowdown=client.slowdown
            )
            try:
                ends[await asyncio.wait_for(visit(visitor), left_s)] += 1
            except TimeoutError:
                ends[ClientEnd.UNFINISHED] += 1
            except OSError:
                ends[ClientEnd.LOST] += 1
            finally:
                visitor.close()

    await asyncio.gather(*(one() for _ in range(FLOOD_CONNECTIONS)))
    client.group.flooded = {end.value: count for end, count in ends.items()}
    return next(
        (end for end in (ClientEnd.ANSWERED, ClientEnd.ERROR, ClientEnd.REFUSED) if ends[end]), ClientEnd.LOST
    )


KINDS = {
    kind.name: kind
    for kind in (
        ClientKind("visitor", "one visitor", 1, 200, visit),
        ClientKind("silent", "five silent clients", 5, 200, be_silent, holds=True),
        ClientKind("slow sender", "three slow senders", 3, 100, send_slowly, holds=True),
        ClientKind("slow reader", "three slow readers", 3, 100, read_slowly, holds=True),
        ClientKind("keep-alive", "five keep-alive clients", 5, 200, keep, holds=True),
        ClientKind("large file", "a large file", 1, 50, download),
        ClientKind("program", "a slow program", 1, 50, run_program),
        ClientKind("endless program", "an endless program", 1, 50, run_held_program, button=False),
        ClientKind("script", "a short script", 1, 50, run_script, button=False),
        ClientKind("first user", "a script of the first user", 1, 50, ask_first, button=False),
        ClientKind("second user", "a script of the second user", 1, 50, ask_second, button=False),
        ClientKind("report", "a page of a busy database", 1, 20, report, button=False),
        ClientKind("blocking", "a page that blocks 2 s", 1, 20, block),
        ClientKind("endless page", "a page that blocks until let go", 1, 20, hold, holds=True),
        ClientKind("flood", "a flood", 1, 1, flood),
    )
}


class ModelClients:
    """The clients of one model. port: the model's. users: accounts whose scripts X-Switch runs.

    flooded: the ends of the requests of the last flood, counted.
    """

    def __init__(self, port: int, users: Sequence[str] = ()) -> None:
        self.port = port
        self.users = users
        self.tallies: dict[str, Tally] = {}
        self.recent: deque[list[Any]] = deque(maxlen=RECENT)
        self.labels: dict[str, str] = {}
        # address -> label of the clients that connect, and that the server has not accepted; in their order
        self.unaccepted: dict[str, str] = {}
        self.flooded: dict[str, int] = {}
        self.tasks: dict[asyncio.Task[None], LiveClient] = {}
        self.began: dict[LiveClient, float] = {}

    def note_client(self, address: str, label: str) -> None:
        """Note the client of a new connection, which the server has not accepted yet.

        address: IP:PORT of the client's end. label: its name for people. The oldest labels are forgotten.
        """
        self.labels.pop(address, None)  # so that an address that is used again counts as new
        self.labels[address] = self.unaccepted[address] = label
        while len(self.labels) > MOST_LABELS:
            del self.labels[next(iter(self.labels))]

    def label(self, address: str) -> str:
        """Return the name of a client by its address."""
        return self.labels.get(address, "guest " + address.rpartition(":")[2])

    def note_accepted(self, address: str) -> None:
        """Note that the server has accepted the connection of the client at this address."""
        self.unaccepted.pop(address, None)

    async def run(self, client: LiveClient) -> None:
        """Let a client live, at most LIMIT_S, and note its end."""
        self.began[client] = time.monotonic()
        self.tally(client.kind.name).alive[id(client)] = self.began[client]
        end = ClientEnd.LOST
        try:
            end = await asyncio.wait_for(client.kind.talk(client), LIMIT_S)
        except asyncio.CancelledError:
            end = ClientEnd.LET_GO
        except ConnectionRefusedError:
            end = ClientEnd.REFUSED
        except OSError:  # also TimeoutError
            end = ClientEnd.LOST
        finally:
            client.close()
            self.note_end(client, end)

    def note_end(self, client: LiveClient, end: ClientEnd) -> None:
        """Note how a client ended. A second end of the same client does not count (keep() notes its end early)."""
        began = self.began.pop(client, None)
        if began is None:
            return
        tally = self.tally(client.kind.name)
        tally.alive.pop(id(client), None)
        tally.ends[end] += 1
        took_ms = (time.monotonic() - began) * 1000
        if end == ClientEnd.ANSWERED:
            tally.times_ms.append(took_ms)
        self.recent.append([client.label, end, round(took_ms, 1)])

    def tally(self, kind: str) -> Tally:
        """Return the tally of a kind."""
        return self.tallies.setdefault(kind, Tally())

    def as_json(self) -> dict[str, Any]:
        """Return what the clients saw, as an object for JSON."""
        now = time.monotonic()
        # A copy: the clients' thread may add a kind meanwhile
        kinds = {name: tally.as_json(now) for name, tally in list(self.tallies.items())}
        return {"kinds": kinds, "recent": list(self.recent), "flood": self.flooded}


class Clients:
    """The loop of all clients, in a thread. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="clients", daemon=True)
        self.thread.start()

    def send(self, group: ModelClients, kind: ClientKind, count: int, gate: int, slowdown: float) -> None:
        """Send `count` clients to a model, but not more than MOST_ALIVE minus those that live."""

        def start() -> None:
            """Run in the clients' loop: its tasks and tallies are changed in its thread only."""
            for _ in range(min(count, MOST_ALIVE - len(group.tasks))):
                tally = group.tally(kind.name)
                tally.sent += 1
                client = LiveClient(group, kind, tally.sent, gate, slowdown)
                task = self.loop.create_task(group.run(client))
                group.tasks[task] = client
                task.add_done_callback(lambda done: group.tasks.pop(done, None))

        self.loop.call_soon_threadsafe(start)

    def let_go(self, group: ModelClients, *, all_kinds: bool = False) -> None:
        """End the clients of a model that occupy it on purpose (ClientKind.holds); all clients if all_kinds."""
        self.wait_for(self.cancel(group, all_kinds))

    async def cancel(self, group: ModelClients, all_kinds: bool) -> None:
        """Cancel clients, and wait for their ends."""
        held = [task for task, client in group.tasks.items() if all_kinds or client.kind.holds]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async def cancel_rest(self) -> None:
        """Cancel all tasks of the loop but this one. asyncio would print an error for each task that is left."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop, and wait for its end, at most STOP_S seconds."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(work, self.loop).result(STOP_S)

    def stop(self) -> None:
        """End the loop and its thread, and the connections of a flood that have not ended yet."""
        self.wait_for(self.cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(STOP_S)
        if not self.thread.is_alive():  # else a callback still runs, and close() would raise RuntimeError
            self.loop.close()
