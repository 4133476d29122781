"""The check that runs a student's engine behind a real X-Switch, as `ewe -x` starts one.

    client ──HTTP──▶ ewe ──FastCGI──▶ X-Switch ──engine protocol──▶ the student's engine

X-Switch's settings name the engine, as an administrator would: docs/write-an-engine.md, "Tell X-Switch". The other
checks (engines.py) speak the protocol themselves, which shows more of what an engine does.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import ewe
from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.engine_scene import PROBE, EngineScene, short
from ewe_classroom.grader.engines import PRINTS
from ewe_classroom.grader.scene import CEILING_S
from ewe_classroom.grader.subject import START_S

ACCOUNT = "nobody"  # runs the scripts where the grader is root: X-Switch runs none as root
# No time limit that a busy machine could reach: X-Switch ends the endless script because its client has left. The
# user has one engine at a time, so that the next request waits for that.
SETTINGS = """time-limit = "2m"
patience = "2m"
abandoned = "200ms"
max-engines-per-user = 1
"""
RAN_S = 0.1  # of CPU time: an endless script has begun
HOME = Path(ewe.__file__).resolve().parents[1]  # where Python finds ewe


def may_read(path: Path) -> bool:
    """Return whether the scripts' account may read a file."""
    account = pwd.getpwnam(ACCOUNT)
    return path.exists() and processes.is_readable(path.resolve(), account.pw_uid, account.pw_gid)


def cpu_s(pid: int) -> float:
    """Return the CPU time that the threads of a process have had."""
    return sum(task.ran_s for task in processes.tasks([pid]).values())


