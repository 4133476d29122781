"""Privileges: give up root, after the sockets and the logs are open."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from ewe.streams.listener import StartError

if TYPE_CHECKING:
    import pwd

# keyctl(2), for which the C library has no function: its number on 64-bit machines, and its first argument
KEYCTL_NUMBERS = {
    "x86_64": 250, "aarch64": 219, "loongarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280,
}  # fmt: skip
JOIN_SESSION_KEYRING = 1


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
            leave_session_keyring()
            os.setuid(account.pw_uid)
    except OSError as reason:  # such as EPERM, in a container without the capability SETUID
        raise StartError(
            f"root cannot become {user or group}: {reason.strerror or reason} (user, group)"
        ) from None


def leave_session_keyring() -> None:
    """Join a new, empty session keyring (keyrings(7)). Raises OSError.

    The session keyring of root may have keys, and each process that has the keyring may read them, also as another
    user. A system without keyrings has none to leave, nor has a container that forbids the call.
    """
    number = (
        KEYCTL_NUMBERS.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
    )
    if number is None:
        return
    try:
        import ctypes  # here alone: a server that stays its user's does not need it
    except ImportError:
        raise OSError(errno.ENOSYS, "the session keyring cannot be left: Python lacks ctypes") from None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None) < 0:
        error = ctypes.get_errno()
        if error not in (errno.ENOSYS, errno.EPERM):
            # EDQUOT: root has too many keys
            raise OSError(error, f"{os.strerror(error)}: session keyring, see sysctl kernel.keys")


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
