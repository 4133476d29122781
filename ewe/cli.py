"""The command ``ewe``: reads the command line and the settings, checks them, and starts the server.

Exit status: 0 after a stop by a signal, 1 if the server could not start, 2 for wrong usage or configuration, 130
after Ctrl-C in a command that starts no server. (4, requests were aborted, comes from the server.) Each error is
one line on standard error: ``ewe: ...``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Collection, Sequence

from ewe import __version__
from ewe.config.command import DONE, FAILED, WRONG_USAGE, RaisingParser, entry_point, interrupt_stops
from ewe.config.command_parser import HelpFormatter
from ewe.config.feature_table import COMMANDS, MANUAL, XSWITCH, directories, feature
from ewe.config.messages import ConfigError, Failure, docs_page, nearest, one_line, quoted
from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL
from ewe.config.settings import OWN_SETTINGS, SETTINGS, Config, groups
from ewe.registry import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = os.path.dirname(os.path.abspath(__file__))


MAX_DEFAULT_CHARS = 50  # characters of a default in the help; --print-config shows all
DIRECTORY_ORIGIN = "the directory of the command line"  # of a document root


class SiteError(Failure):
    """A directory of the site is missing. The text is one line."""


@entry_point("ewe", unread=DONE)
def main(arguments: list[str]) -> int:
    """Run the command with its arguments (by default those of the process), and return its exit status."""
    try:
        return _run(arguments)
    except FileNotFoundError:
        if _has_current_directory():
            raise
        raise Failure("the current directory was removed: change to one that exists") from None


def _has_current_directory() -> bool:
    """Return whether the current directory exists: relative paths, such as htdocs, need it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _run(arguments: list[str]) -> int:
    """Run the command with its arguments, and return its exit status."""
    options = _parse(arguments)
    for command in COMMANDS:
        if getattr(options, command.option.replace("-", "_")):
            return _print(load(command.run)())
    config = _configure(options)
    if options.print_config:
        return _print(as_toml(config))
    if options.check_config:
        return _check(config)
    if options.explain is not None:
        return _explain(config, options.explain)
    return _serve(choose_site(config), options)


@interrupt_stops
def _serve(config: Config, options: argparse.Namespace) -> int:
    from ewe.server.run import serve

    return serve(config, lambda: choose_site(_configure(options)))


def _check(config: Config) -> int:
    """Check whether a start would succeed. Print one line for each setting that would prevent it.

    Return the exit status: 0 if it would succeed, 2 if a setting is wrong, else 1. Raises ConfigError for a fault
    in X-Switch's own settings file.
    """
    from ewe.server.preflight import examine

    feature(XSWITCH).process.check(config)  # the settings file of X-Switch
    failures: list[str | ConfigError] = []
    try:
        config = choose_site(config)
    except SiteError as error:
        failures.append(str(error))
    found, notes = examine(config)
    failures += found
    for line in (*failures, *(f"note: {note}" for note in notes)):
        print(f"ewe: {one_line(str(line))}", file=sys.stderr)
    if failures:
        return WRONG_USAGE if any(isinstance(each, ConfigError) for each in failures) else FAILED
    return _print(f"configuration ok ({config.file or 'no file'})\n")


def _explain(config: Config, question: str) -> int:
    """Print the site, the location and the rule that would answer a request, and the reason."""
    from ewe.config.setting_types import parse_address
    from ewe.server.preflight import config_for_check
    from ewe.server.run import addresses_of
    from ewe.sites import make_site
    from ewe.sites.explain import explain

    config = choose_site(config)
    try:
        addresses = (parse_address(each) for each in addresses_of(config))
        server = next(((host, port) for kind, host, port in addresses if kind == "tcp"), ("localhost", 80))
        site = make_site(config_for_check(config), imports=False)
        return _print("\n".join(explain(site, question, server)) + "\n")
    except ConfigError:  # a ValueError with an exit status of its kind, 2
        raise
    except ValueError as error:
        raise Failure(str(error)) from None


