"""Which models are shown, and with which options: `ewe-watch "-p --parking never" -a`.

A model is a word of the command line: a flag of the server such as -p, `--model NAME`, or a text in quotes that
begins with one of them and goes on with options of the server.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

from ewe.config.command import UsageError
from ewe.config.messages import ConfigError
from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL
from ewe.config.settings import SETTINGS, Config
from ewe.processors.base import UnknownModel, model_named
from ewe.processors.fork import Fork
from ewe.processors.pool import Pool
from ewe.processors.pool_threads import threads_of
from ewe.processors.thread import Thread

FLAGS = {"-n": "serial", "-f": "fork", "-t": "thread", "-p": "pool", "-a": "asyncio", "-x": "xswitch"}
MOST_MODELS = 4
# The settings that an option of a model may name: those of two groups, and MORE_SETTINGS, but no excluded one. They
# describe the model and its timeouts; ewe-watch chooses addresses, files and logs itself.
SETTING_GROUPS = ("model", "http")
MORE_SETTINGS = ("backlog", "program-timeout", "database")
EXCLUDED_SETTINGS = ("concurrency", "reload")
# What the page's form can change, with the names of the settings
PARAMETERS = (
    "poolthreads", "queue", "parking", "workers", "connections", "overload", "schedule", "backlog", "persistent",
)  # fmt: skip

HINT_OF_POOL = (
    "This pool parks a connection that waits, so silent clients hold no worker."
    ' The pool of 2006 keeps its worker: "-p --parking never"'
)


class ModelChoice(NamedTuple):
    """A model and its options. values: the text of each setting by its key, as in a settings file."""

    model: str
    values: dict[str, str]

    @property
    def name(self) -> str:
        """The model's name, such as "pool"."""
        return model_named(self.model).name if ":" in self.model else self.model

    @property
    def label(self) -> str:
        """The name and the options for people, such as "pool, parking: never"."""
        shown = (f"{key}: {value}" for key, value in self.values.items() if key != "database")
        return ", ".join([self.name, *shown])

    @property
    def hint(self) -> str:
        """What a lecturer may not expect of the defaults, in one line; "" for nothing."""
        return HINT_OF_POOL if self.name == "pool" and "parking" not in self.values else ""

    @property
    def worker_limit(self) -> int:
        """How many workers can be occupied at once: processes, or threads of all processes."""
        config = Config(**{key.replace("-", "_"): value for key, value in self.values.items()})
        model = model_named(self.model)
        processes = model.range_of_workers(config).most
        if issubclass(model, Pool):
            return processes * threads_of(config).most
        if issubclass(model, (Fork, Thread)):
            return processes * (config.connections or model.connection_limit)
        return processes

    def words(self) -> list[str]:
        """Return the choice as words of the server's command line."""
        found = ["--model", self.model]
        for key, value in self.values.items():
            if is_switch(key):
                found.append(f"--{key}" if value == "true" else f"--no-{key}")
            else:
                found += [f"--{key}", value]
        return found

    def with_values(self, values: dict[str, str]) -> ModelChoice:
        """Return the choice with other values; "" stands for the default. Raises ConfigError."""
        known = {key: value for key, value in (self.values | values).items() if value != ""}
        return checked_choice(self.model, known)


def is_switch(key: str) -> bool:
    """Return whether a setting is a flag without a value."""
    return setting_of(key).kind is BOOL


def setting_of(key: str) -> Setting[object]:
    """Return the setting of a key or of a synonym. Raises UsageError."""
    for each in SETTINGS.values():
        if key in each.keys:
            if (
                each.group in SETTING_GROUPS or each.key in MORE_SETTINGS
            ) and each.key not in EXCLUDED_SETTINGS:
                return each
            raise UsageError(
                f"--{key} is not an option of a model here: ewe-watch chooses addresses, files and logs itself"
            )
    raise UsageError(f"--{key} is not an option of a model; see ewe --help model")


def split_choices(arguments: list[str]) -> tuple[list[ModelChoice], list[str]]:
    """Return the models that a command line names, and its other words. Raises UsageError, ConfigError."""
    found, others = [], []
    words = iter(arguments)
    for word in words:
        if word == "--model":
            found.append(parse_choice(f"--model {shlex.quote(next(words, ''))}"))
        elif begins_model(word):
            found.append(parse_choice(word))
        else:
            others.append(word)
    if len(found) > MOST_MODELS:
        raise UsageError(f"a page shows {MOST_MODELS} models at most, and here are {len(found)}")
    return found, others


def begins_model(word: str) -> bool:
    """Return whether a word of the command line is a model."""
    first = word.split(maxsplit=1)[:1]
    return bool(first) and (first[0] in FLAGS or first[0] == "--model" or first[0].startswith("--model="))


def parse_choice(text: str) -> ModelChoice:
    """Return the choice of a text such as "-p --parking never". Raises UsageError, ConfigError."""
    try:
        words = shlex.split(text)
    except ValueError as reason:
        raise UsageError(f"the model {text!r}: {reason}") from None
    first = words.pop(0)
    if first in FLAGS:
        model = FLAGS[first]
    elif first == "--model":
        model = words.pop(0) if words else ""
    else:
        model = first.removeprefix("--model=")
    if not model:
        raise UsageError("--model needs a name: --model prefork, or --model module:Class of your own")
    return checked_choice(model, options(text, words))


def options(text: str, words: list[str]) -> dict[str, str]:
    """Return the values that the options of a model give: key -> text; a flag is "true" or "false".

    words: the options; they are removed from the list. text: the model, for messages. Raises UsageError.
    """
    values: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"the model {text!r}: {word!r} is not an option such as --poolthreads 5")
        key, equals, value = word[2:].partition("=")
        negated = key.startswith("no-")
        setting = setting_of(key.removeprefix("no-"))
        if negated and setting.kind is not BOOL:
            raise UsageError(f"the model {text!r}: {word} is not an option: {setting.key} has a value")
        if setting.kind is BOOL:
            value = "false" if negated else value or "true"
        elif not equals:
            if not words:
                raise UsageError(f"the model {text!r}: {word} needs a value")
            value = words.pop(0)
        values[setting.key] = value
    return values


def checked_choice(model: str, values: dict[str, str]) -> ModelChoice:
    """Return a choice of an existing model with valid values. Raises ConfigError."""
    try:
        name = model_named(model).name
    except UnknownModel as reason:
        raise ConfigError(str(reason)) from None
    # Raises ConfigError for a bad value
    Config(**{key.replace("-", "_"): value for key, value in values.items()})
    return ModelChoice(model if ":" in model else name, values)
