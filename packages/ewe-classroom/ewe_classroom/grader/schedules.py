"""Checks of scheduling: who is served next, who waits, and who has to go when the queue is full.

Order is proved by gates. Each file below /sizes/ is larger than the buffers of a connection, and no client reads. A
worker that serves one of them therefore stops after the first bytes, until the grader reads:

    n clients hold the n workers ─▶ requests queue up, one after the other; the server is calm after each
      ─▶ one client reads to its end: one worker is free ─▶ exactly one waiting client gets its first bytes
      ─▶ it holds the worker in its turn; another client reads ...

No clock is looked at, and two responses never run beside each other on one worker. What each client sees gives the
order; trace.py compares it with what the server says of itself.

The rules are repeated here (`Rule`), so that a verdict names the request that should have been next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ewe_classroom.grader import trace
from ewe_classroom.grader.check import check
from ewe_classroom.grader.scene import Client, Scene

HELD = "/sizes/held"
A, BB, M, Z, LONG = "/sizes/a", "/sizes/bb", "/sizes/m", "/sizes/z", "/sizes/a-long-name-and-a-short-file"
FIVE = ("1st", "2nd", "3rd", "4th", "5th")
WHY_ORDER = (
    "Mean waiting time depends on the order alone: no order has a smaller mean than the shortest first."
)


@dataclass(eq=False)
class Waiting:
    """A request that waits. overtaken: by how many that came later."""

    client: Client
    size: int
    overtaken: int = 0

    @property
    def name(self) -> str:
        return f"{self.client.name} ({self.client.path}, {self.size / 1e6:.2f} MB)"


Rule = Callable[[list[Waiting]], Waiting]


def first(waiting: list[Waiting]) -> Waiting:
    return waiting[0]


def last(waiting: list[Waiting]) -> Waiting:
    return waiting[-1]


def smallest(waiting: list[Waiting]) -> Waiting:
    return min(waiting, key=lambda each: each.size)


def largest(waiting: list[Waiting]) -> Waiting:
    return max(reversed(waiting), key=lambda each: each.size)


def patient(times: int) -> Rule:
    """Return the rule: the smallest, unless one was overtaken so often."""
    return lambda waiting: next((each for each in waiting if each.overtaken >= times), smallest(waiting))


Choice = tuple[list[Waiting], Waiting]  # those that waited, in the order of their coming, and who was chosen

# What a server may do in place of the rule. The first that explains every choice so far is the likely cause.
GUESSES: list[tuple[Rule, str]] = [
    (last, "the request that came last is taken: a stack"),
    (
        lambda waiting: min(waiting, key=lambda each: len(each.client.path)),
        "the request with the shortest URL is taken",
    ),
    (smallest, "the smallest file is taken, however often a request was overtaken"),
    (
        lambda waiting: min(reversed(waiting), key=lambda each: each.size),
        "of equal files, the last that came is taken",
    ),
    (largest, "the largest file is taken"),
    (
        lambda waiting: max(waiting, key=lambda each: each.size),
        "of equal files, the first that came is taken",
    ),
    (first, "the request that came first is taken, as by FIFO"),
]


def guess(choices: list[Choice]) -> str:
    """Return the likely cause of choices, of which the last one is wrong."""
    for rule, words in GUESSES:
        if all(rule(waiting) is chosen for waiting, chosen in choices):
            return words
    chosen = choices[-1][1]
    return f"{chosen.client.name} had been overtaken {chosen.overtaken} times" if chosen.overtaken else ""


class Play:
    """Workers that are held, requests that wait behind them, and what the clients have seen so far."""

    def __init__(self, scene: Scene, rule: Rule) -> None:
        self.scene = scene
        self.rule = rule
        self.serving: list[Client] = []  # in the order of their dispatch
        self.waiting: list[Waiting] = []  # in the order of their coming
        self.seen = trace.Story()
        self.names: dict[int, str] = {}
        self.served: list[Choice] = []
        self.dropped: list[Choice] = []
        self.checks_trace = False
        for number in range(scene.workers):
            client = self.send(f"holds {number + 1}", HELD)
            scene.until(lambda client=client: self.status(client) > 0, f"{client.name} is served")  # type: ignore[misc]
            if self.status(client) != 200:
                scene.fail(
                    f"{number} of {scene.workers} workers are busy, and the next request {self.told(client)}"
                    f"{scene.blocked()}",
                    "serve it: a worker is free",
                    "there are fewer workers than asked for, or a free worker is not woken up",
                )
            self.serve(client)
            scene.settle()
            self.compare()

    def send(self, name: str, path: str) -> Client:
        client = self.scene.client(name, reads=False).ask(path, Connection="close")
        self.scene.settle()
        self.names[client.port] = name
        self.seen.arrival.append(client.port)
        return client

    def serve(self, client: Client) -> None:
        """Note that a client's response has begun: it has a worker until it is read."""
        client.note("served")
        self.serving.append(client)
        self.seen.dispatch.append(client.port)

    def status(self, client: Client) -> int:
        """Return the status whose first bytes have come, 0 while none has."""
        data = client.peek()
        return int(data[9:12]) if data.startswith(b"HTTP/1.") and data[9:12].isdigit() else 0

    def told(self, client: Client) -> str:
        status = self.status(client)
        return f"got status {status}" if status else "got no response"

    def add(self, name: str, path: str, victim: Rule | None = None) -> None:
        """Send one more request behind the held workers. victim: who has to go, by the rule; None: nobody."""
        scene = self.scene
        client = self.send(name, path)
        self.waiting.append(Waiting(client, scene.site.sized[path]))
        if victim is None:
            told = [each for each in self.waiting if self.status(each.client)]
            if told:
                scene.fail(
                    f"{len(self.waiting)} requests waited, and {told[0].name} {self.told(told[0].client)}",
                    "let it wait: all workers are held, and the queue has room for it",
                    "the queue is smaller than QUEUE, or more requests are served than there are workers",
                )
        else:
            self.expect_drop(victim)
        self.compare()

    def expect_drop(self, victim: Rule) -> None:
        """Fail unless exactly the request has to go that the rule names."""
        scene = self.scene
        wanted = victim(self.waiting)
        scene.until(lambda: any(self.status(each.client) for each in self.waiting), "one gets status 503")
        scene.settle()
        told = [each for each in self.waiting if self.status(each.client)]
        count = len(self.waiting)
        if not told:
            scene.fail(
                f"{count - 1} requests may wait, and {count} do: none of them got a response{scene.blocked()}",
                "answer one of them with 503 at once: the queue is full",
                "the queue has no bound, or the front waits for room and leaves clients without an answer",
            )
        for each in told:
            if self.status(each.client) != 503:
                scene.fail(f"the queue was full, and {each.name} {self.told(each.client)}", "answer 503")
        self.dropped.append((list(self.waiting), told[0]))
        if told != [wanted]:
            scene.fail(
                f"the queue was full, and {' and '.join(each.name for each in told)} got 503",
                f"drop {wanted.name}, and let the others wait",
                guess(self.dropped) if len(told) == 1 else "more than one has to go",
            )
        self.waiting.remove(wanted)
        self.seen.drop.append(wanted.client.port)
        wanted.client.read_on()
        scene.until(wanted.client.answered_or_over, f"{wanted.client.name} is answered")
        if not wanted.client.answered():
            scene.fail(
                f"{wanted.name} was dropped and {wanted.client.story()}",
                "send the whole response with status 503",
                "the connection is closed while bytes of the request are unread, or in the middle of the response",
            )
        wanted.client.close()

    def serve_next(self) -> None:
        """Let one worker become free; fail unless it takes the request that the rule names."""
        scene = self.scene
        free = self.serving.pop(0)
        port = free.port
        free.read_on()
        scene.until(free.answered_or_over, f"{free.name} has its response")
        self.expect_whole(free)
        self.seen.completion.append(port)
        if not self.waiting:
            scene.settle()
            self.compare()
            return
        scene.until(lambda: any(self.status(each.client) for each in self.waiting), "the next one is served")
        scene.settle()
        begun = [each for each in self.waiting if self.status(each.client)]
        wanted = self.rule(self.waiting)
        shown = "; ".join(each.name for each in self.waiting)
        if not begun:
            scene.fail(
                f"a worker became free, and none of those that wait is served ({shown}){scene.blocked()}",
                f"serve {wanted.name}",
                "a wake-up is lost, or the worker has ended",
            )
        self.served.append((list(self.waiting), begun[0]))
        if begun != [wanted]:
            for each in begun:
                each.client.note("served")
            scene.fail(
                f"a worker became free while these waited, in the order of their coming: {shown}. The server took "
                f"{' and '.join(each.name for each in begun)}{self.claimed()}",
                f"take {wanted.name}",
                guess(self.served) if len(begun) == 1 else "a worker serves several at a time",
            )
        for each in self.waiting[: self.waiting.index(wanted)]:
            each.overtaken += 1
        self.waiting.remove(wanted)
        self.serve(wanted.client)
        self.seen.workers[wanted.client.port] = str(port)
        self.compare()

    def finish(self) -> None:
        """Serve all that wait, and read what is being served."""
        while self.serving:
            self.serve_next()

    def expect_whole(self, client: Client) -> None:
        """Fail unless a client has its whole file."""
        size = self.scene.site.sized[client.path]
        line = self.scene.site.first_line(client.path)
        answers = client.answers
        if not answers or answers[-1].status != 200 or len(answers[-1].body) != size:
            self.scene.fail(
                f"{client.name} asked for {client.path} and {client.story()}",
                f"answer 200 with the {size:,} bytes of the file",
            )
        if not answers[-1].body.startswith(line):
            self.scene.fail(
                f"{client.name} asked for {client.path} and got the bytes of another file",
                "send each client the file that it has asked for",
                "the queue mixes up connections and requests",
            )
        client.close()
        answers[-1].body = b""  # 8 MB that are not looked at again

    def claimed(self) -> str:
        """Return who was next by the trace, if that is somebody else, for a verdict."""
        try:
            story = trace.read(self.scene.subject.trace)
        except trace.BadTrace:
            return ""
        names = [self.names.get(port, f"port {port}") for port in story.dispatch[len(self.seen.dispatch) :]]
        return f"; its trace says that it took {', '.join(names)}" if names else ""

    def compare(self) -> None:
        """Fail if the trace contradicts what the clients have seen so far."""
        if not self.checks_trace:
            return
        scene = self.scene

        def problem() -> str:
            try:
                return trace.mismatch(trace.read(scene.subject.trace), self.seen, self.names)
            except trace.BadTrace as error:
                return str(error)

        scene.until(lambda: not problem(), "the trace agrees")
        if wrong := problem():
            scene.fail(
                wrong,
                "write each event into the trace when it happens, and only then",
                "the trace is not written where the event happens: it tells what should happen, or tells it late",
            )


