"""The access log and the error log, as the real command writes them under every model."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.examples import examples
from support.proc import children, open_files
from support.server import ROOT, Server, Start, run_command, wait_until, write_program
from support.wire import read_all, read_response, reset

from ewe.log_files import REPORT_S, STANDARD_ERROR, LogFile
from ewe.logger import UNPRINTABLE, UNPRINTABLE_IN_MESSAGE, escaped

COMBINED = re.compile(
    r'127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "([^"\\]|\\.)*" \d{3} (\d+|-)'
    r' "([^"\\]|\\.)*" "([^"\\]|\\.)*" \d+ [a-z]+ \d+'
)
GET = b"GET /%b HTTP/1.1\r\nHost: ewe\r\n%b\r\n"


def get(server: Server, path: bytes = b"", fields: bytes = b"") -> int:
    """Ask over a connection of its own; return the status."""
    with server.connect(20) as sock:
        sock.sendall(GET % (path, b"Connection: close\r\n" + fields))
        status = read_response(sock)[0]
        read_all(sock)
        return status


def lines(file: Path, count: int) -> list[str]:
    """Return the lines of a log, once there are so many."""

    def read() -> list[str]:
        text = file.read_text() if file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()  # a long line may come page by page

    wait_until(lambda: len(read()) >= count, 20, lambda: f"of {count} lines there are only: {read()}")
    assert len(read()) == count, read()
    wait_until(lambda: file.read_bytes().endswith(b"\n"), 20, "the last line does not end")
    return read()


def test_what_is_escaped_and_that_it_costs_little() -> None:
    """A client may send a head of characters that the access log escapes."""

    def seconds(escape: Callable[[str], str]) -> float:
        began = time.process_time()
        assert len(escape("\xff" * 300_000)) == 1_200_000
        return time.process_time() - began

    assert escaped('a "b"\\ \x1b\t\xff\udcfe') == 'a \\"b\\"\\\\ \\x1b\\x09\\xff\\xfe'
    assert escaped('"é\n\u4e00\udcfe', UNPRINTABLE_IN_MESSAGE) == '"é\\x0a\u4e00\\xfe'
    # Characters that are no bytes of a file name; half of a surrogate pair may come from JSON.
    assert escaped("\u4e00\ufffd\U0001f600") == "\\u4e00\\ufffd\\U0001f600"
    assert escaped("\ud83d", UNPRINTABLE_IN_MESSAGE) == "\\ud83d"
    # With a function for each character, it takes many times as long.
    by_function = seconds(lambda text: re.sub("\xff", lambda match: f"\\x{ord(match[0]):02x}", text))
    assert min(seconds(escaped) for _ in range(3)) < by_function / 2


def test_every_character_is_escaped_as_the_table_says() -> None:
    for code in (*range(0x180), 0x2028, 0xDC80, 0xDCFF):
        text = f"a{chr(code)}b"
        for table in (UNPRINTABLE, UNPRINTABLE_IN_MESSAGE):
            assert escaped(text, table) == text.translate(table)


def told_losses(text: str) -> int:
    """Return how many lost lines an error log tells of."""
    return sum(map(int, re.findall(r"log \S+: (\d+) lines? could not be written", text)))


def has_old_log(pid: int) -> bool:
    """Does a process have a log open that was renamed?"""
    return any(name.endswith("log.1") for name in open_files(pid).values())


def test_combined(server: Server, variant: str) -> None:
    """Apache's combined format, then the duration in microseconds, the model, the worker."""
    size = (server.root / "index.html").stat().st_size
    write_program(server.cgi / "slow", "#!/bin/sh\nsleep 0.2\nprintf 'Content-Type: a/b\\n\\nslept\\n'\n")
    with server.connect() as sock:
        for request in (
            GET % (b"?q=%41", b'Referer: http://a/?"b"\\\r\nUser-Agent: x\t(y) 100%s %d\r\n'),
            GET % (b"missing", b"User-Agent: caf\xc3\xa9 \x80\r\n"),
            GET % (b"index.html", b"Range: bytes=0-4\r\n"),
            GET % (b"cgi-bin/slow", b""),
        ):
            sock.sendall(request)
            read_response(sock)
        sock.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        read_all(sock)
    lines(server.access_file, 5)
    with server.connect() as sock:  # a request that cannot be read has a line too
        sock.sendall(b"GET /\x1b[2J HTTP/1.1\r\nHost: ewe\r\n\r\n")
        assert read_response(sock)[0] == 400
    found = lines(server.access_file, 6)
    assert all(COMBINED.fullmatch(line) for line in found), found
    model = variant.partition(" ")[0]
    tails = [line.partition("] ")[2].rsplit(" ", 3) for line in found]
    assert [tail[0] for tail in tails] == [
        rf'"GET /?q=%41 HTTP/1.1" 200 {size} "http://a/?\"b\"\\" "x\x09(y) 100%s %d"',
        rf'"GET /missing HTTP/1.1" 404 {length_of_404(server)} "-" "caf\xc3\xa9 \x80"',
        '"GET /index.html HTTP/1.1" 206 5 "-" "-"',
        '"GET /cgi-bin/slow HTTP/1.1" 200 6 "-" "-"',
        '"HEAD / HTTP/1.0" 200 - "-" "-"',
        rf'"GET /\x1b" 400 {length_of_400(server)} "-" "-"',  # up to the wrong byte
    ]
    assert {tail[2] for tail in tails} == {model}
    assert 200_000 <= int(tails[3][1]) < 20_000_000  # the program slept for 0.2 s
    assert int(tails[0][1]) < 2_000_000
    stamp = time.strptime(found[0].partition("[")[2].partition("]")[0], "%d/%b/%Y:%H:%M:%S %z")
    assert abs(time.mktime(stamp) - time.mktime(time.localtime())) < 3600 * 24


