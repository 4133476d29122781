"""The check that runs a student's engine behind a real X-Switch, as `ewe -x` starts one.

    client ──HTTP──▶ ewe ──FastCGI──▶ X-Switch ──engine protocol──▶ the student's engine

X-Switch's settings name the engine as an administrator names it (docs/xswitch-internals.md, "Tell X-Switch"). The
other checks (engines.py) speak the protocol themselves, and so see more details of the engine's behaviour.

If the grader is root, three accounts take part:

    root                     the supervisors of ewe and of X-Switch, and suexecme, which starts the engine
    the server's account     the workers of ewe, and the process of X-Switch that reads requests
    the engine's account     the engine, in each check of a grading the same one (sandbox.py)

Only this grading uses the server's account, and without --user also the engine's. They have numbers and no names,
but X-Switch's settings name accounts. Each Python of `ewe -x` therefore imports a module `sitecustomize`, which
adds two names to what the module pwd finds.

The sandbox hides the labs, the submissions of the class and ewe itself from `ewe -x` and all of its descendants.
`ewe -x` therefore runs from a copy of ewe, in a directory that the engine's account may not enter. This directory
also has the temporary files of `ewe -x`: X-Switch copies its own engines there, and one of them is a solution.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import ewe
from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.engine_scene import (
    MAX_OUTPUT_BYTES,
    PROBE,
    EngineScene,
    short_text,
    state_of,
)
from ewe_classroom.grader.engines import HEADER_SCRIPT
from ewe_classroom.grader.sandbox import SandboxLimits, SubjectAccount, end_all, named_account, own_account
from ewe_classroom.grader.scene import WAIT_LIMIT_S
from ewe_classroom.grader.subject import START_TIMEOUT_S

# The engine's account if the other checks run the engine as root (--user root): X-Switch runs no script as root.
WITHOUT_RIGHTS = "nobody"
# The time limit is too long to pass even on a busy machine: X-Switch ends the endless script because its client has
# disconnected. Each user has one engine at a time, so the next request waits until the engine has been killed.
SETTINGS = """time-limit = "2m"
queue-timeout = "2m"
abandoned = "200ms"
max-engines-per-user = 1
"""
MIN_CPU_S = 0.1  # CPU time after which an endless script has begun
POLL_EVERY_S = 0.02
END_TIMEOUT_S = 20  # after SIGTERM, ewe ends X-Switch and its engines
IMPORT_DIRECTORY = Path(ewe.__file__).resolve().parents[1]  # the directory from which Python imports ewe
BUILT = "target"  # the directories of X-Switch's engines in C and Java, which this check does not need
# A module that Python imports at its start. It is filled with the fields of two passwd entries.
NAMES_OF_ACCOUNTS = """import pwd

ENTRIES = [pwd.struct_passwd(fields) for fields in {entries!r}]
entry_of_name, entry_of_uid = pwd.getpwnam, pwd.getpwuid


def getpwnam(name):
    return next((each for each in ENTRIES if each.pw_name == name), None) or entry_of_name(name)


def getpwuid(uid):
    return next((each for each in ENTRIES if each.pw_uid == uid), None) or entry_of_uid(uid)


pwd.getpwnam, pwd.getpwuid = getpwnam, getpwuid
"""


class XSwitchAccounts(NamedTuple):
    """The accounts of the engine, and of the processes of ewe and of X-Switch that are not root."""

    engine: SubjectAccount
    server: SubjectAccount


def accounts_for(limits: SandboxLimits) -> XSwitchAccounts | None:
    """Return the accounts for an engine with these limits; None if the grader is not root, and so has no others.

    Both have the group of the grading, which alone may enter its directories (sandbox.close_to_others).
    """
    if os.geteuid() != 0:
        return None
    engine = limits.account or named_account(WITHOUT_RIGHTS)
    server = replace(own_account(), gid=engine.gid)
    # New names also for an account that has one: X-Switch would give its engine all groups of that name.
    return XSwitchAccounts(
        replace(engine, name=f"ewe-engine-{engine.uid}"), replace(server, name=f"ewe-server-{server.uid}")
    )


def sitecustomize_text(accounts: XSwitchAccounts) -> str:
    """Return the text of a module that gives these accounts their names in the module pwd."""
    entries = [
        (each.name, "x", each.uid, each.gid, "", "/nonexistent", "/usr/sbin/nologin") for each in accounts
    ]
    return NAMES_OF_ACCOUNTS.format(entries=entries)


def may_read(path: Path, account: SubjectAccount) -> bool:
    """Return whether an account may read a file."""
    return path.exists() and processes.is_readable(path.resolve(), account.uid, account.gid)


def toml_text(value: str | list[str]) -> str:
    """Return a text, or a list of texts, in the form of TOML: as JSON, but without its surrogates."""
    return json.dumps(value, ensure_ascii=False)


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, in seconds."""
    return sum(task.ran_s for task in processes.tasks([pid]).values())


