"""Kinds of tables: one reader serves every table of a TOML file, and names the part that is wrong.

    x.toml                   TableKind(keys)     certain keys, each with its kind: X-Switch's file, the daemon's
    auth = { realm = ... }   TableKind(keys)     the table of one key
    headers.set              TableKind(others)   keys that the file chooses, with names and values of certain kinds

A label is how an error begins. The label of a part goes on from the label of the whole:

    x.toml:                  → x.toml: limits =                → x.toml: limits.cpu = "much": expected ...
    ewe.toml line 5: auth =  → ewe.toml line 5: auth.realm = 3: expected ...

[[site]] and [[site.location]] (ewe.config.site_tables) have several sorts of keys, and a line for each key. They
use the same kinds and the same words (ewe.config.messages).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ewe.config.messages import ConfigError, quoted, unknown_key, wrong_value
from ewe.config.setting import Key
from ewe.config.setting_types import Kind


def label_of_keys(label: str) -> str:
    """Return how an error about the keys of a table begins."""
    return label.removesuffix(" =") + ":" if label.endswith(" =") else label


def label_of_value(label: str, key: object) -> str:
    """Return how an error about the value of one key of a table begins."""
    name = str(key) if re.fullmatch(r"[\w-]+", str(key)) else quoted(key)
    return f"{label.removesuffix(' =')}.{name} =" if label.endswith(" =") else f"{label} {name} ="


class TableKind(Kind[dict[Any, Any]]):
    """The kind of tables with certain keys, or with keys that the file chooses."""

    def __init__(
        self, expected: str, keys: Mapping[str, Key] | None = None, *, needs: tuple[str, ...] = (),
        defaults: Mapping[str, Any] | None = None, others: tuple[Kind[Any], Kind[Any]] | None = None,
        least: int = 0, short: Callable[[object], object] | None = None,
    ) -> None:  # fmt: skip
        """expected: a description of the table, for messages. keys: the known keys; None: there are none.

        needs: keys that must be there. defaults: values of absent keys. others: two kinds, for the name and for the
        value of every key that is not in `keys`; None: no other key is allowed. least: the smallest number of keys.
        short: a function for a table with a short form, such as `requests-per-second = 5` for
        `requests-per-second = { rate = 5 }`. It returns the table for a short form, and any other value unchanged.
        None: the table has no short form.
        """
        super().__init__("TABLE", expected, lambda raw: self.read_at("", raw))
        self.keys, self.needs, self.defaults = keys or {}, needs, defaults or {}
        self.former = {key.was: name for name, key in self.keys.items() if key.was}
        self.others, self.least, self.short = others, least, short
        self.hint = f": expected {expected}" if "{" in expected else ""  # an example of the table

    def read_at(self, label: str, raw: object) -> dict[Any, Any]:
        """Return the values by their keys. Raises ConfigError, which begins with `label` and names the key."""
        # `short` makes a table of the short form, such as a text, and returns any other value as it is.
        if self.short is not None and (table := self.short(raw)) is not raw:
            try:
                return self.read_at(label, table)
            except ConfigError:
                raise wrong_value(label, raw, self.expected) from None
        if not isinstance(raw, Mapping) or len(raw) < self.least:
            raise wrong_value(label, raw, self.expected)
        values = dict(self.defaults)
        for key, value in raw.items():
            if key in self.former:
                if (new := self.former[key]) in raw:
                    raise ConfigError(f"{label_of_keys(label)} {key} is the former name of {new}: keep one")
                values[new] = self.keys[new].kind.read_at(label_of_value(label, key), value)
            elif key in self.keys:
                values[key] = self.keys[key].kind.read_at(label_of_value(label, key), value)
            elif self.others is not None:  # keys that the file chooses, such as the names of fields
                key_kind, value_kind = self.others
                # The key first: an error about a key comes before one about its value.
                name = key_kind.read_at(label_of_keys(label), key)
                values[name] = value_kind.read_at(label_of_value(label, key), value)
            else:
                raise unknown_key(label_of_keys(label), key, self.keys, instead=self.hint)
        for key in self.needs:
            if key not in values:
                raise ConfigError(f"{label_of_keys(label)} {key} is missing: {self.keys[key].help}")
        return values

    def name_of(self, key: str) -> str:
        """Return the name of a key that a file may call by its former name."""
        return self.former.get(key, key)

    def renamed(self, label: str, raw: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for each key of a valid table, and of the tables in it, that has its former name."""
        for key, value in raw.items():
            if key in self.former:
                yield f"{label_of_keys(label)} {key} is now called {self.former[key]}"
            name = self.name_of(key)
            _, kind_of_others = self.others or (None, None)
            kind = self.keys[name].kind if name in self.keys else kind_of_others
            if isinstance(kind, TableKind) and isinstance(value, Mapping):
                yield from kind.renamed(label_of_value(label, key), value)
