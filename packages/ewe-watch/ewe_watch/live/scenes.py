"""Scenes: prepared demonstrations. Each is a TOML file, which a lecturer can write, too, and each is a test.

    title = "The pool that starves"
    text = "Three sentences."
    models = ["-p --parking never", "-p"]

    [[step]]
    say = "Six silent clients come."
    send = "silent"
    count = 6
    until = ["1: held silent = 5", "2: parked silent = 6"]
    shows = ["1: queued silent = 1"]

A step sends clients (`send`, `count`), or lets go those that are held (`let-go = true`), or only waits. It waits
until all conditions of `until` hold at once, for at most longest_wait_s(). Then those of `shows` must hold. A
condition names a model by its number, a measure (Director.measure) and what it must be: = N, >= N or <= N. The word
`users` stands for the number of accounts that own scripts: those of --users, and the site's. The key `users` of a
scene is another number: of the accounts that it needs. With fewer, it shows only one.

A user may leave the wait of a step (Stage.skip): the next step can then be played, and nothing is tested.

A scene never waits for a time, only for events. It therefore shows the same on a slow machine. A step whose clients
must come while those of the step before are still at work (a statement of a database ends by itself) begins with
that step: `at-once = true`.
"""

from __future__ import annotations

import operator
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from ewe.config.messages import ConfigError, Failure, nearest
from ewe_watch.live.choice import MOST_MODELS, ModelChoice, begins_model, parse_choice
from ewe_watch.live.clients import KINDS
from ewe_watch.live.clients import LIMIT_S as CLIENT_LIMIT_S
from ewe_watch.live.director import ActionError, Choice, Director, can_be_measured

LIMIT_S = 30.0  # the longest wait for `until`, at normal speed
LOOK_S = 0.05
USERS = "users"
# `1: held silent = 5`: the number of the model, from 1; the measure; the sign; the value
CONDITION = re.compile(r"(?P<model>[1-4]): (?P<measure>[a-z -]+?) (?P<sign>=|>=|<=) (?P<value>\d+|users)")
COMPARE: dict[str, Callable[[float, float], bool]] = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}
SCENE_KEYS = {"title", "text", "models", "step", "users"}
STEP_KEYS = {"say", "at-once", "send", "count", "let-go", "until", "shows"}


class SceneError(ConfigError):
    """A scene does not exist, or its file has a mistake. The text is one line."""


class SceneFailure(Failure):
    """A scene does not show what it says. The text is one line."""


class SceneCondition(NamedTuple):
    """What a measure of a model must be. model: its number from 0."""

    text: str
    model: int
    measure: str
    sign: str
    value: str

    def why_not(self, director: Director) -> str:
        """Return "" if the condition holds now, else its text with the number that was measured, for a message."""
        # The site's scripts have an owner, too.
        required = len(director.users) + 1 if self.value == USERS else int(self.value)
        measured = director.measure(self.model, self.measure)
        return "" if COMPARE[self.sign](measured, required) else f"{self.text!r} (it is {measured:.0f})"


@dataclass(frozen=True)
class SceneStep:
    """A step of a scene. at_once: it begins when the step before ends. send: the kind of client, or ""."""

    say: str
    at_once: bool
    send: str
    count: int
    let_go: bool
    until: tuple[SceneCondition, ...]
    shows: tuple[SceneCondition, ...]


@dataclass(frozen=True)
class WatchScene:
    """A scene. name: of its file. users: the accounts whose scripts it shows, if ewe-watch is given any."""

    name: str
    title: str
    text: str
    models: tuple[ModelChoice, ...]
    steps: tuple[SceneStep, ...]
    users: int = 0


def scene_files() -> dict[str, Path]:
    """Return the files of the scenes that come with ewe-watch, by name."""
    with resources.as_file(resources.files("ewe_watch").joinpath("scenes")) as directory:
        return {path.stem: path for path in sorted(directory.glob("*.toml"))}


