"""X-Switch's settings: a TOML file, and what holds where it says nothing.

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
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

from ewe.config import ConfigError, nearest, quoted
from ewe.kinds import BOOL, SIZE, Kind, duration, parse_address, size, whole
from ewe.xswitch.process import Limits
from ewe.xswitch.user_logs import doubt

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")
JAVA = f"{ENGINES}/java/target/engine"  # what ewe.xswitch.java builds
WORK = "{work}"  # in a command: a directory of its user's own, that is there as long as the engine
PROTOCOLS = ("engine", "fastcgi")
MODES = whole(0, 0o777, 'an octal mode as text, such as "0660"')


@dataclass(frozen=True)
class EngineKind:
    """One language. warm: modules that a warm parent loads, None for no warm parent."""

    name: str
    command: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()
    protocol: str = "engine"
    warm: tuple[str, ...] | None = None
    per_user: int = 0  # engines of this language and one user; 0: as many as of all languages
    memory: int | None = None  # bytes of addresses instead of those of [limits]; 0: as many as there are
    processes: int | None = None  # likewise; threads count
    max_memory: int | None = None  # instead of the general one; 0: never replaced for its memory
    max_requests: int | None = None  # likewise
    connections: int = 1  # requests that one engine runs at once, a connection each; FastCGI only
    program: str = ""  # a file that `ewe-xswitch NAME` builds, without which it does not start
    environment: Mapping[str, str] = field(default_factory=dict)


# What many scripts import. Not what has state that the engine would then have to reset after every request.
WARM = (
    "collections", "csv", "datetime", "functools", "hashlib", "html", "http.cookies", "json", "math", "re",
    "sqlite3", "string", "subprocess", "time", "typing", "urllib.parse",
)  # fmt: skip
WARM_PERL = (
    "CGI", "Cwd", "Data::Dumper", "Encode", "Fcntl", "File::Basename", "File::Spec", "File::Temp", "JSON::PP",
    "List::Util", "MIME::Base64", "POSIX", "Scalar::Util", "Storable", "Time::HiRes", "Time::Local",
)  # fmt: skip
WARM_ENGINES = (".py", ".pl")  # what has a warm parent, by the end of its program's name

BUILT_IN = {
    "python": EngineKind(
        "python", ("python3", f"{ENGINES}/python.py"), (".py",), ("python", "python3"), warm=WARM
    ),
    "perl": EngineKind("perl", ("perl", f"{ENGINES}/perl.pl"), (".pl",), ("perl",), warm=WARM_PERL),
    "php": EngineKind(
        "php",
        ("php-cgi", "-d", "opcache.revalidate_freq=0"),  # a change is noticed at once, not after 2 seconds
        (".php",),
        ("php", "php-cgi"),
        "fastcgi",
        environment={"PHP_FCGI_CHILDREN": "0", "PHP_FCGI_MAX_REQUESTS": "0"},
    ),
    "java": EngineKind(
        "java",
        (
            "java", "-Xmx256m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:ReservedCodeCacheSize=32m",
            "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
            f"-XX:SharedArchiveFile={JAVA}/engine.jsa", "-Xshare:auto", "-Xlog:cds*=off",
            "-XX:-UsePerfData", "-XX:+ErrorFileToStderr", "-XX:+ExitOnOutOfMemoryError",
            "-Djava.io.tmpdir={work}", "-Djava.awt.headless=true",
            "-jar", f"{JAVA}/engine.jar",
        ),
        interpreters=("WEB-INF",),
        protocol="fastcgi",
        per_user=1,  # sessions are in its memory
        memory=0,
        max_memory=512 << 20,
        max_requests=0,
        connections=8,
        program=f"{JAVA}/engine.jar",
    ),
}  # fmt: skip


LIMITS_OF_AN_ENGINE = Limits(cpu=3600, memory=1 << 30, processes=256, files=256)


@dataclass(frozen=True)
class Settings:
    """All settings. Times in seconds, sizes in bytes."""

    listen: tuple[str, ...] = ()
    socket_mode: int = 0o600
    socket_group: str = ""
    user: str = "nobody"
    min_uid: int = 1000
    userdir: str = "public_html"
    roots: tuple[str, ...] = ()
    max_engines: int = 256
    max_engines_per_user: int = 8
    max_queue: int = 1000
    max_queue_per_user: int = 200
    patience: float = 10.0
    idle: float = 300.0
    time_limit: float = 60.0
    abandoned: float = 5.0
    max_requests: int = 10_000
    max_memory: int = 256 << 20
    warm: bool = True
    user_logs: str = ""
    limits: Limits = LIMITS_OF_AN_ENGINE
    engines: Mapping[str, EngineKind] = field(default_factory=lambda: dict(BUILT_IN))
    directories: Mapping[str, str] = field(default_factory=dict)

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

    def kind_for(self, path: str, interpreter: str) -> EngineKind | None:
        """Return the engine for a script: its directory's, its extension's, or its first line's."""
        directory = os.path.dirname(path)
        while directory not in ("", "/"):
            if name := self.directories.get(directory):
                return self.engines[name]
            directory = os.path.dirname(directory)
        extension = os.path.splitext(path)[1]
        kinds = list(self.engines.values())[::-1]  # what a file says comes before what is built in
        for kind in kinds:
            if extension and extension in kind.extensions:
                return kind
        return next((kind for kind in kinds if interpreter in kind.interpreters), None)

    def doubts(self) -> list[str]:
        """Return what is in order, but cannot be meant: a line each."""
        lines = [f"roots: there is no directory {root}" for root in self.roots if not os.path.isdir(root)]
        if self.user_logs and (reason := doubt(self.user_logs)):
            lines.append(f"user-logs: {reason}")
        for kind in self.engines.values():
            program = kind.command[0]
            built_in = kind.name in BUILT_IN and program == BUILT_IN[kind.name].command[0]
            if not built_in and shutil.which(program) is None:
                lines.append(f"[engines.{kind.name}] command: there is no program {program}")
        return lines


