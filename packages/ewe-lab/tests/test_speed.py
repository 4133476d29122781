"""The benchmark: what it reads off wrk and /proc, what it shows, that it leaves nothing behind."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.server import ROOT, wait_until

from ewe_lab import cli, options, speed, speed_rows
from ewe_lab.bench import processes
from ewe_lab.bench.processes import LabError, cpu_seconds, end_session, process_tree, running
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import Finding
from ewe_lab.load.wrk import parse_wrk, run_wrk
from ewe_lab.speed_rows import SpeedRow, SpeedSetting
from ewe_lab.stacks import other_servers

needs_tools = pytest.mark.needs("wrk", "nginx")

NORMAL = """\
Running 2s test @ http://127.0.0.1:8080/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   382.13us   73.11us   3.19ms   94.01%
    Req/Sec    86.55k     1.73k   89.32k    66.67%
  172302 requests in 2.00s, 214.21MB read
Requests/sec:  86151.12
Transfer/sec:    107.10MB
"""
ERRORS = """\
  20 requests in 100.50ms, 1.00KB read
  Socket errors: connect 3, read 0, write 12, timeout 4
  Non-2xx or 3xx responses: 17
Requests/sec:    199.00
Transfer/sec:     10.00KB
"""


# ---------------------------------------------------------------------------------------------------------
# wrk


def test_what_wrk_reports() -> None:
    load = parse_wrk(NORMAL)
    assert (load.requests, load.seconds, load.rate, load.errors) == (172302, 2.0, 86151.12, {})
    assert load.received == pytest.approx(214.21 * 2**20)


def test_what_wrk_reports_of_errors() -> None:
    load = parse_wrk(ERRORS)
    assert (load.requests, load.received, load.rate) == (20, 1024, 199)
    assert load.seconds == pytest.approx(0.1005)
    assert load.errors == {"connect": 3, "write": 12, "timeout": 4, "non-2xx": 17}


@pytest.mark.parametrize(
    ("seconds", "expected"), [("750.00us", 0.00075), ("10.00ms", 0.01), ("1.50m", 90), ("2.00h", 7200)]
)
@pytest.mark.parametrize(
    ("received", "size"), [("0.00B", 0), ("3.00GB", 3 * 2**30), ("1.25TB", 1.25 * 2**40), ("2.00PB", 2**51)]
)
def test_the_units_of_wrk(seconds: str, expected: float, received: str, size: float) -> None:
    load = parse_wrk(f"  98765432109 requests in {seconds}, {received} read\nRequests/sec: 123456789012.50\n")
    assert (load.requests, load.rate) == (98765432109, 123456789012.5)
    assert load.seconds == pytest.approx(expected)
    assert load.received == size


@pytest.mark.parametrize(
    "text",
    ["", "unable to connect to 127.0.0.1:1 Connection refused\n", NORMAL.replace("2.00s", "2.00parsec")],
)
def test_no_report_of_wrk_is_an_error_in_one_line(text: str) -> None:
    with pytest.raises(LabError, match=r"^wrk: .+") as raised:
        parse_wrk(text)
    assert "\n" not in str(raised.value)


@pytest.mark.starts_processes
@needs_tools
def test_wrk_that_cannot_connect_ends_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(LabError, match="Connection refused"):
        run_wrk("http://127.0.0.1:1/", seconds=30, connections=1)
    assert time.monotonic() - began < 10


# ---------------------------------------------------------------------------------------------------------
# Processes

# 0.2 s of its own, 20 children of 10 ms one after the other, one of which has a child of 0.1 s, and one
# of 0.2 s that lives on: 0.7 s, less in no place where one would look first. Says how much it was in all.
FORKS = """
import os, time

def burn(seconds):
    while time.process_time() < seconds:
        pass

def child(seconds, below=0):
    if (pid := os.fork()) == 0:
        burn(seconds)
        if below:
            child(below)
        os._exit(0)
    os.waitpid(pid, 0)

burn(0.2)
for number in range(20):
    child(0.01, 0.1 if number == 3 else 0)
