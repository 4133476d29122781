"""The X-Switch main module: requests find their engines, and every end is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.proc import alive, children_of, descendants, is_gone, resident_kilobytes
from support.server import ROOT, run_command, wait_until
from support.xswitch_client import HEAD, PYTHON_HELLO, Connection, XSwitch, xswitch

from ewe.gateway.records import FastCGIError, Requester
from ewe.xswitch.public import is_public
from ewe.xswitch.settings import load
from ewe.xswitch.switch.context import STALLED_SECONDS
from ewe.xswitch.switch.engine import Engine, EngineState
from ewe.xswitch.switch.protocol_engine import ProtocolEngine
from ewe.xswitch.switch.shared_engine import EngineConnection, SharedEngine
from ewe.xswitch.switch.web_server_connection import LINGER_SECONDS
from ewe.xswitch.user_limits import UserLimits

pytestmark = pytest.mark.starts_processes


SLEEP = f"""import os, sys, time
time.sleep(float(os.environ["QUERY_STRING"].removeprefix("t=")))
print("{HEAD}\\nslept", os.getpid())
"""


@pytest.fixture(scope="module")
def running() -> Iterator[XSwitch]:
    """One X-Switch for the tests that leave it as it was."""
    with xswitch(
        "max-engines-per-user = 3\nqueue-timeout = '20s'\ntime-limit = '15s'\nabandoned = '0.3s'"
    ) as started:
        yield started


# Answers


@pytest.mark.needs("php-cgi")
def test_python_perl_and_php_are_answered(running: XSwitch) -> None:
    python = running.script("a.py", PYTHON_HELLO)
    perl = running.script("a.pl", f'print "{HEAD}\\nhello\\n";')
    php = running.script("a.php", "<?php header('Content-Type: text/plain'); echo 'hello', PHP_EOL;")
    for _ in range(2):
        for script in (python, perl, php):
            reply = running.ask(script)
            assert (reply.status, reply.text) == (200, "hello\n"), running.log()
    assert {engine["language"] for engine in running.engines()} == {"python", "perl", "php"}


def test_one_connection_carries_many_requests(running: XSwitch) -> None:
    script = running.script(
        "echo.py",
        f"import sys\nprint('{HEAD}')\nsys.stdout.flush()\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
    )
    with running.connect() as connection:
        for size in (0, 1, 70_000, 3_000_000):
            body = os.urandom(size)
            reply = connection.ask(script, body)
            assert reply.status == 200 and reply.body == body


FORGED = """import os, sys, time
for piece in {pieces!r}:
    sys.stdout.flush()
    os.write(1, piece)
    time.sleep(0.02)
"""


def test_marks_of_x_switch_are_its_own(running: XSwitch) -> None:
    """No script can write one: ewe would take its answer for X-Switch's, and run it again without limits."""
    for number, pieces in enumerate((
        [b"X-Switch: no-engine\nContent-Type: a/b\n\nX-Switch: body"],
        [b"Content-Type: a/b\r\nx-sWITCH : refused\r\n\r\nX-Switch: body"],
        [b"Content-Type: a/b\nX-Sw", b"itch: refused\n", b"\nX-Swi", b"tch: body"],
        [b"X-Switch:no-engine\nX-Switch:\tno-engine\nContent-Type: a/b\n\r", b"\nX-Switch: body"],
    )):  # fmt: skip
        reply = running.ask(running.script(f"forge{number}.py", FORGED.format(pieces=pieces)))
        assert (reply.status, reply.body) == (200, b"X-Switch: body"), pieces
        assert {name.strip() for name in reply.fields} == {"content-type"}
    # An answer without the end of a head goes out as it is, unless it is long: then a field could follow it
    assert running.ask(running.script("none.py", FORGED.format(pieces=[b"no", b" head"]))).fields == {
        "no head": ""
    }
    for number, head in enumerate((b"X: " + b"x" * 200_000, b"X: y\n" + b"X-Switch: z\n" * 6000)):
        text = FORGED.format(pieces=[head, b"\nX-Switch: no-engine\nContent-Type: a/b\n\n"])
        reply = running.ask(running.script(f"long-head{number}.py", text))
        assert (reply.status, reply.fields["x-switch"]) == (502, "refused")
        running.wait_for_log(f"long-head{number}.py: 502, its head has more than 65536 bytes")


def test_the_end_of_an_input_may_come_after_the_answer(running: XSwitch) -> None:
    """Apache's may: a connection that closes then would be reset, and the answer lost."""
    script = running.script("quick.py", PYTHON_HELLO)
    with running.connect() as connection:
        connection.send(script, body=None, keep=False)
        assert connection.read().text == "hello\n"
        for _ in range(3):
            connection.sock.sendall(connection.requester.input(b"late"))
            time.sleep(0.05)
        connection.sock.sendall(connection.requester.input(b""))
        assert connection.sock.recv(1) == b""


def test_the_last_of_an_answer_waits_for_a_web_server_that_reads_slowly(tmp_path: Path) -> None:
    """Half of them say that they will send no more, and read all the same: their answer is there already."""
    sizes = range(200_000, 300_000, 10_000)  # of some, the last part is still with the main module
    with xswitch(listen=f"unix:{tmp_path}/socket") as running:
        connections: list[Connection] = []
        for size in sizes:
            code = f'import os\nprint("{HEAD}", flush=True)\nos.write(1, b"x" * {size})\n'
            script = running.script(f"long{size}.py", code)
            for _ in range(2):
                connections.append(running.connect())
                connections[-1].send(script, keep=False)
        time.sleep(LINGER_SECONDS + 0.5)
        for connection in connections[::2]:
            connection.sock.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        got = [len(connection.read().body) for connection in connections]
        for connection in connections:
            connection.sock.close()
    assert got == [size for size in sizes for _ in range(2)]


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_leaves_no_answer_half_written(tmp_path: Path, keep: bool) -> None:
    with xswitch(listen=f"unix:{tmp_path}/socket") as running:
        connections: list[Connection] = []
        for size in (250_000, 330_000):
            code = f'import os\nprint("{HEAD}", flush=True)\nos.write(1, b"x" * {size})\n'
            connections.append(running.connect())
            connections[-1].send(running.script(f"long{size}.py", code), keep=keep)
        # The engines are done. The answers that no socket has room for wait in the main process.
        wait_until(lambda: sum(engine["requests"] for engine in running.engines()) == 2, 20)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert [len(connection.read().body) for connection in connections] == [250_000, 330_000]
        for connection in connections:
            connection.sock.close()


