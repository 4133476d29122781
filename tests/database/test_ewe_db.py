"""ewe_db.h, the daemon's client for programs in C: against the daemon, and against one that answers nonsense."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from database.test_daemon import COUNT, ENDLESS, Daemon
from support import needs, web
from support.server import ROOT, Start

from ewe.database import access_log
from ewe.database.protocol import DatabaseError, ServerResponse, encode_response
from ewe.libcgi.build import DIRECTORY, build

pytestmark = pytest.mark.starts_processes
# Asks once for each line of its input, "LAYOUT statement", on one connection as long as that is sound
ASKS = r"""
#include <ewe_db.h>

static void one(ewe_db *db, char *line, int argc, char **argv)
{
    char *statement = strchr(line, ' ');
    const char *piece;
    long length, whole = 0, pieces = 0;

    *statement++ = '\0';
    for (int at = 2; at < argc; at++) {
        char *value = strchr(argv[at], '=');
        const char *name = value == argv[at] + 1 ? NULL : argv[at] + 1;
        *value = '\0';
        switch (argv[at][0]) {
        case 't': ewe_db_text(db, name, value + 1); break;
        case 'i': ewe_db_integer(db, name, strtoll(value + 1, NULL, 10)); break;
        case 'f': ewe_db_real(db, name, strtod(value + 1, NULL)); break;
        case 'b': ewe_db_bytes(db, name, "\0\377", 2); break;
        case 'n': ewe_db_text(db, name, NULL); break;
        case 'N': ewe_db_limits(db, strtoll(value + 1, NULL, 10), 0.25); break;
        case 'k': ewe_db_key(db, value + 1); break;
        case 'x': ewe_db_bytes(db, name, calloc(1, 1 << 20), 1 << 20); break;
        }
        *value = '=';
    }
    if (ewe_db_ask(db, "log", statement, line) == 0) {
        while ((length = ewe_db_read(db, &piece)) > 0) {
            if (whole + length < 1000)
                fwrite(piece, 1, (size_t)length, stdout);
            whole += length;
            pieces++;
            if (strcmp(line, "XML") == 0)
                break;
        }
    }
    printf("|%d|%ld|%ld|%d|%s\n", ewe_db_status(db), whole, pieces, db->sock >= 0, ewe_db_error(db));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char line[1 << 16];
    ewe_db *db = ewe_db_new(argv[1]);

    ewe_db_timeout(db, 20000);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "WAIT ", 5) == 0)
            ewe_db_timeout(db, atoi(line + 5));
        else if (strcmp(line, "CLOSE") == 0)
            ewe_db_close(db);
        else
            one(db, line, argc, argv);
    }
    ewe_db_free(db);
    return 0;
}
"""
WARNS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g")
CHECKS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WHOLE = encode_response(ServerResponse(b"good", False))


@pytest.fixture(scope="module")
def asks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, which ends at the first access to memory that is not its own."""
    needs.require("gcc")
    directory = tmp_path_factory.mktemp("ewe_db")
    source, program = directory / "asks.c", directory / "asks"
    source.write_text(ASKS)
    command = ["cc", *WARNS, *CHECKS, f"-I{ROOT}/ewe/database", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return program


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    import signal
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        try:
            made.start()
            yield made
        finally:
            made.stop(signal.SIGKILL)


class Asking:
    """The program, asked line by line."""

    def __init__(self, program: Path, address: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [program, address, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8", errors="backslashreplace", env={"ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(60) == 0

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ask(self, statement: str, layout: str = "CSV") -> tuple[str, int, int, int, bool, str]:
        """Return the text, the status, the bytes, the pieces, whether it is still connected, and the error."""
        assert self.process.stdout is not None
        self.say(f"{layout} {statement}")
        text = ""
        while (line := self.process.stdout.readline()).count("|") != 5:
            assert line, f"the program has ended with {self.process.wait(60)}"
            text += line
        before, status, whole, pieces, connected, error = line.rstrip("\n").split("|", 5)
        return text + before, int(status), int(whole), int(pieces), connected == "1", error


@pytest.mark.needs("g++")
def test_it_compiles_as_cplusplus(tmp_path: Path) -> None:
    source = tmp_path / "plus.cpp"
    source.write_text('#include <ewe_db.h>\nint main() { ewe_db_free(ewe_db_new("unix:x")); }\n')
    command = ["c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT}/ewe/database", str(source)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.needs("gcc")
def test_the_program_of_the_docs_and_of_the_header(daemon: Daemon, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "database.md").read_text(encoding="utf-8")
    program = page.partition("```c\n")[2].partition("```")[0]
    for number, text in enumerate((program, whole_of_header())):
        source = tmp_path / f"{number}.c"
        text = text.replace("unix:/run/ewe-dbd.sock", daemon.address)
        source.write_text(
            text.replace("at, request FROM log WHERE address", "id, name FROM goods WHERE '10.0.0.1'")
        )
        command = ["cc", *WARNS, f"-I{ROOT}/ewe/database", "-o", str(tmp_path / "program"), str(source)]
        subprocess.run(command, check=True, timeout=120)
        done = subprocess.run([tmp_path / "program"], capture_output=True, timeout=60)
        assert done.stdout.startswith(b"Content-Type: text/html"), done
        assert b"<td>&lt;b&gt;&quot;wool&quot;" in done.stdout and done.returncode == 0


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_the_sample_library(model: str, start: Start, daemon: Daemon, tmp_path: Path) -> None:
    access_log.write_rows(str(daemon.directory / "log.db"), access_log.sample(300), new=True)
    build()
    libraries = tmp_path / "libcgi-bin"
    libraries.mkdir(mode=0o755)
    for name, address in (("database", daemon.address), ("alone", "unix:/nonexistent/daemon.sock")):
        command = [
            "cc",
            *WARNS,
            "-shared",
            "-fPIC",
            f"-I{DIRECTORY}",
            f"-I{ROOT}/ewe/database",
            f'-DDAEMON="{address}"',
        ]
        command += ["-o", str(libraries / f"{name}.so"), str(ROOT / "libcgi-bin" / "database.c")]
        subprocess.run(command, check=True, timeout=120)
    server = start(model, "--libcgi-path", str(libraries), "--user", "nobody")
    with web.Client(base_url=f"{server.url}libcgi-bin/", timeout=60) as client, ThreadPoolExecutor(8) as pool:
        for answer in pool.map(client.get, ["database.so?10.0.0.1"] * 24):
            assert answer.status_code == 200 and answer.text.count("<tr><td>") == 20
        assert client.get("database.so?10.0.0.1'--").text.count("<tr><td>") == 0
        answer = client.get("alone.so")
        assert (answer.status_code, answer.text) == (503, "The database gives no answer.\n")
    server.wait_for_log("database.so: unix:/nonexistent/daemon.sock: No such file or directory")


def whole_of_header() -> str:
    """Return the program in ewe_db.h's first comment."""
    lines = (ROOT / "ewe" / "database" / "ewe_db.h").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if "#include <stdio.h>" in line)
    last = next(number for number, line in enumerate(lines) if line == " *     }")
    return "\n".join(line.removeprefix(" *").removeprefix("     ") for line in lines[first : last + 1]) + "\n"


def test_parameters_of_every_type(asks: Path, daemon: Daemon) -> None:
    values = ["i=-7", "f=2.5", "t='; DROP TABLE goods --", "b=", "n="]
    with Asking(asks, daemon.address, *values) as asking:
        found = asking.ask("SELECT ? AS a, ? AS b, ? AS c, hex(?) AS d, ? IS NULL AS e")
        assert found[:2] == (
            "a,b,c,d,e\r\n-7,2.5,'; DROP TABLE goods --,00FF,1\r\n".replace("\r\n", "\n"),
            200,
        )
    with Asking(asks, daemon.address, "tname=ü", "in=3") as asking:
        assert asking.ask("SELECT :n + :n AS n, :name AS name", "TABLE")[0].split("<tbody>\n")[1] == (
            '<tr><td class="number">6</td><td>ü</td></tr>\n</tbody>\n</table>\n'
        )


def test_a_long_result_comes_in_pieces(asks: Path, daemon: Daemon) -> None:
    with Asking(asks, daemon.address, "i=100000") as asking:
        _, status, whole, pieces, _, _ = asking.ask(COUNT)
        assert (status, whole) == (
            200,
            sum(len(f"{n},text\r\n") for n in range(1, 100_001)) + len("n,'text'\r\n"),
        )
        assert pieces > 10
        # A result that the program has not read to its end does not disturb the next one
        assert asking.ask(COUNT, "XML")[3] == 1
        assert asking.ask(COUNT)[1:3] == (200, whole)


def test_errors_name_their_status_and_the_connection_lasts(asks: Path, daemon: Daemon) -> None:
    with Asking(asks, daemon.address) as asking:
        _, status, _, _, connected, error = asking.ask("nonsense")
        assert (status, connected) == (500, True) and error.startswith("STATEMENT: ")
        assert asking.ask("SELECT 1 AS n")[:2] == ("n\n1\n", 200)
    with Asking(asks, daemon.address, "N=5") as asking:
        _, status, _, _, connected, error = asking.ask(ENDLESS)
        assert (status, connected) == (504, True) and error.startswith("TIMEOUT: ")
    with Asking(asks, daemon.address, "x=") as asking:
        assert asking.ask("SELECT ?")[1::4] == (
            500,
            "the statement and its parameters are longer than a message",
        )


def test_the_daemon_is_restarted(asks: Path, daemon: Daemon) -> None:
    with Asking(asks, daemon.address) as asking:
        assert asking.ask("SELECT 1 AS n")[1] == 200
        daemon.stop()
        _, status, _, _, connected, error = asking.ask("SELECT 1 AS n")
        assert (status, connected) == (503, False) and daemon.address in error
        daemon.start()
        assert asking.ask("SELECT 1 AS n")[:2] == ("n\n1\n", 200)


@pytest.mark.parametrize(
    ("address", "status"),
    [("unix:/nonexistent/daemon.sock", 503), ("unix:" + "x" * 150, 500), ("x" * 400, 500), ("127.0.0.1", 500),
     ("127.0.0.1:", 500), ("", 500), ("[::1]:1", 503), ("127.0.0.1:1", 503)],
)  # fmt: skip
def test_addresses_where_no_daemon_is(asks: Path, address: str, status: int) -> None:
    with Asking(asks, address) as asking:
        found = asking.ask("SELECT 1")
        assert (found[1], found[4]) == (status, False) and found[5]


class Answers:
    """Takes connections at a TCP port; sends to each, after its request, the next of some answers, and closes."""

    def __init__(self, answers: Sequence[bytes], *, closes: bool = True) -> None:
        self.answers = answers
        self.closes = closes
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> Answers:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)  # ends an accept() that still waits
        self.thread.join(60)
        for sock in (*self.open, self.listening):
            sock.close()

    def run(self) -> None:
        for answer in self.answers:
            try:
                sock, _ = self.listening.accept()
            except OSError:
                return
            self.requests.append(sock.recv(65536))
            sock.sendall(answer)
            if self.closes:
                sock.close()
            else:
                self.open.append(sock)


def field(letter: bytes, content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">cI", letter, len(content) if length is None else length) + content


def framed(*fields: bytes) -> bytes:
    content = b"".join(fields)
    return struct.pack(">I", len(content)) + content


YES, NO = field(b"C", b"YES"), field(b"C", b"NO")
BAD = {
    "nothing": (b"", 503),
    "half a length": (b"\0\0", 503),
    "a length and no message": (b"\0\0\0\5", 503),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", 500),
    "4 GB": (b"\xff\xff\xff\xff", 500),
    "an empty message": (framed(), 500),
    "the end within a field": (framed(b"R\0\0"), 500),
    "a field longer than its message": (framed(field(b"R", b"x", 100), NO), 500),
    "a field of 4 GB": (framed(field(b"R", b"x", 0xFFFFFFFF), NO), 500),
    "a field that is unknown": (framed(field(b"Z", b""), NO), 500),
    "a field named NUL": (framed(field(b"\0", b""), NO), 500),
    "no ContinueFlow": (framed(field(b"R", b"x")), 500),
    "another ContinueFlow": (framed(field(b"C", b"MAYBE")), 500),
    "an empty ContinueFlow": (framed(field(b"C", b"")), 500),
    "ContinueFlow twice": (framed(NO, NO), 500),
    "an error that is unknown": (framed(field(b"E", b"OTHER\0text"), NO), 500),
    "an error without a text": (framed(field(b"E", b"TIMEOUT"), NO), 504),
    "an empty error": (framed(field(b"E", b""), NO), 500),
    "an error with control characters": (framed(field(b"E", b"FORBIDDEN\0a\nb\33[0m\0"), NO), 403),
    "a long error": (framed(field(b"E", b"UNAVAILABLE\0" + b"x" * 100_000), NO), 503),
    "more that does not come": (framed(field(b"R", b"x"), YES), 503),
    "more that is no frame": (framed(field(b"R", b"x"), YES) + b"\xff" * 20, 500),
    "an error in the middle": (
        framed(field(b"R", b"x"), YES)
        + encode_response(ServerResponse(b"", False, DatabaseError("TIMEOUT", "late"))),
        504,
    ),
}  # fmt: skip


def test_no_bad_answer_is_taken_for_good(asks: Path) -> None:
    answers = [*(answer for answer, _ in BAD.values()), WHOLE]
    with Answers(answers) as peer, Asking(asks, peer.address) as asking:
        for name, (_, status) in BAD.items():
            asking.say("CLOSE")  # the peer may be slower to close
            found = asking.ask("SELECT 1")
            assert (found[1], bool(found[5])) == (status, True), name
            assert all(" " <= each != "\x7f" for each in found[5]), name
        asking.say("CLOSE")
        assert asking.ask("SELECT 1")[:2] == ("good", 200)
    assert all(request == peer.requests[0] for request in peer.requests)


def test_mutated_answers_end_in_an_error_or_in_a_result(asks: Path) -> None:
    chance = random.Random(13)
    good = framed(field(b"R", b"<table>"), YES) + framed(NO, field(b"R", b"</table>"))
    answers = []
    for _ in range(300):
        answer = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            answer[chance.randrange(len(answer))] = chance.choice((0, 1, 5, 67, 69, 127, 128, 255))
        cut = chance.choice((len(answer), chance.randrange(len(answer))))
        answers.append(bytes(answer[:cut]))
    with Answers([*answers, WHOLE]) as peer, Asking(asks, peer.address) as asking:
        for _ in answers:
            asking.say("CLOSE")
            assert asking.ask("SELECT 1")[1] in (200, 403, 500, 503, 504)
        asking.say("CLOSE")
        assert asking.ask("SELECT 1")[:2] == ("good", 200)
        assert len(peer.requests) == len(answers) + 1


def test_an_error_that_comes_before_the_whole_request_is_sent(asks: Path, tmp_path: Path) -> None:
    """The daemon refuses an account when it connects, and closes the connection."""
    refusal = encode_response(ServerResponse(b"", False, DatabaseError("FORBIDDEN", "not here")))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        listening.listen()

        def refuse() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(1)
                sock.sendall(refusal)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        # More than the buffer of the socket holds: the program is still sending
        with Asking(asks, f"unix:{tmp_path}/sock", *[f"t={'x' * 100_000}"] * 8) as asking:
            assert asking.ask("SELECT 1")[1::4] == (403, "FORBIDDEN: not here")
        refusing.join(60)


def test_bytes_that_were_not_asked_for_are_no_answer(asks: Path) -> None:
    lies = encode_response(ServerResponse(b"not yours", False))
    with Answers([WHOLE + lies, WHOLE], closes=False) as peer, Asking(asks, peer.address) as asking:
        assert [asking.ask("SELECT 1")[0] for _ in range(2)] == ["good", "good"]


def test_a_daemon_that_does_not_answer_is_waited_for_no_longer_than_the_timeout(asks: Path) -> None:
    with Answers([b"\0\0\0"], closes=False) as peer, Asking(asks, peer.address) as asking:
        asking.say("WAIT 200")
        _, status, _, _, connected, error = asking.ask("SELECT 1")
        assert (status, connected) == (503, False) and "has not answered within 200 ms" in error


def test_a_key_is_sent(asks: Path) -> None:
    with Answers([WHOLE]) as peer, Asking(asks, peer.address, "k=open sesame") as asking:
        assert asking.ask("SELECT 1")[1] == 200
    assert field(b"K", b"open sesame") in peer.requests[0]