def find_scene(name: str) -> WatchScene:
    """Return a scene by its name, or by the path of its file, which ends with .toml. Raises SceneError."""
    known = scene_files()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise SceneError(f"there is no scene {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise SceneError(f"cannot read the scene {path}: {getattr(reason, 'strerror', reason)}") from None
    try:
        return scene_of(path.stem, tomllib.loads(text))
    # OverflowError: a number of clients that is infinite. RecursionError: lists within lists
    except (
        tomllib.TOMLDecodeError, ConfigError, TypeError, ValueError, OverflowError, RecursionError
    ) as reason:  # fmt: skip
        raise SceneError(f"{path}: {reason}") from None


def scene_of(name: str, table: dict[str, Any]) -> WatchScene:
    """Return the scene that a TOML file describes. name: of the file. Raises ValueError, ConfigError."""
    check_keys(table, SCENE_KEYS)
    if missing := {"title", "text", "models", "step"} - table.keys():
        raise ValueError(f"{min(missing)} is missing")
    models = tuple(model_of(text) for text in table["models"])
    if not 0 < len(models) <= MOST_MODELS:
        raise ValueError(f"models: a scene has 1 to {MOST_MODELS} models, and here are {len(models)}")
    steps = tuple(step_of(number, each, len(models)) for number, each in enumerate(table["step"], 1))
    text = " ".join(str(table["text"]).split())
    return WatchScene(name, str(table["title"]), text, models, steps, int(table.get("users", 0)))


def check_keys(table: dict[str, Any], known: set[str], label: str = "") -> None:
    """Raise ValueError for a key that a table does not have. label: the beginning of the message."""
    if unknown := table.keys() - known:
        key = min(unknown)
        raise ValueError(
            f"{label}{key} is unknown{nearest(key, known) or '; there are ' + ', '.join(sorted(known))}"
        )


def model_of(text: object) -> ModelChoice:
    """Return a model of a scene. Raises ValueError, ConfigError."""
    if not isinstance(text, str) or not begins_model(text):
        raise ValueError(f"models: {text!r} does not begin with a model such as -p")
    return parse_choice(text)


def step_of(number: int, table: object, models: int) -> SceneStep:
    """Return the step of a table. number: from 1. models: how many the scene has. Raises ValueError."""
    if not isinstance(table, dict):
        raise ValueError(f"step {number}: {table!r} is no table: write [[step]], and its keys below")
    check_keys(table, STEP_KEYS, f"step {number}: ")
    if not table.get("say"):
        raise ValueError(f"step {number}: say is missing: one sentence about what happens")
    kind = str(table.get("send", ""))
    if kind and kind not in KINDS:
        raise ValueError(f"step {number}: there is no client {kind!r}; there are {', '.join(KINDS)}")
    until, shows = (
        tuple(condition_of(number, str(text), models) for text in table.get(key, ()))
        for key in ("until", "shows")
    )
    return SceneStep(
        say=str(table["say"]),
        at_once=bool(table.get("at-once")),
        send=kind,
        count=int(table.get("count", 0)),
        let_go=bool(table.get("let-go")),
        until=until,
        shows=shows,
    )


def condition_of(number: int, text: str, models: int) -> SceneCondition:
    """Return the condition of a text. number: of its step. models: how many the scene has. Raises ValueError."""
    found = CONDITION.fullmatch(text)
    if found is None or int(found["model"]) > models:
        raise ValueError(f'step {number}: {text!r} is not a condition such as "1: held silent = 5"')
    measure = found["measure"]
    if not can_be_measured(measure):
        raise ValueError(f"step {number}: {measure!r} cannot be measured")
    return SceneCondition(text, int(found["model"]) - 1, measure, found["sign"], found["value"])


def missing_users_text(scene: WatchScene, director: Director) -> str:
    """Return in one line which accounts a scene with several users needs; "" if the director has them."""
    if len(director.users) >= scene.users:
        return ""
    return (
        f"scene {scene.name}: to show {scene.users} users it needs root and {scene.users} accounts "
        "(--users NAME,NAME); without them it shows one"
    )


def longest_wait_s(slowdown: float) -> float:
    """Return how many seconds a step waits for its conditions, but not more than the longest life of a client.

    slowdown: the factor of slow motion, from 1.
    """
    return min(LIMIT_S * slowdown, CLIENT_LIMIT_S)


class Stage:
    """A scene in play. at: the index of the next step. failed: why the last step failed; "" if it did not.

    lacks: the accounts that a scene with several users lacks, in a line; "" for none (missing_users_text()).
    skipped: the indexes of the steps whose waits a user has left.
    """

    def __init__(self, director: Director, scene: WatchScene) -> None:
        """Start the scene's models; until ready() the page offers no step. Raises StartFailure."""
        self.director = director
        self.scene = scene
        self.lacks = missing_users_text(scene, director)
        self.at = 0
        self.failed = ""
        self.skipped: list[int] = []
        self.lock = threading.Lock()
        self.skipping = threading.Event()
        self.publish_state(running=True)
        director.show(list(scene.models))

    def ready(self) -> None:
        """Offer the first step."""
        self.publish_state(running=False)

    def publish_state(self, *, running: bool) -> None:
        """Publish how far the scene is. running: a step is being played, or the models are being started."""
        self.director.publish_scene(
            {
                "name": self.scene.name, "title": self.scene.title,
                "text": self.scene.text, "lacks": self.lacks,
                "steps": [step.say for step in self.scene.steps], "at": self.at, "running": running,
                "failed": self.failed, "skipped": self.skipped,
            }
        )  # fmt: skip

    def play(self, *, all_steps: bool) -> None:
        """Play the next step and those that begin with it, or all. Raises SceneFailure, ActionError.

        After a failure `at` still names the failed step, and `failed` tells the pages why. The next play clears it.
        """
        if not self.lock.acquire(blocking=False):
            raise ActionError("a step is being played")
        try:
            self.failed = ""
            steps = self.scene.steps
            while self.at < len(steps):
                self.skipping.clear()
                self.publish_state(running=True)
                self.step(steps[self.at])
                self.at += 1
                if not (all_steps or (self.at < len(steps) and steps[self.at].at_once)):
                    break
        except Failure as reason:
            self.failed = str(reason)
            raise
        finally:
            self.publish_state(running=False)
            self.lock.release()

    def skip(self) -> None:
        """Leave the wait of the step that is being played. Raises ActionError if none is."""
        if not self.lock.locked():
            raise ActionError("no step is being played")
        self.skipping.set()

    def step(self, step: SceneStep) -> None:
        """Play one step. Raises SceneFailure, ActionError."""
        if step.let_go:
            self.director.let_go()
        if step.send:
            self.director.send(step.send, step.count)
        deadline = time.monotonic() + longest_wait_s(self.director.slowdown)
        while wrong := self.false_conditions(step.until):
            if self.skipping.wait(LOOK_S):
                self.skipped.append(self.at)
                return
            if time.monotonic() > deadline or self.director.stopping.is_set():
                raise self.failure("has not come to", wrong)
        if step.shows:  # a client sees its answer before the page has read the events that led to it
            self.director.catch_up()
        if wrong := self.false_conditions(step.shows):
            raise self.failure("does not show", wrong)

    def false_conditions(self, conditions: Sequence[SceneCondition]) -> list[str]:
        """Return the texts of the conditions that do not hold now, each with the measured number."""
        return [text for each in conditions if (text := each.why_not(self.director))]

    def failure(self, verb: str, false_conditions: list[str]) -> SceneFailure:
        """Return the failure of the current step. verb: the words between the step and its false conditions."""
        return SceneFailure(
            f"scene {self.scene.name}, step {self.at + 1} {verb} {', '.join(false_conditions)}"
        )


class SceneChooser:
    """The scenes that the page offers, and the stage of the one that is shown. stage: None without a scene."""

    def __init__(self, director: Director, scene: WatchScene | None = None) -> None:
        """Give the director the scenes that the page lists; start one if it is given. Raises StartFailure."""
        self.director = director
        self.lock = threading.Lock()
        self.choices_before_scene: list[Choice] = []  # the models to show again after the scene
        found = [find_scene(name) for name in scene_files()]
        director.scenes = [
            {
                "name": each.name,
                "title": each.title,
                "text": each.text,
                "lacks": missing_users_text(each, director),
            }
            for each in found
        ]
        self.stage = None if scene is None else Stage(director, scene)
        if self.stage is not None:
            self.stage.ready()

    def start(self, name: str) -> None:
        """Show a scene instead of the models that are shown now.

        If the scene's models do not start, the page shows the earlier ones again. Raises ActionError, SceneError,
        StartFailure.
        """
        known = scene_files()
        if name not in known:  # a page names no file of this computer
            raise ActionError(f"there is no scene {name!r}{nearest(name, known)}")
        scene = find_scene(name)
        with self.alone():
            if self.stage is None:
                self.choices_before_scene = [model.choice for model in self.director.models]
            try:
                self.stage = Stage(self.director, scene)
            except Failure:
                self.show_before()
                raise
        # Only now: a step that a page asks for while alone() holds the locks would be refused
        if (stage := self.stage) is not None:  # None: another page has left the scene since
            stage.ready()

    def leave(self) -> None:
        """Show again the models that were shown before the scene. Raises ActionError, StartFailure."""
        with self.alone():
            if self.stage is None:
                raise ActionError("no scene is shown")
            self.show_before()

    def show_before(self) -> None:
        """End the scene, and show the models that were shown before it."""
        self.stage = None
        self.director.publish_scene({})
        self.director.show(self.choices_before_scene)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other choices of a scene, and steps of the scene that is shown, until the end of the block.

        Raises ActionError at once if another page chooses a scene, or plays a step.
        """
        if not self.lock.acquire(blocking=False):
            raise ActionError("another scene is being chosen")
        try:
            # Read with the lock: until then another page may have chosen a scene, whose step is played now
            stage = self.stage
            if stage is not None and not stage.lock.acquire(blocking=False):
                raise ActionError("a step is being played: wait for its end")
            try:
                yield
            finally:
                if stage is not None:
                    stage.lock.release()
        finally:
            self.lock.release()
