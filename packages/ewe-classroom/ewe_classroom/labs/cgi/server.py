"""CGI: a program for each request below /cgi-bin/. Run it with: python3 server.py PORT DIRECTORY

    client ──request──▶ server ──environment, body──▶ program: the file DIRECTORY/cgi-bin/NAME
    client ◀─response── server ◀──head, body──────── program

If a program has not ended after CGI_TIMEOUT seconds (a variable of the server's environment), the server kills it
and all the processes that it has started. RFC 3875 defines CGI.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from urllib.parse import unquote

from web import PROGRAMS, Refused, Request, Response, local_redirect, main

TIME_LIMIT_S = float(os.environ.get("CGI_TIMEOUT", "10"))  # seconds that a program may take
MAX_OUTPUT_BYTES = 16 << 20  # bytes that a program may write
HEAD_END = re.compile(rb"\r?\n\r?\n")
STATUS = re.compile(r"([2-5][0-9][0-9])( .*)?")
# Fields that must not become variables HTTP_...: `Proxy` is an attack (httpoxy), two are secret, and two have other
# variables
WITHHELD = {"proxy", "authorization", "proxy-authorization", "content-type", "content-length"}
# Fields of a program's output that the client does not get: the server sets them itself
SERVER_FIELDS = {"status", "content-length", "connection", "transfer-encoding"}


class TimeLimitExceeded(Exception):
    """The program has exceeded its time limit."""


def respond(request: Request, root: str) -> Response:
    """Answer a request below /cgi-bin/. Raises Refused."""
    file, script, info = find_program(root, request.path)
    output = run(file, variables(request, script, info), request.body)
    return response_of(output, request, root)


def find_program(root: str, path: str) -> tuple[str, str, str]:
    """Return the program's file, SCRIPT_NAME and PATH_INFO. Raises Refused(404) if there is no such program.

    /cgi-bin/add/3%20m has the file ROOT/cgi-bin/add, SCRIPT_NAME /cgi-bin/add and PATH_INFO "/3 m".
    """
    # --- solution
    name, slash, rest = path.removeprefix(PROGRAMS).partition("/")
    name = unquote(name)
    file = os.path.join(root, "cgi-bin", name)
    # The name is one segment of the path. A decoded slash in the name would lead out of cgi-bin.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Refused(404)
    if not os.path.isfile(file) or not os.access(file, os.X_OK):
        raise Refused(404)
    return file, PROGRAMS + name, unquote(slash + rest)
    # --- starter
    # # Where does the program's name end? Which file does this code run for the path /cgi-bin/../../outside?
    # return root + unquote(path), path, ""
    # --- end


def variables(request: Request, script: str, info: str) -> dict[str, str]:
    """Return the environment of a program: RFC 3875, section 4.1."""
    # --- solution
    found = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GATEWAY_INTERFACE": "CGI/1.1",
        "SERVER_SOFTWARE": "lab/1",
        "SERVER_PROTOCOL": request.version,
        "SERVER_NAME": re.sub(r":\d*$", "", request.fields.get("host", "localhost")),  # without the port
        "SERVER_PORT": str(request.port),
        "REMOTE_ADDR": request.client,
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": script,
        "QUERY_STRING": request.query,
    }
    if info:
        found["PATH_INFO"] = info
    if request.body:
        found["CONTENT_LENGTH"] = str(len(request.body))
    if "content-type" in request.fields:
        found["CONTENT_TYPE"] = request.fields["content-type"]
    for name, value in request.fields.items():
        # X_A and X-A would become the same variable, so names with other characters than these are left out.
        if name not in WITHHELD and re.fullmatch(r"[a-z0-9-]+", name):
            found["HTTP_" + name.upper().replace("-", "_")] = value
    return found
    # --- starter
    # # This changes the environment of the whole server, so the next request finds the variables of this one.
    # os.environ["REQUEST_METHOD"] = request.method
    # os.environ["QUERY_STRING"] = request.query
    # # Which fields of a request must never become variables?
    # for name, value in request.fields.items():
    #     os.environ["HTTP_" + name.upper().replace("-", "_")] = value
    # return dict(os.environ)
    # --- end


def run(file: str, environment: dict[str, str], body: bytes) -> bytes:
    """Run a program; return its output.

    Raises Refused: 504 after TIME_LIMIT_S seconds, 502 if the program cannot be started or writes too much.
    """
    # --- solution
    deadline = time.monotonic() + TIME_LIMIT_S
    try:
        # start_new_session puts the program and its children into one process group, which killpg() can kill.
        program = subprocess.Popen(
            [file],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=os.path.dirname(file),
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError):  # ValueError: a NUL byte in a variable, from the request
        raise Refused(502) from None
    try:
        output = exchange(program, body, deadline)
        # The end of the output is not the end of the program.
        program.wait(max(0.0, deadline - time.monotonic()))
        return output
    except (TimeLimitExceeded, subprocess.TimeoutExpired):
        raise Refused(504) from None
    finally:
        for pipe in (program.stdin, program.stdout):
            pipe.close()
        # Kill before wait(): afterwards the kernel may give the process id to another process.
        if program.returncode is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    # --- starter
    # # What if the body exceeds the capacity of a pipe, and the program writes before it has read the whole body?
    # # What if the program does not read? What if it never ends? Where does the server wait for its end?
    # program = subprocess.Popen(
    #     [file], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    # )
    # program.stdin.write(body)
    # return program.stdout.read()
    # --- end


# --- solution
def exchange(program: subprocess.Popen[bytes], body: bytes, deadline: float) -> bytes:
    """Write the body and read the output, whenever a pipe is ready; return the output.

    Raises TimeLimitExceeded, and Refused(502) if the output is too long.
    """
    left = memoryview(body)
    output = bytearray()
    os.set_blocking(program.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(program.stdout, selectors.EVENT_READ)
        if left:
            selector.register(program.stdin, selectors.EVENT_WRITE)
        else:
            program.stdin.close()  # the program may wait for the end of its input
        while len(output) <= MAX_OUTPUT_BYTES:
            wait_limit = deadline - time.monotonic()
            if wait_limit <= 0:
                raise TimeLimitExceeded
            for key, _ in selector.select(wait_limit):
                if key.fileobj is program.stdout:
                    data = os.read(key.fd, 65536)
                    if not data:
                        return bytes(output)
                    output += data
                    continue
                try:
                    left = left[os.write(key.fd, left[:65536]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    left = left[:0]  # the program has closed its input; its output still counts
                if not left:
                    selector.unregister(program.stdin)
                    program.stdin.close()
    raise Refused(502)


# --- end
def response_of(output: bytes, request: Request, root: str) -> Response:
    """Translate a program's output to a response (RFC 3875, section 6). Raises Refused(502)."""
    # --- solution
    end = HEAD_END.search(output)
    if end is None:
        raise Refused(502)
    status, location, fields = "", "", []
    # splitlines() of bytes: that of a text would also split between the two bytes of "Å" in UTF-8.
    for line in output[: end.start()].splitlines():
        name, colon, value = line.decode("latin-1").partition(":")
        value = value.strip(" \t")
        if not colon or not re.fullmatch(r"[A-Za-z0-9-]+", name):
            raise Refused(502)
        if name.lower() == "status":
            status = value
        elif name.lower() == "location":
            location = value
        if name.lower() not in SERVER_FIELDS:
            fields.append((name, value))
    if location.startswith("/") and not status:
        return local_redirect(request, root, location, respond)
    status = status or ("302" if location else "200")
    if not STATUS.fullmatch(status):
        raise Refused(502)
    return Response(int(status[:3]), output[end.end() :], fields)
    # --- starter
    # # The output begins with a head: the server uses Status and Location, the client gets the other fields. The
    # # head ends with an empty line. What if there is no head?
    # return Response(200, output)
    # --- end


if __name__ == "__main__":
    main(respond)
