"""Priming by history: what the first visitor of each hour waits, over a replayed day.

Each visitor comes after a pause in which every engine has ended. The day is replayed twice: on the first day
X-Switch learns, and the second day is measured. Three X-Switches are compared:

    no priming      the visitor waits for the start of an engine
    priming         the engine is there, by the profile of the first day; it runs the script for the first time
    always warm     engines never end: as fast, but they are in memory for the whole day

Only X-Switch's clock of the day is injected (ewe_lab.stacks.day_clock): the lab sets it to the hour before each
visit, to the visit, and to the end of its quarter of an hour. Waiting times are those of the machine.
"""

from __future__ import annotations

import json
import os
import pwd
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ewe.config.messages import Failure
from ewe.gateway.records import FastCGIError
from ewe.xswitch.commands import ask_status_page
from ewe.xswitch.switch.use_profile import SLOT_SECONDS
from ewe.xswitch.tools.client import FastCGIClient
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, running, server_core
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.bench.verdicts import FAILS, HOLDS, NOT_TESTABLE, Finding
from ewe_lab.load.child import environment
from ewe_lab.stacks.backends import wait_for_socket
from ewe_lab.stacks.programs import programs_directory
from ewe_lab.stacks.ways import technology

NONE, PRIMED, WARM = "no priming", "priming", "always warm"
LANGUAGES = {"Python": "py", "Perl": "pl", "PHP": "php"}
DAY_S = 86_400.0
VISIT_HOURS = ((9, 14), (8, 9, 10, 11, 13, 14, 16, 19))  # of the visits, quick and full
ENGINE_IDLE_S = 0.3  # after which an engine ends, except for those that are kept
LEAD_TIME_S = 60.0  # of the clock, before the visit: X-Switch starts engines 120 s before their quarter
SETTLED_S = 1.2  # for the machine, after each change of the clock
MAX_WAIT_RATIO = 0.75  # of the wait, at most
ANSWER_TIMEOUT_S = 20.0  # that an answer may take


def run(lab: Bench) -> Iterator[Cell]:
    """Replay the day under each X-Switch, for all languages that are here; yield the cells."""
    scripts = {}
    for language, extension in LANGUAGES.items():
        if lacking := technology(f"xswitch {language.lower()}").why_missing:
            lab.notes.append(lacking)
        else:
            scripts[language] = programs_directory(lab) / f"hello.{extension}"
    quick_hours, full_hours = VISIT_HOURS
    hours = quick_hours if lab.quick else full_hours
    for mode in (NONE, PRIMED, WARM):
        cells = {name: Cell(mode, name, value="extra.first", unit="ms") for name in scripts}
        try:
            with run_xswitch(lab, mode) as (clock, address):
                replay_day(clock, address, scripts, hours)  # the first day: X-Switch learns
                day = replay_day(clock, address, scripts, hours, DAY_S)
            for language, cell in cells.items():
                cell.samples.append(sample_of(day.waits_ms[language], day.engine_hours[language]))
        except (LabError, OSError, ValueError, Failure, FastCGIError) as reason:
            for cell in cells.values():
                cell.failure = str(reason)
        yield from cells.values()
    lab.notes.append(
        "The figure is the median of the second day's visits. The pauses between them are skipped."
    )


def sample_of(waits_ms: list[float], engine_hours: float) -> Sample:
    """Return the sample of one language: the median wait of its visitors, and the longest one, in ms."""
    extra = {"first": statistics.median(waits_ms), "worst": max(waits_ms), "engine_hours": engine_hours}
    count = len(waits_ms)
    return Sample("pinger", seconds=sum(waits_ms) / 1000, requests=count, replies=count, extra=extra)


class XSwitchWithClock(NamedTuple):
    """A running X-Switch. clock: the file from which it reads the seconds of its day. address: `unix:PATH`."""

    clock: Path
    address: str


class ReplayedDay(NamedTuple):
    """The figures of a replayed day, by language. engine_hours: how many hours of the day an engine was there."""

    waits_ms: dict[str, list[float]]
    engine_hours: dict[str, float]


