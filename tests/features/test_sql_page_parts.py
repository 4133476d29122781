"""The parts of pages from SQL, in memory: declarations, values, statements, tables, links, charts, templates."""

from __future__ import annotations

import itertools
import re
import time
import tracemalloc
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe import svg
from ewe.sqlpages import results, templates
from ewe.sqlpages.charts import bars, lines
from ewe.sqlpages.declarations import Declarations, PageError, Query, parse, with_nulls
from ewe.sqlpages.results import (
    Choice,
    Page,
    QueryResult,
    fill_placeholders,
    quoted_identifier,
    select_statement,
)
from ewe.sqlpages.templates import Environment, PageTemplate
from ewe.sqlpages.values import BadValue, Parameter, fields_of, value_of, values_to_bind

PAGE = """-- database: library
-- title: Books
-- A comment is no declaration
-- parameter: q text = 'it''s'
-- parameter: year integer
-- parameter: price number = 2.5
-- parameter: since date = '2026-01-31'
-- parameter: all flag = 0
-- parameter: id integer required
-- parameter: bare

-- query: books
-- rows: 20
-- time: 1.5
-- if: q
-- sort: title, "a ""b", year desc
-- what it finds
SELECT title, ':no', "x:y", 1::int /* :no */ -- :no
FROM books WHERE title = :q AND year = :year AND q2 = :q; -- done

-- post: add
-- redirect: books.sql.html?id={id}
INSERT INTO books VALUES (:id)
---
<h1>{{ q }}</h1>
"""


def test_a_page_is_taken_apart() -> None:
    found = parse(PAGE)
    assert (found.database, found.title, found.offset) == ("library", "Books", 24)
    assert found.template == "<h1>{{ q }}</h1>\n"
    assert found.parameters == {
        "q": Parameter("q", "text", "it's"),
        "year": Parameter("year", "integer"),
        "price": Parameter("price", "number", 2.5),
        "since": Parameter("since", "date", "2026-01-31"),
        "all": Parameter("all", "flag", 0),
        "id": Parameter("id", "integer", required=True),
        "bare": Parameter("bare"),
    }
    books = found.queries["books"]
    assert books.parameters == ("q", "year")
    assert (books.rows_per_page, books.time_limit_s, books.needed_parameter, books.line) == (20, 1.5, "q", 17)
    assert books.sort == (("title", False), ('a "b', False), ("year", True))
    assert books.sql.endswith("q2 = :q") and books.sql.startswith("-- what it finds\nSELECT")
    assert found.posts["add"].redirect == "books.sql.html?id={id}"
    assert parse(PAGE.replace("\n", "\r\n")) == found
    assert parse("\ufeff" + PAGE) == found


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "declares nothing"),
        ("<p>hello", 1, "HTML stands below a line ---"),
        ("SELECT 1", 1, "-- query: NAME"),
        ("-- query: a\n\n-- query: b\nSELECT 1", 1, "a has no SQL"),
        ("-- query: a\n-- only a comment\n;\n", 1, "a has no SQL"),
        ("-- query: a\n-- row: 5\nSELECT 1", 2, "did you mean rows?"),
        ("-- query: a\n-- rows: 0\nSELECT 1", 2, "1 to"),
        ("-- query: a\n-- rows: 99999999999999999999\nSELECT 1", 2, "1 to"),
        ("-- query: a\n-- rows: 00000000199999\nSELECT 1", 2, "1 to"),
        ("-- query: a\n-- rows: 000000001" + "0" * 9999 + "\nSELECT 1", 2, "1 to"),
        ("-- query: a\n-- time: nan\nSELECT 1", 2, "seconds"),
        ("-- query: a\n-- time: 4000\nSELECT 1", 2, "from 0.01 to 3600"),
        ("-- query: a\n-- sort: a b c\nSELECT 1", 2, "list of columns"),
        ("-- query: a\n-- sort: " + "a," * 2000 + "a\nSELECT 1", 2, "more than 2000 columns"),
        ("-- query: a\n-- empty: 200\nSELECT 1", 2, "404"),
        ("-- query: a\nSELECT 1\n-- rows: 5", 3, "between `-- query: NAME` and its SQL"),
        ("-- rows: 5\n-- query: a\nSELECT 1", 1, "between"),
        ("-- post: a\n-- rows: 5\nSELECT 1", 2, "between `-- query: NAME`"),
        ("-- query: a b\nSELECT 1", 1, "not a name"),
        ("-- query: page\nSELECT 1", 1, "has a meaning"),
        ("-- parameter: a\n-- query: a\nSELECT 1", 2, "declared twice"),
        ("-- parameter: a tex\n-- query: b\nSELECT 1", 1, "unknown type 'tex'"),
        ("-- parameter: a integer = x\n-- query: b\nSELECT 1", 1, "whole number"),
        ("-- parameter: a text = x\n-- query: b\nSELECT 1", 1, "in quotes"),
        ("-- parameter: a b c d\n-- query: b\nSELECT 1", 1, "NAME TYPE"),
        ("-- parameter: q\n-- query: b\nSELECT :Q", 3, "did you mean :q?"),
        ("-- query: b\nSELECT 1,\n:x", 2, "write `-- parameter: x`"),
        ("-- query: b\n-- if: x\nSELECT 1", 3, "-- parameter: x"),
        ("-- query: b\nSELECT 1;\nDELETE FROM a", 3, "only one statement"),
        ("-- query: b\nSELECT 1; SELECT 2", 2, "only one statement"),
        ("-- query: b\nSELECT 1;;", 2, "only one statement"),
        ("-- post: b\n-- redirect: //evil.example/\nDELETE FROM a", 2, "of this site"),
        ("-- post: b\n-- redirect: https://evil.example/\nDELETE FROM a", 2, "of this site"),
        ("-- post: b\n-- redirect: {x}\nDELETE FROM a", 2, "of this site"),
        ("-- post: b\n-- redirect: /\\evil.example\nDELETE FROM a", 2, "of this site"),
        ("-- database: a b\n-- query: b\nSELECT 1", 1, "one name"),
    ],
)
def test_a_mistake_is_found_and_its_line_is_named(text: str, line: int, words: str) -> None:
    with pytest.raises(PageError) as error:
        parse(text)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert error.value.line == line


