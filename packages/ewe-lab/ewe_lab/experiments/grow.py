"""Growth: more and more active users, and more and more idle connections.

    users               each asks, thinks for 100 ms, and asks again: up to 1,000 of them
    idle connections    each has had one answer, and says nothing: up to 9,000, beside a small load

An idle connection costs a thread or a process under the models that give one to each, and some KB in an event loop
or the pool. The memory of the server shows the difference, and its connection limit ends the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.clients import held_connections, measure_beside_idle, measure_once
from ewe_lab.experiments.tested_servers import ASYNCIO, FORK, NGINX, POOL, PREFORK, THREAD

USERS, IDLE = "users", "idle connections"
POOL_10000 = replace(POOL, options=("--connections", "10000"))  # the pool's default is 4000
SERVERS = (FORK, PREFORK, THREAD, POOL_10000, ASYNCIO, NGINX)
PARKING = ("asyncio", "pool")  # an idle connection needs no thread and no process
WORKER_FOR_EACH = ("thread", "fork", "prefork")  # it needs one of them


def run(lab: Bench) -> Iterator[Cell]:
    """Measure users first, then idle connections, server by server; yield the cells."""
    for tested in lab.servers(SERVERS):
        yield from growing_users(lab, tested)
        yield from growing_idle(lab, tested)


def growing_users(lab: Bench, tested: ServerUnderTest) -> Iterator[Cell]:
    """Measure users with a think time of 100 ms; yield the cells."""
    root = lab.site([])
    for users in (1, 100, 1000) if lab.quick else (1, 10, 30, 100, 300, 1000):
        load = Load(
            "closed",
            users=users,
            think=0.1,
            seconds=lab.quick_or_full(1.5, 4),
            warm_up=lab.quick_or_full(1, 2),
        )
        yield measure_once(lab, tested, load, Cell(tested.name, USERS, users), root)


def growing_idle(lab: Bench, tested: ServerUnderTest) -> Iterator[Cell]:
    """Measure idle connections, each after one answer, beside a load of 50 requests a second; yield the cells."""
    load = Load("arrivals", rate=50, seconds=lab.quick_or_full(1, 3), warm_up=0, timeout=2.0)
    for count in (100, 900, 9000) if lab.quick else (100, 300, 900, 3000, 9000):
        cell = Cell(tested.name, IDLE, count, value="usage.memory", unit="bytes")
        if count > tested.max_connections:
            lab.notes.append(f"{tested.name} holds at most {tested.max_connections} connections.")
            return  # the next numbers are greater
        yield measure_beside_idle(lab, tested, load, cell, lab.site([]))


def memory_by_connections(table: ExperimentTable, server: str) -> list[tuple[float, float]]:
    """Return the numbers of idle connections of a server, in ascending order, with its memory in bytes."""
    return sorted(
        (held_connections(cell), cell.median)
        for cell in table.cells
        if cell.server == server and cell.column == IDLE and cell.x and cell.median
    )


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds only if an idle connection needs less than half as much memory in an event loop, and in the
    pool, as in a thread. It holds in part if a server with a worker for each connection grows as far as the event
    loop.
    """
    cost = {}  # by server: bytes for each connection
    most_connections = {}  # by server
    for server in (*PARKING, *WORKER_FOR_EACH, "nginx"):
        if points := memory_by_connections(table, server):
            (fewest, least_memory), (most, most_memory) = points[0], points[-1]
            most_connections[server] = most
            if fewest < most:
                cost[server] = (most_memory - least_memory) / (most - fewest)
    if "asyncio" not in cost or "thread" not in cost:
        return Finding(NOT_TESTABLE, "No figures for an event loop beside threads.")
    costs_text = ", ".join(f"{server} {value / 1000:.1f} kB" for server, value in cost.items())
    most_text = ", ".join(f"{server} {count:,.0f}" for server, count in most_connections.items())
    saves_memory = all(cost[server] * 2 < cost["thread"] for server in PARKING if server in cost)
    growth_ends = all(
        most_connections[server] < most_connections["asyncio"]
        for server in WORKER_FOR_EACH
        if server in most_connections
    )
    return Finding(
        FAILS if not saves_memory else HOLDS if growth_ends else IN_PART,
        f"Memory for each idle connection, by the slope from the fewest to the most: {costs_text}. "
        f"The most idle connections: {most_text}.",
    )
