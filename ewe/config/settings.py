"""The settings of ewe: each setting once, with its names, its type, its default and its meaning.

A setting is one `Setting`. From it come the file's key, the command's flag, the ``EWE_`` variable, `--help`,
`--print-config`, and docs/settings.md (`python -m ewe.config` prints it). `Config` declares the settings of the
server, and those that several features share. A feature declares its own beside its code.

Read next: setting.py (one setting), setting_types.py (its values), sources.py (where values are written).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ewe.config.count_range import COUNT_RANGE, WORKERS, CountRange
from ewe.config.feature_table import declared_settings, features, mounted
from ewe.config.messages import ConfigError, unknown_key
from ewe.config.setting import Setting, SourcedValue, in_documented_order
from ewe.config.setting_types import (
    ADDRESSES,
    BOOL,
    COUNT,
    COUNT_OR_0,
    FILE_NAMES,
    HOST,
    LANGUAGES,
    LOG,
    MODEL,
    NETWORKS,
    PATH,
    PORT,
    SIZE,
    TEXT,
    URL_PATH,
    VARIABLES,
    WAIT,
    G,
    K,
    M,
    auto,
    choice,
    duration,
    size,
    unset,
)
from ewe.config.sources import find_file, from_environment, from_platform, read_file

if TYPE_CHECKING:
    from ewe.config.site_tables import SiteTable

T = TypeVar("T")


class Config:
    """Hold a value for each setting, and where the value came from.

    `Config(port="8080", documentroot=path)` takes values or their text. `Config.load` reads all sources. A Config
    never changes; `replace` makes another.
    """

    # fmt: off
    host = Setting("127.0.0.1", HOST, "the address to listen on; 0.0.0.0 or :: for every network",
                   group="listening")
    port = Setting(4000, PORT, "the TCP port; 0: a free port, which the banner shows", group="listening")
    bind = Setting((), ADDRESSES, "listen here instead of at host and port: HOST:PORT, [::1]:PORT, unix:PATH or"
                   " fd://N; may be repeated", group="listening")
    backlog = Setting(1024, COUNT, "how many new connections may wait in the kernel to be accepted",
                      group="listening")

    open = Setting(False, BOOL, "show the site in this computer's browser once ewe listens", group="listening")

    concurrency = Setting("pool", MODEL, "the concurrency model by name, or module:Class to try your own",
                          group="model", names=("model",))
    workers = Setting(None, WORKERS, "how many processes serve; auto: one for each processor that ewe may use; a"
                      " range, for prefork: more of them start while all are busy; default: 1, prefork 8..64 (also"
                      " with auto)", group="model")
    poolthreads = Setting(CountRange(5, 50), COUNT_RANGE, "how many threads a pool has; a range: more of them start"
                          " while all are busy and a client waits (with parking = never, only if you give a range)",
                          group="model", names=("threads",))
    queue = Setting(1024, COUNT, "how many connections may wait for a thread of the pool", group="model")
    schedule = Setting("fifo", choice("fifo", "sff", "srpt"), "which waiting request a thread of the pool takes"
                       " next: first come, first served (fifo), the smallest file (sff), or the smallest rest of a"
                       " file (srpt)", group="model")
    schedule_ageing = Setting(8, COUNT, "with sff and srpt, a request that so many later ones have overtaken is"
                              " next, so that no large file starves", group="model")
    parking = Setting("always", choice("never", "idle", "always"), "when a thread of the pool leaves a client"
                      " that keeps it waiting: never (as in 2006), between requests (idle), or always",
                      group="model")
    connections = Setting(None, auto(COUNT), "the largest number of open connections of a process (children of"
                          " fork, threads of thread); auto: the model's own limit", group="model")
    connections_per_client = Setting(0, COUNT_OR_0, "the largest number of open connections of one client"
                                     " address in a process; above it 503; 0: no limit", group="model")
    overload = Setting("wait", choice("wait", "refuse", "drop-oldest", "drop-largest"), "at the connection limit,"
                       " let new connections wait in the backlog, or refuse them with 503 and Retry-After; if the"
                       " queue of the pool is full, refuse drops the newest request, drop-oldest the oldest, and"
                       " drop-largest that for the largest file",
                       group="model")
    retire = Setting(0, COUNT_OR_0, "replace a worker process after about this many requests; 0: never",
                     group="model")
    loop = Setting("auto", choice("auto", "uvloop", "asyncio"), "the event loop; auto: uvloop if it is"
                   " installed, else asyncio", group="model")
    call_threads = Setting(16, COUNT, "how many calls that may block, such as those of WSGI applications, an event"
                           " loop makes at once, each in a thread; other models make them in place", group="model")
    reload = Setting(False, BOOL, "start new workers when a source file of an application, a feature or a model of"
                     " yours changes, or the settings file; for your own machine", group="model")
    grace = Setting(10.0, duration(0), "how long requests in progress may go on after a stop", group="model")

    pid_file = Setting(None, unset(PATH), "a file that holds the process number while the server runs",
                       group="operations", names=("pid",))
    user = Setting(None, unset(TEXT), "the user to become once sockets and logs are open; only for root",
                   group="operations")
    group = Setting(None, unset(TEXT), "the group to become; none: the groups of the user",
                    group="operations")
    status = Setting(None, unset(URL_PATH), "the path of a page with what the server does and has done, such as"
                     " /ewe-status; PATH?json is the same as JSON, and PATH/metrics is for Prometheus",
                     group="operations")
    status_allow = Setting(("127.0.0.0/8", "::1"), NETWORKS, "who may see it: an address, a network such as"
                           " 10.0.0.0/8, or unix for Unix sockets; may be repeated", group="operations")
    trace = Setting(None, unset(PATH), "a file, or a named pipe, that gets a line for each event of a connection:"
                    " which worker runs it, what it waits for; `ewe-watch` draws it", group="operations")

    documentroot = Setting("htdocs", PATH, "the directory whose files the URLs below / name", group="files")
    defaultindex = Setting(("index.html",), FILE_NAMES, "the file that answers for a directory: the first of"
                           " these that exists; may be repeated", group="files")
    indexes = Setting(True, BOOL, "list a directory without such a file", group="files", scope="location")
    symlinks = Setting("inside", choice("inside", "follow"), "which symbolic links to follow: those that stay"
                       " inside the document root, or all", group="files", scope="location")
    languages = Setting((), LANGUAGES, "the languages that files may have, the default one first: page.en.html or"
                        " page.html.de answers for page.html, as Accept-Language says; may be repeated",
                        group="files", scope="location")
    cache = Setting(16 * M, size(0), "memory for small files; ewe checks each for changes at most once a"
                    " second; 0: off", group="files")

    program_timeout = Setting(60.0, WAIT, "how long a program may be silent before ewe kills it (504)",
                              group="programs", scope="location")
    env = Setting((), VARIABLES, "a variable that programs get besides those of the protocol:"
                  " GIT_PROJECT_ROOT=/srv/git; in a file a table; may be repeated",
                  group="programs", scope="location")
    pass_authorization = Setting(False, BOOL, "pass the field Authorization to programs, as HTTP_AUTHORIZATION, so"
                                 " that they can check passwords themselves; they then see the password of each"
                                 " visitor", group="programs", scope="location")
    development = Setting(False, BOOL, "show the traceback of an application's fault to its visitors; for your own"
                          " machine only", group="programs", scope="location")
    spool = Setting(1 * M, size(0), "a request body up to this size stays in memory; a larger one goes to an"
                    " unnamed temporary file", group="programs", scope="location")

    persistent = Setting(True, BOOL, "keep a connection open for the next request", group="http")
    idle = Setting(None, auto(WAIT), "how long a connection may stay idle between requests; auto: 75s if it"
                   " holds only a socket, 5s if it holds a worker", group="http")
    requests = Setting(10_000, COUNT_OR_0, "the largest number of requests on a connection; 0: no limit",
                       group="http")
    head_timeout = Setting(10.0, WAIT, "the longest wait for the whole head of a request (408)", group="http")
    body_timeout = Setting(30.0, WAIT, "the longest wait for the next part of a body (408)", group="http")
    write_timeout = Setting(30.0, WAIT, "the longest wait for a client that does not read", group="http")
    min_rate = Setting(500, COUNT_OR_0, "the lowest average rate, in bytes a second, of a body that a client sends"
                       " (408) or a response that it reads (close), once the timeout has passed; 0: no limit",
                       group="http")
    max_target = Setting(8 * K, SIZE, "the longest request target (414)", group="http")
    max_head = Setting(32 * K, SIZE, "the largest head of a request (431)", group="http")
    max_field = Setting(16 * K, SIZE, "the longest header field (431)", group="http")
    max_fields = Setting(100, COUNT, "the largest number of header fields (431)", group="http")
    max_body = Setting(2 * G, SIZE, "the largest body of a request (413)", group="http")

    proxy_protocol = Setting(False, BOOL, "every connection begins with a header of the PROXY protocol, from one of"
                             " these proxies", group="proxies", scope="server")

    tls = Setting("off", choice("off", "self"), "self: HTTPS with a certificate for localhost, made at the start",
                  group="tls")
    tls_cert = Setting(None, unset(PATH), "HTTPS with this certificate chain (PEM)", group="tls",
                       names=("certfile",))
    tls_key = Setting(None, unset(PATH), "the private key of the certificate (PEM); none: it is in the same file",
                      group="tls", names=("keyfile",))
    tls_timeout = Setting(10.0, WAIT, "how long a TLS handshake may take", group="tls", scope="server")

    logfile = Setting("-", LOG, "the error log; -: standard error; syslog: the system's log daemon",
                      group="logs", scope="server")
    loglevel = Setting("info", choice("error", "warning", "info", "debug", numbered=True), "the least"
                       " important messages that the error log holds",
                       group="logs", scope="server", names=("log-level",))
    access_log = Setting("-", LOG, "the access log; -: standard output; off: none; syslog: the system's log daemon",
                         group="logs")
    log_format = Setting("auto", TEXT, "the format of a line of the access log: short, combined, common, json, or"
                         " Apache's letters; auto: short on a terminal, else combined", group="logs")
    # fmt: on

    file: str | None = None  # the settings file that was read
    sites: tuple[SiteTable, ...] = ()  # its tables [[site]]
    names: tuple[str, ...] = ()  # of all sites, in the configuration of each
    former: tuple[str, ...] = ()  # a line for each setting that a source calls by its former name

    def __init__(self, **values: object) -> None:
        self._origins: dict[str, str] = {}
        for name, setting in SETTINGS.items():
            self.__dict__[name] = setting.default
        self._read_source(
            SourcedValue(name.replace("_", "-"), value, label=f"{name} =", origin="caller")
            for name, value in values.items()
        )

    def __getitem__(self, setting: Setting[T]) -> T:
        """Return the value of a setting that a feature declares; its default if no source can have set it."""
        value: T = self.__dict__.get(setting.name, setting.default)
        return value

    @classmethod
    def load(
        cls,
        options: Iterable[tuple[str, object]] = (),
        environ: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> Self:
        """Read the defaults, a file, the environment and the command line; a later source is stronger.

        options: the command line's settings, as (key, value). environ: the environment, with the variables of a
        platform (PORT, WEB_CONCURRENCY) and ewe's own, which are stronger; None: os.environ. file: the settings
        file; None: EWE_CONFIG names it, else it is ``ewe.toml`` or ``[tool.ewe]`` of ``pyproject.toml`` in the
        current directory. A file that is named must exist. Raises ConfigError.
        """
        environ = os.environ if environ is None else environ
        path = file or environ.get("EWE_CONFIG") or None
        values: list[SourcedValue] = []
        if path is not None:
            values = read_file(path) or []
        elif found := find_file():
            path, values = found
        given = [SourcedValue(key, raw, label=f"--{key}", origin="command line") for key, raw in options]
        variable = [SourcedValue("mount", environ.get("EWE_MOUNT"), "EWE_MOUNT", "EWE_MOUNT")]
        know_settings_of_mounted(path, [*values, *(each for each in variable if each.raw), *given])
        config = cls()
        config.file = path
        config._read_source(values)
        config._read_source(from_platform(environ))
        config._read_source(from_environment(environ, KEYS))
        config._read_source(given)
        return config

    def replace(self, origin: str, **values: object) -> Self:
        """Return the same configuration with some other values, which came from `origin`."""
        return self.with_values(
            SourcedValue(name.replace("_", "-"), value, label=f"{name} =", origin=origin)
            for name, value in values.items()
        )

    def with_values(self, values: Iterable[SourcedValue]) -> Self:
        """Return the same configuration with some other values. Raises ConfigError."""
        other = type(self)()
        other.__dict__.update(self.__dict__, _origins=dict(self._origins))
        other._read_source(values)
        return other

    def each_site(self) -> list[Self]:
        """Return the configuration of each [[site]]; this one alone, if there are none.

        That of a site has no table of a site itself, so its each_site() returns it alone. It has the names of all
        sites: each page that checks Host accepts every name of this server (ewe.gateway.own_names).
        """
        found = [self.with_values(table.own_settings) for table in self.sites]
        names = tuple(name for table in self.sites for name in table.names)
        for config in found:
            config.__dict__.update(sites=(), names=names)
        return found or [self]

    def missing_root(self) -> str | None:
        """Return the document root of the first site that needs one and has none; None if there is no such site.

        A site that passes each request on needs none, unless a source names one.
        """
        for table, site_config in zip(self.sites or (None,), self.each_site(), strict=True):
            if os.path.isdir(site_config.documentroot):
                continue
            if site_config.origin("documentroot") == "default":
                if any(each.answers_all(site_config) for each in features(site_config, "answers_all")):
                    continue
                if table is not None:
                    from ewe.config.site_tables import passes_all_on

                    if passes_all_on(table.locations):
                        continue
            return site_config.documentroot
        return None

    def origin(self, name: str) -> str:
        """Return where a value came from: "default", "ewe.toml line 3", "EWE_PORT" or "command line"."""
        return self._origins.get(KEYS[name.replace("_", "-")].name, "default")

    def former_name_warnings(self) -> list[str]:
        """Return a line for each setting, of the server, a site or a location, that has its former name."""
        lines = [line for site_config in (self, *self.each_site()) for line in site_config.former]
        for site in self.sites:
            for location in site.locations:
                for value in location.own_settings:
                    if value.key == KEYS[value.key].was:
                        lines.append(now_called(value.origin, KEYS[value.key]))
        return list(dict.fromkeys(lines))

    def _read_source(self, values: Iterable[SourcedValue]) -> None:
        """Read one source's values. Raises ConfigError."""
        key_of: dict[str, str] = {}  # name of a setting -> the key by which this source sets it
        for key, raw, label, origin in values:
            if key == "site" and not isinstance(raw, str):
                from ewe.config.site_tables import read_sites

                self.__dict__["sites"] = read_sites(raw, origin, KEYS)
                continue
            if (setting := KEYS.get(key)) is None:
                raise _unknown(origin, key)
            if key_of.setdefault(setting.name, key) != key:
                raise ConfigError(f'{origin}: "{key}" and "{key_of[setting.name]}" are one setting: keep one')
            if key == setting.was:
                self.__dict__["former"] = (*self.former, now_called(origin, setting))
            self.__dict__[setting.name] = setting.read(raw, label)
            self._origins[setting.name] = origin
        if "bind" not in key_of and ("port" in key_of or "host" in key_of):
            # `ewe 8080` means port 8080, even if a weaker source sets `bind`.
            self.__dict__["bind"] = Config.bind.default
            self._origins.pop("bind", None)


