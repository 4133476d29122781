"""Commands and settings that need Linux, and the container that has it for other systems.

The server itself runs on every POSIX system: streams/descriptor_set.py, gateway/exits.py and gateway/true_names.py
stand in for the calls that only Linux has. X-Switch, LibCGI, the database daemon, the grader and the lab's
measurements use /proc, prctl(2), epoll(7) and more, without a substitute. They say so here, in one line, before
they begin.
"""

from __future__ import annotations

import os
import shlex
import sys

SYSTEM: str = sys.platform
CLONE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def needs_linux(what: str, in_container: str) -> str:
    """Return one line that says that something needs Linux, and how to run a command there; "" on Linux.

    what: the subject of the line. in_container: the command line to run in the container of ewe's Dockerfile. Its
    paths are those of the person's directory.
    """
    if SYSTEM == "linux":
        return ""
    is_clone = os.path.isfile(os.path.join(CLONE, "Dockerfile"))
    directory = shlex.quote(CLONE) if is_clone else "CLONE"
    port = "-p 127.0.0.1:4000:4000 " if in_container.startswith("ewe ") else ""
    hint = "" if is_clone else " (CLONE: a clone of ewe)"
    return (
        f"{what} needs Linux: run it in a container, docker build -t ewe {directory} && "
        f'docker run --rm -it --init -v "$PWD:/work" {port}ewe {in_container}{hint}'
    )
