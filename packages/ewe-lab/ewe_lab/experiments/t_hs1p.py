"""Thesis, figures A.23 to A.28: what TLS costs each server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ewe_lab.bench.experiment import Bench, Contender, Load
from ewe_lab.bench.results import Cell, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.contenders import APACHE_EVENT, APACHE_PREFORK, ASYNCIO, LIGHTTPD, NGINX, THREAD
from ewe_lab.experiments.papers import printed
from ewe_lab.experiments.thesis_static import KEEP, NAMES, NO_KEEP, PARITY

PLAIN, TLS = "plain", "TLS"
SERVERS = (APACHE_PREFORK, APACHE_EVENT, NGINX, LIGHTTPD, THREAD, ASYNCIO)
PRINTED = printed("T-HS1p")  # replies a second, plain and with TLS


def run(lab: Bench) -> Iterator[Cell]:
    """Measure each server with and without TLS. The reference is the same server without TLS."""
    root = lab.site([168])
    lab.notes.append(PARITY)
    for contender in lab.servers(SERVERS):
        tls = "default" if contender.kind == "ewe" else "parity"
        for keep in (NO_KEEP, KEEP):
            plain = one(lab, contender, keep, PLAIN)
            secure = one(lab, contender, keep, TLS)
            for cell in (plain, secure):
                load = Load(
                    "ceiling", users=32, keep_alive=keep == KEEP, seconds=lab.seconds(1, 2), warm_up=0.5,
                    path="/168.html", length=168, tls=tls if cell is secure else "", tool="ab",
                )  # fmt: skip
                yield lab.measure(contender, load, cell, root)


def one(lab: Bench, contender: Contender, keep: str, how: str) -> Cell:
    """Return an empty cell. Each server has its own column, so that it is compared with itself."""
    then = PRINTED[keep].get(contender.name)
    cell = Cell(how, f"{contender.name}, {keep}")
    if then is None:
        return cell
    return replace(
        cell,
        paper=then[how == TLS],
        paper_server=how,
        paper_note=NAMES[contender.name],
    )


def check(table: Table) -> Finding:
    """The claim holds if TLS divides the rate by at least 5 without keep-alive, and by less than 2 with it."""
    rates = {(cell.column, cell.server): cell.median for cell in table.cells}
    told: dict[str, list[str]] = {}
    good: list[bool] = []
    for contender in SERVERS:
        for keep in (NO_KEEP, KEEP):
            plain, secure = (rates.get((f"{contender.name}, {keep}", how)) for how in (PLAIN, TLS))
            if plain and secure:
                factor = plain / secure
                told.setdefault(keep, []).append(f"{contender.name} {factor:.1f}")
                good.append(factor >= 5 if keep == NO_KEEP else factor < 2)
    if not good:
        return Finding(NOT_TESTABLE, "No server was measured with and without TLS.")
    word = HOLDS if all(good) else IN_PART if any(good) else FAILS
    parts = "; ".join(f"{keep}: {', '.join(names)}" for keep, names in told.items())
    return Finding(word, f"TLS divides the rate by, {parts}.")
