"""The processor factory: makes processors from a configuration, its model and its site. HUP renews the factory.

The factory builds the site once, before the workers are forked, so that they share the loaded modules. Each worker
imports the applications itself (ewe.server.applications), so a server with applications has a supervisor. With
`reload`, each worker builds the whole site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.config.count_range import CoreCount
from ewe.config.feature_table import XSWITCH, feature, features, fixed_settings, unmet_needs
from ewe.config.linux import needs_linux
from ewe.config.messages import ConfigError
from ewe.config.settings import SETTINGS
from ewe.conversations import Conversations
from ewe.processors.base import Processor, model_named
from ewe.server.access import closed_python
from ewe.server.policies import is_scheduled, with_policies
from ewe.sites import make_site
from ewe.streams import descriptors, systemd
from ewe.streams.listener import StartError, socket_names

if TYPE_CHECKING:
    from ewe.config.count_range import CountRange
    from ewe.config.settings import Config
    from ewe.features.declaration import SupervisedProcess
    from ewe.server.program_manager import ProgramManager
    from ewe.server.xswitch_process import XSwitchProcess
    from ewe.site import Site

# Descriptors that are kept free of connections: for programs, logs, and 32 files in the cache (ewe.features.static)
RESERVED_DESCRIPTORS = 96
# Settings of the server that only a restart can change; features name theirs (Feature.fixed).
# FIXED_IN_ONE: only if the server has a single process.
FIXED = ("host", "port", "bind", "backlog", "concurrency", "pid_file", "user", "group", "reload")
FIXED_IN_ONE = ("parking", "loop", "connections", "call_threads", "status", "trace")


class ProcessorFactory:
    """Makes processors, in this process or in workers. Raises StartError, UnknownModel."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config] | None = None,
        xswitch_process: XSwitchProcess | None = None,
        programs: ProgramManager | None = None,
    ) -> None:
        """reread: reads the configuration again (HUP); None: it cannot be read again.

        xswitch_process: the X-Switch that runs beside the workers; None: none does. programs: restarted by HUP;
        None: there are none.
        """
        self.reread = reread
        self.programs = programs
        self.xswitch_process = xswitch_process
        self.model = model_named(config.concurrency)
        self.serves_in_one = False
        # Decided below. Until then open_logs_and_build_site() must not import applications.
        self.supervised = True
        self.closed_python_lines: list[str] = []  # closed_python_warnings() of the workers' account
        self.open_logs_and_build_site(config)
        self.supervised = self.needs_supervisor(config)
        self.serves_in_one = not self.supervised  # a supervisor only for the applications does not count
        if self.applications:
            account = xswitch_process.user if xswitch_process is not None else config.user
            self.closed_python_lines = closed_python(account, config.group)
            if self.closed_python_lines:
                self.import_now()  # as root: the workers' account could not
            else:
                self.supervised = True  # only a new process can import a new version

    def needs_supervisor(self, config: Config) -> bool:
        """Return whether a supervisor keeps the workers of this configuration, not counting its applications."""
        if self.workers > 1 or self.xswitch_process is not None or config.reload:
            return True
        # CoreCount: one processor now may be two at the next HUP.
        if self.model.supervised and (self.model.many_processes or isinstance(config.workers, CoreCount)):
            return True
        # A LibCGI library can end its process. Under the fork model that is only a child of the server.
        return config.concurrency != "fork" and request_may_end_process(config)

    def copy(self) -> ProcessorFactory:
        """Return a copy, for undo_renewal() if new workers fail."""
        other = object.__new__(ProcessorFactory)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def applications(self) -> list[str]:
        """The applications that each worker imports; [] with `reload`, since each worker then loads all."""
        return [] if self.config.reload or self.closed_python_lines else self.site.application_names

    @property
    def imports_in_workers(self) -> bool:
        """Whether a worker has to import modules before it serves. The import may fail."""
        return self.config.reload or bool(self.applications)

    def open_logs_and_build_site(self, config: Config) -> None:
        """Open the logs and build the site of a configuration. Raises StartError, and then nothing has changed.

        The first site may log warnings, so its logs are opened before. At a reload the logs are opened last: the
        site may be refused, and the old logs then stay.
        """
        is_reload = "config" in self.__dict__
        if (root := config.missing_root()) is not None:
            raise StartError(f"document root {root!r} is not a directory (documentroot)")
        workers = workers_of(self.model, config)
        for reason in unmet_needs(config):
            raise StartError(reason)
        tuple(fixed_settings(config))  # a wrong name prevents the start, not each HUP
        description = description_of(self.model, config)
        if config.trace and self.model.traces_itself:
            config = config.replace(f"the model {self.model.name} writes its own events", trace=None)
        open_trace(config.trace)
        if not is_reload:
            open_logs(config)
        make_scoreboard(config)
        site = None
        if not config.reload:
            site = self.site_of(config, imports=bool(self.closed_python_lines) or not self.supervised)
        if is_reload:
            open_logs(config)
        if site is not None:
            self.site = site
        self.config, self.description, self.workers = config, description, workers

    def site_of(self, config: Config, *, imports: bool) -> Site:
        """Return the site of a configuration. imports: import its applications. Raises StartError."""
        try:
            return make_site(
                config,
                idle_occupies_worker=self.model.occupied_by_idle(config),
                multithread=self.model.calls_at_once(config),
                multiprocess=self.model.processes_at_once(config),
                imports=imports,
            )
        except ValueError as reason:  # a certificate, a feature, an application
            failure = StartError(str(reason))
            if isinstance(reason, ConfigError):  # a value in a settings file, which a feature has read now
                failure.exit_status = reason.exit_status
            raise failure from None

    def import_now(self) -> None:
        """Import the applications in this process. Raises StartError."""
        try:
            self.site.import_applications()
        except ValueError as reason:
            raise StartError(str(reason)) from None

    def load(self) -> None:
        """Import the present version of the applications in this worker; with `reload`, build the whole site.

        Raises StartError, UnknownModel.
        """
        from ewe.server.applications import prepare_imports

        prepare_imports()
        if self.config.reload:
            from ewe.server.sources import unload_own_modules

            unload_own_modules()
            self.model = model_named(self.config.concurrency)
            self.site = self.site_of(self.config, imports=True)
            return
        self.import_now()

    def undo_renewal(self, old: ProcessorFactory) -> None:
        """Undo renew(). old: the copy() made before it.

        If an old log cannot be opened any more, since its directory is gone, the new logs stay in use.
        """
        self.__dict__.update(old.__dict__)
        try:
            open_logs(self.config)
        except StartError as reason:
            logger.errors.error(f"the new logs stay in use: {reason}")

    def restore_programs(self, undone: Config) -> None:
        """Have the programs read their settings again if the configuration that was undone had others."""
        if self.programs is not None:
            self.programs.restart_if_differs(self.config, undone)

    def conversations(self) -> Conversations:
        """Return the conversations with the clients of the site, which a processor runs."""
        return Conversations(self.site, self.config)

    def make(self) -> Processor:
        """Return a new processor."""
        model = with_policies(self.model, self.config)
        if self.config.status:
            from ewe.server.counted import counted

            model = counted(model)
        if self.config.trace:
            from ewe.server.trace import traced

            model = traced(model, self.config.trace)
        processor = model(self.conversations(), self.config)
        limit_to_descriptors(processor)
        return processor

    def renew(self) -> bool:
        """Read the configuration again, build its site, and restart the programs.

        If it has an error, log the error, keep the old configuration, and return False. Settings that only a
        restart can change keep their values.
        """
        assert self.reread is not None
        systemd.notify("RELOADING=1")
        try:
            self.open_logs_and_build_site(self.with_fixed_settings(self.reread()))
        except Exception as reason:  # a faulty configuration must not end a running server
            logger.errors.error(f"the configuration cannot be used, the old one stays: {reason}")
            return False
        finally:
            systemd.notify("READY=1")  # with the new configuration or the old one
        logger.errors.info(f"the configuration was read again ({self.config.file or 'no file'})")
        if self.programs is not None:
            self.programs.restart(self.config)
        return True

    def reopen_logs(self) -> None:
        """USR1: open the logs again, also those of the program manager."""
        logger.reopen_logs()
        if self.programs is not None:
            self.programs.reopen_logs()

    def report_applications(self) -> None:
        """Log which applications were imported again after HUP, and why others were not."""
        if self.config.reload or not (names := self.site.application_names):
            return
        old, why = self.old_applications(names)
        if fresh := [name for name in names if name not in old]:
            logger.errors.info(f"the new workers serve; applications were imported again: {', '.join(fresh)}")
        if old:
            logger.errors.warning(f"a new version of {', '.join(old)} needs a restart: {why}")

    def old_applications(self, names: list[str]) -> tuple[list[str], str]:
        """Return the applications of which HUP imports no new version, and the reason. names: of all of them."""
        if self.closed_python_lines:
            return names, self.closed_python_lines[0]
        if not self.supervised:
            return names, "this server was started without an application"
        from ewe.server.applications import outdated

        why = "a feature or a model of the same package was imported at the start (mount, model)"
        return outdated(names), why

    def with_fixed_settings(self, fresh: Config) -> Config:
        """Return the new configuration, with the old values of those settings that only a restart can change."""
        fixed: tuple[str, ...] = FIXED if self.supervised else FIXED + FIXED_IN_ONE
        if self.serves_in_one:
            fixed += ("workers",)
        for config in (self.config, fresh):
            fixed += tuple(fixed_settings(config, fresh))
        kept = {}
        for name in fixed:
            # Only one of the two configurations may mount the feature that has declared the setting
            setting = SETTINGS.get(name)
            if setting is not None and (old := getattr(self.config, name, setting.default)) != fresh[setting]:
                kept[name] = old
        if not self.supervised and is_scheduled(fresh) != is_scheduled(self.config):  # another kind of pool
            kept |= {"schedule": self.config.schedule, "overload": self.config.overload}
        if listen_addresses(fresh) - listen_addresses(self.config):
            logger.errors.warning("listen of a [[site]]: a new address needs a restart")
        if kept:
            names = ", ".join(name.replace("_", "-") for name in kept)
            logger.errors.warning(f"{names}: a change needs a restart")
        # With the old `port` or `host` alone, the configuration would have no `bind` (Config._read_source).
        return fresh.replace("before the reload", **kept | {"bind": self.config.bind})


