"""The latest messages about each user's scripts, in memory: for the action `log`, also without `user-logs`.

The main process writes all these messages itself, so it needs no right to read a file of a user.
"""

from __future__ import annotations

import time
from collections import deque

MAX_USERS = 200  # users whose messages are kept
MAX_LINES = 100  # of one user
MAX_LINE_CHARS = 400  # of one message


class RecentLines:
    """The messages of each user, each with the seconds since the epoch."""

    def __init__(self) -> None:
        # The user with the latest message comes last.
        self.of_user: dict[str, deque[tuple[float, str]]] = {}

    def add(self, user: str, message: str) -> None:
        """Keep a message. user: "" if the message belongs to no user; it is then not kept."""
        if not user:
            return
        lines = self.of_user.pop(user, None) or deque(maxlen=MAX_LINES)
        self.of_user[user] = lines
        if len(self.of_user) > MAX_USERS:
            del self.of_user[next(iter(self.of_user))]  # the user whose latest message is the oldest
        if len(message) > MAX_LINE_CHARS:
            message = message[: MAX_LINE_CHARS - 1] + "…"
        lines.append((time.time(), message))

    def lines_of(self, user: str) -> list[tuple[float, str, str]]:
        """Return (seconds, user, message) of a user, or of all users if `user` is "", the oldest first."""
        users = [user] if user else list(self.of_user)
        lines = [(at, name, text) for name in users for at, text in self.of_user.get(name, ())]
        return sorted(lines, key=lambda line: line[0])[-MAX_LINES:]  # by time; only the latest
