"""Checks of scheduling: the order of service, the number of waiting requests, and the request to drop.

Gates prove the order. Each file below /sizes/ is larger than the buffers of a connection, and no client reads. A
worker that serves such a file therefore stops after the first bytes, until the grader reads:

    n clients occupy the n workers ─▶ more requests come, one at a time; the server is quiescent after each
      ─▶ one client reads to the end: one worker is free ─▶ exactly one waiting client gets its first bytes
      ─▶ this client now occupies the worker; the next client reads ...

The proof uses no clock, and a worker never sends two responses at the same time. The clients' observations give the
order; trace.py compares this order with the server's own trace.

The module has its own copy of the policies (`Rule`), so that a verdict can name the request that should be next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ewe_classroom.grader import trace
from ewe_classroom.grader.check import check
from ewe_classroom.grader.responses import STATUS_DIGITS
from ewe_classroom.grader.scene import Scene, SceneClient
from ewe_classroom.grader.sources import read_regular

STALLED_PATH = "/sizes/held"
# Files by size (subject.SIZES): SIZE_1 is the smallest, SIZE_6 the largest
SIZE_1, SIZE_2, SIZE_3, SIZE_4, SIZE_6 = (
    "/sizes/a-long-name-and-a-short-file",
    "/sizes/bb",
    "/sizes/z",
    "/sizes/m",
    "/sizes/a",
)
FIVE_NAMES = ("1st", "2nd", "3rd", "4th", "5th")
WHY_ORDER = (
    "The mean waiting time depends only on the order. Shortest first has the smallest mean of all orders."
)


@dataclass(eq=False)
class WaitingRequest:
    """A waiting request. overtaken: the number of later requests that were served before it."""

    client: SceneClient
    size: int
    overtaken: int = 0

    @property
    def name(self) -> str:
        return f"{self.client.name} ({self.client.path}, {self.size / 1e6:.2f} MB)"


Rule = Callable[[list[WaitingRequest]], WaitingRequest]


def oldest(waiting: list[WaitingRequest]) -> WaitingRequest:
    return waiting[0]


def newest(waiting: list[WaitingRequest]) -> WaitingRequest:
    return waiting[-1]


def smallest(waiting: list[WaitingRequest]) -> WaitingRequest:
    return min(waiting, key=lambda each: each.size)


def largest(waiting: list[WaitingRequest]) -> WaitingRequest:
    """Return the largest request; of equal ones the last, since max() takes the first."""
    return max(reversed(waiting), key=lambda each: each.size)


def patient(times: int) -> Rule:
    """Return the rule of PATIENCE: the first request that was overtaken `times` times, else the smallest."""
    return lambda waiting: next((each for each in waiting if each.overtaken >= times), smallest(waiting))


class ObservedChoice(NamedTuple):
    """One choice of the server. waiting: the requests that waited, in the order of arrival. chosen: one of them."""

    waiting: list[WaitingRequest]
    chosen: WaitingRequest


class WrongRule(NamedTuple):
    """A wrong rule that a server may follow, and its description for the student."""

    rule: Rule
    cause: str


# The first rule that explains every choice so far is the likely cause.
WRONG_RULES = [
    WrongRule(newest, "the server takes the last request: a stack"),
    WrongRule(
        lambda waiting: min(waiting, key=lambda each: len(each.client.path)),
        "the server takes the request with the shortest URL",
    ),
    WrongRule(smallest, "the server takes the smallest file, however often a request was overtaken"),
    WrongRule(
        lambda waiting: min(reversed(waiting), key=lambda each: each.size),
        "of equal files, the server takes the last request",
    ),
    WrongRule(largest, "the server takes the largest file"),
    WrongRule(
        lambda waiting: max(waiting, key=lambda each: each.size),
        "of equal files, the server takes the first request",
    ),
    WrongRule(oldest, "the server takes the first request, as by FIFO"),
]


def cause_of_choice(choices: list[ObservedChoice]) -> str:
    """Return the likely cause of a wrong choice, the last one of `choices`; "" if none is known.

    choices: all of this kind so far. A wrong rule that explains every one of them is the cause.
    """
    for wrong in WRONG_RULES:
        if all(wrong.rule(each.waiting) is each.chosen for each in choices):
            return wrong.cause
    chosen = choices[-1].chosen
    return f"{chosen.client.name} had been overtaken {chosen.overtaken} times" if chosen.overtaken else ""


class SchedulingScenario:
    """A scenario of a check: occupied workers, waiting requests, and the clients' observations so far.

    rule: chooses, of the waiting requests in the order of arrival, the one that the server should serve next.
    """

    def __init__(self, scene: Scene, rule: Rule) -> None:
        self.scene = scene
        self.rule = rule
        self.serving: list[SceneClient] = []  # in the order of dispatch
        self.waiting: list[WaitingRequest] = []  # in the order of arrival
        self.observed_order = trace.ObservedOrder()
        self.names: dict[int, str] = {}  # of the clients, by port
        self.served: list[ObservedChoice] = []  # the choices of the next request so far
        self.dropped: list[ObservedChoice] = []  # the choices of the request to drop so far
        self.checks_trace = False  # the trace of the server is checked, too
        for number in range(scene.workers):
            client = self.send(f"occupies {number + 1}", STALLED_PATH)
            scene.until(lambda client=client: self.status(client) > 0, f"{client.name} is served")  # type: ignore[misc]
            if self.status(client) != 200:
                scene.fail(
                    f"{number} of {scene.workers} workers are busy, and the next request "
                    f"{self.outcome_text(client)}{scene.blocked_text()}",
                    "serve this request: a worker is free",
                    "there are fewer workers than asked for, or a free worker is not woken up",
                )
            self.serve(client)
            scene.settle()
            self.expect_trace_agrees()

    def send(self, name: str, path: str) -> SceneClient:
        """Return a new client that has sent a request and does not read; wait until the server is quiescent."""
        client = self.scene.client(name, reads=False).ask(path, Connection="close")
        self.scene.settle()
        self.names[client.port] = name
        self.observed_order.arrival.append(client.port)
        return client

    def serve(self, client: SceneClient) -> None:
        """Note that a client's response has begun. The client occupies a worker until it has read the response."""
        client.note("served")
        self.serving.append(client)
        self.observed_order.dispatch.append(client.port)

    def status(self, client: SceneClient) -> int:
        """Return the status of a response that has begun; 0 before its first bytes."""
        data = client.peek()  # without taking the bytes: the client does not read yet
        digits = data[STATUS_DIGITS]
        return int(digits) if data.startswith(b"HTTP/1.") and digits.isdigit() else 0

    def outcome_text(self, client: SceneClient) -> str:
        status = self.status(client)
        return f"got status {status}" if status else "got no response"

    def add(self, name: str, path: str, victim: Rule | None = None) -> None:
        """Send one more request while all workers are occupied; fail unless it waits, or the right one is dropped.

        victim: chooses the request to drop, if the queue is full; None if the queue has room.
        """
        scene = self.scene
        client = self.send(name, path)
        self.waiting.append(WaitingRequest(client, scene.site.sized[path]))
        if victim is None:
            answered = [each for each in self.waiting if self.status(each.client)]
            if answered:
                served = answered[0]
                scene.fail(
                    f"{len(self.waiting)} requests waited, and {served.name} {self.outcome_text(served.client)}",
                    "let this request wait: all workers are occupied, and the queue has room",
                    "the queue is smaller than QUEUE, or the server serves more requests than it has workers",
                )
        else:
            self.expect_drop(victim)
        self.expect_trace_agrees()

    def expect_drop(self, victim: Rule) -> None:
        """Fail unless the server drops exactly the request that the rule names."""
        scene = self.scene
        wanted = victim(self.waiting)
        scene.until(lambda: any(self.status(each.client) for each in self.waiting), "one gets status 503")
        scene.settle()  # a server that drops several requests drops the others now
        answered = [each for each in self.waiting if self.status(each.client)]
        count = len(self.waiting)
        if not answered:
            scene.fail(
                f"{count - 1} requests may wait, and {count} do: none of them got a response{scene.blocked_text()}",
                "answer one of them with 503 immediately: the queue is full",
                "the queue has no bound, or the front waits for room and leaves clients without an answer",
            )
        for each in answered:
            if self.status(each.client) != 503:
                scene.fail(
                    f"the queue was full, and {each.name} {self.outcome_text(each.client)}", "answer 503"
                )
        self.dropped.append(ObservedChoice(list(self.waiting), answered[0]))
        if answered != [wanted]:
            scene.fail(
                f"the queue was full, and {' and '.join(each.name for each in answered)} got 503",
                f"drop {wanted.name}, and let the others wait",
                cause_of_choice(self.dropped)
                if len(answered) == 1
                else "the server drops more than one request",
            )
        self.waiting.remove(wanted)
        self.observed_order.drop.append(wanted.client.port)
        wanted.client.read_on()
        scene.until_answered(wanted.client)
        if not wanted.client.answered():
            scene.fail(
                f"{wanted.name} was dropped and {wanted.client.outcome_text()}",
                "send the whole response with status 503",
                "the server closes the connection before it has read the request or sent the whole response",
            )
        wanted.client.close()

    def serve_next(self) -> None:
        """Free one worker; fail unless it takes the request that the rule names."""
        scene = self.scene
        finished = self.serving.pop(0)
        port = finished.port  # expect_whole() closes the socket, which then has no port
        finished.read_on()
        scene.until(finished.answered_or_over, f"{finished.name} has its response")
        self.expect_whole(finished)
        self.observed_order.completion.append(port)
        if not self.waiting:
            scene.settle()
            self.expect_trace_agrees()
            return
        scene.until(lambda: any(self.status(each.client) for each in self.waiting), "the next one is served")
        scene.settle()
        begun = [each for each in self.waiting if self.status(each.client)]
        wanted = self.rule(self.waiting)
        shown = "; ".join(each.name for each in self.waiting)
        if not begun:
            scene.fail(
                f"a worker became free, and no waiting request is served ({shown}){scene.blocked_text()}",
                f"serve {wanted.name}",
                "a wake-up is lost, or the worker has ended",
            )
        self.served.append(ObservedChoice(list(self.waiting), begun[0]))
        if begun != [wanted]:
            for each in begun:  # for the timeline of the verdict
                each.client.note("served")
            scene.fail(
                f"a worker became free while these requests waited, in order of arrival: {shown}. The server took "
                f"{' and '.join(each.name for each in begun)}{self.claimed_text()}",
                f"take {wanted.name}",
                cause_of_choice(self.served)
                if len(begun) == 1
                else "a worker serves several requests at a time",
            )
        for each in self.waiting[: self.waiting.index(wanted)]:
            each.overtaken += 1
        self.waiting.remove(wanted)
        self.serve(wanted.client)
        self.observed_order.predecessors[wanted.client.port] = port
        self.expect_trace_agrees()

    def finish(self) -> None:
        """Free one worker after the other until all requests are served."""
        while self.serving:
            self.serve_next()

    def expect_whole(self, client: SceneClient) -> None:
        """Fail unless a client has got its whole file."""
        size = self.scene.site.sized[client.path]
        line = self.scene.site.first_line(client.path)
        answers = client.answers
        if not answers or answers[-1].status != 200 or len(answers[-1].body) != size:
            self.scene.fail(
                f"{client.name} asked for {client.path} and {client.outcome_text()}",
                f"answer 200 with the {size:,} bytes of the file",
            )
        if not answers[-1].body.startswith(line):
            self.scene.fail(
                f"{client.name} asked for {client.path} and got the bytes of another file",
                "send each client the file that it has requested",
                "the queue mixes up connections and requests",
            )
        client.close()
        answers[-1].body = b""  # frees 8 MB

    def claimed_text(self) -> str:
        """Return a part of a verdict: the next request by the trace; "" if the trace has no such line."""
        try:
            traced_order = trace.read(self.scene.subject.trace)
        except trace.BadTrace:
            return ""
        names = [
            self.names.get(port, f"port {port}")
            for port in traced_order.dispatch[len(self.observed_order.dispatch) :]
        ]
        return f"; its trace says that it took {', '.join(names)}" if names else ""

    def expect_trace_agrees(self) -> None:
        """Fail if the trace contradicts the clients' observations so far."""
        if not self.checks_trace:
            return
        scene = self.scene

        def problem() -> str:
            try:
                return trace.mismatch(trace.read(scene.subject.trace), self.observed_order, self.names)
            except trace.BadTrace as error:
                return str(error)

        scene.until(lambda: not problem(), "the trace agrees")  # a line may come a moment after its event
        if wrong := problem():
            scene.fail(
                wrong,
                "write each event into the trace when it happens, and only then",
                "the server writes the trace at another place than the event, and so writes plans, or writes late",
            )