def open_logs(config: Config) -> None:
    """Open the logs of a configuration, and those of its sites. Raises StartError."""
    sites = []
    if config.sites:
        from ewe.http.virtual_hosts import VirtualHost

        for table, site_config in zip(config.sites, config.each_site(), strict=True):
            host = VirtualHost(table.names, socket_names(table.listen))
            sites.append(logger.SiteLog(host, site_config.access_log, site_config.log_format))
    try:
        logger.open_logs(config.logfile, config.loglevel, config.access_log, config.log_format, sites)
    except OSError as reason:
        raise StartError(
            f"cannot write {reason.filename!r}: {reason.strerror} (logfile, access-log)"
        ) from None
    except ValueError as reason:
        raise StartError(str(reason)) from None


def make_scoreboard(config: Config) -> None:
    """Make the scoreboard: shared() at its first call, before the workers are forked. Raises StartError."""
    if not config.status:
        return
    from ewe.scoreboard import shared

    try:
        shared()
    except OSError as reason:
        raise StartError(f"no memory for the counters: {reason.strerror} (status)") from None


def open_trace(path: str | None) -> None:
    """Open the trace, before the server gives up root. Raises StartError."""
    if path is None:
        return
    from ewe.trace import earlier_run_warning, exposure_warning, failure_to_open, trace_at

    try:
        trace_at(path)
    except OSError as reason:
        raise StartError(failure_to_open(path, reason)) from None
    for warning in filter(None, (exposure_warning(path), earlier_run_warning(path))):
        logger.errors.warning(warning)


