"""Run the clients of ewe_lab.load.http_clients in a separate process, on the core of the load. Raises LabError.

    the lab ── URL, clients, requests, digest ──▶ http_clients.py, a process on the core of the load
            ◀── PingResult, as JSON ────────────

The lab's own process reads the resources of the server meanwhile, which would delay clients in the same process.
"""

from __future__ import annotations

import json
import statistics
import sys

from ewe_lab.bench.experiment import Bench, RunningServer
from ewe_lab.bench.processes import (
    FIGURES_BYTES,
    LabError,
    bounded_file,
    cpu_seconds,
    load_core,
    output_text,
    running,
    wait_for_end,
    why_no_figures,
)
from ewe_lab.bench.results import Sample, Usage, value_from_json
from ewe_lab.load.child import environment
from ewe_lab.load.http_clients import PingResult

MAX_RUN_S = 900.0  # seconds that one measurement may take


def ping(
    lab: Bench, server: RunningServer, path: str, *, clients: int, requests: int, digest: str = ""
) -> Sample:
    """Return the sample of clients that send so many requests each, with a new connection for every request.

    path: of the URL. requests: of each client. digest: the first digits of the SHA-256 of a right body, "" for any.
    Raises LabError if no request is answered as it should be, or after MAX_RUN_S.

    The extra figures of the sample: `response` and `connect` are means in ms, `duration` is in seconds. The times
    that the program reports (`con`, `ret`, `con_wall`, `ret_wall`) are medians in ms.
    """
    command = [
        *lab.command_prefix,
        sys.executable,
        "-m",
        "ewe_lab.load.http_clients",
        server.url.rstrip("/") + path,
    ]
    cpu_before = cpu_seconds(server.pid, *server.other_pids)
    with (
        bounded_file() as error_output,
        bounded_file(FIGURES_BYTES) as output,
        running(
            [*command, str(clients), str(requests), digest],
            error_output,
            load_core(),
            env=environment(),
            stdout=output,
        ) as started,
    ):
        if not wait_for_end(started, MAX_RUN_S):
            raise LabError(f"{clients} clients had no answer within {MAX_RUN_S:g} s")
        try:
            found = value_from_json(PingResult, json.loads(output_text(output, FIGURES_BYTES)))
        except ValueError:
            raise LabError(f"the pinger failed: {why_no_figures(output, error_output)}") from None
    assert isinstance(found, PingResult)
    return sample_of(found, clients, requests, cpu_seconds(server.pid, *server.other_pids) - cpu_before)


def sample_of(found: PingResult, clients: int, requests: int, cpu_s: float) -> Sample:
    """Return the sample of a measurement. Raises LabError if there is no answer.

    requests: of each client. cpu_s: CPU seconds of the server.
    """
    if not found.response:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.errors.items())
        raise LabError(f"no request was answered as it should be: {kinds}")
    extra = {
        "response": statistics.fmean(found.response) * 1e3,
        "connect": statistics.fmean(found.connect) * 1e3,
        "duration": found.seconds,
    }
    extra |= {name: statistics.median(times) for name, times in found.timings.items()}
    replies = len(found.response)
    return Sample(
        "pinger",
        seconds=found.seconds,
        requests=clients * requests,
        replies=replies,
        # Each request has a new connection. Those without an answer are not counted
        connections=replies,
        received=found.received,
        errors=found.errors,
        client=found.client_cpu_s / found.seconds,
        usage=Usage(cpu=cpu_s),
        extra=extra,
    )