@contextmanager
def run_xswitch(lab: Bench, mode: str) -> Iterator[XSwitchWithClock]:
    """Run an X-Switch whose clock the lab sets; yield it. mode: NONE, PRIMED or WARM. Raises LabError."""
    directory = Path(tempfile.mkdtemp(prefix="day-", dir=lab.directory))
    directory.chmod(0o755)
    state = directory / "state"
    state.mkdir()
    if os.geteuid() == 0:  # the main process of X-Switch, which writes the profile, then runs as nobody
        try:
            account = pwd.getpwnam("nobody")
        except KeyError:
            raise LabError("X-Switch needs the account nobody, and there is none") from None
        os.chown(state, account.pw_uid, account.pw_gid)
    # reserve-memory = 0: idle engines do not end when the machine has little free memory
    lines = [f'idle = "{ENGINE_IDLE_S}s"' if mode != WARM else 'idle = "1d"', "reserve-memory = 0"]
    if mode == PRIMED:
        lines.append(f'prime = "{state}/profile"')
    (directory / "settings.toml").write_text("\n".join(lines) + "\n")
    clock, socket = directory / "clock", directory / "socket"
    clock.write_text("0")  # seconds of the day
    command = [
        sys.executable, "-m", "ewe_lab.stacks.day_clock", str(clock), "--listen", f"unix:{socket}",
        "--root", str(programs_directory(lab)), "--config", str(directory / "settings.toml"),
    ]  # fmt: skip
    with (
        tempfile.TemporaryFile() as output,
        running(command, output, server_core(), env=environment()) as started,
    ):
        wait_for_socket(started, socket, output, "X-Switch")
        time.sleep(SETTLED_S)
        yield XSwitchWithClock(clock, f"unix:{socket}")


def replay_day(
    clock: Path, address: str, scripts: dict[str, Path], hours: tuple[int, ...], begin: float = 0.0
) -> ReplayedDay:
    """Visit each script at each of the hours of a day; return how long the visitors waited.

    clock, address: of the X-Switch. begin: of the day, in seconds of the clock. Raises OSError, FastCGIError,
    Failure, LabError, ValueError.
    """
    waits: dict[str, list[float]] = {language: [] for language in scripts}
    engine_hours = dict.fromkeys(scripts, 0.0)
    last = begin

    def pass_to(seconds: float) -> None:
        """Set the clock, and count the engines of the time that has passed."""
        nonlocal last
        engines = {engine["language"] for engine in status(address)["engines"]}
        for language in scripts:
            if language.lower() in engines:
                engine_hours[language] += (seconds - last) / 3600
        last = seconds
        # Overwritten in place, with a fixed width: X-Switch may read at any time, and never sees an empty file
        with clock.open("r+") as file:
            file.write(f"{seconds:<20.1f}")
        time.sleep(SETTLED_S)

    for hour in hours:
        full_hour = begin + hour * 3600.0
        pass_to(full_hour - LEAD_TIME_S)  # X-Switch starts the engines that it expects to need
        pass_to(full_hour + LEAD_TIME_S)  # the visits
        for language, script in scripts.items():
            waits[language].append(1000 * wait_for(address, script))
        pass_to(full_hour + SLOT_SECONDS + LEAD_TIME_S)  # after the quarter the engines are no longer kept
    pass_to(begin + DAY_S)
    return ReplayedDay(waits, engine_hours)


def status(address: str) -> dict[str, Any]:
    """Return the status of the X-Switch at this address. Raises Failure, ValueError."""
    return dict(json.loads(ask_status_page(address, {b"QUERY_STRING": b"json"})))


def wait_for(address: str, script: Path) -> float:
    """Return the seconds until the answer of a script. Raises OSError, FastCGIError, LabError."""
    params = {
        b"SCRIPT_FILENAME": os.fsencode(script), b"SCRIPT_NAME": b"/" + os.fsencode(script.name),
        b"REQUEST_METHOD": b"GET", b"SERVER_PROTOCOL": b"HTTP/1.1", b"REMOTE_ADDR": b"127.0.0.1",
    }  # fmt: skip
    began = time.perf_counter()
    with FastCGIClient(address, ANSWER_TIMEOUT_S) as client:
        answer = client.ask(params)
    if answer.startswith(b"Status:"):
        raise LabError(f"{script.name}: {answer.splitlines()[0].decode('latin-1')}")
    return time.perf_counter() - began


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds if priming saves each language a quarter of the wait, in under half of the engine hours.
    """
    found = {(cell.server, cell.column): cell.samples[0].extra for cell in table.cells if cell.samples}
    languages = [name for name in LANGUAGES if all((mode, name) in found for mode in (NONE, PRIMED, WARM))]
    if not languages:
        return Finding(NOT_TESTABLE, "No language was measured in all three ways.")
    holds = all(
        found[PRIMED, name]["first"] <= MAX_WAIT_RATIO * found[NONE, name]["first"]
        and found[PRIMED, name]["engine_hours"] * 2 < found[WARM, name]["engine_hours"]
        for name in languages
    )
    parts = []
    for name in languages:
        waits = ", ".join(f"{found[mode, name]['first']:.1f}" for mode in (NONE, PRIMED, WARM))
        hours = " of ".join(f"{found[mode, name]['engine_hours']:.1f}" for mode in (PRIMED, WARM))
        parts.append(f"{name} {waits} ms and {hours} engine hours")
    summary = "; ".join(parts)
    return Finding(HOLDS if holds else FAILS, f"Without priming, primed, always warm: {summary}.")