def length_of_404(server: Server) -> int:
    """Return the length of that page."""
    from ewe.http.error_pages import error_page

    return error_page(404, "").length or 0


def length_of_400(server: Server) -> int:
    """Return the length of that page."""
    from ewe.http.error_pages import error_page

    return error_page(400, "").length or 0


def test_a_format_of_ones_own(start: Start, variant: str, tmp_path: Path) -> None:
    """Apache's letters, each; and to standard output."""
    form = (
        "%h|%a|%l|%u|%m|%U|%q|%H|%v|%s|%>s|%<s|%b|%B|%T|%p|%{X-Y}i|%{x-z}i|%{Content-Type}o|%{model}n|%%|%r|é"
    )
    server = start(variant, "--access-log", "-", "--log-format", form + "|%P|%{worker}n|%D|%t")
    with server.connect() as sock:
        sock.sendall(GET % (b"a%20%C3%A9%E9%22b?c=%41", b"X-Y: 1\r\nX-Y: 100%\r\n"))
        assert read_response(sock)[0] == 404
        sock.sendall(GET % (b"", b""))
        assert read_response(sock)[0] == 200
    log = server.wait_for_log("|GET|/||")
    first, second = [line.split("|") for line in log.splitlines() if line.startswith("127.0.0.1|")]
    size = str(length_of_404(server))
    assert first[:23] == [
        "127.0.0.1", "127.0.0.1", "-", "-", "GET", r"/a \xc3\xa9\xe9\"b", "?c=%41", "HTTP/1.1", "ewe",
        "404", "404", "404", size, size, "0", str(server.port), "1, 100%", "-", "text/html; charset=utf-8",
        variant.split()[0], "%",
        "GET /a%20%C3%A9%E9%22b?c=%41 HTTP/1.1", "é",
    ]  # fmt: skip
    assert int(first[23]) in server.processes() or "fork" in variant
    assert first[24].isdigit() and first[25].isdigit() and first[26].startswith("[")
    assert second[9] == "200" and second[16] == "-"


