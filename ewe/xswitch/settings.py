"""X-Switch's settings: a TOML file, and defaults for the settings that it omits.

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
    [groups.students]
    engines = 2
    [users.alice]
    memory = "200m"
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf

from ewe.config.defaults import PACKAGE_DIRECTORY
from ewe.config.messages import ConfigError, nearest, one_line
from ewe.config.setting import Key
from ewe.config.setting_types import BOOL, SIZE, size
from ewe.config.table_kinds import TableKind
from ewe.config.tables import by_field_name, keys_of, read_file, setting
from ewe.trace import exposure_warning
from ewe.xswitch.engine_kinds import BUILT_IN, FAR_CONNECTIONS, FAR_KEYS, PRELOADING_ENGINES, EngineKind
from ewe.xswitch.process import EngineLimits
from ewe.xswitch.setting_types import (
    ABSOLUTE,
    ADDRESSES,
    COUNT,
    DIRECTORIES,
    FROM_ZERO,
    MODE,
    NAMES,
    PERCENT,
    SECONDS,
    TABLE,
    TEXT,
    TEXTS,
)
from ewe.xswitch.user_limits import (
    GROUPS,
    NO_LIMITS,
    USERS,
    UserLimits,
    as_values,
    from_tables,
    merge_first_wins,
)
from ewe.xswitch.user_logs import directory_fault

LIMITS_OF_AN_ENGINE = EngineLimits(cpu=3600, memory=1 << 30, processes=256, files=256)


@dataclass(frozen=True)
class Settings:
    """All settings of X-Switch. Times are in seconds, sizes in bytes."""

    listen: tuple[str, ...] = setting((), ADDRESSES, "the addresses at which web servers connect")
    socket_mode: int = setting(
        0o600, MODE, "the mode of a Unix socket: a process that may connect may run any script"
    )
    socket_group: str = setting("", TEXT, "the group of a Unix socket")
    user: str = setting("nobody", TEXT, "the account of the main process")
    script_user: str = setting("", TEXT, "the account of the scripts below `roots`; none: that of `user`")
    status: bool = setting(False, BOOL, "show the engines at `/xswitch-status` to loopback addresses")
    managers: tuple[str, ...] = setting(
        (),
        NAMES,
        "accounts whose processes may list, restart and drain the engines of all users over a Unix socket, besides"
        " root: that of a web server with a page of engines",
    )
    min_uid: int = setting(
        1000, FROM_ZERO, "the smallest uid whose scripts run; smaller ones are system accounts"
    )
    userdir: str = setting(
        "public_html", TEXT, "the directory in each user's home that holds the user's scripts"
    )
    roots: tuple[str, ...] = setting((), TEXTS, "directories that hold the scripts of the site")
    max_engines: int = setting(256, COUNT, "how many engines may run")
    max_engines_per_user: int = setting(8, COUNT, "how many engines of one user may run")
    reserve_memory: int = setting(
        64 << 20,
        size(0),
        "memory that stays available: below it idle engines end, and an engine starts only in place of another one;"
        " 0: no reserve",
    )
    max_memory_pressure: int = setting(
        20,
        PERCENT,
        "percent of ten seconds in which processes wait for memory (/proc/pressure); above it as below"
        " `reserve-memory`; 0: no limit",
    )
    max_cpu_pressure: int = setting(
        0,
        PERCENT,
        "percent of ten seconds in which processes wait for a processor; above it a user who has an engine of the"
        " language waits for it; 0: no limit",
    )
    max_queue: int = setting(1000, COUNT, "how many requests may wait for an engine; above it 503")
    max_queue_per_user: int = setting(200, COUNT, "how many requests of one user may wait; above it 503")
    queue_timeout: float = setting(
        10.0, SECONDS, "how long a request waits for an engine; then 503", was="patience"
    )
    idle: float = setting(300.0, SECONDS, "how long an engine may be without a request; then it ends")
    time_limit: float = setting(
        60.0, SECONDS, "how long a request may take while its client keeps up; then 504, and the engine ends"
    )
    abandoned: float = setting(5.0, SECONDS, "how long a request may go on after its client has left")
    max_requests: int = setting(
        10_000, COUNT, "how many requests an engine runs; then another engine replaces it"
    )
    max_memory: int = setting(
        256 << 20,
        SIZE,
        "how much memory an engine may have between requests; above it another engine replaces it",
    )
    max_errors: int = setting(
        1 << 20, SIZE, "how much standard error of one user's scripts the log takes in a minute"
    )
    spool: int = setting(64 << 20, size(0), "how much of an answer may wait in a file for a slow client")
    max_spool: int = setting(
        1 << 30, size(0), "how much all these files may have together; one user may have a quarter of it"
    )
    preload: bool = setting(True, BOOL, "start preloaded parents", was="warm")
    trace: str = setting(
        "", TEXT, "a file, or a named pipe, that gets a line for each event of a request and of an engine"
    )
    user_logs: str = setting("", TEXT, "a directory for logs that each user may read")
    cgroup: str = setting(
        "auto",
        TEXT,
        "where limits of users are kept: a directory of cgroups v2, `auto` (a cgroup that systemd has delegated),"
        " or `off`",
    )
    private: bool = setting(
        False,
        BOOL,
        "give the engines of each user a private file system: an own /tmp, and no homes of other users",
    )
    private_homes: tuple[str, ...] = setting(
        ("/home",),
        DIRECTORIES,
        "directories that hold homes: with `private`, an engine sees only its user's home below them",
    )
    packages: str = setting(
        PACKAGE_DIRECTORY,
        TEXT,
        "the directory in each user's home for packages: an application whose file lies there serves; none: off",
    )
    prime: str = setting(
        "",
        ABSOLUTE,
        "a file for the profile of use: by it engines start before the visitors of a usual day come",
    )
    tls_cert: str = setting(
        "",
        ABSOLUTE,
        "the certificate of this X-Switch, for `tls:` addresses and engines on other machines (PEM)",
    )
    tls_key: str = setting("", ABSOLUTE, "the key of `tls-cert` (PEM), which others may not read")
    tls_ca: str = setting(
        "",
        ABSOLUTE,
        "the certificates of other X-Switches, or of the CA that has signed them (PEM); no other peer is served",
    )
    limits: EngineLimits = LIMITS_OF_AN_ENGINE
    engines: Mapping[str, EngineKind] = field(default_factory=lambda: dict(BUILT_IN))
    directories: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, UserLimits] = field(default_factory=dict)
    groups: Mapping[str, UserLimits] = field(default_factory=dict)
    certificates: tuple[str, ...] = ()  # the text of tls_cert, tls_key and tls_ca (ewe.xswitch.certificates)
    renamed: tuple[str, ...] = ()  # a line for each key that the file calls by its former name

    @property
    def runs_scripts(self) -> str:
        """The account that runs scripts below the roots, if X-Switch is root."""
        return self.script_user or self.user

    def limits_of(
        self, kind: EngineKind, user_limits: UserLimits = NO_LIMITS, cgroup_keys: Collection[str] = ()
    ) -> EngineLimits:
        """Return the kernel's limits (setrlimit) of an engine of this kind.

        user_limits: the limits of its user, which are stronger than the general ones. cgroup_keys: the keys of
        `user_limits` that a cgroup enforces for all engines of the user together: the limit of one engine must then
        not be lower. An engine without a limit of addresses (a JVM) stays without one.
        """
        limits_of_kind = {"memory": kind.memory, "processes": kind.processes}
        general = self.limits._replace(
            **{name: limit for name, limit in limits_of_kind.items() if limit is not None}
        )
        own = {"cpu": user_limits.cpu, "file_size": user_limits.file_size}
        values = {name: limit for name, limit in own.items() if limit is not None}
        for name in ("memory", "processes"):
            user_limit, general_limit = getattr(user_limits, name), getattr(general, name)
            if user_limit is None or (name == "memory" and kind.memory == 0):
                continue
            if name not in cgroup_keys:
                values[name] = user_limit
            elif general_limit:  # 0 is no limit
                values[name] = max(general_limit, user_limit) if user_limit else 0
        return general._replace(**values)

    def own_limits(self, user: str, groups: Collection[str] = ()) -> UserLimits:
        """Return the limits of a user.

        Each limit comes from the user's own table if it is there, otherwise from the first group that sets it.
        groups: names of the user's groups.
        """
        if not self.users and not self.groups:
            return NO_LIMITS
        tables = [self.users[user]] if user in self.users else []
        return merge_first_wins(tables + [limits for name, limits in self.groups.items() if name in groups])

    def is_private(self, user_limits: UserLimits) -> bool:
        """Return whether the engines of a user have a private file system. user_limits: the limits of the user."""
        return self.private if user_limits.private is None else user_limits.private

    def max_memory_of(self, language: str) -> float:
        """Return the size in bytes above which an engine of this language is replaced; inf if there is no limit."""
        kind = self.engines.get(language)
        kind_limit = None if kind is None else kind.max_memory
        return (self.max_memory if kind_limit is None else kind_limit) or inf

    def max_requests_of(self, language: str) -> float:
        """Return how many requests an engine of this language runs before it is replaced."""
        kind = self.engines.get(language)
        kind_limit = None if kind is None else kind.max_requests
        return (self.max_requests if kind_limit is None else kind_limit) or inf

    def kind_for(self, path: str, interpreter: str, real: str = "") -> EngineKind | None:
        """Return the kind of engine for a script: that of its directory, its extension, or its first line.

        path: as the web server names it. real: the path without symbolic links, if that is different.
        """
        for script in (path, real):
            directory = os.path.dirname(script)
            while directory.strip("/"):  # "", "/" and "//" have no directory above them
                if name := self.directories.get(directory):
                    return self.engines[name]
                directory = os.path.dirname(directory)
        _, extension = os.path.splitext(path)
        # Kinds of a settings file take precedence over built-in kinds.
        kinds = list(self.engines.values())[::-1]  # the built-in ones come first in `engines`
        for kind in kinds:
            if extension and extension in kind.extensions:
                return kind
        return next((kind for kind in kinds if interpreter in kind.interpreters), None)

    def warnings(self) -> list[str]:
        """Return a warning, in one line, for each setting that is valid but probably a mistake."""
        lines = [*self.renamed]
        if os.geteuid() == 0 and self.roots and self.runs_scripts == self.user:
            lines.append(
                f"script-user: scripts of the site run as {self.user}, as X-Switch itself does: they can end it,"
                " and ask it for every user's scripts; give them a separate user"
            )
        lines += [f"roots: there is no directory {root}" for root in self.roots if not os.path.isdir(root)]
        if self.trace and (reason := exposure_warning(self.trace)):
            lines.append(reason)
        if self.user_logs and (reason := directory_fault(self.user_logs)):
            lines.append(f"user-logs: {reason}")
        lines += unknown_names("users", self.users, find=pwd.getpwnam)
        lines += unknown_names("groups", self.groups, find=grp.getgrnam)
        lines += [
            f"[directories] {one_line(directory) or '/'}: it has no effect:"
            " name a directory below / by its absolute path"
            for directory in self.directories
            if not directory.startswith("/")
        ]
        lines += [
            f"[engines.{kind.name}] command: there is no program {kind.command[0]}"
            for kind in self.engines.values()
            if lacks_program(kind)
        ]
        return lines


def lacks_program(kind: EngineKind) -> bool:
    """Return whether the program that a settings file names for engines on this machine does not exist."""
    if kind.address or (kind.name in BUILT_IN and kind.command[0] == BUILT_IN[kind.name].command[0]):
        return False
    return shutil.which(kind.command[0]) is None


def unknown_names(table: str, names: Collection[str], find: Callable[[str], object]) -> list[str]:
    """Return a warning for each table of a user or group that does not exist in the system.

    table: "users" or "groups". find: looks a name up, and raises KeyError if it does not exist.
    """
    lines = []
    for name in names:
        try:
            find(name)
        except (KeyError, ValueError):  # ValueError: of a name with a NUL
            name = one_line(name)
            singular = table.removesuffix("s")
            lines.append(f"[{table}.{name}]: there is no {singular} {name}: its limits apply to nobody")
    return lines


DEFAULTS = Settings()

GENERAL_KEYS = keys_of(Settings)
ENGINE_KEYS = keys_of(EngineKind)
LIMIT_KEYS = {
    "cpu": Key(FROM_ZERO, "seconds of CPU time in an engine's life; 0: no limit"),
    "memory": Key(size(0), "addresses, in bytes; 0: no limit"),
    "processes": Key(FROM_ZERO, "processes and threads of the engine's user; 0: no limit"),
    "files": Key(FROM_ZERO, "open files; 0: no limit"),
    "file-size": Key(size(0), "bytes of each file that an engine writes; 0: no limit"),
}
ENGINE_TABLE = TableKind("a table", ENGINE_KEYS)
ENGINES = TableKind("tables: [engines.NAME]", others=(TEXT, ENGINE_TABLE))
TABLE_KEYS = {
    "limits": Key(TableKind("a table: [limits]", LIMIT_KEYS), "The kernel's limits for each engine (setrlimit)."),
    "engines": Key(ENGINES, "A language. Keys that the table omits keep the value of the built-in engine of that"
                   " name."),
    "directories": Key(TableKind("a table: [directories]", others=TABLE.others), """\