def _print(text: str) -> int:
    """Print a text as it is, and return 0, the exit status of a command that has succeeded."""
    encoding = sys.stdout.encoding  # a path may contain bytes that are not text
    print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)
    return 0


# The parser of the command line


_NO_BREAK_SPACE = "\xa0"  # argparse wraps no help text there


class _Parser(RaisingParser):
    def format_help(self) -> str:
        from ewe.processors import base

        # Only for --help, since the search for the models of other packages takes some time.
        self.epilog = f"Models: {', '.join(base.names())}."
        return super().format_help().replace(_NO_BREAK_SPACE, " ")


class _Formatter(HelpFormatter):
    """Formats the help for 80 columns on every terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=79)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)  # cgi-bin stays one word


SHORT_HELP = """\
usage: ewe [model] [option ...] [port] [directory]

Serve files and programs, under the concurrency model of your choice.

  ewe                     htdocs/ and cgi-bin/ of this directory, at port 4000
  ewe -p 8080             the same by a pool of threads, at port 8080
  ewe ~/site              the files of that directory, and no programs
  ewe --host 0.0.0.0 .    this directory, for every computer of the network
  ewe --config site.toml  what a settings file says: several sites, TLS, logins

models:   -n serial    -f fork    --model prefork    -t thread
          -p pool      -a asyncio    -x X-Switch     --model yours:Class
options:  --host ADDRESS       --documentroot PATH    --access-log PATH | off
          --port NUMBER        --cgi-path PATH        --tls self    (HTTPS)
          --workers auto | N   --poolthreads COUNT    --open   (the browser)
checks:   --check-config       --print-config         --explain URL

ewe --help all lists every option; ewe --help GROUP those of one group:
{groups}.
"""


class _Help(argparse.Action):
    """Print one screen of help, the whole help, or the help of one group of options."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        titles = [group.title for group in parser._action_groups if group.title in groups()]
        if values == "all":
            parser.print_help()
        elif not values:
            listed = textwrap.fill(", ".join(titles), 78, break_on_hyphens=False)
            print(SHORT_HELP.format(groups=listed), end="")
        elif values in titles:
            formatter = parser._get_formatter()
            [group] = [group for group in parser._action_groups if group.title == values]
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
            print(formatter.format_help().replace(_NO_BREAK_SPACE, " "), end="")
        else:
            raise ConfigError(f"--help {quoted(values)}: there is help for all, {', '.join(titles)}")
        parser.exit()


class _Set(argparse.Action):
    """Collect the values of a setting in the namespace's `given`: {key: [(name used, value), ...]}."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name = (option or "").removeprefix("--")
        if self.nargs == 0:
            values = self.const or not name.startswith("no-")
            name = self.dest
        namespace.given.setdefault(self.dest, []).append((name, values))


def _parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line into `given`, its settings, and `words`, its port and directory.

    Raises ConfigError; SystemExit after --help.
    """
    parser = command_line()
    known = parser._option_string_actions
    mounts = any(word.startswith("--mount") for word in argv)
    if mounts or _unknown_options(argv, known):
        # A feature that the settings file mounts may have the option.
        try:
            _know_settings_of_mounted(argv)
        except ConfigError as reason:
            if not mounts:
                _check_flags(argv, known, f"; the settings cannot be read: {reason}")
            raise
        parser = command_line()
    _check_flags(argv, parser._option_string_actions)
    options, words = parser.parse_known_args(argv, argparse.Namespace(given={}))
    options.words = [options.word, *words] if hasattr(options, "word") else words
    return options


