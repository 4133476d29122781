"""Checks of one conversation: the bytes of each response, and the end of the connection.

TCP carries a stream of bytes, and has no messages. One recv() may return a part of a request, or several requests.
One send() may take a part of a response. A server that takes one recv() for one request works in its author's test,
where each message arrives as a whole. These checks choose the pieces:

    byte-by-byte      the head arrives one byte at a time: when is it complete?
    pipelined         two requests arrive together: the second is already in the buffer
    answers           the client reads late, so send() takes only a part of a large file
    half-close        FIN comes after a request, whose client still waits; or within a head, which stays incomplete
    content-length,
    keep-alive        the end of a response is at its last byte, or at the end of the connection

Possible failures: the kernel joins or divides the pieces on their way. Over the loopback interface a piece arrives
as it was sent, if the server has read the earlier one. The scene waits for that.

Read next: responses.py, how the grader reads a response.
"""

from __future__ import annotations

from ewe_classroom.grader.check import check
from ewe_classroom.grader.responses import Response
from ewe_classroom.grader.scene import STAYS_OPEN, Scene, SceneClient

KEPT_REQUESTS = 5  # requests on one connection that stays open


def cause_of_open_connection(scene: Scene, otherwise: str) -> str:
    """Return the likely cause if the server does not close a connection.

    otherwise: the cause if a thread may still serve the connection.
    """
    if scene.no_thread_receives():
        return "the conversation has ended, and nothing closes its connection: no thread is in recv()"
    return otherwise


@check(
    "answers",
    proves="the server serves files, byte for byte",
    sends=(
        "GET for files of 0, 14, 65,792 and 8,388,608 bytes, and for the files of --seed, on one connection each; "
        "the client begins to read the largest file only when the server waits for it"
    ),
    expects="status 200 and exactly the file",
    why="All other checks depend on this one. Text files hide mistakes that binary and large files show.",
    hint="Open files in binary mode. send() may take fewer bytes than it is given: use sendall(), or loop.",
)
def answers(scene: Scene) -> None:
    paths = [
        "/hello.txt",
        "/empty.txt",
        "/bytes.bin",
        "/large.bin",
        "/folder/deep.txt",
        *scene.site.seed_files,
    ]
    for path in paths:
        if path == "/large.bin":
            # A client that reads immediately may empty the buffers as fast as one send() fills them. The send()
            # then takes the whole file, and a server without a loop would pass.
            client = scene.client("a client that reads late", reads=False).ask(path, Connection="close")
            scene.settle()
            client.read_on()
            scene.until_answered(client)
            scene.expect_file(client, path)
            client.close()
        else:
            scene.expect_answer(path)
    scene.confirm(f"{len(paths)} files arrived unchanged")


@check(
    "content-length",
    proves="Content-Length is the true length of the body",
    sends="GET for files of 0, 14 and 65,792 bytes",
    expects="Content-Length is the size of the file; without the field, the end of the connection ends the body",
    why="The client finds the next response by this number. A wrong number shifts or cuts every later response.",
    hint="Content-Length counts bytes of the body: os.path.getsize(), or len() of bytes, not of a str.",
)
def content_length(scene: Scene) -> None:
    for path in ("/empty.txt", "/hello.txt", "/bytes.bin"):
        size = len(scene.site.files[path])
        client = scene.client().ask(path, Connection="close")
        # Wait for the end of the connection, not of the response: surplus bytes would come after it.
        scene.until(client.over, f"{client.name} sees the end")
        responses = client.reader.responses
        if not responses:
            scene.fail(f"{client.name} {client.outcome_text()}", "answer with a response")
        length = responses[0].length
        if length is not None and length != size:
            scene.fail(
                f"the response for {path} has Content-Length {length}; the file has {size} bytes",
                f"announce {size}",
                "the length does not count the bytes of the body",
            )
        if client.reader.buffer:
            scene.fail(
                f"{len(client.reader.buffer)} bytes followed the response for {path}, past its Content-Length",
                "send nothing after the body",
                "Content-Length is too small",
            )
        client.close()
    scene.confirm("the lengths of three responses were right")


