"""What one user may use: the tables [users.NAME] and [groups.NAME] of X-Switch's settings.

    [groups.students]
    engines = 2
    memory = "200m"
    [users.alice]
    engines = 4                   # alice, a student, has 4 engines and 200 MB

Each key is looked up on its own: in the user's table, then in the tables of the user's groups in the order of the
file, then in the general settings. The main process and the kernel enforce the keys:

    engines, requests, time-limit     the main process (switch/scheduler.py, switch/engine.py)
    cpu, file-size                    the kernel, for each engine: setrlimit(2)
    private                           the kernel, for all engines of the user: privileged/namespaces.py
    memory, processes, cpu-share      the kernel, for all engines of the user together: cgroups v2
                                      (privileged/cgroups.py). Without cgroups, memory and processes become limits
                                      of each engine (setrlimit), and cpu-share has no effect
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ewe.config.setting_types import BOOL, size
from ewe.config.table_kinds import TableKind
from ewe.config.tables import by_field_name, keys_of, setting
from ewe.xswitch.setting_types import COUNT, FROM_ZERO, NAME, SECONDS, SHARE


@dataclass(frozen=True)
class UserLimits:
    """The limits of one user or group. None: the table does not have the key."""

    engines: int | None = setting(None, COUNT, "how many engines may run, instead of `max-engines-per-user`")
    requests: int | None = setting(
        None, COUNT, "how many requests may run or wait at once; above it 503 with Retry-After"
    )
    cpu: int | None = setting(None, FROM_ZERO, "seconds of CPU time in an engine's life; 0: no limit")
    cpu_share: int | None = setting(
        None, SHARE, "percent of one CPU that all engines have together; needs cgroups"
    )
    memory: int | None = setting(
        None, size(0), "bytes of all engines together (cgroups), or addresses of each; 0: no limit"
    )
    processes: int | None = setting(
        None, FROM_ZERO, "processes and threads of all engines (cgroups), or of the user; 0: no limit"
    )
    file_size: int | None = setting(
        None, size(0), "bytes of each file that the user's engines write; 0: no limit"
    )
    private: bool | None = setting(
        None, BOOL, "give the user's engines a private file system, instead of the general `private`"
    )
    time_limit: float | None = setting(
        None, SECONDS, "how long a request may take, instead of the general `time-limit`"
    )


NO_LIMITS = UserLimits()
USER_LIMIT_KEYS = keys_of(UserLimits)
USERS = TableKind("tables: [users.NAME]", others=(NAME, TableKind("a table", USER_LIMIT_KEYS)))
GROUPS = TableKind("tables: [groups.NAME]", others=(NAME, TableKind("a table", USER_LIMIT_KEYS)))


def from_tables(tables: Mapping[str, Mapping[str, object]]) -> dict[str, UserLimits]:
    """Return the limits by name. tables: a value of USERS or GROUPS."""
    return {name: UserLimits(**by_field_name(table)) for name, table in tables.items()}


def merge_first_wins(tables: Iterable[UserLimits]) -> UserLimits:
    """Return one table: each limit has the value of the first table that sets it."""
    values: dict[str, object] = {}
    for table in tables:
        for key, value in vars(table).items():
            if value is not None:
                values.setdefault(key, value)
    return UserLimits(**values) if values else NO_LIMITS  # type: ignore[arg-type]
