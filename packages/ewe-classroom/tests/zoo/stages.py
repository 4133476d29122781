"""Half-finished servers, as students hand them in: a stage is the starter or the solution in Python with edits.

`advice` names the checks with which the report may begin ("Begin with ..."): each of them leads to the fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ewe_classroom.course.labs import lab


class Stage(NamedTuple):
    lab: str
    what: str
    advice: tuple[str, ...]
    solved: bool
    edits: tuple[tuple[str, str], ...]


GET_WAITS = "            while not self.items and not self.closed:\n"
GET_AS_GIVEN = (
    "        with self.lock:\n" + GET_WAITS + "                self.not_empty.wait()\n"
    "            if not self.items:\n                return None\n            item = self.items.popleft()\n"
    "            self.not_full.notify()\n            return item\n"
)
NOTIFY = "            self.not_empty.notify()\n            return True\n"
CLOSES = "        with connection:\n            converse(connection, root)\n"
TRIES = "            try:\n                connection, _ = listener.accept()\n            except OSError:\n"
PAUSES = "                time.sleep(ACCEPT_PAUSE_S)\n                continue\n"
ACCEPTS = "            connection, _ = listener.accept()\n"
SIGTERM = "    signal.signal(signal.SIGTERM, stop)\n"
SOLUTION, STARTER = True, False
STAGES = {
    number: Stage(*row)
    for number, row in enumerate(
        (
            ("pool", "the starter", ("progress", "exactly-n", "queue-races"), STARTER, ()),
            (
                "pool",
                "threads are started, Queue as given",
                ("idle-cpu",),
                SOLUTION,
                (
                    (
                        GET_AS_GIVEN,
                        "        while not self.items:\n            pass\n        return self.items.popleft()\n",
                    ),
                ),
            ),
            (
                "pool",
                "sleep(0.01) in place of a condition",
                ("idle-cpu", "queue-races"),
                SOLUTION,
                (
                    (
                        GET_AS_GIVEN,
                        "        while not self.items:\n            time.sleep(0.01)\n"
                        "        return self.items.popleft()\n",
                    ),
                ),
            ),
            (
                "pool",
                "`if` for `while`, connections stay open",
                ("queue-races", "descriptors", "exactly-n"),
                SOLUTION,
                (
                    (GET_WAITS, GET_WAITS.replace("while", "if")),
                    (CLOSES, "        converse(connection, root)\n"),
                ),
            ),
            (
                "pool",
                "`if` for `while`",
                ("queue-races",),
                SOLUTION,
                ((GET_WAITS, GET_WAITS.replace("while", "if")),),
            ),
            (
                "pool",
                "notify only when the queue was empty",
                ("queue-races",),
                SOLUTION,
                (
                    (
                        NOTIFY,
                        "            if len(self.items) == 1:\n"
                        "                self.not_empty.notify()\n            return True\n",
                    ),
                ),
            ),
            ("pool", "no SIGTERM handler", ("drain", "stop"), SOLUTION, ((SIGTERM, ""),)),
            (
                "pool",
                "the conversation under the queue's lock",
                ("progress",),
                SOLUTION,
                ((CLOSES, "        with connection, queue.lock:\n            converse(connection, root)\n"),),
            ),
            (
                "pool",
                "close() wakes one",
                ("queue-races", "stop", "drain"),
                SOLUTION,
                (("empty.notify_all()", "empty.notify()"),),
            ),
            (
                "pool",
                "an unbounded queue",
                ("queue-races",),
                SOLUTION,
                (
                    (
                        "            while len(self.items) >= self.room and not self.closed:\n"
                        "                self.not_full.wait()\n",
                        "",
                    ),
                ),
            ),
            ("pool", "accept() may raise", ("descriptors-used-up",), SOLUTION, ((TRIES + PAUSES, ACCEPTS),)),
            (
                "pool",
                "a worker ends after one conversation",
                ("progress", "exactly-n", "answers"),
                SOLUTION,
                ((CLOSES, CLOSES + "        return\n"),),
            ),
            ("thread", "the starter", ("progress",), STARTER, ()),
            (
                "thread",
                "connections stay open",
                ("descriptors", "half-close", "keep-alive", "oversized"),
                SOLUTION,
                (
                    (
                        "        with connection:\n            converse(connection, root)\n",
                        "        kept.append(connection)\n        converse(connection, root)\n",
                    ),
                    ("def run_conversation(", "kept = []\n\n\ndef run_conversation("),
                ),
            ),
            ("thread", "no SIGTERM handler", ("drain", "stop"), SOLUTION, ((SIGTERM, ""),)),
            (
                "thread",
                "join() directly after start()",
                ("progress",),
                SOLUTION,
                (
                    (
                        "                thread.start()\n",
                        "                thread.start()\n                thread.join()\n",
                    ),
                ),
            ),
            ("fork", "the starter", ("progress", "who-works", "parent-lets-go", "zombies"), STARTER, ()),
            (
                "fork",
                "the parent keeps its copy of the connection",
                ("parent-lets-go",),
                SOLUTION,
                (
                    (
                        "    with connection:  # close",
                        "    kept.append(connection)\n    if connection:  # close",
                    ),
                    ("children: set", "kept: list[socket.socket] = []\nchildren: set"),
                ),
            ),
            (
                "fork",
                "no child is reaped",
                ("zombies",),
                SOLUTION,
                (("    signal.signal(signal.SIGCHLD, reap)\n", ""),),
            ),
            ("event", "the starter", ("progress",), STARTER, ()),
            (
                "event",
                "the connections block",
                ("slow-readers", "progress"),
                SOLUTION,
                (("        connection.setblocking(False)\n", ""),),
            ),
            (
                "event",
                "always waits for EVENT_WRITE",
                ("idle-cpu",),
                SOLUTION,
                (
                    (
                        "        return selectors.EVENT_WRITE if self.outgoing else selectors.EVENT_READ\n",
                        "        return selectors.EVENT_WRITE | selectors.EVENT_READ\n",
                    ),
                    (
                        "            if events & selectors.EVENT_WRITE:\n",
                        "            if events & selectors.EVENT_WRITE and self.has_more(client):\n",
                    ),
                    (
                        "    def answer(self",
                        "    def has_more(self, client: Client) -> bool:\n"
                        "        return bool(client.outgoing)\n\n    def answer(self",
                    ),
                ),
            ),
        ),
        1,
    )
}


def write(stage: Stage, directory: Path) -> str:
    """Write the files of a stage; return the path of its server."""
    files = lab(stage.lab).files(lab(stage.lab).variant("python"), solved=stage.solved)
    for before, after in stage.edits:
        assert before in files["server.py"], f"{stage.lab}, {stage.what}: no {before!r}"
        files["server.py"] = files["server.py"].replace(before, after)
    for name, text in files.items():
        (directory / name).write_text(text)
    return str(directory / "server.py")
