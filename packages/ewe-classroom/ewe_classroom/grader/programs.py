"""Checks of CGI (RFC 3875): a program's environment, the pipes to and from it, and its end.

    client ──request──▶ server ──environment, body──▶ program
    client ◀─response── server ◀──head, body──────── program      the server waits for the program, too

The programs and their gates are in site_programs.py. A program waits at a gate until the grader opens the gate. The
schedule therefore decides how long a program takes, and the speed of the machine does not matter.
"""

from __future__ import annotations

from ewe_classroom.grader.check import check
from ewe_classroom.grader.responses import Response
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.site_programs import EARLY_BYTES, OUTSIDE_TEXT, PROGRAM_SOURCE_TEXT

LINE = bytes(range(32, 127)) + b"-\n" + bytes(range(31))  # 128 bytes; a body repeats this line
PIPE_OVERFLOW_LINES = 8192  # 1 MB of such lines: sixteen times the capacity of a pipe
PROGRAM_ERROR_STATUSES = (500, 502)
REQUEST_PARTS = ("SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "CONTENT_LENGTH")
PARTS_CAUSE = "path, query and body length belong into separate variables (section 4.1)"


def ask(
    scene: Scene,
    path: str,
    fields: dict[str, str] | None = None,
    body_lines: int | None = None,
    name: str = "",
) -> SceneClient:
    """Send a request for a program; return its client.

    fields: more fields of the head. body_lines: how often the body of a POST repeats LINE; None: send GET.
    """
    host = f"localhost:{scene.subject.port}"
    method = "GET" if body_lines is None else "POST"
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    head += [f"{field}: {value}" for field, value in (fields or {}).items()]
    if body_lines is not None:
        head.append(f"Content-Length: {len(LINE) * body_lines}")
    client = scene.client(name)
    client.path = path
    client.send("\r\n".join([*head, "", ""]).encode("latin-1"))
    if body_lines:
        client.send(LINE, body_lines)
    return client


def response_of(scene: Scene, client: SceneClient, because: str = "") -> Response:
    """Return the response to a request for a program; fail without one. because: the likely cause."""
    scene.until_answered(client)
    if not client.answered():
        scene.expect_alive(f"a request for {client.path}")
        scene.fail(
            f"{client.name} asked for {client.path} and {client.outcome_text()}{scene.blocked_text()}",
            "run the program, and answer with its output",
            because
            or "the server waits for the program, and the program for the server; or the thread has ended",
        )
    return client.answers[-1]


def run(
    scene: Scene,
    path: str,
    fields: dict[str, str] | None = None,
    body_lines: int | None = None,
    because: str = "",
    status: int = 200,
) -> Response:
    """Request a program; return the response. Fail without a response, or if it has another status.

    fields: more fields of the head. body_lines: how often the body of a POST repeats LINE; None: send GET.
    because: the likely cause of a failure.
    """
    client = ask(scene, path, fields, body_lines)
    response = response_of(scene, client, because)
    if response.status != status:
        scene.fail(
            f"the request for {path} got status {response.status}",
            f"run the program, and answer {status} with its output",
            because,
        )
    client.close()
    return response


def environment(
    scene: Scene, path: str, fields: dict[str, str], body_lines: int | None = None, because: str = ""
) -> dict[str, str]:
    """Request the program that prints its environment; return its variables. Fail if it does not answer with 200.

    fields: of the request. body_lines: how often the body of a POST repeats LINE; None: send GET. because: the
    likely cause of a failure.
    """
    # The program prints its /proc/PID/environ, in which a NUL ends each NAME=value.
    body = run(scene, path, fields, body_lines, because).body.decode("latin-1")
    return dict(text.partition("=")[::2] for text in body.split("\0") if "=" in text)


@check(
    "cgi-environment",
    proves="a program gets all variables of its request, exactly as in RFC 3875",
    sends="POST with a path after the program's name, a query and a body; then GET without these",
    expects=(
        "PATH_INFO decoded, QUERY_STRING not decoded, CONTENT_LENGTH of the body, HTTP_* "
        "for the fields; for the GET none of these, and an empty QUERY_STRING"
    ),
    why="The environment is the interface of CGI: programs in any language, from any decade, read it.",
    hint=(
        "RFC 3875, section 4.1. Make a new dictionary for each request. Percent-decode the path and not the query. "
        "PATH_INFO begins after the program's name."
    ),
)
def cgi_environment(scene: Scene) -> None:
    fields = {"Content-Type": "text/x-lines", "X-Two-Words": "seven", "Cookie": "a=b"}
    found = environment(
        scene,
        "/cgi-bin/environment/more/a%20b?x=%2F&y=1+2",
        fields,
        body_lines=3,
        because="the program's name ends at the next slash; the rest of the path is PATH_INFO",
    )
    expected = {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "/cgi-bin/environment",
        "PATH_INFO": "/more/a b",
        "QUERY_STRING": "x=%2F&y=1+2",
        "CONTENT_LENGTH": str(3 * len(LINE)),
        "CONTENT_TYPE": "text/x-lines",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": str(scene.subject.port),
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_COOKIE": "a=b",
        "HTTP_X_TWO_WORDS": "seven",
    }
    for name, value in expected.items():
        if found.get(name) != value:
            scene.fail(
                f"the program got {variable_text(name, found)}",
                f"give it {name}={value}",
                PARTS_CAUSE if name in REQUEST_PARTS else "",
            )
    if not found.get("SERVER_SOFTWARE"):
        scene.fail(
            f"the program got {variable_text('SERVER_SOFTWARE', found)}", "set it to the name of your server"
        )
    found = environment(scene, "/cgi-bin/environment", {})
    if found.get("QUERY_STRING") != "":
        scene.fail(
            f"the request had no query, and the program got {variable_text('QUERY_STRING', found)}",
            "set QUERY_STRING to an empty value: section 4.1.7 requires the variable",
        )
    for name in ("PATH_INFO", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_COOKIE", "HTTP_X_TWO_WORDS"):
        if found.get(name, "") not in ("", "0"):
            scene.fail(
                f"the GET had no body, path or cookie, and the program got {variable_text(name, found)}",
                f"leave {name} out",
                "variables of an earlier request are still there: all requests share one dictionary (os.environ?)",
            )
    scene.confirm(f"{len(expected) + 2} variables were right, and none of them reached the next request")


def variable_text(name: str, found: dict[str, str]) -> str:
    """Return a variable as text for a verdict."""
    return f"{name}={found[name]}" if name in found else f"no {name}"


SECRETS = {
    "Proxy": "http://evil.example:8080/",
    "Authorization": "Basic c2VjcmV0OnNlY3JldA==",
    "Proxy-Authorization": "Basic cHJveHk6cHJveHk=",
}


@check(
    "cgi-secrets",
    proves="no header field becomes a variable that programs trust or that contains a password",
    sends="a request with the fields Proxy, Authorization and Proxy-Authorization",
    expects="no HTTP_PROXY, HTTP_AUTHORIZATION or HTTP_PROXY_AUTHORIZATION; the field Cookie as HTTP_COOKIE",
    why=(
        "Many libraries use HTTP_PROXY as the address of their proxy, so a visitor could direct the program's "
        "requests to another server (httpoxy, 2016). `ps e` shows the environment, and so a password in it."
    ),
    hint="Leave out these three fields; make HTTP_* variables of the others (RFC 3875, section 4.1.18).",
)
def cgi_secrets(scene: Scene) -> None:
    found = environment(scene, "/cgi-bin/environment", {**SECRETS, "Cookie": "a=b"})
    for field, value in SECRETS.items():
        # Look for the value, since a server may give the variable any name.
        names = [name for name, text in found.items() if text == value]
        if names:
            scene.fail(
                f"the field {field} of the request became {names[0]} in the program's environment",
                f"leave the field {field} out",
                "every field becomes HTTP_ and its name, without an exception",
            )
    if found.get("HTTP_COOKIE") != "a=b":
        scene.fail(f"the program got {variable_text('HTTP_COOKIE', found)}", "give it HTTP_COOKIE=a=b")
    scene.confirm("the fields Proxy, Authorization and Proxy-Authorization did not reach the program")


@check(
    "cgi-body",
    proves="a program reads the body of the request, and then the end of its input",
    sends="GET for a program that copies its input to its output; then POST with 0, 128 and 51,200 bytes",
    expects="the same bytes; for GET no bytes, because the input of a request without a body ends immediately",
    why="A program reads until the end of its input. If the server keeps its end of the pipe open, both wait.",
    hint="Close the writing end of the pipe after the body. No child process may keep a copy of it.",
)
def cgi_body(scene: Scene) -> None:
    for body_lines in (None, 0, 1, 400):  # no body; 0, 128 and 51,200 bytes
        body = LINE * (body_lines or 0)
        found = run(
            scene,
            "/cgi-bin/echo",
            body_lines=body_lines,
            because="the program's input does not end: a process still has the writing end of its pipe open, or "
            "the server reads all of the output before it writes the body",
        ).body
        if found != body:
            scene.fail(
                f"the body has {len(body)} bytes, and the program read {len(found)} bytes"
                + ("" if len(found) != len(body) else f" that differ: {found[:20]!r}"),
                "write the body to the program's standard input, Content-Length bytes in all",
                "the server loses the bytes that came with the head, or stops reading before the end of the body",
            )
    scene.confirm("four bodies reached the program unchanged, and its input ended")


@check(
    "cgi-deadlock",
    proves="a program may write more than the capacity of a pipe before it has read its input",
    sends=f"POST with 1 MB to a program that copies it; then to a program that first writes {EARLY_BYTES >> 10} KB",
    expects="the whole output",
    why=(
        "A pipe has a capacity of 64 KB. If the server writes the whole body first, the output fills one pipe, the "
        "program stops reading, the other pipe fills, and both processes wait until they are killed."
    ),
    hint=(
        "Write and read in turns, whenever a pipe is ready: use non-blocking descriptors and select(), or one "
        "thread for writing and one for reading."
    ),
)
def cgi_deadlock(scene: Scene) -> None:
    because = (
        "two full pipes: the server writes and does not read, the program writes and does not read; "
        "each waits for the other (a deadlock)"
    )
    sent_body = LINE * PIPE_OVERFLOW_LINES
    # Both programs copy the body of the request. The second one first writes NUL bytes (site_programs.py).
    for name, early_bytes in (("echo", 0), ("talks-first", EARLY_BYTES)):
        received = run(scene, f"/cgi-bin/{name}", body_lines=PIPE_OVERFLOW_LINES, because=because).body
        expected = bytes(early_bytes) + sent_body
        if received != expected:
            differ = " that differ" if len(received) == len(expected) else ""
            scene.fail(
                f"the program wrote {len(expected)} bytes, and the client got {len(received)} bytes{differ}",
                "send all of the output, unchanged",
                "the server stops reading after the body is written, or after a read that returns few bytes",
            )
    scene.confirm("1 MB went into each of two programs and came back, while both pipes were full")


@check(
    "cgi-no-reader",
    proves="a program may leave its input unread",
    sends="POST with 1 MB to a program that answers without reading, and to a program that closes its input",
    expects="200 and the program's output, each time; then a response to the next request",
    why="Writing to a pipe without a reader fails with EPIPE, and raises SIGPIPE, which ends a program in C.",
    hint="At EPIPE (BrokenPipeError), stop writing, and go on reading the output.",
)
def cgi_no_reader(scene: Scene) -> None:
    because = "the error of the write (EPIPE, BrokenPipeError) ends the request; the program has answered"
    for name in ("reads-nothing", "closes-input"):
        for _ in range(2):
            response = run(scene, f"/cgi-bin/{name}", body_lines=PIPE_OVERFLOW_LINES, because=because)
            if response.body != b"done\n":
                scene.fail(
                    f"the program wrote 'done', and the client got {response.body[:60]!r}",
                    "send the program's output",
                    because,
                )
    scene.expect_answer(after="programs did not read their input", because=because)
    scene.confirm("the output of four programs that did not read their input reached the client")


@check(
    "cgi-status",
    proves="the head of a program's output decides the response",
    sends=(
        "requests for programs that write Status, Location with a URL, Location with a "
        "path, and a head with bare line feeds"
    ),
    expects="the program's status and fields; 302 for a URL; for a path, the response of that path",
    why="The server uses Status and Location; the client gets the other fields.",
    hint="RFC 3875, section 6. Split at the first empty line; a line may end with CR LF or with LF alone.",
)
def cgi_status(scene: Scene) -> None:
    own_status = run(scene, "/cgi-bin/status", status=418)
    for field, value in (("Content-Type", "text/x-tea"), ("X-Two", "2")):
        passed_on = own_status.fields.get(field)
        if passed_on != value:
            scene.fail(
                f"the program wrote '{field}: {value}', and the response has {field}: {passed_on}",
                "pass on the fields that the program wrote",
            )
    if "Status" in own_status.fields:
        scene.fail(
            "the response has the field Status",
            "put the status into the status line, and leave the field out",
        )
    plain = run(
        scene, "/cgi-bin/line-feeds", because="a head whose lines end with LF alone is not understood"
    )
    if plain.body != b"lf\n" or plain.fields.get("Content-Type") != "text/x-lf":
        scene.fail(
            f"the program's head has lines that end with LF; the client got the body {plain.body[:60]!r}",
            "also accept LF alone: programs print lines",
        )
    moved = run(scene, "/cgi-bin/moved", status=302, because="Location with a URL requires 302 Found")
    if moved.fields.get("Location") != "http://example.com/there":
        scene.fail(
            f"the response has Location: {moved.fields.get('Location')}", "pass on the program's field"
        )
    local = run(
        scene, "/cgi-bin/elsewhere", because="for Location with a path, the server answers with that path"
    )
    if local.body != scene.site.files["/folder/deep.txt"]:
        scene.fail(
            f"the program wrote 'Location: /folder/deep.txt', and the client got {local.body[:60]!r}",
            "answer as if the client had requested that path (section 6.2.2)",
        )
    scene.confirm("four heads of programs became the right responses")


@check(
    "cgi-bad-output",
    proves="a failing program affects only its own request",
    sends="requests for programs that write nothing, no head, half a head or a wrong status, or are killed",
    expects="status 502 or 500 each time; 404 for a missing program; never the source of a program; then 200",
    why="Programs fail daily. The client needs a response, and other clients must not notice.",
    hint=(
        "Check the program's output: a missing head and half a head are errors of the program, not "
        "of your server."
    ),
)
def cgi_bad_output(scene: Scene) -> None:
    # Each of these programs fails in the way that its name says (site_programs.py).
    for name in ("says-nothing", "has-no-head", "ends-in-head", "bad-status", "is-killed"):
        client = ask(scene, f"/cgi-bin/{name}", name=name)
        response = response_of(
            scene,
            client,
            "an exception while parsing the program's output ends the conversation, or its thread",
        )
        if response.status not in PROGRAM_ERROR_STATUSES:
            scene.fail(
                f"the program {name} failed, and the client got status {response.status}",
                "answer 502 (or 500)",
                "the server does not check the output: a head, an empty line, a status of three digits",
            )
    # Neither file can be run: one does not exist, and the other one has no execute permission.
    for name, statuses in (("missing", (404,)), ("not-executable", (403, 404, *PROGRAM_ERROR_STATUSES))):
        client = ask(scene, f"/cgi-bin/{name}", name=name)
        response = response_of(scene, client)
        if PROGRAM_SOURCE_TEXT.strip() in response.body:
            scene.fail(
                "a file below cgi-bin that is not executable was sent as a file: its source is public",
                "answer 403 or 404",
                "a file below cgi-bin that is not a program is served like the files of the site",
            )
        if response.status not in statuses:
            scene.fail(
                f"/cgi-bin/{name} got status {response.status}",
                f"answer {' or '.join(map(str, statuses))}",
                "the server does not check that the program exists before it starts it",
            )
    if run(scene, "/cgi-bin/hello").body != b"Hello from a program.\n":
        scene.fail(
            "after programs failed, the output of the next program is wrong", "send the program's output"
        )
    scene.confirm("five programs failed and two could not be run; each client got the right status")


@check(
    "cgi-outside",
    proves="no request runs a program outside cgi-bin",
    sends="paths such as /cgi-bin/../../outside, plain and percent-encoded",
    expects="any response without the program's output",
    why="If visitors can run any program of the machine, they control the machine.",
    hint="The program's name is one segment of the path: decode it, and refuse slashes, dot segments and NUL.",
)
def cgi_outside(scene: Scene) -> None:
    paths = ("../../outside", "..%2f..%2foutside", "%2e%2e/%2e%2e/outside", "hello/..%2f..%2f..%2foutside")
    for path in paths:
        client = ask(scene, f"/cgi-bin/{path}")
        scene.until_answered(client)
        if client.has_got(OUTSIDE_TEXT.encode()):
            scene.fail(
                f"GET /cgi-bin/{path} ran a program that lies outside cgi-bin",
                "answer 400, 403 or 404",
                "the server joins the path to the directory, and runs the file without a check",
            )
    run(scene, "/cgi-bin/hello", because="an earlier request named a path with ..")
    scene.confirm(f"{len(paths)} paths with .. ran no program")
