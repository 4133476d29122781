"""The first test of this lab: python3 first_test.py. It sends a few requests, and stops at the first failure."""

import time

from clients import BODY, GET, GET_AND_CLOSE, HALF, PAUSE_S, REST, run, step


@step("One client gets hello.txt.")
def one(server):
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "The client has sent a request, and gets no response.")


@step("The second client gets it, too.")
def next_client(server):
    for _ in range(2):
        with server.connect() as client:
            client.send(GET_AND_CLOSE)
            client.expect(BODY, "The server serves the first client only: it has to go on after a client.")


@step("A client that disconnects early does not end the server.")
def early(server):
    server.connect().socket.close()
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "A client has disconnected before its request. The next client gets no response.")


@step("The head of a request comes in two pieces.")
def pieces(server):
    with server.connect() as client:
        client.send(HALF)
        time.sleep(PAUSE_S)
        client.send(REST)
        client.expect(BODY, "TCP carries bytes, not messages: receive until the empty line has come.")


@step("Two requests come in one piece.")
def pipelined(server):
    with server.connect() as client:
        client.send(GET + GET_AND_CLOSE)
        client.expect(BODY, "The first of two requests gets no response.")
        client.expect(BODY, "The bytes after the empty line belong to the next request: do not lose them.")


if __name__ == "__main__":
    run()
