"""What a layer costs: the pinger, and X-Switch's table 1 made with it; users without accounts of the machine."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lab_bench import quick_lab

from ewe.xswitch.engine_kinds import BUILT_IN
from ewe_lab.bench import accounts
from ewe_lab.bench.processes import LabError, running
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Times
from ewe_lab.experiments import thesis_dynamic, x_c2, x_t1, xswitch_tables
from ewe_lab.experiments.x_t1 import ENGINE, FRONT, LAYERS, MOD_X, SCRIPT, SWITCH, AllRequestsRun
from ewe_lab.load import pinger
from ewe_lab.load.pinger import PingTime
from ewe_lab.stacks.backends import wait_for_socket, xswitch_status
from ewe_lab.stacks.programs import HELLO
from ewe_lab.stacks.servers import StartedServer, run_ewe
from ewe_lab.stacks.variants import HELLO_BODY

# The pinger


@pytest.mark.starts_processes
def test_pinging_a_server_that_does_nothing(tmp_path: Path) -> None:
    assert len(HELLO_BODY) == len(HELLO) == 52
    with run_ewe("ewe_lab.stacks.variants:Null", root=tmp_path, directory=tmp_path) as server:
        with pinger.http(server.url, "/whatever", HELLO_BODY) as ask:
            took = pinger.ping(ask, 50)
            assert took.count == 50 and 0 < took.client_cpu_s < took.seconds * 2
            assert ask().startswith(b"HTTP/1.1 200 OK\r\n")
        with (
            pinger.http(server.url, "/", b"something else") as ask,
            pytest.raises(LabError, match=r"was answered b'HTTP/1\.1 200"),
        ):
            ask()
    with pytest.raises(LabError, match="cannot be reached"), pinger.http(server.url, "/", b""):
        pass


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """A server that answers its one connection with these pieces, each sent by itself, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                threading.Event().wait(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 6\r\n\r\nhel", b"lo\n"), ""),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n", b"\r\n0\r\n\r\n"), ""),
        ((b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",), "was answered b'HTTP/1.1 404"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhel",), "closed"),
    ],
)
def test_where_an_answer_ends(pieces: tuple[bytes, ...], error: str) -> None:
    with answering(*pieces) as url, pinger.http(url, "/", b"hello\n") as ask:
        if error:
            with pytest.raises(LabError, match=error):
                ask()
        else:
            assert b"hello\n" in ask()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 52\r\n\r\nhel", b"SSH-2.0-x\r\n"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda url: thesis_dynamic.probe(url, HELLO),
        xswitch_tables.time_first_answer,
        lambda url: xswitch_status(StartedServer(1, url)),
    ],
    ids=["page", "first answer", "status"],
)
def test_an_answer_that_is_cut_or_not_http_is_an_error_of_the_lab(
    ask: Callable[[str], object], answer: bytes
) -> None:
    """urllib reports both by exceptions of http.client, which are not OSErrors: they ended the whole run."""
    with answering(answer) as url, pytest.raises(LabError, match=r"first request failed|does not say"):
        ask(url)


@pytest.mark.starts_processes
def test_pinging_a_fastcgi_program(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "ewe_lab.stacks.responder", str(path), "1", "750"]
    with tempfile.TemporaryFile() as output, running(command, output) as started:
        wait_for_socket(started, path, output, "the responder")
        with pinger.fastcgi(str(path), {"QUERY_STRING": ""}, b"x" * 749 + b"\n") as ask:
            assert pinger.ping(ask, 20).count == 20
        with (
            pinger.fastcgi(str(path), {}, b"zzz") as ask,
            pytest.raises(LabError, match="was answered"),
        ):
            ask()


@pytest.mark.starts_processes
def test_pinging_an_engine(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(f"print('Content-Type: text/plain\\n')\nprint({HELLO[:-1]!r})\n")
    command = BUILT_IN["python"].command
    with pinger.engine(command, str(script), {}, HELLO.encode(), None) as (ask, pid):
        assert pinger.ping(ask, 20).count == 20
        assert os.path.exists(f"/proc/{pid}")
    assert not os.path.exists(f"/proc/{pid}")
    with (
        pinger.engine(command, str(tmp_path / "none.py"), {}, b"hello", None) as (ask, pid),
        pytest.raises(LabError, match="the engine answered"),
    ):
        ask()


# Table 1


def made_up(
    full: float, null: float, direct: float, engine: float, script: float
) -> tuple[AllRequestsRun, ...]:
    """Five runs that took so many µs a request; CPU time is half of that."""
    comparable_groups = {FRONT: 200e-6, SWITCH: 80e-6, ENGINE: 50e-6}
    runs = [
        AllRequestsRun(PingTime(1, micros / 1e6, 0), {"": micros / 2e6})
        for micros in (null, direct, engine, script)
    ]
    return (AllRequestsRun(PingTime(1, full / 1e6, 0), comparable_groups), *runs)


def test_layers_are_differences() -> None:
    runs = made_up(500, 100, 250, 90, 10)
    assert x_t1.micros_by_layer(runs) == pytest.approx(
        {FRONT: 100, MOD_X: 150, SWITCH: 160, ENGINE: 80, SCRIPT: 10}
    )
    assert x_t1.cpu_micros_by_layer(runs) == pytest.approx(
        {FRONT: 50, MOD_X: 150, SWITCH: 80, ENGINE: 45, SCRIPT: 5}
    )


def test_the_layers_of_a_table_are_of_one_set_of_runs() -> None:
    rounds = [made_up(500, 100, 250, 90, 10), made_up(900, 90, 260, 100, 11), made_up(510, 300, 240, 95, 9)]
    found = list(x_t1.cells("Perl", 1, rounds, ""))
    shares = [cell.median or 0 for cell in found if cell.column == "Perl"]
    assert sum(shares) == pytest.approx(100)
    assert shares[0] == pytest.approx(90 / 500 * 100)  # the fastest of each run: 500, 90, 240, 90, 9
    assert [cell.paper_server for cell in found][:2] == ["Apache", "Mod_x"]
    everything = next(cell for cell in found if cell.server == x_t1.RUNS[0])
    assert everything.spread == pytest.approx((500, 900))
    assert all(cell.paper is None for cell in x_t1.cells("Python", 1, rounds, ""))


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ((40, 14, 9, 11, 26), "holds"),
        ((40, 14, 11, 9, 26), "holds in part"),
        ((12, 33, 34, 21, 0), "does not hold"),
    ],
)
def test_the_claim_about_layers(shares: tuple[float, ...], word: str) -> None:
    cells = [
        Cell(layer, "Perl", value="extra.share", samples=[Sample("pinger", 0, extra={"share": share})])
        for layer, share in zip(LAYERS, shares, strict=True)
    ]
    assert x_t1.check(ExperimentTable("X-T1", cells=cells)).word == word


