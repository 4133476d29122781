"""The limits of users in the main process, which may not read the system's groups itself."""

from __future__ import annotations

from ewe.bounded import BoundedDict
from ewe.xswitch.settings import Settings
from ewe.xswitch.user_limits import UserLimits

MAX_USERS = 5000  # users that the main process remembers


class LimitsOfUsers:
    """The limits of each user, for the main process: suexecme reports a user's groups with each script."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.groups: BoundedDict[str, tuple[str, ...]] = BoundedDict(MAX_USERS)
        self.cached_limits: BoundedDict[str, UserLimits] = BoundedDict(MAX_USERS)

    def note_groups(self, user: str, groups: tuple[str, ...]) -> UserLimits:
        """Note the groups of a user that have a table; return the user's limits."""
        if groups != self.groups.get(user, ()):
            self.groups[user] = groups
            self.cached_limits.pop(user, None)
        return self.limits_of(user)

    def limits_of(self, user: str) -> UserLimits:
        """Return the limits of a user."""
        limits = self.cached_limits.get(user)
        if limits is None:
            limits = self.cached_limits[user] = self.settings.user_limits(user, self.groups.get(user, ()))
        return limits

    def change_settings(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self.cached_limits.clear()
