"""The stand-ins mean what the standard library means, and a changed program what the original means."""

from __future__ import annotations

import importlib
import json
import random
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from ewe_explore import calls, instrument
from ewe_explore.program import ExploredProgram
from ewe_explore.scheduler import Options, Run
from ewe_explore.search import Replay

# Programs whose result does not depend on the schedule. Each is run with real threads, too.
SAME = {
    "own fileno": """
        class Wrapped:
            def __init__(self):
                self.ends, self.calls = socket.socketpair(), 0
            def fileno(self):
                self.calls += 1
                return self.ends[0].fileno()
        item = Wrapped()
        select.select([item], [], [], 0)
        poll = select.poll()
        poll.register(item, 1)
        poll.modify(item, 1)
        poll.unregister(item)
        yield item.calls
        for end in item.ends:
            end.close()
        """,
    "lock": """
        lock = threading.Lock()
        yield lock.acquire(), lock.acquire(blocking=False), lock.locked(), lock.acquire(timeout=0.01)
        lock.release()
        yield lock.locked()
        yield caught(lock.release)
        yield caught(lock.acquire, False, 3)
        """,
    "rlock": """
        lock = threading.RLock()
        with lock, lock:
            yield in_thread(lambda: lock.acquire(blocking=False))
        yield in_thread(lambda: lock.acquire(blocking=False))
        yield caught(threading.RLock().release)
        """,
    "condition": """
        ready = threading.Condition()
        yield caught(ready.notify), caught(ready.wait, 1)
        with ready:
            yield ready.wait(timeout=0.01), ready.wait_for(lambda: 0, 0.01), ready.wait_for(lambda: 7)
        order = []
        def wait(number):
            with ready:
                order.append(number)
                ready.wait()
                order.append(-number)
        threads = [threading.Thread(target=wait, args=(n,)) for n in (1, 2, 3)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while number not in order:
                time.sleep(0.001)
        for expected in (-1, -2, -3):
            with ready:
                ready.notify()
            while expected not in order:
                time.sleep(0.001)
        yield order
        """,
    "semaphore": """
        two = threading.BoundedSemaphore(2)
        yield two.acquire(), two.acquire(), two.acquire(blocking=False), two.acquire(timeout=0.01)
        two.release(2)
        yield caught(two.release), caught(threading.Semaphore, -1), caught(two.release, 0)
        """,
    "event": """
        event = threading.Event()
        yield event.wait(0.01), event.is_set()
        yield in_thread(event.set), event.wait(), event.is_set()
        event.clear()
        yield event.is_set()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(event.wait()))
        thread.start()
        while not seen:
            time.sleep(0.001)
            event.set(), event.clear()
        thread.join()
        yield seen, event.is_set()
        """,
    "barrier": """
        barrier = threading.Barrier(2, action=lambda: done.append(1))
        done = []
        other = []
        thread = threading.Thread(target=lambda: other.append(barrier.wait()))
        thread.start()
        mine = barrier.wait()
        thread.join()
        yield sorted([mine, *other]), done, barrier.n_waiting, barrier.parties, barrier.broken
        yield caught(barrier.wait, 0.01), barrier.broken, caught(barrier.wait)
        barrier.reset()
        yield barrier.broken
        """,
    "barrier whose action takes time": """
        def pause():
            time.sleep(0.02)
            done.append(1)
        barrier, done, indexes = threading.Barrier(2, pause), [], []
        threads = [threading.Thread(target=lambda: indexes.append(barrier.wait())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield sorted(indexes), done
        def start_reset():
            resets.start()
            time.sleep(0.02)
        other = threading.Barrier(2, start_reset)
        resets = threading.Thread(target=other.reset)
        yield in_threads(other.wait, 2), resets.join(), other.broken
        """,
    "thread": """
        thread = threading.Thread(target=lambda: None, name="T", daemon=True)
        yield caught(thread.join), thread.is_alive(), thread.daemon, thread.name
        thread.start()
        yield caught(thread.start), thread.join(), thread.is_alive(), caught(threading.current_thread().join)
        class Mine(threading.Thread):
            def run(self):
                self.result = threading.current_thread() is self
        mine = Mine()
        mine.start()
        mine.join()
        yield mine.result, threading.current_thread() is threading.main_thread() or "not main"
        class Car(threading.Thread):
            def __init__(self):
                super().__init__()
                self.lane, self.label, self.created_at = 1, "a", 2
                self.step, self.point, self.wait, self.look = 3, 4, 5, 6
            def run(self):
                self.step += self.point
        car = Car()
        car.start()
        car.join()
        yield car.lane, car.label, car.created_at, car.step, car.wait, car.look
        """,
    "thread without an object": """
        done = threading.Event()
        before = threading.active_count()  # more than one, if a thread of another test still ends
        _thread.start_new_thread(done.wait, ())
        yield threading.active_count() - before, len(threading.enumerate()) - before
        done.set()
        """,
    "timer": """
        out = []
        timer = threading.Timer(0.01, out.append, ["late"])
        timer.start()
        timer.join()
        other = threading.Timer(60, out.append, ["never"])
        other.start()
        other.cancel()
        other.join()
        yield out
        """,
    "local": """
        mine = threading.local()
        mine.x = 1
        yield in_thread(lambda: hasattr(mine, "x")), mine.x
        """,
    "queue": """
        q = queue.Queue(maxsize=2)
        q.put(1), q.put(2)
        yield caught(q.put, 3, False), caught(q.put, 3, True, 0.01), q.full(), q.qsize()
        yield q.get(), q.get(), q.empty()
        yield caught(q.get_nowait), caught(q.get, True, 0.01), caught(q.get, True, -1)
        q.task_done(), q.task_done()
        yield q.join(), caught(q.task_done)
        for kind in (queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue):
            each = kind()
            for item in (2, 3, 1):
                each.put(item)
            yield [each.get() for _ in range(3)]
        class Last(queue.Queue):
            def _put(self, item):
                self.queue.appendleft(item)
        last = Last()
        last.put(1), last.put(2)
        yield last.get()
        yield caught(queue.Queue().put, 1, True, -1), caught(queue.Queue(1).put, 1, True, -1)
        """,
    "sockets": """
        one, other = socket.socketpair()
        one.sendall(b"abc")
        yield other.recv(2), other.recv(2)
        other.setblocking(False)
        yield caught(other.recv, 1)
        other.settimeout(0.01)
        yield caught(other.recv, 1)
        yield other.recv(0), caught(other.recv, -1), caught(other.recv_into, bytearray(2), 3)
        one.shutdown(socket.SHUT_WR)
        yield other.recv(9), other.recv(9)
        file = one.makefile("rb")
        other.sendall(b"line\\nrest")
        yield file.readline()
        one.close(), file.close()
        yield caught(one.recv, 1), one.fileno(), caught(other.send, b"late")
        other.close()
        """,
    "file of a socket that is closed": """
        one, other = socket.socketpair()
        file = one.makefile("rb")
        one.close()
        other.sendall(b"line\\n")
        yield file.readline(), one.fileno() >= 0
        file.close()
        yield one.fileno(), caught(other.send, b"late")
        other.close()
        """,
    "socket that does not listen": """
        with socket.socket() as server:
            yield caught(server.accept)
        """,
    "socket that is closed": """
        one, other = socket.socketpair()
        one.close()
        yield error_of(one.shutdown, socket.SHUT_RDWR), error_of(one.listen)
        other.close()
        """,
    "socket that is connected": """
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname()) as connection:
                yield connection.connect_ex(server.getsockname())
        """,
    "two sockets of one port": """
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
            other.bind(one.getsockname())
            yield one.listen(), error_of(other.listen), error_of(one.bind, ("127.0.0.1", 0))
            one.close()
            yield other.listen()
        with socket.socket() as one, socket.socket() as other:
            yield one.listen(), other.listen(), one.getsockname() != other.getsockname()
        """,
    "server": """
        server = socket.create_server(("127.0.0.1", 0))
        address = server.getsockname()
        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(10).upper())
        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(address) as connection:
            connection.sendall(b"hello")
            yield connection.recv(10), connection.recv(10)
        thread.join()
        server.close()
        yield caught(socket.create_connection, address)
        """,
    "listener that is shut down": """
        server = socket.create_server(("127.0.0.1", 0))
        found = []
        thread = threading.Thread(target=lambda: found.append(caught(server.accept)))
        thread.start()
        server.shutdown(socket.SHUT_WR)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        yield found, caught(socket.create_connection, server.getsockname()), caught(server.accept)
        server.close()
        """,
    "a listener with another backlog": """
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        server.listen(5)
        server.settimeout(5)
        connection, _ = server.accept()
        connection.sendall(b"a")
        yield client.recv(1)
        client.close(), connection.close(), server.close()
        """,
    "selectors": """
        one, other = socket.socketpair()
        with selectors.DefaultSelector() as selector:
            selector.register(one, selectors.EVENT_READ, "data")
            yield selector.select(0)
            other.send(b"x")
            yield [(key.data, events) for key, events in selector.select(1)]
        yield [len(each) for each in select.select([one], [one], [], 1)]
        yield caught(select.select, [one], [], [], -1)
        yield caught(select.poll().unregister, one), caught(select.epoll().unregister, one)
        closed = select.epoll()
        closed.close(), closed.close()
        yield [caught(each, one) for each in (closed.register, closed.unregister)], caught(closed.poll, 0)
        one.close(), other.close()
        """,
    "executor": """
        with ThreadPoolExecutor(2) as pool:
            yield list(pool.map(lambda n: n * n, range(4)))
            future = pool.submit(lambda: 1 / 0)
            yield caught(future.result)
        """,
}
HEAD = """
import _thread, queue, select, selectors, socket, threading, time
from concurrent.futures import ThreadPoolExecutor

def caught(function, *args):
    try:
        return function(*args)
    except (Exception, TimeoutError) as reason:
        return type(reason).__name__

def error_of(function, *args):
    try:
        return function(*args)
    except OSError as reason:
        return reason.errno

def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]

def in_threads(function, count):
    found = []
    threads = [threading.Thread(target=lambda: found.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)

def steps():
{body}

def scenario():
    return [str(each) for each in steps()]
"""


