"""Measurements for the labs in which a closed loop on a file is not enough: `measures = "engine"` in lab.toml.

    caching    a server: bytes and time of a response with the file, and of a 304
    engine     an engine of X-Switch: time of its first response, of a later one, and of a new Python process
    data       a file of runs: the student has measured already, and the questions take the figures from the file

The questions of a lab use the figures by their names (questions.py).
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ewe.config.messages import ConfigError
from ewe_classroom.grader.engine_scene import EngineSubject, Scripts
from ewe_classroom.grader.run_scene import FORMAT
from ewe_classroom.grader.sandbox import SandboxLimits
from ewe_classroom.grader.subject import StartCommand

REQUESTED_PATH = "/bytes.bin"
REQUEST_COUNT = 200  # requests; their median counts
PROCESS_COUNT = 10
SCRIPT = 'import json\nprint("Content-Type: application/json\\n")\nprint(json.dumps({"answer": 42}))\n'


def of_caching(port: int) -> dict[str, float]:
    """Return the bytes and the median time of a response with the file, and of a 304. Raises ConfigError."""
    etag, full_bytes = exchange(port, {})
    if not etag:
        raise ConfigError(f"the response for {REQUESTED_PATH} has no ETag: finish section 1 of the lab first")
    _, not_modified_bytes = exchange(port, {"If-None-Match": etag})
    figures = {"full_bytes": float(full_bytes), "not_modified_bytes": float(not_modified_bytes)}
    for name, fields in (("full_ms", {}), ("not_modified_ms", {"If-None-Match": etag})):
        times_s = []
        for _ in range(REQUEST_COUNT):
            began = time.perf_counter()
            exchange(port, fields)
            times_s.append(time.perf_counter() - began)
        figures[name] = round(statistics.median(times_s) * 1000, 4)
    return figures


def exchange(port: int, fields: dict[str, str]) -> tuple[str, int]:
    """Request the file over a new connection; return its ETag ("" if it has none) and the bytes of the response.

    fields: more fields of the request's head. Raises ConfigError.
    """
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        client.request("GET", REQUESTED_PATH, headers={**fields, "Connection": "close"})
        response = client.getresponse()
        # http.client does not keep the bytes of the head. They follow from its parts: a CRLF ends the status line,
        # each field, and the head.
        status_line = f"HTTP/1.1 {response.status} {response.reason}\r\n"
        fields_bytes = sum(len(f"{name}: {value}\r\n") for name, value in response.getheaders())
        response_bytes = len(status_line) + fields_bytes + len("\r\n") + len(response.read())
        return response.getheader("ETag") or "", response_bytes
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"the server does not answer: {error}") from None
    finally:
        client.close()


def of_engine(start_command: StartCommand, say: Callable[[str], None]) -> dict[str, float]:
    """Return the times of an engine's first response, of a later one, and of a new process. Raises ConfigError.

    say: called with a line for each figure.
    """
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        scripts = Scripts(Path(name))
        path = scripts.write("hello.py", SCRIPT)
        expected = subprocess.run([sys.executable, path], capture_output=True, check=True).stdout
        # port=0: an engine has no port. It gets its requests over sockets that it inherits.
        with EngineSubject(
            start_command, scripts, workers=1, limits=SandboxLimits(), port=0, output=Path(name) / "output"
        ) as subject:
            times_s = []
            for _ in range(1 + REQUEST_COUNT):  # the first response includes the start of the engine
                began = time.perf_counter()
                try:
                    answer = subject.driver().ask(path)
                except Exception as error:
                    raise ConfigError(f"the engine does not answer: {error}; grade it first") from None
                times_s.append(time.perf_counter() - began)
                if answer.output != expected:
                    raise ConfigError(f"the engine answers {answer.output[:60]!r}: grade it first")
        process_times_s = []
        for _ in range(PROCESS_COUNT):
            began = time.perf_counter()
            subprocess.run([sys.executable, path], capture_output=True, check=True)
            process_times_s.append(time.perf_counter() - began)
    figures = {
        "first_ms": round(times_s[0] * 1000, 3),
        "again_ms": round(statistics.median(times_s[1:]) * 1000, 4),
        "process_ms": round(statistics.median(process_times_s) * 1000, 3),
    }
    for key, value in figures.items():
        say(f"{key:12} {value:10.3f}")
    return figures


def of_data(path: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Return the figures of a file of runs that the lab's questions use. Raises ConfigError.

    A run of kind "closed" has a number of clients that ask again and again. A run of kind "open" has a rate of
    requests, which arrive whether or not the earlier ones were answered.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise ValueError(table["format"])
        closed_runs = [run for run in table["runs"] if run["kind"] == "closed"]
        open_runs = [run for run in table["runs"] if run["kind"] == "open"]
        max_clients = max(run["clients"] for run in closed_runs)
        max_rate = max(run["rate_wanted"] for run in open_runs)
        figures = {
            "alone_ms": median_at(closed_runs, "mean_ms", "clients", 1),
            "most_clients": float(max_clients),
            "most_rate": median_at(closed_runs, "rate", "clients", max_clients),
            "best_rate": max(
                median_at(closed_runs, "rate", "clients", run["clients"]) for run in closed_runs
            ),
            "open_rate": median_at(open_runs, "rate", "rate_wanted", max_rate),
            "open_ms": median_at(open_runs, "mean_ms", "rate_wanted", max_rate),
        }
    except OSError as reason:
        raise ConfigError(f"cannot read {path}: {reason.strerror}; python3 measure.py makes it") from None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise ConfigError(f"{path}: not a complete file of runs; python3 measure.py makes one") from None
    for key, value in figures.items():
        say(f"{key:12} {value:10.3f}")
    return figures


def median_at(runs: list[dict[str, float]], figure: str, load: str, level: float) -> float:
    """Return the median of a figure over all runs with the same load: they repeat one measurement.

    figure: a key of a run, such as "mean_ms". load: the key of the load, "clients" or "rate_wanted". level: the
    value of the load. Raises StatisticsError if no run has this load, KeyError if a run lacks one of the keys.
    """
    # With four decimals, a figure in milliseconds is exact to a tenth of a microsecond.
    return round(statistics.median(run[figure] for run in runs if run[load] == level), 4)
