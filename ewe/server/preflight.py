"""Preflight checks: `ewe --check-config` checks the settings, and then whether a start would succeed.

It tries to open the same files and addresses as a start, as the user who runs the command. It binds addresses
without listening, creates no file, and connects to no running server, so it can run beside one. An address in use
is only a note: most likely the server that uses it will get the new settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ewe import logger
from ewe.config.count_range import CoreCount
from ewe.config.feature_table import XSWITCH, feature, features, fixed_settings, unmet_needs
from ewe.config.messages import ConfigError
from ewe.log_files import STANDARD_ERROR, open_log
from ewe.processors.base import model_named
from ewe.server.access import (
    call_as_account,
    closed_directory_warnings,
    closed_python,
    closed_python_warnings,
    log_rotation_warnings,
    program_warnings,
)
from ewe.server.privileges import look_up
from ewe.server.processor_factory import description_of, no_xswitch, starts_xswitch, workers_of
from ewe.server.run import addresses_of, htaccess_warnings
from ewe.sites import make_site
from ewe.streams.listener import StartError, conflict_of, try_address
from ewe.trace import INHERITED

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.declaration import SupervisedProcess
    from ewe.site import Site


def examine(config: Config) -> tuple[list[str | ConfigError], list[str]]:
    """Return the failures that would prevent a start, and notes. Each is one line with the setting's name."""
    failures: list[str | ConfigError] = [*failing_files(config)]
    notes = config.former_name_warnings()
    if reason := no_xswitch(config):
        failures.append(reason)
    model = model_named(config.concurrency)
    try:
        failures += unmet_needs(with_xswitch(config))
        tuple(fixed_settings(config))
    except ConfigError as wrong:  # the function of a mounted feature fails
        failures.append(wrong)
    for form in dict.fromkeys(site_config.log_format for site_config in config.each_site()):
        try:
            logger.AccessLog("off", form)
        except ValueError as reason:
            failures.append(f"{reason} (log-format)")
    try:
        description_of(model, config)
        workers = workers_of(model, config)
        if isinstance(config.workers, CoreCount):
            notes.append(f"workers = auto: {workers} here, {int(config.workers)} processors may be used")
    except StartError as reason:
        failures.append(str(reason))
    site = None
    try:
        site = make_site(config_for_check(config), imports=False)
    except ConfigError as wrong:
        failures.append(wrong)
    except ValueError as reason:  # a certificate
        failures.append(str(reason))
    notes += htaccess_warnings(config)
    notes += notes_of_features(config)
    try:
        look_up(config.user, config.group)
        account, group = account_of_workers(config), config.group
        if site is not None:
            if closed_python(account, group):  # then root imports the applications
                failures += import_failures(site)
            else:
                failures += call_as_account(account, group, lambda: import_failures(site))
        notes += call_as_account(account, group, lambda: warnings_of_workers(config))
    except StartError as reason:
        failures.append(str(reason))
    setting = "bind" if config.bind else "host, port"
    addresses = addresses_of(config)
    for number, address in enumerate(addresses):
        if conflict := conflict_of(address, addresses[:number]):
            failures.append(f"{conflict} ({setting}{', listen' if config.sites else ''})")
        try:
            note = try_address(address)
        except StartError as reason:
            failures.append(f"{reason} ({setting})")
        else:
            notes += [f"{note} ({setting})"] if note else []
    return failures, notes


def notes_of_features(config: Config) -> list[str]:
    """Return the notes of the features of all sites. A feature is asked once for equal settings."""
    asked: set[tuple[object, ...]] = set()
    found: list[str] = []
    for site_config in config.each_site():
        for each in features(site_config):
            key = (each.name, *(site_config[setting] for setting in each.settings))
            if each.notes is not None and key not in asked:
                asked.add(key)
                try:
                    found += each.notes(site_config)
                except ConfigError as reason:  # the function of a mounted feature fails
                    found.append(str(reason))
    return list(dict.fromkeys(found))


def account_of_workers(config: Config) -> str | None:
    """Return the account that the workers become; None if they keep the command's account.

    A server whose settings name an X-Switch starts none, and its workers keep root as in other models.
    """
    if starts_xswitch(config) and os.geteuid() == 0:
        return config.user or "nobody"
    return config.user


def warnings_of_workers(config: Config) -> list[str]:
    """Return one line for each file that this process's account may not read, and each program it cannot start."""
    lines = [
        *closed_directory_warnings(config),
        *closed_python_warnings(),
        *log_rotation_warnings(config, rotates_as_root=starts_xswitch(config)),
    ]
    if not model_named(config.concurrency).needs_xswitch:  # X-Switch would start programs as their owners
        lines += program_warnings(config)
    return list(dict.fromkeys(lines))


def import_failures(site: Site) -> list[str]:
    """Return the reason why this process cannot import the applications of a site; [] if it can."""
    try:
        site.import_applications()
    except ValueError as reason:
        return [str(reason)]
    return []


def with_xswitch(config: Config) -> Config:
    """Return the configuration that a server of the xswitch model would use, although its X-Switch does not run."""
    if starts_xswitch(config):
        process: SupervisedProcess = feature(XSWITCH).process
        # Any address: a check connects to none.
        return process.completed(config, "unix:/run/ewe-xswitch", account_of_workers(config))
    return config


def config_for_check(config: Config) -> Config:
    """Return the configuration for a site that serves no client: as with_xswitch(), and without a trace, since a
    check makes no file.
    """
    return with_xswitch(config).replace("a check", trace=None)


def failing_files(config: Config) -> Iterator[str]:
    """Yield one line for each file that a start could not write."""
    files = [("logfile", config.logfile), ("pid-file", config.pid_file or "-")]
    if config.trace and not config.trace.startswith(INHERITED):
        files.append(("trace", config.trace))
    files += [
        ("access-log", path)
        for path in dict.fromkeys(site_config.access_log for site_config in config.each_site())
    ]
    for setting, path in files:
        if path.startswith("syslog:") and setting in ("logfile", "access-log"):
            try:
                open_log(path, STANDARD_ERROR).close()
            except OSError as error:
                yield f"cannot write {path!r}: {error.strerror} ({setting})"
        elif path not in ("-", "off") and (reason := why_not_writable(path)):
            yield f"cannot write {path!r}: {reason} ({setting})"
        elif setting == "pid-file" and os.path.exists(path) and not os.path.isfile(path):
            yield f"cannot write {path!r}: it is not a regular file; name another (pid-file)"


def why_not_writable(path: str) -> str:
    """Return the reason why a file can be neither written nor created; "" if it can."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return "it is a directory; name a file in it"
    if os.path.exists(path):
        return "" if os.access(path, os.W_OK) else "permission denied; change its mode or its owner"
    if not os.path.isdir(directory):
        return f"there is no directory {directory}; make it"
    writable = os.access(directory, os.W_OK | os.X_OK)
    return "" if writable else f"permission denied in {directory}; change its mode or its owner"
