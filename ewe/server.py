"""The server: opens the sockets, becomes who it is to be, and runs a model, in this process or in many.

serve() is all that the command calls. ewe.worker runs a processor in one process; ewe.supervisor keeps
several such processes alive; both make processors from a Blueprint.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ewe import descriptors, logger, systemd
from ewe.blueprint import Blueprint
from ewe.identity import become
from ewe.kinds import is_local
from ewe.listener import StartError, close_sockets, open_sockets, server_name, url
from ewe.processors.base import UnknownModel, find
from ewe.supervisor import Supervisor
from ewe.worker import Worker

if TYPE_CHECKING:
    import socket

    from ewe.config import Config

__all__ = ["StartError", "UnknownModel", "serve"]

# Modules that a worker may come to need, on a request or with other settings
FEATURES = "cgi", "fastcgi", "indexes", "mediatypes", "pages", "users", "xswitch"
LATER = (
    *(f"ewe.features.{name}" for name in FEATURES), "ewe.tls", "difflib", "grp", "json", "mimetypes", "pwd",
    "random", "select", "subprocess", "tempfile", "tomllib", "traceback",
)  # fmt: skip


def serve(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Serve until told to stop; return the exit status. Raises StartError, UnknownModel.

    reread: returns the configuration from its sources once more (HUP); raises ValueError if it is bad.
    """
    if find(config.concurrency).has_companion and config.xswitch is None:
        return serve_with_companion(config, reread)
    blueprint = Blueprint(config, reread)
    with opened(blueprint) as sockets:
        if config.user or config.group:
            load_all()
        become(config.user, config.group)
        warn_of_root(config, sockets)
        warn_of_sources(config)
        return run(blueprint, sockets)


def serve_with_companion(config: Config, reread: Callable[[], Config] | None) -> int:
    """Serve with an X-Switch of our own. It starts programs as their owners: only the workers give up root."""
    from ewe.companion import Companion

    companion = Companion(config)
    if companion.user:
        load_all()
    try:
        completed = companion.completed
        blueprint = Blueprint(completed(config), (lambda: completed(reread())) if reread else None, companion)
        with opened(blueprint) as sockets:
            return run(blueprint, sockets)
    finally:
        companion.close()


def load_all() -> None:
    """Import what is imported when it is first needed: who gives up root may not enter where ewe and Python lie."""
    for name in LATER:
        importlib.import_module(name)


@contextmanager
def opened(blueprint: Blueprint) -> Iterator[list[socket.socket]]:
    """Open the listening sockets and write the pid file; remove what has a name in the end. Raises StartError."""
    config = blueprint.config
    descriptors.allow_all()
    addresses = config.bind or systemd.inherited(os.environ) or (f"{bracketed(config.host)}:{config.port}",)
    sockets = open_sockets(addresses, config.backlog, config.write_timeout)
    try:
        write_pid(config.pid_file)
        yield sockets
    finally:
        close_sockets(sockets)
        remove_pid(config.pid_file)


def run(blueprint: Blueprint, sockets: list[socket.socket]) -> int:
    """Run the model, in this process or in workers; return the exit status."""

    def ready() -> None:
        banner(sockets, blueprint)
        systemd.notify("READY=1", f"MAINPID={os.getpid()}")

    if blueprint.supervised:
        return Supervisor(blueprint, sockets).run(ready)
    return Worker(blueprint, sockets, "0").run(ready)


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def banner(sockets: list[socket.socket], blueprint: Blueprint) -> None:
    """Say in one line where the server is, which model it runs, and how to stop it."""
    where = " ".join(url(sock, "http" if blueprint.site.tls is None else "https") for sock in sockets)
    words, workers = blueprint.words, blueprint.workers
    count = f", {workers} workers" if workers > 1 and "processes" not in words else ""
    print(f"ewe: {where} ({words}{count}; pid {os.getpid()}; Ctrl-C stops)", file=sys.stderr, flush=True)


def write_pid(path: str | None) -> None:
    """Write our process number, unless another server that runs did. Raises StartError."""
    if path is None:
        return
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            other = file.read(20).strip()
        if other.isdecimal() and os.path.exists(f"/proc/{other}") and int(other) != os.getpid():
            raise StartError(f"pid file {path!r} names process {other}, which runs (pid-file)")
    except FileNotFoundError:
        pass
    except OSError as reason:
        raise StartError(f"pid file {path!r}: {reason.strerror}") from None
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as reason:
        raise StartError(f"pid file {path!r}: {reason.strerror}") from None


def remove_pid(path: str | None) -> None:
    """Remove the pid file, if it is ours."""
    if path is None:
        return
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            ours = file.read(20).strip() == str(os.getpid())
        if ours:
            os.unlink(path)
    except OSError:
        pass


def warn_of_root(config: Config, sockets: list[socket.socket]) -> None:
    """Say that root runs no programs for a network, unless it is told to (ewe.features.cgi)."""
    if os.geteuid() != 0 or config.user is not None or not os.path.isdir(config.cgi_path):
        return
    if not all(is_local(server_name(sock)[0]) for sock in sockets):
        logger.errors.warning(
            "root runs no programs for a network: --user NAME runs them as somebody else, --user root as root"
        )


def warn_of_sources(config: Config) -> None:
    """Say that what is no program below cgi-path is a file like others (EWE section 3.3), where URLs lead to it."""
    root, programs = os.path.realpath(config.documentroot), os.path.realpath(config.cgi_path)
    if os.path.isdir(programs) and programs.startswith(root.rstrip("/") + "/"):
        logger.errors.warning(
            f"cgi-path {programs} lies in the document root: "
            "a program there that is not executable is sent as a file"
        )
