"""The shape of a statement: no value of a statement is left in it, whatever the statement is."""

from __future__ import annotations

import pytest

from ewe.database.shape import MAX_SHAPE_CHARS, shape


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT 1", "SELECT ?"),
        ("SELECT a FROM t WHERE b = 'it''s' AND c=2.5e-3", "SELECT a FROM t WHERE b = ? AND c=?"),
        ("SELECT a1, t2.b3 FROM t2", "SELECT a1, t2.b3 FROM t2"),
        ('SELECT "x" FROM "log" WHERE k."name" = "alice"', 'SELECT ? FROM "log" WHERE k."name" = ?'),
        (
            "INSERT INTO t VALUES (x'00ff', X'AA', E'a\\'b', :name, ?1, $2)",
            "INSERT INTO t VALUES (?, ?, ?, :name, ?1, $2)",
        ),
        ("SELECT $$secret$$, $tag$ it's $$ secret $tag$ FROM t", "SELECT ?, ? FROM t"),
        ("SELECT /* secret */ a -- secret\nFROM t", "SELECT a FROM t"),
        ("SELECT 'secret", "SELECT ?"),
        ('SELECT a WHERE "secret', "SELECT a WHERE ?"),
        ("SELECT $q$ secret", "SELECT ?"),
        ("SELECT a /* secret", "SELECT a"),
        ("SELECT 'a\\', 'secret'", "SELECT ?, ?"),
        (r"SELECT E'a\' , secret' FROM t", "SELECT ? FROM t"),
        (r"SELECT a LIKE'x\' , b", "SELECT a LIKE? , b"),
        ("SELECT a /* /* x */ secret */ FROM t", "SELECT a"),
        ('SELECT a IS NOT DISTINCT\nFROM "secret" FROM "t"', 'SELECT a IS NOT DISTINCT FROM ? FROM "t"'),
        ("SELECT 0xFFee, .5, 1_000 FROM t", "SELECT ?, ?, ? FROM t"),
    ],
)
def test_values_become_question_marks(statement: str, expected: str) -> None:
    assert shape(statement) == expected


def test_it_is_one_short_line_and_takes_no_time() -> None:
    assert len(shape("SELECT a,\n" * 500)) == MAX_SHAPE_CHARS
    assert "\n" not in shape("SELECT\n a")
    for evil in ("'" * 100_000, '"' * 100_001, "$" * 100_000, "/*" * 50_000, "$a" * 50_000, "1." * 50_000):
        assert len(shape(evil)) <= MAX_SHAPE_CHARS