DEFAULTS = Settings()

SECONDS = duration(0.01)
COUNT = whole(1, 1 << 20, "a whole number from 1")
FROM_ZERO = whole(0, 1 << 31, "a whole number from 0")


def mode(raw: object) -> int:
    """Read a mode in octal. Raises ValueError."""
    if not isinstance(raw, str):
        raise ValueError(raw)
    return MODES.read(int(raw, 8))


def text(raw: object) -> str:
    """Read a text that is not empty. Raises ValueError."""
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    return raw


def texts(raw: object) -> tuple[str, ...]:
    """Read a list of texts. Raises ValueError."""
    if not isinstance(raw, list):
        raise ValueError(raw)
    return tuple(text(each) for each in raw)


def addresses(raw: object) -> tuple[str, ...]:
    """Read a list of addresses. Raises ValueError."""
    for each in texts(raw):
        parse_address(each)
    return texts(raw)


def suffixes(raw: object) -> tuple[str, ...]:
    """Read a list of file name extensions. Raises ValueError."""
    for each in texts(raw):
        if not each.startswith("."):
            raise ValueError(raw)
    return texts(raw)


def protocol(raw: object) -> str:
    """Read the name of a protocol. Raises ValueError."""
    if raw not in PROTOCOLS:
        raise ValueError(raw)
    return str(raw)