def variables(policy: str, queue: int, drop: str = "newest", patience: int = 100) -> dict[str, str]:
    return {"POLICY": policy, "QUEUE": str(queue), "DROP": drop, "PATIENCE": str(patience)}


@check(
    "order-fifo",
    proves="with POLICY=fifo, requests are served in the order in which they came",
    sends=(
        "downloads that hold all workers; five requests for files of different sizes; the "
        "workers become free one at a time; a sixth request in between"
    ),
    expects="the first that came, each time",
    why="FIFO is the only order in which every request knows how long it will wait at most.",
    hint="Append at one end, and take from the other.",
    environment=variables("fifo", 16),
)
def order_fifo(scene: Scene) -> None:
    play = Play(scene, first)
    for name, path in zip(FIVE, scene.site.order("requests", (BB, M, A, LONG, BB)), strict=True):
        play.add(name, path)
    play.serve_next()
    play.serve_next()
    play.add("6th", LONG)
    play.finish()
    scene.confirm("six requests for files of different sizes were served in the order of their coming")


@check(
    "order-sff",
    proves="with POLICY=sff, the request for the smallest file is next; of equal ones, the first that came",
    sends=(
        "downloads that hold all workers; requests for five files, of which two are equal; "
        "the workers become free one at a time; a smaller file in between"
    ),
    expects="the smallest of those that wait at that moment",
    why=WHY_ORDER,
    hint="Compare the sizes of the files (os.stat), not the lengths of names or requests; min() takes the first.",
    environment=variables("sff", 16),
)
def order_sff(scene: Scene) -> None:
    play = Play(scene, smallest)
    for name, path in zip(FIVE, scene.site.order("requests", (BB, M, A, LONG, BB)), strict=True):
        play.add(name, path)
    play.serve_next()
    play.serve_next()
    play.add("6th", LONG)
    play.add("7th", Z)
    play.finish()
    scene.confirm(
        "seven requests were served by the sizes of their files, equal ones in the order of their coming"
    )