def variables(policy: str, queue: int, drop: str = "newest", overtaken: int = 100) -> dict[str, str]:
    """Return the environment variables that configure the server's scheduling (labs/scheduling)."""
    return {"POLICY": policy, "QUEUE": str(queue), "DROP": drop, "PATIENCE": str(overtaken)}


@check(
    "order-fifo",
    proves="with POLICY=fifo, the server serves requests in the order of their arrival",
    sends=(
        "downloads that occupy all workers; five requests for files of different sizes; the "
        "workers become free one at a time; a sixth request in between"
    ),
    expects="the first waiting request, each time",
    why="Only FIFO limits the wait of a request by the requests that are already there when it arrives.",
    hint="Append at one end, and take from the other.",
    environment=variables("fifo", 16),
)
def order_fifo(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=oldest)
    for name, path in zip(
        FIVE_NAMES, scene.site.order("requests", (SIZE_2, SIZE_4, SIZE_6, SIZE_1, SIZE_2)), strict=True
    ):
        scenario.add(name, path)
    scenario.serve_next()
    scenario.serve_next()
    scenario.add("6th", SIZE_1)  # the smallest file, which comes last: FIFO serves it last, too
    scenario.finish()
    scene.confirm("the server served six requests for files of different sizes in the order of their arrival")