def test_json(start: Start, model_or_loop: str) -> None:
    """One object a line, whatever a client sends."""
    server = start(model_or_loop, "--log-format", "json")
    with server.connect() as sock:
        for fields in (
            b"",
            b'User-Agent: "x"\\ \xe9\x9b\r\nReferer: http://a/\r\n',
            b"User-Agent: " + b"\\" * 9000 + b"\r\n",
        ):
            sock.sendall(GET % (b"?q", fields))
            assert read_response(sock)[0] == 200
    with server.connect() as sock:
        lines(server.access_file, 3)
        sock.sendall(b"BAD\x1b\r\n\r\n")
        assert read_response(sock)[0] == 400
    found = [json.loads(line) for line in lines(server.access_file, 4)]
    first = found[0]
    assert isinstance(first.pop("micros"), int) and isinstance(first.pop("pid"), int)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", first.pop("time"))
    assert first.pop("worker").isdigit()
    assert first == {
        "client": "127.0.0.1", "user": None, "method": "GET", "target": "/?q", "protocol": "HTTP/1.1",
        "status": 200, "complete": True, "bytes": (server.root / "index.html").stat().st_size,
        "referer": None, "agent": None, "host": "ewe", "model": model_or_loop.split()[0],
    }  # fmt: skip
    assert found[1]["agent"] == '"x"\\ \xe9\x9b' and found[1]["referer"] == "http://a/"
    assert found[2]["agent"] == "\\" * 9000
    assert found[3]["status"] == 400