def program(path: Path, text: str) -> ExploredProgram:
    path.write_text(text)
    return ExploredProgram(path, "scenario", Options(stall_s=20))


@pytest.mark.parametrize("name", SAME)
def test_a_stand_in_is_as_the_standard_library(name: str, tmp_path: Path) -> None:
    lines = SAME[name].strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) - 4
    source = HEAD.format(body="\n".join(line[indent:] for line in lines))
    real: dict[str, Any] = {"__name__": "real"}
    exec(compile(source, "real", "exec"), real)
    expected = real["scenario"]()
    explored = program(tmp_path / f"{name}_explored.py", source)
    run = Run(Replay(()), explored.options)
    explored.start(run)
    assert run.problem is None, run.problem
    assert run.result == expected


def test_random_numbers_are_the_same_in_each_run(tmp_path: Path) -> None:
    explored = program(tmp_path / "dice.py", "import random\ndef scenario(): return random.random()\n")
    state = random.getstate()
    results = []
    for _ in range(2):
        run = Run(Replay(()), explored.options)
        explored.start(run)
        results.append(run.result)
    assert results[0] == results[1]
    assert random.getstate() == state


def test_nothing_of_a_run_is_left(tmp_path: Path) -> None:
    text = "import threading, helper\ndef scenario():\n    lock = threading.Lock()\n"
    text += "    lock.acquire(), lock.acquire()\n"
    (tmp_path / "helper.py").write_text("import threading\ncount = 0\n")
    before = (set(sys.modules), threading.active_count(), threading.Lock, len(sys._current_frames()))
    explored = program(tmp_path / "left_over.py", text)
    for _ in range(20):
        run = Run(Replay(()), explored.options)
        explored.start(run)
        assert run.problem is not None and run.problem.kind == "deadlock"
    assert set(sys.modules) - before[0] <= {"selectors"}
    assert (threading.active_count(), threading.Lock) == before[1:3]
    assert len(sys._current_frames()) <= before[3]


