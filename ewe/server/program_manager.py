"""The program manager: starts FastCGI programs and the database demon, and keeps them running beside the server.

A web server may start a FastCGI program (FastCGI specification section 2). The program then finds a listening
socket as its descriptor 0, accepts connections from it, and answers one request after another. In ewe, one more
process does this, so that it is the same under every concurrency model:

    ewe ── fork ──▶ manager ── fork, exec ──▶ php-cgi        N processes of each program accept
     │                 │  │                   php-cgi        from the same Unix socket
     └─ lifeline ──────┘  └─ pipe ◀─ what they write to standard output and error: the error log

- **They end.** A process that ends is started again: at once, or, if it lived for less than a second, later and
  later (children.py). While every process of a program has failed twice in a row, its socket has no name: requests
  are answered 503 at once, instead of waiting in the backlog until they are 504.
- **The server ends**, also by kill -9. The kernel then closes the last end of the lifeline. The manager ends each
  process with its process group: TERM, and KILL after a while. php-cgi with PHP_FCGI_CHILDREN has children in its
  group. If the manager itself is killed, the kernel sends TERM to the programs (PR_SET_PDEATHSIG).
- **HUP.** New processes start, then the old ones get USR1. By convention (mod_fastcgi, libfcgi, php-cgi) a program
  then ends after its request. An old process that is still there after `grace` gets TERM. The database demon
  (demon_program.py) stays, and reads its new settings.
- **Root.** The manager becomes the user of the workers before it starts a program.

Signals that a terminal or a service manager sends to all processes at once do not end the manager: requests in
progress need the programs until the workers have ended.

Read next: kept_programs.py, what is started; xswitch_process.py, the other process that ewe keeps beside it;
gateway/connections.py, which connects.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, NoReturn

from ewe import logger
from ewe.config.feature_table import lacking as lacking_for
from ewe.config.setting_types import parse_program
from ewe.gateway.programs import ErrorLog
from ewe.server import children
from ewe.server.children import SHORTEST_S, YOUNG_S, how_ended
from ewe.server.demon_program import DemonProgram, needs_demon, write_settings
from ewe.server.kept_programs import Command, Program, missing_programs
from ewe.server.privileges import become
from ewe.streams.descriptors import nonblocking_pipe
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    from ewe.config.settings import Config

LAST_MOMENT = 2.0  # seconds between TERM and KILL
MINUTE = 60.0  # seconds for which the number of lines that a process may log is counted
PIECE = 65536  # bytes read of a program's messages at once
MISSING = re.compile(rb"Can't locate (\S+)\.pm in @INC|No module named '([\w.]+)'")
PACKAGES = {"FCGI": "libfcgi-perl", "CGI": "libcgi-pm-perl"}  # Debian's names of what such programs need


class ProgramManager:
    """The server's side: the sockets, and the process that keeps the programs. Raises StartError."""

    def __init__(self, config: Config, user: str | None) -> None:
        """user: whom the programs run as; None: as this process."""
        self.user = user
        self.group = config.group
        self.grace = config.grace
        self.pid = 0
        self.owner = os.getpid()
        commands = [parse_program(each) for each in config.fastcgi_start]
        if missing := missing_programs(config):
            raise StartError(missing[0])
        if missing := [*lacking_for(config, DemonProgram.setting)]:
            raise StartError(missing[0])
        self.demon: DemonProgram | None = None
        self.directory = tempfile.mkdtemp(prefix="ewe-programs-")
        self.programs: list[Program] = [
            Command(count, command, os.path.join(self.directory, str(number)))
            for number, (_, count, command) in enumerate(commands)
        ]
        self.named = tuple(
            f"{where}=unix:{program.path}"
            for (where, _, _), program in zip(commands, self.programs, strict=True)
        )
        if needs_demon(config):
            self.demon = DemonProgram(self.directory, config)
            self.programs.append(self.demon)
        if user is not None and os.geteuid() == 0:
            account = pwd.getpwnam(user)
            for name in (".", *os.listdir(self.directory)):
                os.chown(os.path.join(self.directory, name), account.pw_uid, account.pw_gid)

    def completed(self, config: Config) -> Config:
        """Return a configuration in which `fastcgi` and `dbd` name the sockets of the programs, too.

        Raises StartError if a database is not there.
        """
        if missing := [*lacking_for(config, DemonProgram.setting)]:
            raise StartError(missing[0])
        config = config.replace("fastcgi-start", fastcgi=[*config.fastcgi, *self.named])
        if self.demon is not None and needs_demon(config):
            config = config.replace("database", dbd=self.demon.address)
        return config

    def start(self) -> None:
        """Fork the manager. Only this process, and those that it forks from now on, hold the lifeline."""
        lifeline, self.held = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))  # until the manager has its handler
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.held)
            self.run(lifeline)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        os.close(lifeline)
        for program in self.programs:
            program.socket.close()
        if self.demon is not None:
            logger.errors.info(self.demon.described)

    def run(self, lifeline: int) -> NoReturn:
        """Be the manager; never return."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            for program in self.programs:
                program.preload()
            if os.geteuid() == 0:
                become(self.user, self.group)
            Manager(self.programs, lifeline, self.grace).run()
            shutil.rmtree(self.directory, ignore_errors=True)  # a server that was killed cannot
        except BaseException:
            logger.errors.exception("the program manager failed (fastcgi-start, database)")
        finally:
            os._exit(0)

    def restart(self, config: Config) -> None:
        """HUP: have every process replaced, and the demon read the databases of a new configuration."""
        if self.demon is not None and config.database:
            write_settings(config, self.demon.settings)
        if self.pid:
            os.kill(self.pid, signal.SIGHUP)

    def close(self) -> None:
        """End the programs, now that no worker needs them, and remove their sockets."""
        if os.getpid() != self.owner:
            return
        if self.pid:
            os.close(self.held)
            end = time.monotonic() + LAST_MOMENT * 2
            try:
                while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    if time.monotonic() > end:
                        os.kill(self.pid, signal.SIGKILL)
                    time.sleep(0.01)
            except ChildProcessError:
                pass  # it has been reaped
        for program in self.programs:
            program.socket.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Place(children.Place):
    """The place of one process of a program."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.process: Process | None = None
        self.plan_at_once()


