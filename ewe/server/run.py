"""The server: opens the sockets, gives up root, and runs a concurrency model in one process or in many.

The command `ewe` calls only serve():

    serve ──▶ open sockets, write the pid file ──▶ give up root ──▶ one process:   Worker (worker.py)
                                                                    several:       Supervisor (supervisor.py)
                                                                                     └─ a Worker in each process
Both make processors from a ProcessorFactory (processor_factory.py), which HUP renews. A processor accepts
connections only after all these steps, so a failure at the start happens before the first client connects.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from ewe import logger
from ewe.child_processes import keep_exit_statuses
from ewe.config.feature_table import feature, module_names, mounted
from ewe.config.feature_table import programs as programs_of
from ewe.config.feature_table import start_warnings as warnings_of_features
from ewe.config.setting_types import is_local, parse_address
from ewe.config.sources import untrusted
from ewe.features.files import LATE_OF_FILES
from ewe.http.target import host_in_url
from ewe.log_files import Owner, is_same, path_to_open
from ewe.processors.base import UnknownModel
from ewe.server.access import call_as_account, closed_directory_warnings, log_rotation_warnings
from ewe.server.privileges import become, owner_of
from ewe.server.processor_factory import ProcessorFactory, no_xswitch, starts_xswitch
from ewe.server.supervisor import Supervisor
from ewe.server.worker import HANDLED, STOPS, Worker
from ewe.streams import descriptors, systemd
from ewe.streams.listener import StartError, close_sockets, open_sockets, server_name, socket_names, url

if TYPE_CHECKING:
    import socket

    from ewe.config.settings import Config
    from ewe.server.program_manager import ProgramManager

__all__ = ["StartError", "UnknownModel", "serve"]

MAX_CHECKED_DIRECTORIES = 1000  # directories of a document root that are checked for .htaccess files
# Modules that a worker may import later, for a request or after a change of settings, in addition to those of the
# features and of the files (tests/house/test_late_imports.py)
LATE_MODULES = (
    "ewe.config.cores", "ewe.config.site_lines", "ewe.config.site_tables", "ewe.http.virtual_hosts",
    "ewe.sites.several", "ewe.sites.locations", "ewe.sites.match", "ewe.gateway.proxy_protocol",
    "ewe.gateway.shared_protection",
    "ewe.server.applications", "ewe.server.sources", "ewe.server.counted", "ewe.server.trace", "ewe.streams.tls",
    "ewe.processors.pool", "ewe.processors.scheduled_pool", "ewe.requested_bytes",
    "ewe.short_line", "ewe.scoreboard", "ewe.trace", "ipaddress",
    # Codecs, which Python imports when they first encode a text: socket.getaddrinfo() needs idna
    "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.unicode_escape",
    "concurrent.futures.thread", "ctypes", "difflib", "grp", "json", "mimetypes", "pwd", "random", "select",
    "shlex", "subprocess", "tempfile", "tomllib", "traceback",
)  # fmt: skip
# Optional packages
OPTIONAL_MODULES = "uvloop", "brotli", "backports.zstd", "compression.zstd"


def serve(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Serve until a stop; return the exit status. Raises StartError, UnknownModel.

    reread: a function that reads the configuration again (HUP), and raises ValueError if it has an error; None: the
    configuration stays.
    """
    keep_exit_statuses()
    # A signal that comes before its handler waits for it. TERM, INT and QUIT end the process at once until then.
    # All others are let in, also those that the parent has blocked: SIGCHLD reports a dead worker.
    signal.pthread_sigmask(signal.SIG_SETMASK, HANDLED - STOPS)
    if starts_xswitch(config):
        return serve_with_xswitch(config, reread)
    Owner.account = owner_of(config.user, config.group)
    with managed_programs(config, config.user) as programs:
        if programs is not None:
            config, reread = completed_by(programs.completed, config, reread)
        return serve_alone(ProcessorFactory(config, reread, programs=programs))


def serve_alone(factory: ProcessorFactory) -> int:
    """Serve without an X-Switch; return the exit status. Raises StartError."""
    config = factory.config
    with listening_sockets(factory) as sockets:
        start_programs(factory, sockets)
        warn_about_settings_file(config)
        if config.user or config.group:
            load_late_modules(config)  # the account may not be allowed to read Python's directories
        become(config.user, config.group)
        for warning in access_warnings(config):
            logger.errors.warning(warning)
        return run(factory, sockets)


