"""Every setting of ewe, in one place: its names, its type, its default, what it means, where it came from.

A setting is one line in `Config`; the file key, the command-line flag, the ``EWE_`` variable, the help
and docs/settings.md (``python -m ewe.config`` prints it) all derive from that line. Weaker to stronger:
default, file, environment, command line.

What only a file or an error needs (tomllib, difflib, json) is imported where it is needed: a server that
forks copies the map of every page it has touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from ewe.kinds import (
    ADDRESSES,
    BOOL,
    COUNT,
    COUNT_OR_0,
    DAYS_AT_MOST,
    FILE_NAME,
    HOST,
    MODEL,
    PATH,
    PORT,
    RESPONDERS,
    SIZE,
    TEXT,
    WAIT,
    G,
    K,
    Kind,
    M,
    auto,
    choice,
    duration,
    size,
    unset,
)

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that cannot be used; its text is one line that names the place, the key and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """Text with whatever cannot be printed (line ends, control characters, odd bytes) spelled as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(value: object) -> str:
    """A value as TOML writes it, in one line."""
    import json

    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """``; did you mean "port"?`` for the most similar name, if similar enough (0 to 1); otherwise nothing."""
    import difflib

    near = difflib.get_close_matches(name, list(names), 1, likeness)
    return f'; did you mean "{near[0]}"?' if near else ""


class Setting(Generic[T]):
    """One setting. On `Config` it is this description; on a `Config` it is the value.

    (A descriptor without `__set__`: the value stands in the instance's own dictionary and is found first.)
    """

    def __init__(
        self, default: T, kind: Kind[T], help: str, *, group: str, names: tuple[str, ...] = ()
    ) -> None:
        self.default, self.kind, self.help, self.group = default, kind, help, group
        self.synonyms = names  # other names of the same setting, spelled like `key`

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = name.replace("_", "-")
        self.keys = (self.key, *self.synonyms)
        self.variable = variable(self.key)

    if TYPE_CHECKING:

        @overload
        def __get__(self, config: None, owner: type) -> Setting[T]: ...
        @overload
        def __get__(self, config: Config, owner: type) -> T: ...

    def __get__(self, config: Config | None, owner: type) -> Setting[T] | T:
        return self if config is None else self.default

    def read(self, raw: object, label: str) -> T:
        """The value that raw text or a raw TOML value stands for; ConfigError begins with the label."""
        try:
            return self.kind.read(raw)
        except ValueError:
            raise ConfigError(f"{label} {quoted(raw)}: expected {self.kind.expected}") from None

    def show(self, value: Any) -> str:
        """A value as people read it, and as `read` accepts it."""
        return self.kind.show(value)


def variable(key: str) -> str:
    """The environment variable of a key: ``cgi-path`` is ``EWE_CGI_PATH``."""
    return "EWE_" + key.replace("-", "_").upper()