def test_an_ewe_that_only_root_may_enter_has_engines_all_the_same() -> None:
    """An engine reads its own program as its user: of one that lies below /root, say, there is a copy."""
    with xswitch(copy_mode=0o700) as running:
        for name, text in (("a.py", PYTHON_HELLO), ("a.pl", f'print "{HEAD}\\nhello\\n";')):
            assert running.ask(running.script(name, text)).text == "hello\n", running.log()
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        assert running.ask(running.script("b.pl", f'print "{HEAD}\\nhello\\n";')).text == "hello\n"


def test_a_link_to_a_directory_that_only_root_may_enter_is_not_public() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        engines = Path(name, "private", "engines")
        engines.mkdir(parents=True)
        link = Path(name, "link")
        link.symlink_to(engines)
        assert is_public(str(link)) == is_public(str(engines))
        engines.parent.chmod(0o700)
        assert not is_public(str(link))


@pytest.mark.needs("php-cgi")
def test_php_reads_forms_and_uploads(running: XSwitch) -> None:
    script = running.script(
        "form.php",
        "<?php echo $_POST['a'] ?? '', $_GET['b'] ?? '', ' ', @md5_file($_FILES['f']['tmp_name'] ?? '');",
    )
    kind = "application/x-www-form-urlencoded"
    assert running.ask(script, b"a=posted", CONTENT_TYPE=kind, QUERY_STRING="b=got").text == "postedgot "
    content = os.urandom(300_000)
    body = (
        b'--B\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + content + b"\r\n--B--\r\n"
    )
    import hashlib

    reply = running.ask(script, body, CONTENT_TYPE="multipart/form-data; boundary=B")
    assert reply.text.strip() == hashlib.md5(content).hexdigest()


def test_the_environment_is_the_requests_and_clean(running: XSwitch) -> None:
    script = running.script(
        "environment.py",
        f"import json, os, sys\nprint('{HEAD}')\nprint(json.dumps([dict(os.environ), sys.argv]))",
    )
    reply = running.ask(
        script,
        QUERY_STRING="one+two%2b",
        HTTP_PROXY="x",
        LD_PRELOAD="x",
        PYTHONPATH="x",
        HTTP_ACCEPT="a b\tc%d",
    )
    environment, words = json.loads(reply.body)
    assert words == [str(script), "one", "two+"]
    assert environment["HTTP_ACCEPT"] == "a b\tc%d" and environment["SCRIPT_FILENAME"] == str(script)
    assert not {"HTTP_PROXY", "LD_PRELOAD", "PYTHONPATH"} & environment.keys()
    assert {"PATH", "HOME", "USER"} <= environment.keys()


def test_what_follows_the_scripts_name_is_path_info(running: XSwitch) -> None:
    script = running.script(
        "info.py",
        f"import os\nprint('{HEAD}')\nprint(os.environ.get('PATH_INFO'), os.environ['SCRIPT_NAME'])",
    )
    reply = running.ask(f"{script}/more/of it", SCRIPT_NAME="/info.py/more/of it")
    assert reply.text == "/more/of it /info.py\n"
    # As Apache sends it, for a handler fcgi://localhost and for fcgi://localhost/
    for file in (f"proxy:fcgi://localhost{script}", f"proxy:fcgi://localhost/{script}", f"/{script}"):
        assert running.ask(file, SCRIPT_NAME="/info.py").text == "None /info.py\n"


def test_the_engine_is_found_by_directory_extension_and_first_line(tmp_path: Path) -> None:
    with xswitch() as running:
        (running.directory / "site" / "old").mkdir()
        config = running.directory / "xswitch.toml"
        config.write_text(config.read_text() + f'\n[directories]\n"{running.site}/old" = "perl"\n')
        running.members()
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        perl = f'print "{HEAD}\\nperl\\n";'
        assert running.ask(running.script("old/x.py", perl)).text == "perl\n"
        assert running.ask(running.script("x.cgi", f"#!/usr/bin/perl -w\n{perl}")).text == "perl\n"
        assert (
            running.ask(running.script("y.cgi", f"#!/usr/bin/env python3\n{PYTHON_HELLO}")).text == "hello\n"
        )
        assert running.ask(running.script("z.txt", perl), XSWITCH_ENGINE="perl").text == "perl\n"
        assert running.ask(running.script("z.txt", perl)).status == 500
        running.wait_for_log("no engine for it")


@pytest.fixture(scope="module")
def cgi_directory() -> Iterator[XSwitch]:
    """An X-Switch whose site has a directory of CGI programs, told of it while it runs."""
    with xswitch() as running:
        config = running.directory / "xswitch.toml"
        config.write_text(config.read_text() + f'\n[directories]\n"{running.site}/cgi" = "cgi"\n')
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        yield running


LOOK_AROUND = f"""#!/usr/bin/env -S python3 -X utf8
import os, signal, sys
print("{HEAD}")
print(os.getpid(), "json" in sys.modules, sorted(os.listdir("/proc/self/fd"), key=int)[:4], sys.stdin.read())
print(os.getcwd() == os.path.dirname(__file__), os.environ["QUERY_STRING"], sys._xoptions)
print(os.environ.get("XSWITCH_ISOLATION"), oct(os.umask(0)))
sys.exit(3)
"""


def test_a_directory_of_cgi_has_a_new_process_for_each_request(cgi_directory: XSwitch) -> None:
    """The program that the script's first line names runs in a new process, without an engine."""
    script = cgi_directory.script("cgi/look.py", LOOK_AROUND)
    pids = set()
    for body in (b"", b"some", b"x" * 200_000):
        reply = cgi_directory.ask(script, body, QUERY_STRING="one+two")
        (pid, *said), *lines = map(str.split, reply.text.splitlines())
        pids.add(pid)
        assert reply.status == 200
        assert " ".join(said) == f"False ['0', '1', '2', '3'] {body.decode()}".strip()
        assert lines == [["True", "one+two", "{'utf8':", "True}"], ["None", "0o22"]]
    assert len(pids) == 3 and len(cgi_directory.engines()) == 1


