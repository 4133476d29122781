"""A server with CGI and without known faults, from which mutants derive (mutants_cgi.py)."""

import os
import re
import select
import signal
import subprocess
import time
from urllib.parse import unquote

from correct import Gone, Thread

WITHHELD = ("proxy", "authorization", "proxy-authorization", "content-type", "content-length")


class Broken(Exception):
    """The program, or its output, is of no use. The argument is the status."""


class Cgi(Thread):
    limit = float(os.environ.get("CGI_TIMEOUT", "10"))

    def answer(self, connection, head):
        target = [*head.split(b" ", 2), b""][1].decode("latin-1")
        if not target.startswith("/cgi-bin/"):
            return super().answer(connection, head)
        method = head.partition(b" ")[0].decode("latin-1")
        fields = self.fields(head)
        body = self.read_body(connection, int(fields.get("content-length", "0")))
        path, _, query = target.partition("?")
        try:
            file, script, info = self.program(path)
            values = self.environment(connection, method, script, info, query, fields, body)
            output = self.run_program(file, values, body)
            status, lines, content = self.parse(output)
        except Broken as problem:
            status, lines, content = f"{problem.args[0]} Broken", [], b"broken\n"
        location = next((line[10:] for line in lines if line.startswith("Location: /")), "")
        if location:
            return super().answer(connection, f"GET {location} HTTP/1.1\r\nConnection: close".encode())
        response = [
            f"HTTP/1.1 {status}",
            *lines,
            f"Content-Length: {len(content)}",
            "Connection: close",
            "",
            "",
        ]
        self.send(connection, "\r\n".join(response).encode("latin-1") + content)
        return False

    def fields(self, head):
        lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
        return {name.lower(): value.strip() for name, _, value in lines}

    def read_body(self, connection, length):
        while len(connection.buffer) < length:
            data = connection.sock.recv(65536)
            if not data:
                raise Gone
            connection.buffer += data
        body, connection.buffer = connection.buffer[:length], connection.buffer[length:]
        return body

    def program(self, path):
        name, slash, rest = path.removeprefix("/cgi-bin/").partition("/")
        name = unquote(name)
        file = os.fsdecode(self.root) + "/cgi-bin/" + name
        if "/" in name or name in ("", ".", "..") or not os.path.isfile(file) or not os.access(file, os.X_OK):
            raise Broken(404)
        return file, "/cgi-bin/" + name, unquote(slash + rest)

    def environment(self, connection, method, script, info, query, fields, body):
        values = {
            "GATEWAY_INTERFACE": "CGI/1.1",
            "SERVER_SOFTWARE": "zoo",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": str(self.port),
            "REMOTE_ADDR": "127.0.0.1",
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": script,
            "PATH_INFO": info,
            "QUERY_STRING": query,
            "CONTENT_TYPE": fields.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)) if body else "",
        }
        for name, value in fields.items():
            if name not in self.withheld():
                values["HTTP_" + name.upper().replace("-", "_")] = value
        return values

    def withheld(self):
        return WITHHELD

    def start_program(self, file, values):
        return subprocess.Popen(
            [file], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=values, start_new_session=True
        )  # fmt: skip

    def run_program(self, file, values, body):
        end = time.monotonic() + self.limit
        program = self.start_program(file, values)
        try:
            output = self.exchange(program, body, end)
            self.wait(program, end)
            return output
        except (TimeoutError, subprocess.TimeoutExpired):
            raise Broken(504) from None
        finally:
            self.end_program(program)

    def wait(self, program, end):
        program.wait(max(0.0, end - time.monotonic()))

    def end_program(self, program):
        program.stdin.close()
        program.stdout.close()
        if program.returncode is None:
            self.kill(program)
            program.wait()

    def kill(self, program):
        os.killpg(program.pid, signal.SIGKILL)

    def exchange(self, program, body, end):
        output = b""
        os.set_blocking(program.stdin.fileno(), False)
        if not body:
            program.stdin.close()
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            writers = [] if program.stdin.closed else [program.stdin]
            ready = select.select([program.stdout], writers, [], left)
            if ready[0]:
                data = os.read(program.stdout.fileno(), 65536)
                if not data:
                    return output
                output += data
            if ready[1]:
                body = self.write(program, body)
                if not body:
                    program.stdin.close()

    def write(self, program, body):
        try:
            return body[os.write(program.stdin.fileno(), body[:65536]) :]
        except BlockingIOError:
            return body
        except BrokenPipeError:
            return b""

    def parse(self, output):
        """Return the status, the other lines of the head, and the body."""
        end = re.search(rb"\r?\n\r?\n", output)
        if end is None:
            raise Broken(502)
        lines = output[: end.start()].decode("latin-1").splitlines()
        found = [line[8:] for line in lines if line.startswith("Status: ")]
        status = (
            found[0]
            if found
            else "302 Found"
            if any(x.startswith("Location: h") for x in lines)
            else "200 OK"
        )
        if not status[:3].isdigit():
            raise Broken(502)
        return status, [line for line in lines if not line.startswith("Status: ")], output[end.end() :]