def _know_settings_of_mounted(argv: list[str]) -> None:
    """Read the settings of the mounted features, so that the command line may set them. Raises ConfigError."""
    parser = _Parser(prog="ewe", argument_default=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    parser.add_argument("--config")
    parser.add_argument("--mount", action="append")
    options = vars(parser.parse_known_args(argv)[0])
    Config.load([("mount", options["mount"])] if "mount" in options else [], file=options.get("config"))


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line. Raises ConfigError for a setting that has the name of an option."""
    from ewe.processors import base

    parser = _Parser(
        prog="ewe",
        usage=f"ewe [{' | '.join(base.FLAGS)}] [option ...] [port] [directory]",
        description="Serve files and CGI programs, under the concurrency model of your choice.",
        formatter_class=_Formatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "word",
        nargs="?",
        metavar="port or directory",
        help="a port, the same as --port; a directory whose files to serve, and no programs; or both",
    )
    _add_general(parser)
    for title, settings in groups().items():
        group = parser.add_argument_group(title)
        for flag, model in base.FLAGS.items() if title == "model" else ():
            group.add_argument(
                flag, action=_Set, nargs=0, dest="concurrency", const=model, help=f"--model {model}"
            )
        for setting in settings:
            _add_setting(group, setting)
    return parser


def _add_general(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not set a setting."""
    group = parser.add_argument_group("general")
    group.add_argument(
        "--config",
        metavar="FILE",
        default=None,
        help="the settings file [ewe.toml, or [tool.ewe] of pyproject.toml; EWE_CONFIG]",
    )
    group.add_argument(
        "--explain",
        metavar="URL",
        default=None,
        help="print which rule answers a URL, and why, and end: /path, http://host/path or 'POST /path'",
    )
    for name, text in (
        ("--check-config", "check the settings and what they name, and end"),
        ("--print-config", "print every setting, with where it came from, and end"),
        *((f"--{command.option}", command.help) for command in COMMANDS),
    ):
        group.add_argument(name, action="store_true", default=False, help=text)
    group.add_argument(
        "--version", action="version", version=f"ewe {__version__}", help="print the version and end"
    )
    group.add_argument(
        "-h", "--help", action=_Help, nargs="?", const="", metavar="WHAT",
        help="print a screen of help and end; WHAT: all, or what the options concern, such as tls",
    )  # fmt: skip


def _add_setting(group: Any, setting: Setting[Any]) -> None:
    """Add a setting's flags."""
    flags = [f"--{key}" for key in setting.keys]
    metavar = setting.kind.metavar
    switch = setting.kind is BOOL
    if switch:
        flags += [f"--no-{key}" for key in setting.keys]
    default = setting.show(setting.default) or "none"
    if len(default) > MAX_DEFAULT_CHARS:
        default = default[:MAX_DEFAULT_CHARS] + "..."
    try:
        group.add_argument(
            *flags,
            action=_Set,
            dest=setting.key,
            nargs=0 if switch else None,
            metavar=None if switch else metavar,
            help=f"{setting.help} [{default};{_NO_BREAK_SPACE}{setting.variable}]".replace("%", "%%"),
        )
    except argparse.ArgumentError:  # of a mounted feature, such as --config
        raise ConfigError(
            f"the setting {setting.key} of a feature has the name of an option (mount)"
        ) from None


def _check_flags(argv: list[str], known: Collection[str], more: str = "") -> None:
    """Raise ConfigError for an unknown flag; the message names the most similar flag. more: its end."""
    for word in _unknown_options(argv, known):
        name = word.split("=")[0]
        raise ConfigError(f"unknown option {name}{nearest(name, known)}{more}")


def _unknown_options(argv: list[str], known: Collection[str]) -> list[str]:
    """Return the words before "--" that look like flags with unknown names."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return [word for word in options if _is_unknown(word, known)]


def _is_unknown(word: str, known: Collection[str]) -> bool:
    """Return whether a word of the command line looks like a flag, and none has this name."""
    cluster = all(f"-{letter}" in known for letter in word[1:])
    return bool(re.match(r"-[^0-9.]", word)) and word.split("=")[0] not in known and not cluster


def _settings_and_directory(options: argparse.Namespace) -> tuple[list[tuple[str, object]], str | None]:
    """Return the settings on the command line, as (name, raw value), and the directory that it names.

    The directory is the one without an option; None: there is none. Raises ConfigError if two words of the command
    line contradict each other.
    """
    # Key -> the (name of the option, value) pairs, in the order of the command line: [-1][1] is the last value
    given: dict[str, list[tuple[str, Any]]] = dict(options.given)
    # Each model has a flag, and all of these flags set the key `concurrency`.
    models = list(
        dict.fromkeys(Config.concurrency.read(raw, f"--{name}") for name, raw in given.get("concurrency", ()))
    )
    if len(models) > 1:
        raise ConfigError(f"{len(models)} models at once: {', '.join(models[:-1])} and {models[-1]}")
    port, directory = _port_and_directory(options.words)
    if port is not None:
        number = Config.port.read(port, "port")
        if "port" in given and Config.port.read(given["port"][-1][1], "--port") != number:
            raise ConfigError(f"two ports at once: {given['port'][-1][1]} and {port}")
        given["port"] = [("port", port)]
    if directory is not None and "documentroot" in given:
        other = given["documentroot"][-1][1]
        raise ConfigError(f"two directories at once: {other} (--documentroot) and {directory}")
    if "bind" in given and not given.keys().isdisjoint(("host", "port")):
        raise ConfigError("--bind replaces --host and a port: give one or the other")
    # A setting that may be repeated has all its values. Of another one the last value counts.
    repeated = [each.key for each in SETTINGS.values() if isinstance(each.default, tuple)]
    last: list[tuple[str, object]] = [values[-1] for key, values in given.items() if key not in repeated]
    lists = [(key, [raw for _, raw in given[key]]) for key in repeated if key in given]
    return [*last, *lists], directory


def _port_and_directory(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the port and the directory that stand on the command line without an option.

    A number is a port; a directory with such a name must be written as ./8080. Raises ConfigError for any other
    word, and for a second port or directory.
    """
    port = directory = None
    for word in words:
        if os.path.isdir(word) and not word.isdigit():
            if directory is not None:
                raise ConfigError(f"{quoted(word)}: one directory is enough, there is {quoted(directory)}")
            directory = word
        elif "/" in word or word in (".", ".."):
            if os.path.isfile(word):
                raise ConfigError(
                    f"{quoted(word)} is a file: name its directory, or write --config for settings"
                )
            raise ConfigError(f"{quoted(word)}: there is no such directory")
        elif port is not None:
            raise ConfigError(f"{quoted(word)}: one port is enough, and there is no directory of that name")
        else:
            port = word
    return port, directory


# The configuration and the site


def _configure(options: argparse.Namespace) -> Config:
    """Return the configuration from all sources. Raises ConfigError, also for an unknown model."""
    settings, directory = _settings_and_directory(options)
    config = Config.load(settings, file=options.config)
    if directory is not None:
        if config.sites:
            raise ConfigError(f"{quoted(directory)}: {config.file} has [[site]] tables, which name theirs")
        config = files_only(config.replace(DIRECTORY_ORIGIN, documentroot=directory))
    _check_model(config)
    return config


def _check_model(config: Config) -> None:
    """Raise ConfigError if there is no concurrency model of this name; the message names the most similar one."""
    from ewe.processors import base

    try:
        base.model_named(config.concurrency)
    except base.UnknownModel as error:
        near = "" if "did you mean" in str(error) else nearest(config.concurrency, base.names())
        raise ConfigError(f"{error}{near} ({config.origin('concurrency')})") from None


def as_toml(config: Config) -> str:
    """Return all settings as a TOML file with the same effect, each with its origin.

    A default is written as a comment, since some settings have a further effect when a source sets them: the
    directory must then exist, and the port is opened in addition to those of the sites.
    """
    lines = [f"# The settings of ewe {__version__}."]
    for title, settings in groups().items():
        lines += ["", f"# {title}"]
        for setting in settings:
            origin = config.origin(setting.name)
            line = f"{setting.key} = {_toml(setting, getattr(config, setting.name))}"
            lines.append(f"{'# ' if origin == 'default' else ''}{line:<35} # {one_line(origin)}")
    if config.sites:
        from ewe.config.site_tables import as_toml as tables

        lines += ["", *tables(config.sites)]
    return "\n".join(lines) + "\n"


def _toml(setting: Setting[Any], value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(quoted(item) for item in value)}]"
    text = setting.show(value)
    return text if isinstance(value, int) and (text.isdigit() or setting.kind is BOOL) else quoted(text)


