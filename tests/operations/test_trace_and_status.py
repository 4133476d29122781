"""The trace and the status tell the same of one server: each is written at its own places in the code."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from support.server import Server, Start, write_program
from test_trace import Event, events

PROGRAM = "#!/bin/sh\nprintf 'Content-Type: text/plain\\nContent-Length: 5\\n\\nhello'\n"


def last(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def visits(server: Server) -> list[bytes]:
    """Return all bytes that some clients got, at once: for a file, for one that is missing, and for a program."""
    found: list[bytes] = []

    def visit() -> None:
        for path in ("/", "/nope", "/cgi-bin/hello.py"):
            found.append(server.ask(last(path)))

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def of_trace(told: list[Event]) -> dict[str, Any]:
    """Return the sums of a trace, under the names of the status."""
    names = Counter(event.name for event in told)
    answers = Counter(event.text for event in told if event.name == "answered")
    by_feature: dict[str, dict[str, int]] = {}
    for answer, count in answers.items():
        status, feature = answer.split()
        by_feature.setdefault(feature, {})[status] = count
    return {"accepted": names["accepted"], "refused": names["refused"], "by_feature": by_feature}


def test_the_events_add_up_to_the_counters(start: Start, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    limit = ("--connections-per-client", "3")
    server = start(variant, "--trace", str(path), "--status", "/ewe-status", *limit)
    write_program(server.cgi / "hello.py", PROGRAM)
    answers = visits(server)
    # The process of a visitor counts until it has ended, which may be after the close
    while (status := server.ask(last("/ewe-status?json"))).startswith(b"HTTP/1.1 503"):
        answers.append(status)
    server.stop()
    told = events(path)
    found = json.loads(status.partition(b"\r\n\r\n")[2])
    counted = {name: found[name] for name in ("accepted", "refused", "by_feature")}
    expected = of_trace(told)
    assert expected["by_feature"].pop("status") == {"200": 1}  # it is counted after its numbers were read
    assert counted == expected and sum(counted["by_feature"]["files"].values()) > 0
    assert sum(event.name == "closed" for event in told) == found["accepted"]
    served = [each for each in answers if not each.startswith(b"HTTP/1.1 503")]
    assert len(served) == found["requests"] and len(answers) - len(served) == found["refused"]
    assert sum(len(each.partition(b"\r\n\r\n")[2]) for each in served) == found["bytes"]
    sent = sum(int(event.text) for event in told if event.name == "sent")
    assert sent == sum(map(len, served)) + len(status)