def test_a_program_of_a_cgi_directory_ignores_no_signal(cgi_directory: XSwitch) -> None:
    """The first line says what runs it, whatever the file's name."""
    text = f"#!/bin/sh\nprintf '{HEAD}\\n'; grep SigIgn /proc/$$/status\n"
    ignored = int(cgi_directory.ask(cgi_directory.script("cgi/shell.pl", text)).text.split()[1], 16)
    assert [number for number in signal.valid_signals() if ignored >> (number - 1) & 1] == []


@pytest.mark.parametrize(
    ("name", "text", "mode", "said"),
    [
        ("mode.py", "#!/bin/sh", 0o644, "Permission denied: is it executable"),
        ("none.py", "#!/no/such", 0o755, "No such file or directory: is its interpreter there"),
        ("text.py", "words", 0o755, "Exec format error: its first line must be"),
    ],
    ids=["mode", "interpreter", "text"],
)
def test_a_program_of_a_cgi_directory_that_cannot_start(
    cgi_directory: XSwitch, name: str, text: str, mode: int, said: str
) -> None:
    assert cgi_directory.ask(cgi_directory.script(f"cgi/{name}", text, mode)).status == 502
    cgi_directory.wait_for_log(f"cgi/{name}: {said}")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nonblocking.py", "#!/usr/bin/env python3\nimport os\nos.set_blocking(1, False)\nprint()", b""),
        ("large.sh", f"#!/bin/sh\nprintf '{HEAD}\\n'; head -c 4000000 /dev/zero\n", bytes(4_000_000)),
        ("late.sh", f"#!/bin/sh\nprintf '{HEAD}\\n'; (sleep 0.2; echo late) &\n", b"late\n"),
    ],
    ids=["nonblocking", "large", "late"],
)
def test_the_output_of_a_program_of_a_cgi_directory(
    cgi_directory: XSwitch, name: str, text: str, expected: bytes
) -> None:
    assert cgi_directory.ask(cgi_directory.script(f"cgi/{name}", text)).body == expected


def test_a_program_of_a_cgi_directory_that_is_killed(cgi_directory: XSwitch) -> None:
    """Its response is broken off, and the next program runs."""
    bad = cgi_directory.script("cgi/bad.sh", f"#!/bin/sh\nprintf '{HEAD}\\nhalf'; kill -9 $$\n")
    assert cgi_directory.ask(bad).status == 0
    script = cgi_directory.script("cgi/next.sh", f"#!/bin/sh\nprintf '{HEAD}\\nnext'\n")
    assert cgi_directory.ask(script).status == 200


def test_an_edit_counts_at_the_next_request(running: XSwitch) -> None:
    for text in ("one", "two", "six"):
        script = running.script("edit.py", PYTHON_HELLO.replace("hello", text))
        assert running.ask(script).text == text + "\n"


# Refused requests


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("absent.py", 404, "No such file"),
        ("", 404, "not a regular file"),
        ("../xswitch.toml", 403, "not inside"),
    ],
)
def test_a_script_that_may_not_run_is_refused_without_details(
    running: XSwitch, name: str, status: int, told: str
) -> None:
    path = running.site / name
    reply = running.ask(path)
    assert reply.status == status
    assert reply.text.startswith(str(status)) and str(running.site) not in reply.text
    if os.geteuid() == 0 and name == "../xswitch.toml":
        told = "its owner"
    running.wait_for_log(told)


def test_no_script_name_and_a_nul_are_refused(running: XSwitch) -> None:
    assert running.ask("").status == 400
    script = running.script("nul.py", PYTHON_HELLO)
    assert running.ask(script, HTTP_X="a\0b").status == 431
    running.wait_for_log("a NUL in")


def test_a_script_that_others_may_write_is_refused(running: XSwitch) -> None:
    script = running.script("loose.py", PYTHON_HELLO, 0o777)
    assert running.ask(script).status == 403
    running.wait_for_log("the script is writable by others (mode 0777)")


def test_a_link_that_leads_out_is_refused(running: XSwitch) -> None:
    outside = running.directory / "outside.py"
    outside.write_text(PYTHON_HELLO)
    (running.site / "link.py").symlink_to(outside)
    assert running.ask(running.site / "link.py").status == 403


def test_who_does_not_speak_fastcgi_is_closed(running: XSwitch) -> None:
    with running.connect() as connection:
        connection.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.sock.recv(100) == b""
    running.wait_for_log("not FastCGI")


# Ends


def test_standard_error_is_logged_under_user_and_script(running: XSwitch) -> None:
    script = running.script("errors.py", f"import sys\nprint('oh dear', file=sys.stderr)\nprint('{HEAD}')\n")
    user = "nobody" if os.geteuid() == 0 else os.environ.get("USER", "")
    running.ask(script)
    running.wait_for_log(f"{user} {script}: oh dear")
    unended = running.script(
        "unended.py", f"import sys\nprint('no end', end='', file=sys.stderr)\nprint('{HEAD}\\n')\n"
    )
    running.ask(unended)
    running.ask(script)
    running.wait_for_log(f"{user} {unended}: no end\n")


def test_standard_error_has_an_end() -> None:
    """A thousand lines of a request go to the log, and so much of a user in a minute; the rest is counted."""
    most = 300_000
    with xswitch(f"max-errors = '{most}'") as running:
        text = f"""import os, sys
for _ in range(int(os.environ["HTTP_TIMES"])): os.write(2, b"\\n" * 65536)
os.write(2, b"no end of line")
print("{HEAD}")
"""
        script = running.script("newlines.py", text)
        assert running.ask(script, HTTP_TIMES="200").status == 200
        assert running.ask(running.script("fine.py", PYTHON_HELLO)).status == 200
        running.wait_for_log(f"{script}: {200 * 65536 - 1000} more lines of standard error")
        assert running.log().count(f"{script}: \n") == 1000
        long = running.script(
            "long.py", f"import os\nos.write(2, (b'y' * 999 + b'\\n') * 900)\nprint('{HEAD}')"
        )
        for _ in range(3):
            assert running.ask(long).status == 200
        running.wait_for_log(f"standard error: more than {most} characters in a minute")
        said = running.log()
        # A long line takes a thousand bytes and its head; where a minute has just begun, there was room twice.
        assert 50 < said.count("y" * 900) < 2 * most / 1000
        assert said.count(f"more than {most}") <= 2


def test_a_script_that_says_nothing_is_a_502(running: XSwitch) -> None:
    assert running.ask(running.script("silent.py", "import sys; sys.exit(3)")).status == 502
    running.wait_for_log("it wrote nothing (exit status 3)")
    assert running.ask(running.script("broken.py", "syntax error here")).status == 502
    running.wait_for_log("SyntaxError")


