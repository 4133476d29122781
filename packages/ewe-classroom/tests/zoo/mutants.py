"""The zoo: servers that are wrong in one way each. `python mutants.py NAME PORT ROOT WORKERS`.

Each class is a correct server (correct.py) with one fault. The decorator names the check that must catch it, the
lab in which it is graded, and a part of the explanation that the student must get ("|": one of several).
"""

import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

from correct import Event, Fork, Gone, Pool, Serial, Stop, Thread
from registry import ZOO, mutant

# One conversation


@mutant("answers", "thread", "binary mode")
class TextMode(Thread):
    """Reads files as text."""

    def read_file(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().encode()


@mutant("answers", "thread", "send() may take fewer")
class ShortSend(Thread):
    """Calls send() once, and not again for the rest."""

    def send(self, connection, data):
        connection.sock.settimeout(60)  # a socket with a timeout takes only the bytes that fit at once
        connection.sock.send(data)


@mutant("content-length", "thread", "the file has")
class WrongLength(Thread):
    """Announces one byte too few."""

    def length(self, body):
        return max(len(body) - 1, 0)


@mutant("not-found", "serial", "go on serving")
class DiesOfMissing(Serial):
    """Lets the error of open() end the server."""

    def find(self, target):
        path = os.path.realpath(self.root + target)
        if not os.path.exists(path):
            raise RuntimeError(path)
        return path


@mutant("outside", "thread", "outside the document root")
class Escapes(Thread):
    """Joins any path to the root."""

    def find(self, target):
        path = self.root + target
        return path if len(path) < 4000 and os.path.isfile(path) else None


@mutant("byte-by-byte", "thread", "one recv()")
class OneReceive(Thread):
    """Takes what one recv() returns for the whole request."""

    def read_head(self, connection):
        return self.receive(connection).partition(b"\r\n\r\n")[0]


@mutant("half-close", "thread", "taken for a disconnect")
class FinIsGone(Thread):
    """Takes the client's FIN for its disappearance."""

    def answer(self, connection, head):
        if select.select([connection.sock], [], [], 0.02)[0] and not connection.sock.recv(1, socket.MSG_PEEK):
            raise Gone
        return super().answer(connection, head)


@mutant("half-close", "thread", "recv() returns b''")
class IgnoresFin(Thread):
    """Receives again and again after the client's FIN."""

    def receive(self, connection):
        data = connection.sock.recv(65536)
        if not data:
            time.sleep(0.2)
        return data


@mutant("pipelined", "thread", "was lost")
class ForgetsRest(Thread):
    """Throws away what came behind a request."""

    def read_head(self, connection):
        head = super().read_head(connection)
        connection.buffer = b""
        return head


@mutant("keep-alive", "thread", "without saying so")
class SilentClose(Thread):
    """Promises to keep the connection open, and closes it."""

    def answer(self, connection, head):
        super().answer(connection, head)
        return False


@mutant("keep-alive", "thread", "does not read the version and Connection")
class NeverCloses(Thread):
    """Does not read Connection: close."""

    def keeps(self, head, version):
        return True


# Progress


@mutant("progress", "thread", "the loop that accepts also serves")
class Joins(Thread):
    """Starts a thread and waits for it."""

    def dispatch(self, connection):
        thread = threading.Thread(target=self.hold, args=(connection,))
        thread.start()
        thread.join()


@mutant("progress", "thread", "a lock is held")
class LockedReading(Thread):
    """Holds a lock of all threads while it reads a request."""

    lock = threading.Lock()

    def read_head(self, connection):
        with self.lock:
            return super().read_head(connection)


@mutant("progress", "thread", "limit on threads")
class AtMostSixteen(Thread):
    """Has a hidden limit on connections."""

    slots = threading.Semaphore(16)

    def dispatch(self, connection):
        self.slots.acquire()
        super().dispatch(connection)

    def close(self, connection):
        super().close(connection)
        self.slots.release()


@mutant("progress", "fork", "the loop that accepts also serves")
class WaitsForChild(Fork):
    """Forks a child and waits for its end."""

    def in_parent(self, connection):
        super().in_parent(connection)
        try:
            os.wait()
        except ChildProcessError:
            pass


@mutant("progress", "pool", "more workers than asked for")
class OneTooMany(Pool):
    """Has n + 1 workers."""

    def count(self):
        return self.workers + 1


@mutant("progress", "pool", "workers or fewer")
class OneTooFew(Pool):
    """Has n - 1 workers."""

    def count(self):
        return self.workers - 1


@mutant("progress", "pool", "the accepting thread reads")
class AcceptorReads(Pool):
    """Reads the request in the thread that accepts."""

    def dispatch(self, connection):
        try:
            while b"\r\n\r\n" not in connection.buffer and not self.too_long(connection):
                connection.buffer += self.receive(connection)
        except (Gone, OSError):
            connection.sock.close()
            return
        super().dispatch(connection)


@mutant("second-client", "thread", "serves one client at a time")
class OneAtATime(Thread):
    """Holds a lock of all threads during a whole conversation."""

    lock = threading.Lock()

    def converse(self, connection):
        with self.lock:
            super().converse(connection)


@mutant("progress", "serial", "serves one connection at a time")
class NotSerial(Thread):
    """Is a server with threads, in the lab about the serial one."""


@mutant("progress", "event", "the loop that accepts also serves")
class BlockingReceive(Event):
    """Waits in the loop for the rest of a request."""

    def feed(self, connection):
        connection.sock.setblocking(True)
        while b"\r\n\r\n" not in connection.buffer and not self.too_long(connection):
            connection.buffer += self.receive(connection)
        connection.sock.setblocking(False)
        self.requests(connection)


@mutant("slow-readers", "event", "does not read its response")
class BlockingSend(Event):
    """Sends in the loop until all is sent."""

    def flush(self, connection):
        connection.sock.setblocking(True)
        connection.sock.sendall(self.outboxes[connection])
        connection.sock.setblocking(False)
        self.outboxes[connection] = b""
        if not connection.keep:
            raise Gone


@mutant("slow-readers", "thread", "a lock is held")
class LockedSending(Thread):
    """Holds a lock of all threads while it sends."""

    lock = threading.Lock()

    def send(self, connection, data):
        with self.lock:
            super().send(connection, data)


@mutant("idle-clients", "thread", "idle connection")
class SlotsUntilClose(Thread):
    """Gives a slot to each connection that has sent a request, until the connection ends."""

    slots = threading.Semaphore(8)

    def read_head(self, connection):
        head = super().read_head(connection)
        if not hasattr(connection, "slot"):
            self.slots.acquire()
            connection.slot = True
        return head

    def close(self, connection):
        super().close(connection)
        if hasattr(connection, "slot"):
            self.slots.release()


@mutant("own-answers", "thread", "share a buffer")
class SharedRequest(Thread):
    """Keeps the path of the request in the server, not in the connection."""

    def receive(self, connection):
        data = super().receive(connection)
        if data.startswith(b"GET "):
            self.path = data.split(b" ")[1]
        return data

    def find(self, target):
        return super().find(self.path)


@mutant("own-answers", "thread", "share a buffer")
class SharedResponse(Thread):
    """Sends from one buffer of the whole server."""

    def send(self, connection, data):
        self.data = data
        sent = 0
        while sent < len(self.data):
            sent += connection.sock.send(self.data[sent : sent + 65536])


@mutant("fifo", "pool", "stack")
class Stack(Pool):
    """Serves the connection first that came last."""

    def pick(self):
        return self.queue.pop()


@mutant("backlog", "serial", "small backlog")
class NoBacklog(Serial):
    """Lets one connection wait in the kernel."""

    backlog = 0


@mutant("exactly-n", "pool", "not served")
class Retires(Pool):
    """Ends a worker after five connections, and starts no other."""

    def work(self):
        for _ in range(5):
            connection = self.take()
            if connection is None:
                return
            self.hold(connection)


@mutant("bursts", "pool", "a wake-up is lost")
class WakesIfEmpty(Pool):
    """Wakes a worker only if the queue was empty."""

    def wake(self):
        if len(self.queue) == 1:
            self.condition.notify()


@mutant("bursts", "event", "accept until")
class AcceptsOnce(Event):
    """Is told of new connections once (edge-triggered), and accepts only one of them."""

    def run(self):
        signal.signal(signal.SIGTERM, self.terminate)
        self.prepare()
        self.listen()
        self.listener.setblocking(False)
        edges = select.epoll()
        edges.register(self.listener, select.EPOLLIN | select.EPOLLET)
        self.selector.register(edges, selectors.EVENT_READ, None)
        try:
            while True:
                for key, _ in self.selector.select():
                    if key.data is not None:
                        self.step(key.data)
                    elif edges.poll(0):
                        self.welcome()
        except Stop:
            pass


@mutant("bound", "pool", "put() never waits")
class NoBound(Pool):
    """Has a queue without a bound."""

    room = sys.maxsize


@mutant("no-deadlock", "thread", "two threads each hold a lock")
class LockOrder(Thread):
    """Takes two locks, in one order for files and in the other one for missing files."""

    files, log = threading.Lock(), threading.Lock()

    def send(self, connection, data):
        first, second = (self.files, self.log) if b" 200 " in data[:20] else (self.log, self.files)
        with first:
            super().send(connection, data)
            with second:
                pass


# Workers


@mutant("who-works", "pool", "for each connection")
class Watchers(Pool):
    """Has a pool, and a thread beside each connection that watches it."""

    def dispatch(self, connection):
        connection.over = threading.Event()
        threading.Thread(target=connection.over.wait).start()
        super().dispatch(connection)

    def close(self, connection):
        super().close(connection)
        connection.over.set()


@mutant("who-works", "event", "helper threads")
class Helper(Event):
    """Has an event loop and one more thread."""

    def prepare(self):
        super().prepare()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@mutant("who-works", "thread", "not served by a thread each")
class NotThreads(Fork):
    """Forks, in the lab about threads."""


@mutant("who-works", "thread", "waits for an event that will not come")
class ThreadsStay(Thread):
    """Lets the thread of each connection sleep after the connection's end."""

    def dispatch(self, connection):
        threading.Thread(target=self.hold, args=(connection,), daemon=True).start()

    def hold(self, connection):
        super().hold(connection)
        threading.Event().wait()


@mutant("parent-lets-go", "fork", "the parent does not close")
class ParentKeeps(Fork):
    """Keeps the parent's copy of each connection."""

    kept = []

    def in_parent(self, connection):
        self.kept.append(connection)


@mutant("parent-lets-go", "fork", "hold the listening socket")
class ChildListens(Fork):
    """Leaves the listening socket open in each child."""

    def in_child(self):
        pass


# Faults


@mutant("early-close", "serial", "in the middle of their requests")
class DiesOfReset(Serial):
    """Lets the exception of recv() end the server."""

    def hold(self, connection):
        try:
            self.converse(connection)
        except (Gone, BrokenPipeError):
            pass
        finally:
            self.close(connection)


@mutant("reset-in-response", "thread", "SIGPIPE")
class SigPipe(Thread):
    """Leaves SIGPIPE its default action, as a program in C does."""

    def prepare(self):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def send(self, connection, data):
        for at in range(0, len(data), 65536):
            try:
                connection.sock.sendall(data[at : at + 65536])
            except ConnectionResetError:
                pass


@mutant("reset-in-response", "pool", "ended a worker")
class WorkerDies(Pool):
    """Lets the exception of send() end its worker."""

    def work(self):
        try:
            super().work()
        except OSError:
            pass

    def hold(self, connection):
        try:
            self.converse(connection)
        except Gone:
            pass
        finally:
            self.close(connection)

    def receive(self, connection):
        try:
            return super().receive(connection)
        except OSError:
            raise Gone from None


@mutant("nonsense", "serial", "the bytes")
class ThreeWords(Serial):
    """Takes any first line for three words."""

    def answer(self, connection, head):
        _method, _target, _version = head.partition(b"\r\n")[0].split(b" ")
        return super().answer(connection, head)


@mutant("oversized", "thread", "has no limit")
class NoLimit(Thread):
    """Collects a head without a limit."""

    def too_long(self, connection):
        return False


@mutant("descriptors-used-up", "thread", "free descriptors|with a limit of")
class DiesOfEmfile(Thread):
    """Lets the exception of accept() end the server."""

    def accept(self):
        return self.listener.accept()[0]


@mutant("pause", "thread", "calls it again at once")
class TriesAgain(Thread):
    """Calls accept() again at once when no descriptor is free."""

    def accept(self):
        try:
            return self.listener.accept()[0]
        except OSError:
            return None


@mutant("pause", "event", "calls it again at once")
class StaysReady(Event):
    """Goes on watching the listening socket when no descriptor is free."""

    def accept(self):
        try:
            return self.listener.accept()[0]
        except OSError:
            return None


@mutant("silence", "event", "no code looks at the time")
class WaitsWithoutEnd(Event):
    """Has no time limit for silent clients."""

    def drop_silent(self):
        pass


@mutant("child-killed", "fork", "one child")
class EndsWithChild(Fork):
    """Ends when one of its children has been killed."""

    def child_ended(self, pid, status):
        if os.WIFSIGNALED(status):
            os._exit(1)


# Hygiene


@mutant("zombies", "fork", "call waitpid")
class NoWait(Fork):
    """Never waits for a child."""

    def reap(self, *_):
        pass


@mutant("zombies", "fork", "once|in turn left")
class WaitsOnce(Fork):
    """Waits for one child at each SIGCHLD; several signals at once count as one."""

    def reap(self, *_):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass


@mutant("descriptors", "thread", "reset")
class CloseSkipped(Thread):
    """Does not close a connection whose client has reset it."""

    kept = []

    def hold(self, connection):
        try:
            self.converse(connection)
        except OSError:
            self.kept.append(connection)
            return
        except Gone:
            pass
        connection.sock.close()


@mutant("descriptors", "thread", "hello.txt")
class FilesStayOpen(Thread):
    """Keeps each file open that it has sent."""

    kept = []

    def read_file(self, path):
        self.kept.append(open(path, "rb"))
        return self.kept[-1].read()


@mutant("idle-cpu", "thread", "busy waiting")
class SpinningAccept(Thread):
    """Asks for connections again and again."""

    def accept(self):
        self.listener.setblocking(False)
        try:
            sock = self.listener.accept()[0]
        except OSError:
            return None
        sock.setblocking(True)
        return sock


@mutant("idle-cpu", "pool", "busy waiting")
class SpinningWorkers(Pool):
    """Has workers that look at the queue in a loop."""

    def take(self):
        while not self.ended:
            with self.condition:
                if self.queue:
                    return self.pick()
        return None


@mutant("idle-cpu", "pool", "polling")
class PollingWorkers(Pool):
    """Has workers that sleep 5 ms and look again."""

    def take(self):
        while not self.ended:
            with self.condition:
                if self.queue:
                    return self.pick()
            time.sleep(0.005)
        return None


@mutant("idle-cpu", "event", "busy waiting")
class AlwaysWritable(Event):
    """Waits for EVENT_WRITE while it has nothing to send."""

    def feed(self, connection):
        super().feed(connection)
        if connection in self.outboxes and not self.outboxes[connection]:
            self.selector.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)


@mutant("memory", "thread", "list or a dictionary")
class Remembers(Thread):
    """Keeps 64 KB of each connection."""

    kept = []

    def close(self, connection):
        super().close(connection)
        self.kept.append(bytearray(os.urandom(1) * 65536))


# The end


@mutant("stop", "thread", "SIGTERM is ignored")
class Immortal(Thread):
    """Ignores SIGTERM."""

    def terminate(self, *_):
        pass


@mutant("stop", "thread", "live on")
class Orphan(Thread):
    """Leaves a program behind that it has started."""

    def prepare(self):
        subprocess.Popen(["sleep", "600"], start_new_session=True)


@mutant("restart", "thread", "SO_REUSEADDR")
class NoReuse(Thread):
    """Does not set SO_REUSEADDR."""

    reuse = False


@mutant("drain", "thread", "default action of SIGTERM")
class DropsDownloads(Thread):
    """Ends at once on SIGTERM."""

    def terminate(self, *_):
        os._exit(0)


import mutants_cgi  # noqa: E402, F401  after this file's own, as in the documented table
import mutants_scheduling  # noqa: E402, F401

if __name__ == "__main__":
    name, port, root, workers = sys.argv[1:]
    ZOO[name].kind(int(port), root, int(workers)).run()
