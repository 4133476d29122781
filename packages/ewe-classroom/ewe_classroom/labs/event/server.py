"""The event loop: one thread for all clients. Run it with: python3 server.py PORT DIRECTORY

select() ─▶ the listening socket is ready: accept, and watch the connection
   ▲   └──▶ a connection can be read:      receive its bytes; if the head is complete, prepare the response
   │   └──▶ a connection can be written:   send as many bytes as the kernel takes, and keep the rest
   └──────────── no call in between may block: while one client is served, all others wait
"""

from __future__ import annotations

import selectors
import signal
import socket
import time

from conversation import SILENCE_S, BadRequest, main, refusal, response_to, split_head

ACCEPT_PAUSE_S = 0.05  # seconds of pause when no descriptor is free
GRACE_S = 10.0  # seconds for the responses in progress after SIGTERM
SILENCE_CHECK_S = 1.0  # seconds between two searches for silent clients


class Client:
    """One connection.

    buffer: the bytes that were received, and not used yet. outgoing: the rest of a response that is not sent yet.
    keeps_open: whether another request may follow. last: the time of the last activity (time.monotonic()).
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.outgoing = memoryview(b"")
        self.keeps_open = True
        self.last = time.monotonic()

    def wanted_event(self) -> int:
        """Return the event for which select() has to wait."""
        # --- solution
        return selectors.EVENT_WRITE if self.outgoing else selectors.EVENT_READ
        # --- starter
        # # While a part of a response is not sent yet, wait until the socket can be written.
        # return selectors.EVENT_READ
        # --- end


class Loop:
    """The event loop and its clients."""

    def __init__(self, listener: socket.socket, root: str) -> None:
        self.listener = listener
        self.root = root
        self.selector = selectors.DefaultSelector()
        self.clients: set[Client] = set()
        self.accept_from = 0.0  # time.monotonic() at the end of a pause in accepting; 0.0: no pause
        self.stopping = False
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve clients until stop() is called and the responses in progress are sent."""
        deadline = float("inf")  # for the responses in progress; it begins with stop()
        next_check = time.monotonic() + SILENCE_CHECK_S
        while not self.stopping or (self.clients and time.monotonic() < deadline):
            for key, events in self.selector.select(self.wait_limit()):
                if key.fileobj is self.listener:
                    self.accept()
                elif key.data is None:
                    key.fileobj.recv(64)  # a signal has arrived, and its handler has run
                elif key.data in self.clients:
                    self.serve(key.data, events)
            now = time.monotonic()
            if self.stopping and deadline == float("inf"):
                deadline = now + GRACE_S
                self.begin_stop()
            if now >= next_check or self.accept_from:
                next_check = now + SILENCE_CHECK_S
                self.check_times(now)

    def wait_limit(self) -> float | None:
        """Return the timeout of select() in seconds; None: wait for an event without a limit."""
        # --- solution
        if self.accept_from:
            return ACCEPT_PAUSE_S
        return SILENCE_CHECK_S if self.clients else None
        # --- starter
        # # A loop without clients must not wake up at all. When must a loop with clients wake up?
        # return None
        # --- end

    def accept(self) -> None:
        """Accept one connection, and watch it."""
        # --- solution
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return  # the client has disconnected meanwhile
        except OSError:  # no descriptor is free: pause, because select() would return again immediately
            self.accept_from = time.monotonic() + ACCEPT_PAUSE_S
            self.selector.unregister(self.listener)
            return
        connection.setblocking(False)
        client = Client(connection)
        self.clients.add(client)
        self.selector.register(connection, client.wanted_event(), client)
        # --- starter
        # # This blocks the loop until the client has sent its request: all others wait.
        # from conversation import converse
        # connection, _ = self.listener.accept()
        # with connection:
        #     converse(connection, self.root)
        # --- end

    def serve(self, client: Client, events: int) -> None:
        """Read from a client, or write to it, as much as possible without blocking."""
        # --- solution
        try:
            if events & selectors.EVENT_WRITE:
                sent = client.connection.send(client.outgoing)
                client.outgoing = client.outgoing[sent:]
            else:
                data = client.connection.recv(65536)
                if not data:
                    return self.drop(client)
                client.buffer += data
        except BlockingIOError:
            return
        except OSError:
            return self.drop(client)
        client.last = time.monotonic()
        if not client.outgoing:
            self.answer(client)
        # --- starter
        # # recv() and send() return immediately, and do as much as is possible. Store the rest in the client until
        # # select() reports that more is possible.
        # raise NotImplementedError("read from the client, or write to it")
        # --- end

    def answer(self, client: Client) -> None:
        """Prepare the response to the client's next request if its head is complete; close finished connections.

        The caller has received bytes, or has sent the last byte of a response.
        """
        # --- solution
        if not client.keeps_open or self.stopping:  # the last response has been sent
            return self.drop(client)
        try:
            head, client.buffer = split_head(client.buffer)
        except BadRequest as refused:
            client.outgoing, client.keeps_open = memoryview(refusal(refused.status)), False
        else:
            if head is not None:
                response, client.keeps_open = response_to(head, self.root)
                client.outgoing = memoryview(response)
        self.selector.modify(client.connection, client.wanted_event(), client)
        # --- starter
        # # split_head() and response_to() are the same as in the other labs.
        # raise NotImplementedError("prepare the response")
        # --- end

    def drop(self, client: Client) -> None:
        """Close a connection, and stop watching it."""
        self.clients.discard(client)
        self.selector.unregister(client.connection)
        client.connection.close()

    def check_times(self, now: float) -> None:
        """Drop silent clients, and accept again after a pause."""
        # --- solution
        for client in [each for each in self.clients if now - each.last > SILENCE_S]:
            self.drop(client)
        if self.accept_from and now >= self.accept_from and not self.stopping:
            self.accept_from = 0.0
            self.selector.register(self.listener, selectors.EVENT_READ)
        # --- starter
        # # settimeout() does not work with non-blocking sockets. Find and drop the silent clients here.
        # pass
        # --- end

    def begin_stop(self) -> None:
        """Stop listening, and drop the clients for whom no response is in progress."""
        if not self.accept_from:  # in a pause of accept(), the selector does not watch the listening socket
            self.selector.unregister(self.listener)
        self.listener.close()
        for client in [each for each in self.clients if not each.outgoing]:
            self.drop(client)

    def stop(self) -> None:
        """End the loop after the responses in progress."""
        self.stopping = True


def serve(listener: socket.socket, root: str, workers: int) -> None:
    """Run the loop until SIGTERM."""
    loop = Loop(listener, root)
    # A signal alone does not end select(). Python also writes a byte to this socket, and the byte ends it.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
    loop.selector.register(reader, selectors.EVENT_READ)
    loop.run()


if __name__ == "__main__":
    main(serve)