@check(
    "order-patience",
    proves="with POLICY=sff, a request that PATIENCE later ones have overtaken is next: none waits without an end",
    sends="a request for a large file; behind it ever new ones for small files, with PATIENCE=2",
    expects="two small files, then the large one, although smaller ones wait",
    why="Under load there is always a smaller file. Without a limit, the largest is never served: starvation.",
    hint="Count for each request how many that came later were served before it.",
    environment=variables("sff", 16, patience=2),
)
def order_patience(scene: Scene) -> None:
    play = Play(scene, patient(2))
    for name, path in (("1st", A), ("2nd", M), ("3rd", LONG), ("4th", BB)):
        play.add(name, path)
    play.serve_next()
    play.add("5th", LONG)
    play.serve_next()
    play.add("6th", LONG)
    play.finish()
    scene.confirm("a request was overtaken twice and not a third time")


@check(
    "queue-bound",
    proves="exactly QUEUE requests wait; with DROP=newest the next one gets 503 at once",
    sends="downloads that hold all workers; QUEUE=3 requests, then two more; a worker becomes free; one more",
    expects="three wait, two get 503; the free place is given to the next one; all that wait are served",
    why="A queue without a bound grows until memory ends, and its clients have left long before their turn.",
    hint="Count those that wait, not those that workers have: n are served, QUEUE wait, and one more is too many.",
    environment=variables("fifo", 3),
)
def queue_bound(scene: Scene) -> None:
    play = Play(scene, first)
    for name, path in (("1st", A), ("2nd", LONG), ("3rd", M)):
        play.add(name, path)
    play.add("4th", LONG, victim=last)
    play.add("5th", Z, victim=last)
    play.serve_next()
    play.add("6th", BB)
    play.add("7th", LONG, victim=last)
    play.finish()
    scene.confirm(f"{scene.workers} were served and 3 waited; three more got 503, and the others were served")


