"""A model with a student's mistake, for the scene `fork-processes`: the parent never reads its children's status.

A process that has ended keeps its number and its exit status until its parent asks for them by wait(2). Until then
the kernel shows it as a zombie. A server that never asks has one more zombie for each connection, until no number
is left and fork(2) fails.

ewe's own model (ewe/processors/fork.py) is woken by SIGCHLD, and reaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.fork import Fork

if TYPE_CHECKING:
    from ewe.config.settings import Config


class ForkWithoutWait(Fork):
    """Forks a child for each connection, and forgets it."""

    name = "fork-without-wait"

    @classmethod
    def description(cls, config: Config) -> str:
        return "a process per connection, and no wait()"

    def reap(self) -> None:
        """Read the status of the children only when the server stops: then all must be gone."""
        if self.stopping:
            super().reap()
