"""The sources of settings: a TOML file, the environment, and variables of hosting platforms.

Each function returns the values of one source. Nothing here knows which settings exist, or what a value means.

tomllib is imported only if there is a file to read. A server that forks pays for each page of memory that it has
touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ewe.config.messages import ConfigError, nearest
from ewe.config.setting import SourcedValue, variable

FILES = ("ewe.toml", "pyproject.toml")  # looked for in the current directory, where no file is named


def find_file() -> tuple[str, list[SourcedValue]] | None:
    """Return the path of the settings file in the current directory, and its values; None if there is no such file.

    Raises ConfigError, also for a file that root should not trust.
    """
    for candidate in FILES:
        if os.path.exists(candidate) and not os.path.isfile(candidate):
            raise ConfigError(f"{candidate}: not a regular file")  # to open a FIFO would block
        if (found := read_file(candidate, required=False)) is not None:
            if reason := untrusted(candidate):
                raise ConfigError(
                    f"{os.path.abspath(candidate)}: {reason}: to have root use it, say --config"
                )
            return candidate, found
    return None


def untrusted(path: str) -> str:
    """Return why root should not read settings from a file, "" if only root can have written the file.

    Settings name code to load and the user to become.
    """
    if os.geteuid() != 0:
        return ""
    for each in (path, os.path.dirname(os.path.abspath(path))):
        status = os.stat(each)
        what = "it" if each == path else "its directory"
        if status.st_uid != 0:
            return f"{what} belongs to uid {status.st_uid}"
        if status.st_mode & 0o022:
            return f"{what} is writable by others (mode {status.st_mode & 0o7777:04o})"
    return ""


def read_file(path: str, required: bool = True) -> list[SourcedValue] | None:
    """Return the settings in a TOML file, those of ``[tool.ewe]`` in a pyproject.toml; None if it holds none.

    Raises ConfigError for a file that cannot be read, and for one that is required and holds no settings.
    """
    section = "tool.ewe" if os.path.basename(path) == "pyproject.toml" else ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if not required:
            return None
        raise ConfigError(f"cannot read {path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    lines = _lines(text, section)
    if section and not lines and not _has_table(text, section):
        # A pyproject.toml without settings of ewe: its errors do not concern us.
        if not required:
            return None
        raise ConfigError(f"{path}: no [{section}] in it")
    table: Any = _parse(text, path)
    for name in section.split(".") if section else ():
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [{section}] is not a table")
    if isinstance(table.get("site"), list):
        from ewe.config.site_lines import with_lines

        table["site"] = with_lines(table["site"], text, path, section)
    found = []
    for key, raw in table.items():
        origin = f"{path} line {lines[key]}" if key in lines else path
        found.append(SourcedValue(key, raw, label=f"{origin}: {key} =", origin=origin))
    return found


# [tool] with ewe = { ... } below it, tool.ewe.port = 1, tool = { ... }, or ["tool"."ewe"]
TABLE_WITHOUT_USUAL_HEADER = re.compile(
    r"""^\s*(?:\[\s*["']?tool["']?\s*\]|["']?tool["']?\s*[.=]|\[+\s*["']?tool["']?\s*\.\s*["']?ewe\b)""",
    re.MULTILINE,
)
TOOL_EWE = re.compile(r"""^\s*\[*\s*["']?tool["']?\s*\.\s*["']?ewe\b""", re.MULTILINE)


def _has_table(text: str, section: str) -> bool:
    """Return whether a TOML text has the table of a section, although _lines() finds no header of it.

    For a text with an error, the lines decide: the error concerns us if one of them names the table.
    """
    if TABLE_WITHOUT_USUAL_HEADER.search(text) is None:  # most projects: tomllib is not loaded for them
        return False
    try:
        table: Any = _parse(text, "")
    except ConfigError:
        return "ewe" in _lines(text, "tool") or TOOL_EWE.search(text) is not None
    for name in section.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table is not None


def _lines(text: str, section: str) -> dict[str, int]:
    """Return the line number of each key of a section; key "" is the section's header.

    tomllib keeps no positions, so this only looks at how each line begins.
    """
    lines: dict[str, int] = {}
    inside = not section
    prefix = f"{section}." if section else ""
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


# parking = idle, idle = 30s, workers = 8..64, which are no TOML
TEXT_WITHOUT_QUOTES = re.compile(
    r"""\s*([\w-]+)\s*=\s*(?=\S*(?:[A-Za-z/]|\.\.))([^\s"'#=\[\]{}]+)\s*(?:#.*)?"""
)


def _parse(text: str, path: str) -> dict[str, Any]:
    """Return the table that a TOML text makes. Raises ConfigError, with the line."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # A TOMLDecodeError says where; a number or a nesting that is too large does not.
        message = str(error)
        if match := re.search(r" \(at line ([0-9]+), column [0-9]+\)$", message):
            line = text.split("\n")[int(match[1]) - 1]
            hint = TEXT_WITHOUT_QUOTES.fullmatch(line)
            more = f'; a text needs quotation marks: {hint[1]} = "{hint[2]}"' if hint else ""
            raise ConfigError(f"{path} line {match[1]}: {message[: match.start()]}{more}") from None
        last = len(text.rstrip().split("\n"))
        raise ConfigError(f"{path} line {last}: {message.removesuffix(' (at end of document)')}") from None


NO_SETTINGS = ("EWE_CONFIG",)  # settings.py reads it


def from_platform(environ: Mapping[str, str]) -> Iterable[SourcedValue]:
    """Yield PORT and WEB_CONCURRENCY, which platforms set for any server; ewe's own variables are stronger."""
    for name, key in (("PORT", "port"), ("WEB_CONCURRENCY", "workers")):
        if environ.get(name) and not environ.get(variable(key)):
            yield SourcedValue(key, environ[name], label=name, origin=name)


def from_environment(environ: Mapping[str, str], keys: Iterable[str]) -> Iterable[SourcedValue]:
    """Yield the EWE_ variables of these keys; an empty one counts as unset.

    Raises ConfigError for a variable whose name is similar to one of them: it is a misspelling.
    """
    variables = {variable(key): key for key in keys}
    for name in sorted(name for name in environ if name.startswith("EWE_") and environ[name]):
        if name in variables:
            yield SourcedValue(variables[name], environ[name], label=name, origin=name)
        elif name not in NO_SETTINGS and (near := nearest(name, variables, 0.85)):
            # Other unknown names pass: for a service named ewe, Kubernetes sets EWE_SERVICE_HOST and others.
            raise ConfigError(f"unknown variable {name}{near}")
