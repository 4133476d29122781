"""The first test of this lab: python3 first_test.py. It sends a few requests, and stops at the first failure."""

from clients import BODY, GET_AND_CLOSE, HALF, REST, run, step

DESCRIPTORS = 64  # that the server may have in the last step
CLIENTS = 100  # that connect to it there


@step("One client gets hello.txt.")
def one(server):
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "The client has sent a request, and gets no response.")


@step("Two clients are served at once.")
def two(server):
    with server.connect() as slow, server.connect() as client:
        slow.send(HALF)
        client.send(GET_AND_CLOSE)
        client.expect(BODY, "One client has sent half a request, and the second client waits for it.")
        slow.send(REST)
        slow.expect(BODY, "The first client has sent the rest of its request, and gets no response.")


@step("The server survives its limit of descriptors.", max_descriptors=DESCRIPTORS)
def limit(server):
    clients = [server.connect() for _ in range(CLIENTS)]
    for client in clients:
        client.send(HALF)
    for client in clients:
        client.socket.close()
    with server.connect() as client:
        client.send(GET_AND_CLOSE)
        client.expect(
            BODY,
            f"{CLIENTS} clients came while the server may have {DESCRIPTORS} descriptors, and have left. "
            "The next client gets no response.",
        )


if __name__ == "__main__":
    run()