@check(
    "order-sff",
    proves="with POLICY=sff, the next request is the one for the smallest file; of equal ones, the first",
    sends=(
        "downloads that occupy all workers; requests for five files, two of them equal; "
        "the workers become free one at a time; a smaller file in between"
    ),
    expects="the smallest file among the waiting requests",
    why=WHY_ORDER,
    hint=(
        "Compare the sizes of the files (os.stat), not the lengths of names or requests. min() takes "
        "the first minimum."
    ),
    environment=variables("sff", 16),
)
def order_sff(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=smallest)
    # With --seed, the five sizes are in the student's order. They arrive in the order of the names.
    for name, path in zip(
        FIVE_NAMES, scene.site.order("requests", (SIZE_2, SIZE_4, SIZE_6, SIZE_1, SIZE_2)), strict=True
    ):
        scenario.add(name, path)
    scenario.serve_next()
    scenario.serve_next()
    scenario.add("6th", SIZE_1)
    scenario.add("7th", SIZE_3)
    scenario.finish()
    scene.confirm("the server served seven requests by file size, and equal files in the order of arrival")


@check(
    "order-patience",
    proves="with POLICY=sff, a request that PATIENCE later requests have overtaken is next: no request starves",
    sends="a request for a large file; then more and more requests for small files, with PATIENCE=2",
    expects="two small files, then the large file, although smaller files wait",
    why="Under load there is always a smaller file. Without a limit, the largest is never served: starvation.",
    hint="Count for each request the later requests that were served before it.",
    environment=variables("sff", 16, overtaken=2),
)
def order_patience(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=patient(2))
    for name, path in (("1st", SIZE_6), ("2nd", SIZE_4), ("3rd", SIZE_1), ("4th", SIZE_2)):
        scenario.add(name, path)
    scenario.serve_next()
    scenario.add("5th", SIZE_1)
    scenario.serve_next()
    scenario.add("6th", SIZE_1)
    scenario.finish()
    scene.confirm("later requests overtook a request twice, and not a third time")


