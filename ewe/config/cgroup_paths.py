"""Where the cgroups of this process are: the mounted hierarchies, and the process's place in each.

cgroups(7): version 2 has one hierarchy for all controllers. Version 1 has one for each controller. A system may use
both. A container often sees its own cgroup as the root of the mount.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


def mount_of(proc: str, controller: str = "") -> str:
    """Return where cgroups v2 are mounted, or those of a controller of version 1; "" if nowhere.

    proc: where the system describes this process, /proc.
    """
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8") as file:
            for line in file:
                # proc(5) describes the fields; \040 is a space. A field may be empty: the source of some tmpfs.
                before, _, after = line.rstrip("\n").partition(" - ")
                kind, _, options = after.split(" ")[:3]
                version_1 = kind == "cgroup" and controller in options.split(",")
                if version_1 if controller else kind == "cgroup2":
                    return before.split()[4].replace("\\040", " ")
    except (OSError, ValueError, IndexError):
        pass
    return ""


def cgroup_of(proc: str, controller: str = "") -> str:
    """Return the path of this process's cgroup below the mount.

    proc: the directory of this process in /proc. controller: one of cgroup version 1; "": the cgroup of version 2.
    """
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            for line in file:
                number, names, path = line.rstrip("\n").split(":", 2)
                version_1 = controller in names.split(",")
                if version_1 if controller else (number, names) == ("0", ""):
                    return path
    except (OSError, ValueError):
        pass
    return ""


def cgroups_above(proc: str, controller: str = "") -> Iterator[str]:
    """Yield the directory of this process's cgroup, then of each ancestor: its limits hold, too.

    A directory may be absent: a container may have the host's name of its cgroup, and see it as the root of the
    mount. controller: one of cgroup version 1; "": version 2.
    """
    mount = mount_of(proc, controller)
    at = os.path.normpath(f"{mount}/{cgroup_of(proc, controller)}")
    while mount and (at == mount or at.startswith(f"{mount}/")):
        yield at
        at = os.path.dirname(at)
