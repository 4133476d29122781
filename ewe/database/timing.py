"""Measures the time of a statement: in process, and through the daemon at each of its addresses.

A call is a request and its whole result. Calls are made in batches, and each address has its turn in each round.
All of them therefore see the same machine. The fastest batch counts: other load on the machine only ever adds time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ewe.database.client import Client
from ewe.database.drivers import Database, connect
from ewe.database.layouts import fragments
from ewe.database.protocol import ClientRequest

ROUNDS = 100  # how often each address has its turn


class CallTimes(NamedTuple):
    """The time of a call to one address, or "in process".

    kept_s: over a connection that stays open. new_s: with a new connection for each call; None in process.
    """

    address: str
    kept_s: float
    new_s: float | None


def measure(
    database: Database, request: ClientRequest, addresses: Sequence[str], calls: int
) -> list[CallTimes]:
    """Return the times in process, then at each address. calls: how many of each kind. Raises DatabaseError."""
    batch = max(calls // ROUNDS, 1)  # calls in each round
    connection = connect(database)
    clients = [Client(address) for address in addresses]
    try:

        def in_process() -> None:
            """Run the statement in this process, without a daemon."""
            result = connection.execute(request.statement, request.parameters)
            consume(fragments(request.layout, result.columns, result.rows))
            connection.end(commit=False)

        calls_over_kept = [
            in_process,
            *(lambda client=client: consume(client.ask(request)) for client in clients),
        ]
        calls_over_new = [lambda address=address: ask_once(address, request) for address in addresses]
        best_s = fastest([*calls_over_kept, *calls_over_new], batch)
    finally:
        connection.close()
        for client in clients:
            client.close()
    in_process_s, *over_kept_s = best_s[: len(calls_over_kept)]
    over_new_s = best_s[len(calls_over_kept) :]
    return [CallTimes("in process", in_process_s, None), *map(CallTimes, addresses, over_kept_s, over_new_s)]


def fastest(functions: Sequence[Callable[[], None]], batch: int) -> list[float]:
    """Return for each function the seconds of a call, in its fastest batch."""
    best_s = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for number, function in enumerate(functions):
            started_at = time.perf_counter()
            for _ in range(batch):
                function()
            best_s[number] = min(best_s[number], (time.perf_counter() - started_at) / batch)
    return best_s


def ask_once(address: str, request: ClientRequest) -> None:
    """Ask over a new connection."""
    with Client(address) as client:
        consume(client.ask(request))


def consume(pieces: Iterable[bytes]) -> None:
    """Read all pieces of a result."""
    for _ in pieces:
        pass


def table(times: Sequence[CallTimes]) -> Iterator[str]:
    """Yield the lines of a table, in microseconds. times: the first are those in process.

    The columns: a call over a kept connection, how much of that the address adds, and a call with a new connection.
    """
    title = "microseconds a call"
    width = max(len(title), *(len(row.address) for row in times))
    in_process, *_ = times
    yield f"{title:{width}}  {'kept':>8}  {'added':>8}  {'new connection':>14}"
    for row in times:
        kept_us, added_us = row.kept_s * 1e6, (row.kept_s - in_process.kept_s) * 1e6
        new_us = f"{row.new_s * 1e6:14.0f}" if row.new_s is not None else ""
        yield f"{row.address:{width}}  {kept_us:8.0f}  {added_us:8.0f}  {new_us}".rstrip()
