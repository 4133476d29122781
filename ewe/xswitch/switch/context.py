"""The object that all parts of the main process share: settings, loop, log, counters, scheduler, killing engines.

Engines, connections and exchanges get this object, not the whole main process. They can therefore use nothing else
of it. The arrows between the parts then go one way:

    main --> web_server_connection --> exchange          main creates all parts and passes the requests on
    main --> engine_starter --> engine --> exchange      exchange knows its neighbours only by protocols
    each of them --> context --> scheduler               the scheduler knows engines and exchanges by protocols
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ewe.logger import ErrorLog
from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.recent_lines import RecentLines
from ewe.xswitch.switch.scheduler import Scheduler
from ewe.xswitch.switch.spool import SpoolSpace
from ewe.xswitch.switch.trace import SwitchTrace
from ewe.xswitch.user_logs import UserLogs

# How long a web server may accept nothing of a response, or send nothing of a body.
STALLED_SECONDS = 300.0


class Context:
    """The objects and counters that all parts of the main process share.

    kill_engine: makes suexecme kill the process with this pid, and its leftover processes.
    """

    def __init__(
        self,
        settings: Settings,
        loop: EventLoop,
        log: ErrorLog,
        scheduler: Scheduler[Any, Any],
        kill_engine: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.log = log
        self.scheduler = scheduler
        self.kill_engine = kill_engine
        self.counters: Counter[str] = scheduler.counters  # event -> its number so far, for the status
        self.spool_space = SpoolSpace(settings)  # counts the bytes of all spooled responses
        self.user_logs = UserLogs()  # the open log files of users (setting `user-logs`)
        self.recent_lines = RecentLines()  # the latest messages about each user's scripts (action `log`)
        self.trace: SwitchTrace | None = None  # None: no events are written (setting `trace`)
        self.is_stopping = False  # no more requests are accepted
        self.current_minute = 0  # the minute of the monotonic clock for which `error_chars` counts
        self.error_chars: Counter[str] = Counter()  # user -> characters of standard error in this minute

    def change_settings(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self.settings = self.scheduler.settings = self.spool_space.settings = settings
        self.scheduler.limits.change_settings(settings)
        self.scheduler.resources.settings = settings
        self.user_logs.clear()

    def log_for_user(self, user: str, message: str, level: str = "warning") -> None:
        """Log a message about a user's script, also in the user's log."""
        self.log.write(level, f"{user or '-'} {message}")
        self.user_logs.write(user, message)
        self.recent_lines.add(user, message)

    def log_error_line(self, user: str, message: str) -> None:
        """Log a line of standard error, unless its user has written more than max-errors in this minute.

        Characters count as bytes here: to encode each line again would cost more than the difference is worth.
        """
        minute = int(time.monotonic() // 60)
        if minute != self.current_minute:
            self.current_minute = minute
            self.error_chars.clear()
        chars_before = self.error_chars[user]
        self.error_chars[user] += len(message)
        limit = self.settings.max_errors
        if self.error_chars[user] <= limit:
            self.log_for_user(user, message)
        elif chars_before <= limit:
            self.log_for_user(
                user,
                f"standard error: more than {limit} characters in a minute; no more of it until the next",
            )