def serve_with_xswitch(config: Config, reread: Callable[[], Config] | None) -> int:
    """Serve, and run an X-Switch beside the workers. X-Switch keeps root, to start programs as their owners.

    Return the exit status. Raises StartError, ConfigError.
    """
    if reason := no_xswitch(config):
        raise StartError(reason)
    from ewe.server.xswitch_process import XSwitchProcess

    with sockets_in_temporary_directory():
        xswitch_process = XSwitchProcess(config)
    user, group = xswitch_process.user, config.group  # of the workers
    try:
        Owner.account = owner_of(user, group)
        if user:
            load_late_modules(config)
        with managed_programs(config, user) as programs:
            if programs is not None:
                config, reread = completed_by(programs.completed, config, reread)
            factory = ProcessorFactory(
                *completed_by(xswitch_process.completed, config, reread), xswitch_process, programs
            )
            with listening_sockets(factory) as sockets:
                start_programs(factory, sockets)
                warn_about_settings_file(config)
                for warning in call_as_account(
                    user, group, lambda: access_warnings(config, rotates_as_root=True)
                ):
                    logger.errors.warning(warning)
                return run(factory, sockets)
    finally:
        xswitch_process.close()


def access_warnings(config: Config, rotates_as_root: bool = False) -> list[str]:
    """Return the warnings about files that this process may not read, or could not open again after a rotation."""
    return [*closed_directory_warnings(config), *log_rotation_warnings(config, rotates_as_root)]


@contextmanager
def managed_programs(config: Config, user: str | None) -> Iterator[ProgramManager | None]:
    """Open the sockets of the programs that ewe keeps running, if there are any. At the end, end the programs.

    user: the account of the programs. Raises StartError.
    """
    if not any(programs_of(config)):
        yield None
        return
    from ewe.server.program_manager import ProgramManager

    with sockets_in_temporary_directory():
        manager = ProgramManager(config, user)
    try:
        yield manager
    finally:
        manager.close()


@contextmanager
def sockets_in_temporary_directory() -> Iterator[None]:
    """Raise StartError for an OSError: a container may have no /tmp, and a socket's path is short (unix(7))."""
    try:
        yield
    except OSError as reason:
        raise StartError(f"no sockets in a temporary directory: {reason} (TMPDIR)") from None


def completed_by(
    complete: Callable[[Config], Config], config: Config, reread: Callable[[], Config] | None
) -> tuple[Config, Callable[[], Config] | None]:
    """Return the configuration and `reread`, both completed by the addresses of programs or of X-Switch."""
    return complete(config), (lambda: complete(reread())) if reread else None


def start_programs(factory: ProcessorFactory, listening: list[socket.socket]) -> None:
    """Start the programs that ewe keeps running. Their manager gives up root itself."""
    if factory.programs is not None:
        factory.programs.start(listening)


def late_modules() -> Iterator[str]:
    """Yield the modules that a worker may import later: the features, the modules they need, and all others."""
    for module in module_names():
        yield module
        yield from feature(module).late
    yield from (*LATE_OF_FILES, *LATE_MODULES)


def load_late_modules(config: Config) -> None:
    """Load the late modules and the files that features preload now: without root, they may not be readable.

    Applications are not loaded here: the workers import them after they have given up root. Raises ConfigError if a
    mounted feature fails.
    """
    for name in late_modules():
        importlib.import_module(name)
    for name in OPTIONAL_MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    logger.load_traceback()
    for module in module_names():
        preload = feature(module).preload
        if preload is not None:
            preload()
    for mounted_feature in mounted(config):
        mounted_feature.preload()  # imports its late modules, too
    importlib.import_module("ewe.server.sources").foreign_directories()


@contextmanager
def listening_sockets(factory: ProcessorFactory) -> Iterator[list[socket.socket]]:
    """Open the listening sockets and write the pid file. At the end, remove the file and the sockets' paths.

    Raises StartError.
    """
    config = factory.config
    descriptors.raise_descriptor_limit()
    sockets = open_sockets(addresses_of(config), config.backlog, config.write_timeout)
    try:
        with pid_file(config.pid_file):
            yield sockets
    finally:
        close_sockets(sockets)


def addresses_of(config: Config) -> tuple[str, ...]:
    """Return the addresses of the server and of its sites, for parse_address().

    The server's own are those of `bind`, or the sockets of a service manager ("fd://3", ...), or `host` and `port`.
    If every [[site]] has `listen`, the addresses of the sites are enough, and the default of `host` and `port` is
    left out. A site's address at which the service manager has opened a socket already is not opened a second time.
    """
    inherited = () if config.bind else systemd.inherited_addresses(os.environ)
    own = config.bind or inherited or (f"{host_in_url(config.host)}:{config.port}",)
    if not config.sites:
        return own
    named = inherited or any(config.origin(name) != "default" for name in ("bind", "host", "port"))
    wanted = own if named or not all(site.listen for site in config.sites) else ()
    opened = [name_of_descriptor(address) for address in inherited]
    listen = (each for site in config.sites for each in site.listen if not is_opened(each, opened))
    return tuple(dict.fromkeys((*wanted, *listen)))


