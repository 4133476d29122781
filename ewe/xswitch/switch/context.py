"""What the parts of the main process share: settings, event loop, log, counters, scheduler, and killing an engine.

Engines, connections and exchanges are given this object, not the whole main process: what is not here, they cannot
use. The arrows between the parts then go one way:

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
from ewe.xswitch.switch.loop import Loop
from ewe.xswitch.switch.scheduler import Scheduler
from ewe.xswitch.switch.spool import SpoolSpace
from ewe.xswitch.user_logs import UserLogs

# A web server may take nothing of a response, or send nothing of a body, for this long.
STALLED_SECONDS = 300.0


class Context:
    """What the parts share.

    kill_engine: has suexecme kill the process with this pid, and everything that it has left behind.
    """

    def __init__(
        self,
        settings: Settings,
        loop: Loop,
        log: ErrorLog,
        scheduler: Scheduler[Any, Any],
        kill_engine: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.log = log
        self.scheduler = scheduler
        self.kill_engine = kill_engine
        self.counters: Counter[str] = scheduler.counters
        self.spool_space = SpoolSpace(settings)
        self.user_logs = UserLogs()
        self.stopping = False
        self.minute = 0
        self.error_bytes: Counter[str] = Counter()  # user -> characters of standard error in this minute

    def change_settings(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self.settings = self.scheduler.settings = self.spool_space.settings = settings
        self.user_logs.clear()

    def say(self, user: str, message: str, level: str = "warning") -> None:
        """Log what concerns a user's script, and let the user know."""
        self.log.write(level, f"{user or '-'} {message}")
        self.user_logs.write(user, message)

    def say_error(self, user: str, message: str) -> None:
        """Log a line of standard error, unless its user has written more than max-errors in this minute."""
        minute = int(time.monotonic() // 60)
        if minute != self.minute:
            self.minute = minute
            self.error_bytes.clear()
        before = self.error_bytes[user]
        self.error_bytes[user] += len(message)
        most = self.settings.max_errors
        if self.error_bytes[user] <= most:
            self.say(user, message)
        elif before <= most:
            self.say(
                user, f"standard error: more than {most} bytes in a minute; no more of it until the next"
            )
