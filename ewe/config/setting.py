"""One setting: its names, its kind, its default, its meaning, and the tables of a settings file that may have it.

The settings of the server stand in `Config` (settings.py), and so do those that several features share. A feature
declares its own settings beside its code:

    PROXY_KEEP = Setting(True, BOOL, "keep connections to these servers open", group="proxies",
                         key="proxy-keep", after="proxy")

`config.port` and `config[PROXY_KEEP]` are the values, both with their types. The command line, the environment, a
settings file, `--help`, `--print-config`, docs/settings.md and the completion of shells treat both settings alike.
They have to know each setting before any feature is made. The table SETTINGS (ewe.config.feature_table) therefore
names the files that declare settings, and says what such a file may import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, overload

from ewe.config.setting_types import Kind

T_co = TypeVar("T_co", covariant=True)  # a setting gives values, and takes none
Scope = Literal["server", "site", "location"]

# Groups whose settings hold for the server as a whole. A setting of another group may differ from site to site.
SERVER_GROUPS = frozenset({"listening", "model", "operations", "http"})


class SourcedValue(NamedTuple):
    """A value that a source gives to a setting, before the setting's kind has read it.

    label: how an error about the value begins, "ewe.toml line 3: port =". origin: the place that the user has to
    change: "ewe.toml line 3", "EWE_PORT" or "command line".
    """

    key: str
    raw: object
    label: str
    origin: str


class Key:
    """A key of a table in a TOML file: the kind of its values, and its meaning for the documentation."""

    def __init__(self, kind: Kind[Any], help: str, was: str = "") -> None:
        """was: the key's former name, which a file may still have; "": it had none."""
        self.kind, self.help, self.was = kind, help, was


class Setting(Key, Generic[T_co]):
    """Describe one setting. `Config.port` is this description; `config.port` is the value.

    It is a descriptor without `__set__`: Python finds the value in the instance's dictionary first.
    """

    def __init__(
        self, default: T_co, kind: Kind[T_co], help: str, *, group: str, names: tuple[str, ...] = (),
        was: str = "", scope: Scope | None = None, key: str = "", after: str = "",
    ) -> None:  # fmt: skip
        """kind: the values that the setting can have. help: its meaning, for `--help` and the documentation.

        group: the part of the documentation that lists the setting. names: synonyms of the key, spelled as in a
        file. was: the former name, which still works, but a start logs a line about it; "": it had none. scope: the
        smallest part of a server that may have its own value; None: the server for a group of SERVER_GROUPS, else a
        site.

        Only a setting that a feature declares outside of Config needs `key` and `after`. key: the name in a
        settings file. A setting in Config gets its key from its attribute (__set_name__). after: the key of the
        setting that it follows in the documentation; "": it comes last in its group. The first setting of a group
        follows the last one of the group before it.
        """
        super().__init__(kind, help, was)
        self.default, self.group = default, group
        self.synonyms, self.after = (*names, was) if was else names, after
        self.scope: Scope = scope or ("server" if group in SERVER_GROUPS else "site")
        if key:
            self.take_name(key.replace("-", "_"))

    kind: Kind[T_co]

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute of Config. Python calls this when it makes the class."""
        self.take_name(name)

    def take_name(self, name: str) -> None:
        """Derive the key, the names in files and flags, and the environment variable from the name in Python."""
        self.name = name
        self.key = name.replace("_", "-")
        self.keys = (self.key, *self.synonyms)
        self.variable = variable(self.key)

    if TYPE_CHECKING:

        @overload
        def __get__(self, config: None, owner: type) -> Setting[T_co]: ...
        @overload
        def __get__(self, config: object, owner: type) -> T_co: ...

    def __get__(self, config: object, owner: type) -> Setting[T_co] | T_co:
        """Return this description for `Config.port`, and the default for a config that has no value for it."""
        return self if config is None else self.default

    def read(self, raw: object, label: str) -> T_co:
        """Return the value that a text or a TOML value stands for. Raises ConfigError: `label` and the reason."""
        return self.kind.read_at(label, raw)

    def show(self, value: Any) -> str:
        """Return a value as people write it; `read` accepts it."""
        return self.kind.show(value)


def variable(key: str) -> str:
    """Return the environment variable of a key: ``cgi-path`` is ``EWE_CGI_PATH``."""
    return "EWE_" + key.replace("-", "_").upper()


def in_documented_order(own: Iterable[Setting[Any]], declared: Iterable[Setting[Any]]) -> list[Setting[Any]]:
    """Return all settings in the order of the documentation.

    own: of Config, in order. declared: of features; each follows the setting that it names, or ends its group.

    Raises ValueError if two have the same name, if one has no key, or if `after` names no setting.
    """
    ordered = list(own)
    for setting in declared:
        if not hasattr(setting, "key"):
            raise ValueError(
                f"a setting of a feature needs its key: Setting(..., key=...) for {setting.help!r}"
            )
        # After each setting that it could follow: the one named by `after`, else those of its group
        positions = [
            number
            for number, earlier in enumerate(ordered, 1)
            if (earlier.key == setting.after if setting.after else earlier.group == setting.group)
        ]
        if setting.after and not positions:
            raise ValueError(f"{setting.key}: there is no setting {setting.after} that it could follow")
        ordered.insert(positions[-1] if positions else len(ordered), setting)
    keys = [key for setting in ordered for key in setting.keys]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"two settings have the name {', '.join(sorted(twice))}")
    return ordered