class Config:
    """Every setting, its default, its meaning, and where its value came from.

    `Config(port="8080", documentroot=path)` takes Python values or their text; `Config.load` reads them all
    from where people put them. A Config does not change; `replace` makes another.
    """

    # fmt: off
    host = Setting("127.0.0.1", HOST, "the address to listen at; 0.0.0.0 or :: for every network",
                   group="listening")
    port = Setting(4000, PORT, "the TCP port; 0 picks a free one and the banner shows it", group="listening")
    bind = Setting((), ADDRESSES, "listen here, not at host and port: HOST:PORT, [::1]:PORT, unix:PATH or"
                   " fd://N; may be repeated", group="listening")
    backlog = Setting(1024, COUNT, "new connections that may wait in the kernel to be accepted",
                      group="listening")

    concurrency = Setting("pool", MODEL, "the concurrency model, or module:Class to try one of your own",
                          group="model", names=("model",))
    workers = Setting(None, auto(COUNT), "processes that serve; auto: one, prefork 8", group="model")
    poolthreads = Setting(5, COUNT, "threads of a pool", group="model", names=("threads",))
    queue = Setting(1024, COUNT, "connections that may wait for a thread of the pool", group="model")
    parking = Setting("always", choice("never", "idle", "always"), "when a thread of the pool leaves a client"
                      " that keeps it waiting: never (as in 2006), between requests (idle) or always",
                      group="model")
    connections = Setting(None, auto(COUNT), "the most open connections of a process (children of fork,"
                          " threads of thread); auto: as the model has it", group="model")
    connections_per_client = Setting(0, COUNT_OR_0, "the most open connections of one client address in a"
                                     " process; above it 503; 0: no limit", group="model")
    overload = Setting("wait", choice("wait", "refuse"), "at a ceiling, new connections wait in the backlog"
                       " or are refused with 503 and Retry-After", group="model")
    retire = Setting(0, COUNT_OR_0, "replace a worker process after about this many requests; 0: never",
                     group="model")
    loop = Setting("auto", choice("auto", "uvloop", "asyncio"), "the event loop; auto: uvloop where it is"
                   " installed", group="model")
    grace = Setting(10.0, duration(0), "how long a stop lets requests in progress go on", group="model")

    pid_file = Setting(None, unset(PATH), "a file to write the process number to, while the server runs",
                       group="operations", names=("pid",))
    user = Setting(None, unset(TEXT), "the user to become once sockets and logs are open; only root may",
                   group="operations")
    group = Setting(None, unset(TEXT), "the group to become; none: the user's own, and its supplementary ones",
                    group="operations")

    documentroot = Setting("htdocs", PATH, "the directory that / URLs lead to", group="files")
    defaultindex = Setting("index.html", FILE_NAME, "the file that answers for a directory", group="files")
    userdir = Setting(None, unset(FILE_NAME), "the directory of each user that /~NAME/ URLs lead to, such as"
                      " public_html; empty: there are no users", group="files")
    min_uid = Setting(1000, COUNT_OR_0, "the least number of a user that has one: those below are the system's",
                      group="files")
    indexes = Setting(True, BOOL, "list a directory that has no such file", group="files")
    symlinks = Setting("inside", choice("inside", "follow"), "follow symbolic links that stay inside the"
                       " document root, or all of them", group="files")
    cache = Setting(16 * M, size(0), "bytes of small files kept in memory, each looked at again after a"
                    " second; 0: off", group="files")

    cgi_path = Setting("cgi-bin", PATH, "the directory that /cgi-bin/ URLs lead to", group="programs")
    program_timeout = Setting(60.0, WAIT, "the longest silence of a program before it is ended (504)",
                              group="programs")
    fastcgi = Setting((), RESPONDERS, "a FastCGI responder and what it answers for: files with an extension"
                      " (.php=unix:/run/php.sock) or all below a path (/app=127.0.0.1:9000); may be repeated",
                      group="programs")
    fastcgi_keep = Setting(False, BOOL, "keep connections to FastCGI responders open: faster, but a responder that"
                           " answers one connection at a time, as each child of php-fpm, is held by it",
                           group="programs")
    xswitch = Setting(None, unset(TEXT), "X-Switch, which runs programs in engines that stay: unix:PATH or"
                      " HOST:PORT; empty: the xswitch model starts one of its own, others do without",
                      group="programs")
    xswitch_config = Setting(None, unset(PATH), "the settings (TOML) of the X-Switch that the xswitch model"
                             " starts", group="programs")
    spool = Setting(1 * M, size(0), "request bodies up to this size stay in memory, larger ones go to an"
                    " unlinked temporary file", group="programs")

    persistent = Setting(True, BOOL, "keep a connection open for the next request", group="http")
    idle = Setting(None, auto(WAIT), "how long a kept connection may stay idle; auto: 75s where it costs a"
                   " socket only, 5s where it holds a worker", group="http")
    requests = Setting(10_000, COUNT_OR_0, "the most requests of a connection; 0: no limit", group="http")
    head_timeout = Setting(10.0, WAIT, "the longest wait for the whole head of a request (408)", group="http")
    body_timeout = Setting(30.0, WAIT, "the longest wait for the next part of a body (408)", group="http")
    write_timeout = Setting(30.0, WAIT, "the longest wait for a client that does not read", group="http")
    min_rate = Setting(500, COUNT_OR_0, "bytes a second that a body must come with on the whole, and a response"
                       " be read with, once their timeouts are over (408, close); 0: no limit", group="http")
    max_target = Setting(8 * K, SIZE, "the longest request target (414)", group="http")
    max_head = Setting(32 * K, SIZE, "the largest head of a request (431)", group="http")
    max_field = Setting(16 * K, SIZE, "the longest header field (431)", group="http")
    max_fields = Setting(100, COUNT, "the most header fields (431)", group="http")
    max_body = Setting(2 * G, SIZE, "the largest body of a request (413)", group="http")

    tls = Setting("off", choice("off", "self"), "self: HTTPS with a certificate for localhost, made on the spot",
                  group="tls")
    tls_cert = Setting(None, unset(PATH), "HTTPS with this certificate chain (PEM)", group="tls",
                       names=("certfile",))
    tls_key = Setting(None, unset(PATH), "the certificate's key (PEM); none: in the same file", group="tls",
                      names=("keyfile",))
    tls_timeout = Setting(10.0, WAIT, "the longest wait for a client to agree on keys", group="tls")

    logfile = Setting("-", PATH, "the error log; -: standard error", group="logs")
    loglevel = Setting("info", choice("error", "warning", "info", "debug", numbered=True), "how much the"
                       " error log tells", group="logs", names=("log-level",))
    access_log = Setting("-", PATH, "the access log; -: standard output; off: none", group="logs")
    log_format = Setting("combined", TEXT, "a line of the access log: combined, common, json, or a format in"
                         " Apache's letters", group="logs")
    # fmt: on

    file: str | None = None  # the settings file that was read

    def __init__(self, **values: object) -> None:
        self._origins: dict[str, str] = {}
        for name, setting in SETTINGS.items():
            self.__dict__[name] = setting.default
        self._take((name.replace("_", "-"), value, f"{name} =", "caller") for name, value in values.items())

    @classmethod
    def load(
        cls,
        options: Iterable[tuple[str, object]] = (),
        environ: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> Self:
        """Defaults, then a file, the environment and the command line's (key, value) pairs, each stronger.

        The file is the one given, else that of EWE_CONFIG, else ``ewe.toml``, else ``[tool.ewe]`` of
        ``pyproject.toml``, both where ewe is started; a file that is given must exist. Raises ConfigError.
        """
        environ = os.environ if environ is None else environ
        config = cls()
        config._take(config._from_file(file or environ.get("EWE_CONFIG") or None))
        config._take(_from_platform(environ))
        config._take(_from_environment(environ))
        config._take((key, raw, f"--{key}", "command line") for key, raw in options)
        return config

    def replace(self, origin: str, **values: object) -> Self:
        """The same configuration with other values, which came from `origin`."""
        other = type(self)()
        other.__dict__.update(self.__dict__, _origins=dict(self._origins))
        other._take((name.replace("_", "-"), value, f"{name} =", origin) for name, value in values.items())
        return other

    def origin(self, name: str) -> str:
        """Where a value came from: "default", "ewe.toml line 3", "EWE_PORT" or "command line"."""
        return self._origins.get(KEYS[name.replace("_", "-")].name, "default")

    def _take(self, found: Iterable[tuple[str, object, str, str]]) -> None:
        """Take one source's settings: key, raw value, how an error begins, origin."""
        given: dict[str, str] = {}
        for key, raw, label, origin in found:
            if (setting := KEYS.get(key)) is None:
                raise ConfigError(f'{origin}: unknown key "{key}"{nearest(key, KEYS)}')
            if given.setdefault(setting.name, key) != key:
                raise ConfigError(f'{origin}: "{key}" and "{given[setting.name]}" are one setting: keep one')
            self.__dict__[setting.name] = setting.read(raw, label)
            self._origins[setting.name] = origin
        if "bind" not in given and ("port" in given or "host" in given):
            # `ewe 8080` means 8080, though a weaker source binds elsewhere
            self.__dict__["bind"] = Config.bind.default
            self._origins.pop("bind", None)

    def _from_file(self, path: str | None) -> Iterable[tuple[str, object, str, str]]:
        required = path is not None
        for candidate in (path,) if path is not None else ("ewe.toml", "pyproject.toml"):
            if (found := read_file(candidate, required)) is not None:
                self.file = candidate
                return found
        return ()


SETTINGS: dict[str, Setting[Any]] = {
    name: item for name, item in vars(Config).items() if isinstance(item, Setting)
}
KEYS: dict[str, Setting[Any]] = {key: setting for setting in SETTINGS.values() for key in setting.keys}


def groups() -> dict[str, list[Setting[Any]]]:
    """The settings by group, in the order of their definitions."""
    found: dict[str, list[Setting[Any]]] = {}
    for setting in SETTINGS.values():
        found.setdefault(setting.group, []).append(setting)
    return found


# Sources: each gives (key, raw value, how an error begins, origin) of what it holds.


def read_file(path: str, required: bool = True) -> list[tuple[str, object, str, str]] | None:
    """The settings in a TOML file, of a pyproject.toml those in ``[tool.ewe]``; None where there are none.

    Raises ConfigError for a file that is required and holds none, and for one that cannot be read.
    """
    section = "tool.ewe" if os.path.basename(path) == "pyproject.toml" else ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if not required:
            return None
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    lines = _lines(text, section)
    if section and not lines:  # somebody's project: its TOML is not ours to judge, or to load tomllib for
        if not required:
            return None
        raise ConfigError(f"{path}: no [{section}] in it")
    table: Any = _parse(text, path)
    for name in section.split(".") if section else ():
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [{section}] is not a table")
    found = []
    for key, raw in table.items():
        origin = f"{path} line {lines[key]}" if key in lines else path
        found.append((key, raw, f"{origin}: {key} =", origin))
    return found


def _lines(text: str, section: str) -> dict[str, int]:
    """The line of each key of a section, as "" of its header. By sight: tomllib keeps no positions."""
    lines: dict[str, int] = {}
    inside, prefix = not section, section and section + "."
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line):
            inside = header[1] == section
            if inside:
                lines.setdefault("", number)
            elif header[1].startswith(prefix):
                lines.setdefault(header[1].removeprefix(prefix).split(".")[0], number)
        elif inside and (match := re.match(r"""\s*["']?([\w-]+)["']?\s*[.=]""", line)):
            lines.setdefault(match[1], number)
    return lines


