"""The first test of this lab: python3 first_test.py. It sends a few requests, and stops at the first failure."""

from clients import BODY, GET_AND_CLOSE, HALF, REST, run, step

LARGE_BYTES = 8_000_000  # of a file that does not fit into the buffers of a connection


@step("One client gets hello.txt.")
def one(server):
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "The client has sent a request, and gets no response.")


@step("A client that sends slowly does not stop another one.")
def slow_sender(server):
    with server.connect() as slow, server.connect() as client:
        slow.send(HALF)
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "One client has sent half a request, and the second client waits for it.")
        slow.send(REST)
        slow.expect(BODY, "The first client has sent the rest of its request, and gets no response.")


@step("A client that receives slowly does not stop another one.")
def slow_reader(server):
    with server.connect() as slow, server.connect() as client:
        slow.send(GET_AND_CLOSE.replace("hello.txt", "large"))
        slow.expect("200", "The request of a large file gets no response.")
        client.send(GET_AND_CLOSE)
        client.expect(
            BODY, "One client does not read its large response, and the second client waits for it."
        )
        slow.expect(
            "the end", "The rest of the large file does not come: store the bytes that send() did not take."
        )


def prepare(directory):
    (directory / "large").write_text("x" * LARGE_BYTES + "the end")


if __name__ == "__main__":
    run(prepare)
