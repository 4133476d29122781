"""Correct: a server with a thread for each connection. The explorer replaces its sockets by ones in memory."""

import socket
import threading


def serve(server, connections):
    for _ in range(connections):
        connection, _ = server.accept()
        threading.Thread(target=answer, args=(connection,)).start()


def answer(connection):
    with connection:
        while data := connection.recv(100):
            connection.sendall(data.upper())


def client(port, text, answers):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(text)
        answers.append(connection.recv(100))


def scenario():
    server = socket.create_server(("127.0.0.1", 0))
    answers = []
    port = server.getsockname()[1]
    clients = [threading.Thread(target=client, args=(port, text, answers)) for text in (b"a", b"b")]
    threading.Thread(target=serve, args=(server, 2)).start()
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert sorted(answers) == [b"A", b"B"]
