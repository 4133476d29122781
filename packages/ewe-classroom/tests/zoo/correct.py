"""Five small servers without known faults, from which the mutants derive. `python correct.py MODEL PORT ROOT N`.

Each class is one concurrency model. A mutant (mutants.py) overrides one method or one attribute.
"""

import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from urllib.parse import unquote_to_bytes

LIMIT = 65536
SILENCE_S = 10  # a client that is silent for so long is disconnected


class Gone(Exception):
    """The client has left."""


class Stop(BaseException):
    """SIGTERM has come."""


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""


class Serial:
    backlog = 128
    reuse = True

    def __init__(self, port, root, workers):
        self.port, self.root, self.workers = port, os.fsencode(root), workers
        self.stopping = False

    def listen(self):
        self.listener = socket.socket()
        if self.reuse:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(self.backlog)

    def terminate(self, *_):
        if not self.stopping:
            self.stopping = True
            raise Stop

    def run(self):
        signal.signal(signal.SIGTERM, self.terminate)
        self.prepare()
        self.listen()
        try:
            while True:
                sock = self.accept()
                if sock is not None:
                    self.dispatch(Connection(sock))
        except Stop:
            self.listener.close()
        self.drain()

    def prepare(self):
        pass

    def accept(self):
        try:
            return self.listener.accept()[0]
        except OSError:
            time.sleep(0.1)
            return None

    def dispatch(self, connection):
        self.hold(connection)

    def drain(self):
        pass

    # one conversation

    def hold(self, connection):
        try:
            self.converse(connection)
        except (OSError, Gone):
            pass
        finally:
            self.close(connection)

    def close(self, connection):
        connection.sock.close()

    def converse(self, connection):
        while True:
            head = self.read_head(connection)
            if not self.answer(connection, head):
                return

    def receive(self, connection):
        data = connection.sock.recv(65536)
        if not data:
            raise Gone
        return data

    def read_head(self, connection):
        while b"\r\n\r\n" not in connection.buffer:
            if self.too_long(connection):
                return b""
            connection.buffer += self.receive(connection)
        head, _, connection.buffer = connection.buffer.partition(b"\r\n\r\n")
        return head

    def too_long(self, connection):
        return len(connection.buffer) > LIMIT

    def answer(self, connection, head):
        """Send the response to a request; return whether the connection stays open."""
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self.send(connection, self.head(b"400 Bad Request", b"", False))
            return False
        keep = self.keeps(head, words[2])
        found = self.find(words[1])
        if found is None:
            self.send(connection, self.head(b"404 Not Found", b"missing", keep) + b"missing")
            return keep
        body = self.read_file(found)
        self.send(connection, self.head(b"200 OK", body, keep) + body)
        return keep

    def keeps(self, head, version):
        return version == b"HTTP/1.1" and b"connection: close" not in head.lower()

    def find(self, target):
        path = os.path.realpath(self.root + unquote_to_bytes(target).partition(b"?")[0])
        inside = path.startswith(os.path.realpath(self.root) + b"/")
        return path if inside and len(path) < 4000 and os.path.isfile(path) else None

    def read_file(self, path):
        with open(path, "rb") as file:
            return file.read()

    def length(self, body):
        return len(body)

    def head(self, status, body, keep):
        fields = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n" % (status, self.length(body))
        return fields + (b"\r\n" if keep else b"Connection: close\r\n\r\n")

    def send(self, connection, data):
        connection.sock.sendall(data)


class Fork(Serial):
    def prepare(self):
        self.children = set()
        signal.signal(signal.SIGCHLD, self.reap)

    def reap(self, *_):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.child_ended(pid, status)

    def child_ended(self, pid, status):
        pass

    def dispatch(self, connection):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.in_child()
            self.hold(connection)
            os._exit(0)
        self.in_parent(connection)

    def in_child(self):
        self.listener.close()

    def in_parent(self, connection):
        connection.sock.close()

    def drain(self):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                return


class Thread(Serial):
    def dispatch(self, connection):
        threading.Thread(target=self.hold, args=(connection,)).start()


class Pool(Serial):
    room = 64

    def prepare(self):
        self.lock = threading.Lock()
        self.condition, self.not_full = threading.Condition(self.lock), threading.Condition(self.lock)
        self.queue, self.ended = deque(), False
        self.threads = [threading.Thread(target=self.work) for _ in range(self.count())]
        for thread in self.threads:
            thread.start()

    def count(self):
        return self.workers

    def dispatch(self, connection):
        with self.condition:
            while len(self.queue) >= self.room:
                self.not_full.wait()
            self.queue.append(connection)
            self.wake()

    def wake(self):
        self.condition.notify()

    def take(self):
        with self.condition:
            while not self.queue and not self.ended:
                self.condition.wait()
            self.not_full.notify()
            return self.pick() if self.queue else None

    def pick(self):
        return self.queue.popleft()

    def work(self):
        while (connection := self.take()) is not None:
            self.hold(connection)

    def drain(self):
        with self.condition:
            self.ended = True
            self.condition.notify_all()


class Event(Serial):
    def prepare(self):
        self.selector = selectors.DefaultSelector()
        self.outboxes = {}

    def run(self):
        signal.signal(signal.SIGTERM, self.terminate)
        self.prepare()
        self.listen()
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        try:
            while True:
                for key, _ in self.selector.select(1.0 if self.outboxes else None):
                    if key.data is None:
                        self.welcome()
                    else:
                        self.step(key.data)
                self.drop_silent()
        except Stop:
            pass

    def drop_silent(self):
        for connection in [each for each in self.outboxes if time.monotonic() - each.last > SILENCE_S]:
            self.forget(connection)

    def welcome(self):
        sock = self.accept()
        if sock is not None:
            sock.setblocking(False)
            connection = Connection(sock)
            connection.last = time.monotonic()
            self.outboxes[connection] = b""
            self.selector.register(sock, selectors.EVENT_READ, connection)

    def step(self, connection):
        connection.last = time.monotonic()
        try:
            if self.outboxes[connection]:
                self.flush(connection)
            else:
                self.feed(connection)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, Gone):
            self.forget(connection)

    def feed(self, connection):
        connection.buffer += self.receive(connection)
        self.requests(connection)

    def requests(self, connection):
        while not self.outboxes[connection]:
            if b"\r\n\r\n" not in connection.buffer:
                if not self.too_long(connection):
                    return
                connection.buffer = b"\r\n\r\n"
            head, _, connection.buffer = connection.buffer.partition(b"\r\n\r\n")
            connection.keep = self.answer(connection, head)
            self.flush(connection)

    def send(self, connection, data):
        self.outboxes[connection] += data

    def flush(self, connection):
        data = self.outboxes[connection]
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        self.outboxes[connection] = data[sent:]
        if self.outboxes[connection]:
            self.selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        elif not connection.keep:
            raise Gone
        else:
            self.selector.modify(connection.sock, selectors.EVENT_READ, connection)
            if connection.buffer:
                self.requests(connection)

    def forget(self, connection):
        del self.outboxes[connection]
        self.selector.unregister(connection.sock)
        connection.sock.close()


MODELS = {"serial": Serial, "fork": Fork, "thread": Thread, "pool": Pool, "event": Event}

if __name__ == "__main__":
    from correct_cgi import Cgi
    from correct_scheduling import Scheduling

    MODELS |= {"cgi": Cgi, "scheduling": Scheduling}
    name, port, root, workers = sys.argv[1:]
    MODELS[name](int(port), root, int(workers)).run()