def test_json_through_a_pipe_stays_json(start: Start, tmp_path: Path) -> None:
    """A pipe takes 4096 bytes whole; a longer line is shortened so that it can still be read."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        server = start("thread", "--access-log", str(fifo), "--log-format", "json")
        assert get(server, b"?" + b"q" * 8000, b"User-Agent: " + b"\xe9" * 9000 + b"\r\n") == 200
        data = b""

        def read() -> bool:
            nonlocal data
            try:
                data += os.read(reader, 65536)
            except BlockingIOError:
                pass
            return data.endswith(b"\n")

        wait_until(read, 20)
        found = json.loads(data)
        assert (
            found["status"] == 200
            and found["target"].startswith("/?qqq")
            and found["agent"].startswith("\xe9")
        )
        # A reader that is stuck, or gone, costs lines and nothing else
        with server.connect(20) as sock:
            for _ in range(300):
                sock.sendall(GET % (b"?" + b"q" * 4000, b""))
                assert read_response(sock)[0] == 200
            os.close(reader)
            reader = -1
            sock.sendall(GET % (b"", b""))
            assert read_response(sock)[0] == 200
        assert server.stop() == 0
        assert "/pipe cannot be written: its reader does not keep up; its lines are lost" in server.log()
        assert told_losses(server.log()) > 1
    finally:
        if reader >= 0:
            os.close(reader)


@pytest.mark.starts_processes
def test_a_standard_output_that_nobody_reads(tmp_path: Path) -> None:
    """A pipe that is full costs lines, and holds up no client."""
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "htdocs" / "index.html").write_text("welcome")
    with subprocess.Popen(
        [sys.executable, "-m", "ewe", "-t", "--port", "0", "--documentroot", str(tmp_path / "htdocs")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            port = int(re.findall(r":(\d+)/", process.stderr.readline())[0])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
                for _ in range(200):
                    sock.sendall(GET % (b"", b"User-Agent: " + b"x" * 2000 + b"\r\n"))
                    assert read_response(sock)[0] == 200
            process.terminate()
            assert process.wait(60) == 0
            whole = process.stdout.read().splitlines()
            assert 10 < len(whole) < 200 and all(COMBINED.fullmatch(line) for line in whole)
            said = process.stderr.read()
            assert (
                "log - cannot be written: its reader does not keep up; its lines are lost until it can"
                in said
            )
            assert told_losses(said) == 200 - len(whole)
        finally:
            process.kill()


def test_reopening(start: Start, model_or_loop: str, tmp_path: Path) -> None:
    """USR1, after the files were moved away: later lines go to new files, over old connections too."""
    errors = tmp_path / "error.log"
    server = start(model_or_loop, "--logfile", str(errors), "--loglevel", "debug")
    with server.connect(20) as kept:
        kept.sendall(GET % (b"?before", b""))
        assert read_response(kept)[0] == 200
        kept.sendall(GET % (b"missing-before", b""))
        assert read_response(kept)[0] == 404
        lines(server.access_file, 2)
        wait_until(lambda: "missing-before" in errors.read_text(), 20)
        old_access = server.access_file.rename(tmp_path / "access.log.1")
        old_errors = errors.rename(tmp_path / "error.log.1")
        server.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: not any(map(has_old_log, server.processes())), 20)
        kept.sendall(GET % (b"?after", b""))
        assert read_response(kept)[0] == 200
        kept.sendall(GET % (b"missing-after", b"Connection: close\r\n"))
        assert read_response(kept)[0] == 404
        read_all(kept)
    assert get(server, b"?new") == 200
    found = lines(server.access_file, 3)
    assert "GET /?after" in found[0] and "GET /missing-after" in found[1] and "GET /?new" in found[2]
    wait_until(lambda: "missing-after" in errors.read_text(), 20)
    assert len(old_access.read_text().splitlines()) == 2 and "missing-after" not in old_errors.read_text()
    # Where no new file can be made the old one stays in use
    gone = tmp_path / "error.log"
    gone.rename(tmp_path / "error.log.2")
    gone.mkdir()
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the old file stays in use" in (tmp_path / "error.log.2").read_text(), 20)
    assert get(server) == 200


@pytest.mark.needs("/dev/full")
def test_logs_that_cannot_be_written(start: Start, model_or_loop: str) -> None:
    server = start(
        model_or_loop, "--access-log", "/dev/full", "--logfile", "/dev/full", "--loglevel", "debug"
    )
    with server.connect() as sock:
        for _ in range(20):
            sock.sendall(GET % (b"missing", b""))
            assert read_response(sock)[0] == 404
    assert get(server) == 200
    server.process.send_signal(signal.SIGUSR1)
    assert get(server) == 200
    # Neither log can be written, and still the administrator hears of it, while the server runs
    said = server.wait_for_log("log /dev/full cannot be written: No space left on device")
    assert "could not be written" not in said
    server.process.send_signal(signal.SIGUSR2)
    server.wait_for_log(" log lines lost")  # the status was asked for, so it does not go to the full log
    assert server.stop() == 0
    assert told_losses(server.log()) >= 22


def limit_files(server: Server, limit: int) -> None:
    """Let no file of the server grow beyond `limit` bytes, as on a disk that is full by then."""
    for pid in server.processes():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def test_a_process_that_lost_no_line_reports_that_the_log_works_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that lost lines may get no requests any more."""
    told: list[str] = []
    monkeypatch.setattr(LogFile, "tell", staticmethod(told.append))
    with_loss, other = (LogFile(str(tmp_path / "log"), STANDARD_ERROR) for _ in range(2))
    other.losses = with_loss.losses  # as after fork(2)
    with_loss.lose("the disk is full")
    with_loss.losses.last[0] -= REPORT_S
    other.write("a line\n")
    assert told[1:] == [f"log {tmp_path}/log: 1 line could not be written; it can be written again"]
    for log in (with_loss, other):
        log.close()


def test_a_full_disk_is_told_while_the_server_runs(start: Start, variant: str, tmp_path: Path) -> None:
    """At once, with the reason; counted in the status; no line is torn; and it is told when the log goes on."""
    line = '127.0.0.1 - - [20/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-" 1 pool 0\n'
    (tmp_path / "access.log").write_text(line * 6000)  # longer than the lines for standard error
    server = start(variant, "--idle", "0.1s", constants={"ewe.log_files.REPORT_S": 0.3})
    query = b"?" + b"q" * 3000
    assert get(server, query) == 200
    before = lines(server.access_file, 6001)
    wait_until(lambda: variant != "fork" or not children(server.pid), 20)
    limit_files(server, server.access_file.stat().st_size + 1000)
    assert get(server, query) == 200
    server.wait_for_log(f"log {server.access_file} cannot be written: the disk is full; its lines are lost")
    for _ in range(5):
        assert get(server, query) == 200
    assert lines(server.access_file, 6001) == before  # the part of a line that had room is cut off again

    def status() -> bool:
        server.process.send_signal(signal.SIGUSR2)
        time.sleep(0.1)
        return ", 6 log lines lost" in server.log()

    wait_until(status, 20, server.log)
    limit_files(server, resource.RLIM_INFINITY)

    def goes_on() -> bool:
        assert get(server, b"?after") == 200
        return "it can be written again" in server.log()

    wait_until(goes_on, 20, server.log)
    assert told_losses(server.log()) == 6, server.log()
    text = server.access_file.read_text()
    assert all(COMBINED.fullmatch(line) for line in text.splitlines()) and "?after" in text
    assert server.stop() == 0
    assert told_losses(server.log()) == 6, server.log()


