"""X-Switch's settings: a TOML file, and the values of the settings that it omits.

docs/xswitch-settings.md lists them (`python -m ewe.xswitch.settings_page` prints it). A short file:

    listen = ["unix:/run/xswitch.sock"]
    user = "nobody"
    [limits]
    memory = "512m"
    [engines.ruby]
    command = ["ruby", "/usr/local/lib/xswitch/ruby.rb"]
    extensions = [".rb"]
    interpreters = ["ruby"]
    [directories]
    "/home/alice/public_html/cgi-bin/old" = "perl"
    "/home/alice/public_html/cgi-bin/odd" = "cgi"
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf

from ewe.config.messages import ConfigError, nearest
from ewe.config.setting_types import BOOL, SIZE, size
from ewe.config.tables import Described, described, read_file, read_table, setting, sub_table
from ewe.xswitch.engine_kinds import BUILT_IN, WARM_ENGINES, EngineKind
from ewe.xswitch.process import Limits
from ewe.xswitch.setting_types import ADDRESSES, COUNT, FROM_ZERO, MODE, SECONDS, TABLE, TEXT, TEXTS
from ewe.xswitch.user_logs import doubt

LIMITS_OF_AN_ENGINE = Limits(cpu=3600, memory=1 << 30, processes=256, files=256)


@dataclass(frozen=True)
class Settings:
    """All settings of X-Switch. Times are in seconds, sizes in bytes."""

    listen: tuple[str, ...] = setting((), ADDRESSES, "where web servers connect")
    socket_mode: int = setting(0o600, MODE, "of a Unix socket: who may connect may run any script")
    socket_group: str = setting("", TEXT, "of a Unix socket")
    user: str = setting("nobody", TEXT, "the account of the main process")
    script_user: str = setting("", TEXT, "the account of the scripts below `roots`; none: that of `user`")
    status: bool = setting(False, BOOL, "show the engines at `/xswitch-status` to loopback addresses")
    min_uid: int = setting(
        1000, FROM_ZERO, "the smallest uid whose scripts run; smaller ones are system accounts"
    )
    userdir: str = setting(
        "public_html", TEXT, "the directory in each user's home that holds the user's scripts"
    )
    roots: tuple[str, ...] = setting((), TEXTS, "directories that hold the scripts of the site")
    max_engines: int = setting(256, COUNT, "engines of all users")
    max_engines_per_user: int = setting(8, COUNT, "engines of one user")
    max_queue: int = setting(1000, COUNT, "waiting requests of all users; above it 503")
    max_queue_per_user: int = setting(200, COUNT, "waiting requests of one user; above it 503")
    patience: float = setting(10.0, SECONDS, "how long a request waits for an engine; then 503")
    idle: float = setting(300.0, SECONDS, "how long an engine may be without a request; then it ends")
    time_limit: float = setting(
        60.0, SECONDS, "of one request, while its client keeps up; then 504, and the engine ends"
    )
    abandoned: float = setting(5.0, SECONDS, "how long a request may go on after its client has left")
    max_requests: int = setting(10_000, COUNT, "of one engine; then another replaces it")
    max_memory: int = setting(
        256 << 20, SIZE, "of one engine, checked between requests; above it another replaces it"
    )
    max_errors: int = setting(
        1 << 20, SIZE, "standard error of one user's scripts that the log takes in a minute"
    )
    spool: int = setting(64 << 20, size(0), "how much of an answer may wait in a file for a slow client")
    max_spool: int = setting(1 << 30, size(0), "of all such files; one user may have a quarter of it")
    warm: bool = setting(True, BOOL, "start warm parents")
    user_logs: str = setting("", TEXT, "a directory for logs that each user may read")
    limits: Limits = LIMITS_OF_AN_ENGINE
    engines: Mapping[str, EngineKind] = field(default_factory=lambda: dict(BUILT_IN))
    directories: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs_scripts(self) -> str:
        """The account that scripts below the roots run as, if X-Switch is root."""
        return self.script_user or self.user

    def limits_of(self, kind: EngineKind) -> Limits:
        """Return the limits of an engine of this kind."""
        own = {"memory": kind.memory, "processes": kind.processes}
        return self.limits._replace(**{name: limit for name, limit in own.items() if limit is not None})

    def max_memory_of(self, language: str) -> float:
        """Return the bytes that an engine of this language may grow to."""
        kind = self.engines.get(language)
        own = None if kind is None else kind.max_memory
        return (self.max_memory if own is None else own) or inf

    def max_requests_of(self, language: str) -> float:
        """Return how many requests an engine of this language runs before it is replaced."""
        kind = self.engines.get(language)
        own = None if kind is None else kind.max_requests
        return (self.max_requests if own is None else own) or inf

    def kind_for(self, path: str, interpreter: str, real: str = "") -> EngineKind | None:
        """Return the kind of engine for a script: that of its directory, its extension, or its first line.

        path: as the web server names it. real: its path without symbolic links, if it is another.
        """
        for each in (path, real):
            directory = os.path.dirname(each)
            while directory not in ("", "/"):
                if name := self.directories.get(directory):
                    return self.engines[name]
                directory = os.path.dirname(directory)
        extension = os.path.splitext(path)[1]
        # The kinds of a settings file come before those that are built in.
        kinds = list(self.engines.values())[::-1]
        for kind in kinds:
            if extension and extension in kind.extensions:
                return kind
        return next((kind for kind in kinds if interpreter in kind.interpreters), None)

    def doubts(self) -> list[str]:
        """Return a warning, in one line, for each setting that is valid but probably a mistake."""
        lines = []
        if os.geteuid() == 0 and self.roots and self.runs_scripts == self.user:
            lines.append(
                f"script-user: scripts of the site run as {self.user}, as X-Switch itself does: they can end it,"
                " and ask it for every user's scripts; give them a separate user"
            )
        lines += [f"roots: there is no directory {root}" for root in self.roots if not os.path.isdir(root)]
        if self.user_logs and (reason := doubt(self.user_logs)):
            lines.append(f"user-logs: {reason}")
        for kind in self.engines.values():
            program = kind.command[0]
            built_in = kind.name in BUILT_IN and program == BUILT_IN[kind.name].command[0]
            if not built_in and shutil.which(program) is None:
                lines.append(f"[engines.{kind.name}] command: there is no program {program}")
        return lines


DEFAULTS = Settings()

GENERAL = described(Settings)
ENGINE = described(EngineKind)
LIMITS = {
    "cpu": Described(FROM_ZERO, "seconds of CPU time in an engine's life; 0: no limit"),
    "memory": Described(size(0), "addresses, in bytes; 0: no limit"),
    "processes": Described(FROM_ZERO, "processes and threads of the engine's user; 0: no limit"),
    "files": Described(FROM_ZERO, "open files; 0: no limit"),
}


def from_toml(table: Mapping[str, object], where: str, base: Settings = DEFAULTS) -> Settings:
    """Return the settings that a file's table makes.

    where: how an error begins. base: the values of the settings that the table omits. Raises ConfigError.
    """
    tables = ("limits", "engines", "directories")
    general = {key: value for key, value in table.items() if key not in tables}
    settings = replace(base, **read_table(general, GENERAL, where))
    engines = dict(BUILT_IN)
    for name, own in sub_table(table, "engines", where).items():
        place = f"{where}: [engines.{name}]"
        if not isinstance(own, dict):
            raise ConfigError(f"{place} must be a table")
        values = read_table(own, ENGINE, place)
        kind = engines.get(name) or EngineKind(name, ())
        if "command" in values:
            kind = replace(kind, program="")
        engines[name] = replace(kind, **values)
        if not engines[name].command:
            raise ConfigError(f"{place}: command is missing: what starts this engine?")
        if engines[name].connections > 1 and engines[name].protocol != "fastcgi":
            raise ConfigError(f'{place}: connections needs protocol = "fastcgi"')
        if "isolation" in own and engines[name].protocol != "engine":
            raise ConfigError(f'{place}: isolation needs protocol = "engine"')
        if engines[name].warm is not None and not engines[name].command[-1].endswith(WARM_ENGINES):
            if "warm" in own:
                raise ConfigError(
                    f"{place}: warm: only an engine in Python (.py) or Perl (.pl) can be forked"
                )
            engines[name] = replace(engines[name], warm=None)
    directories = TABLE.read(sub_table(table, "directories", where))
    for directory, name in directories.items():
        if name not in engines:
            raise ConfigError(f"{where}: [directories] {directory}: no engine {name}{nearest(name, engines)}")
    limits = read_table(sub_table(table, "limits", where), LIMITS, f"{where}: [limits]")
    return replace(
        settings,
        engines=engines,
        directories={name.rstrip("/"): kind for name, kind in directories.items()},
        limits=settings.limits._replace(**limits),
    )


def load(file: str | None, base: Settings = DEFAULTS) -> Settings:
    """Load a TOML file. Settings that it omits (all of them, if `file` is None) keep their value from `base`.

    Raises ConfigError.
    """
    if file is None:
        return base
    return from_toml(read_file(file), file, base)


def origins_in(file: str | None) -> dict[str, str]:
    """Return the keys that a file sets, each with the file; a table's keys are written `limits.cpu`."""
    if file is None:
        return {}
    table = read_file(file)
    keys = [*table, *(f"limits.{key}" for key in table.get("limits", ()))]
    for name, own in table.get("engines", {}).items():
        keys += (f"engines.{name}.{key}" for key in own)
    return dict.fromkeys(keys, file)


def copy_of(settings: Settings) -> int:
    """Return a descriptor of an unnamed file that holds settings, for another process: see read_copy().

    A message has no room for them all: [directories] may have a line for each student and exercise.
    """
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    values["engines"] = {
        name: {key.name: getattr(kind, key.name) for key in fields(kind)}
        for name, kind in settings.engines.items()
    }
    descriptor = os.memfd_create("xswitch-settings", os.MFD_CLOEXEC)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(values, file)
    return descriptor


def read_copy(descriptor: int) -> Settings:
    """Return the settings in a file of copy_of(). The descriptor stays open."""
    values = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    engines = {}
    for name, kind in values["engines"].items():
        lists = {key: tuple(value) for key, value in kind.items() if isinstance(value, list)}
        engines[name] = EngineKind(**{**kind, **lists})
    lists = {
        key: tuple(value) for key, value in values.items() if isinstance(value, list) and key != "limits"
    }
    return Settings(**{**values, **lists, "limits": Limits(*values["limits"]), "engines": engines})
