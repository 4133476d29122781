"""A blueprint: what processors are made from, in this process or in workers; HUP renews it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger, systemd
from ewe.listener import StartError
from ewe.processors.base import Processor, find
from ewe.site import Site

if TYPE_CHECKING:
    from ewe.companion import Companion
    from ewe.config import Config

RESERVE = 64  # descriptors that are not for connections
# Settings that only a restart puts into force; those of the second line only where there is one process.
FIXED = ("host", "port", "bind", "backlog", "concurrency", "pid_file", "user", "group", "xswitch_config")
FIXED_IN_ONE = ("workers", "poolthreads", "parking", "loop", "connections")


class Blueprint:
    """What workers are made from: a configuration, its model and its site. Raises StartError, UnknownModel."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config] | None = None,
        companion: Companion | None = None,
    ) -> None:
        """companion: a server to be kept alive beside the workers."""
        self.reread = reread
        self.companion = companion
        self.model = find(config.concurrency)
        self.take(config)
        self.workers = (config.workers or self.model.workers) if self.model.supervised else 1
        in_processes = self.model.supervised and self.model.many_processes
        self.supervised = self.workers > 1 or in_processes or companion is not None

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


def limit_to_descriptors(processor: Processor) -> None:
    """Keep a model's ceiling below the descriptors there are, if it holds its connections in one process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and not processor.many_processes:
        processor.ceiling = min(processor.ceiling, max(soft - RESERVE, 1))
