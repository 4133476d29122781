"""The director: runs the models, sends the clients to all of them alike, and publishes what changes.

Three threads beside those of the page's server:

    picture   twenty times a second: reads the pipes, tells the stories, publishes one change
    meters    once a second: CPU and memory of each model, which takes longer than a picture may
    clients   the event loop of all clients

Everything that grows has a limit: a story forgets the spans that it has handed over, a recording loses its oldest
lines, and a reader of the changes that is too slow loses the oldest pictures.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ewe.config.messages import Failure
from ewe.scoreboard import is_alive
from ewe_watch.behind import DATABASE, ENGINE
from ewe_watch.events import accepted_client
from ewe_watch.live.choice import PARAMETERS, ModelChoice, setting_of
from ewe_watch.live.clients import KINDS, USER_SCRIPT, Clients, ModelClients
from ewe_watch.live.demonstration import make_site, open_gate, write_user_script
from ewe_watch.live.foreign import UNSEEN_FIGURES, ForeignChoice, ForeignProcess
from ewe_watch.live.guard import ModelGuard, UserScript
from ewe_watch.live.live_story import MOST_NAMES, SETTLE_S, LiveStory
from ewe_watch.live.meters import CostMeter, backlogs, left_connections
from ewe_watch.live.model_process import ModelProcess, ServerProcess, StartFailure

Choice = ModelChoice | ForeignChoice

PICTURE_S = 0.05  # between two pictures: each is one change for all pages
METERS_S = 1.0
PICTURES_PER_BACKLOG = 4  # the kernel's backlog is read for each fourth picture
RECORDING_BYTES = 16 * 1024 * 1024  # of each model
PICTURES_KEPT = 200  # for a reader that is slow
EVERYTHING = "all"  # the state that has all others
MOST_READERS = 20
STOP_S = 5.0  # the longest wait for a thread that is to end
MOST_FACTOR = 1000.0

# The names that Director.measure() knows, beside "backlog": keys of CostMeter.measure(), numbers of a story, and
# words of OF_KIND (a state of connections, or a number of a Tally), each followed by the kind of the clients
COSTS = ("threads", "processes", "zombies", "descriptors")
OF_STORY: dict[str, Callable[[LiveStory], int]] = {
    "from backlog": lambda story: story.from_backlog,
    "queued": lambda story: story.queued,
    "parked": lambda story: story.parked,
    "lost": lambda story: story.lost,
    "refused": lambda story: story.counts["refused"],
    "accepted": lambda story: story.counts["accepted"],
    "programs": lambda story: story.counts["program"] - story.counts["exited"],
    "started programs": lambda story: story.counts["program"],
    "statements": lambda story: story.counts["db-answered"],
    "engines": lambda story: story.behind.count_lanes(ENGINE),
    "engine users": lambda story: len({lane.user for lane in story.behind.live_lanes(ENGINE)}),
    "database connections": lambda story: story.behind.count_lanes(DATABASE),
    "running scripts": lambda story: story.behind.count_lanes(ENGINE, busy=True),
    "running statements": lambda story: story.behind.count_lanes(DATABASE, busy=True),
}
MEASURES = (*COSTS, "backlog", *OF_STORY)
OF_KIND = ("held", "parked", "queued", "sent", "waiting", "answered", "error", "refused", "lost")
# The line of the event `model`: time, event, connection, worker, text
MODEL_LINE = re.compile(rb"^\S+ model \S+ \S+.*\n", re.MULTILINE)


class ActionError(Failure):
    """A button asks for something that is not possible. The text is one line."""


class Recording:
    """The last lines of a trace, up to RECORDING_BYTES. The line that names the model is kept, and comes first.

    X-Switch and the database daemon start before the model: their events can come before this line.
    """

    def __init__(self) -> None:
        self.model = b""
        self.pieces: deque[bytes] = deque()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add new lines of the trace; above RECORDING_BYTES, drop the oldest ones. data: whole lines, or none."""
        if not data:
            return
        if not self.model and (found := MODEL_LINE.search(data)):
            self.model = found[0]
            data = data[: found.start()] + data[found.end() :]
        self.pieces.append(data)
        self.size += len(data)
        while self.size > RECORDING_BYTES:
            self.size -= len(self.pieces.popleft())

    def text(self) -> bytes:
        """Return the trace."""
        return self.model + b"".join(list(self.pieces))  # a copy: another thread may add a piece