class XSwitchServer:
    """A process `ewe -x` with the student's engine. `with XSwitchServer(scene):` starts and ends it."""

    def __init__(self, scene: EngineScene) -> None:
        self.scene = scene
        self.limits: SandboxLimits = scene.subject.limits
        self.accounts = accounts_for(self.limits)
        self.scripts: Path = scene.subject.site.root
        self.directory = self.scripts.parent
        self.port = processes.free_port()
        private = self.private_directory()
        # Empty: the engine could ask ewe for a file of the document root, such as one of the private directory.
        documents = self.directory / "documents"
        documents.mkdir(exist_ok=True)
        documents.chmod(0o755)
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
        command += ["--cgi-path", str(self.scripts), "--documentroot", str(documents)]
        command += ["--xswitch-config", str(settings)]
        if self.accounts is not None:
            command += ["--user", self.accounts.server.name]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            # The ewe of this grader: first the copy, if there is one.
            "PYTHONPATH": os.pathsep.join([str(private / "modules"), str(IMPORT_DIRECTORY)]),
            "TMPDIR": str(private / "tmp"),
            "LANG": "C.UTF-8",
        }
        self.children_before = set(processes.children_of_grader())
        with open(self.log, "wb") as log:
            # account=None: X-Switch itself gives the engine its account, and needs root for this.
            self.process = subprocess.Popen(
                command, cwd=private, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=replace(self.limits, account=None),
            )  # fmt: skip

    def private_directory(self) -> Path:
        """Return a new directory for modules and temporary files. No engine may enter it if root is the grader.

        modules: a copy of ewe, if ewe is hidden from the engine, and the names of the accounts. tmp: TMPDIR.
        """
        directory = Path(tempfile.mkdtemp(prefix="ewe-", dir=self.directory))
        modules, temporary = directory / "modules", directory / "tmp"
        modules.mkdir()
        temporary.mkdir()
        if self.limits.also_hidden:
            shutil.copytree(IMPORT_DIRECTORY / "ewe", modules / "ewe", ignore=shutil.ignore_patterns(BUILT))
        if self.accounts is not None:
            (modules / "sitecustomize.py").write_text(sitecustomize_text(self.accounts))
            for each in (directory, modules, temporary):
                os.chown(each, self.accounts.server.uid, -1)
        return directory

    def settings(self) -> str:
        """Return X-Switch's settings: the engine of the command line runs every script."""
        words = [self.readable_word(word) for word in self.scene.subject.start_command.command]
        account = (
            f"script-user = {toml_text(self.accounts.engine.name)}\n" if self.accounts is not None else ""
        )
        return (
            f"{account}min-uid = 1\nroots = [{toml_text(str(self.scripts))}]\n{SETTINGS}"
            f'[engines.student]\ncommand = {toml_text(words)}\nextensions = [".py"]\nisolation = "none"\n'
            f'[directories]\n{toml_text(str(self.scripts))} = "student"\n'
        )

    def readable_word(self, word: str) -> str:
        """Return a word of the command. A file that the engine's account may not read is replaced by a copy.

        ewe-grade itself refuses such a file (check_readable), unless the other checks run the engine as root.

        A Python that the account may not run, for example in a home directory, is replaced by the first python3 on
        the search path that the account may run.
        """
        path = Path(word)
        if self.accounts is None or os.sep not in word or not path.is_file():
            return word
        account = self.accounts.engine
        if may_read(path, account):
            return word
        if word == sys.executable:
            found = (Path(directory) / "python3" for directory in os.get_exec_path())
            return str(next((each for each in found if may_read(each, account)), word))
        copy = self.directory / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
        return str(copy)

    def wait_until_ready(self) -> None:
        """Wait until ewe listens. Raises RuntimeError if ewe ends first, or after START_TIMEOUT_S."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not processes.listener_inode(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ewe -x does not start: {self.last_output()}")
            time.sleep(POLL_EVERY_S)

    def last_output(self) -> str:
        """Return the last three lines of the log: X-Switch's reason precedes ewe's line."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:])

    def ask(
        self, path: str, body: bytes | None = None, fields: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request: POST with a body, else GET. Return the status and the body of the response, or fail."""
        lane = f"browser {self.scene.asked + 1}"
        self.scene.asked += 1
        self.scene.note(lane=lane, do="connect")
        self.scene.note(lane=lane, do="send", bytes=f"{'GET' if body is None else 'POST'} {path}")
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_LIMIT_S)
        try:
            client.request("GET" if body is None else "POST", path, body, dict(fields or {}))
            response = client.getresponse()
            answer = response.status, response.read(MAX_OUTPUT_BYTES + 1)
            # read() with a number raises no error for a body that ends before its Content-Length.
            if len(answer[1]) <= MAX_OUTPUT_BYTES and response.length:
                raise http.client.IncompleteRead(answer[1], response.length)
        except (OSError, http.client.HTTPException) as error:
            self.scene.fail(f"{path} behind X-Switch got no response: {error}", "answer", self.last_output())
        finally:
            client.close()
        # An engine that writes without an end must not fill the grader's memory.
        if len(answer[1]) > MAX_OUTPUT_BYTES:
            self.scene.fail(
                f"{path} behind X-Switch got more than {MAX_OUTPUT_BYTES >> 20} MB",
                "send the script's output",
            )
        self.scene.note(lane=lane, do="answered", status=answer[0])
        return answer

    def leave(self, path: str, pid: int) -> None:
        """Send a request, wait until the engine with this pid has run for MIN_CPU_S, and disconnect.

        Fail without a connection: an engine with the grader's account can end `ewe -x`.
        """
        lane = "impatient browser"
        before = cpu_s(pid)
        self.scene.note(lane=lane, do="connect")
        try:
            with socket.create_connection(("127.0.0.1", self.port), WAIT_LIMIT_S) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                self.scene.note(lane=lane, do="send", bytes=f"GET {path}")
                deadline = time.monotonic() + WAIT_LIMIT_S
                while processes.runs(pid) and cpu_s(pid) - before < MIN_CPU_S and time.monotonic() < deadline:
                    time.sleep(POLL_EVERY_S)
        except OSError as error:
            self.scene.fail(
                f"{path} behind X-Switch got no connection: {error}", "answer", self.last_output()
            )
        self.scene.note(lane=lane, do="close")

    def probe(self, fields: Mapping[str, str] | None = None) -> dict[str, object]:
        """Return the state of the process that a script sees (engine_scene.PROBE). Fail without status 200."""
        status, body = self.ask("/cgi-bin/probe.py", fields=fields)
        if status != 200:
            self.scene.fail(
                f"an ordinary script behind X-Switch got status {status}",
                "answer 200",
                f"the log of X-Switch says: {self.last_output()[-400:]}",
            )
        try:
            return state_of(body)
        except (ValueError, RecursionError):
            self.scene.fail(
                f"an ordinary script behind X-Switch answered {short_text(body)}",
                "send the script's output as it is",
                f"the log of X-Switch says: {self.last_output()[-400:]}",
            )

    def __enter__(self) -> XSwitchServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_TIMEOUT_S)
        end_all(self.process, self.children_before, self.limits.account)


@check(
    "engine-xswitch",
    proves="the engine works behind a real X-Switch, and an endless script costs only one request",
    sends="requests to `ewe -x`: two for a script, a form, an endless script (the visitor disconnects), one more",
    expects="one engine for the first three; then a response from a new engine",
    why=(
        "X-Switch kills the engine of a script that does not end. No file and no other process may depend on that "
        "engine."
    ),
    hint="Keep no lock file and no state outside the process: an engine is killed without warning.",
    kind="engine",
)
def behind_xswitch(scene: EngineScene) -> None:
    scene.subject.end()  # the engine of earlier checks: X-Switch starts its own
    scene.write("probe.py", PROBE)
    scene.write("form.py", HEADER_SCRIPT + "import sys\nprint(sys.stdin.read())\n")
    # The script catches every exception: only the end of its process ends it.
    scene.write(
        "endless.py", "while True:\n    try:\n        pass\n    except BaseException:\n        pass\n"
    )
    with XSwitchServer(scene) as server:
        server.wait_until_ready()
        first = server.probe({"Cookie": "session=alice"})
        status, body = server.ask("/cgi-bin/form.py", b"name=bob")
        if (status, body) != (200, b"name=bob\n"):
            scene.fail(
                f"a form behind X-Switch got status {status} and {short_text(body)}",
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
                "the script of a request without a cookie found HTTP_COOKIE of the previous visitor",
                "give each script only the variables of its request",
                "the environment of the previous request is still there",
            )
        server.leave("/cgi-bin/endless.py", int(str(first["pid"])))
        third = server.probe()
    if third["pid"] == first["pid"]:
        scene.fail(
            "the engine of an endless script goes on",
            "run the script in the engine's own process, so that signal 9 ends both",
            "the script ran in another process",
        )
    scene.confirm(
        "one engine answered three requests; an endless script ended it, and a new engine answered the next request"
    )
