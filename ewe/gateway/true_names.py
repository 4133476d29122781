"""True names: the path of an open file, without symbolic links, on every system.

Whether a file may be sent depends on where it really lies. A check by name is not enough: a link may be exchanged
between the check and the use. ewe therefore asks about the open file:

    Linux             readlink(/proc/self/fd/N)           the kernel knows the path of each open file
    macOS             fcntl(N, F_GETPATH)                 the same
    neither of them   os.path.realpath(name), and stat    the path counts only if the open file lies there

The last way resolves the name again. If it leads to another file than the open one, a link was exchanged meanwhile,
and the file has no name that can be trusted.
"""

from __future__ import annotations

import errno
import os

# Flags to open a file only for its name. Without O_PATH, this fails for a file that may not be read.
NAME_ONLY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
MAX_PATH_BYTES = 1024  # MAXPATHLEN of macOS: F_GETPATH fills a buffer of this size


def true_name(descriptor: int, name: str) -> str:
    """Return the path of an open file. name: the path by which the file was opened.

    Raises OSError if only `name` can show the path, and it leads to another file now.
    """
    try:
        # The kernel appends this text if the name was removed or replaced after the file was opened. The checks
        # need the name itself. A file whose own name ends so is checked under the shorter name.
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        pass
    import fcntl

    if hasattr(fcntl, "F_GETPATH"):
        path = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(MAX_PATH_BYTES))
        return os.fsdecode(path.partition(b"\0")[0])
    real = os.path.realpath(name)
    if not os.path.samestat(os.lstat(real), os.fstat(descriptor)):
        raise OSError(errno.ESTALE, "exchanged for another file while it was opened", name)
    return real


def real_path(path: str) -> str:
    """Return a path of the settings as true_name() would: without links, in the file system's own spelling.

    macOS takes /Users/Ada/Sites for /Users/ada/sites. If the settings had one spelling and the kernel another,
    every file would seem to lie outside of the document root.
    """
    real = os.path.realpath(path)
    import fcntl

    if not hasattr(fcntl, "F_GETPATH"):
        return real
    try:
        descriptor = os.open(real, NAME_ONLY_FLAGS)
    except OSError:  # the file does not exist yet, or may not be read
        return real
    try:
        return true_name(descriptor, real)
    finally:
        os.close(descriptor)


def name_of(descriptor: int) -> str:
    """Return a path that opens the file of a descriptor, although another file may have its name meanwhile.

    On macOS, files that are opened by this path share their position: read them with os.pread().
    """
    return f"/proc/self/fd/{descriptor}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{descriptor}"
