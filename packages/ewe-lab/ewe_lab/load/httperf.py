"""Load from httperf, the tool of 2006. It is used only if a load names it, to check the counts of locust.

httperf waits with select(), which limits it to about 1000 connections, and keeps its core busy all the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import (
    LabError,
    bounded_file,
    last_line,
    output_text,
    path_of_tool,
    running,
    wait_for_end,
)
from ewe_lab.bench.results import Sample
from ewe_lab.load.child import WindowObserver

START_AND_END_S = 10  # seconds of a run that are not of its sessions
SPARE_S = 60  # seconds that a run may take beyond the time of its load
NUMBER = r"([\d.]+)"
TOTAL = re.compile(
    rf"Total: connections {NUMBER} requests {NUMBER} replies {NUMBER} test-duration {NUMBER} s"
)
NET = re.compile(rf"Net I/O: {NUMBER} KB/s")
MEAN = re.compile(rf"Reply time \[ms\]: response {NUMBER} transfer {NUMBER}")
ERRORS = {
    "client-timo": "ct",
    "socket-timo": "st",
    "connrefused": "ref",
    "connreset": "res",
    "fd-unavail": "fd",
    "ftab-full": "fd",
    "addrunavail": "addr",
    "other": "other",
}


def parse_httperf(text: str) -> Sample:
    """Return the sample of httperf's report. Raises LabError."""
    total = TOTAL.search(text)
    if total is None:
        raise LabError(f"httperf: {last_line(text)}")
    connections, requests, replies = (int(number) for number in total.groups()[:3])
    seconds = float(total[4])
    errors: dict[str, int] = {}
    for line in re.findall(r"^Errors: (.*)$", text, re.M):
        for name, count in re.findall(r"([a-z-]+) (\d+)", line):
            if name in ERRORS and int(count):  # `total` is not; two names of httperf may be one kind of ours
                errors[ERRORS[name]] = errors.get(ERRORS[name], 0) + int(count)
    if found := re.search(r"4xx=(\d+) 5xx=(\d+)", text):
        bad_status = int(found[1]) + int(found[2])  # httperf counts them as replies
        replies -= bad_status
        errors |= {"status": bad_status} if bad_status else {}
    sample = Sample(
        "httperf", seconds=seconds, requests=requests, replies=replies, connections=connections, errors=errors
    )
    if found := NET.search(text):
        sample.received = float(found[1]) * 1024 * seconds
    if found := MEAN.search(text):  # httperf spins, so its CPU time does not show its load
        sample.extra["reply_time"] = (float(found[1]) + float(found[2])) / 1e3
    return sample


def run_httperf(
    load: Load, url: str, core: int | None, observer: WindowObserver, prefix: Sequence[str]
) -> Sample:
    """Run arrivals without warm-up, to the end of the last session; return the sample. Raises LabError."""
    # The users of arrivals are connections, which all sessions share
    if load.phases or load.users or load.tls:
        raise LabError("httperf knows no phases, no shared connections, and no TLS here")
    parts = urlsplit(url)
    count = load.sessions or round(load.rate * load.seconds)
    command = [
        *prefix, path_of_tool("httperf"), "--hog", "--server", str(parts.hostname), "--port", str(parts.port),
        "--uri", load.path, f"--wsess={count},{load.calls},{load.think:g}", "--rate", f"{load.rate:g}",
        "--timeout", f"{load.timeout:g}",
    ]  # fmt: skip
    # The sessions may need less time than `seconds`, and must not take more
    max_run_s = count / load.rate + load.calls * (load.timeout + load.think) + START_AND_END_S
    with bounded_file() as output:
        observer.begin()
        with running(command, output, core) as started:
            if not wait_for_end(started, min(max_run_s, load.seconds + SPARE_S)):
                raise LabError("httperf does not end")
        observer.end()
        found = parse_httperf(output_text(output))
        found.sessions = count if load.calls > 1 else 0
        return found
