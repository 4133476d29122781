"""Servers with CGI that are wrong in one way each. See mutants.py."""

import os
import signal
import subprocess
import threading
import time

from correct_cgi import WITHHELD, Broken, Cgi
from registry import mutant


@mutant("cgi-environment", "cgi", "PATH_INFO=/more/a b")
class PathStaysEncoded(Cgi):
    """Passes the path as the client has sent it."""

    def program(self, path):
        file, script, _ = super().program(path)
        return file, script, path.removeprefix(script)


@mutant("cgi-environment", "cgi", "one dictionary")
class SharedEnvironment(Cgi):
    """Puts the variables of every request into one dictionary."""

    values = {}

    def environment(self, *request):
        self.values.update({name: value for name, value in super().environment(*request).items() if value})
        self.values["QUERY_STRING"] = request[4]
        return self.values


@mutant("cgi-secrets", "cgi", "HTTP_PROXY")
class Httpoxy(Cgi):
    """Makes HTTP_PROXY of the field Proxy."""

    def withheld(self):
        return WITHHELD[1:]


@mutant("cgi-secrets", "cgi", "the field Authorization")
class TellsPassword(Cgi):
    """Gives the program the client's password."""

    def withheld(self):
        return ("proxy", "proxy-authorization")


@mutant("cgi-body", "cgi", "input does not end")
class InputStaysOpen(Cgi):
    """Closes the program's input only when its output has ended."""

    def exchange(self, program, body, end):
        while body:
            body = self.write(program, body)
        return program.stdout.read()


@mutant("cgi-body", "cgi", "bytes that came with the head")
class ForgetsStart(Cgi):
    """Forgets the bytes of the body that came with the head."""

    def read_body(self, connection, length):
        had, connection.buffer = len(connection.buffer), b""
        return super().read_body(connection, max(length - had, 0))


@mutant("cgi-deadlock", "cgi", "a deadlock")
class WritesFirst(Cgi):
    """Writes the whole body before it reads."""

    def exchange(self, program, body, end):
        try:
            program.stdin.write(body)
        except BrokenPipeError:
            pass
        program.stdin.close()
        return super().exchange(program, b"", end)


@mutant("cgi-deadlock", "cgi", "send all of the output")
class StopsReading(Cgi):
    """Takes what one read returns for the whole output."""

    def exchange(self, program, body, end):
        writer = threading.Thread(target=self.write_all, args=(program, body))
        writer.start()
        output = b""
        while data := program.stdout.read(65536):
            output += data if len(output) < 65536 else b""
        writer.join()
        return output

    def write_all(self, program, body):
        try:
            program.stdin.write(body)
        except BrokenPipeError:
            pass
        program.stdin.close()


@mutant("cgi-no-reader", "cgi", "EPIPE")
class BrokenByPipe(Cgi):
    """Takes a program that does not read for one that has failed."""

    def write(self, program, body):
        try:
            return body[os.write(program.stdin.fileno(), body[:65536]) :]
        except BlockingIOError:
            return body
        except BrokenPipeError:
            raise Broken(502) from None


@mutant("cgi-status", "cgi", "got status 200")
class AlwaysFine(Cgi):
    """Does not read the field Status."""

    def parse(self, output):
        status, lines, body = super().parse(output)
        return ("200 OK" if status[0] != "3" else status), lines, body


@mutant("cgi-status", "cgi", "LF alone")
class OnlyCrLf(Cgi):
    """Looks for CR LF CR LF behind a program's head."""

    def parse(self, output):
        if b"\r\n\r\n" not in output:
            raise Broken(502)
        return super().parse(output)


@mutant("cgi-bad-output", "cgi", "answer 502")
class TrustsOutput(Cgi):
    """Sends what a program has written, whether it has a head or not."""

    def parse(self, output):
        try:
            return super().parse(output)
        except Broken:
            return "200 OK", [], output


@mutant("cgi-bad-output", "cgi", "source is public")
class SendsSource(Cgi):
    """Sends a file below cgi-bin that is not executable."""

    def answer(self, connection, head):
        found = self.find(head.split(b" ")[1])
        if found and not os.access(found, os.X_OK):
            body = self.read_file(found)
            self.send(connection, self.head(b"200 OK", body, False) + body)
            return False
        return super().answer(connection, head)


@mutant("cgi-outside", "cgi", "outside cgi-bin")
class RunsAnything(Cgi):
    """Joins the whole path to the directory of the programs."""

    def program(self, path):
        try:
            return super().program(path)
        except Broken:
            file = os.path.normpath(os.fsdecode(self.root) + path)
            if not os.path.isfile(file) or not os.access(file, os.X_OK):
                raise
            return file, path, ""


@mutant("cgi-progress", "cgi", "one program at a time")
class OneProgram(Cgi):
    """Holds a lock while a program runs."""

    lock = threading.Lock()

    def run_program(self, *program):
        with self.lock:
            return super().run_program(*program)


@mutant("cgi-timeout", "cgi", "there is no time limit")
class Endless(Cgi):
    """Waits for a program without a limit."""

    limit = 1e6


@mutant("cgi-timeout", "cgi", "live on")
class KillsOnlyProgram(Cgi):
    """Kills the program and not the processes that it has started."""

    def kill(self, program):
        program.kill()


@mutant("cgi-timeout", "cgi", "there is no time limit")
class Terminates(Cgi):
    """Ends a program by SIGTERM, which it may ignore."""

    def kill(self, program):
        os.killpg(program.pid, signal.SIGTERM)


@mutant("cgi-timeout", "cgi", "does not end; the client")
class WaitsForEver(Cgi):
    """Has a limit for the output and none for the program's end."""

    def wait(self, program, end):
        program.wait()


@mutant("cgi-timeout", "cgi", "got status 500")
class WrongStatus(Cgi):
    """Answers 500 when a program's time is over."""

    def run_program(self, *program):
        try:
            return super().run_program(*program)
        except Broken as problem:
            raise Broken(500) from problem


@mutant("cgi-inherits", "cgi", "close-on-exec")
class InheritsAll(Cgi):
    """Gives a program every descriptor of the server."""

    def listen(self):
        super().listen()
        self.listener.set_inheritable(True)

    def start_program(self, file, values):
        return subprocess.Popen(
            [file], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=values,
            start_new_session=True, close_fds=False,
        )  # fmt: skip


@mutant("cgi-leaks", "cgi", "zombies")
class NoWaitForProgram(Cgi):
    """Takes the end of the output for the end of the program, and never waits."""

    started = []

    def run_program(self, file, values, body):
        program = self.start_program(file, values)
        self.started.append(program)  # subprocess itself waits for programs that are forgotten
        try:
            return self.exchange(program, body, time.monotonic() + self.limit)
        finally:
            program.stdin.close()
            program.stdout.close()


@mutant("cgi-leaks", "cgi", "pipe")
class KeepsPipes(Cgi):
    """Keeps the pipe from each program open."""

    kept = []

    def end_program(self, program):
        self.kept.append(os.dup(program.stdout.fileno()))
        super().end_program(program)