@check(
    "queue-bound",
    proves="exactly QUEUE requests wait; with DROP=newest the next one gets 503 immediately",
    sends="downloads that occupy all workers; QUEUE=3 requests, then two more; a worker becomes free; one more",
    expects="three wait, two get 503; the next request gets the free slot; all waiting requests are served",
    why="An unbounded queue grows until memory is used up, and its clients disconnect long before their turn.",
    hint=(
        "Count only waiting requests, not those of the workers: n are served, QUEUE wait, and one "
        "more is too many."
    ),
    environment=variables("fifo", 3),
)
def queue_bound(scene: Scene) -> None:
    # It occupies all workers. The rule chooses the request to serve next
    scenario = SchedulingScenario(scene, rule=oldest)
    for name, path in (("1st", SIZE_6), ("2nd", SIZE_1), ("3rd", SIZE_4)):
        scenario.add(name, path)
    scenario.add("4th", SIZE_1, victim=newest)  # the queue is full: the last request has to get 503
    scenario.add("5th", SIZE_3, victim=newest)
    scenario.serve_next()
    scenario.add("6th", SIZE_2)
    scenario.add("7th", SIZE_1, victim=newest)
    scenario.finish()
    scene.confirm(
        f"{scene.workers} requests had workers and 3 waited; three more got 503; the others were served"
    )