def test_an_engine_that_dies_is_retried_once_where_that_is_safe(running: XSwitch) -> None:
    script = running.script("die.py", f"""import os, sys
open({str(running.directory / "site" / "count")!r}, "a").write("x")
os.kill(os.getpid(), 9)
""")  # fmt: skip
    count = running.site / "count"
    count.write_text("")
    count.chmod(0o666)
    assert running.ask(script).status == 502
    assert count.read_text() == "xx"
    count.write_text("")
    assert running.ask(script, b"body").status == 502
    assert count.read_text() == "x"
    running.wait_for_log("ended by signal 9; trying once more")
    dies_once = (
        f"import os\nif not os.path.getsize({str(count)!r}):\n    open({str(count)!r}, 'w').write('x')\n"
    )
    once = running.script("once.py", f"{dies_once}    os.kill(os.getpid(), 9)\n{PYTHON_HELLO}")
    count.write_text("")
    assert running.ask(once).text == "hello\n"


def test_an_answer_that_breaks_off_does_not_pass_for_whole(running: XSwitch) -> None:
    script = running.script(
        "half.py",
        f"import os, time\nprint('{HEAD}\\nhalf', flush=True)\ntime.sleep(0.2)\nos.kill(os.getpid(), 9)\n",
    )
    reply = running.ask(script)
    assert (reply.status, reply.body) == (0, b"half\n")


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "os.execv('/bin/echo', ['echo', 'said'])",
        "subprocess.Popen(['sh', '-c', 'sleep 0.1; echo said'])",
    ],
)
def test_a_script_that_ends_its_process_has_answered(running: XSwitch, end: str) -> None:
    script = running.script(
        "ends.py",
        f"import os, subprocess\nprint('{HEAD}\\n' + ('said' if '_exit' in {end!r} else ''), flush=True)\n{end}\n",
    )
    assert running.ask(script).body.split() == [b"said"]
    assert running.ask(script, b"x").body.split() == [b"said"]


def test_what_a_script_leaves_running_is_ended(running: XSwitch) -> None:
    script = running.script("leave.py", f"""import os, subprocess
left = subprocess.Popen(["sleep", "77"], start_new_session=True)
print("{HEAD}\\n%d" % left.pid)
""")  # fmt: skip
    pid = int(running.ask(script).text)
    wait_until(lambda: not alive({pid}), 20)


@pytest.mark.needs("php-cgi")
def test_php_runs_the_script_that_was_checked_and_no_other(running: XSwitch) -> None:
    """Apache's rewriting to index.php/… sends these; php-cgi would believe PATH_TRANSLATED."""
    script = running.script("front.php", "<?php echo 'front ', $_SERVER['PATH_INFO'];")
    upload = running.script("upload.txt", "<?php echo 'not a page';")
    for name, path in (("/upload.txt", str(upload)), ("/none", "/none")):
        params = {"PATH_INFO": name, "PATH_TRANSLATED": path, "REDIRECT_URL": name}
        assert running.ask(script, **params).text == f"front {name}"


@pytest.mark.needs("php-cgi")
def test_a_php_engine_that_dies_while_a_program_of_its_holds_the_connection(running: XSwitch) -> None:
    script = running.script(
        "dies.php", "<?php exec('sleep 60 > /dev/null 2>&1 &'); posix_kill(getmypid(), SIGKILL);"
    )
    assert running.ask(script, b"x").status == 502  # the connection itself gives up after 20 s
    running.wait_for_log("dies.php: 502, ended by signal 9")


@pytest.mark.needs("php-cgi")
def test_what_php_starts_in_the_background_runs_on_and_is_reaped(running: XSwitch) -> None:
    """Until its engine ends; php-cgi itself would keep each as a zombie, until its user has no process left."""
    script = running.script(
        "starts.php",
        "<?php exec('true > /dev/null 2>&1 &'); $left = exec('sleep 66 > /dev/null 2>&1 & echo $!');"
        "echo getmypid(), ' ', $left;",
    )
    pids = [tuple(map(int, running.ask(script).text.split())) for _ in range(5)]
    engine = pids[0][0]
    left = {pid for _, pid in pids}
    assert {each for each, _ in pids} == {engine} and alive(left) == left
    wait_until(lambda: not children_of(engine), 20, lambda: str(children_of(engine)))
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not alive(left), 20)


def test_what_an_engine_has_in_other_sessions_ends_with_it() -> None:
    """Also if the engine is killed, and its processes become suexecme's children a moment later.

    The client leaves once the script has written the pid; no time limit ends the script before that.
    """
    with xswitch("time-limit = '60s'\nabandoned = '0.2s'") as running:
        file = running.site / "pid"
        file.touch()
        file.chmod(0o666)
        script = running.script(
            "spin.py",
            "import subprocess\nleft = subprocess.Popen(['sleep', '55'], start_new_session=True)\n"
            f"open({str(file)!r}, 'w').write(str(left.pid))\nwhile True: pass\n",
        )
        for _ in range(3):
            file.write_text("")
            with running.connect() as client:
                client.send(script)
                wait_until(file.read_text, 20, running.log)
            pid = int(file.read_text())
            wait_until(partial(is_gone, pid), 20, running.log)


@pytest.mark.needs("php-cgi")
def test_time_limits() -> None:
    with xswitch("time-limit = '2s'\nmax-engines-per-user = 3") as running:
        late = running.script("late.py", f"import time\nprint('{HEAD}\\nfirst', flush=True)\ntime.sleep(60)")
        began = time.monotonic()
        waits = [
            running.asking(late),
            running.asking(running.script("spin.py", "while True: pass")),
            running.asking(running.script("spin.php", "<?php while (true) {}")),
        ]
        assert [wait().status for wait in waits] == [0, 504, 504], running.log()
        assert time.monotonic() - began >= 2
        assert running.ask(running.script("ok.py", PYTHON_HELLO)).text == "hello\n"
        running.wait_for_log("spin.py: 504, ended after 2 s (time-limit)")
        assert running.status()["counters"]["timed_out"] == 3