def unused_socket_warnings(config: Config) -> Iterator[str]:
    """Yield a warning if the service manager has opened sockets, and `bind` names none of them."""
    unused = [
        each for each in systemd.inherited_addresses(os.environ) if config.bind and each not in config.bind
    ]
    if unused:
        yield (
            f"bind {', '.join(config.bind)}: sockets of the service manager are not used ({len(unused)}), and their"
            f" clients wait in vain: leave out bind, or name {', '.join(unused)} there"
        )


def name_of_descriptor(address: str) -> tuple[str, int]:
    """Return the (address, port) of an inherited socket, whose address is fd://N. Raises StartError."""
    import socket

    try:
        sock = socket.socket(fileno=parse_address(address).port)
    except OSError as reason:
        raise StartError(f"{address}, a socket of the service manager: {reason.strerror}") from None
    try:
        return server_name(sock)
    finally:
        sock.detach()  # open_sockets() uses the descriptor


def is_opened(address: str, opened: Iterable[tuple[str, int]]) -> bool:
    """Return whether one of the opened sockets has a site's address: another could not be bound there."""
    from ewe.http.virtual_hosts import VirtualHost, listens_at

    site = VirtualHost(names=(), listen=socket_names([address]))
    return any(listens_at(site, name) for name in opened)


def speaks_tls(config: Config, sock: socket.socket) -> bool:
    """Return whether clients must use TLS on a listening socket: whether a site that listens there has TLS.

    If no site listens there, the first one answers (ewe.http.virtual_hosts).
    """
    from ewe.http.virtual_hosts import VirtualHost, listens_at

    all_sites = config.each_site()
    addresses = [socket_names(table.listen) for table in config.sites] or [()]  # of each site
    sites_here = [
        site_config
        for site_config, listen in zip(all_sites, addresses, strict=True)
        if listens_at(VirtualHost(names=(), listen=listen), server_name(sock))
    ]
    return any(each.tls == "self" or each.tls_cert is not None for each in sites_here or all_sites[:1])


def run(factory: ProcessorFactory, sockets: list[socket.socket]) -> int:
    """Run the model, in this process or in workers; return the exit status."""
    sys.unraisablehook = logger.log_unraisable
    log_start_warnings(factory.config, sockets)

    def ready() -> None:
        print_banner(sockets, factory)
        systemd.notify("READY=1", f"MAINPID={os.getpid()}")

    if factory.supervised:
        return Supervisor(factory, sockets).run(ready)
    return Worker(factory, sockets, "0").run(ready)


def log_start_warnings(config: Config, sockets: list[socket.socket]) -> None:
    """Log the warnings about settings that are not wrong, but most likely not what the user wants."""
    public_urls = [url(sock, "http") for sock in sockets if not is_local(server_name(sock)[0])]
    public_url = public_urls[0] if public_urls else ""  # one is enough as an example in a warning
    for warning in (
        *config.former_name_warnings(),
        *warnings_of_features(config, public_url),
        *htaccess_warnings(config),
        *unused_socket_warnings(config),
    ):
        logger.errors.warning(warning)


