"""The first test of this lab: python3 first_test.py. It sends a few requests, and stops at the first failure."""

import time

from clients import BODY, GET_AND_CLOSE, HALF, PAUSE_S, RESPONSE_TIMEOUT_S, REST, Failed, run, step


@step("One client gets hello.txt, and its connection ends.")
def one(server):
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "The client has sent a request, and gets no response.")
        client.expect_end("The connection stays open after the response: a process still has a copy of it.")


@step("Two clients are served at once.")
def two(server):
    with server.connect() as slow, server.connect() as client:
        slow.send(HALF)
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "One client has sent half a request, and the second client waits for it.")
        slow.send(REST)
        slow.expect(BODY, "The first client has sent the rest of its request, and gets no response.")


@step("Each child that has ended is reaped.")
def reaped(server):
    clients = [server.connect() for _ in range(10)]
    for client in clients:
        client.send(HALF)
    for client in clients:
        client.send(REST)
        client.expect(BODY, "One of ten clients gets no response.")
        client.expect_end("The connection of one of ten clients stays open.")
        client.socket.close()
    deadline = time.monotonic() + RESPONSE_TIMEOUT_S
    while server.zombies():
        if time.monotonic() > deadline:
            raise Failed(
                f"Ten children have ended, and {server.zombies()} of them are zombies: call waitpid()."
            )
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    run()