def choose_site(config: Config) -> Config:
    """Return the configuration with directories that exist: its own, or those of the sample site.

    If no source sets a document root and there is no htdocs/, ewe serves the current directory if that has an index
    file, else the sample site, and prints a line about it. Raises SiteError if a directory that a source sets does
    not exist.
    """
    sites = config.each_site()
    for site_config in sites:
        check_directories(site_config)
    if (root := config.missing_root()) is not None:
        origin = next(each for each in sites if each.documentroot == root).origin("documentroot")
        if config.sites or origin != "default":
            raise SiteError(f"document root {quoted(root)} ({origin}) is not a directory")
    if config.sites:
        return config
    if root is None:
        samples = [os.path.realpath(os.path.join(each, "htdocs")) for each in _sample_directories()]
        is_default = config.origin("documentroot") == "default"
        is_sample = is_default and os.path.realpath(config.documentroot) in samples
        return with_manual(config) if is_sample else config
    sample = next(
        (each for each in _sample_directories() if os.path.isdir(os.path.join(each, "htdocs"))), None
    )
    if sample is None or any(os.path.isfile(name) for name in config.defaultindex):
        print("ewe: no htdocs here; serving this directory itself, without programs", file=sys.stderr)
        return files_only(config.replace("this directory", documentroot="."))
    print(
        "ewe: no htdocs here; serving the sample site of ewe (`ewe .` serves this directory)", file=sys.stderr
    )
    return with_sample_site(config, sample)


