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
    etag, full = exchange(port, {})
    if not etag:
        raise ConfigError(f"the response for {REQUESTED_PATH} has no ETag: finish section 1 of the lab first")
    found = {
        "full_bytes": float(full),
        "not_modified_bytes": float(exchange(port, {"If-None-Match": etag})[1]),
    }
    for name, fields in (("full_ms", {}), ("not_modified_ms", {"If-None-Match": etag})):
        times = []
        for _ in range(REQUEST_COUNT):
            began = time.perf_counter()
            exchange(port, fields)
            times.append(time.perf_counter() - began)
        found[name] = round(statistics.median(times) * 1000, 4)
    return found


def exchange(port: int, fields: dict[str, str]) -> tuple[str, int]:
    """Request the file over a new connection; return its ETag, and the bytes of the head and the body."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        client.request("GET", REQUESTED_PATH, headers={**fields, "Connection": "close"})
        response = client.getresponse()
        head = sum(len(name) + len(value) + 4 for name, value in response.getheaders())
        return response.getheader("ETag") or "", len(
            f"HTTP/1.1 {response.status} {response.reason}"
        ) + 4 + head + len(response.read())
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"the server does not answer: {error}") from None
    finally:
        client.close()


def of_engine(start_command: StartCommand, say: Callable[[str], None]) -> dict[str, float]:
    """Return the times of an engine's first response, of a later one, and of a new process. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as name:
        scripts = Scripts(Path(name))
        path = scripts.write("hello.py", SCRIPT)
        wanted = subprocess.run([sys.executable, path], capture_output=True, check=True).stdout
        with EngineSubject(start_command, scripts, 1, SandboxLimits(), 0, Path(name) / "output") as subject:
            times = []
            for _ in range(REQUEST_COUNT + 1):
                began = time.perf_counter()
                try:
                    answer = subject.driver().ask(path)
                except Exception as error:
                    raise ConfigError(f"the engine does not answer: {error}; grade it first") from None
                times.append(time.perf_counter() - began)
                if answer.output != wanted:
                    raise ConfigError(f"the engine answers {answer.output[:60]!r}: grade it first")
        processes = []
        for _ in range(PROCESS_COUNT):
            began = time.perf_counter()
            subprocess.run([sys.executable, path], capture_output=True, check=True)
            processes.append(time.perf_counter() - began)
    found = {
        "first_ms": round(times[0] * 1000, 3),
        "again_ms": round(statistics.median(times[1:]) * 1000, 4),
        "process_ms": round(statistics.median(processes) * 1000, 3),
    }
    for key, value in found.items():
        say(f"{key:12} {value:10.3f}")
    return found


def of_data(path: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Return the figures of a file of runs that the lab's questions use. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise ValueError(table["format"])
        closed = [run for run in table["runs"] if run["kind"] == "closed"]
        opened = [run for run in table["runs"] if run["kind"] == "open"]
        most = max(run["clients"] for run in closed)
        fastest = max(run["rate_wanted"] for run in opened)
        found = {
            "alone_ms": middle(closed, "mean_ms", "clients", 1),
            "most_clients": float(most),
            "most_rate": middle(closed, "rate", "clients", most),
            "best_rate": max(middle(closed, "rate", "clients", run["clients"]) for run in closed),
            "open_rate": middle(opened, "rate", "rate_wanted", fastest),
            "open_ms": middle(opened, "mean_ms", "rate_wanted", fastest),
        }
    except OSError as reason:
        raise ConfigError(f"cannot read {path}: {reason.strerror}; python3 measure.py makes it") from None
    except (ValueError, TypeError, KeyError, statistics.StatisticsError):
        raise ConfigError(f"{path}: not a complete file of runs; python3 measure.py makes one") from None
    for key, value in found.items():
        say(f"{key:12} {value:10.3f}")
    return found


def middle(runs: list[dict[str, float]], figure: str, key: str, level: float) -> float:
    """Return the median of a figure over the repetitions of one load level."""
    return round(statistics.median(run[figure] for run in runs if run[key] == level), 4)