def test_an_engine_ends_some_time_after_its_client_has_left() -> None:
    """That is not its time limit, and is not logged as that."""
    with xswitch("abandoned = '0.2s'") as running:
        client = running.connect()
        client.send(running.script("spin.py", "while True: pass"))
        wait_until(lambda: [engine["state"] for engine in running.engines()] == ["busy"], 20)
        client.sock.close()
        running.wait_for_log("spin.py: its client left, and it was ended (abandoned)")
        wait_until(lambda: not running.engines(), 20)
        assert "time-limit" not in running.log()
        assert "timed_out" not in running.status()["counters"]


def test_a_client_that_takes_nothing_has_a_limit_too() -> None:
    engine = ProtocolEngine.__new__(ProtocolEngine)
    vars(engine).update(loop=Mock(), data=None, state=EngineState.READING, deadline=time.monotonic() + 5)
    engine.pause_output()
    assert STALLED_SECONDS - 1 < engine.deadline - time.monotonic() <= STALLED_SECONDS
    engine.resume_output()
    assert 4 < engine.deadline - time.monotonic() <= 5


@pytest.mark.parametrize("kind", [ProtocolEngine, EngineConnection])
def test_the_log_says_whose_time_was_over(kind: type[Engine]) -> None:
    """The script's, that of a client within its body, or that of a web server that does not read."""
    engine = kind.__new__(kind)
    vars(engine).update(
        loop=Mock(),
        data=None,
        state=EngineState.READING,
        exchange=Mock(),
        time_limit_s=5.0,
        shared_engine=Mock(),
    )
    script, body, response = "ended after 5 s (time-limit)", "sent no more of the body", "did not take the"
    for act, cause in (
        (lambda: engine.body_received(10), body),
        (engine.pause_body, script),  # the engine does not read the bytes that have come
        (engine.resume_body, body),
        (engine.pause_output, response),
        (engine.resume_output, body),
        (engine.pause_output, response),
        (lambda: engine.body_received(0), response),
        (engine.resume_output, script),
    ):
        act()
        assert cause in engine.expiry_cause()
        seconds = 5 if cause == script else STALLED_SECONDS
        assert seconds - 1 < engine.deadline - time.monotonic() <= seconds


@pytest.mark.parametrize("state", [EngineState.READING, EngineState.PAUSED])
def test_the_cause_is_told_that_held_when_the_deadline_passed(state: EngineState) -> None:
    """Closing an engine changes its state; one of several requests has timed out, and the others have not."""
    late, other = Mock(), Mock()
    shared = SharedEngine.__new__(SharedEngine)
    vars(shared).update(close=Mock(), connections=set())
    for exchange, deadline in ((late, time.monotonic() - 1), (other, time.monotonic() + 9)):
        connection = EngineConnection.__new__(EngineConnection)
        vars(connection).update(
            exchange=exchange,
            state=state,
            awaits_body=True,
            deadline=deadline,
            time_limit_s=5.0,
        )
        shared.connections.add(connection)
    shared.expire()
    (cause,) = late.timed_out.call_args.args
    assert ("body" in cause) == (state is EngineState.READING) and "300 s" in cause
    assert other.engine_failed.called and not other.timed_out.called


def test_a_body_that_stops_coming_is_not_the_scripts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, context = Mock(body_bytes_left=7, limits=UserLimits(time_limit=5.0)), Mock()
    ours, its = socket.socketpair()
    control, its_control = socket.socketpair()
    with its, its_control:
        engine = ProtocolEngine(context, ("me", "python"), ours, control, -1)
        monkeypatch.setattr(engine, "send_request", Mock())
        engine.assign(exchange)
        engine.expire()
    exchange.timed_out.assert_called_once_with("the web server sent no more of the body for 300 s")
    assert engine.state is EngineState.CLOSED


def test_a_client_that_reads_slowly_does_not_use_up_the_time_limit() -> None:
    with xswitch("time-limit = '3s'\nspool = '0'") as running, running.connect() as connection:
        connection.send(
            running.script("large.py", f"print('{HEAD}')\nfor _ in range(60): print('x' * 100_000)")
        )
        time.sleep(4)
        assert len(connection.read().body) == 60 * 100_001


@pytest.mark.needs("php-cgi")
def test_a_client_that_sends_slowly_does_not_either() -> None:
    """Behind a web server that hands a body on as it comes."""
    python = f"import sys\nprint('{HEAD}')\nprint(len(sys.stdin.read()), end='')"
    php = "<?php echo strlen(file_get_contents('php://input'));"
    with xswitch("time-limit = '4s'") as running, running.connect() as one, running.connect() as other:
        one.send(running.script("length.py", python), None, CONTENT_LENGTH="600000")
        other.send(running.script("length.php", php), None, CONTENT_LENGTH="600000")
        for _ in range(6):
            time.sleep(0.8)
            for connection in (one, other):
                connection.sock.sendall(connection.requester.input(b"x" * 100_000))
        for connection in (one, other):
            connection.sock.sendall(connection.requester.input(b""))
            assert connection.read().text == "600000", running.log()


@pytest.mark.needs("php-cgi")
def test_what_a_script_takes_after_its_body_is_counted() -> None:
    with xswitch("time-limit = '2s'") as running:
        spins = running.script("spin.php", "<?php echo 'x'; while (true) {}")
        with running.connect() as connection:
            connection.send(spins, None, CONTENT_LENGTH="60")
            # The end comes with the answer, as Apache's
            connection.sock.sendall(connection.requester.input(b"x" * 60))
            sleeps = running.script("sleep.py", "import time\nwhile True: time.sleep(1)")
            assert running.ask(sleeps, b"x" * 3_000_000).status == 504
            assert connection.read().status in (0, 504)  # the connection itself gives up after 20 s


def test_a_client_that_leaves_frees_the_engine(running: XSwitch) -> None:
    script = running.script("sleep.py", SLEEP)
    for _ in range(3):
        with running.connect() as connection:
            connection.send(script, QUERY_STRING="t=70")
            wait_until(lambda: any(engine["state"] == "busy" for engine in running.engines()), 20)
    wait_until(lambda: not any(engine["state"] == "busy" for engine in running.engines()), 20)
    assert running.ask(script, QUERY_STRING="t=0").status == 200
    with running.connect() as connection:
        connection.send(script, None, CONTENT_LENGTH="100000")
        connection.sock.sendall(connection.requester.input(b"a little"))
        time.sleep(0.3)
    wait_until(lambda: not any(engine["state"] == "busy" for engine in running.engines()), 20)


