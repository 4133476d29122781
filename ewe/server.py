"""The server: opens logs and sockets, and runs a model, in this process or in many.

serve() is all that the command calls. ewe.worker runs a processor in one process; ewe.supervisor keeps
several such processes alive; a Blueprint is what both make processors from, and what HUP renews.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger, systemd
from ewe.listener import StartError, close_sockets, open_sockets, url
from ewe.processors.base import Processor, UnknownModel, find
from ewe.site import Site
from ewe.supervisor import Supervisor
from ewe.worker import Worker

if TYPE_CHECKING:
    import socket

    from ewe.config import Config

__all__ = ["Blueprint", "StartError", "UnknownModel", "serve"]

RESERVE = 64  # descriptors that are not for connections
# Settings that only a restart puts into force; those of the second line only where there is one process.
FIXED = ("host", "port", "bind", "backlog", "concurrency", "pid_file", "user", "group")
FIXED_IN_ONE = ("workers", "poolthreads", "parking", "loop", "connections")


def serve(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Serve until told to stop; return the exit status. Raises StartError, UnknownModel.

    reread: returns the configuration from its sources once more (HUP); raises ValueError if it is bad.
    """
    blueprint = Blueprint(config, reread)
    raise_descriptor_limit()
    addresses = config.bind or systemd.inherited(os.environ) or (f"{bracketed(config.host)}:{config.port}",)
    sockets = open_sockets(addresses, config.backlog, config.write_timeout)

    def ready() -> None:
        banner(sockets, blueprint)
        systemd.notify("READY=1", f"MAINPID={os.getpid()}")

    try:
        write_pid(config.pid_file)
        become(config.user, config.group)
        if blueprint.supervised:
            return Supervisor(blueprint, sockets).run(ready)
        return Worker(blueprint, sockets, "0").run(ready)
    finally:
        close_sockets(sockets)
        remove_pid(config.pid_file)


class Blueprint:
    """What workers are made from: a configuration, its model and its site. Raises StartError, UnknownModel."""

    def __init__(self, config: Config, reread: Callable[[], Config] | None = None) -> None:
        self.reread = reread
        self.model = find(config.concurrency)
        self.take(config)
        self.workers = (config.workers or self.model.workers) if self.model.supervised else 1
        self.supervised = self.workers > 1 or (self.model.supervised and self.model.many_processes)

    def take(self, config: Config) -> None:
        """Open the logs and build the site of a configuration; if that fails, nothing has changed."""
        if not os.path.isdir(config.documentroot):
            raise StartError(f"document root {config.documentroot!r} is not a directory (documentroot)")
        try:
            self.words = self.model.words(config)
            logger.open_logs(config.logfile, config.loglevel, config.access_log, config.log_format)
        except ImportError as reason:
            raise StartError(f"loop {config.loop!r}: {reason}; install it, or choose another") from None
        except OSError as reason:
            raise StartError(f"cannot write the log {reason.filename!r}: {reason.strerror}") from None
        except ValueError as reason:
            raise StartError(str(reason)) from None
        try:  # built once: workers inherit it, and the modules that it needs
            self.site = Site(config, holds_idle=self.model.idle_holds(config))
        except ValueError as reason:  # a certificate
            raise StartError(str(reason)) from None
        self.config = config

    def make(self) -> Processor:
        """Return a new processor."""
        processor = self.model(self.site, self.config)
        limit_to_descriptors(processor)
        return processor

    def renew(self) -> bool:
        """Read the configuration again. False if it cannot be used: the log says why, and the old one stays."""
        assert self.reread is not None
        systemd.notify("RELOADING=1")
        try:
            self.take(self.with_fixed(self.reread()))
        except Exception as reason:  # a bad configuration must not end a server that runs
            logger.errors.error(f"the configuration cannot be used, the old one stays: {reason}")
            return False
        finally:
            systemd.notify("READY=1")
        logger.errors.info(f"the configuration was read again ({self.config.file or 'no file'})")
        return True

    def with_fixed(self, fresh: Config) -> Config:
        """Return a configuration with the settings that stay as they are until a restart."""
        fixed = FIXED if self.supervised else FIXED + FIXED_IN_ONE
        kept = {
            name: getattr(self.config, name)
            for name in fixed
            if getattr(fresh, name) != getattr(self.config, name)
        }
        if kept:
            names = ", ".join(name.replace("_", "-") for name in kept)
            logger.errors.warning(f"{names}: a change needs a restart")
        return fresh.replace("before the reload", **kept)


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def banner(sockets: list[socket.socket], blueprint: Blueprint) -> None:
    """Say in one line where the server is, which model it runs, and how to stop it."""
    where = " ".join(url(sock, "http" if blueprint.site.tls is None else "https") for sock in sockets)
    words, workers = blueprint.words, blueprint.workers
    count = f", {workers} workers" if workers > 1 and "processes" not in words else ""
    print(f"ewe: {where} ({words}{count}; pid {os.getpid()}; Ctrl-C stops)", file=sys.stderr, flush=True)


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # a system whose "unlimited" is not what it grants


def limit_to_descriptors(processor: Processor) -> None:
    """Keep a model's ceiling below the descriptors there are, if it holds its connections in one process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and not processor.many_processes:
        processor.ceiling = min(processor.ceiling, max(soft - RESERVE, 1))


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
