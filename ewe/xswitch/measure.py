"""First and average response times, with and without a warm parent; rates beside CGI. Loopback only, bounded.

    python -m ewe.xswitch.measure

Starts an X-Switch of its own. First: the median of requests that each need a new engine. Average: of requests to
an engine that is there, one at a time. Rate: ten clients at once. Memory: of an idle engine, private and shared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ewe.fastcgi import Output, Requester
from ewe.xswitch.settings import JAVA

FIRSTS = 15  # new engines
REQUESTS = 1500  # to one engine
CLIENTS = 10
EACH = 200  # requests of a client
CGI_EACH = 10
STARTS_IN = 10.0  # seconds

HEAD = "Content-Type: text/plain\\n\\n"
SCRIPTS = {  # 52 bytes each
    "python": (
        "hello.py",
        f'import html, http.cookies, json, re, urllib.parse\nprint("{HEAD}" + "x" * 51)\n',
    ),
    "perl": ("hello.pl", f'use strict;\nuse CGI;\nprint "{HEAD}", "x" x 51, "\\n";\n'),
    "php": ("hello.php", "<?php header('Content-Type: text/plain'); echo str_repeat('x', 51), \"\\n\";\n"),
    "java": (
        "shop/WEB-INF/classes/Hello.java",
        """import jakarta.servlet.annotation.*; import jakarta.servlet.http.*;
@WebServlet("/hello") public class Hello extends HttpServlet {
protected void doGet(HttpServletRequest request, HttpServletResponse response) throws java.io.IOException {
response.setContentType("text/plain"); response.getWriter().println("x".repeat(51)); } }""",
    ),
}
CGI = {"python": ["python3"], "perl": ["perl"], "php": ["php-cgi", "-q"]}


class Client:
    """One connection to an X-Switch."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requester = Requester()

    def ask(self, script: str, **params: str) -> bytes:
        """Return the answer to a request."""
        values = {"SCRIPT_FILENAME": script, "SCRIPT_NAME": script, "REQUEST_METHOD": "GET"}
        values |= {"REMOTE_ADDR": "127.0.0.1", **params}
        pairs = [(name.encode(), value.encode()) for name, value in values.items()]
        self.sock.sendall(self.requester.begin(pairs, keep=True) + self.requester.input(b""))
        answer = b""
        while self.requester.running:
            piece = self.sock.recv(65536)
            if not piece:
                raise ConnectionError("X-Switch closed the connection")
            answer += b"".join(each.data for each in self.requester.feed(piece) if isinstance(each, Output))
        return answer


@contextmanager
def running(directory: Path, settings: str) -> Iterator[int]:
    """Run an X-Switch for the scripts of a directory; yield its port."""
    config = directory / "xswitch.toml"
    config.write_text(f'roots = ["{directory}"]\nmax-engines-per-user = {CLIENTS}\n{settings}')
    log = directory / "log"
    command = [sys.executable, "-m", "ewe.xswitch.cli", "--listen", "127.0.0.1:0", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output)
    try:
        end = time.monotonic() + STARTS_IN
        while not (found := re.search(r"listens on 127\.0\.0\.1:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise ConnectionError(f"X-Switch does not start: {log.read_text().strip()}")
            time.sleep(0.02)
        time.sleep(1)  # for the warm parent
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def timed(client: Client, script: str) -> float:
    """Return the milliseconds of one request. Raises ConnectionError for a wrong answer."""
    began = time.perf_counter()
    answer = client.ask(script)
    took = time.perf_counter() - began
    if not answer.endswith(b"x" * 51 + b"\n"):
        raise ConnectionError(f"{script} answered {answer[:80]!r}")
    return took * 1000


def at_once(ask: list[threading.Thread], count: int) -> float:
    """Run threads to their end; return the rate of count requests."""
    began = time.perf_counter()
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    return count / (time.perf_counter() - began)


def rate(port: int, script: str) -> float:
    """Return the requests a second that ten clients get."""
    clients = [Client(port) for _ in range(CLIENTS)]
    for client in clients:
        client.ask(script)

    def ask(client: Client) -> None:
        for _ in range(EACH):
            client.ask(script)
        client.sock.close()

    return at_once([threading.Thread(target=ask, args=(client,)) for client in clients], CLIENTS * EACH)


def cgi_rate(command: list[str]) -> float:
    """Return the processes a second that ten starters get."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "REQUEST_METHOD": "GET", "REDIRECT_STATUS": "200"}
    environment["SCRIPT_FILENAME"] = command[-1]

    def start() -> None:
        for _ in range(CGI_EACH):
            subprocess.run(
                command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, check=True
            )

    return at_once([threading.Thread(target=start) for _ in range(CLIENTS)], CLIENTS * CGI_EACH)


def memory(client: Client, language: str) -> str:
    """Return the private and shared memory of an idle engine in MB: what a fork shares counts as shared."""
    answer = client.ask("", SCRIPT_NAME="/xswitch-status", QUERY_STRING="json")
    engines = json.loads(answer.partition(b"\r\n\r\n")[2])["engines"]
    pid = next(each["pid"] for each in engines if each["language"] == language)
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    private, shared = (
        sum(int(row[1]) for row in rows if row[0].startswith(kind)) * 1024 / 1e6
        for kind in ("Private_", "Shared_")
    )
    return f"{private:.1f} + {shared:.1f}"


def write_script(language: str, directory: Path) -> Path:
    """Write the script of a language; return its path. Raises CalledProcessError."""
    name, text = SCRIPTS[language]
    script = directory / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    script.chmod(0o755)
    if language != "java":
        return script
    library = next(Path(JAVA, "lib").glob("jakarta.servlet-api-*.jar"))
    subprocess.run(["javac", "-cp", library, script], check=True)
    return directory / "shop" / "hello"


def measure(language: str, directory: Path, warm: bool) -> list[str]:
    """Return a row of the table."""
    script = write_script(language, directory)
    setting = f"warm = {str(warm).lower()}\n"
    once = "[engines.java]\nmax-requests = 1\n" if language == "java" else "max-requests = 1\n"
    with running(directory, setting + once) as port:
        client = Client(port)
        firsts = [timed(client, str(script)) for _ in range(FIRSTS)]
        client.sock.close()
    with running(directory, setting) as port:
        client = Client(port)
        timed(client, str(script))
        average = statistics.mean(timed(client, str(script)) for _ in range(REQUESTS))
        used = memory(client, language)
        client.sock.close()
        engines = rate(port, str(script))
    plain = cgi_rate([*CGI[language], str(script)]) if language in CGI else 0
    first = statistics.median(firsts)
    cells = [language, "yes" if warm else "no", f"{first:.1f}", f"{average:.2f}", f"{engines:.0f}"]
    return [*cells, *((f"{plain:.0f}", f"{engines / plain:.0f}") if plain else ("-", "-")), used]


def main() -> int:
    """Measure all languages; print a table."""
    print(
        "language  warm  first ms  average ms  rate/s  CGI/s  ratio  idle MB (private + shared)", flush=True
    )
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        for language in SCRIPTS:
            if language == "java" and not os.path.exists(JAVA):
                print("java      not built: ewe-xswitch java")
                continue
            for warm in (False, True) if language in ("python", "perl") else (False,):
                row = measure(language, Path(directory), warm)
                widths = (9, 5, 9, 11, 7, 6, 6, 1)
                print(
                    " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), flush=True
                )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConnectionError, OSError, subprocess.CalledProcessError) as reason:
        sys.exit(f"measure: {reason}")
    except KeyboardInterrupt:
        sys.exit(130)
