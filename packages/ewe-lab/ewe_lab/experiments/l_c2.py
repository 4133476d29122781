"""LibCGI, section 4.2: what it costs to ask for the client's name, which ewe does only if a library wants it."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Bench, Contender, Running
from ewe_lab.bench.processes import LabError, find_tool, one_line
from ewe_lab.bench.results import Cell, Sample, Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.load.stub_dns import NAME, answering
from ewe_lab.stacks import compiled, gateways

RESOLVER = "127.0.53.1"  # the name server's loopback address
CLIENT = "127.0.0.53"  # the client's, which is not in /etc/hosts
DELAY = 1.0  # seconds
NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
OVERLAY = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
ROWS = {  # name: the query, the resolver's delay
    "name not asked": ("", DELAY),
    "quick resolver": ("name", 0.0),
    "slow resolver": ("name", DELAY),
}
NOT_ASKED, QUICK, SLOW = ROWS
REQUESTS = (3, 10)
WAITS = 20.0  # seconds for an answer
REMARKS = (
    f"The name server is the lab's: it answers at once, or after {DELAY:g} s. It is the server's only "
    "resolver, in a mount namespace; the machine's settings are not touched.",
    "REMOTE_HOST is the client's address. A library that wants the name calls get_remote_host(), and waits.",
)


def impossible() -> str:
    """Return why the server cannot have another resolver here, "" if it can."""
    if os.geteuid():
        return "another resolver for one process needs root"
    if not find_tool("unshare") or not find_tool("mount"):
        return "another resolver for one process needs unshare and mount: apt install util-linux mount"
    command = [*NAMESPACE, OVERLAY, "/etc/resolv.conf", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    return f"no mount namespace can be made here: {one_line(done.stderr)}" if done.returncode else ""


def run(lab: Bench) -> Iterator[Cell]:
    """Measure requests whose library asks for the name, or does not."""
    if lacking := gateways.libcgi_lacks() or compiled.missing() or impossible():
        lab.notes.append(f"Not measured: {lacking}")
        yield from (Cell(name, "", None, "extra.millis", "ms", failure=lacking) for name in ROWS)
        return
    where = lab.directory / "names"
    where.mkdir(exist_ok=True)
    library, resolver = where / "names.so", where / "resolv.conf"
    compiled.library(compiled.SOURCES / "names.c", library)
    resolver.write_text(f"nameserver {RESOLVER}\noptions timeout:10 attempts:1\n")
    resolver.chmod(0o644)
    for name, (query, delay) in ROWS.items():
        cell = Cell(name, "", None, "extra.millis", "ms")
        try:
            for _ in range(lab.repeats):
                cell.samples.append(measured(lab, library, resolver, query, delay))
        except LabError as reason:
            cell.failure = str(reason)
        yield cell
    lab.notes += REMARKS


def measured(lab: Bench, library: Path, resolver: Path, query: str, delay: float) -> Sample:
    """Measure a few requests, one after the other. Raises LabError."""
    before = lab.prefix
    with ExitStack() as stack:
        questions = stack.enter_context(answering(RESOLVER, delay))
        stack.callback(setattr, lab, "prefix", before)
        lab.prefix = [*before, *NAMESPACE, OVERLAY, str(resolver)]
        contender = gateways.in_place(library, Contender("LibCGI", model="thread"))
        server = stack.enter_context(lab.start(contender, lab.site([])))
        expected = f"client {NAME if query else CLIENT}\n"
        asked(server, "", f"client {CLIENT}\n")
        count = int(lab.seconds(*REQUESTS))
        times = [asked(server, query, expected) for _ in range(count)]
    extra = {"millis": statistics.median(times) * 1e3, "questions": float(len(questions))}
    return Sample("sockets", 0.0, count, count, count, extra=extra)


def asked(server: Running, query: str, expected: str) -> float:
    """Return the seconds of one request. Raises LabError."""
    connection = http.client.HTTPConnection(
        urlsplit(server.url).netloc, timeout=WAITS, source_address=(CLIENT, 0)
    )
    began = time.perf_counter()
    try:
        connection.request("GET", f"/libcgi-bin/names.so?{query}")
        body = connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as reason:
        raise LabError(f"a request was not answered: {reason}") from None
    finally:
        connection.close()
    if body != expected:
        raise LabError(f"the library answered {body[:60]!r}, not {expected!r}")
    return time.perf_counter() - began


def check(table: Table) -> Finding:
    """The claim has two parts: asking for the name takes as long as the resolver, and not asking does not."""
    found = {cell.server: cell.median for cell in table.cells if cell.median is not None}
    if len(found) < len(ROWS):
        return Finding(NOT_TESTABLE, "Not all rows were measured.")
    kept = (found[SLOW] >= DELAY * 1e3, found[NOT_ASKED] < DELAY * 1e3 / 2)
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(
        word,
        f"A request takes {found[SLOW]:,.0f} ms if the library asks a resolver that takes {DELAY * 1e3:,.0f} ms, "
        f"{found[QUICK]:.1f} ms if the resolver is quick, and {found[NOT_ASKED]:.1f} ms if the library asks for "
        "no name.",
    )