@check(
    "not-found",
    proves="the response for a missing file is 404, and the server goes on",
    sends="GET for a missing file, then for a file that exists",
    expects="404, then 200",
    why="An exception in one request must not end the server or its worker.",
    hint="Catch the exception of open() where you call it, and send a response.",
)
def not_found(scene: Scene) -> None:
    for _ in range(scene.workers + 1):  # if each 404 ended a worker, none would be left
        client = scene.client().ask("/missing.txt", Connection="close")
        scene.until_answered(client)
        scene.expect_alive("a request for a missing file")
        if not client.answered():
            scene.fail(
                f"{client.name} asked for a missing file and {client.outcome_text()}",
                "answer 404",
                "the exception of open() ends the conversation, or its thread",
            )
        if client.answers[-1].status != 404:
            scene.fail(f"status {client.answers[-1].status} for a missing file", "answer 404")
        client.close()
    scene.expect_answer(after="a 404")
    scene.confirm(f"{scene.workers + 1} requests for a missing file got 404, and the next one was answered")


@check(
    "outside",
    proves="no request reads a file outside the document root",
    sends="GET with ../secret.txt, also percent-encoded and after a directory",
    expects="any response without the file's bytes",
    why="One such path gives every file of the account to every visitor.",
    hint=(
        "Percent-decode, remove dot segments (or os.path.realpath), then check that the "
        "result begins with the root."
    ),
)
def outside(scene: Scene) -> None:
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/folder/../../secret.txt", "/..%2fsecret.txt"):
        client = scene.client().send(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        scene.until_answered(client)
        if client.has_got(scene.site.secret):
            scene.fail(
                f"GET {path} was answered with a file outside the document root",
                "answer 400, 403 or 404",
                "the path is joined to the root and opened without a check",
            )
        client.close()
    scene.expect_answer(after="paths with ..")
    scene.confirm("four paths with .. reached no file outside the root")


@check(
    "byte-by-byte",
    proves="the server reads a request to its end, in any number of pieces",
    sends="a request in single bytes; the client sends a byte when the server has received the one before",
    expects="200 and the file",
    why="TCP carries a stream of bytes, not messages. On a real network a request arrives in pieces.",
    hint="Collect bytes in a buffer and receive again until the buffer holds the empty line (CR LF CR LF).",
)
def byte_by_byte(scene: Scene) -> None:
    client = scene.client()
    request = client.request("/hello.txt", Connection="close")
    for index in range(len(request)):
        client.send(request[index : index + 1])
        # The wait ends when the server is quiescent: it has read the byte, and waits for the next one.
        scene.until(lambda: client.answered_or_over(), "the server receives this byte", sure=False)
        if client.over() or client.reader.responses:
            break
    scene.until_answered(client)
    if index < len(request) - 1:
        scene.fail(
            f"the server answered or closed after {index + 1} of {len(request)} bytes: the client "
            f"{client.outcome_text()}",
            "wait for the whole head of the request",
            "one recv() is taken for one request",
        )
    scene.expect_file(client, "/hello.txt", because="one recv() is taken for one request")
    scene.confirm(f"the server read {len(request)} segments of one byte as one request")


@check(
    "half-close",
    proves="a client that has finished sending still gets its response",
    sends="a request and FIN (the client closes its sending half)",
    expects="200 and the whole file",
    why=(
        "Programs such as `printf ... | nc` send a request and close their sending half. They still wait for "
        "the response."
    ),
    hint="If recv() returns b'', no more bytes will come. The client may still wait for the response.",
)
def half_close(scene: Scene) -> None:
    client = scene.client().ask("/bytes.bin", Connection="close").half_close()
    scene.until_answered(client)
    scene.expect_file(client, "/bytes.bin", because="the end of the client's bytes is taken for a disconnect")
    client.close()
    client = scene.client().send(b"GET /hello.txt HT").half_close()
    scene.until(client.over, f"{client.name} sees the end of the connection")
    if not client.over():
        scene.fail_once(
            STAYS_OPEN,
            f"half a request and FIN have arrived, and the connection stays open{scene.blocked_text()}",
            "close the connection: the rest of the request can never come",
            cause_of_open_connection(scene, "a loop calls recv() again although recv() returns b''"),
        )
    scene.expect_answer(after="half a request and FIN")
    scene.confirm("a request with FIN got a response; after half a request with FIN the server closed")


@check(
    "pipelined",
    proves="two requests in one segment get two responses, in the same order",
    sends="two requests in one send",
    expects="both responses in order; or the first, with Connection: close or as HTTP/1.0",
    why="A server that throws its buffer away after a request loses the beginning of the next request.",
    hint="Keep the bytes after the empty line in the buffer of the connection: they belong to the next request.",
)
def pipelined(scene: Scene) -> None:
    client = scene.client()
    client.send(client.request("/1.txt") + client.request("/2.txt"))
    scene.until(lambda: len(client.answers) == 2 or client.over(), "two answers")
    if not client.answers:
        scene.fail(
            f"two requests in one segment: the client {client.outcome_text()}", "answer both, in order"
        )
    scene.expect_body(client, client.answers[0], "/1.txt")
    if client.answers[0].keeps_open:
        if len(client.answers) < 2:
            scene.fail(
                "the first response promised to keep the connection open; the second request, sent with the first, "
                f"was lost: the client {client.outcome_text()}",
                "answer the second request, too",
                "the server throws away the bytes after the first request, or breaks its promise",
            )
        scene.expect_body(client, client.answers[1], "/2.txt")
        scene.confirm("two pipelined requests got their responses in order")
    else:
        scene.confirm("the first request got a response, which announced the close of the connection")


def next_response(scene: Scene, client: SceneClient, number: int) -> Response:
    """Send the client's request `number` (the first is 0) on its open connection; return the response, or fail."""
    client.ask(f"/{number}.txt")
    scene.until(lambda: len(client.answers) == number + 1 or client.over(), "the answer")
    if len(client.answers) <= number:
        if number == 0:
            scene.fail(
                f"a request without Connection: close: the client {client.outcome_text()}",
                "answer the request",
            )
        scene.fail(
            f"response {number} promised to keep the connection open, and request {number + 1} on it failed: "
            f"the client {client.outcome_text()}",
            "answer the next request, or send Connection: close with the previous response",
            "the server closes each connection but answers as HTTP/1.1 without saying so",
        )
    scene.expect_body(client, client.answers[-1], f"/{number}.txt")
    return client.answers[-1]


@check(
    "keep-alive",
    proves="the connection stays open as long as the response promises",
    sends=f"{KEPT_REQUESTS} requests on one connection; then one with Connection: close; then one of HTTP/1.0",
    expects="a response to each promised request; a close after Connection: close and after HTTP/1.0",
    why=(
        "HTTP/1.1 keeps connections open unless one side sends Connection: close. A broken promise "
        "is a lost request."
    ),
    hint=(
        "If you close after each response, send Connection: close. If the request has Connection: "
        "close, close too."
    ),
)
def keep_alive(scene: Scene) -> None:
    client = scene.client()
    for number in range(KEPT_REQUESTS):
        if not next_response(scene, client, number).keeps_open:
            break
    count = len(client.answers)
    client.close()
    for version, fields in (("1.1", {"Connection": "close"}), ("1.0", {})):
        client = scene.client().ask("/hello.txt", version, **fields)
        scene.until(client.over, f"{client.name} sees the end of the connection")
        if not client.over():
            what = "HTTP/1.0" if version == "1.0" else "Connection: close"
            scene.fail_once(
                STAYS_OPEN,
                f"the connection stays open after a request with {what}: the client {client.outcome_text()}",
                "close the connection after the response",
                cause_of_open_connection(
                    scene,
                    "the server does not read the version and Connection of the request, or a descriptor of the "
                    "connection stays open",
                ),
            )
        scene.expect_file(client, "/hello.txt")
        client.close()
    scene.confirm(f"{count} requests on one connection got responses; the server closed as announced")