ready, tell = os.pipe()
if os.fork() == 0:
    burn(0.2)
    os.write(tell, b"x")
    time.sleep(60)
os.read(ready, 1)
print("done", flush=True)
time.sleep(60)
"""


@pytest.mark.starts_processes
def test_the_cpu_time_of_a_tree_has_children_that_are_gone() -> None:
    with tempfile.TemporaryFile() as output, running([sys.executable, "-c", FORKS], output) as started:
        wait_until(lambda: "done" in processes.output_text(output), 20)
        first = cpu_seconds(started.pid)
        assert len(process_tree(started.pid)) == 2
        assert 0.65 < first < 1.3  # twice as much, 1.4, if something counted twice
        time.sleep(0.1)
        assert cpu_seconds(started.pid) - first < 0.02  # it sleeps
        session = started.pid
    assert not [each for each in processes.processes() if each.session == session and each.state != "Z"]


@pytest.mark.starts_processes
def test_the_cpu_time_of_a_zombie_can_be_read() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    with tempfile.TemporaryFile() as output, running([sys.executable, "-c", burn], output) as started:
        assert processes.wait_for_end(started, 20)
        assert 0.2 <= cpu_seconds(started.pid) < 0.4


@pytest.mark.starts_processes
def test_what_runs_ends_with_its_block_even_if_it_would_not() -> None:
    stubborn = (
        "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.fork()\n"
        "print('here', flush=True)\ntime.sleep(60)"
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryFile() as output,
        pytest.raises(ZeroDivisionError),
        running([sys.executable, "-c", stubborn], output) as started,
    ):
        patch.setattr(processes, "TERM_TO_KILL_S", 0.2)
        wait_until(lambda: processes.output_text(output).count("here") == 2, 20)
        raise ZeroDivisionError
    assert started.returncode == -signal.SIGKILL
    assert not [e for e in processes.processes() if e.session == started.pid and e.state not in "ZX"]


def test_a_session_that_is_empty_is_ended_too() -> None:
    end_session(2**22 + 1)  # above the highest pid of Linux


@pytest.mark.starts_processes
def test_what_is_started_is_pinned_and_we_are_not() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    ask = "import os; print(os.sched_getaffinity(0))"
    with tempfile.TemporaryFile() as output, running([sys.executable, "-c", ask], output, core) as started:
        assert processes.wait_for_end(started, 20)
        assert processes.output_text(output).strip() == str({core})
    assert os.sched_getaffinity(0) == before
    assert processes.busy_seconds_of_core(core) > 0
    with pytest.raises(LabError, match="core 99999"):
        processes.busy_seconds_of_core(99999)


# ---------------------------------------------------------------------------------------------------------
# Rows


def sample(
    micros: float,
    server: float = 0.97,
    wrk: float = 0.5,
    server_core: float = 0.99,
    wrk_core: float = 0.6,
    errors: dict[str, int] | None = None,
) -> Sample:
    """Return a sample of a second with this CPU time a reply, for a share of the server's core."""
    replies = round(server * 1e6 / micros)
    usage = Usage(replies * micros / 1e6, core=server_core)
    return Sample("wrk", 1.0, replies, replies, errors=errors or {}, client=wrk, usage=usage, core=wrk_core)


def row(
    server: str,
    setting: SpeedSetting,
    connections: int,
    samples: list[Sample] | None = None,
    failure: str = "",
) -> SpeedRow:
    return SpeedRow(server, setting, connections, Cell(server, samples=samples or [], failure=failure))


def some_rows() -> list[SpeedRow]:
    kilobyte, large = SpeedSetting(1024), SpeedSetting(128 * 1024, keep_alive=False, access_log=True)
    return [
        row("nginx", kilobyte, 32, [sample(12.0), sample(8.0), sample(10.0)]),
        row("prefork", kilobyte, 16, [sample(16.5)]),
        row("thread", kilobyte, 32, failure="ewe did not start: no"),
        row(
            "asyncio-uvloop", kilobyte, 32, [sample(9.0, server=0.8, wrk=0.98, wrk_core=1.0, server_core=0.8)]
        ),
        row("nginx", large, 32),
        row(
            "serial",
            large,
            32,
            [sample(1234.5, errors={"ct": 2}), sample(1200, errors={"ct": 1, "res": 7})],
        ),
    ]