@pytest.mark.needs("/dev/full", "/proc")
def test_sites_that_share_a_file_in_two_formats(start: Start, tmp_path: Path) -> None:
    """After HUP, too, the file is open once, and a lost line counts once."""
    tables = "".join(
        f'[[site]]\nnames = "{name}"\naccess-log = "PATH"\nlog-format = "{form}"\n'
        for name, form in (("ewe", "json"), ("other", "common"))
    )
    file, shared = tmp_path / "ewe.toml", tmp_path / "shared.log"
    file.write_text(tables.replace("PATH", str(shared)))
    server = start("thread", "--config", str(file))
    for number in (1, 2):
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda number=number: server.log().count("was read again") == number, 20, server.log)
    assert list(open_files(server.pid).values()).count(str(shared)) == 1
    assert get(server) == 200
    with server.connect() as sock:
        sock.sendall(b"GET / HTTP/1.0\r\nHost: other\r\n\r\n")
        read_all(sock)
    first, second = lines(shared, 2)
    assert json.loads(first)["host"] == "ewe" and second.startswith("127.0.0.1 - - [")
    file.write_text(tables.replace("PATH", "/dev/full"))
    for number in (3, 4):
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda number=number: server.log().count("was read again") == number, 20, server.log)
    assert get(server) == 200
    server.wait_for_log("log /dev/full cannot be written")
    server.process.send_signal(signal.SIGUSR2)
    server.wait_for_log(", 1 log lines lost")


def test_a_torn_line_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the part that was written cannot be cut off again, the next line begins on a new line."""
    said: list[str] = []
    monkeypatch.setattr(LogFile, "tell", said.append, raising=False)
    monkeypatch.setattr(os, "ftruncate", lambda *_: os.close(-1))
    log = LogFile(str(tmp_path / "log"), 1)
    log.write("first\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        log.write("second\n")
        log.write("third\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("fourth\n")
    log.write("fifth\n")
    log.report()
    log.close()
    assert (tmp_path / "log").read_text() == "first\nseco\nfourth\nfifth\n"
    assert [text.replace(str(tmp_path), "") for text in said] == [
        "log /log cannot be written: the disk is full; its lines are lost until it can",
        "log /log: 2 lines could not be written",
    ]


def log_daemon(path: Path) -> socket.socket:
    """Return the socket of a log daemon."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))
    listening.settimeout(60)
    return listening


