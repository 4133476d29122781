"""Settings that stand in tables of a TOML file. The fields of a dataclass describe a table, each setting once.

    @dataclass(frozen=True)
    class Engine:
        files: int = setting(256, COUNT, "open files")     # files = 300 in the table [engine]

X-Switch's settings are such tables. ewe's own settings (ewe.config.settings) are flags and variables as well, and a
server that forks for each request reads them, so they do without dataclasses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple

from ewe.config.messages import ConfigError, nearest, quoted
from ewe.config.setting_types import BOOL, Kind


class Described(NamedTuple):
    """A setting of a table: what it can be, and what it means."""

    kind: Kind[Any]
    help: str


def read_file(file: str) -> dict[str, Any]:
    """Return the table of a TOML file. Raises ConfigError."""
    try:
        with open(file, "rb") as source:
            return tomllib.load(source)
    except OSError as reason:
        raise ConfigError(f"{file}: {reason.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{file}: its tables and lists are nested too deep") from None
    except ValueError as reason:  # of the text, or a number that is too large for Python
        raise ConfigError(f"{file}: {reason}") from None


def setting(default: Any, kind: Kind[Any], help: str) -> Any:
    """Return the dataclass field of a setting."""
    described = {"setting": Described(kind, help)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=described)
    return field(default=default, metadata=described)


def described(table: type) -> dict[str, Described]:
    """Return the settings that a dataclass describes, by their keys in a file."""
    return {
        each.name.replace("_", "-"): each.metadata["setting"]
        for each in fields(table)
        if "setting" in each.metadata
    }


def read_table(table: Mapping[str, object], known: Mapping[str, Described], where: str) -> dict[str, Any]:
    """Return a table's values by the names of fields. where: how an error begins. Raises ConfigError."""
    values = {}
    for key, raw in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key}{nearest(key, known)}")
        kind = known[key].kind
        try:
            values[key.replace("-", "_")] = kind.read(raw)
        except ValueError:
            raise ConfigError(f"{where}: {key} must be {kind.expected}, not {quoted(raw)}") from None
    return values


def sub_table(table: Mapping[str, object], key: str, where: str) -> dict[str, Any]:
    """Return a table within a table, empty if there is none. Raises ConfigError."""
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} must be a table: [{key}]")
    return found


def toml(kind: Kind[Any], value: object) -> str:
    """Return a value as TOML writes it, so that `kind` reads it again."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(quoted(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{quoted(name)} = {quoted(text)}' for name, text in value.items())}}}"
    text = kind.show(value)
    return text if kind is BOOL or (isinstance(value, int) and text == str(value)) else quoted(text)


def rows(known: Mapping[str, Described], defaults: Mapping[str, object]) -> Iterator[str]:
    """Yield the rows of a Markdown table: each key with its default, its meaning, and what it can be."""
    yield "| key | default | meaning | takes |"
    yield "|---|---|---|---|"
    for key, (kind, help) in known.items():
        default = defaults.get(key.replace("-", "_"))
        shown = f"`{toml(kind, default)}`" if default not in (None, "", (), {}) else "none"
        yield f"| `{key}` | {shown} | {help} | {kind.expected} |"
