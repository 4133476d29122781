"""The processor factory: a configuration, its model and its site, from which processors are made. HUP renews it.

The site is built once, before workers are forked, so that they share what it has loaded. But only a process that
has not loaded a module yet loads its new version. Each worker therefore imports the applications by itself, and a
server that has some has a supervisor (ewe.server.applications). With `reload` each worker builds the whole site.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.config.feature_table import features, lacking
from ewe.config.linux import needs_linux
from ewe.config.setting_types import parse_address
from ewe.processors.base import Processor, find
from ewe.server import systemd
from ewe.server.access import closed_python
from ewe.sites import make_site
from ewe.streams import descriptors
from ewe.streams.listener import StartError

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.server.program_manager import ProgramManager
    from ewe.server.xswitch_process import XSwitchProcess
    from ewe.site import Site

RESERVE = 64  # descriptors that are not for connections
# Settings that only a restart can change; those of the second line only if there is a single process.
FIXED = ("host", "port", "bind", "backlog", "concurrency", "pid_file", "user", "group", "xswitch_config",
         "reload", "fastcgi_start", "workers")  # fmt: skip
FIXED_IN_ONE = ("poolthreads", "parking", "loop", "connections", "call_threads")


class ProcessorFactory:
    """Makes processors, in this process or in workers. Raises StartError, UnknownModel."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config] | None = None,
        xswitch_process: XSwitchProcess | None = None,
        programs: ProgramManager | None = None,
    ) -> None:
        """xswitch_process: the X-Switch to keep alive beside the workers. programs: those that HUP replaces."""
        self.reread = reread
        self.programs = programs
        self.xswitch_process = xswitch_process
        self.model = find(config.concurrency)
        self.supervised = True  # which is not known yet; nothing is imported until it is
        self.closed: list[str] = []  # what of Python the workers may not read
        self.take(config)
        self.workers = (config.workers or self.model.workers) if self.model.supervised else 1
        in_processes = self.model.supervised and self.model.many_processes
        self.supervised = self.workers > 1 or in_processes or xswitch_process is not None or config.reload
        # A library can end its process. The fork model calls it in a child of the server.
        self.supervised |= config.concurrency != "fork" and may_end(config)
        self.serves_in_one = not self.supervised  # as far as clients can tell
        if self.applications:
            account = xswitch_process.user if xswitch_process is not None else config.user
            self.closed = closed_python(account, config.group)
            if self.closed:
                self.import_now()  # as root, which the workers are not
            else:
                self.supervised = True  # only a new process imports a new version

    def copy(self) -> ProcessorFactory:
        """Return a copy, to go back to if new workers fail."""
        other = object.__new__(ProcessorFactory)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def applications(self) -> list[str]:
        """The applications that each worker imports; [] with `reload`, since each worker then loads all."""
        return [] if self.config.reload or self.closed else self.site.application_names

    @property
    def imports_in_workers(self) -> bool:
        """Whether a worker has to import before it serves, and may fail."""
        return self.config.reload or bool(self.applications)

    def take(self, config: Config) -> None:
        """Open the logs and build the site of a configuration. Raises StartError, and then nothing has changed."""
        if (root := config.missing_root()) is not None:
            raise StartError(f"document root {root!r} is not a directory (documentroot)")
        for own in config.each_site():
            check_users(own)
        for reason in lacking(config):
            raise StartError(reason)
        words = words_of(self.model, config)
        try:
            open_logs(config)
        except OSError as reason:
            raise StartError(f"cannot write the log {reason.filename!r}: {reason.strerror}") from None
        except ValueError as reason:
            raise StartError(str(reason)) from None
        if not config.reload:
            self.site = self.site_of(config, imports=bool(self.closed) or not self.supervised)
        self.config, self.words = config, words

    def site_of(self, config: Config, *, imports: bool) -> Site:
        """Return the site of a configuration. imports: with its applications. Raises StartError."""
        try:
            return make_site(
                config,
                holds_idle=self.model.idle_holds(config),
                many_calls=self.model.calls_at_once(config),
                many_processes=self.model.processes_at_once(config),
                imports=imports,
            )
        except ValueError as reason:  # a certificate, a feature, an application
            raise StartError(str(reason)) from None

    def import_now(self) -> None:
        """Import the applications in this process. Raises StartError."""
        try:
            self.site.import_applications()
        except ValueError as reason:
            raise StartError(str(reason)) from None

    def load(self) -> None:
        """Import in this worker what its parent has not, as the files are now. Raises StartError, UnknownModel."""
        from ewe.server.applications import prepare_imports

        prepare_imports()
        if self.config.reload:
            from ewe.server.sources import forget

            forget()
            self.model = find(self.config.concurrency)
            self.site = self.site_of(self.config, imports=True)
            return
        self.import_now()

    def restored(self, old: ProcessorFactory) -> None:
        """Go back to what the factory was before renew(): `old` is a copy of it."""
        self.__dict__.update(old.__dict__)
        open_logs(self.config)

    def make(self) -> Processor:
        """Return a new processor."""
        processor = self.model(self.site, self.config)
        limit_to_descriptors(processor)
        if os.environ.get("EWE_TRACE"):
            from ewe.server.trace import trace

            trace(processor)
        return processor

    def renew(self) -> bool:
        """Read the configuration again. If it has an error, log it, keep the old one, and return False."""
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
        if self.programs is not None:
            self.programs.restart(self.config)
        return True

    def report_applications(self) -> None:
        """Log which applications were imported again after HUP, and which were not, and why."""
        if self.config.reload or not (names := self.site.application_names):
            return
        if self.closed:
            why = self.closed[0]
        elif not self.supervised:
            why = "this server was started without one"
        else:
            from ewe.server.applications import outdated

            old = outdated(names)
            if fresh := [name for name in names if name not in old]:
                logger.errors.info(
                    f"the new workers serve; applications were imported again: {', '.join(fresh)}"
                )
            why = "a feature or a model of the same package was imported at the start (mount, model)"
            names = old
        if names:
            logger.errors.warning(f"a new version of {', '.join(names)} needs a restart: {why}")

    def with_fixed(self, fresh: Config) -> Config:
        """Return a fresh configuration with the old values of settings that only a restart can change."""
        fixed = FIXED if self.supervised else FIXED + FIXED_IN_ONE
        kept = {
            name: getattr(self.config, name)
            for name in fixed
            if getattr(fresh, name) != getattr(self.config, name)
        }
        if fresh.database and fresh.dbd is None:  # no demon was started for it
            kept |= {"database": self.config.database, "dbd": self.config.dbd}
        if listens(fresh) - listens(self.config):
            logger.errors.warning("listen of a [[site]]: a new address needs a restart")
        if kept:
            names = ", ".join(name.replace("_", "-") for name in kept)
            logger.errors.warning(f"{names}: a change needs a restart")
        return fresh.replace("before the reload", **kept)