@check(
    "drop-oldest",
    proves="with DROP=oldest, the request that has waited longest has to go",
    sends="downloads that hold all workers; QUEUE=3 requests, then two more",
    expects="503 for the first, then for the second; the others are served",
    why="If clients leave after some seconds, the oldest is the one that nobody waits for any more.",
    hint="The new request is queued first; then the first of those that wait has to go.",
    environment=variables("fifo", 3, "oldest"),
)
def drop_oldest(scene: Scene) -> None:
    play = Play(scene, first)
    for name, path in (("1st", M), ("2nd", A), ("3rd", LONG)):
        play.add(name, path)
    play.add("4th", BB, victim=first)
    play.add("5th", LONG, victim=first)
    play.finish()
    scene.confirm("the two that had waited longest got 503, and the others were served")


@check(
    "drop-largest",
    proves="with DROP=largest, the request for the largest file has to go; of equal ones, the last that came",
    sends="downloads that hold all workers; QUEUE=3 requests, then smaller, larger and equal ones",
    expects="503 for the largest each time, which may be the new one",
    why="One large file makes room for the time of many small ones.",
    hint="The new request is one of those that may have to go. max() takes the first of equal ones, not the last.",
    environment=variables("sff", 3, "largest"),
)
def drop_largest(scene: Scene) -> None:
    play = Play(scene, smallest)
    for name, path in (("1st", M), ("2nd", A), ("3rd", BB)):
        play.add(name, path)
    play.add("4th", LONG, victim=largest)
    play.add("5th", A, victim=largest)
    play.add("6th", M, victim=largest)
    play.finish()
    scene.confirm("three times the largest got 503, and the others were served")


@check(
    "trace",
    proves="the server's own trace (EWE_TRACE) tells what its clients have seen, at every step",
    sends="downloads that hold all workers; requests, one too many; the workers become free one at a time",
    expects="arrival, dispatch, completion and drop of each client, in the true order, by the true worker",
    why="A trace that cannot be trusted is worse than none: every decision that rests on it is wrong.",
    hint="Write a line with one os.write() at the place where the event happens, under the lock of the queue.",
    environment=variables("sff", 3),
    fresh=True,
)
def trace_agrees(scene: Scene) -> None:
    play = Play(scene, smallest)
    if not scene.subject.trace.read_bytes():
        scene.fail(
            f"{scene.workers} requests are served, and the file that EWE_TRACE names is empty",
            f"append a line for each event: {trace.FORM}",
            "events are kept in a buffer, or are not written at all",
        )
    play.checks_trace = True
    for name, path in (("1st", A), ("2nd", BB), ("3rd", M)):
        play.add(name, path)
    play.add("4th", Z, victim=last)
    play.serve_next()
    play.add("5th", LONG)
    play.finish()
    scene.confirm(f"the trace told what {len(play.seen.arrival)} clients saw: orders, workers and the drop")