Each key is the absolute path of a directory, and its value the name of an engine. That engine runs every file in
the directory and below it. `[directories]` is stronger than extensions and first lines."""),
    "users": Key(USERS, "The limits of one user. A key that the table omits is looked up in the tables of the"
                 " user's groups, then among the general settings."),
    "groups": Key(GROUPS, "The limits of each user of a group. Of several groups of one user, the first in the file"
                  " that has the key counts."),
}  # fmt: skip
FILE_TABLE = TableKind("a table", {**GENERAL_KEYS, **TABLE_KEYS})


def from_toml(table: Mapping[str, object], where: str, base: Settings = DEFAULTS) -> Settings:
    """Convert a file's table to settings.

    where: how an error begins. base: the values of the settings that the table omits. Raises ConfigError.
    """
    values = by_field_name(FILE_TABLE.read_at(f"{where}:", table))
    engines = dict(BUILT_IN)
    for name, engine_table in values.pop("engines", {}).items():
        engines[name] = kind_from_table(name, engine_table, f"{where}: [engines.{name}]")
    directories = values.pop("directories", {})
    for directory, name in directories.items():
        if name not in engines:
            raise ConfigError(f"{where}: [directories] {directory}: no engine {name}{nearest(name, engines)}")
    return replace(
        base,
        engines=engines,
        directories={name.rstrip("/"): kind for name, kind in directories.items()},
        limits=base.limits._replace(**by_field_name(values.pop("limits", {}))),
        users=from_tables(values.pop("users", {})),
        groups=from_tables(values.pop("groups", {})),
        renamed=tuple(FILE_TABLE.renamed(f"{where}:", table)),
        **values,
    )


def kind_from_table(name: str, engine_table: Mapping[str, object], label: str) -> EngineKind:
    """Return the kind of engines of a table [engines.NAME]. label: how an error begins. Raises ConfigError."""
    kind = BUILT_IN.get(name) or EngineKind(name, ())
    if "command" in engine_table:
        kind = replace(kind, program="")  # another program than the one that ewe-xswitch builds
    kind = replace(kind, **by_field_name(engine_table))
    if kind.address:
        return far_kind(kind, engine_table, label)
    if not kind.command:
        raise ConfigError(
            f"{label}: command is missing: it names the program of the engine and its arguments"
        )
    if kind.connections > 1 and kind.protocol != "fastcgi":
        raise ConfigError(f'{label}: connections needs protocol = "fastcgi"')
    if "isolation" in engine_table and kind.protocol != "engine":
        raise ConfigError(f'{label}: isolation needs protocol = "engine"')
    if kind.preload is not None and not kind.command[-1].endswith(PRELOADING_ENGINES):
        if "preload" in engine_table:
            raise ConfigError(f"{label}: preload: only an engine in Python (.py) or Perl (.pl) can be forked")
        return replace(kind, preload=None)
    return kind


def far_kind(kind: EngineKind, engine_table: Mapping[str, object], label: str) -> EngineKind:
    """Return the kind of engines on another machine, with FAR_KEYS alone. Raises ConfigError for other keys.

    engine_table: [engines.NAME]. label: how an error begins.
    """
    for key in engine_table.keys() - {*FAR_KEYS}:
        raise ConfigError(f"{label}: {key} is set where the engines are, on {kind.address} (address)")
    return EngineKind(
        kind.name,
        extensions=kind.extensions,
        protocol="fastcgi",
        connections=kind.connections if "connections" in engine_table else FAR_CONNECTIONS,
        address=kind.address,
    )


def load(file: str | None, base: Settings = DEFAULTS) -> Settings:
    """Load a TOML file. Settings that it omits (all of them, if `file` is None) keep their value from `base`.

    Raises ConfigError.
    """
    if file is None:
        return base
    return from_toml(read_file(file), file, base)


def origins_in(file: str | None) -> dict[str, str]:
    """Return the keys that a file sets, each with the file's name; a table's keys are written `limits.cpu`.

    A key that the file calls by its former name has its present name here.
    """
    if file is None:
        return {}
    table = read_file(file)
    keys = [*map(FILE_TABLE.name_of, table), *(f"limits.{key}" for key in table.get("limits", ()))]
    for name, subtable in table.get("engines", {}).items():
        keys += (f"engines.{name}.{ENGINE_TABLE.name_of(key)}" for key in subtable)
    for tables in ("users", "groups"):
        keys += (
            f"{tables}.{name}.{key}" for name, subtable in table.get(tables, {}).items() for key in subtable
        )
    return dict.fromkeys(keys, file)


def write_copy(settings: Settings) -> int:
    """Write the settings into an unnamed file; return its descriptor. Another process reads it with read_copy().

    A message is too small for all settings: [directories] may have a line for each student and exercise.
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    values["engines"] = {
        name: {key.name: getattr(kind, key.name) for key in fields(kind)}
        for name, kind in settings.engines.items()
    }
    for tables in ("users", "groups"):
        values[tables] = {name: as_values(limits) for name, limits in values[tables].items()}
    descriptor = os.memfd_create("xswitch-settings", os.MFD_CLOEXEC)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(values, file)
    return descriptor


def read_copy(descriptor: int) -> Settings:
    """Return the settings in a file that write_copy() has made. The descriptor stays open."""
    values = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    engines = {}
    # JSON has lists in place of tuples
    for name, kind in values["engines"].items():
        lists = {key: tuple(value) for key, value in kind.items() if isinstance(value, list)}
        engines[name] = EngineKind(**{**kind, **lists})
    lists = {
        key: tuple(value) for key, value in values.items() if isinstance(value, list) and key != "limits"
    }
    for tables in ("users", "groups"):
        values[tables] = {name: UserLimits(**limits) for name, limits in values[tables].items()}
    return Settings(**{**values, **lists, "limits": EngineLimits(*values["limits"]), "engines": engines})
