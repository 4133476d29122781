"""The program manager: starts the programs that features need before the first request, and keeps them running.

A web server may start a FastCGI program (FastCGI specification section 2). The program gets a listening socket as
its descriptor 0, accepts connections from it, and answers one request after another. In ewe, a separate process
starts the programs, so that this is the same under every concurrency model:

    ewe ── fork ──▶ manager ── fork, exec ──▶ php-cgi        N processes of each program accept
     │                 │  │                   php-cgi        from the same Unix socket
     └─ lifeline ──────┘  └─ pipe ◀─ standard output and error of the programs, for the error log

- **A program ends.** The manager starts it again: at once, or, if the process lived for less than a second, after a
  growing wait (child_slots.py). If every process of a program has failed twice in a row, the manager renames its
  socket. Requests then get 503 at once; otherwise they would wait in the backlog until they get 504.
- **The server ends**, perhaps by kill -9. The kernel then closes the last end of the lifeline. The manager ends
  each process together with its process group, such as php-cgi with PHP_FCGI_CHILDREN: by TERM, and by KILL after a
  while. If the manager itself is killed, the kernel sends TERM to the programs (PR_SET_PDEATHSIG).
- **HUP.** The manager starts new processes, then sends USR1 to the old ones. By convention (mod_fastcgi, libfcgi,
  php-cgi) a program then ends after its request. An old process that still runs after `grace` gets TERM. A program
  with `rereads`, such as the database daemon, is not replaced: it reads its new settings.
- **Root.** The manager becomes the user of the workers before it starts a program.

A terminal or a service manager may send a signal to all processes at once. Such a signal does not end the manager:
requests in progress need the programs until the workers have ended.

Read next: gateway/kept_programs.py, the programs; xswitch_process.py, the other process beside the workers;
gateway/connections.py, which connects to the programs.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from ewe import child_processes, logger
from ewe.child_processes import exit_status, how_ended, send_signal, wait_until
from ewe.child_slots import YOUNG_S, ChildSlot
from ewe.config.feature_table import programs as programs_of
from ewe.config.feature_table import unmet_needs
from ewe.config.messages import ConfigError
from ewe.gateway.kept_programs import IGNORED, ORDERS, KeptProgram
from ewe.gateway.programs import StderrLog
from ewe.registry import in_words
from ewe.scratch import LOCK, Scratch
from ewe.server.privileges import become
from ewe.streams.descriptors import nonblocking_pipe
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from ewe.config.settings import Config

TERM_TO_KILL_S = 2.0  # seconds between TERM and KILL
LOG_WINDOW_S = 60.0  # seconds after which a process may log as many lines again
PIECE_BYTES = 65536  # bytes read of a program's messages at once
RECENT_BYTES = 2000  # of a process's output, kept for the reason of its end (hint_about_package)
MISSING = re.compile(rb"Can't locate (\S+)\.pm in @INC|No module named '([\w.]+)'")
PACKAGES = {"FCGI": "libfcgi-perl", "CGI": "libcgi-pm-perl"}  # Perl module -> Debian package


class ProgramManager:
    """The server's side: the programs' sockets, and the manager process. Raises StartError, OSError."""

    def __init__(self, config: Config, user: str | None) -> None:
        """user: the account of the programs; None: the account of this process."""
        self.user = user
        self.group = config.group
        self.grace = config.grace
        self.pid = 0
        self.owner = os.getpid()
        for reason in unmet_needs(config, "programs"):
            raise StartError(reason)
        # After SIGKILL for the server and its manager, the next start removes the directory: it may hold passwords.
        self.scratch = Scratch("ewe-programs-")
        self.directory = self.scratch.path
        self.programs: list[KeptProgram] = []
        try:
            for number, make in enumerate(programs_of(config)):
                self.programs.append(make(os.path.join(self.directory, str(number))))
            if user is not None and os.geteuid() == 0:
                account = pwd.getpwnam(user)
                # The directory is the last: its new owner could put a link to any file into the place of the next
                # one. Root keeps the lock, so that a later start of root's knows it.
                for name in (*(each for each in os.listdir(self.directory) if each != LOCK), "."):
                    os.chown(os.path.join(self.directory, name), account.pw_uid, account.pw_gid)
        except BaseException:  # such as a TMPDIR too long for the path of a socket: nothing calls close()
            for program in self.programs:
                program.socket.close()
            self.scratch.close()
            raise
        self.settings = ", ".join(dict.fromkeys(each.setting for each in self.programs))

    def completed(self, config: Config) -> Config:
        """Return a configuration in which the settings also name the sockets of the programs.

        Raises StartError if a program lacks something, such as the file of a database. The completed configuration
        no longer shows that: it names a daemon, as if that ran elsewhere.
        """
        for reason in unmet_needs(config, "programs"):
            raise StartError(reason)
        for program in self.programs:
            try:
                config = program.completed(config)
            except (StartError, ConfigError):
                raise
            except Exception as reason:  # completed() may be that of a mounted feature
                raise StartError(
                    f"the program {program.name}: its completed() fails: {in_words(reason)} ({program.setting})"
                ) from None
        return config

    def start(self, listening: Iterable[socket.socket] = ()) -> None:
        """Fork the manager. This process, and those that it forks later, keep the lifeline's writing end open.

        listening: the server's sockets. The manager may outlive the server, and closes them. Raises StartError.
        """
        lifeline, self.lifeline_writer = os.pipe()
        # HUP and USR1 stay blocked until the manager, and this process (run.serve()), have their handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ORDERS)
        try:
            self.pid = os.fork()
        except OSError as reason:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(lifeline)
            os.close(self.lifeline_writer)
            why = f"cannot fork the program manager: {reason.strerror} ({self.settings})"
            raise StartError(why) from None
        if self.pid == 0:
            os.close(self.lifeline_writer)
            for sock in listening:
                sock.close()
            self.run(lifeline)  # ends in exit(2)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(lifeline)
        for program in self.programs:
            program.socket.close()
            if program.start_message:
                logger.errors.info(program.start_message)

    def run(self, lifeline: int) -> NoReturn:
        """Run the manager in the forked process; never return."""
        try:
            for signum in IGNORED:
                signal.signal(signum, signal.SIG_IGN)
            for program in self.programs:
                program.preload()
            if os.geteuid() == 0:
                become(self.user, self.group)
            ManagerProcess(self.programs, lifeline, self.grace).run()
            self.scratch.close()  # the server may have been killed before close()
        except BaseException:
            logger.errors.exception(f"the program manager failed ({self.settings})")
        finally:
            os._exit(0)

    def restart(self, config: Config) -> None:
        """HUP: replace every process, except that a program with `rereads` reads its new settings.

        A failure is logged: it must not end the server, which can still answer other requests.
        """
        for program in self.programs:
            try:
                program.write_settings(config)
            except Exception as reason:  # write_settings() may be that of a mounted feature
                why = getattr(reason, "strerror", None) or in_words(reason)
                logger.errors.error(
                    f"cannot write the settings of {program.name}, its old ones stay: {why} ({program.setting})"
                )
        if self.pid and not self.signal(signal.SIGHUP):
            logger.errors.error(f"the program manager has ended; restart ewe ({self.settings})")

    def restart_if_differs(self, config: Config, undone: Config) -> None:
        """Restart, if a program has read settings of `undone` that differ in `config`."""
        names = {name for program in self.programs for name in program.rereads}
        if any(getattr(config, name) != getattr(undone, name) for name in names):
            self.restart(config)

    def reopen_logs(self) -> None:
        """USR1: have the manager open its logs again. It writes the messages of the programs."""
        self.signal(signal.SIGUSR1)

    def signal(self, signum: int) -> bool:
        """Send a signal to the manager; return whether it runs. Only its parent process can."""
        runs = self.pid != 0 and not self.has_ended()
        if runs:
            os.kill(self.pid, signum)
        return runs

    def has_ended(self) -> bool:
        """Return whether the manager has ended. Its process id may then belong to another process."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True  # the supervisor has reaped it

    def close(self) -> None:
        """End the programs, now that no worker needs them, and remove their sockets."""
        if os.getpid() != self.owner:
            return
        if self.pid:
            os.close(self.lifeline_writer)
            if not wait_until(self.has_ended, TERM_TO_KILL_S * 2):
                send_signal(self.pid, signal.SIGKILL)
                exit_status(self.pid)
        for program in self.programs:
            program.socket.close()
        self.scratch.close()


