"""Small random programs, and all outcomes that they have: the oracles for what the explorer calls "all schedules".

A program has two threads with a few accesses to shared objects. There are two oracles:

- For accesses to variables and containers, Interleavings runs the program once for each order of the instructions
  of both threads: real threads, the unchanged source, and a switch before any instruction of the bytecode. Nothing
  is reduced, except that no switch is tried before an instruction that uses local variables only.
- For locks, queues and the like, unreduced_outcomes() runs the explorer's own threads with a deviation at every
  decision, and makes each release of a lock and each end of a thread a decision. It checks the reduction of the
  search, not the primitives (test_meaning.py).

    python packages/ewe-explore/tests/interleavings.py --seconds 600 --seed 1

compares the outcomes with those of the explorer, program after program, and prints each program of which the
explorer has lost an outcome without saying so. --sync takes the second oracle.
"""

from __future__ import annotations

import _thread
import argparse
import dis
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ewe_explore.program import ExploredProgram
from ewe_explore.scheduler import Deviation, Run, Schedule, last_decision
from ewe_explore.search import Replay, Search

# Instructions that use only local variables and constants, by the begin of their names
LOCAL = (
    "BUILD_", "CACHE", "COPY", "END_FOR", "EXTENDED_ARG", "IS_OP", "JUMP_", "KW_NAMES", "LIST_APPEND",
    "LOAD_CLOSURE", "LOAD_CONST", "LOAD_FAST", "MAKE_", "NOP", "POP_", "PRECALL", "PUSH_", "RERAISE", "RESUME",
    "RETURN_", "STORE_FAST", "SWAP",
)  # fmt: skip
# These attributes are methods of builtin types
CONSTANT_NAMES = frozenset(
    ("append", "clear", "count", "extend", "get", "index", "items", "pop", "setdefault")
)
# Statements of a thread. C: a small number. R: a new local variable, a part of the outcome
STATEMENTS = (
    "R = box.n", "box.n = C", "box.n += C", "R = Box.n", "Box.n = C", "R = sub.n", "Sub.n = C", "R = Sub.n",
    "setattr(box, 'n', C)", "R = getattr(box, 'n')", "R = hasattr(box, 'x')", "setattr(box, 'x', C)",
    "object.__setattr__(sub, 'n', C)", "if box.n: box.m = C", "if not box.m: box.n += C", "R = box.m",
    "R = t[0]", "t[0] = C", "t.append(C)", "R = len(t)", "R = list(t)", "add(C)", "list.append(t, C)",
    "R = sum(t)", "R = get()[-1]", "R = len(get())", "get().append(C)", "R = t.pop() if t else None",
    "R = C in t", "t[:] = [C, C]", "R = [each for each in t]", "for R in t: pass", "R = t == [0]",
    "R = t + [box.n]", "R = sorted(t)", "t.clear()", "R, _ = pair", "pair[0] = C", "pair[:] = [C, C]",
    "R = tuple(pair)", "box.l += [C]", "R = str(box.l)", "R = len(l)", "R = d.get('k')", "d['k'] = C",
    "d['k'] += C", "R = dict(d)", "d.setdefault('x', C)", "R = [*d]", "d.pop('k', 0)", "for R in d: pass",
    "R = 'x' in d", "R = list((each for each in d))", "lazy = (each for each in t); t[0] += C; R = list(lazy)",
    "nested[0].append(C)", "R = str(nested)", "R = nested == [[0]]", "R = f'{nested}'",
    "R = copy.copy(t)", "R = copy.deepcopy(nested)", "R = json.dumps(nested)", "nested[0] = [C]",
    "R = sum(map(len, nested))", "R = [len(each) for each in nested]", "R = g", "g = C", "g += C",
    "if g: g = C", "box.call = None", "if box.call: R = box.call()", "R = space.n", "space.n = C",
    "R = str(space)", "space.n += C", "R = next(numbers)", "R = point == Point(0)", "point.x = C",
    "R = repr(point)", "R = reader()", "R = view[0]", "raw[0] = C", "view[0] = C", "R = bytes(raw)",
    "R = operator.attrgetter('n')(box)", "R = min(t, default=0)",
    "R = list(zip(t, pair))", "R = list(map(int, t))", "R = '%s' % (nested,)", "R = any(t)",
    "operator.setitem(pair, 0, C)", "operator.iconcat(l, [C])", "operator.methodcaller('append', C)(l)",
    "name.n = C", "name.n += C", "R = name.n", "slot.x = C", "R = slot == Slot(0)", "R = copy.copy(slot).x",
    "box.x = C", "del box.x", "R = getattr(copy.copy(box), 'x', None)", "R = copy.copy(sub).n",
    "R = max([1], key=l.append)",
    "R = vars(box)['n']", "vars(box)['n'] = C", "globals()['g'] = C", "R = sorted(t, key=key)", "box.l = [C]",
)  # fmt: skip
# Statements with locks and the like. Each wait ends, so that no outcome is a deadlock
SYNC_STATEMENTS = (
    "with lock: box.n += C", "with lock: R = box.n", "lock.acquire(); box.n = C; lock.release()",
    "R = lock.locked()", "R = lock.acquire(False) and (lock.release() or 1)", "with rlock, rlock: box.n += C",
    "with lock: t.append(C)", "with lock: R = list(t)", "q.put(C, timeout=1)", "R = q.qsize()", "R = q.empty()",
    "R = q.get(timeout=1)", "R = q.get_nowait()", "R = q.full()", "event.set()", "event.clear()",
    "R = event.is_set()", "R = event.wait(1)", "with cond: box.n = C; cond.notify()", "with cond: R = cond.wait(1)",
    "with cond: R = box.n or cond.wait(2)", "R = sem.acquire(timeout=1)", "sem.release()", "R = sem.acquire(False)",
    "time.sleep(1)", "R = time.monotonic()", "R = barrier.wait(1)", "R = barrier.n_waiting", "barrier.abort()",
    "box.n += C", "R = box.n", "t.append(C)", "R = len(t)", "R = threads[-1].is_alive()",
    "R = threads[0].is_alive()", "if not event.is_set(): box.m = C", "R = box.m", "if box.n: q.put(C, timeout=1)",
    "right.send(b'C')", "R = left.recv(1)", "R = left.recv(1, socket.MSG_DONTWAIT)", "right.close()",
    "left.close()", "left.shutdown(socket.SHUT_RD)", "right.shutdown(socket.SHUT_WR)",
    "R = len(select.select([left], [], [], 0)[0])", "R = len(select.select([left], [], [], 1)[0])",
    "poll.register(left, 1)", "poll.modify(left, 5)", "poll.unregister(left)", "R = len(poll.poll(0))",
    "R = len(poll.poll(1))", "poll.close()", "selector.register(left, 1)", "selector.unregister(left)",
    "R = len(selector.select(0))", "server.listen()", "R = client.connect_ex(server.getsockname())",
    "server.close()", "server.accept()[0].send(b'C')", "R = client.recv(1)",
)  # fmt: skip
# Objects of a program, each with the words that use it, its source, and an expression for its state
OBJECTS = (
    ("box Box sub Sub l get key", "class Box: n = 0\nclass Sub(Box): pass\nbox, sub, t = Box(), Sub(), [0]\n"
     "def get(): return t\ndef key(value): return -value * box.m\nbox.m, box.l, box.call = 0, [], get\nl = box.l\n"
     "add = t.append\n",
     "Box.n, Sub.n, box.n, sub.n, box.m, box.l, bool(box.call), getattr(box, 'x', None), l, t"),
    ("d reader", "d = {'k': 0}\nreader = d.copy\n", "d"),
    ("pair", "pair = [0, 0]\n", "pair"),
    ("nested copy json", "import copy, json\nnested = [[0]]\n", "nested"),
    ("g", "g = 0\n", "g"),
    ("numbers", "import itertools\nnumbers = itertools.count()\n", "numbers"),
    ("space", "from types import SimpleNamespace\nspace = SimpleNamespace(n=0)\n", "space.n"),
    ("point Point", "from dataclasses import dataclass\n@dataclass\nclass Point: x: int\npoint = Point(0)\n",
     "point.x"),
    ("name", "class Name(str): pass\nname = Name()\nname.n = 0\n", "name.n"),
    ("slot Slot", "from dataclasses import dataclass\n@dataclass(slots=True)\nclass Slot: x: int\nslot = Slot(0)\n",
     "slot.x"),
    ("view raw", "raw = bytearray(b'0')\nview = memoryview(raw)\n", "bytes(raw)"),
    ("operator", "import operator\n", "0"),
    ("lock rlock q event cond sem barrier time", "import queue, threading, time\nlock, rlock = threading.Lock(), "
     "threading.RLock()\nq, event = queue.Queue(1), threading.Event()\ncond, sem = threading.Condition(), "
     "threading.Semaphore(1)\nbarrier = threading.Barrier(2)\n", "list(q.queue), event.flag, sem._value"),
)  # fmt: skip
# The same for SYNC_STATEMENTS with sockets
SOCKETS = (
    ("left right poll selector", "import select, selectors, socket\nleft, right = socket.socketpair()\n"
     "left.settimeout(1)\npoll, selector = select.epoll(), selectors.DefaultSelector()\n",
     "bytes(left.incoming.data), left.fileno() < 0, right.fileno() < 0, len(poll.watched)"),
    ("server client", "import socket\nserver, client = socket.socket(), socket.socket()\n"
     "server.bind(('127.0.0.1', 0)); server.settimeout(1); client.settimeout(1)\n", "server.fileno() < 0"),
)  # fmt: skip
CAUGHT = """
def caught(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__
"""
SCENARIO = """
import threading
threads = []
def scenario():
    results = [], []
    def work(function, result):
        result.append(caught(function))
    threads.append(threading.Thread(target=work, args=(one, results[0])))
    threads.append(threading.Thread(target=work, args=(two, results[1])))
    threads[0].start()
    threads[1].start()
    return results, state
"""