def print_banner(sockets: list[socket.socket], factory: ProcessorFactory) -> None:
    """Print one line: the server's URLs, its model, and how to stop it."""
    config = factory.config
    where = " ".join(url(sock, "https" if speaks_tls(config, sock) else "http") for sock in sockets)
    description, workers = factory.description, factory.workers
    count = f", {workers} workers" if workers > 1 and "processes" not in description else ""
    line = f"ewe: {where} ({description}{count}; pid {os.getpid()}; Ctrl-C stops)\n"
    with suppress(OSError):  # the disk is full, or the reader of a pipe has gone: ewe serves all the same
        # One write() only: print() writes the line end separately, and a reader of the log could see half a line.
        sys.stderr.write(line + other_urls_line(where))
        sys.stderr.flush()
    if config.open and (shown := re.search(r"\bhttps?://\S+", where)):
        open_browser(shown[0].replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"))


def other_urls_line(where: str) -> str:
    """Return the line with the URLs for this computer and for others; "" if ewe listens at one address."""
    found = re.search(r"(https?)://(0\.0\.0\.0|\[::\]):(\d+)/", where)
    if found is None:
        return ""
    scheme, every, port = found.groups()
    own, address = ("127.0.0.1", network_address()) if every == "0.0.0.0" else ("[::1]", network_address(6))
    other = f", on the network {scheme}://{address}:{port}/" if address else ""
    return f"ewe: on this computer {scheme}://{own}:{port}/{other}\n"


def network_address(version: int = 4) -> str:
    """Return this computer's address in its network, for IP version 4 or 6; "" if it has none. Nothing is sent."""
    import socket

    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # connect(2) on a UDP socket only chooses a route. RFC 5737 and RFC 3849 reserve these addresses.
            probe.connect(("192.0.2.1" if version == 4 else "2001:db8::1", 9))
            address: str = probe.getsockname()[0]
    except OSError:
        return ""
    return "" if address.startswith(("127.", "fe80:")) or address == "::1" else host_in_url(address)


def open_browser(shown: str) -> None:
    """Show a URL in the browser, from a process whose parent has ended, so that no model has to reap it."""
    import subprocess

    command = '"$@" </dev/null >/dev/null 2>&1 &'
    subprocess.run(["/bin/sh", "-c", command, "sh", sys.executable, "-m", "webbrowser", shown], check=False)


@contextmanager
def pid_file(path: str | None) -> Iterator[None]:
    """Write this process's id into a file, and lock the file; remove it at the end. Raises StartError.

    The lock shows that the server runs. The id alone does not, since another process may have it by now. If an
    administrator has deleted the file, another server may have made its own at this path: that one stays.
    """
    if path is None:
        yield
        return
    own_pid = os.getpid()
    file, is_truncated = -1, False
    try:
        file = open_locked(path)
        # This fails for a file of another kind, such as /dev/null, which must not be removed at the end.
        os.ftruncate(file, 0)
        is_truncated = True
        os.write(file, f"{own_pid}\n".encode())
    except OSError as reason:
        if is_truncated:  # the disk is full: an empty file would name no process
            remove_pid_file(path, file)
        if file >= 0:
            os.close(file)
        raise StartError(f"cannot write {path!r}: {reason.strerror} (pid-file)") from None
    try:
        yield
    finally:
        if os.getpid() == own_pid:  # a worker, which is a child of this process, leaves the file
            remove_pid_file(path, file)
        os.close(file)


def remove_pid_file(path: str, file: int) -> None:
    """Remove a pid file, unless the path names another file by now. file: its descriptor."""
    with suppress(OSError):  # without root, this process may not write into that directory
        if is_same(path, file):
            os.unlink(path)


def open_locked(path: str) -> int:
    """Return a descriptor of a file, created if necessary, and locked. Raises OSError; StartError if it is locked.

    Child processes do not inherit this kind of lock, so workers and programs that end later do not keep the lock.
    """
    import fcntl

    while True:
        target, flag = path_to_open(path)
        file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flag, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_same(path, file):
                return file
        except (BlockingIOError, PermissionError):
            other = os.read(file, 20).decode("ascii", "replace").strip()
            os.close(file)
            raise StartError(
                f"{path!r} names process {other}, which runs: stop it, or choose another file (pid-file)"
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the server that held the lock has just ended and removed the file: try again


def warn_about_settings_file(config: Config) -> None:
    """Warn root if other users can write the settings file: they could make root load their code."""
    if config.file and (reason := untrusted(config.file)):
        logger.errors.warning(f"settings {config.file}: {reason}: who can write it decides what root runs")


def htaccess_warnings(config: Config) -> Iterator[str]:
    """Yield one line for each served directory that contains a file .htaccess, directly or one level below.

    Packages for Apache protect their sources and data with such files. ewe does not read them.
    """
    roots = [site_config.documentroot for site_config in config.each_site()]
    for site in config.sites:
        for location in site.locations:
            roots += [location.values[key] for key in ("alias", "root") if key in location.values]
    for root in dict.fromkeys(roots):
        try:
            with os.scandir(root) as entries:
                inner = [entry.path for entry in islice(entries, MAX_CHECKED_DIRECTORIES) if entry.is_dir()]
        except OSError:  # `root` is a file, or a path with variables
            continue
        if found := next((each for each in (root, *inner) if os.path.exists(f"{each}/.htaccess")), ""):
            yield (
                f"{found}/.htaccess: ewe does not read such files, and what they forbid is open;"
                " write their rules as [[site.location]]"
            )