# The changed source

LIBRARY = [
    "argparse",
    "configparser",
    "dataclasses",
    "difflib",
    "heapq",
    "json.decoder",
    "statistics",
    "textwrap",
]


@pytest.mark.parametrize("name", LIBRARY)
def test_a_changed_module_still_works(name: str) -> None:
    """Modules of the standard library, changed: every kind of statement is in them somewhere."""
    original = importlib.import_module(name)
    assert original.__file__ is not None
    code = instrument.compiled(Path(original.__file__).read_text(encoding="utf-8"), original.__file__)
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    module.__dict__.update(calls.CALLED)
    exec(code, module.__dict__)
    assert {key for key in vars(original) if not key.startswith("__")} <= set(vars(module))
    if name == "textwrap":
        text = "a lock is a variable with its owner " * 5
        assert module.fill(text, 30) == original.fill(text, 30)
    if name == "json.decoder":
        assert module.JSONDecoder().decode('{"a": [1, 2.5, null]}') == json.loads('{"a": [1, 2.5, null]}')
    if name == "statistics":
        assert module.median([3, 1, 2]) == 2 and module.linear_regression([1, 2, 3], [2, 4, 6]).slope == 2
    if name == "heapq":
        assert list(module.merge([1, 4], [2, 3])) == [1, 2, 3, 4]
    if name == "difflib":
        assert module.get_close_matches("lock", ["block", "queue"]) == ["block"]
    if name == "argparse":
        parser = module.ArgumentParser()
        parser.add_argument("--n", type=int)
        assert parser.parse_args(["--n", "3"]).n == 3
    if name == "configparser":
        parser = module.ConfigParser()
        parser.read_string("[a]\nb = ${x}1\n")
        assert parser["a"]["b"] == "${x}1"


