"""How long a statement takes: in process, and through the demon at each of its addresses.

A call is a request and its whole result. Calls are made in batches, and each address has its turn in each round, so
that all of them see the same machine. The fastest batch counts: what else runs on the machine only ever adds time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ewe.database.client import Client
from ewe.database.drivers import Database, connect
from ewe.database.layouts import fragments
from ewe.database.protocol import ClientRequest

ROUNDS = 100


class Times(NamedTuple):
    """Seconds of a call: over a kept connection, and with a new connection for it (None: in process)."""

    where: str
    kept: float
    new: float | None


def measure(database: Database, request: ClientRequest, addresses: Sequence[str], calls: int) -> list[Times]:
    """Return the times in process, then at each address. calls: of each kind. Raises DatabaseError."""
    batch = max(calls // ROUNDS, 1)
    connection = connect(database)
    clients = [Client(address) for address in addresses]
    try:

        def in_process() -> None:
            result = connection.execute(request.statement, request.parameters)
            consume(fragments(request.layout, result.columns, result.rows))
            connection.end(commit=False)

        kept = [in_process, *(lambda client=client: consume(client.ask(request)) for client in clients)]
        new = [lambda address=address: ask_once(address, request) for address in addresses]
        best = fastest([*kept, *new], batch)
    finally:
        connection.close()
        for client in clients:
            client.close()
    return [
        Times("in process", best[0], None),
        *map(Times, addresses, best[1 : len(kept)], best[len(kept) :]),
    ]


def fastest(functions: Sequence[Callable[[], None]], batch: int) -> list[float]:
    """Return for each function the seconds of a call, in its fastest batch."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for number, function in enumerate(functions):
            began = time.perf_counter()
            for _ in range(batch):
                function()
            best[number] = min(best[number], (time.perf_counter() - began) / batch)
    return best


def ask_once(address: str, request: ClientRequest) -> None:
    """Ask over a new connection."""
    with Client(address) as client:
        consume(client.ask(request))


def consume(pieces: Iterable[bytes]) -> None:
    """Take all pieces of a result."""
    for _ in pieces:
        pass


def table(times: Sequence[Times]) -> Iterator[str]:
    """Yield the lines of a table, in microseconds."""
    wide = max(len(each.where) for each in times)
    yield f"{'microseconds a call':{wide}}  {'kept':>8}  {'added':>8}  {'new connection':>14}"
    for each in times:
        kept, added = each.kept * 1e6, (each.kept - times[0].kept) * 1e6
        new = f"{each.new * 1e6:14.0f}" if each.new is not None else ""
        yield f"{each.where:{wide}}  {kept:8.0f}  {added:8.0f}  {new}".rstrip()