OWN_SETTINGS = in_documented_order(
    (each for each in vars(Config).values() if isinstance(each, Setting)), declared_settings()
)
# know_settings() changes both tables: they have ewe's own settings, and those of mounted features. A setting of a
# mounted feature stays known until the process ends, or until another feature needs its name: after a HUP that
# removes the feature, its requests in progress and its programs still have their settings.
SETTINGS: dict[str, Setting[Any]] = {setting.name: setting for setting in OWN_SETTINGS}
KEYS: dict[str, Setting[Any]] = {key: setting for setting in OWN_SETTINGS for key in setting.keys}


def know_settings_of_mounted(file: str | None, values: Sequence[SourcedValue]) -> None:
    """Know the settings that the mounted features declare, besides ewe's own, before a source is read.

    file: the settings file. values: of all sources, the strongest last. Raises ConfigError: a feature cannot be
    loaded, or one of its settings has a name that is taken. Several features may share one Setting.
    """
    ordered = OWN_SETTINGS
    for value in mounts_in(values):
        probe = Config()
        probe.file = file
        for each in mounted(probe.with_values([value])):
            new = [setting for setting in dict.fromkeys(each.settings) if setting not in ordered]
            try:
                check_names(new)
                ordered = in_documented_order(ordered, new)
            except ValueError as reason:
                raise ConfigError(f"feature {each.name!r}: {reason} (mount)") from None
    for setting in [*SETTINGS.values()]:
        if setting not in ordered:  # its feature is no longer mounted
            with suppress(ValueError):  # a mounted feature has a setting of the same name
                ordered = in_documented_order(ordered, [setting])
    know_settings(ordered)