class Server:
    """An `ewe -x` whose X-Switch has one engine: the student's. `with Server(scene):` starts and ends it."""

    def __init__(self, scene: EngineScene) -> None:
        self.scene = scene
        self.scripts: Path = scene.subject.site.root
        self.directory = self.scripts.parent
        self.port = processes.free_port()
        settings = self.directory / "xswitch.toml"
        settings.write_text(self.settings())
        self.log = self.directory / "ewe.log"
        command = [
            sys.executable,
            "-m",
            "ewe",
            "-x",
            str(self.port),
            "--host",
            "127.0.0.1",
            "--access-log",
            "off",
        ]
        command += ["--cgi-path", str(self.scripts), "--documentroot", str(self.directory)]
        command += ["--xswitch-config", str(settings)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(HOME), "LANG": "C.UTF-8"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def settings(self) -> str:
        """Return X-Switch's settings: the engine of the command line runs every script."""
        words = [self.readable(word) for word in self.scene.subject.recipe.command]
        account = f'script-user = "{ACCOUNT}"\nmin-uid = 1\n' if os.geteuid() == 0 else "min-uid = 1\n"
        return (
            f"{account}roots = [{json.dumps(str(self.scripts))}]\n{SETTINGS}"
            f'[engines.student]\ncommand = {json.dumps(words)}\nextensions = [".py"]\nisolation = "none"\n'
            f'[directories]\n{json.dumps(str(self.scripts))} = "student"\n'
        )

    def readable(self, word: str) -> str:
        """Return a word of the command; a file that the scripts' account may not read is replaced by a copy.

        A Python that the account may not run (in a home, say) is replaced by the first one that it may.
        """
        path = Path(word)
        if os.geteuid() != 0 or os.sep not in word or not path.is_file():
            return word
        if may_read(path):
            return word
        if word == sys.executable:
            found = (Path(place) / "python3" for place in os.get_exec_path())
            return str(next((each for each in found if may_read(each)), word))
        copy = self.directory / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
        return str(copy)

    def wait_until_ready(self) -> None:
        """Wait until ewe listens; fail if it ends before."""
        give_up = time.monotonic() + START_S
        while not processes.listens(self.port):
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"ewe -x does not start: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """Return the last lines of the log: X-Switch's reason comes before ewe's line."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:])

    def ask(
        self, path: str, body: bytes | None = None, fields: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Ask once; return the status and the body of the response."""
        lane = f"browser {self.scene.asked + 1}"
        self.scene.asked += 1
        self.scene.note(lane=lane, do="connect")
        self.scene.note(lane=lane, do="send", bytes=f"{'GET' if body is None else 'POST'} {path}")
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CEILING_S)
        try:
            client.request("GET" if body is None else "POST", path, body, dict(fields or {}))
            response = client.getresponse()
            answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.scene.fail(f"{path} behind X-Switch got no response: {error}", "answer", self.last_words())
        finally:
            client.close()
        self.scene.note(lane=lane, do="answered", status=answer[0])
        return answer

    def leave(self, path: str, pid: int) -> None:
        """Ask, wait until the engine with this number has worked on it for a while, and leave."""
        lane = "impatient browser"
        before = cpu_s(pid)
        self.scene.note(lane=lane, do="connect")
        with socket.create_connection(("127.0.0.1", self.port), CEILING_S) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.scene.note(lane=lane, do="send", bytes=f"GET {path}")
            give_up = time.monotonic() + CEILING_S
            while processes.runs(pid) and cpu_s(pid) - before < RAN_S and time.monotonic() < give_up:
                time.sleep(0.02)
        self.scene.note(lane=lane, do="close")

    def probe(self, fields: Mapping[str, str] | None = None) -> dict[str, object]:
        status, body = self.ask("/cgi-bin/probe.py", fields=fields)
        if status != 200:
            self.scene.fail(
                f"an ordinary script behind X-Switch got status {status}",
                "answer 200",
                f"the log of X-Switch says: {self.last_words()[-400:]}",
            )
        return dict(json.loads(body))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@check(
    "engine-xswitch",
    proves="the engine works behind a real X-Switch, and an endless script costs one request",
    sends="requests to `ewe -x`: two to a script, a form, an endless script whose visitor leaves, and one more",
    expects="one engine for the first three; then an answer of a new engine",
    why=(
        "X-Switch kills the engine of a script that does not end. Nothing on disk or in the air may need that "
        "engine."
    ),
    hint="Keep no lock file and no state outside of the process: an engine is killed without a word.",
    subject="engine",
)
def behind_xswitch(scene: EngineScene) -> None:
    scene.subject.end()
    scene.write("probe.py", PROBE)
    scene.write("form.py", PRINTS + "import sys\nprint(sys.stdin.read())\n")
    scene.write(
        "endless.py", "while True:\n    try:\n        pass\n    except BaseException:\n        pass\n"
    )
    with Server(scene) as server:
        server.wait_until_ready()
        first = server.probe({"Cookie": "session=alice"})
        status, body = server.ask("/cgi-bin/form.py", b"name=bob")
        if (status, body) != (200, b"name=bob\n"):
            scene.fail(
                f"a form behind X-Switch got status {status} and {short(body)}",
                "answer 200 and b'name=bob\\n'",
            )
        second = server.probe()
        if first["pid"] != second["pid"]:
            scene.fail(
                f"two requests behind X-Switch ran in the processes {first['pid']} and {second['pid']}",
                "run both in one engine",
                "the engine forks for each request, or ends after one",
            )
        environment = second["environment"]
        if isinstance(environment, dict) and "HTTP_COOKIE" in environment:
            scene.fail(
                "a request without a cookie found HTTP_COOKIE, which the visitor before has sent",
                "give each script the variables of its request",
                "the environment of the request before is still there",
            )
        server.leave("/cgi-bin/endless.py", int(str(first["pid"])))
        third = server.probe()
    if third["pid"] == first["pid"]:
        scene.fail(
            "the engine of an endless script goes on",
            "end with signal 9",
            "the script ran in another process",
        )
    scene.confirm(
        "three requests in one engine; an endless script cost it, and a new engine answered the next one"
    )