class Process:
    """One running process. ends: when it gets TERM (retired) or KILL (terminated); 0: never."""

    def __init__(self, program: Program) -> None:
        """Raises OSError if it cannot be started."""
        reader, writer = os.pipe()
        try:
            self.process = program.start(writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pid = self.process.pid
        self.reader = reader
        self.program = program
        self.errors = ErrorLog(program.name)
        self.last = b""  # the end of what it has written
        self.born = self.counted = time.monotonic()
        self.ends = 0.0
        self.terminated = False

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass  # none is left

    def hang_up(self) -> None:
        """Have the process read its settings again: HUP, to itself and not to its group."""
        try:
            os.kill(self.pid, signal.SIGHUP)
        except OSError:
            pass  # it has just ended

    def read(self) -> None:
        """Pass on what it has written."""
        try:
            data = os.read(self.reader, PIECE)
        except OSError:
            return
        if data:
            if time.monotonic() - self.counted > MINUTE:  # ErrorLog bounds the lines of one request
                self.errors.end()
                self.errors = ErrorLog(self.program.name)
                self.counted = time.monotonic()
            self.errors.take(data)
            self.last = (self.last + data)[-2000:]
        elif self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """Read what is left, and end what is left of its group."""
        if self.reader >= 0:
            self.read()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
        self.errors.end()
        self.signal(signal.SIGKILL)


class Manager:
    """Keeps the processes of all programs, until the lifeline ends."""

    def __init__(self, programs: list[Program], lifeline: int, grace: float) -> None:
        self.programs = programs
        self.lifeline = lifeline
        self.grace = grace
        self.places = [Place(program) for program in programs for _ in range(program.count)]
        self.leaving: list[Process] = []
        self.restarting = False

    def run(self) -> None:
        """Run until the server has ended, then end all processes."""
        reader, writer = nonblocking_pipe()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGHUP, self.on_reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        while True:
            if self.restarting:
                self.restart()
            self.reap()
            self.start_due()
            self.end_due()
            pipes = {each.reader: each for each in self.processes() if each.reader >= 0}
            found = select.select([self.lifeline, reader, *pipes], [], [], self.seconds())[0]
            if self.lifeline in found:
                break
            if reader in found:
                os.read(reader, 4096)
            for descriptor in pipes.keys() & set(found):
                pipes[descriptor].read()
        self.end_all()

    def on_reload(self, number: int, frame: object) -> None:
        """HUP: note it."""
        self.restarting = True

    def processes(self) -> list[Process]:
        """Return all processes that run."""
        return [*(each.process for each in self.places if each.process is not None), *self.leaving]

    def seconds(self) -> float | None:
        """Return how long nothing is to be done."""
        moments = [place.due for place in self.places if place.due is not None]
        moments += [each.ends for each in self.processes() if each.ends]
        moments += [each.born + YOUNG_S for each in self.processes() if each.program.hidden]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def start_due(self) -> None:
        """Start the processes that are due; show a program's socket again once one has lived for a while."""
        now = time.monotonic()
        for place in self.places:
            if place.process is not None and place.program.hidden and now - place.process.born >= YOUNG_S:
                place.program.show()
            if not place.is_due(now):
                continue
            place.due = None
            try:
                place.process = Process(place.program)
            except (OSError, subprocess.SubprocessError) as reason:
                self.replace(place, f"{place.program.name} cannot be started: {reason}", now)

    def replace(self, place: Place, what: str, born: float) -> None:
        """Plan the next process of a place, and log why. born: when the last one was started."""
        seconds = place.plan_after_death(born)
        wait = f" in {seconds:g} s" if seconds else ""
        if all(
            each.back_off > SHORTEST_S and each.process is None
            for each in self.places
            if each.program is place.program
        ):
            place.program.hide()
        logger.errors.error(f"{what}; starting another{wait} ({place.program.setting})")

    def reap(self) -> None:
        """Note which processes have ended, and plan their successors."""
        for process in [each for each in self.leaving if each.process.poll() is not None]:
            process.close()
            self.leaving.remove(process)
        for place in self.places:
            ended = place.process
            if ended is None or ended.process.poll() is None:
                continue
            place.process = None
            ended.close()
            code = ended.process.returncode
            what = f"{ended.program.name} (pid {ended.pid}) {how_ended(code)}{lacking(ended.last)}"
            self.replace(place, what, ended.born)

    def restart(self) -> None:
        """Start a new process in every place, and have the old ones end after their requests."""
        self.restarting = False
        now = time.monotonic()
        for place in self.places:
            if place.program.rereads and place.process is not None:
                place.process.hang_up()
                continue
            process, place.process = place.process, None
            place.plan_at_once()
            if process is not None:
                process.ends = now + self.grace
                self.leaving.append(process)
        self.start_due()
        for process in self.leaving:
            process.signal(signal.SIGUSR1)

    def end_due(self) -> None:
        """End the processes whose time is over: TERM first, then KILL."""
        now = time.monotonic()
        for process in self.processes():
            if process.ends and process.ends <= now:
                process.signal(signal.SIGKILL if process.terminated else signal.SIGTERM)
                process.terminated = True
                process.ends = now + LAST_MOMENT

    def end_all(self) -> None:
        """End every process: TERM, and KILL after LAST_MOMENT."""
        running = self.processes()
        for process in running:
            process.signal(signal.SIGTERM)
        end = time.monotonic() + LAST_MOMENT
        while any(each.process.poll() is None for each in running) and time.monotonic() < end:
            time.sleep(0.01)
        for process in running:
            process.close()


def lacking(said: bytes) -> str:
    """Return what a program lacks, by its last words, as a part of a line; "" if they do not tell."""
    match = MISSING.search(said)
    if match is None:
        return ""
    name = (match[1] or match[2]).decode("ascii", "replace").replace("/", "::")
    package = f" (Debian: {PACKAGES[name]})" if match[1] and name in PACKAGES else ""
    return f": the {'Perl' if match[1] else 'Python'} module {name} is missing; install it{package}"