def know_settings(ordered: Sequence[Setting[Any]]) -> None:
    """Know these settings, and no others. ordered: in the order of the documentation."""
    SETTINGS.clear()
    SETTINGS.update((each.name, each) for each in ordered)
    KEYS.clear()
    KEYS.update((key, each) for each in ordered for key in each.keys)


def mounts_in(values: Sequence[SourcedValue]) -> Iterator[SourcedValue]:
    """Yield the strongest value of `mount` for the server, and that of each table [[site]]."""
    yield from [value for value in values if value.key == "mount"][-1:]
    for value in values:
        tables = value.raw if value.key == "site" and isinstance(value.raw, list) else ()
        for table in tables:
            if isinstance(table, Mapping) and "mount" in table:
                from ewe.config.site_tables import as_table

                origin = as_table(table, value.origin).origin_of("mount")
                yield SourcedValue("mount", table["mount"], f"{origin}: mount =", origin)


def check_names(settings: Iterable[Setting[Any]]) -> None:
    """Raise ValueError if a setting of another package has the name of a part of Config, or of a key of a table."""
    for setting in settings:
        for key in getattr(setting, "keys", ()):
            if hasattr(Config, key.replace("-", "_")) or misplaced("", key) is not None:
                raise ValueError(f"the name {key} of its setting is taken")


def misplaced(origin: str, key: str) -> ConfigError | None:
    """Return the error for a key that only a table [[site]] or [[site.location]] may have; None for another key."""
    from ewe.config.site_tables import misplaced_key

    return misplaced_key(origin, key)


def _unknown(origin: str, key: str) -> ConfigError:
    """Return the error for a key that is no setting."""
    return misplaced(origin, key) or unknown_key(f"{origin}:", key, KEYS)


def now_called(origin: str, setting: Setting[Any]) -> str:
    """Return the line about a setting that a source calls by its former name."""
    return f"{origin}: {setting.was} is now called {setting.key}"


def groups() -> dict[str, list[Setting[Any]]]:
    """Return the settings by group, in the order of their definitions."""
    found: dict[str, list[Setting[Any]]] = {}
    for setting in SETTINGS.values():
        found.setdefault(setting.group, []).append(setting)
    return found
