"""Servers with a schedule that are wrong in one way each. See mutants.py."""

from correct_scheduling import Scheduling
from registry import mutant


@mutant("order-fifo", "scheduling", "a stack")
class TakesLast(Scheduling):
    """Takes the request first that came last."""

    def pick(self):
        return self.queue[-1]


@mutant("order-sff", "scheduling", "the shortest URL")
class ByUrl(Scheduling):
    """Takes the shortest URL for the smallest file."""

    def smallest(self):
        return min(self.queue, key=lambda each: len(each.target))


@mutant("order-sff", "scheduling", "of equal files")
class LastOfEqual(Scheduling):
    """Takes the last of several equal files."""

    def smallest(self):
        return min(reversed(self.queue), key=lambda each: each.size)


@mutant("order-sff", "scheduling", "as by FIFO")
class IgnoresPolicy(Scheduling):
    """Serves in the order of coming under every policy."""

    policy = "fifo"


@mutant("order-patience", "scheduling", "however often")
class Starves(Scheduling):
    """Lets smaller files overtake a large one again and again."""

    patience = 1000000


@mutant("order-patience", "scheduling", "had been overtaken")
class Impatient(Scheduling):
    """Counts one overtaking too many."""

    def pick(self):
        for each in self.queue:
            each.overtaken += self.policy == "sff" and each is self.queue[0]
        return super().pick()


@mutant("queue-bound", "scheduling", "has no bound")
class Unbounded(Scheduling):
    """Lets any number of requests wait."""

    def is_full(self):
        return False


@mutant("queue-bound", "scheduling", "the queue is smaller")
class CountsWorkers(Scheduling):
    """Counts the requests that workers have as if they waited."""

    def is_full(self):
        return len(self.queue) > self.room - (self.workers - self.free)


@mutant("queue-bound", "scheduling", "without an answer")
class WaitsForRoom(Scheduling):
    """Lets the front wait for room, and leaves the client without an answer."""

    def arrive(self, connection):
        with self.condition:
            while len(self.queue) >= self.room:
                self.condition.wait()
        super().arrive(connection)

    def is_full(self):
        return False


@mutant("queue-bound", "scheduling", "send the whole response")
class ClosesSilently(Scheduling):
    """Begins to refuse a request, and closes its connection in the middle."""

    def refuse(self, connection):
        connection.sock.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\n")
        connection.sock.close()


@mutant("drop-oldest", "scheduling", "a stack")
class DropsNewest(Scheduling):
    """Drops the newest request, and does not read DROP."""

    drop = "newest"


@mutant("drop-largest", "scheduling", "of equal files, the server takes the first")
class DropsFirstOfEqual(Scheduling):
    """Drops the first of several equally large requests."""

    def victim(self):
        return max(self.queue, key=lambda each: each.size) if self.drop == "largest" else super().victim()


@mutant("trace", "scheduling", "the trace has the dispatch of")
class Lies(Scheduling):
    """Says that it took the first, and takes the smallest."""

    def note_dispatch(self, chosen):
        self.note("dispatch", self.queue[0], self.worker().replace(" ", ""))


@mutant("trace", "scheduling", "completion of")
class TellsEarly(Scheduling):
    """Tells the completion of a request when a worker takes it."""

    def note_dispatch(self, chosen):
        super().note_dispatch(chosen)
        self.note("completion", chosen, self.worker().replace(" ", ""))

    def close(self, connection):
        connection.sock.close()


@mutant("trace", "scheduling", "became free, and the trace says")
class MixesWorkers(Scheduling):
    """Gives its worker another number for each request."""

    number = 0

    def worker(self):
        return "1"

    def note_dispatch(self, chosen):
        self.number += 1
        chosen.worker = f"{self.number}"
        self.note("dispatch", chosen, chosen.worker)

    def close(self, connection):
        self.note("completion", connection, connection.worker)
        connection.sock.close()


@mutant("trace", "scheduling", "is empty")
class SaysNothing(Scheduling):
    """Writes no trace."""

    def note(self, *event):
        pass
