"""Checks of one conversation: is each request answered, with the right bytes, and where does a connection end?"""

from __future__ import annotations

from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Scene


@check(
    "answers",
    proves="the server serves files, byte for byte",
    sends=(
        "GET for files of 0, 14, 65,792 and 8,388,608 bytes, and for those of --seed, one connection each; "
        "the client begins to read the largest when the server waits for it"
    ),
    expects="status 200 and exactly the file",
    why="All other checks rest on this one. Text files hide mistakes that binary and large files show.",
    hint="Open files in binary mode. send() may take fewer bytes than it is given: use sendall(), or loop.",
)
def answers(scene: Scene) -> None:
    paths = ["/hello.txt", "/empty.txt", "/bytes.bin", "/large.bin", "/folder/deep.txt", *scene.site.own]
    for path in paths:
        if path == "/large.bin":
            # A client that reads at once may empty the buffers as fast as one send() fills them.
            client = scene.client("a client that reads late", reads=False).ask(path, Connection="close")
            scene.settle()
            client.read_on()
            scene.until(client.answered_or_over, f"{client.name} is answered")
            scene.expect_file(client, path)
            client.close()
        else:
            scene.expect_answer(path)
    scene.confirm(f"{len(paths)} files arrived unchanged")


@check(
    "content-length",
    proves="the announced length of a response is the true one",
    sends="GET for files of 0, 14 and 65,792 bytes",
    expects="Content-Length is the size of the file; without the field, the end of the connection ends the body",
    why="A client finds the next response by this number. A wrong one shifts or cuts every response that follows.",
    hint="Content-Length counts bytes of the body: os.path.getsize(), or len() of bytes, not of a str.",
)
def content_length(scene: Scene) -> None:
    for path in ("/empty.txt", "/hello.txt", "/bytes.bin"):
        size = len(scene.site.files[path])
        client = scene.client().ask(path, Connection="close")
        scene.until(client.over, f"{client.name} sees the end")
        responses = client.reader.responses
        if not responses:
            scene.fail(f"{client.name} {client.story()}", "answer with a response")
        length = responses[0].length
        if length is not None and length != size:
            scene.fail(
                f"the response for {path} has Content-Length {length}; the file has {size} bytes",
                f"announce {size}",
                "the length counts something else than the bytes of the body",
            )
        if client.reader.buffer:
            scene.fail(
                f"{len(client.reader.buffer)} bytes followed the response for {path}, which ended by its length",
                "send nothing after the body",
                "Content-Length is too small",
            )
        client.close()
    scene.confirm("the lengths of three responses were right")