def test_an_abort_is_answered_with_an_end(running: XSwitch) -> None:
    script = running.script("sleep.py", SLEEP)
    with running.connect() as connection:
        connection.send(script, QUERY_STRING="t=70")
        time.sleep(0.2)
        connection.sock.sendall(connection.client.requester.abort())
        assert connection.read().body == b""
        connection.client.requester = Requester()
        assert connection.ask(script, QUERY_STRING="t=0").status == 200


# Limits, queues and turns


def test_a_user_has_so_many_engines_and_the_rest_waits(running: XSwitch) -> None:
    script = running.script("sleep.py", SLEEP)
    waits = [running.asking(script, QUERY_STRING="t=0.3") for _ in range(7)]
    replies = [wait() for wait in waits]
    assert [reply.status for reply in replies] == [200] * 7
    assert len({reply.text for reply in replies}) <= 3
    assert len(running.engines()) <= 3


def test_a_queue_timeout_is_a_503_with_retry_after() -> None:
    with xswitch("max-engines-per-user = 1\nqueue-timeout = '0.3s'\nmax-queue-per-user = 2") as running:
        script = running.script("sleep.py", SLEEP)
        go = running.site / "go"
        holds = f"import os, time\nwhile not os.path.exists('{go}'): time.sleep(0.01)\nprint('{HEAD}')"
        # From here on an engine is there: none has to start within the queue timeout.
        assert running.ask(script, QUERY_STRING="t=0").status == 200
        waits = [running.asking(running.script("holds.py", holds))]
        wait_until(lambda: busy(running) == 1, 20)
        reply = running.ask(script, QUERY_STRING="t=0")
        assert (reply.status, reply.fields.get("retry-after")) == (503, "5")
        running.wait_for_log("no engine was free for 0.3 s")
        more = [running.asking(script, QUERY_STRING="t=0") for _ in range(5)]
        assert [wait().status for wait in more] == [503] * 5
        running.wait_for_log("no room for more")
        go.touch()
        assert [wait().status for wait in waits] == [200]


@pytest.mark.needs("php-cgi")
def test_idle_engines_end_and_room_is_made() -> None:
    with xswitch("max-engines = 2\nidle = '1s'\nmax-requests = 3") as running:
        scripts = [
            running.script("a.py", PYTHON_HELLO),
            running.script("a.pl", f'print "{HEAD}\\nhello\\n";'),
            running.script("a.php", "hello\n"),
        ]
        for script in (*scripts, *scripts):
            assert running.ask(script).text == "hello\n", running.log()
        assert len(running.engines()) == 2
        assert running.status()["counters"]["evicted"] == 4
        wait_until(lambda: not running.engines(), 20)
        for _ in range(4):
            assert running.ask(scripts[0]).status == 200
        assert running.status()["counters"]["recycled"] == 1


def test_a_script_that_goes_on_after_its_mark_is_ended() -> None:
    """The script has written its engine's mark itself, so that no time limit would apply to it any more."""
    text = f"""import os, sys
sys.stdout.write("{HEAD}\\nthe answer")
sys.stdout.flush()
control = int("3")  # a number in the text would make the engine fork
os.write(control, b"\\x040\\n")
while True: pass
"""
    with xswitch("time-limit = '2s'") as running:
        script = running.script("forged.py", text)
        assert running.ask(script).text == "the answer"
        running.wait_for_log("forged.py: it goes on after the end of its answer", 20)
        wait_until(lambda: not running.engines(), 20)


def test_an_engine_that_grows_is_recycled() -> None:
    with xswitch("max-memory = '60m'\n[engines.python]\nisolation = 'none'") as running:
        script = running.script("grow.py", f"""import os, re
if os.environ.get("QUERY_STRING"):
    re.kept = b"x" * 100_000_000
print("{HEAD}\\n", os.getpid())
""")  # fmt: skip
        first = running.ask(script).text
        assert running.ask(script).text == first
        running.ask(script, QUERY_STRING="grow")
        wait_until(lambda: not running.engines(), 20)
        assert running.ask(script).text != first


LARGE = f"""import os
print('{HEAD}')
for number in range(300): print(f'{{number:03}}' * 33_333)
print(os.getpid())
"""