def open_logs(config: Config) -> None:
    """Open the logs of a configuration, and those of its sites. Raises OSError, ValueError."""
    sites = []
    if config.sites:
        from ewe.http.virtual_hosts import Host

        for table, own in zip(config.sites, config.each_site(), strict=True):
            host = Host(table.names, tuple(parse_address(each)[1:] for each in table.listen))
            sites.append((host, own.access_log, own.log_format))
    logger.open_logs(config.logfile, config.loglevel, config.access_log, config.log_format, sites)


def listens(config: Config) -> set[str]:
    """Return the addresses that sites name."""
    return {each for site in config.sites for each in site.listen}


def words_of(model: type[Processor], config: Config) -> str:
    """Return the model in words, for the banner. Raises StartError if its event loop is not installed."""
    try:
        return model.words(config)
    except ImportError as reason:
        raise StartError(f"loop {config.loop!r}: {reason}; install it, or choose another") from None


def check_users(config: Config) -> None:
    """Raise StartError if root would serve users' directories: users could then publish any file."""
    if config.userdir is not None and config.user is None and os.geteuid() == 0:
        raise StartError(
            "root does not serve users' directories (userdir), since it can read all files of the machine: "
            "--user www-data serves them as www-data, --user root as root"
        )


def no_xswitch(config: Config) -> str:
    """Return why this system cannot run the X-Switch that the configuration asks for, "" if it can."""
    if config.xswitch is not None or not find(config.concurrency).needs_xswitch:
        return ""
    return needs_linux("X-Switch (-x)", "ewe -x --host 0.0.0.0 4000")


def limit_to_descriptors(processor: Processor) -> None:
    """Keep a model's ceiling below the limit of descriptors, if it holds its connections in one process."""
    limit = descriptors.limit()
    if limit is not None and not processor.many_processes:
        processor.ceiling = min(processor.ceiling, max(limit - RESERVE, 1))


def may_end(config: Config) -> bool:
    """Return whether a request may end the process that answers it."""
    return any(each.ends_processes is not None and each.ends_processes(config) for each in features(config))