def test_syslog(start: Start, model_or_loop: str, tmp_path: Path) -> None:
    """Each line is a datagram with its priority. No daemon, a new one and a slow one do no harm."""
    path = tmp_path / "log"
    with log_daemon(path) as daemon:
        access, errors = f"syslog:local3@{path}", f"syslog:@{path}"
        options = ("--access-log", access, "--logfile", errors, "--log-format", "%r %s")
        server = start(model_or_loop, *options, constants={"ewe.log_files.REPORT_S": 0.3})
        write_program(server.cgi / "fails", "#!/bin/sh\nexit 1\n")
        assert get(server, b"?first") == 200
        assert re.fullmatch(rb"<158>ewe\[\d+\]: GET /\?first HTTP/1\.1 200", daemon.recv(5000))
        assert get(server, b"cgi-bin/fails") == 502
        found = sorted(daemon.recv(5000) for _ in range(2))
        assert re.fullmatch(rb"<158>ewe\[\d+\]: GET /cgi-bin/fails HTTP/1\.1 502", found[0])
        assert re.fullmatch(rb"<28>ewe\[\d+\]: warning: 127\.0\.0\.1 .* 502, .*", found[1])
        assert get(server, b"?" + b"q" * 6000) == 200
        assert 4096 < len(daemon.recv(50000)) < 4120
    path.unlink()
    assert get(server, b"?lost") == 200
    server.wait_for_log(f"log {access} cannot be written: No such file or directory; its lines are lost")
    with log_daemon(path) as daemon:
        for _ in range(600):  # more than the daemon's queue takes
            with suppress(TimeoutError):
                assert get(server, b"?later") == 200
            if "its reader does not keep up" in server.log():
                break
        assert b"GET /?later" in daemon.recv(5000)
        server.process.send_signal(signal.SIGUSR1)  # nothing is to be opened again
        server.process.send_signal(signal.SIGHUP)
    assert server.stop() == 0
    assert not server.access_file.exists()


def test_a_change_between_syslog_and_a_file(start: Start, model: str, tmp_path: Path) -> None:
    """HUP may change where the lines go, to and fro."""
    path, settings, file = tmp_path / "log", tmp_path / "ewe.toml", tmp_path / "file"
    with log_daemon(path) as daemon:
        options = ("--config", str(settings))
        settings.write_text(f'log-format = "%q"\n[[site]]\naccess-log = "{file}"\n')
        server = start(model, *options)
        assert get(server, b"?file") == 200
        lines(file, 1)
        for count in (1, 2):
            settings.write_text(f'log-format = "%q"\n[[site]]\naccess-log = "syslog:@{path}"\n')
            reload(server, 2 * count - 1)
            assert get(server, b"?daemon") == 200
            assert daemon.recv(5000).endswith(b": ?daemon")
            settings.write_text(f'log-format = "%q"\n[[site]]\naccess-log = "{file}"\n')
            reload(server, 2 * count)
            assert get(server, b"?file") == 200
            lines(file, 1 + count)
    assert "Traceback" not in server.log()


def reload(server: Server, count: int) -> None:
    """Have the server read its configuration for the count-th time, and wait until new connections follow it."""
    before = set(children(server.pid))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.log().count("configuration was read again") >= count, 20, server.log)
    wait_until(lambda: not before & set(children(server.pid)), 20, server.log)


@pytest.mark.starts_processes
@pytest.mark.parametrize("setting", ["--access-log", "--logfile"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("syslog:@/nowhere/log", "no log daemon at /nowhere/log: No such file or directory"),
        ("syslog:nothing", "expected a path, or syslog:[FACILITY][@PATH] such as syslog: or syslog:local3"),
        ("syslog:@relative", "expected a path, or syslog:"),
    ],
)
def test_a_log_daemon_that_is_not_there(tmp_path: Path, setting: str, path: str, said: str) -> None:
    """One line, at the start and from --check-config."""
    (tmp_path / "htdocs").mkdir()
    for more in ((), ("--check-config",)):
        ended = run_command(tmp_path, "-t", "--port", "0", setting, path, *more)
        assert ended.returncode in (1, 2) and ended.stderr.count("\n") == 1, ended.stderr
        assert said in ended.stderr, ended.stderr


