"""LibCGI, section 4.2: the cost of resolving the client's name, which ewe does only if a library asks for it.

CGI has a variable REMOTE_HOST, the name of the client. To find it the server asks a name server, and waits. If each
request had this price, a slow name server would make each request slow:

    request ─▶ ewe ─▶ library ── asks for the name? ── no ──▶ answer
                                                  └── yes ─▶ name server, at once or after 1 s ─▶ answer

The name server is the lab's (stub_dns.py), and only ewe may use it. ewe therefore runs in a mount namespace, with a
separate /etc/resolv.conf.

Possible failures: a mount namespace needs root; without it the experiment is left out, with a note.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import LabError, find_tool, last_line
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.load.stub_dns import NAME, stub_resolver
from ewe_lab.stacks import compiled, gateways

RESOLVER_ADDRESS = "127.0.53.1"  # the name server's loopback address
CLIENT_ADDRESS = "127.0.0.53"  # the client's, which is not in /etc/hosts
DELAY_S = 1.0  # seconds
IN_MOUNT_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
BIND_RESOLV_CONF_AND_RUN = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


class NameRequest(NamedTuple):
    """A request of a row. query: "" if the library does not ask for the client's name. delay_s: of the resolver."""

    query: str
    delay_s: float


ROWS = {
    "name not asked": NameRequest("", DELAY_S),
    "quick resolver": NameRequest("name", 0.0),
    "slow resolver": NameRequest("name", DELAY_S),
}
NOT_ASKED, QUICK, SLOW = ROWS
REQUEST_COUNTS = (3, 10)  # of a sample, quick and full
ANSWER_TIMEOUT_S = 20.0  # seconds for an answer
REMARKS = (
    f"The name server is the lab's: it answers at once, or after {DELAY_S:g} s. It is the server's only "
    "resolver, in a mount namespace; the machine's settings are not touched.",
    "REMOTE_HOST is the client's address. A library that wants the name calls get_remote_host(), and waits.",
)


def why_impossible() -> str:
    """Return the reason if the server cannot have another resolver here, else ""."""
    if os.geteuid():
        return "another resolver for one process needs root"
    if not find_tool("unshare") or not find_tool("mount"):
        return "another resolver for one process needs unshare and mount: apt install util-linux mount"
    command = [*IN_MOUNT_NAMESPACE, BIND_RESOLV_CONF_AND_RUN, "/etc/resolv.conf", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    return f"no mount namespace can be made here: {last_line(done.stderr)}" if done.returncode else ""


def run(lab: Bench) -> Iterator[Cell]:
    """Measure requests whose library asks for the name, or does not; yield the cells."""
    if lacking := gateways.why_no_libcgi() or compiled.why_missing() or why_impossible():
        lab.notes.append(f"Not measured: {lacking}")
        yield from (Cell(name, "", value="extra.millis", unit="ms", failure=lacking) for name in ROWS)
        return
    directory = lab.directory / "names"
    directory.mkdir(exist_ok=True)
    library, resolver = directory / "names.so", directory / "resolv.conf"
    compiled.build_library(compiled.SOURCES / "names.c", library)
    resolver.write_text(f"nameserver {RESOLVER_ADDRESS}\noptions timeout:10 attempts:1\n")
    resolver.chmod(0o644)
    for name, (query, delay_s) in ROWS.items():
        cell = Cell(name, "", value="extra.millis", unit="ms")
        try:
            for _ in range(lab.repeats):
                cell.samples.append(measure_row(lab, library, resolver, query, delay_s))
        except LabError as reason:
            cell.failure = str(reason)
        yield cell
    lab.notes += REMARKS


def measure_row(lab: Bench, library: Path, resolver: Path, query: str, delay_s: float) -> Sample:
    """Start the server with its own resolv.conf, in a mount namespace, and time a few requests; return the sample.

    query: of the URL, "" for a library that does not ask for the client's name. delay_s: of the resolver.
    Raises LabError.
    """
    prefix_before = lab.command_prefix
    with ExitStack() as exits:
        dns_queries = exits.enter_context(stub_resolver(RESOLVER_ADDRESS, delay_s))
        exits.callback(setattr, lab, "command_prefix", prefix_before)  # undone when the block is left
        lab.command_prefix = [*prefix_before, *IN_MOUNT_NAMESPACE, BIND_RESOLV_CONF_AND_RUN, str(resolver)]
        tested = gateways.in_process(library, ServerUnderTest("LibCGI", model="thread"))
        server = exits.enter_context(lab.start(tested, lab.site([])))
        expected = f"client {NAME if query else CLIENT_ADDRESS}\n"
        time_request(server, "", f"client {CLIENT_ADDRESS}\n")  # loads the library; not timed
        count = int(lab.quick_or_full(*REQUEST_COUNTS))
        times = [time_request(server, query, expected) for _ in range(count)]
    extra = {"millis": statistics.median(times) * 1e3, "questions": float(len(dns_queries))}
    return Sample(tool="sockets", seconds=0.0, requests=count, replies=count, connections=count, extra=extra)


def time_request(server: RunningServer, query: str, expected: str) -> float:
    """Return the seconds of one request. expected: the body of a right answer. Raises LabError."""
    connection = http.client.HTTPConnection(
        urlsplit(server.url).netloc, timeout=ANSWER_TIMEOUT_S, source_address=(CLIENT_ADDRESS, 0)
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


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: a request that resolves the name waits for the resolver, and others do not wait.
    """
    medians = {cell.server: cell.median for cell in table.cells if cell.median is not None}
    if len(medians) < len(ROWS):
        return Finding(NOT_TESTABLE, "Not all rows were measured.")
    part_holds = (medians[SLOW] >= DELAY_S * 1e3, medians[NOT_ASKED] < DELAY_S * 1e3 / 2)
    verdict = verdict_of_parts(part_holds)
    return Finding(
        verdict,
        f"A request takes {medians[SLOW]:,.0f} ms if the library asks a resolver that takes {DELAY_S * 1e3:,.0f} "
        f"ms, {medians[QUICK]:.1f} ms if the resolver is quick, and {medians[NOT_ASKED]:.1f} ms if the library "
        "asks for no name.",
    )