def files_without_name(pid: int) -> int:
    """Return the bytes of a process's files that have no name."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(entry.path).endswith(" (deleted)"):
                found += os.stat(entry.path).st_size
        except OSError:
            pass  # it has just been closed
    return found


@pytest.mark.parametrize("spool", ["64m", "3m", "0"])
def test_slow_readers_hold_no_engine_within_the_spool(spool: str) -> None:
    """Each answer of 30 MB arrives complete and in order, with all, some or no part of it in a file."""
    with xswitch(f"max-engines-per-user = 2\nspool = '{spool}'\nqueue-timeout = '30s'") as running:
        script = running.script("large.py", LARGE)
        hello = running.script("a.py", PYTHON_HELLO)
        main = running.members()["main"]
        connections = [running.connect(60) for _ in range(5 if spool == "64m" else 2)]
        for connection in connections:
            connection.send(script)
        if spool == "64m":
            wait_until(lambda: len(running.engines()) and not busy(running), 30)
            assert files_without_name(main) > 100_000_000  # the rest is in sockets
            assert running.ask(hello).text == "hello\n"
        else:
            wait_until(lambda: busy(running) == 2, 20)
            assert files_without_name(main) < 2 * 4_000_000
        assert resident_kilobytes(main) < 80_000
        for connection in connections:
            lines = connection.read().text.splitlines()
            assert lines[:300] == [f"{number:03}" * 33_333 for number in range(300)] and len(lines) == 301
            connection.sock.close()
        wait_until(lambda: files_without_name(main) == 0, 20)
        assert running.ask(hello).text == "hello\n"


def test_the_spool_has_an_end_and_a_client_that_leaves_frees_it() -> None:
    with xswitch("max-spool = '40m'") as running:
        script = running.script("large.py", LARGE)
        main = running.members()["main"]
        with running.connect() as first, running.connect() as second:
            first.send(script)
            second.send(script)
            wait_until(lambda: busy(running) == 2, 20)
            wait_until(lambda: files_without_name(main) >= 10 << 20, 20)
            assert files_without_name(main) < 12 << 20  # a quarter, since both are of one user
        wait_until(lambda: files_without_name(main) == 0, 20)


def busy(running: XSwitch) -> int:
    return sum(each["state"] == "busy" for each in running.engines())


# Status and command


def test_status_is_for_those_who_may_connect(running: XSwitch) -> None:
    assert running.ask("", SCRIPT_NAME="/xswitch-status", REMOTE_ADDR="127.0.0.1").status == 404
    with xswitch("status = true") as shown:
        assert shown.ask("", SCRIPT_NAME="/xswitch-status", REMOTE_ADDR="192.0.2.7").status == 404
        table = shown.ask("", SCRIPT_NAME="/xswitch-status", REMOTE_ADDR="::1").text
        assert table.split()[:3] == ["user", "language", "pid"]
    running.ask(running.script("a.py", PYTHON_HELLO))
    engine = next(each for each in running.engines() if each["language"] == "python")
    assert engine["requests"] > 0
    rows = [line.split() for line in Path(f"/proc/{engine['pid']}/smaps_rollup").read_text().splitlines()[1:]]
    private = sum(int(row[1]) for row in rows if row[0].startswith("Private_")) * 1024
    assert abs(engine["private"] - private) < 500_000  # not what a fork has in common with its parent
    assert engine["shared"] > engine["private"]


def test_a_name_of_a_file_makes_no_row_of_the_status(running: XSwitch) -> None:
    evil = "a\nroot  perl  1  busy\x1b]0;x\x07\u2028.py"
    assert running.ask(running.script(evil, PYTHON_HELLO)).status == 200
    text = running.ask("", SCRIPT_NAME="/xswitch-status", XSWITCH_STATUS="1").text
    assert r"/a\nroot  perl  1  busy\x1b]0;x\x07\u2028.py" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert any(each["script"].endswith(evil) for each in running.engines())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(ROOT, *arguments, module="ewe.xswitch.cli", seconds=20)


def test_the_status_command(running: XSwitch) -> None:
    running.ask(running.script("a.py", PYTHON_HELLO))
    assert "language" in command("status", "--listen", running.address).stdout
    found = json.loads(command("status", "--json", "--listen", running.address).stdout)
    assert found["engines"] and found["counters"]["requests"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "no address to listen on"),
        (
            ["--listen", "nowhere"],
            2,
            'listen = ["nowhere"]: expected a list of unix:PATH, HOST:PORT and tls:HOST:PORT',
        ),
        (["--listen", "192.0.2.1:9"], 1, "cannot listen on 192.0.2.1:9"),
        (["--listen", "unix:/no/such/place"], 1, "cannot listen on unix:/no/such/place: No such file"),
        (["--config", "/no/such.toml"], 2, "/no/such.toml: No such file"),
        (["--no-such"], 2, "--no-such"),
        (["status"], 2, "name the address of X-Switch"),
        (["status", "--listen", "127.0.0.1:1"], 1, "Connection refused"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], code: int, told: str) -> None:
    done = command(*arguments)
    assert done.returncode == code
    assert told in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("ewe-xswitch: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("idle = 'soon'", 'idle = "soon": expected a time'),
        ("idel = '1s'", 'unknown key "idel"; did you mean "idle"?'),
        ("socket-mode = 660", "socket-mode = 660: expected an octal mode"),
        ("engines = 3", "engines = 3: expected tables"),
        ("[engines.ruby]\nextensions = ['.rb']", "[engines.ruby]: command is missing"),
        (
            "[engines.ruby]\ncommand = ['ruby']\nprotocol = 'http'",
            'engines.ruby.protocol = "http": expected "engine" or "fastcgi"',
        ),
        (
            "[engines.python]\nisolation = 'some'",
            'engines.python.isolation = "some": expected "auto", "fork" or "none"',
        ),
        ("[engines.php]\nisolation = 'fork'", 'isolation needs protocol = "engine"'),
        ("[directories]\n'/x' = 'pearl'", 'no engine pearl; did you mean "perl"?'),
        ("[limits]\ncpu = 'much'", 'limits.cpu = "much": expected'),
        ("not toml", "Expected"),
        ("listen = ['foo']", 'listen = ["foo"]: expected'),
        ("listen = ['127.0.0.1:99999']", 'listen = ["127.0.0.1:99999"]: expected'),
        (
            "[engines.ruby]\ncommand = ['ruby']\nextensions = ['rb']",
            'engines.ruby.extensions = ["rb"]: expected a list of texts that begin with',
        ),
        ("socket-group = 'nosuch'", "there is no group nosuch"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    done = command("--check-config", "--config", str(file))
    assert done.returncode == 2 and told in done.stderr and str(file) in done.stderr


def test_an_engine_is_told_its_isolation() -> None:
    for setting, told in (("", b"auto"), ("\n[engines.python]\nisolation = 'none'", b"none")):
        with xswitch(f"preload = false{setting}") as running:
            assert running.ask(running.script("a.py", PYTHON_HELLO)).text == "hello\n"
            variables = Path(f"/proc/{running.engines()[0]['pid']}/environ").read_bytes().split(b"\0")
            assert b"XSWITCH_ISOLATION=" + told in variables


def test_settings_read_anew_add_an_engine_and_keep_the_others() -> None:
    with xswitch() as running:
        python = running.script("pid.py", f"import os\nprint('{HEAD}\\n', os.getpid())")
        first = running.ask(python).text
        config = running.directory / "xswitch.toml"
        good = config.read_text()
        config.write_text("idle = 'soon'")
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("the settings cannot be used, the old ones stay: ")
        engine = running.directory / "python.py"
        for file in (ROOT / "ewe/xswitch/engines").glob("python*.py"):
            engine.with_name(file.name).write_text(file.read_text())
        config.write_text(
            good + f'\n[engines.upper]\ncommand = ["python3", "{engine}"]\nextensions = [".up"]\n'
        )
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        assert running.ask(running.script("x.up", PYTHON_HELLO)).text == "hello\n"
        assert running.ask(python).text == first
        config.write_text("socket-mode = '0606'\nroots = ['/no/where']\n")
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("socket-mode: a change needs a restart")
        running.wait_for_log("roots: there is no directory /no/where")


def test_an_engine_of_ones_own_comes_before_those_that_are_built_in(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[engines.mine]\ncommand = ['/no/python']\nextensions = ['.py']\n")
    assert load(str(file)).kind_for("/a.py", "python3") == load(str(file)).engines["mine"]
    done = command("--check-config", "--config", str(file))
    assert done.returncode == 0 and "[engines.mine] command: there is no program /no/python" in done.stderr


@pytest.mark.needs("Node.js")
def test_node_as_the_document_has_it() -> None:
    document = (ROOT / "docs" / "xswitch-internals.md").read_text()
    program, table = (
        re.search(rf"```{kind}\n(.*?)```", document, re.DOTALL) for kind in ("javascript", "toml")
    )
    assert program and table
    with xswitch() as running:
        engine = running.directory / "node.js"
        engine.write_text(program[1])
        config = running.directory / "xswitch.toml"
        config.write_text(
            config.read_text() + table[1].replace("/usr/local/lib/xswitch/node.js", str(engine))
        )
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        script = running.script(
            "late.js", f"console.log('{HEAD}');\nsetTimeout(() => console.log('later'), 50);\n"
        )
        for _ in range(3):
            assert running.ask(script).text == "later\n", running.log()
        assert len(running.engines()) == 1


@pytest.mark.needs("php-cgi")
def test_a_body_that_an_engine_does_not_wait_for_ends_the_engine(running: XSwitch) -> None:
    """PHP answers before the body has come; the next request must not find the rest of it."""
    script = running.script("early.php", "<?php echo 'early'; flush();")
    for _ in range(3):
        with running.connect() as connection:
            connection.send(script, None, CONTENT_LENGTH="200000", CONTENT_TYPE="application/octet-stream")
            for _ in range(4):
                connection.sock.sendall(connection.requester.input(bytes(50_000)))
            connection.sock.sendall(connection.requester.input(b""))
            assert connection.read().text == "early"


@pytest.mark.parametrize(
    ("length", "status"), [("", 411), ("3", 400), ("9", 400), ("x", 400), ("-5", 400), ("5" * 5000, 400)]
)
@pytest.mark.parametrize("early", [True, False])
def test_a_body_of_another_length_than_said_is_refused(
    running: XSwitch, length: str, status: int, early: bool
) -> None:
    """The next request to that engine finds its own body, not the surplus bytes of this one."""
    script = running.script("length.py", f"import sys\nprint('{HEAD}')\nprint(sys.stdin.read(), end='')")
    assert running.ask(script, b"own").text == "own"
    for _ in range(2):
        with running.connect() as connection:
            connection.send(script, b"five!" if early else None, CONTENT_LENGTH=length)
            if not early:  # the engine has the request already
                time.sleep(0.1)
                connection.sock.sendall(
                    connection.requester.input(b"five!") + connection.requester.input(b"")
                )
            assert connection.read().status in ((status,) if early else (status, 200)), running.log()
        assert running.ask(script, b"own").text == "own"


def test_unix_sockets_and_stale_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with xswitch("socket-mode = '0600'", listen=f"unix:{path}") as running:
        assert path.stat().st_mode & 0o777 == 0o600
        assert running.ask(running.script("a.py", PYTHON_HELLO)).text == "hello\n"
        assert "another server does already" in command("--listen", f"unix:{path}").stderr
        assert running.ask(running.script("a.py", PYTHON_HELLO)).text == "hello\n"
    assert not path.exists()


def test_a_server_that_accepts_nothing_is_another_server_too(tmp_path: Path) -> None:
    """Its backlog is full, so that connect(2) would wait."""
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(path)
        other.listen(0)
        waiting.connect(path)
        assert "another server does already" in command("--listen", f"unix:{path}").stderr


def test_a_file_in_the_place_of_a_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("of value")
    assert "it is a file, not a socket" in command("--listen", f"unix:{path}").stderr
    assert path.read_text() == "of value"
    assert "AF_UNIX path too long" in command("--listen", f"unix:{path}{'x' * 100}").stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_requests_end_and_leaves_nothing(number: int) -> None:
    with xswitch() as running:
        wait = running.asking(running.script("sleep.py", SLEEP), QUERY_STRING="t=0.7")
        wait_until(lambda: any(engine["state"] == "busy" for engine in running.engines()), 20)
        family = descendants(running.process.pid)
        began = time.monotonic()
        assert running.stop(number) == 0
        assert wait().text.startswith("slept")
        assert time.monotonic() - began < 9  # not GRACE, after which a stop waits no longer
        assert not alive(family - {running.process.pid})


def test_random_bytes_on_the_wire_do_no_harm(running: XSwitch) -> None:
    import random

    chance = random.Random(7)
    script = running.script("a.py", PYTHON_HELLO)
    good = Requester().begin([(b"SCRIPT_FILENAME", str(script).encode()), (b"REQUEST_METHOD", b"GET")])
    for _ in range(200):
        data = bytearray(good)
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with running.connect() as connection:
            connection.sock.sendall(data[: chance.randrange(len(data) + 1)])
            connection.sock.settimeout(0.01)  # it may be no whole request, and there is no answer to await
            try:
                connection.requester.begin([])
                connection.read()
            except (TimeoutError, FastCGIError, AssertionError, ConnectionError):
                pass
    assert running.ask(script).text == "hello\n"
    assert "fault" not in running.log()


def test_the_address_of_a_kept_connection_is_typed() -> None:
    with pytest.raises(ConnectionRefusedError):
        Connection("127.0.0.1:1")


SHARED = """\
import socket, struct, threading

