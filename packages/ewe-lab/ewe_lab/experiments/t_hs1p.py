"""Thesis, figures A.23 to A.28: the cost of TLS for each server.

TLS has two costs: the handshake of a connection, and the encryption of each byte. Without keep-alive each request
pays for a handshake; with it, hardly any does. A server is compared with itself, without TLS, so each has its own
columns.

The thesis measured the TLS of 2011 (PARITY). The other servers can still speak it, and ab asks for it. ewe cannot,
and has today's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ewe_lab.bench.experiment import Bench, Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.bench.verdicts import (
    HOLDS,
    IN_PART,
    NOT_TESTABLE,
    Finding,
    bounds_of_ratio,
    is_between,
    not_judged_clause,
    verdict_of_open_parts,
)
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.tested_servers import APACHE_EVENT, APACHE_PREFORK, ASYNCIO, LIGHTTPD, NGINX, THREAD
from ewe_lab.experiments.thesis_static import KEEP_ALIVE, NO_KEEP_ALIVE, PARITY, PRINTED_NAMES

PAGE_BYTES = 168  # bytes of the page
CLIENTS = 32
# The claim: TLS divides the rate by 5 to 8, and with keep-alive by less than 2
FACTORS = {NO_KEEP_ALIVE: (5.0, 8.0), KEEP_ALIVE: (0.0, math.nextafter(2.0, 0.0))}
PLAIN, TLS = "plain", "TLS"
SERVERS = (APACHE_PREFORK, APACHE_EVENT, NGINX, LIGHTTPD, THREAD, ASYNCIO)
PRINTED = printed("T-HS1p")  # replies a second, plain and with TLS


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with and without TLS, without keep-alive and with it; yield the cells.

    The reference of a cell with TLS is the cell of the same server without TLS.
    """
    root = lab.site([PAGE_BYTES])
    lab.notes.append(PARITY)
    for tested in lab.servers(SERVERS):
        # "parity" is TLS as in 2011 (PARITY), which ewe does not offer: it has today's
        tls = "default" if tested.kind == "ewe" else "parity"
        for keep in (NO_KEEP_ALIVE, KEEP_ALIVE):
            plain = empty_cell(tested, keep, PLAIN)
            secure = empty_cell(tested, keep, TLS)
            for cell in (plain, secure):
                load = Load(
                    "saturation", users=CLIENTS, keep_alive=keep == KEEP_ALIVE, seconds=lab.quick_or_full(1, 2),
                    warm_up=0.5, path=f"/{PAGE_BYTES}.html", length=PAGE_BYTES, tls=tls if cell is secure else "",
                    tool="ab",
                )  # fmt: skip
                yield lab.fill_cell(tested, load, cell, root)


def empty_cell(tested: ServerUnderTest, keep: str, how: str) -> Cell:
    """Return an empty cell. Each server has its own column, so that it is compared with itself.

    keep: KEEP_ALIVE or NO_KEEP_ALIVE. how: PLAIN or TLS.
    """
    printed_rates = PRINTED[keep].get(tested.name)
    cell = Cell(how, f"{tested.name}, {keep}")
    if printed_rates is None:
        return cell
    plain_rate, tls_rate = printed_rates
    return replace(
        cell,
        paper=tls_rate if how == TLS else plain_rate,
        paper_server=how,
        paper_note=PRINTED_NAMES[tested.name],
    )


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if TLS divides the rate by 5 to 8 without keep-alive, and by less than 2 with it. If the load
    generator was the limit of one of the two rates, a server is judged only if a faster one could not change the
    word. If fewer factors are judged than not, or none in one of the two cases, the claim holds in part at most.
    """
    cells = {(cell.column, cell.server): cell for cell in table.cells if cell.median is not None}
    pieces: dict[str, list[str]] = {}
    good: dict[str, list[bool | None]] = {keep: [] for keep in FACTORS}
    for tested in SERVERS:
        for keep in (NO_KEEP_ALIVE, KEEP_ALIVE):
            plain, secure = (cells.get((f"{tested.name}, {keep}", how)) for how in (PLAIN, TLS))
            if plain is None or not plain.median or secure is None:
                continue
            bounds = bounds_of_ratio(plain, secure)
            assert bounds is not None  # plain.median is not 0
            factor = plain.median / secure.median if secure.median else math.inf
            pieces.setdefault(keep, []).append(f"{tested.name} {factor:.1f}")
            good[keep].append(is_between(bounds, *FACTORS[keep]))
    factors = [each for of_half in good.values() for each in of_half]
    if not factors:
        return Finding(NOT_TESTABLE, "No server was measured with and without TLS.")
    word = verdict_of_open_parts(factors)
    if word == HOLDS and any(verdict_of_open_parts(of_half) == NOT_TESTABLE for of_half in good.values()):
        word = IN_PART
    parts = "; ".join(f"{keep}: {', '.join(names)}" for keep, names in pieces.items())
    return Finding(
        word,
        f"TLS divides the rate by, {parts}{not_judged_clause(factors.count(None), 'factor')}.",
    )