ORDER = """
import bisect, heapq
seen = []
def f(value):
    seen.append(value)
    return value
class Box:
    pass
box, table, total = Box(), {}, 0
def work():
    global total
    f(box).x = f(1)
    f(box).x += f(2)
    table[f("k")] = f(3)
    table[f("k")] += f(4)
    total += f(5)
    f([6]).append(f(box).x)
    f(box).y, table["z"] = f((7, 8))
    [n for n in f([9]) if n in f([9])]
    first, *rest = f([12, 13])
    seen.append(f"{f(rest)} {f({**f({1: 2}), 3: f(4)})} {f([*f(rest), *f([5])]) == f([13, 5])} {not f([])}")
    seen.extend(f("xy")); f(list)(*f([[14]]), **f({})); print(f(""), end=f(""))
    heapq.heappush(f([3]), f(1)); heapq.heappop(f([4])); [heapq.nsmallest(f(1), f([2]))]
    bisect.insort(*f([[1], 2]), f(0))
    for total in f([5, 5]):
        seen.append(total)
    f([15]) + f([16]) < f([17]) != f([18])
    seen.append([str(f(n)) for n in f([19]) if f(rest)])
    del f(box).y
    match f(box).x:
        case 3 if f(10):
            seen.append("matched")
    try:
        f(box).none
    except AttributeError:
        seen.append("no attribute")
    return (lambda: total)() or f(11)
result = work()
"""


def test_the_order_of_evaluation_stays() -> None:
    plain: dict[str, Any] = {}
    exec(compile(ORDER, "plain", "exec"), plain)
    changed: dict[str, Any] = {**calls.CALLED}
    exec(instrument.compiled(ORDER, "changed"), changed)

    def told(names: dict[str, Any]) -> list[str]:
        return [type(each).__name__ if type(each).__name__ == "Box" else repr(each) for each in names["seen"]]

    assert told(changed) == told(plain) and changed["result"] == plain["result"] == 5
    assert changed["table"] == plain["table"]