class ProcessSlot(ChildSlot):
    """The slot of one process of a program."""

    def __init__(self, program: KeptProgram) -> None:
        super().__init__()
        self.program = program
        self.process: ProgramProcess | None = None
        self.plan_at_once()


class ProgramProcess:
    """One running process of a program.

    deadline: set when the process retires: the time.monotonic() at which end_due() sends TERM, or KILL if TERM was
    sent already (`terminated`). 0.0: the process is not to end.
    """

    def __init__(self, program: KeptProgram) -> None:
        """Raises OSError if the process cannot be started."""
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
        self.errors = StderrLog(program.name)
        self.recent_output = b""
        # counting_since: when the present StderrLog began to count lines
        self.started_at = self.counting_since = time.monotonic()
        self.deadline = 0.0
        self.terminated = False

    def has_exited(self) -> bool:
        """Return whether the process has exited. close() then reads its exit status.

        Until the status is read, the kernel gives the number of the process and of its group to no other one. A
        process that has made the manager its tracer (PTRACE_TRACEME) is killed, since it would stay stopped.
        """
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return self.process.poll() is not None
        return child_processes.has_exited(self.pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the process and to all other processes of its group.

        The exit status must not have been read: another group could have the number then.
        """
        try:
            os.killpg(self.pid, signum)
        except OSError:
            pass  # no process of the group is left

    def hang_up(self) -> None:
        """Make the process read its settings again: send HUP to it, but not to its group."""
        send_signal(self.pid, signal.SIGHUP)

    def read(self) -> None:
        """Read the output of the process once: pass it to the error log, and add it to `recent_output`.

        At the end of the output, close the pipe.
        """
        try:
            data = os.read(self.reader, PIECE_BYTES)
        except OSError:
            return
        if data:
            # A StderrLog logs a limited number of lines. After LOG_WINDOW_S another one takes its place, so new
            # lines of a program that writes too much get into the log again.
            if time.monotonic() - self.counting_since > LOG_WINDOW_S:
                self.errors.end()
                self.errors = StderrLog(self.program.name)
                self.counting_since = time.monotonic()
            self.errors.take(data)
            self.recent_output = (self.recent_output + data)[-RECENT_BYTES:]
        else:
            # No process has the other end of the pipe open any more.
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """Read the last output, kill the remaining processes of the group, and read the exit status."""
        if self.reader >= 0:
            self.read()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
        self.errors.end()
        self.signal(signal.SIGKILL)
        self.process.poll()


class ManagerProcess:
    """The manager's side: starts and restarts the processes of all programs, until the lifeline ends.

    slots: one for each process that is to run. retiring: processes of no slot, which are to end by their deadline.
    restarting: HUP has come, and its new processes are not started yet.
    """

    def __init__(self, programs: list[KeptProgram], lifeline: int, grace: float) -> None:
        self.programs = programs
        self.lifeline = lifeline
        self.grace = grace
        self.slots = [ProcessSlot(program) for program in programs for _ in range(program.count)]
        self.retiring: list[ProgramProcess] = []
        self.restarting = False
        self.reopening = False  # the logs must be opened again

    def run(self) -> None:
        """Run until the server has ended, then end all processes."""
        reader, writer = nonblocking_pipe()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)  # with a handler, the signal ends poll()
        signal.signal(signal.SIGHUP, self.on_reload)
        signal.signal(signal.SIGUSR1, self.on_reopen)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)
        while True:
            if self.reopening:
                self.reopening = False
                logger.reopen_logs()
            if self.restarting:
                self.restart()
            self.reap()
            self.show_recovered_sockets()
            self.start_due()
            self.end_due()
            processes = {process.reader: process for process in self.processes() if process.reader >= 0}
            ready = self.wait_for({self.lifeline, reader, *processes})
            if self.lifeline in ready:  # its end: the server has ended
                break
            if reader in ready:  # signals have arrived: the loop's next round handles them
                os.read(reader, 4096)
            for descriptor in processes.keys() & ready:
                processes[descriptor].read()
        self.end_all()

    def wait_for(self, descriptors: set[int]) -> set[int]:
        """Wait for the next action, or for one of the descriptors; return those that are ready.

        There may be more processes than select(2) takes: it takes descriptors up to 1023.
        """
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        seconds = self.seconds_to_next_action()
        return {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)}

    def on_reload(self, signum: int, frame: object) -> None:
        """HUP: note that the processes must be replaced."""
        self.restarting = True

    def on_reopen(self, signum: int, frame: object) -> None:
        """USR1: note that the logs must be opened again."""
        self.reopening = True

    def processes(self) -> list[ProgramProcess]:
        """Return all running processes."""
        return [*(each.process for each in self.slots if each.process is not None), *self.retiring]

    def seconds_to_next_action(self) -> float | None:
        """Return the seconds until the next start, TERM, KILL or show_socket(); None if none is planned."""
        moments = [slot.due_at for slot in self.slots if slot.due_at is not None]
        moments += [each.deadline for each in self.processes() if each.deadline]
        # The processes in `retiring` do not count: their moment has passed, and poll() would not wait.
        moments += [
            slot.process.started_at + YOUNG_S
            for slot in self.slots
            if slot.process is not None and slot.program.hidden
        ]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def show_recovered_sockets(self) -> None:
        """Show a hidden socket again after a process of its program has lived for YOUNG_S."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.process is not None and slot.program.hidden and now - slot.process.started_at >= YOUNG_S:
                slot.program.show_socket()

    def start_due(self) -> None:
        """Start the processes that are due."""
        now = time.monotonic()
        for slot in self.slots:
            if not slot.is_due(now):
                continue
            slot.due_at = None
            try:
                slot.process = ProgramProcess(slot.program)
            except Exception as reason:  # start() may be that of a mounted feature
                self.replace(slot, f"{slot.program.name} cannot be started: {reason}", now)

    def replace(self, slot: ProcessSlot, failure: str, born: float) -> None:
        """Plan the next process of a slot, and log the failure of the last one.

        If every process of the program has failed twice in a row, hide its socket. failure: what has happened, for
        the log. born: the time.monotonic() at which the last process started.
        """
        seconds = slot.plan_after_death(born)
        wait = f" in {seconds:g} s" if seconds else ""
        slots = [each for each in self.slots if each.program is slot.program]
        if all(each.process is None and each.has_failed(2) for each in slots):
            slot.program.hide_socket()
        logger.errors.error(f"{failure}; starting another{wait} ({slot.program.setting})")

    def reap(self) -> None:
        """Reap the processes that have ended, and plan their successors."""
        for process in [each for each in self.retiring if each.has_exited()]:
            process.close()
            self.retiring.remove(process)
        for slot in self.slots:
            ended = slot.process
            if ended is None or not ended.has_exited():
                continue
            slot.process = None
            ended.close()
            code = ended.process.returncode
            hint = hint_about_package(ended.recent_output)
            failure = f"{ended.program.name} (pid {ended.pid}) {how_ended(code)}{hint}"
            self.replace(slot, failure, ended.started_at)

    def restart(self) -> None:
        """Start a new process in every slot, and ask the old ones to end after their requests."""
        self.restarting = False
        now = time.monotonic()
        for slot in self.slots:
            if slot.program.rereads and slot.process is not None:
                slot.process.hang_up()
                continue
            process, slot.process = slot.process, None
            slot.plan_at_once()
            if process is not None:
                process.deadline = now + self.grace
                self.retiring.append(process)
        self.start_due()
        for process in self.retiring:
            process.signal(signal.SIGUSR1)

    def end_due(self) -> None:
        """Send TERM to each retired process whose deadline has passed; KILL if TERM was sent TERM_TO_KILL_S ago."""
        now = time.monotonic()
        for process in self.processes():
            if process.deadline and process.deadline <= now:
                process.signal(signal.SIGKILL if process.terminated else signal.SIGTERM)
                process.terminated = True
                process.deadline = now + TERM_TO_KILL_S

    def end_all(self) -> None:
        """End every process: by TERM, and after TERM_TO_KILL_S by KILL."""
        running = self.processes()
        for process in running:
            process.signal(signal.SIGTERM)
        wait_until(lambda: all(each.has_exited() for each in running), TERM_TO_KILL_S)
        for process in running:
            process.close()


def hint_about_package(output: bytes) -> str:
    """Return a hint about a missing package, from a program's last output; "" if the output names none."""
    match = MISSING.search(output)
    if match is None:
        return ""
    name = (match[1] or match[2]).decode("ascii", "replace").replace("/", "::")
    package = f" (Debian: {PACKAGES[name]})" if match[1] and name in PACKAGES else ""
    return f": the {'Perl' if match[1] else 'Python'} module {name} is missing; install it{package}"