def test_a_redirect_can_stand_in_a_field() -> None:
    text = "-- parameter: q\n-- post: a\n-- redirect: /bücher neu?q={q}#ende\nDELETE FROM a WHERE b = :q"
    assert parse(text).posts["a"].redirect == "/b%C3%BCcher%20neu?q={q}#ende"


@given(st.text(alphabet=st.sampled_from("-: \nabq;'\"/*$SELECT{}<>=1"), max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    try:
        parse("-- parameter: q\n-- query: x\n" + text)
    except PageError:
        pass


LONG = 1 << 19
QUERY = "-- query: a\nSELECT 1 "


@pytest.mark.parametrize(
    "text",
    [
        "-- title: x" + " " * LONG + "y",
        "-- parameter: a" + " " * LONG + "!",
        "-- parameter: a integer" + " " * LONG + "= 1" + " " * LONG + "!",
        "-- query: a\n-- sort: b" + " " * LONG + "!\nSELECT 1",
        "-- query: a\n-- sort: " + "b," * (LONG // 2) + "\nSELECT 1",
        QUERY + "/* " * (LONG // 3),
        QUERY + "".join(f"$a{number}$ " for number in range(LONG // 10)),
        QUERY + "'a''" * (LONG // 4),
        QUERY + '"a""' * (LONG // 4) + "`",
        "-- parameter: a\n" + QUERY + ":a" + " " * LONG + "IS" + " " * LONG,
        "-- query: a\n" + "\n" * LONG + "SELECT 1",
        "-- query: a\n" + "--time:1\n" * (LONG // 9) + "SELECT 1",
        "".join(f"-- parameter: {'a' * 180}{number}\n" for number in range(LONG // 200))
        + QUERY
        + ":"
        + "a" * 185,
    ],
)
def test_no_line_takes_the_square_of_its_length(text: str) -> None:
    """With the square, half a megabyte would take an hour, and no other client would be answered meanwhile."""
    began = time.process_time()
    try:
        parse(text + "\n---\n")
    except PageError:
        pass
    assert time.process_time() - began < 4


def test_what_a_comment_and_a_quote_hold_until_the_end_is_no_parameter() -> None:
    for text in ("/* :a", "$b$ :a", "$$ :a $b$", "/* :a * /"):
        assert parse(QUERY + text).queries["a"].parameters == ()


def test_values_are_read_by_their_types() -> None:
    types = {"t": "text", "i": "integer", "n": "number", "d": "date", "f": "flag"}
    kinds = {name: Parameter(name, kind) for name, kind in types.items()}
    given = fields_of("t=a+b%26%c3%bc&i=-7&n=1e3&d=2026-02-28&f=on&f=0&other=1")
    assert values_to_bind("tindf", kinds, given) == {
        "t": "a b&ü",
        "i": -7,
        "n": 1000.0,
        "d": "2026-02-28",
        "f": 0,
    }
    assert values_to_bind("tin", kinds, fields_of("t=&i=&n=+")) == {"t": "", "i": None, "n": None}
    # Python's int() and float() do not skip all characters that strip() removes.
    assert values_to_bind("in", kinds, fields_of("i=%1c7%1f&n=%1c1.5")) == {"i": 7, "n": 1.5}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"), ("integer", "x"), ("integer", "9223372036854775808"), ("integer", "9" * 30),
        ("integer", "٣"), ("number", "nan"), ("number", "inf"), ("number", "1e999"), ("number", "0x1"),
        ("date", "2026-02-30"), ("date", "today"), ("flag", "maybe"), ("text", "a\0b"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_of_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(BadValue, match=r"^x "):
        value_of(Parameter("x", kind), text)


def test_what_is_required_must_be_given() -> None:
    for text in (None, ""):
        with pytest.raises(BadValue, match="x is missing"):
            value_of(Parameter("x", required=True), text)


@pytest.mark.parametrize("query", ["a=%ff", "&".join(f"a{n}=1" for n in range(1001))])
def test_a_query_that_cannot_be_read_is_refused(query: str) -> None:
    with pytest.raises(BadValue, match=r"^The query or the form "):
        fields_of(query)


BOOKS = Query("books", 1, "SELECT a -- all", rows_per_page=10, sort=(("title", False), ("year", True)))


def statement(**given: str) -> str:
    return select_statement(BOOKS, Choice(BOOKS, "", given))


def test_a_query_is_a_subquery_sorted_by_declared_columns_alone() -> None:
    begin = 'SELECT * FROM (\nSELECT a -- all\n) AS "books" ORDER BY '
    assert statement() == begin + '"title", "year" DESC LIMIT 11 OFFSET 0'
    assert statement(sort="year", page="3") == begin + '"year", "title" LIMIT 11 OFFSET 20'
    assert statement(sort="-title") == begin + '"title" DESC, "year" DESC LIMIT 11 OFFSET 0'
    for sort in ("id", "--title", "title desc", 'title";DROP TABLE books;--', "1", "(SELECT 1)", ""):
        assert statement(sort=sort) == statement(), sort
    for page in ("0", "-1", "1e3", "9999999", "1;DROP", "٣", " 2"):
        assert statement(page=page) == statement(), page
    assert (
        select_statement(BOOKS, Choice(BOOKS, "", {"page": "3"}), whole=True)
        == begin + '"title", "year" DESC'
    )
    assert select_statement(BOOKS, Choice(BOOKS, "books.", {"sort": "year", "books.sort": "-year"})).count(
        '"year" DESC'
    )


def test_a_missing_value_is_a_null_with_a_type() -> None:
    sql = "SELECT ':a', \":a\", :a::int, :b -- :a\n FROM t WHERE :a IS NULL AND :ab"
    kinds = {"a": "date", "c": "text"}
    null = "CAST(NULL AS DATE)"
    assert with_nulls(sql, kinds) == (
        f"SELECT ':a', \":a\", {null}::int, :b -- :a\n FROM t WHERE {null} IS NULL AND :ab"
    )


def test_a_test_for_null_has_a_type() -> None:
    text = "-- parameter: q\n-- parameter: n integer\n-- query: x\n"
    text += "SELECT ':q IS NULL' WHERE :q is not null AND :n = 1"
    assert parse(text).queries["x"].sql.endswith("':q IS NULL' WHERE CAST(:q AS TEXT) is not null AND :n = 1")


@given(st.text())
def test_any_name_is_one_name(name: str) -> None:
    quoted = quoted_identifier(name)
    assert quoted[0] == quoted[-1] == '"' and '"' not in quoted[1:-1].replace('""', "")


def result(columns: list[str], rows: list[list[Any]], given: dict[str, str] | None = None) -> QueryResult:
    declarations = Declarations(queries={"books": BOOKS})
    page = Page(declarations, "/shop/our books.sql.html", given or {}, templates.STYLE)
    return QueryResult(page, BOOKS, Choice(BOOKS, "", given or {}), "", columns, rows)


NASTY = "<script>alert('1')</script>&\""


def test_a_table_shows_text_as_text() -> None:
    found = result(["id", "title", NASTY], [[1, NASTY, None], [2, "x", b"\0\1"]])
    table = str(found.table(links={"title": "book?id={id}&t={title}"}, labels={"id": NASTY}))
    assert "<script" not in table and table.count("&lt;script&gt;") == 3
    assert 'href="book?id=1&amp;t=%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%26%22"' in table
    plain = str(found.table())
    assert "<script" not in plain and plain.count("&lt;script&gt;") == 2
    assert '<td class="number">1' in table and "<td>2 bytes" in table
    assert re.findall(r"<th[^>]*>(?:<a[^>]*>)?([^<]+)", str(found.table(hide=[NASTY]))) == ["id", "title"]
    assert "Nothing was found." in found.__class__(found._page, BOOKS, found._choice, "", ["a"], []).table()


def test_a_column_is_hidden_by_its_whole_name() -> None:
    found = result(["id", "title"], [[1, "x"]])
    for hide, heads in (("title", ["id"]), ("id, title", ["id", "title"]), (["title", "id"], [])):
        table = str(found.table(hide=hide))
        assert re.findall(r"<th(?: [^>]*)?>(?:<a[^>]*>)?(\w+)", table) == heads, hide


def test_a_page_may_have_a_name_that_is_not_utf_8() -> None:
    page = Page(Declarations(), "/b\udcfccher.sql.html", {}, "")
    found = QueryResult(page, BOOKS, Choice(BOOKS, "", {}), "", ["a"], [])
    assert found.csv == "b%FCcher.sql.csv?"


def test_links_keep_what_the_visitor_has_chosen() -> None:
    given = {"q": "a&b", "sort": "-year", "page": "2", "other": '">'}
    found = result(["title", "year"], [["a", 1]] * 11, given)
    table = str(found.table())
    assert 'href="?q=a%26b&amp;sort=title&amp;other=%22%3E"' in table
    assert (
        '<th class="number" aria-sort="descending"><a href="?q=a%26b&amp;sort=year&amp;other=%22%3E"' in table
    )
    assert 'rel="prev" href="?q=a%26b&amp;sort=-year&amp;other=%22%3E"' in table
    assert 'rel="next" href="?q=a%26b&amp;sort=-year&amp;page=3&amp;other=%22%3E"' in table
    assert "Rows 11 to 20; there are more" in table and len(found) == 10 and found.cut
    assert found.csv == "our%20books.sql.csv?q=a%26b&sort=-year&other=%22%3E"
    assert fill_placeholders("a?x={x}&y={y}", {"x": "../&=", "y": None}) == "a?x=..%2F%26%3D&y="


def test_charts_are_well_formed_and_hold_no_markup_of_the_data() -> None:
    labels = [NASTY, "b\0c", None, "a" * 300, 5]
    for numbers in (
        [1, 2.5, None, "7", 0],
        [-3, 5, 1, 2, 9],
        [0, 0, 0, 0, 0],
        [1e200, 1e-9, 1, "x", True],
        [-5e-324, 5e-324] * 2 + [0],
    ):
        for drawn in (
            bars("n", "", ["x", "y"], [labels, numbers]),
            lines("n", NASTY, ["x", "y"], [labels, numbers]),
        ):
            assert "<script" not in drawn
            ElementTree.fromstring(drawn)
    for number in (1.7e18, -9e299, 2026, 0):  # an axis for one number
        ElementTree.fromstring(lines("n", "", ["x", "y"], [[number, number], [1, 2]]))
    several = lines("n", "", ["x", "y", "z"], [[2000, 2001, 2002], [1, 2, 3], [3, None, 1]])
    assert several.count('class="line ') == 2
    assert bars("n", "", ["x", "y"], [["a"], ["b"]]) == "" and lines("n", "", ["x", "y"], [[], []]) == ""
    many = bars("n", "", ["x", "y"], [list(range(100)), list(range(100))])
    assert many.count("<rect") == 60 and "the first 60 of 100" in many


@pytest.mark.parametrize(
    "text",
    [
        "{{ x.table(links={'a': '{a}' * 100}) }}",
        "{{ x.table(links={'a': '{b}' * 300000}) }}",
        "{{ x.lines('b', *'b' * 50000) }}",
    ],
)
def test_a_call_of_a_result_takes_little_time(text: str) -> None:
    """The clock is not looked at within one call, so what the call may be given is bounded."""
    found = result(["a", "b"], [["t" * 3000, 1]] * 100)
    with pytest.raises(PageError) as error:
        render(text, x=found)
    assert "ValueError: a " in str(error.value)


def test_a_chart_with_long_texts_takes_little_time() -> None:
    """The data may be a visitor's: cutting a label letter by letter would take minutes."""
    found = result(["a", "b", "c"], [["x" * 200_000 + str(number), number, 1] for number in range(3)])
    for drawn in (found.bars("a", "b", title="<" * 200_000), found.lines("a", "b", "c", title="i" * 200_000)):
        assert "x…" in drawn and len(drawn) < 2_000_000
    assert svg.shortened("abc", 3.5 * svg.width("a")) == "abc"
    assert svg.shortened("a" * 50, 5 * svg.width("a") + svg.width("…")) == "a" * 5 + "…"


def test_a_table_of_links_is_no_longer_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_TABLE_CHARS", 50_000)
    found = result(["a", "b"], [["t" * 8000, 1]] * 10)
    with pytest.raises(ValueError, match="a table longer than"):
        found.table(links={"a": "{a}"})


@pytest.mark.parametrize(
    "text",
    ["{{ x.table(hide=many) }}", "{{ x.table(links=links) }}"],
)
def test_the_time_of_a_table_grows_with_its_size(text: str) -> None:
    """With the product of two sizes, a call would take many seconds, in which no other client is answered."""
    columns = [f"c{number}" for number in range(2000)]
    found = result(columns, [[1] * 2000] * 19)
    began = time.process_time()
    render(text, x=found, many=list(range(500_000)), links=dict.fromkeys(columns, "{c0}"))
    assert time.process_time() - began < 2


def test_a_table_without_links_is_no_longer_than_a_page() -> None:
    found = result(["a"] * 2000, [[1] * 2000] * 20)
    found._rows *= 250
    with pytest.raises(ValueError, match="a table longer than"):
        found.table()


def load(name: str) -> tuple[str, Any]:
    files = {"_layout.sql.html": "<b>{% block content %}{% endblock %}</b>", "_bad.sql.html": "\n{{ nix }}"}
    if name not in files:
        raise FileNotFoundError
    return files[name], lambda: True


def render(text: str, **variables: object) -> str:
    return PageTemplate(Environment(load), text, 10).render(variables)


def test_a_template_escapes_and_extends() -> None:
    assert (
        render("{{ x }}{{ y }}", x=NASTY, y=None)
        == "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&#34;"
    )
    text = '{% extends "_layout.sql.html" %}{% block content %}{{ x }}{% endblock %}'
    assert render(text, x="<") == "<b>&lt;</b>"
    assert (
        render('{{ "a" ~ 1 ~ none ~ "<" }} {{ ["a", "<"]|join(", ") }} {{ [1, none, 2]|sum }}')
        == "a1&lt; a, &lt; 3"
    )
    assert render('{{ "a.b"|replace(".", "<") }}{{ {"a": "</script>"}|tojson }}').startswith("a&lt;b{")
    found = result(["title", "count(*)"], [["a", 3]])
    assert (
        render('{% for each in x %}{{ each.title }}{{ each["count(*)"] }}{% endfor %}{{ x|length }}', x=found)
        == "a31"
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("{{ nix }}", 11, "'nix' is undefined"),
        ("\n\n{% for %}", 13, "Expected"),
        ("\n{{ 1 / 0 }}", 12, "ZeroDivisionError"),
        ('{% include "_bad.sql.html" %}', 0, "_bad.sql.html, line 2: 'nix' is undefined"),
        ('{% extends "other.sql.html" %}', 11, "TemplateNotFound"),
        ('{% include "../_layout.sql.html" %}', 11, "TemplateNotFound"),
        ('{% include "/_layout.sql.html" %}', 11, "TemplateNotFound"),
        ("{{ x.__class__ }}", 11, "unsafe"),
        ("{{ x._page }}", 11, "unsafe"),
        ('{{ x|attr("_page") }}', 11, "unsafe"),
        ("{{ x.table.__func__.__globals__ }}", 11, "unsafe"),
        ("{{ ''.__class__.__mro__ }}", 11, "unsafe"),
        ("{% set y = x.columns.append(1) %}", 11, "unsafe"),
    ],
)
def test_a_mistake_in_a_template_is_found_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(PageError) as error:
        render(text, x=result(["a"], [[1]]))
    assert words in str(error.value)
    assert error.value.line == line


GROW = '{% set a = namespace(s="xx", l=[1], n=9) %}{% for i in range(70) %}'


@pytest.mark.parametrize(
    "text",
    [
        GROW + "{% set a.s = a.s ~ a.s %}{% endfor %}",
        GROW + "{% set a.s = a.s + a.s %}{% endfor %}",
        GROW + "{% set a.s = a.s|tojson %}{% endfor %}",
        GROW + "{% set b %}{{ a.s }}{{ a.s }}{% endset %}{% set a.s = b %}{% endfor %}",
        GROW + "{% set a.l = a.l + a.l %}{% endfor %}",
        GROW + "{% set a.l = [a.l, a.l]|sum(start=[]) %}{% endfor %}",
        GROW + '{% set a.s = a.s|replace("x", a.s ~ "x") %}{% endfor %}',
        GROW + "{% set a.s = [a.s, a.s]|join(a.s) %}{% endfor %}",
        GROW + "{% set a.n = a.n * a.n %}{% endfor %}",
        "{{ 9 ** 9 ** 9 }}",
        '{{ "x" * 999999999 }}',
        "{{ [1] * 999999999 }}",
        '{{ "%999999999d" % 1 }}',
        '{{ "{:999999999}".format(1) }}',
        '{{ "x".ljust(999999999) }}',
        '{{ "\t".expandtabs(999999999) }}',
        "{{ (1).to_bytes(999999999, 'big')|length }}",
        "{{ true.to_bytes(999999999)|length }}",
        "{{ blob.ljust(999999999)|length }}",
        "{{ (blob * 999999999)|length }}",
        '{{ (blob % ("x",))|length }}',
        GROW + "{% set a.s = blob if i == 0 else a.s + a.s %}{% endfor %}",
        '{{ ["a"]|map("center", 999999999)|list }}',
        "{{ [[1]]|tojson(indent=999999999) }}",
        "{{ range(999999999) }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        '{% for i in range(99999) %}{{ "x" * 100000 }}{% endfor %}',
    ],
)
def test_a_template_cannot_grow_without_a_limit(text: str) -> None:
    with pytest.raises(PageError) as error:
        render(text, blob=b"%999999999s")
    assert "MemoryError" not in str(error.value)


@pytest.mark.parametrize("argument", ["labels", "links"])
@pytest.mark.parametrize("function", ["'{0:>9}'.format", "'{0.__class__}'.format", "('a' * 9).rfind", "find"])
def test_a_table_calls_no_function_of_a_template(argument: str, function: str) -> None:
    """No check of the template's budget stands around such a call."""
    text = "{% macro find(name) %}x{% endmacro %}"
    text += f"{{{{ x.table({argument}=namespace(get={function})) }}}}"
    with pytest.raises(PageError, match="links and labels must be dictionaries"):
        render(text, x=result(["a"], [[1]]))


def test_a_template_has_no_method_that_makes_a_long_text() -> None:
    text = "{{ 'x'.format is defined }} {{ blob.ljust is defined }} {{ (1).to_bytes is defined }}"
    assert render(text + " {{ 'x'.rfind is defined }}", blob=b"x") == "False False False True"


FOUR = "(x, x, x, x)"


@pytest.mark.parametrize(
    "text",
    [
        f"{{% macro m() %}}{{{{ varargs }}}}{{% endmacro %}}{{{{ m{FOUR} }}}}",
        f"{{{{ cycler{FOUR}.items|string }}}}",
        f"{{{{ cycler{FOUR}.items|tojson }}}}",
        f"{{{{ cycler{FOUR}.items ~ '' }}}}",
        f"{{{{ page.url('a', b=cycler{FOUR}.items) }}}}",
        "{% set v = {'a': x}.items() %}{{ [v, v, v, v] }}",
        f"{{% macro {'m' * 300}() %}}{{% endmacro %}}{{% set f = {'m' * 300} %}}{{{{ [f, f, f, f] }}}}",
        f"{{% include cycler{FOUR}.items %}}",
        f"{{{{ page[cycler{FOUR}.items] }}}}",
        f"{{{{ page|attr(cycler{FOUR}.items) }}}}",
        f"{{{{ [{'number, ' * 20}] }}}}",
    ],
)
def test_what_jinja_puts_together_is_counted_as_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of dictionaries, arguments of macros and cyclers, long numbers, long names of macros."""
    monkeypatch.setattr(templates, "MAX_ITEMS", 1000)
    page = Page(Declarations(), "/a.sql.html", {}, "")
    with pytest.raises(PageError, match="a list that is too large"):
        render(text, x="x" * 300, number=1 << 4000, page=page)


NESTED = "{% set n = namespace() %}" + "{% set n = namespace(a=n, b=n) %}" * 40


@pytest.mark.parametrize(
    "use",
    [
        "{{ [][n] }}",
        "{{ page[n] }}",
        "{{ page|attr(n) }}",
        "{{ [1]|map(n)|list }}",
        "{{ [1]|select(n)|list }}",
        "{{ page.url(n) }}",
        "{{ page.url('a', b=n) }}",
        "{{ page.here(b=n) }}",
        "{{ x.bars(n, 'a') }}",
        "{{ x.lines('a', n) }}",
    ],
)
def test_no_error_and_no_link_shows_a_namespace(use: str) -> None:
    """The text of one that holds others has 2 ** 40 parts, and no check of the clock ends str()."""
    page = Page(Declarations(), "/a.sql.html", {}, "")
    with pytest.raises(PageError, match="a namespace cannot be shown"):
        render(NESTED + use, page=page, x=result(["a"], [[1]]))


@pytest.mark.parametrize("function", ["url('a', ", "here("])
def test_a_link_has_no_long_parameters(function: str) -> None:
    """A template of 32 KB has room for thousands of them, each with a text of a megabyte."""
    page = Page(Declarations(), "/a.sql.html", {"q": "x" * 9000}, "")
    parameters = ", ".join(f"a{number}=x" for number in range(100))
    with pytest.raises(PageError, match="a link longer than 8192 characters"):
        render(f"{{% set x = 'x' * 1000 %}}{{{{ page.{function}{parameters}) }}}}", page=page)
    assert page.here(page=2).endswith("x&page=2")  # the fields of a visitor are not counted


def test_the_heads_of_a_table_are_no_longer_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_TABLE_CHARS", 50_000)
    with pytest.raises(ValueError, match="a table longer than"):
        result(["a"] * 100, [[1] * 100]).table(labels={"a": "x" * 1000})


def test_a_concatenation_ends_with_the_part_that_is_too_long() -> None:
    """The texts of the other parts are not made."""
    made: list[str] = []

    class Part:
        def __str__(self) -> str:
            made.append("x" * 600_000)
            return made[-1]

    with pytest.raises(PageError, match="a text of more than"):
        render("{{ a ~ a ~ a ~ a ~ a }}", a=Part())
    assert len(made) == 2


def test_an_error_is_short() -> None:
    for text in ("{{ books[long] }}", "{{ books.bars(long, 'a') }}"):
        with pytest.raises(PageError) as error:
            render(text, long="x" * 100_000, books=result(["a"], [[1]]))
        assert len(str(error.value)) <= 1000
    with pytest.raises(PageError) as error:
        parse("-- parameter: a " + "t" * 100_000 + "\n")
    assert len(str(error.value)) <= 1000


def test_a_template_is_compiled_in_bounded_time() -> None:
    longest = "{{ 1 }}" * (templates.MAX_SOURCE_CHARS // 7)
    assert render(longest) == "1" * (templates.MAX_SOURCE_CHARS // 7)
    with pytest.raises(PageError) as error:
        render("\n\n" + longest + "1234567")
    assert str(error.value).endswith("template: longer than 32768 characters") and error.value.line == 13
    files = {"_long.sql.html": "\n" * 9 + longest + "1234567"}
    for word in ("include", "extends", "import"):
        with pytest.raises(PageError, match=r"_long\.sql\.html, line 10: longer than 32768 characters"):
            use = f'{{% {word} "_long.sql.html" {"as a " if word == "import" else ""}%}}'
            PageTemplate(Environment(lambda name: (files[name], lambda: True)), use, 0).render({})


def test_the_included_files_in_memory_are_bounded_by_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_LOADED_CHARS", 100)
    environment = Environment(lambda name: (name[1] * 60, lambda: True))
    page = PageTemplate(environment, "".join(f'{{% include "_{x}.sql.html" %}}' for x in "abc"), 0)
    assert page.render({}) == "a" * 60 + "b" * 60 + "c" * 60
    assert environment.cache is not None and len(environment.cache) == 1


def test_compiling_what_a_template_includes_counts_as_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "RENDER_TIMEOUT_S", 0.05)
    part = "{{ a.b(c)[d] }}" * ((templates.MAX_SOURCE_CHARS - 100) // 15)
    loaded: list[str] = []

    def load(name: str) -> tuple[str, Any]:
        loaded.append(name)
        return "{% if 0 %}" + part + "{% endif %}" if name != "_x.sql.html" else part, lambda: True

    text = "".join(f'{{% include "_{number}.sql.html" %}}' for number in range(40))
    with pytest.raises(PageError, match=r"longer than 0\.05 s"):
        PageTemplate(Environment(load), text, 0).render({})
    assert len(loaded) < 5


def test_a_template_cannot_run_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "RENDER_TIMEOUT_S", 0.05)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    calls = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    for text in (loop, calls):
        with pytest.raises(PageError, match=r"longer than 0\.05 s"):
            render(text)


@pytest.mark.takes_time
@pytest.mark.parametrize(
    "text",
    [
        "{{ [[1] * 10000] * 300 }}",
        "{{ ([[1] * 10000] * 300)|tojson }}",
        "{{ ((['ab'] * 100000)|map('urlize')|list)|length }}",
        "{{ (range(99999)|map('string')|map('upper')|list + range(99999)|list)|map('urlize')|list|length }}",
        *(
            f"{{% set n = namespace(a=[1], b=(1,), c={{}}) %}}{{% for i in range(30) %}}{grow}{{% endfor %}}{use}"
            for grow, use in (
                ("{% set n.a = [n.a, n.a] %}", "{{ n.a }}"),
                ("{% set n.a = [n.a, n.a] %}{% set n.c = [n.c, n.c] %}", "{{ n.a == n.c }}"),
                ("{% set n.b = (n.b, n.b) %}", "{{ n.b|string|length }}"),
                ("{% set n.c = {1: n.c, 2: n.c} %}", "{{ n.c|tojson }}"),
                ("{% set n.c = dict(a=n.c, b=n.c) %}", "{{ n.c ~ '' }}"),
                ("{% set n.a = n.a + n.a %}", "{{ n.a }}"),
                ("{% set n.a = [n.a]|map('list')|list + [n.a] %}", "{{ n.a }}"),
            )
        ),
        "{% set a = range(99999)|list %}{% set m = namespace(a=[]) %}"
        "{% for i in range(99999) %}{% set m.a = m.a + [a] %}{% endfor %}",
        "{% set n = namespace() %}{% set m = namespace(a=n, b=n) %}{{ m }}",
        # Texts that are nowhere in a list, and nearly as long as one text may be
        *(
            f"{{% set n = namespace() %}}{{% set x = 'x' * 100000 %}}{''.join(holds)}"
            for holds in (
                [f"{{% set n.a{number} = x ~ {number} %}}" for number in range(90)],
                [f"{{% set n.a{number} = x|upper %}}" for number in range(90)],
                [f"{{% set n.a{number} = x.replace('a', 'b') %}}" for number in range(90)],
                [f"{{% set n.a{number} = x.title() %}}" for number in range(90)],
                [f"{{% set n.a{number} = x|replace('x', 'y') %}}" for number in range(90)],
                [f"{{% set n.a{number} = x * 1 %}}" for number in range(90)],
            )
        ),
    ],
)
def test_lists_in_lists_are_bounded_by_all_that_they_hold(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are a tenth of ewe's, and so is the work up to them."""
    for limit in ("MAX_RESULT_CHARS", "MAX_ITEMS", "MAX_COUNTED"):
        monkeypatch.setattr(templates, limit, getattr(templates, limit) // 10)
    with pytest.raises(PageError) as error:
        render(text, blob=b"%999999999s")
    assert "MemoryError" not in str(error.value)


HALF_A_MILLION = (
    "{% set a = range(99999)|list %}{% set a = a + a %}{% set a = a + a + [0] %}{% set b = a[:] %}"
)
A = '{% set a = "a" * 1000000 %}'


@pytest.mark.parametrize(
    "text",
    [
        A + "{{ a.rfind('a' * 200000 ~ 'b' ~ 'a' * 200000) }}",
        A + "{{ a.rpartition('a' * 200000 ~ 'b' ~ 'a' * 200000)|length }}",
        A + "{{ a.strip('b' * 1000000 ~ 'a')|length }}",
        A + "{{ a|trim('b' * 1000000 ~ 'a')|length }}",
        A + "{{ [a]|map('trim', chars='b' * 1000000 ~ 'a')|list|length }}",
        *(
            '{% set n = ("f" * 1000000)|int(base=16) %}{% set m = ("e" * 500000)|int(base=16) %}{{ n '
            + sign
            + " m > 1 }}"
            for sign in ("%", "//", "/", "-")
        ),
        "{{ range(99999)|sort(attribute='0' ~ ',0' * 120)|list|length }}",
        "{{ range(99999)|max(attribute='0' ~ '.0' * 120) }}",
    ],
)
def test_no_call_takes_the_product_of_two_sizes(text: str) -> None:
    """A call cannot be interrupted, and could hold the interpreter for hours."""
    with pytest.raises(PageError, match=r"more than 256 characters|number that is too large|too many keys"):
        render(text)


FILTERS_OF_MANY_ITEMS = (
    "select('string')|list", "reject('number')|list", "selectattr('real', 'string')|list",
    "rejectattr('real', 'number')|list", "join", "sum",
)  # fmt: skip


@pytest.mark.parametrize("use", FILTERS_OF_MANY_ITEMS)
def test_a_filter_of_many_items_looks_at_the_clock(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it yields none of them: four million items take half a minute."""
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * templates.RENDER_TIMEOUT_S / 100)
    monkeypatch.setattr(templates, "time", clock)
    with pytest.raises(PageError, match="longer than 2 s"):
        render(f"{{{{ numbers|{use} }}}}", numbers=[0] * 200)
    monkeypatch.undo()
    assert render("{{ none|select('string')|list }}{{ [1, 'a']|select('string')|join }}") == "[]a"


@pytest.mark.parametrize("use", ["sort", "min", "unique|list", "groupby(0)"])
def test_a_list_of_many_items_is_not_sorted(use: str) -> None:
    """One call sorts, so no check of the clock can end it."""
    with pytest.raises(PageError, match="more than 262144 items to sort"):
        render(f"{{{{ numbers|{use} }}}}", numbers=[0] * 300_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ range(20)|map(attribute='x', default=parts)|max }}", "a list that is too large"),
        ("{{ range(20)|map(attribute='x', default=parts)|min }}", "a list that is too large"),
        ("{{ range(20)|map(attribute='x', default=parts)|unique|list }}", "a list that is too large"),
        ("{{ [c, c, c, c, c, c, c, c, c, c, c]|max(attribute='items') }}", "a list that is too large"),
        ("{% for x in [parts] %}{{ [loop]|max(attribute='nextitem') }}{% endfor %}", "may not contain"),
        ("{{ range(20)|groupby('x', default=parts)|list }}", "too many keys to sort by"),
    ],
)
def test_lists_of_many_parts_are_not_compared(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call compares them, and each comparison reads all parts."""
    monkeypatch.setattr(templates, "MAX_ITEMS", 1000)
    monkeypatch.setattr(templates, "MAX_RESULT_CHARS", 1000)
    with pytest.raises(PageError, match=words):
        render("{% set c = cycler(*parts) %}" + text, parts=(1,) * 100)


@pytest.mark.parametrize(
    "use", ["5|round(-99999999)", "0.5|round(99999999, 'ceil')", "[5]|map('round', -99999999)|list"]
)
def test_a_number_is_rounded_to_some_digits(use: str) -> None:
    """For 100 million digits, Python computes for minutes, and no other client is answered meanwhile."""
    with pytest.raises(PageError, match=r"round\(\) to more than 400 digits"):
        render(f"{{{{ {use} }}}}")
    assert render("{{ 42.55|round(1, 'floor') }} {{ 42.55|round }} {{ 1234|round(-2) }}") == "42.5 43.0 1200"


@pytest.mark.parametrize("use", ["-1 in b", "a == b", "a < b", "a is eq b", "-1 is in b", "b[1:]", "b[::-1]"])
def test_comparisons_and_slices_look_at_the_clock(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_COUNTED", 1 << 40)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * templates.RENDER_TIMEOUT_S / 100)
    monkeypatch.setattr(templates, "time", clock)
    with pytest.raises(PageError, match="longer than 2 s"):
        render("{% set a = [0, 1] %}{% set b = [0, 1] %}" + f"{{% if {use} %}}{{% endif %}}" * 200)


@pytest.mark.takes_time
@pytest.mark.parametrize(
    "text",
    [
        HALF_A_MILLION + "".join(f"{{% set c{number} = b[:] %}}" for number in range(400)),
        A + "".join(f"{{% set c{number} = a[1:] %}}" for number in range(400)),
        "{% set b = range(40000)|list %}{% set x %}" + "{{ b }}" * 600 + "{% endset %}",
        *(
            begin + "{% for i in range(99999) %}" + "y" * 20000 + "{% endfor %}" + end
            for begin, end in (
                ("{% set x %}", "{% endset %}"),
                ("{% filter upper %}", "{% endfilter %}"),
                ("{% macro m() %}", "{% endmacro %}{{ m() }}"),
                ("{% block b %}", "{% endblock %}{{ self.b() }}"),
            )
        ),
        "{% set x %}{% for i in range(999) %}{% include '_many.sql.html' %}{% endfor %}{% endset %}",
        *(
            "{% import '_many.sql.html' as m %}{{ " + use + " }}"
            for use in ("m", "m ~ ''", "m|string", "m|replace('y', '')", "[m]|string", "[m]|join")
        ),
    ],
)
def test_what_a_part_of_a_page_writes_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a page that are kept until they are whole: blocks, macros, and slices of lists and texts.

    The limits are an eighth of ewe's, and so is the memory up to them.
    """
    for limit in ("MAX_ITEMS", "MAX_COUNTED", "MAX_PAGE_CHARS"):
        monkeypatch.setattr(templates, limit, getattr(templates, limit) // 8)
    many = "{% for i in range(9999) %}" + "y" * 20000 + "{% endfor %}"
    tracemalloc.start()
    try:
        with pytest.raises(PageError):
            PageTemplate(Environment(lambda name: (many, lambda: True)), text, 0).render({})
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


def test_lists_of_a_usual_size_go_through() -> None:
    text = "{% for a, b in [(1, [2, 3]), (4, [5])] %}{{ a }}{{ b|join(',') }};{% endfor %}{{ {'a': [1]}|tojson }}"
    assert render(text) == '12,3;45;{"a": [1]}'


def test_the_plain_page_has_a_form_and_every_result() -> None:
    declarations = parse(PAGE.partition("---")[0])
    page = Page(declarations, "/books.sql.html", {"q": NASTY}, templates.STYLE)
    books = declarations.queries["books"]
    found = QueryResult(page, books, Choice(books, "", {}), "", ["title"], [["a"]])
    text = PageTemplate(Environment(load), None, 0).render({"page": page, "results": {"books": found}})
    assert '<input type="search" name="q" value="&lt;script&gt;' in text and "<script" not in text
    assert 'name="year"' in text and 'name="price"' not in text  # which no query uses
    assert "<td>a" in text and 'href="books.sql.csv?q=' in text