def record(kind, content):
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content

def serve(sock):
    came = b""
    while data := sock.recv(65536):
        came += data
        if came.endswith(record(5, b"")):
            came = b""
            sock.sendall(record(6, b"Content-Type: a/b\\n\\n") + record(6, b"x" * 60_000) * 100)
            sock.sendall(record(6, b"") + record(3, bytes(8)))

listener = socket.socket(fileno=0)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""


def test_slow_clients_do_not_use_up_the_time_limit_of_an_engine_that_they_share() -> None:
    with xswitch("time-limit = '3s'\nspool = '0'") as running:
        engine = running.script("engine.py", SHARED)
        text = (running.directory / "xswitch.toml").read_text()
        table = (
            "[engines.shared]\ncommand = ['python3', '{}']\nextensions = ['.shared']\nprotocol = 'fastcgi'\n"
        )
        table += "connections = 4\nper-user = 1\n"
        (running.directory / "xswitch.toml").write_text(text + table.format(engine))
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("the settings were read again")
        script = running.script("a.shared", "")
        with running.connect() as slow:
            slow.send(script)
            time.sleep(4)
            assert len(running.ask(script).body) == 6_000_000, running.log()
            assert len(slow.read().body) == 6_000_000, running.log()
        assert len(running.engines()) == 1