def listen_addresses(config: Config) -> set[str]:
    """Return the addresses in the key `listen` of all sites."""
    return {each for site in config.sites for each in site.listen}


def description_of(model: type[Processor], config: Config) -> str:
    """Return the description of a model for the banner. Raises StartError if the model cannot serve.

    That is so if its event loop is not installed, and if the settings ask for a policy that it does not have.
    """
    try:
        return with_policies(model, config).description(config)
    except ValueError as reason:
        raise StartError(str(reason)) from None
    except ImportError as reason:
        raise StartError(f"loop {config.loop!r}: {reason}; install it, or choose another") from None


def workers_of(model: type[Processor], config: Config) -> CountRange:
    """Return how many processes the supervisor keeps. Raises StartError for a range where no number grows."""
    workers = model.range_of_workers(config)
    if workers.grows and not model.may_grow:
        raise StartError(
            f"workers = {workers}: a worker of {model.name} serves many clients at once, and their number"
            f" does not grow; write workers = {workers.least}, or choose the model prefork"
        )
    return workers


def starts_xswitch(config: Config) -> bool:
    """Return whether the server runs an X-Switch: the model needs one, and the settings name none."""
    if not model_named(config.concurrency).needs_xswitch:
        return False
    process: SupervisedProcess = feature(XSWITCH).process
    return process.is_needed(config)


def no_xswitch(config: Config) -> str:
    """Return the reason why this system cannot run the X-Switch that the model needs; "" if it can."""
    return needs_linux("X-Switch (-x)", "ewe -x --host 0.0.0.0 4000") if starts_xswitch(config) else ""


def limit_to_descriptors(processor: Processor) -> None:
    """Keep a model's connection limit below the descriptor limit, if all its connections are in one process."""
    limit = descriptors.descriptor_limit()
    if limit is not None and not processor.many_processes:
        processor.connection_limit = min(processor.connection_limit, max(limit - RESERVED_DESCRIPTORS, 1))


def request_may_end_process(config: Config) -> bool:
    """Return whether a request may end the process that answers it."""
    return any(each.ends_processes is not None and each.ends_processes(config) for each in features(config))