def _parse(text: str, path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # a TOMLDecodeError, which says where; or a number or nesting beyond all reason, which does not
        message = str(error)
        if match := re.search(r" \(at line ([0-9]+), column [0-9]+\)$", message):
            raise ConfigError(f"{path} line {match[1]}: {message[: match.start()]}") from None
        last = len(text.rstrip().split("\n"))
        raise ConfigError(f"{path} line {last}: {message.removesuffix(' (at end of document)')}") from None


def _from_platform(environ: Mapping[str, str]) -> Iterable[tuple[str, object, str, str]]:
    """What platforms set for whatever server they start, where ewe's own variable does not say otherwise."""
    for name, key in (("PORT", "port"), ("WEB_CONCURRENCY", "workers")):
        if environ.get(name) and not environ.get(variable(key)):
            yield key, environ[name], name, name


def _from_environment(environ: Mapping[str, str]) -> Iterable[tuple[str, object, str, str]]:
    """The EWE_ variables; an empty one counts as unset. One that nearly names a setting is a misspelling."""
    variables = {variable(key): key for key in KEYS}
    for name in sorted(name for name in environ if name.startswith("EWE_") and environ[name]):
        if name in variables:
            yield variables[name], environ[name], name, name
        elif name != "EWE_CONFIG" and (near := nearest(name, variables, 0.85)):
            # not any unknown one: where a service is called ewe, Kubernetes sets EWE_SERVICE_HOST and such
            raise ConfigError(f"unknown variable {name}{near}")


_PREFACE = f"""\
# The settings of ewe

Generated by `python -m ewe.config`; do not edit.

Each setting is a key of `ewe.toml` (or of `[tool.ewe]` in `pyproject.toml`), a flag of the command, and a
variable of the environment; `ewe --check-config` checks them all. The stronger wins: default, file,
environment, command line. `ewe --print-config` shows every value and which of them it came from.

- Another file is named by `--config` or `EWE_CONFIG`. Paths are relative to where ewe is started.
- Times are seconds or take `ms`, `s`, `m`, `h` or `d`, up to {DAYS_AT_MOST}d. Sizes are bytes or take
  `k`, `m` or `g` (1k is 1024).
- A list (`bind`, `fastcgi`) is a list in a file, a flag repeated, a variable with commas. Switches are pairs
  of flags: `--indexes`, `--no-indexes`.
- `PORT` and `WEB_CONCURRENCY` are taken for `EWE_PORT` and `EWE_WORKERS` where those are not set.
- Where a stronger source gives `host` or `port`, the `bind` of a weaker one is set aside.\
"""


def main() -> None:
    """Print docs/settings.md."""
    print(_PREFACE)
    for group, settings in groups().items():
        print(f"\n## {group}\n\n| key | default | variable | meaning | takes |\n|---|---|---|---|---|")
        for setting in settings:
            names = ", ".join(f"`{key}`" for key in setting.keys)
            default = setting.show(setting.default)
            cells = (names, f"`{default}`" if default else "none", f"`{setting.variable}`", setting.help)
            print(f"| {' | '.join(cells)} | {setting.kind.expected} |")


if __name__ == "__main__":
    main()
