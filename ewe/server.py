"""The server: opens logs and sockets, and runs a model, in this process or in many.

serve() is all that the command calls. ewe.worker runs a processor in one process; ewe.supervisor keeps
several such processes alive.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

from ewe import logger
from ewe.listener import StartError, close_sockets, open_sockets, url
from ewe.processors.base import Processor, UnknownModel, find
from ewe.site import Site
from ewe.supervisor import Supervisor
from ewe.worker import Worker

if TYPE_CHECKING:
    import socket

    from ewe.config import Config

__all__ = ["StartError", "UnknownModel", "serve"]

RESERVE = 64  # descriptors that are not for connections


def serve(config: Config) -> int:
    """Serve until told to stop; return the exit status. Raises StartError, UnknownModel."""
    model = find(config.concurrency)
    if not os.path.isdir(config.documentroot):
        raise StartError(f"document root {config.documentroot!r} is not a directory (documentroot)")
    try:
        words = model.words(config)
        logger.open_logs(config.logfile, config.loglevel, config.access_log, config.log_format)
    except ImportError as reason:
        raise StartError(f"loop {config.loop!r}: {reason}; install it, or choose another (loop)") from None
    except OSError as reason:
        raise StartError(f"cannot write the log {reason.filename!r}: {reason.strerror}") from None
    except ValueError as reason:
        raise StartError(str(reason)) from None
    raise_descriptor_limit()
    addresses = config.bind or (f"{bracketed(config.host)}:{config.port}",)
    sockets = open_sockets(addresses, config.backlog, config.write_timeout)
    workers = (config.workers or model.workers) if model.supervised else 1

    site = Site(config, holds_idle=model.idle_holds(config))  # once: workers inherit it, its modules too

    def make() -> Processor:
        processor = model(site, config)
        limit_to_descriptors(processor)
        return processor

    try:
        if workers == 1 and not (model.supervised and model.many_processes):
            return Worker(make(), sockets, config, "0").run(lambda: banner(sockets, words, workers))
        return Supervisor(make, sockets, config, workers).run(lambda: banner(sockets, words, workers))
    finally:
        close_sockets(sockets)


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def banner(sockets: list[socket.socket], words: str, workers: int) -> None:
    """Say in one line where the server is, which model it runs, and how to stop it."""
    where = " ".join(url(sock) for sock in sockets)
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