def with_sample_site(config: Config, sample: str) -> Config:
    """Return the configuration that serves the sample site. sample: its directory."""
    own_keys = {setting.key for setting in OWN_SETTINGS}  # the sample has no directory of a mounted feature
    paths = {
        each.setting: os.path.join(sample, each.path)
        for each in directories(config)
        if config.origin(each.setting) == "default" and each.setting in own_keys
    }
    config = with_directories(config, "sample site", paths)
    if config.origin("markdown") == "default" and has_markdown():
        config = config.replace("sample site", markdown=True)
    return with_manual(config.replace("sample site", documentroot=os.path.join(sample, "htdocs")))


def with_manual(config: Config) -> Config:
    """Return the configuration of the sample site, with ewe's own documentation at /docs/ if that is possible.

    It is not possible without the documentation or without the package `markdown`: htdocs/docs/index.html then
    answers. A `mount` of the user stays as it is.
    """
    if (
        config.origin("mount") != "default"
        or not has_markdown()
        or not os.path.isfile(docs_page("README.md"))
    ):
        return config
    return config.replace("sample site", mount=(MANUAL,))


def has_markdown() -> bool:
    """Return whether the package `markdown` is installed, which converts Markdown files to pages."""
    from importlib.util import find_spec

    return find_spec("markdown") is not None


def files_only(config: Config) -> Config:
    """Return the configuration without the directories of programs, unless a source sets them.

    `ewe ~/Downloads` must not run programs in ~/Downloads/cgi-bin, and ./cgi-bin belongs to another site.
    """
    keys = [each.setting for each in directories(config) if config.origin(each.setting) == "default"]
    return with_directories(config, "only files are served", dict.fromkeys(keys, os.devnull))


def with_directories(config: Config, origin: str, paths: dict[str, str]) -> Config:
    """Return the configuration with other directories of programs. paths: the key of a setting -> its value."""
    return config.replace(origin, **{key.replace("-", "_"): path for key, path in paths.items()})


def check_directories(config: Config) -> None:
    """Raise SiteError if a directory of programs that a source names is missing. /dev/null stands for none."""
    for each in directories(config):
        origin = config.origin(each.setting)
        if origin != "default" and each.path != os.devnull and not os.path.isdir(each.path):
            raise SiteError(f"{each.setting} {quoted(each.path)} ({origin}) is not a directory")


def _sample_directories() -> tuple[str, str]:
    """Return the possible directories of the sample site: in an installed package, or beside it in a clone."""
    return os.path.join(PACKAGE, "sample"), os.path.dirname(PACKAGE)