class ShownModel:
    """A model on the page: its process, its story, its clients and its costs."""

    def __init__(
        self, choice: Choice, directory: Path, number: int, guard: ModelGuard, users: Sequence[str] = ()
    ) -> None:
        """Start the model. Raises StartFailure."""
        self.choice = choice
        self.process: ServerProcess = (
            ForeignProcess(choice, directory, number, guard)
            if isinstance(choice, ForeignChoice)
            else ModelProcess(choice, directory, number, guard)
        )
        self.clients = ModelClients(self.process.port, users)
        self.zero = time.monotonic()
        self.story = LiveStory(self.clients.label, self.zero, is_alive)
        self.recording = Recording()
        self.meter = CostMeter(self.process.pid)
        self.cost: dict[str, Any] = {}
        self.backlog: int | None = None
        self.left: int | None = None  # connections that their client has closed, and the server has not

    def take_new_events(self) -> None:
        """Read the new lines of the trace; add them to the recording, and their events to the story."""
        data, events = self.process.read()
        self.recording.add(data)
        for event in events:
            if event.kind == "accepted":
                self.clients.note_accepted(accepted_client(event.text).address)
        self.story.add(events)
        self.story.show_calls(self.process.calls_now())

    def measure_cost(self) -> None:
        """Measure the CPU time and the memory of the model, and find its zombies; store both."""
        self.cost = self.meter.measure()
        self.story.zombies = self.meter.zombies

    def facts(self) -> dict[str, Any]:
        """Return the facts that stay the same while the model runs."""
        parameters = [
            {
                "key": key,
                "value": self.choice.values.get(key, ""),
                "default": default_of(key),
                "help": setting_of(key).help,
            }
            for key in (("workers",) if isinstance(self.choice, ForeignChoice) else PARAMETERS)
        ]
        return {
            "label": self.choice.label,
            "name": self.choice.name,
            "options": self.choice.values,
            "model": self.choice.model,
            "description": self.process.description,
            "hint": self.choice.hint,
            "worker_limit": self.choice.worker_limit,
            "port": self.process.port,
            "parameters": parameters,
            "unseen": UNSEEN_FIGURES if isinstance(self.choice, ForeignChoice) else (),
        }

    def changes(self) -> dict[str, Any]:
        """Return the changes since the last call, and figures of now, as an object for JSON.

        now: milliseconds since the start of the model. alive: whether its first process runs. backlog:
        connections that the server has not accepted. backlog_names: the names of the oldest of these. left: those
        that their client has closed, and the server has not.
        """
        return {
            "now": round((time.monotonic() - self.zero) * 1000, 1),
            "alive": self.process.alive(),
            "backlog": self.backlog,
            "backlog_names": self.backlog_names(),
            "left": self.left,
            "cost": self.cost,
            "clients": self.clients.as_json(),
            **self.story.changes(),
        }

    def backlog_names(self) -> list[str]:
        """Return the names of the clients that have been in the backlog for longest, MOST_NAMES at most.

        [] if the trace has lost events: a client that seems to wait may have been accepted.
        """
        if not self.backlog or self.story.lost:
            return []
        # A copy: the clients' thread may add a client meanwhile
        return list(self.clients.unaccepted.values())[: min(self.backlog, MOST_NAMES)]


def default_of(key: str) -> str:
    """Return the default of a setting as text."""
    value = setting_of(key).default
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


COMMENT_EVERY_S = 0.5  # a comment shows the page that the stream is alive


