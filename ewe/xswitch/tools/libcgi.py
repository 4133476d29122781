"""Builds the host of LibCGI libraries: the engine that runs the libraries of one user (ewe/libcgi/host.c).

The host is compiled together with the shim that ewe loads itself. The compiler runs once for each version of the
source: an empty file, named by a hash of the source, shows from which version the host was built.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ewe.config.linux import needs_linux
from ewe.config.messages import Failure
from ewe.libcgi.build import DIRECTORY, HASH_DIGITS, SOURCES, TARGET, BuildError, compile_c, shim_file
from ewe.libcgi.build import build as build_shim
from ewe.xswitch.engine_kinds import LIBCGI_PROGRAM

HOST = DIRECTORY / "host.c"


def build_all() -> str:
    """Build LibCGI's shim, and the host that X-Switch runs, unless they are built; return the text to print.

    Raises Failure: not on Linux, or a BuildError.
    """
    # in_container: the command that the message proposes
    if reason := needs_linux("LibCGI", in_container="ewe --host 0.0.0.0 4000"):
        raise Failure(reason)
    return f"built: {build_shim()}\nbuilt: {build()}\n"


def build() -> str:
    """Build the host, an engine program, unless it exists; return its path. Raises BuildError."""
    program = Path(LIBCGI_PROGRAM)
    version_file = file_of_version()
    if program.exists() and version_file.exists():
        return LIBCGI_PROGRAM
    try:
        for directory in (program.parent, TARGET):
            directory.mkdir(parents=True, exist_ok=True)
        for directory in (program.parent, program.parent.parent):
            directory.chmod(0o755)  # every user of an engine must be able to enter it
    except OSError as reason:
        raise BuildError(
            f"cannot write {reason.filename}: {reason.strerror}; run this command as its owner"
        ) from None
    # -rdynamic: the libraries find the shim's functions in the host
    compile_c(program, (HOST, *(DIRECTORY / name for name in SOURCES)), ("-rdynamic",))
    for old_version_file in TARGET.glob("host-*"):
        old_version_file.unlink(missing_ok=True)
    version_file.touch()
    return LIBCGI_PROGRAM


def file_of_version() -> Path:
    """Return the path of an empty file that exists if the host was built from the current source."""
    digest = hashlib.sha256(shim_file().name.encode() + HOST.read_bytes())
    return TARGET / f"host-{digest.hexdigest()[:HASH_DIGITS]}"
