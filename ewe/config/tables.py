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
from typing import Any

from ewe.config.messages import ConfigError, quoted
from ewe.config.setting import Key
from ewe.config.setting_types import BOOL, Kind


def read_file(file: str) -> dict[str, Any]:
    """Return the table of a TOML file. Raises ConfigError."""
    try:
        with open(file, "rb") as source:
            return tomllib.load(source)
    except OSError as reason:
        raise ConfigError(f"cannot read {file}: {reason.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{file}: its tables and lists are nested too deep") from None
    except ValueError as reason:  # of the text, or a number that is too large for Python
        raise ConfigError(f"{file}: {reason}") from None


def setting(default: Any, kind: Kind[Any], help: str, was: str = "") -> Any:
    """Return the dataclass field of a setting. was: its former name, which a file may still have."""
    metadata = {"key": Key(kind, help, was)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(table: type) -> dict[str, Key]:
    """Return the keys of a file's table that a dataclass describes."""
    return {
        each.name.replace("_", "-"): each.metadata["key"] for each in fields(table) if "key" in each.metadata
    }


def by_field_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table by the names of the dataclass's fields."""
    return {key.replace("-", "_"): value for key, value in values.items()}


def toml(kind: Kind[Any], value: object) -> str:
    """Return a value as TOML writes it, so that `kind` reads it again."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(quoted(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{quoted(name)} = {quoted(text)}' for name, text in value.items())}}}"
    text = kind.show(value)
    # A number may have a unit when it is shown, such as 64k. TOML has no such numbers, so the text is quoted.
    return text if kind is BOOL or (isinstance(value, int) and text == str(value)) else quoted(text)


def rows(known: Mapping[str, Key], defaults: Mapping[str, object]) -> Iterator[str]:
    """Yield the rows of a Markdown table: each key with its default, its meaning, and its values.

    known: the keys of a TOML table, spelled as in the file. defaults: the value of each key, by the name of its
    dataclass field (`time_limit` for `time-limit`). A key without a default, or with an empty one, shows "none".
    """
    yield "| key | default | meaning | takes |"
    yield "|---|---|---|---|"
    for key, described in known.items():
        default = defaults.get(key.replace("-", "_"))
        shown = f"`{toml(described.kind, default)}`" if default not in (None, "", (), {}) else "none"
        yield f"| `{key}` | {shown} | {described.help} | {described.kind.expected} |"