class ChangeReader:
    """The changes that wait for one page, which reads them as Server-Sent Events."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}  # the newest change of each state
        self.pictures: deque[bytes] = deque(maxlen=PICTURES_KEPT)
        self.condition = threading.Condition()
        self.ended = False

    def add_change(self, change: bytes, state: str = "") -> None:
        """Add a change, and wake up next(). The oldest picture is lost if there are too many.

        state: the name of the state that the change has, of which only the newest one counts; "" for a picture. A
        state is never lost: without that of the models, a page would show their work below the titles of others.
        """
        with self.condition:
            if state == EVERYTHING:  # the pictures before it are those of other models
                self.states.clear()
                self.pictures.clear()
            if state:
                self.states[state] = change
            else:
                self.pictures.append(change)
            self.condition.notify()

    def end(self) -> None:
        """Let next() return b"". Called by a signal handler, too: it takes no lock."""
        self.ended = True

    def next(self) -> bytes:
        """Return the changes that have come; a comment if none comes for a while; b"" at the end."""
        with self.condition:
            if not self.states and not self.pictures and not self.ended:
                self.condition.wait(COMMENT_EVERY_S)
            if self.ended:
                return b""
            data = b"".join([*self.states.values(), *self.pictures])
            self.states.clear()
            self.pictures.clear()
            return data or b": still here\n\n"


class Director:
    """Runs the models. All methods may be called from any thread."""

    def __init__(self, directory: Path, users: Sequence[str] = ()) -> None:
        """directory: private, for the pipes and the demonstration. Raises OSError, ActionError.

        users: accounts whose scripts X-Switch runs, in a scene with several users. It needs root.
        """
        make_site(directory, sys.executable)
        self.directory = directory
        self.users = tuple(users)
        self.scripts: list[UserScript] = []
        try:
            self.write_scripts()
            self.guard = ModelGuard(directory, self.scripts)
        except BaseException:
            self.remove_scripts()
            raise
        self.lock = threading.RLock()
        self.models: list[ShownModel] = []
        self.clients = Clients()
        self.readers: list[ChangeReader] = []
        self.slowdown = 1.0
        self.gate = 1  # the number of the gate at which the pages of new clients wait (demonstration.py)
        self.started = 0  # models started so far: makes the names of their files
        self.scene: dict[str, Any] = {}
        self.scenes: list[dict[str, str]] = []
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=self.picture_loop, name="picture", daemon=True),
            threading.Thread(target=self.meters_loop, name="meters", daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def remove_scripts(self) -> None:
        """Remove the scripts of the users."""
        for script in self.scripts:
            script.remove()

    def write_scripts(self) -> None:
        """Write for each user a script that X-Switch runs as this user. Raises ActionError."""
        if self.users and os.geteuid() != 0:
            raise ActionError("--users needs root: X-Switch runs each script as its owner")
        for user in self.users:
            try:
                script = write_user_script(self.directory, sys.executable, user, USER_SCRIPT)
            except KeyError:  # write_user_script() looks the account up
                raise ActionError(f"there is no account {user!r} (--users)") from None
            except OSError as reason:
                raise ActionError(f"{reason.filename}: {reason.strerror} (--users)") from None
            self.scripts.append(script)

    # Models

    def show(self, choices: Sequence[Choice]) -> None:
        """Show these models instead of those that are shown. Raises StartFailure; then none is shown."""
        with self.lock:
            self.end_models()
            try:
                for choice in choices:
                    self.models.append(self.start(choice))
            except BaseException:
                self.end_models()
                raise
            finally:
                self.publish_all()

    def start(self, choice: Choice) -> ShownModel:
        """Start a model. Raises StartFailure, also once ewe-watch ends: a later model would stay."""
        if self.stopping.is_set():
            raise StartFailure("ewe-watch ends: it starts no model")
        self.started += 1
        return ShownModel(choice, self.directory, self.started, self.guard, self.users)

    def change(self, number: int, values: dict[str, str]) -> None:
        """Start a model again with other values of PARAMETERS, without its clients.

        number: of the model on the page. Raises ConfigError and ActionError for values that are not possible; the
        model then goes on. Raises StartFailure if it cannot start with these values; the page then goes on with
        the model as it was.
        """
        if wrong := values.keys() - set(PARAMETERS):
            raise ActionError(f"{min(wrong)} cannot be changed here")
        with self.lock:
            old = self.model(number)
            choice = old.choice.with_values(values)
            self.clients.let_go(old.clients, all_kinds=True)
            old.process.stop()
            try:
                self.models[number] = self.start(choice)
            except StartFailure:
                self.models[number] = self.start(old.choice)
                raise
            finally:
                self.publish_all()

    def model(self, number: int) -> ShownModel:
        """Return a model by its number on the page. Raises ActionError."""
        if not 0 <= number < len(self.models):
            raise ActionError(f"there is no model {number} on this page")
        return self.models[number]

    def end_models(self) -> None:
        """End all models and their clients."""
        for model in self.models:
            self.clients.let_go(model.clients, all_kinds=True)
            model.process.stop()
        self.models.clear()

    # Clients

    def send(self, kind_name: str, count: int = 0) -> None:
        """Send clients to all models alike. count: 0 for the usual number. Raises ActionError."""
        kind = KINDS.get(kind_name)
        if kind is None:
            raise ActionError(f"there is no client {kind_name!r}; there are {', '.join(KINDS)}")
        with self.lock:
            for model in self.models:
                wanted = min(count or kind.usual, kind.most)
                self.clients.send(model.clients, kind, wanted, self.gate, self.slowdown)

    def let_go(self) -> None:
        """End the clients that occupy a worker on purpose, then open the gate for all pages and programs that wait.

        A gate is the file gate-N: a page or a program of the demonstration waits until it exists. In the other
        order the page of such a client might answer before the client is ended. The file stays: later clients wait
        at the next gate.
        """
        with self.lock:
            for model in self.models:
                self.clients.let_go(model.clients)
            open_gate(self.directory, self.gate)
            self.gate += 1

    def slow_down(self, factor: float) -> None:
        """Make clients and pages slower from now on, and tell it to all pages. Raises ActionError."""
        if not 1 <= factor <= MOST_FACTOR:
            raise ActionError(f"slow motion is a factor from 1 to {MOST_FACTOR:.0f}")
        with self.lock:
            self.slowdown = factor
            self.publish({"factor": factor}, "factor")

    # The picture

    def picture_loop(self) -> None:
        """Read the traces and publish the changes as the next picture, every PICTURE_S seconds until the end."""
        picture_count = 0
        while not self.stopping.wait(PICTURE_S):
            with self.lock:
                for model in self.models:
                    model.take_new_events()
                if picture_count % PICTURES_PER_BACKLOG == 0:
                    self.look_at_backlogs()
                    self.look_at_left_connections()
                self.publish({"models": [model.changes() for model in self.models]})
            picture_count += 1

    def look_at_backlogs(self) -> None:
        """Ask the kernel for the backlog of each model."""
        found = backlogs(model.process.port for model in self.models)
        for model in self.models:
            model.backlog = None if found is None else found.get(model.process.port, 0)

    def look_at_left_connections(self) -> None:
        """Ask the kernel how many connections of each model the client has closed, and the server has not.

        It is done if a server is seen from outside, since that writes no trace. All models are then asked for, to
        compare them.
        """
        if any(isinstance(model.choice, ForeignChoice) for model in self.models):
            found = left_connections(model.process.port for model in self.models)
            for model in self.models:
                model.left = None if found is None else found[model.process.port]

    def meters_loop(self) -> None:
        """Measure the costs of the models, until the end. It holds no lock, because a measurement is slow."""
        while not self.stopping.wait(METERS_S):
            for model in list(self.models):
                with suppress(OSError):
                    model.measure_cost()

    def publish(self, change: dict[str, Any], state: str = "") -> None:
        """Give a change to all readers. state: as in ChangeReader.add_change()."""
        if self.readers:
            data = encoded(change)
            for reader in self.readers:
                reader.add_change(data, state)

    def publish_all(self) -> None:
        """Tell all readers that the models are others."""
        self.publish(self.everything(), EVERYTHING)

    def everything(self) -> dict[str, Any]:
        """Return the facts of all models, the clients, the scene and the factor of slow motion.

        They are for a page that begins, and for all pages when the models change. The caller holds the lock.
        """
        return {
            "all": [model.facts() for model in self.models],
            "kinds": [{"name": kind.name, "title": kind.title} for kind in KINDS.values() if kind.button],
            "factor": self.slowdown,
            "scene": self.scene,
            "scenes": self.scenes,
        }

    def publish_scene(self, scene: dict[str, Any]) -> None:
        """Tell all pages the scene that is shown, and how far it is. scene: {} for none."""
        with self.lock:
            self.scene = scene
            self.publish({"scene": scene}, "scene")

    def reader(self) -> ChangeReader:
        """Return another reader of the changes; the facts of all models come first.

        Raises ActionError if there are too many.
        """
        with self.lock:
            if len(self.readers) >= MOST_READERS:
                raise ActionError("twenty pages are open already: close one")
            reader = ChangeReader()
            reader.add_change(encoded(self.everything()), EVERYTHING)
            self.readers.append(reader)
            return reader

    def leave(self, reader: ChangeReader) -> None:
        """Forget a reader."""
        with self.lock:
            if reader in self.readers:
                self.readers.remove(reader)

    def end_readers(self) -> None:
        """End the streams of all pages. A signal handler may call it."""
        for reader in list(self.readers):
            reader.end()

    # Measures for scenes and tests

    def measure(self, number: int, name: str) -> float:
        """Return a number of a model as it is now, such as "queued" or "held silent". Raises ActionError.

        name: one of MEASURES, or one of OF_KIND followed by a kind of client.
        """
        with self.lock:
            model = self.model(number)
            if name == "backlog":
                self.look_at_backlogs()
                return float(model.backlog or 0)
            if name in COSTS:
                model.measure_cost()
                return float(model.cost.get(name, 0))
            if name in OF_STORY:
                return float(OF_STORY[name](model.story))
            if not can_be_measured(name):
                raise ActionError(f"{name!r} cannot be measured")
            what, _, kind = name.partition(" ")
            if what in ("held", "parked", "queued"):
                return float(model.story.count_of_kind(kind, what))
            # The time of now is needed only for "longest", which is not in OF_KIND
            return float(model.clients.tally(kind).as_json(now=0.0)[what])

    def catch_up(self) -> None:
        """Feed the stories with all events that the models have written by now. It takes twice SETTLE_S.

        A story takes an event when the event is SETTLE_S old (LiveStory.add): read all events, wait, and feed them.
        """
        with self.lock:
            for model in self.models:
                model.take_new_events()
        self.stopping.wait(2 * SETTLE_S)
        with self.lock:
            for model in self.models:
                model.story.add(())

    def close(self) -> None:
        """End everything; last the guard, which would kill the models that still run."""
        self.stopping.set()
        self.end_readers()
        for thread in self.threads:
            thread.join(STOP_S)
        with self.lock:
            self.end_models()
        self.clients.stop()
        self.remove_scripts()
        self.guard.close()


def encoded(change: dict[str, Any]) -> bytes:
    """Return a change as an event of the stream (HTML standard, section 9.2)."""
    return b"data: " + json.dumps(change, separators=(",", ":")).encode() + b"\n\n"


def can_be_measured(name: str) -> bool:
    """Return whether Director.measure() knows this name."""
    what, _, kind = name.partition(" ")
    return name in MEASURES or (what in OF_KIND and kind in KINDS)