def function_text(name: str, statements: list[str], numbers: Iterator[int]) -> str:
    """Return the source of a thread's function. It returns its local variables."""
    lines = [f"def {name}():", "    global g"]
    results = []
    for index, statement in enumerate(statements):
        variable = f"r{index}"
        text = statement.replace("C", str(next(numbers))) if "C" in statement else statement
        if "R" in statement:
            results.append(variable)
            lines.append(f"    {variable} = None")
        lines.append("    " + text.replace("R", variable))
    return "\n".join([*lines, f"    return ({''.join(each + ', ' for each in results)})", ""])


def random_program(source: random.Random) -> str:
    """Return the source of a program with two functions, one() and two(), of one to three statements each.

    The statements of both are likely to use the same objects: they are chosen from a few.
    """
    numbers = iter(range(1, 100))
    few = source.sample(STATEMENTS, 5)
    objects = source.sample(OBJECTS, 2)
    near = [each for each in STATEMENTS if any(uses(each, words) for words, _, _ in objects)]
    bodies = [
        [source.choice(near if source.random() < 0.8 else few) for _ in range(source.choice((1, 1, 2, 2, 3)))]
        for _ in range(2)
    ]
    return program_of(bodies[0], bodies[1], numbers)


def random_sync_program(source: random.Random) -> str:
    """Return the source of a program with one or two statements of SYNC_STATEMENTS in each thread."""
    words = source.choice(
        (
            "box lock rlock",
            "q",
            "event box",
            "cond box",
            "sem",
            "barrier",
            "t lock",
            "threads box",
            "left right",
            "left right poll",
            "left right selector",
            "server client",
        )
    )
    near = [each for each in SYNC_STATEMENTS if uses(each, words)]
    few = [*source.sample(near, min(3, len(near))), source.choice(SYNC_STATEMENTS)]
    bodies = [[source.choice(few) for _ in range(source.choice((1, 1, 2)))] for _ in range(2)]
    return program_of(bodies[0], bodies[1], iter(range(1, 100)))