@pytest.mark.starts_processes
def test_table_1_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x_t1, "REQUEST_COUNTS", (200, 200))
    monkeypatch.setattr(x_t1, "ROUNDS", 1)
    monkeypatch.setattr(x_t1, "LANGUAGES", {"Perl": "pl"})
    with quick_lab() as lab:
        cells = list(x_t1.run(lab))
    # a small difference of two short runs may not be resolved beside other programs
    assert len(cells) == 10
    assert all(not cell.failure or cell.failure.startswith("not resolved: ") for cell in cells), cells
    took = {cell.server: cell.median or 0 for cell in cells if cell.column == "Perl, runs"}
    everything, null, switch, engine, loop = (took[name] for name in x_t1.RUNS)
    assert min(everything, null, switch, engine) > loop > 0
    cpu = {
        cell.server: cell.samples[0].extra["cpu"] for cell in cells if cell.column == "Perl" and cell.samples
    }
    assert all(cpu[layer] > 0 for layer in cpu.keys() & {FRONT, SWITCH, ENGINE, SCRIPT})
    assert x_t1.check(ExperimentTable("X-T1", cells=cells)).sentence.endswith(".")


# Users


def test_no_accounts_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in accounts.why_impossible()
    with quick_lab() as lab:
        (cell,) = x_c2.run(lab)
        assert any("need root" in note for note in lab.notes)
    assert not cell.samples and not cell.failure
    assert x_c2.check(ExperimentTable("X-C2", cells=[cell])).word == "not testable"


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_accounts_exist_for_what_is_started_and_nobody_else(tmp_path: Path) -> None:
    ask = "import pwd; print(pwd.getpwuid(61001).pw_name)"
    with accounts.accounts(tmp_path, 2) as (users, prefix):
        users[1].write_program("x.py", "")
        assert (users[1].home / "public_html" / "cgi-bin" / "x.py").stat().st_uid == users[1].uid == 61002
        done = subprocess.run([*prefix, "python3", "-c", ask], capture_output=True, text=True, timeout=170)
        assert done.stdout == f"{users[0].name}\n", done.stderr
        with pytest.raises(KeyError):
            pwd.getpwuid(61001)
        command = [*prefix, "cat", "/etc/group", "/proc/self/mountinfo"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
        assert "root:x:0:" in done.stdout and " /etc " in done.stdout, done.stderr


@pytest.mark.starts_processes
@pytest.mark.needs("root")
def test_engines_are_evicted_where_users_outnumber_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x_c2, "REQUEST_COUNTS", (30, 30))
    with quick_lab() as lab, accounts.accounts(lab.directory, 3) as (users, prefix):
        for user in users:
            user.write_program(x_c2.PROGRAM, x_c2.TEXT)
        crowded = x_c2.measure(lab, 2, users, prefix)
        roomy = x_c2.measure(lab, 3, users, prefix)
    assert not crowded.failure and not roomy.failure
    assert crowded.samples[0].extra["engines"] <= 2 < roomy.samples[0].extra["engines"]
    assert (crowded.median or 0) > 0 == roomy.median
    assert x_c2.check(ExperimentTable("X-C2", cells=[crowded, roomy])).word == "holds"


@pytest.mark.parametrize(
    ("users", "evicted", "engines", "word"),
    [
        (8, 50, 4, "holds"),
        (8, 0, 4, "does not hold"),
        (8, 50, 5, "does not hold"),
        (4, 1, 4, "does not hold"),
        (4, 0, 4, "not testable"),
    ],
)
def test_the_claim_about_users(users: int, evicted: float, engines: int, word: str) -> None:
    extra = {"evicted": evicted, "started": evicted, "engines": float(engines)}
    sample = Sample("pinger", 1, service=Times(1, 1, 1, 1, 1, 1, 1), extra=extra)
    table = ExperimentTable("X-C2", cells=[Cell("4 engines", "", users, "extra.evicted", samples=[sample])])
    assert x_c2.check(table).word == word
    table.cells[0].samples.append(replace(sample, extra={**extra, "engines": 9.0}))  # in one repeat of two
    assert x_c2.check(table).word == "does not hold"
