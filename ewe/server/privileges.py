"""Privileges: give up root, after the sockets and the logs are open."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import pwd


def become(user: str | None, group: str | None) -> None:
    """Give up root: take on a user, a group and the user's supplementary groups. Raises StartError."""
    if user is None and group is None:
        return
    account, gid = look_up(user, group)
    try:
        if account is None:
            os.setgroups([gid])
        else:
            os.initgroups(account.pw_name, gid)
        os.setgid(gid)
        if account is not None:
            if sys.platform == "linux":
                # Late: it needs ctypes, which a server without another account need not load
                from ewe.xswitch.process import leave_session_keyring

                leave_session_keyring()
            os.setuid(account.pw_uid)
    except OSError as reason:  # such as EPERM, in a container without the capability SETUID
        raise StartError(f"root cannot become {user or group}: {reason.strerror} (user, group)") from None


def look_up(user: str | None, group: str | None) -> tuple[pwd.struct_passwd | None, int]:
    """Return the account and the group number for become(). Raises StartError if become() would fail."""
    import grp
    import pwd

    if user is None and group is None:
        return None, os.getegid()
    if os.geteuid() != 0:
        raise StartError("only root can become another user or group; start as root (user, group)")
    try:
        account = pwd.getpwnam(user) if user is not None else None
    except KeyError:
        raise StartError(f"there is no user {user!r}; name one of /etc/passwd (user)") from None
    try:
        if group is not None:
            return account, grp.getgrnam(group).gr_gid
    except KeyError:
        raise StartError(f"there is no group {group!r}; name one of /etc/group (group)") from None
    assert account is not None  # `user` or `group` is given
    return account, account.pw_gid


def owner_of(user: str | None, group: str | None) -> tuple[int, int] | None:
    """Return the (uid, gid) that become() will take on; None if it changes nothing. Raises StartError.

    The uid is -1 if only the group changes; os.chown() then leaves the user unchanged.
    """
    if os.geteuid() != 0 or (user is None and group is None):
        return None
    account, number = look_up(user, group)
    return account.pw_uid if account is not None else -1, number