@pytest.mark.parametrize("model", ["thread", "asyncio --workers 2"])
def test_priorities_for_the_journal(start: Start, model: str, tmp_path: Path) -> None:
    """If standard error is the journal's, messages begin with their priority, and have no time."""
    (tmp_path / "stderr.0").touch()
    for number, journal in enumerate(("stderr.0", "htdocs")):
        status = (tmp_path / journal).stat()
        server = start(model, env={"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        write_program(server.cgi / "fails", "#!/bin/sh\nprintf '<0>oops\\n' >&2; exit 1\n")
        assert get(server, b"cgi-bin/fails") == 502
        text = server.wait_for_log(": 502, ")
        if number == 0:
            assert re.search(r"^<4>warning: 127\.0\.0\.1 .*: 502, ", text, re.MULTILINE), text
            assert not re.search(r"^<[^4]>", text, re.MULTILINE)
        else:
            assert re.search(r"^\d{4}-\d\d-\d\d .* warning: .*: 502, ", text, re.MULTILINE), text


def test_lines_do_not_mix(server: Server) -> None:
    """Requests from 8 threads: a line for each, and each whole."""
    each = examples(25)
    failures: list[object] = []

    def client(number: int) -> None:
        for count in range(each):
            try:
                assert (
                    get(server, b"?%d-%d" % (number, count), b"User-Agent: " + b"x" * 1500 + b"\r\n") == 200
                )
            except (AssertionError, OSError) as reason:
                failures.append(reason)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    found = lines(server.access_file, 8 * each)
    assert all(COMBINED.fullmatch(line) for line in found)
    asked = {re.findall(r"GET /\?(\S+)", line)[0] for line in found}
    assert asked == {f"{number}-{count}" for number in range(8) for count in range(each)}


def test_clients_that_leave_before_their_answer(start: Start, model_or_loop: str) -> None:
    """One resets its connection, one closes it. Their programs have run: there is a line for each."""
    server = start(model_or_loop)
    started = {who: server.cgi.parent / f"started-{who.decode()}" for who in (b"resets", b"closes")}
    text = f"#!/bin/sh\ntouch {server.cgi.parent}/started-$QUERY_STRING\nexec sleep 60\n"
    write_program(server.cgi / "slow", text)
    clients = {who: server.connect() for who in started}
    for who, sock in clients.items():
        sock.sendall(GET % (b"cgi-bin/slow?" + who, b""))
    # Where one is served at a time, the second program starts after the first.
    for who, sock in clients.items():
        wait_until(started[who].exists, 20, server.log)
        if who == b"resets":
            reset(sock)
        sock.close()
    found = lines(server.access_file, 2)
    for who in ("resets", "closes"):
        [line] = [line for line in found if who in line]
        assert line.startswith("127.0.0.1 ") and f'"GET /cgi-bin/slow?{who} HTTP/1.1" 499 - ' in line


def leave_within_body(sock: socket.socket) -> None:
    """Read the head of a long response and some of its body, then reset the connection."""
    count = 0
    while count < 5000:
        count += len(sock.recv(5000))
    reset(sock)


def test_downloads_that_are_cut_short(start: Start, variant: str) -> None:
    """The log has the bytes that were sent, and tells them from a whole download; the error log says why."""
    server = start(variant, "--log-format", "%U %s %B %X", "--write-timeout", "0.5s", "--min-rate", "0")
    size = 1 << 28
    with (server.root / "big").open("wb") as file:
        file.truncate(size)
    write_program(server.cgi / "short", "#!/bin/sh\nprintf 'Content-Length: 100\\n\\nonly this'\n")
    with server.connect() as sock:
        sock.sendall(GET % (b"", b""))
        assert read_response(sock)[0] == 200
    with server.connect() as sock:
        sock.sendall(GET % (b"big?leaves", b""))
        leave_within_body(sock)
    lines(server.access_file, 2)
    with server.connect() as sock:
        sock.sendall(GET % (b"big?does-not-read", b""))
        lines(server.access_file, 3)
    with server.connect() as sock:
        sock.sendall(GET % (b"cgi-bin/short", b""))
        read_all(sock)
    assert get(server) == 200
    first, left, slow, short, last = (line.split(" ") for line in lines(server.access_file, 5))
    assert (first[1:], last[1:]) == (["200", "41", "+"], ["200", "41", "-"])
    assert short == ["/cgi-bin/short", "200", "9", "X"]
    for fields, reason in ((left, "the client has left"), (slow, "the client reads too slowly")):
        path, status, sent, ending = fields
        assert (path, status, ending) == ("/big", "200", "X") and 0 < int(sent) < size
        assert f": 200, aborted after {sent} bytes: {reason}" in server.log()


@pytest.mark.parametrize("form", ["short", "json"])
def test_a_cut_download_in_other_formats(start: Start, form: str) -> None:
    server = start("thread", "--log-format", form)
    with (server.root / "big").open("wb") as file:
        file.truncate(1 << 28)
    with server.connect() as sock:
        sock.sendall(GET % (b"big", b""))
        leave_within_body(sock)
    # The thread of the next client may be faster than the one that sees the reset.
    lines(server.access_file, 1)
    assert get(server) == 200
    cut, whole = lines(server.access_file, 2)
    if form == "short":
        assert cut.endswith("GET /big  (cut short)") and whole.endswith("GET /")
    else:
        assert json.loads(cut)["complete"] is False and 0 < json.loads(cut)["bytes"] < 1 << 28
        assert json.loads(whole)["complete"] is True


def test_a_client_that_has_left_when_it_is_accepted(start: Start, model_or_loop: str) -> None:
    """Its address is known, or its request is not served."""
    server = start(model_or_loop)
    serving = [server.pid, *children(server.pid)]
    for pid in serving:
        os.kill(pid, signal.SIGSTOP)
    for _ in range(5):
        with server.connect() as sock:
            sock.sendall(GET % (b"gone", b""))
            reset(sock)
    for pid in serving:
        os.kill(pid, signal.SIGCONT)
    assert get(server) == 200
    wait_until(lambda: '"GET / HTTP/1.1" 200' in server.access_file.read_text(), 20)
    assert all(line.startswith("127.0.0.1 ") for line in server.access_file.read_text().splitlines())


def test_levels_of_the_error_log(start: Start, model: str, tmp_path: Path) -> None:
    """Each level tells what the ones above it tell, and more."""
    told = {}
    for level in ("error", "warning", "2", "debug"):
        errors = tmp_path / f"error.{level}"
        server = start(model, "--loglevel", level, "--logfile", str(errors))
        write_program(server.cgi / "fails", "#!/bin/sh\nprintf 'out \\033 of wool\\n' >&2\nexit 1\n")
        assert get(server, b"cgi-bin/fails") == 502
        assert get(server, b"missing") == 404
        with server.connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a b\x01\r\n\r\n")
            assert read_response(sock)[0] == 400
        assert server.stop() == 0
        assert len(server.log().splitlines()) == 1  # the banner alone: all else is in the file
        told[level] = errors.read_text()
        assert re.fullmatch(
            r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[\d+\] (error|warning|info|debug): [ -~]+\n)*", told[level]
        )
    assert told["error"] == ""
    assert "out \\x1b of wool" in told["warning"] and "502, /cgi-bin/fails: it wrote" in told["warning"]
    assert ": 400, " not in told["warning"] and ": 404, " not in told["warning"]
    assert (
        "502, " in told["2"] and "400, a field line is malformed" in told["2"] and ": 404, " not in told["2"]
    )
    assert "502, " in told["debug"] and "404, " in told["debug"]


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--log-format", "%h %y"), "%y"),
        (("--log-format", "%{nothing}n"), "%{nothing}n"),
        (("--log-format", "%i"), "%i"),
        (("--log-format", "100%"), "%"),
        (("--log-format", "%{Host"), "%"),
        (("--access-log", "no/such/directory/access.log"), "no/such/directory/access.log"),
        (("--logfile", "."), "."),
        (("--loglevel", "loud"), "loud"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    """One line that names the fault, at once."""
    (tmp_path / "htdocs").mkdir()
    ended = run_command(tmp_path, "-t", "--port", "0", *options)
    assert ended.returncode in (1, 2)
    assert ended.stdout == "" and ended.stderr.count("\n") == 1 and says in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


def test_off(start: Start) -> None:
    server = start("thread", "--access-log", "off", "--logfile", "off")
    write_program(server.cgi / "fails", "#!/bin/sh\necho oops >&2\n")
    assert get(server) == 200 and get(server, b"cgi-bin/fails") == 502
    assert server.stop() == 0
    assert not server.access_file.exists() and len(server.log().splitlines()) == 1