@check(
    "not-found",
    proves="a missing file is answered with 404, and the server goes on",
    sends="GET for a path that does not exist, then for one that does",
    expects="404, then 200",
    why="An exception in one request must not end the server or its worker.",
    hint="Catch the error of open() where you call it, and send a response for it.",
)
def not_found(scene: Scene) -> None:
    for _ in range(scene.workers + 1):
        client = scene.client().ask("/missing.txt", Connection="close")
        scene.until(client.answered_or_over, f"{client.name} is answered")
        scene.expect_alive("a request for a missing file")
        if not client.answered():
            scene.fail(
                f"{client.name} asked for a missing file and {client.story()}",
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
    sends="GET with ../secret.txt, also percent-encoded and behind a directory",
    expects="any answer but the file's bytes",
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
        scene.until(client.answered_or_over, f"{client.name} is answered")
        if any(scene.site.secret in response.body for response in client.answers):
            scene.fail(
                f"GET {path} was answered with a file outside the document root",
                "answer 400, 403 or 404",
                "the path is joined to the root and opened without a check",
            )
        client.close()
    scene.expect_answer(after="paths with ..")
    scene.confirm("four paths with .. led to no file outside")


@check(
    "byte-by-byte",
    proves="a request is read until its end, however its bytes are split",
    sends="a request in single bytes; each is sent when the server has taken the one before",
    expects="200 and the file",
    why="TCP carries a stream of bytes, not messages. On a real network a request arrives in pieces.",
    hint="Collect bytes in a buffer and receive again until the buffer holds the empty line (CR LF CR LF).",
)
def byte_by_byte(scene: Scene) -> None:
    client = scene.client()
    request = client.request("/hello.txt", Connection="close")
    for at in range(len(request)):
        client.send(request[at : at + 1])
        scene.until(lambda: client.answered_or_over(), "the server takes this byte", sure=False)
        if client.over() or client.reader.responses:
            break
    scene.until(client.answered_or_over, f"{client.name} is answered")
    if at < len(request) - 1:
        scene.fail(
            f"the server answered or closed after {at + 1} of {len(request)} bytes: the client {client.story()}",
            "wait for the whole head of the request",
            "one recv() is taken for one request",
        )
    scene.expect_file(client, "/hello.txt", because="one recv() is taken for one request")
    scene.confirm(f"{len(request)} segments of one byte were read as one request")


@check(
    "half-close",
    proves="a client that has finished sending still gets its response",
    sends="a request and FIN (the client closes its sending half)",
    expects="200 and the whole file",
    why=(
        "Programs such as `printf ... | nc` send and close at once. The end of the "
        "request is not the end of the client."
    ),
    hint="recv() that returns b'' says that no more will come. It does not say that the client has gone.",
)
def half_close(scene: Scene) -> None:
    client = scene.client().ask("/bytes.bin", Connection="close").half_close()
    scene.until(client.answered_or_over, f"{client.name} is answered")
    scene.expect_file(client, "/bytes.bin", because="the end of the client's bytes is taken for a disconnect")
    client.close()
    client = scene.client().send(b"GET /hello.txt HT").half_close()
    scene.until(client.over, f"{client.name} sees the end")
    if not client.over():
        scene.fail(
            "the connection stays open although half a request and FIN have arrived",
            "close it: the rest can never come",
            "a loop goes on receiving although recv() returns b''",
        )
    scene.expect_answer(after="half a request and FIN")
    scene.confirm("a request with FIN was answered, and half a request with FIN was closed")


@check(
    "pipelined",
    proves="two requests in one segment get two responses, in their order",
    sends="two requests in one send",
    expects="both responses in order; or the first, with Connection: close or as HTTP/1.0",
    why="A buffer that is thrown away after a request loses the beginning of the next one.",
    hint="Keep what follows the empty line in the buffer of the connection: it belongs to the next request.",
)
def pipelined(scene: Scene) -> None:
    client = scene.client()
    client.send(client.request("/1.txt") + client.request("/2.txt"))
    scene.until(lambda: len(client.answers) == 2 or client.over(), "two answers")
    if not client.answers:
        scene.fail(f"two requests in one segment: the client {client.story()}", "answer both, in order")
    scene.expect_body(client, client.answers[0], "/1.txt")
    if client.answers[0].keeps_open:
        if len(client.answers) < 2:
            scene.fail(
                f"the first response promised to keep the connection open; the second request, "
                f"sent with the first, "
                f"was lost: the client {client.story()}",
                "answer the second request, too",
                "bytes behind the first request are thrown away, or the promise is not kept",
            )
        scene.expect_body(client, client.answers[1], "/2.txt")
        scene.confirm("two pipelined requests were answered in order")
    else:
        scene.confirm("the first request was answered, and the server said that it closes the connection")


@check(
    "keep-alive",
    proves="the connection lives as long as the response has promised",
    sends="five requests on one connection; then one with Connection: close; then one of HTTP/1.0",
    expects="as many answers as promised; an end after Connection: close and after HTTP/1.0",
    why="HTTP/1.1 keeps connections open unless a side says Connection: close. A broken promise is a lost request.",
    hint="If you close after each response, say so in it: Connection: close. After the client's close, close too.",
)
def keep_alive(scene: Scene) -> None:
    client = scene.client()
    for number in range(5):
        client.ask(f"/{number}.txt")
        scene.until(lambda wanted=number + 1: len(client.answers) == wanted or client.over(), "the answer")  # type: ignore[misc]
        if len(client.answers) <= number:
            if number == 0:
                scene.fail(f"a request without Connection: close: the client {client.story()}", "answer it")
            scene.fail(
                f"response {number} promised to keep the connection open, and request {number + 1} on it failed: "
                f"the client {client.story()}",
                "answer the next request, or send Connection: close with the response before",
                "the server closes each connection but answers as HTTP/1.1 without saying so",
            )
        scene.expect_body(client, client.answers[-1], f"/{number}.txt")
        if not client.answers[-1].keeps_open:
            break
    count = len(client.answers)
    client.close()
    for version, fields in (("1.1", {"Connection": "close"}), ("1.0", {})):
        client = scene.client().ask("/hello.txt", version, **fields)
        scene.until(client.over, f"{client.name} sees the end")
        if not client.over():
            what = "HTTP/1.0" if version == "1.0" else "Connection: close"
            scene.fail(
                f"the connection stays open after a request with {what}: the client {client.story()}",
                "close the connection after the response",
                "the wish of the request is not read, or a descriptor of the connection stays open",
            )
        scene.expect_file(client, "/hello.txt")
        client.close()
    scene.confirm(f"{count} requests on one connection were answered; each end came as agreed")