@check(
    "drop-oldest",
    proves="with DROP=oldest, the server drops the request that has waited longest",
    sends="downloads that occupy all workers; QUEUE=3 requests, then two more",
    expects="503 for the first, then for the second; the others are served",
    why="If clients disconnect after some seconds, the client of the oldest request has probably gone.",
    hint="Add the new request to the queue first; then drop the first request of the queue.",
    environment=variables("fifo", 3, "oldest"),
)
def drop_oldest(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=oldest)
    for name, path in (("1st", SIZE_4), ("2nd", SIZE_6), ("3rd", SIZE_1)):
        scenario.add(name, path)
    scenario.add("4th", SIZE_2, victim=oldest)
    scenario.add("5th", SIZE_1, victim=oldest)
    scenario.finish()
    scene.confirm("the two oldest requests got 503, and the others were served")


@check(
    "drop-largest",
    proves="with DROP=largest, the server drops the request for the largest file; of equal ones, the last",
    sends="downloads that occupy all workers; QUEUE=3 requests, then smaller, larger and equal ones",
    expects="503 for the largest file each time; this may be the new request",
    why="In the time of one large file, the server can serve many small ones.",
    hint="The new request may be the largest. Of equal values max() takes the first, but you must drop the last.",
    environment=variables("sff", 3, "largest"),
)
def drop_largest(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=smallest)
    for name, path in (("1st", SIZE_4), ("2nd", SIZE_6), ("3rd", SIZE_2)):
        scenario.add(name, path)
    scenario.add("4th", SIZE_1, victim=largest)
    scenario.add("5th", SIZE_6, victim=largest)
    scenario.add("6th", SIZE_4, victim=largest)
    scenario.finish()
    scene.confirm("the largest request got 503 three times, and the others were served")


@check(
    "trace",
    proves="the server's own trace (EWE_TRACE) agrees with the clients' observations, at every step",
    sends="downloads that occupy all workers; requests, one too many; the workers become free one at a time",
    expects="arrival, dispatch, completion and drop of each client, in the true order, by the true worker",
    why="A wrong trace is worse than no trace: it leads to wrong decisions.",
    hint="Write a line with one os.write() at the place where the event happens, under the lock of the queue.",
    environment=variables("sff", 3),
    fresh=True,
)
def trace_agrees(scene: Scene) -> None:
    scenario = SchedulingScenario(scene, rule=smallest)
    try:
        is_empty = not read_regular(scene.subject.trace, 1)
    except OSError as reason:
        scene.fail(
            f"the file that EWE_TRACE names cannot be read: {reason.strerror}",
            "append to this file, and do not replace it",
        )
    if is_empty:
        scene.fail(
            f"{scene.workers} requests are served, and the file that EWE_TRACE names is empty",
            f"append a line for each event: {trace.LINE_FORMAT}",
            "the server keeps events in a buffer, or does not write them at all",
        )
    scenario.checks_trace = True
    for name, path in (("1st", SIZE_6), ("2nd", SIZE_2), ("3rd", SIZE_4)):
        scenario.add(name, path)
    scenario.add("4th", SIZE_3, victim=newest)
    scenario.serve_next()
    scenario.add("5th", SIZE_1)
    scenario.finish()
    scene.confirm(
        f"the trace agreed with {len(scenario.observed_order.arrival)} clients: orders, workers and the drop"
    )