def uses(statement: str, words: str) -> bool:
    """Return whether a statement uses one of the words."""
    return not set(words.split()).isdisjoint(re.findall(r"\w+", statement))


def program_of(one: list[str], two: list[str], numbers: Iterator[int]) -> str:
    """Return the source of a program with the statements of its two threads, and the objects that they use."""
    others = (*OBJECTS[1:], *SOCKETS)
    used = [OBJECTS[0], *(each for each in others if any(uses(line, each[0]) for line in [*one, *two]))]
    state = f"def state(): return repr(({', '.join(expression for _, _, expression in used)},))\n"
    setup = "".join(text for _, text, _ in used) + state + CAUGHT
    return f"{setup}{function_text('one', one, numbers)}{function_text('two', two, numbers)}"


class TooMany(Exception):
    """A program has more orders of its instructions than the limit."""


class Interleavings:
    """Runs the functions one() and two() of a program in every order of their instructions."""

    def __init__(self, text: str, limit: int) -> None:
        """limit: the most orders; outcomes() raises TooMany above it."""
        self.code = compile(text, "<interleaved>", "exec")
        self.limit = limit
        self.places: dict[CodeType, frozenset[int]] = {}  # the instructions before which a switch is tried

    def outcomes(self) -> tuple[set[str], int]:
        """Return all outcomes, and the number of orders."""
        waiting: list[tuple[int, ...]] = [()]
        found: set[str] = set()
        count = 0
        while waiting:
            prefix = waiting.pop()
            decisions, outcome = self.run(prefix)
            found.add(outcome)
            count += 1
            for index in range(len(prefix), len(decisions)):
                waiting.append((*decisions[:index], 1 - decisions[index]))
            if count + len(waiting) > self.limit:
                raise TooMany
        return found, count

    def places_of(self, code: CodeType) -> frozenset[int]:
        """Return the offsets of the instructions that may use a shared object."""
        if code not in self.places:
            self.places[code] = frozenset(
                each.offset
                for each in dis.get_instructions(code)
                if not each.opname.startswith(LOCAL)
                and not (each.opname == "LOAD_GLOBAL" and each.argval != "g")
                and not (each.opname in ("LOAD_METHOD", "LOAD_ATTR") and each.argval in CONSTANT_NAMES)
            )
        return self.places[code]

    def run(self, choices: tuple[int, ...]) -> tuple[list[int], str]:
        """Run the program once; return the decisions, and the outcome.

        choices: the first decisions, each the number of the thread that executes the next instruction. After them,
        the current thread goes on.
        """
        names: dict[str, Any] = {"__name__": __name__}  # dataclasses look for the module of a class
        exec(self.code, names)
        order = Order(choices)
        results: list[Any] = [None, None]

        def body(me: int, function: Callable[[], Any]) -> None:
            order.wait(me)

            def trace(frame: FrameType, event: str, _: Any) -> Any:
                if frame.f_code.co_filename != "<interleaved>" or frame.f_code.co_name in (
                    "caught",
                    "__init__",
                ):
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
                places = self.places_of(frame.f_code)

                def instruction(frame: FrameType, event: str, _: Any) -> Any:
                    if event == "opcode" and frame.f_lasti in places:
                        order.decide(me)
                    return instruction

                return instruction

            sys.settrace(trace)
            results[me] = names["caught"](function)
            sys.settrace(None)
            order.end(me)

        for me, name in enumerate(("one", "two")):
            _thread.start_new_thread(body, (me, names[name]))
        order.run()
        return order.decisions, repr(tuple(results)) + names["state"]()