def variables(raw: object) -> dict[str, str]:
    """Read a table of texts. Raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError(raw)
    return {text(name): str(value) for name, value in raw.items()}


Reader = tuple[Callable[[object], Any], str]


def of(kind: Kind[Any]) -> Reader:
    """Return the reader of a kind, and what it expects."""
    return kind.read, kind.expected


TEXT: Reader = (text, "a text")
TEXTS: Reader = (texts, "a list of texts")
TABLE: Reader = (variables, "a table of texts")

GENERAL: dict[str, Reader] = {
    "listen": (addresses, "a list of unix:PATH and HOST:PORT"),
    "socket-mode": (mode, MODES.expected), "socket-group": TEXT, "user": TEXT,
    "min-uid": of(FROM_ZERO), "userdir": TEXT, "roots": TEXTS, "max-engines": of(COUNT),
    "max-engines-per-user": of(COUNT), "max-queue": of(COUNT), "max-queue-per-user": of(COUNT),
    "patience": of(SECONDS), "idle": of(SECONDS), "time-limit": of(SECONDS), "abandoned": of(SECONDS),
    "max-requests": of(COUNT), "max-memory": of(SIZE), "warm": of(BOOL),
    "user-logs": TEXT,
}  # fmt: skip
LIMITS: dict[str, Reader] = {
    "cpu": of(FROM_ZERO), "memory": of(size(0)), "processes": of(FROM_ZERO), "files": of(FROM_ZERO),
}  # fmt: skip
ENGINE: dict[str, Reader] = {
    "command": TEXTS, "extensions": (suffixes, 'a list of what begins with ".", as [".rb"]'),
    "interpreters": TEXTS,
    "protocol": (protocol, '"engine" or "fastcgi"'), "warm": TEXTS, "per-user": of(COUNT), "environment": TABLE,
    "memory": of(size(0)), "processes": of(FROM_ZERO), "max-memory": of(size(0)), "max-requests": of(FROM_ZERO),
    "connections": of(COUNT),
}  # fmt: skip


def read_table(table: Mapping[str, object], known: Mapping[str, Reader], where: str) -> dict[str, Any]:
    """Return a table's values by the names of fields. Raises ConfigError."""
    values = {}
    for key, raw in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key}{nearest(key, known)}")
        read, expected = known[key]
        try:
            values[key.replace("-", "_")] = read(raw)
        except ValueError:
            raise ConfigError(f"{where}: {key} must be {expected}, not {quoted(raw)}") from None
    return values


def sub_table(table: Mapping[str, object], key: str, where: str) -> dict[str, Any]:
    """Return a table within a table, empty if there is none. Raises ConfigError."""
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} must be a table: [{key}]")
    return found


def from_toml(table: Mapping[str, object], where: str, base: Settings = DEFAULTS) -> Settings:
    """Return the settings that a file's table makes. where: for messages. Raises ConfigError.

    base: what it does not say.
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
        if engines[name].warm is not None and not engines[name].command[-1].endswith(WARM_ENGINES):
            if "warm" in own:
                raise ConfigError(
                    f"{place}: warm: only an engine in Python (.py) or Perl (.pl) can be forked"
                )
            engines[name] = replace(engines[name], warm=None)
    directories = variables(sub_table(table, "directories", where))
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
    """Read a file; None: what it would not say, the base. Raises ConfigError."""
    if file is None:
        return base
    try:
        with open(file, "rb") as source:
            table = tomllib.load(source)
    except OSError as reason:
        raise ConfigError(f"{file}: {reason.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise ConfigError(f"{file}: {reason}") from None
    return from_toml(table, file, base)


def as_message(settings: Settings) -> dict[str, Any]:
    """Return what the main module must know of changed settings, for a message."""
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    values["engines"] = {
        name: {key.name: getattr(kind, key.name) for key in fields(kind)}
        for name, kind in settings.engines.items()
    }
    return values


def from_message(values: dict[str, Any]) -> Settings:
    """Return the settings of a message."""
    engines = {}
    for name, kind in values["engines"].items():
        lists = {key: tuple(value) for key, value in kind.items() if isinstance(value, list)}
        engines[name] = EngineKind(**{**kind, **lists})
    lists = {
        key: tuple(value) for key, value in values.items() if isinstance(value, list) and key != "limits"
    }
    return Settings(**{**values, **lists, "limits": Limits(*values["limits"]), "engines": engines})