def test_the_table() -> None:
    assert speed.table(some_rows()).splitlines() == [
        "server              size keep log conns  req/s µs/req   min-max  ratio  wrk other  notes",
        "",
        "nginx               1 KB  yes off    32  97000   10.0  8.0-12.0   1.00  50%    2%",
        "prefork             1 KB  yes off    16  58788   16.5 16.5-16.5   1.65  50%    2%",
        "thread              1 KB  yes off    32      -      -         -      -    -     -  failed",
        "asyncio-uvloop      1 KB  yes off    32  88889    9.0   9.0-9.0   0.90  98%    0%  client-limited",
        "",
        "serial            128 KB   no  on    32    797   1217 1200-1234      -  50%    2%  3 ct, 7 res",
    ]


def test_the_table_fits_a_hundred_columns_whatever_there_is_to_note() -> None:
    errors = {"ct": 12, "res": 3456, "status": 3, "other": 123456789012}
    slow = sample(98765.4, errors=errors, wrk_core=1.0, server_core=0.8, server=0.5)
    long = row("asyncio-standard", SpeedSetting(131072), 1000, [slow], "no")
    lines = speed.table([long, long]).splitlines()[2:]
    assert max(map(len, lines)) <= 100
    assert len(lines) == 2 * len(lines[: len(lines) // 2])
    notes = " ".join(line[lines[0].index("failed") :] for line in lines[: len(lines) // 2])
    assert notes == "failed, client-limited, 12 ct, 3456 res, 3 status, 123456789012 other"


def test_the_targets() -> None:
    report = speed.report(some_rows())
    assert "  asyncio   0.90, at most 1.3: ok\n" in report
    assert "  prefork   1.65, at most 1.6: MISSED\n" in report
    assert "thread " not in report.partition("Targets")[2].partition("Failed")[0]
    assert report.endswith("Failed:\n  thread: ewe did not start: no")


CROWD = "other programs had 80 % of the 2 cores"


def test_no_target_is_judged_beside_other_programs() -> None:
    report = speed.report(some_rows(), CROWD)
    assert "  asyncio   0.90, at most 1.3: no verdict\n" in report
    assert "  prefork   1.65, at most 1.6: no verdict\n" in report
    assert f"\nNo verdict: {CROWD}. Run it again on a quiet machine.\n" in report
    assert "No verdict" not in speed.report(some_rows())
    found = json.loads(speed.as_json(some_rows(), {}, CROWD))
    assert found["no_verdict"] == CROWD
    assert [target["ok"] for target in found["targets"]] == [None, None]


@pytest.fixture
def all_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the rows is the same where wrk and nginx are not installed."""
    for module in (speed_rows, other_servers):
        monkeypatch.setattr(module, "find_tool", lambda name: name)


@pytest.mark.usefixtures("all_tools")
@pytest.mark.parametrize("crowd", ["", CROWD])
def test_ratios_measured_beside_other_programs_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], crowd: str
) -> None:
    def filled(rows: list[SpeedRow], seconds: float, repeats: int) -> tuple[int, str]:
        for each in rows:
            each.cell.samples.append(sample(10 if each.server == "nginx" else 12))
        return 0, crowd

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "missing_programs_text", lambda names: "")
    monkeypatch.setattr(
        speed, "machine_facts", lambda kinds: dict.fromkeys((*speed.FACT_NAMES, *kinds), "any")
    )
    monkeypatch.setattr(speed, "measure", filled)
    assert speed.main(["--quick", "--models", "thread"]) == 0
    assert speed.LAST_RUN.exists() is not bool(crowd)
    assert ("at most 1.6: ok" in capsys.readouterr().out) is not bool(crowd)


@pytest.mark.usefixtures("all_tools")
def test_a_program_that_cannot_be_made_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(rows: list[SpeedRow], seconds: float, repeats: int) -> tuple[int, str]:
        raise LabError("the C compiler failed: no such header")

    monkeypatch.setattr(speed, "missing_programs_text", lambda names: "")
    monkeypatch.setattr(
        speed, "machine_facts", lambda kinds: dict.fromkeys((*speed.FACT_NAMES, *kinds), "any")
    )
    monkeypatch.setattr(speed, "measure", fail)
    assert speed.main(["--quick", "--models", "thread"]) == 1
    assert capsys.readouterr().err == "ewe-lab speed: the C compiler failed: no such header\n"


def test_the_experiment_judges_the_targets() -> None:
    def judged(**cost: float) -> Finding:
        at = speed_rows.describe(speed_rows.TARGETS_AT)
        return speed.check(ExperimentTable("SPEED", cells=[
            Cell(name.replace("_", "-"), at, samples=[sample(micros)]) for name, micros in cost.items()
        ]))  # fmt: skip

    assert judged(nginx=10, thread=15.9).word == "holds"
    found = judged(nginx=10, thread=15.9, asyncio_standard=14)
    assert found.word == "holds in part"
    assert found.sentence.endswith("asyncio 1.40 (at most 1.3), thread 1.59 (at most 1.6).")
    assert judged(thread=15.9).word == "not testable"


def test_without_nginx_there_is_no_ratio_and_no_target() -> None:
    report = speed.report(some_rows()[1:4])
    assert "Targets" not in report
    assert "1.65" not in report


def test_the_work_of_others_is_shown() -> None:
    assert speed.table([row("nginx", SpeedSetting(64), 32, [sample(10, server=0.6)])]).endswith("50%   39%")
    assert speed.foreign_share(sample(10, server=1.01)) == 0


def test_the_work_of_others_is_not_known_on_one_core() -> None:
    found = sample(10)
    assert found.usage is not None
    found.usage.core = None
    assert speed.table([row("nginx", SpeedSetting(64), 32, [found])]).endswith("50%     -")


def test_a_sample_without_an_answer_is_a_failure() -> None:
    found = row("nginx", SpeedSetting(64), 32, [Sample("wrk", 1.0, errors={"ct": 3}, usage=Usage(0.1))])
    assert found.failure == "no request was answered"
    assert speed.table([found]).endswith("-  failed")


def test_the_json() -> None:
    found = json.loads(speed.as_json(some_rows(), {"repeats": 3}))
    assert found["repeats"] == 3
    assert [row["server"] for row in found["rows"]].count("nginx") == 1  # the other was not measured
    assert found["rows"][0]["samples"][0]["micros"] == 12
    assert found["targets"][1] == {"model": "prefork", "ratio": 1.65, "most": 1.6, "ok": False}


def test_a_row_that_has_become_slower_since_the_last_run_is_marked(tmp_path: Path) -> None:
    file = tmp_path / ".bench" / "speed.json"
    about = {"processor": "one", "cores": "2 cores", "system": "Linux"}

    def measured(micros: float, machine: dict[str, str] = about) -> str:
        rows = [
            row(name, SpeedSetting(1024), 32, [sample(cost)])
            for name, cost in (("nginx", 10), ("thread", micros), ("fork", 20))
        ]
        speed.compare_with_last(rows, machine, file)
        return speed.table(rows)

    assert "SLOWER" not in measured(12.0)
    assert "SLOWER" not in measured(13.0)
    slower = measured(15.0)
    assert [line.split()[0] for line in slower.splitlines() if "SLOWER: 1.30" in line] == ["thread"]
    assert "SLOWER" not in measured(15.0)
    assert "SLOWER" not in measured(30.0, about | {"processor": "another"})
    no_ratios = json.dumps({"machine": list(about.values()), "ratios": [1]})
    for damage in ("", "[]", '{"machine": 1}', '{"machine": null, "ratios": 3}', no_ratios):
        file.write_text(damage)
        assert "SLOWER" not in measured(30.0)


# ---------------------------------------------------------------------------------------------------------
# The plan and the command


@pytest.mark.usefixtures("all_tools")
def test_the_plan_keeps_no_more_connections_open_than_a_server_holds() -> None:
    found, _ = speed_rows.rows_to_fill(
        speed_rows.chosen_servers([]), speed_rows.settings([1024], speed.FILE_ROWS), 32
    )
    conns = {(row.server, row.setting.keep_alive): row.connections for row in found}
    assert conns["serial", True] == 1
    assert conns["prefork", True] == speed_rows.PREFORK_WORKERS < 32
    assert conns["pool-never", True] == 5
    assert conns["thread", True] == conns["serial", False] == 32


def test_the_settings() -> None:
    assert speed_rows.settings([64, 1024], speed.QUICK_ROWS) == [SpeedSetting(64), SpeedSetting(1024)]
    assert speed_rows.settings([64, 1024], speed_rows.ROWS)[2:10] == [
        SpeedSetting(1024, keep_alive=False),
        SpeedSetting(1024, access_log=True),
        SpeedSetting(1024, varied=True),
        SpeedSetting(1024, tls=True),
        SpeedSetting(1024, keep_alive=False, tls=True, resumed=True),
        SpeedSetting(1024, keep_alive=False, tls=True),
        SpeedSetting(0, asked="304"),
        SpeedSetting(0, asked="HEAD"),
    ]
    assert speed_rows.settings([64], ["close", "size"]) == [
        SpeedSetting(64),
        SpeedSetting(64, keep_alive=False),
    ]
    assert {setting.comparison for setting in speed_rows.settings([64], ["fastcgi", "wsgi"])} == {
        "WSGI",
        "FastCGI: 64 clients",
        "FastCGI: 8 clients",
    }


def rows_of(*kinds: str, models: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the servers of each setting of some kinds of rows."""
    chosen = speed_rows.chosen_servers(models)
    rows, _ = speed_rows.rows_to_fill(chosen, speed_rows.settings([1024], kinds), 32, are_named=bool(models))
    found: dict[str, list[str]] = {}
    for each in rows:
        found.setdefault(", ".join(speed_rows.setting_notes(each.setting)), []).append(each.server)
    return found


@pytest.mark.usefixtures("all_tools")
def test_a_contest_has_its_own_reference_and_the_models_that_were_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed_rows.Contestant, "why_missing", "")
    assert rows_of("wsgi", models=["thread"]) == {
        "WSGI": ["gunicorn gthread", "gunicorn gevent", "granian", "ewe thread"]
    }
    assert rows_of("asgi", models=["thread"]) == {}
    assert rows_of("libcgi", models=["pool-always"]) == {"LibCGI, pool-always": ["file", "LibCGI"]}
    assert rows_of("fastcgi")["FastCGI, 64 clients"] == ["nginx", "ewe asyncio", "ewe pool", "ewe thread"]
    setting = speed_rows.settings([64], ["libcgi"])[0]
    rows = [row("LibCGI", setting, 32, [sample(15)]), row("file", setting, 32, [sample(10)])]
    assert speed_rows.ratio(rows, rows[0]) == 1.5
    assert speed.row_texts(rows[0], 1.5)[-1] == "LibCGI, fork, above 1.2"
    assert speed.row_texts(rows[0], 1.1)[-1] == "LibCGI, fork"


@pytest.mark.usefixtures("all_tools")
def test_a_floor_stands_where_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_rows.Contestant, "why_missing", "")
    found = {note: [name for name in names if name.startswith("floor")]
             for kind in ("size", "varied", "close", "404") for note, names in rows_of(kind).items()}  # fmt: skip
    assert found == {
        "": ["floor-loop", "floor-thread", "floor-fork"],
        "varied heads": ["floor-parse"],
        "404": [],
    }


def test_a_server_that_is_not_installed_costs_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe_lab.stacks.ways.find_spec", lambda name: None)
    monkeypatch.setattr(speed_rows, "find_tool", lambda name: "" if name == "ab" else name)
    rows, lacking = speed_rows.rows_to_fill(
        speed_rows.chosen_servers(["thread"]), speed_rows.settings([1024], ["head", "wsgi"]), 32
    )
    assert [row.server for row in rows] == ["ewe thread"]
    assert "HEAD: ab is not installed: apt install apache2-utils" in lacking[0]
    assert lacking[1:] == [
        "gunicorn gthread is left out: pip install gunicorn",
        "gunicorn gevent is left out: pip install gunicorn",
        "granian is left out: pip install granian",
    ]


@pytest.mark.starts_processes
@needs_tools
@pytest.mark.needs("ab")
@pytest.mark.parametrize("kind", ["handshake", "304", "head", "404", "listing", "range"])
def test_each_request_for_something_else_than_a_file_gets_its_answer(kind: str) -> None:
    """The probe checks the status, so a row of 404s cannot measure something else."""
    chosen = speed_rows.chosen_servers(["asyncio-standard"])
    rows, _ = speed_rows.rows_to_fill(chosen, speed_rows.settings([1024], [kind]), 2, are_named=True)
    assert speed.measure(rows, 0.5, 1)[0] == 0, [each.failure for each in rows if each.failure]
    assert [each.notes() for each in rows if "status" in each.notes()] == []
    for each in rows:
        [found] = each.samples
        assert each.setting.asked != "range" or found.received / found.replies < 2000


@pytest.mark.starts_processes
@needs_tools
@pytest.mark.parametrize("kind", ["loop", "parse", "thread", "fork"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_floor_answers_as_a_server_does(kind: str, keep_alive: bool) -> None:
    [tested] = [each for each in speed_rows.TESTED_SERVERS if each.name == f"floor-{kind}"]
    measured = SpeedRow(tested.name, SpeedSetting(1024, keep_alive, tls=kind == "loop"), 2)
    assert speed.measure([measured], 0.5, 1)[0] == 0, measured.failure
    assert not measured.samples[0].errors


def test_the_models() -> None:
    names = [each.name for each in speed_rows.chosen_servers(["pool", "serial"])]
    assert names == ["nginx", "serial", "pool-always", "pool-idle", "pool-never"]
    assert [each.name for each in speed_rows.chosen_servers(["pool-idle"])] == ["nginx", "pool-idle"]
    with pytest.raises(LabError, match="'pol' is unknown; there are apache-event, asyncio, "):
        speed_rows.chosen_servers(["pol"])


def test_other_servers_stand_beside_nginx_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        speed_rows, "why_server_is_missing", lambda each: "apt install h2o" if each.kind == "h2o" else ""
    )
    assert [each.name for each in speed_rows.chosen_servers([])][-6:-4] == ["lighttpd", "apache-event"]
    assert "lighttpd" not in [each.name for each in speed_rows.chosen_servers([], quick=True)]
    assert [each.name for each in speed_rows.chosen_servers(["lighttpd"], quick=True)] == [
        "nginx",
        "lighttpd",
    ]
    with pytest.raises(LabError, match="apt install h2o"):
        speed_rows.chosen_servers(["h2o"])


def test_sizes() -> None:
    assert options.read_sizes("64,1k, 16K 64") == [64, 1024, 16384]
    for text in ("0", "k", "-1", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(text)):
            options.read_sizes(text)


@pytest.mark.parametrize("option", ["--models", "--sizes", "--rows"])
@pytest.mark.parametrize("text", ["", ", "])
def test_a_list_that_names_nothing_is_no_list_of_all(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.main([option, text]) == 2
    assert f"{option}: {text!r} names nothing" in capsys.readouterr().err


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ewe_lab.speed", *words]


def environment(tmp: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp), "PYTHONPATH": str(ROOT), "EWE_INDEXES": "nonsense"}


def test_without_its_tools_it_names_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It does so before it measures, and leaves no empty file of results."""
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    for file in (kept, tmp_path / "new.json"):
        assert speed.main(["--quick", "--json", str(file)]) == 1
    assert os.listdir(tmp_path) == ["kept.json"] and kept.read_text() == "{}"
    capsys.readouterr()
    assert speed.main(["--quick"]) == 1
    assert capsys.readouterr() == (
        "",
        "ewe-lab speed: wrk and nginx missing: apt install wrk nginx-light\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--models", "pol"],
        ["--sizes", "x"],
        ["--seconds", "0"],
        ["--json", "/nowhere/at/all"],
        ["--json", "/"],  # a directory: its time could be changed, and no file be written in its place
    ],
)
def test_a_wrong_option_is_a_usage_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ewe-lab speed` and `python -m ewe_lab.speed` answer with one line, each under its own name.

    Neither needs locust.
    """
    monkeypatch.setattr("shutil.which", lambda name, path: None)  # so that nothing is measured
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "locust" else name)
    assert speed.main(words) == 2
    own = capsys.readouterr()
    assert cli.main(["speed", *words]) == 2
    assert own.out == "" and own.err.startswith("ewe-lab speed: ") and own.err.count("\n") == 1
    assert capsys.readouterr() == ("", own.err.replace("ewe-lab speed: ", "ewe-lab: ", 1))


@pytest.mark.starts_processes
@needs_tools
def test_a_real_run(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = subprocess.run(
        command(
            "--quick", "--models", "asyncio", "--seconds", "0.5", "--repeats", "1", "--json", str(result)
        ),
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for server in ("nginx", "asyncio-standard"):
        assert re.search(
            rf"^{server} +1 KB  yes off +32 +\d+ +\d+\.\d +\S+ +\d+\.\d\d +\d+% +\d+%", done.stdout, re.M
        )
    crowded = "\nNo verdict: other programs had " in done.stdout  # as the tests themselves are
    words = "no verdict" if crowded else "(ok|MISSED)"
    assert re.search(rf"^  asyncio +\d\.\d\d, at most 1\.3: {words}$", done.stdout, re.M)
    kept = tmp_path / speed.LAST_RUN
    assert kept.exists() is not crowded
    assert crowded or "asyncio-standard" in kept.read_text()
    for row in json.loads(result.read_text())["rows"]:
        (measured,) = row["samples"]
        assert measured["rate"] > 0
        assert 1 < measured["micros"] < 10_000
        assert measured["server"] == pytest.approx(measured["rate"] * measured["micros"] / 1e6, rel=0.25)
        assert measured["errors"] == {}
    assert sorted(os.listdir(tmp_path)) == [".bench", "result.json"][crowded:]


@pytest.mark.starts_processes
@needs_tools
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind_and_shows_what_there_is(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    started = subprocess.Popen(
        command("--models", "fork", "--sizes", "64", "--seconds", "1", "--connections", "2"),
        env=environment(tmp_path),
        cwd=tmp_path_factory.mktemp("directory"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # nginx has been measured when the first child of fork's is there
        wait_until(lambda: any("--model fork" in line for line in command_lines(started.pid)), 20)
        wait_until(lambda: any("wrk -t1" in line for line in command_lines(started.pid)), 20)
        family = [each.pid for each in process_tree(started.pid)]
        started.send_signal(number)
        started.send_signal(number)  # an impatient one
        output, errors = started.communicate(timeout=150)
    finally:
        started.kill()
        started.wait()
    assert (started.returncode, errors) == (130, "")
    assert "Interrupted" in output
    assert re.search(r"^nginx +64 B  yes off", output, re.M)
    assert "Failed" not in output
    assert os.listdir(tmp_path) == []
    assert len(family) >= 3
    left = [each for each in processes.processes() if each.pid in family and each.state not in "ZX"]
    assert not left


def command_lines(root: int) -> list[str]:
    """Return what a process and its descendants were started as."""
    found = []
    for each in process_tree(root):
        try:
            found.append(Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass
    return found
