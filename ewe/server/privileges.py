"""Who the server is: giving up root, once sockets and logs are open."""

from __future__ import annotations

import os

from ewe.listener import StartError


def become(user: str | None, group: str | None) -> None:
    """Give up root for a user and a group, supplementary groups included. Raises StartError."""
    if user is None and group is None:
        return
    import grp
    import pwd

    if os.geteuid() != 0:
        raise StartError("only root can become another user or group (user, group)")
    try:
        account = pwd.getpwnam(user) if user is not None else None
        number = grp.getgrnam(group).gr_gid if group is not None else account.pw_gid if account else 0
    except KeyError as reason:
        raise StartError(f"{str(reason).strip(chr(34))} (user, group)") from None
    if account is None:
        os.setgroups([number])
    else:
        os.initgroups(account.pw_name, number)
    os.setgid(number)
    if account is not None:
        os.setuid(account.pw_uid)
