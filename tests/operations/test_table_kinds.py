"""Tables of a settings file: the accepted values; each error names the place, the key and the remedy."""

from __future__ import annotations

import pytest

from ewe.config.messages import ConfigError
from ewe.config.setting import Key
from ewe.config.setting_types import SIZE, WAIT, Kind, list_of, matching, whole
from ewe.config.table_kinds import TableKind

LETTERS = matching("NAME", "letters", "[a-z]+")
INNER = TableKind("{ name = TEXT, wait = TIME }", {"name": Key(LETTERS, "who asks"), "wait": Key(WAIT, "how long")},
              needs=("name",), defaults={"wait": 1.0},
              short=lambda raw: {"name": raw} if isinstance(raw, str) else raw)  # fmt: skip
FILE = TableKind("a table", {
    "size": Key(SIZE, "how much"),
    "inner": Key(INNER, "a table in the table"),
    "ports": Key(TableKind("ports", others=(LETTERS, whole(1, 9, "1 to 9")), least=1), "keys of the file"),
    "names": Key(list_of("NAME", "a list of letters", LETTERS.read), "a list"),
})  # fmt: skip


def test_values() -> None:
    read = FILE.read_at("x.toml:", {"size": "1k", "inner": "a", "ports": {"b": 2}, "names": ["c", "d"]})
    assert read == {"size": 1024, "inner": {"name": "a", "wait": 1.0}, "ports": {"b": 2}, "names": ("c", "d")}
    assert INNER.read({"name": "a", "wait": "2s"}) == {"name": "a", "wait": 2.0}


@pytest.mark.parametrize(
    "table, text",
    [
        ({"size": "big"}, 'x.toml: size = "big": expected a size in bytes above 0 such as 512, 64k, 2m or 1g'),
        ({"siez": 1}, 'x.toml: unknown key "siez"; did you mean "size"?'),
        ({"inner": 3}, "x.toml: inner = 3: expected { name = TEXT, wait = TIME }"),
        ({"inner": "A"}, 'x.toml: inner = "A": expected { name = TEXT, wait = TIME }'),
        ({"inner": {"name": "A"}}, 'x.toml: inner.name = "A": expected letters'),
        ({"inner": {"wait": 1}}, "x.toml: inner: name is missing: who asks"),
        ({"inner": {"nam": "a"}}, 'x.toml: inner: unknown key "nam"; did you mean "name"?'),
        ({"inner": {"x": 1}}, 'x.toml: inner: unknown key "x": expected { name = TEXT, wait = TIME }'),
        ({"ports": {}}, "x.toml: ports = {}: expected ports"),
        ({"ports": {"a": 10}}, "x.toml: ports.a = 10: expected 1 to 9"),
        ({"ports": {"A b": 99}}, 'x.toml: ports: "A b": expected letters'),
        ({"names": ["a", "B"]}, 'x.toml: names = ["a", "B"]: expected a list of letters (not "B")'),
        ({"names": ["B"]}, 'x.toml: names = ["B"]: expected a list of letters'),
    ],
)  # fmt: skip
def test_errors(table: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FILE.read_at("x.toml:", table)
    assert str(refused.value) == text


def test_a_label_goes_on() -> None:
    with pytest.raises(ConfigError, match=r"^ewe\.toml line 5: auth\.name = 3: expected letters$"):
        INNER.read_at("ewe.toml line 5: auth =", {"name": 3})
    with pytest.raises(ConfigError, match=r'^x\.toml: dirs\."/a b" = "A": expected letters$'):
        TableKind("a table", others=(Kind("", "", str), LETTERS)).read_at("x.toml: dirs =", {"/a b": "A"})


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ConfigError) as refused:
        LETTERS.read_at("x.toml: name =", "A" * 5000)
    assert str(refused.value).endswith("AAA...: expected letters") and len(str(refused.value)) < 400
