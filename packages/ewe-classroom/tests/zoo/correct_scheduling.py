"""A pool with a schedule and without known faults, from which mutants derive (mutants_scheduling.py)."""

import os
import threading
import time

from correct import Gone, Pool

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Scheduling(Pool):
    policy = os.environ.get("POLICY", "fifo")
    room = int(os.environ.get("QUEUE", "16"))
    drop = os.environ.get("DROP", "newest")
    patience = int(os.environ.get("PATIENCE", "8"))

    def prepare(self):
        name = os.environ.get("EWE_TRACE")
        self.trace = os.open(name, os.O_WRONLY | os.O_APPEND) if name else -1
        self.free = 0
        super().prepare()

    def note(self, event, connection, worker="-"):
        if self.trace >= 0:
            line = f"{time.monotonic():.6f} {event} {connection.port} {worker} {connection.target}\n"
            os.write(self.trace, line.encode())

    # Arriving requests

    def dispatch(self, connection):
        threading.Thread(target=self.arrive, args=(connection,), daemon=True).start()

    def arrive(self, connection):
        """Read the head of a request in a separate thread, and queue the request."""
        try:
            connection.head = self.read_head(connection)
            connection.port = connection.sock.getpeername()[1]
        except (OSError, Gone):
            connection.sock.close()
            return
        connection.target = [*connection.head.split(b" ", 2), b""][1].decode("latin-1")
        found = self.find(connection.target.encode("latin-1"))
        connection.size = os.path.getsize(found) if found else 0
        connection.overtaken = 0
        with self.condition:
            self.note("arrival", connection)
            self.queue.append(connection)
            if self.is_full():
                victim = self.victim()
                self.queue.remove(victim)
                self.note("drop", victim)
                self.refuse(victim)
            self.condition.notify()

    def is_full(self):
        return len(self.queue) > self.room + self.free

    def victim(self):
        if self.drop == "oldest":
            return self.queue[0]
        if self.drop == "largest":
            return max(reversed(self.queue), key=lambda each: each.size)
        return self.queue[-1]

    def refuse(self, connection):
        connection.sock.send(BUSY)
        connection.sock.close()

    # Served requests

    def take(self):
        with self.condition:
            self.free += 1
            while not self.queue and not self.ended:
                self.condition.wait()
            self.free -= 1
            if not self.queue:
                return None
            chosen = self.pick()
            for earlier in list(self.queue)[: self.queue.index(chosen)]:
                earlier.overtaken += 1
            self.note_dispatch(chosen)
            self.queue.remove(chosen)
            return chosen

    def worker(self):
        return threading.current_thread().name

    def note_dispatch(self, chosen):
        self.note("dispatch", chosen, self.worker().replace(" ", ""))

    def pick(self):
        if self.policy == "fifo":
            return self.queue[0]
        tired = [each for each in self.queue if each.overtaken >= self.patience]
        return tired[0] if tired else self.smallest()

    def smallest(self):
        return min(self.queue, key=lambda each: each.size)

    def converse(self, connection):
        self.answer(connection, connection.head)

    def keeps(self, head, version):
        return False

    def close(self, connection):
        self.note("completion", connection, self.worker().replace(" ", ""))
        super().close(connection)