class Order:
    """Lets two threads run one at a time, in the order of a list of decisions."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        self.choices = choices
        self.decisions: list[int] = []
        self.batons = [_thread.allocate_lock(), _thread.allocate_lock()]
        self.finished = _thread.allocate_lock()
        for lock in (*self.batons, self.finished):
            lock.acquire()
        self.has_ended = [False, False]

    def next_thread(self, default: int) -> int:
        """Decide which of two threads runs next."""
        index = len(self.decisions)
        self.decisions.append(self.choices[index] if index < len(self.choices) else default)
        return self.decisions[-1]

    def run(self) -> None:
        """Run both threads to their ends."""
        self.batons[self.next_thread(0)].release()
        self.finished.acquire()

    def wait(self, me: int) -> None:
        self.batons[me].acquire()

    def decide(self, me: int) -> None:
        """Decide before an instruction of thread `me` which thread goes on; return when it is the turn of `me`."""
        if not self.has_ended[1 - me] and self.next_thread(me) != me:
            self.batons[1 - me].release()
            self.wait(me)

    def end(self, me: int) -> None:
        self.has_ended[me] = True
        (self.finished if all(self.has_ended) else self.batons[1 - me]).release()


@dataclass
class Comparison:
    """The outcomes of one program. unseen: what the explorer says that it does not see. complete: it tried all."""

    text: str
    real: set[str]
    explored: set[str]
    orders: int
    runs: int
    unseen: tuple[str, ...]
    complete: bool

    def lost(self) -> set[str]:
        """Return the outcomes that the explorer has lost without saying so."""
        return self.real - self.explored if self.complete and not self.unseen else set()

    def invented(self) -> set[str]:
        """Return the outcomes of the explorer that no order of instructions has."""
        return self.explored - self.real


def outcome_of(run: Run) -> str:
    """Return the outcome of a run of the explorer."""
    if run.problem is not None:
        return run.problem.headline
    results, state = run.result
    return repr(tuple(result[0] for result in results)) + str(state())


def program_at(path: Path, text: str) -> ExploredProgram:
    """Write a program to a file, and return it."""
    path.write_text(text + SCENARIO)
    return ExploredProgram(path, "scenario")


def explored_outcomes(path: Path, text: str, most_runs: int) -> tuple[set[str], Search]:
    """Return the outcomes of all schedules that the explorer tries, up to `most_runs`, and its search."""
    program = program_at(path, text)
    search = Search(program.start, program.options, seed=1)
    found: set[str] = set()
    while search.runs < most_runs and (schedule := search.next_schedule()) is not None:
        found.add(outcome_of(search.run_level(schedule)))
    return found, search


def unreduced_outcomes(path: Path, text: str, limit: int) -> tuple[set[str], int]:
    """Return the outcomes with a deviation at every decision of both threads, and the number of runs.

    The main thread only starts them, so it loses its turn only if they can tell, by is_alive(). They never do
    in the lines of SCENARIO, where they store their results. Raises TooMany above `limit` runs.
    """
    program = program_at(path, text)
    last_line = text.count("\n") + 1
    waiting: list[Schedule] = [()]
    found: set[str] = set()
    count = 0
    while waiting:
        schedule = waiting.pop()
        run = Run(Replay(schedule), program.options)
        run.releases_decide = run.ends_decide = True
        program.start(run)
        found.add(outcome_of(run))
        count += 1
        for index in range(last_decision(schedule) + 1, len(run.branches)):
            branch = run.branches[index]
            step = run.steps[branch.step]
            is_seen = step.line <= last_line or step.kind == "life" or step.verb == "is about to start"
            if branch.default_goes_on and not is_seen:
                continue
            waiting += [
                (*schedule, Deviation(index, lane)) for lane in branch.lanes if lane != branch.default
            ]
        if count + len(waiting) > limit:
            raise TooMany
    return found, count


def compared(text: str, directory: Path, limit: int, sync: bool = False) -> Comparison:
    """Return the comparison of one program. Raises TooMany if it has more than `limit` orders.

    sync: with unreduced_outcomes(), not with the orders of the bytecode.
    """
    path = directory / "interleaved.py"
    real, orders = unreduced_outcomes(path, text, limit) if sync else Interleavings(text, limit).outcomes()
    explored, search = explored_outcomes(path, text, 4 * limit)
    return Comparison(text, real, explored, orders, search.runs, tuple(search.unseen), search.exhausted())


def functions(text: str) -> str:
    """Return the two functions of a program."""
    return text[text.index("def one()") :]


def main() -> int:
    """Compare random programs for some time; print the faults and the counts."""
    parser = argparse.ArgumentParser(
        description="Compare the explorer's outcomes with those of all interleavings."
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to compare programs (60)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random programs (1)")
    parser.add_argument("--limit", type=int, default=1500, help="the most orders of a program (1500)")
    parser.add_argument(
        "--sync", action="store_true", help="compare programs with locks, queues and the like"
    )
    options = parser.parse_args()
    source = random.Random(options.seed)
    end = time.monotonic() + options.seconds
    counts = dict.fromkeys(
        ("programs", "too large", "not complete", "not all", "orders", "runs", "lost", "invented"), 0
    )
    with tempfile.TemporaryDirectory(prefix="interleavings-") as directory:
        while time.monotonic() < end:
            try:
                text = random_sync_program(source) if options.sync else random_program(source)
                found = compared(text, Path(directory), options.limit, options.sync)
            except TooMany:
                counts["too large"] += 1
                continue
            counts["programs"] += 1
            counts["not complete"] += not found.complete
            counts["not all"] += bool(found.unseen)
            counts["orders"] += found.orders
            counts["runs"] += found.runs
            counts["lost"] += bool(found.lost())
            counts["invented"] += bool(found.invented())
            for name, outcomes in (("LOST", found.lost()), ("INVENTED", found.invented())):
                if outcomes:
                    print(f"{name}: {sorted(outcomes)[:3]}\n{functions(found.text)}", flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    return int(counts["lost"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
