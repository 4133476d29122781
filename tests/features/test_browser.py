"""The browser of databases, without a server: URLs, the SQL made of them, and the pages made of rows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.browsing import check_paging, listing_of, run, schema_in

from ewe.config.settings import Config
from ewe.database.drivers import Database, DatabaseConnection, connect
from ewe.database.protocol import Value
from ewe.features.browser import pages, statements
from ewe.features.browser.asking import Asking
from ewe.features.browser.feature import Browser, form_of, key_in_query, value_of_key
from ewe.features.browser.pages import PageTrail, Rows, StatementResult
from ewe.features.browser.schema import SQLITE, ForeignKey, Schema, schema_of
from ewe.features.browser.statements import BoundStatement
from ewe.features.browser.urls import (
    OPERATORS,
    PLAIN,
    BadRequest,
    Filter,
    View,
    cursor_text,
    decode_name,
    encode_name,
    values_in,
    view_of,
)
from ewe.features.databases.asking import Databases
from ewe.http.messages import BodyReader, Request
from ewe.http.status import HTTPError
from ewe.streams.blocking import run as complete

EVIL = """<script>"&' ; DROP TABLE "goods" --"""
EVIL_NAME = EVIL.replace('"', '""')
SCHEMA = f"""
CREATE TABLE makers (name TEXT PRIMARY KEY, town TEXT);
CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price REAL, maker TEXT REFERENCES makers, extra,
    cents INT GENERATED ALWAYS AS (price * 100) VIRTUAL);
CREATE TABLE stock (good INTEGER NOT NULL REFERENCES goods (id), place TEXT NOT NULL, count INT,
    PRIMARY KEY (good, place)) WITHOUT ROWID;
CREATE TABLE moves (good INTEGER, place TEXT, at TEXT, FOREIGN KEY (good, place) REFERENCES stock,
    FOREIGN KEY (at) REFERENCES nowhere (at));
CREATE TABLE notes (rowid TEXT, text TEXT);
CREATE TABLE marks (mark PRIMARY KEY, text TEXT);
INSERT INTO marks VALUES (5, 'a number'), ('5', 'a text'), (NULL, 'none'), (NULL, 'none, too');
CREATE TABLE "{EVIL_NAME}" ("{EVIL_NAME}" TEXT);
CREATE VIEW cheap AS SELECT name, price + 0 AS cost FROM goods WHERE price < 5;
CREATE VIRTUAL TABLE words USING fts5 (name, content = "goods", content_rowid = id);
INSERT INTO makers VALUES ('Bess', 'Kendal'), ('Ivy', NULL);
INSERT INTO goods (id, name, price, maker, extra) VALUES
    (1, 'wool', 2.5, 'Bess', 7), (2, 'Wool 100%', NULL, NULL, '7'),
    (3, NULL, 2.5, 'Ivy', NULL),
    (4, 'w_ol', 0, 'Ivy', x'00ff'), (5, '', 9, 'Bess', '007'), (6, '7', 2.5, NULL, 1.5);
INSERT INTO words (rowid, name) SELECT id, name FROM goods;
INSERT INTO stock SELECT id, place, id FROM goods, (SELECT 'barn' AS place UNION SELECT 'shop');
INSERT INTO moves VALUES (1, 'barn', NULL), (1, 'barn', NULL), (2, NULL, NULL);
INSERT INTO notes VALUES ('a', 'first'), ('a', 'second'), (NULL, 'third');
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseConnection]:
    path = tmp_path_factory.mktemp("browser") / "goods.db"
    with sqlite3.connect(path) as made:
        made.executescript(SCHEMA)
        made.execute(f'INSERT INTO "{EVIL_NAME}" VALUES (?)', [EVIL])
    made.close()
    connection = connect(Database("goods", "sqlite", str(path), False))
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def schema(database: DatabaseConnection) -> Schema:
    return schema_in(database, SQLITE)


# ---------------------------------------------------------------------------------------------------------
# The schema


def test_a_schema_has_tables_keys_and_indexes(schema: Schema) -> None:
    tables = schema.tables
    assert set(tables) == {"makers", "goods", "stock", "moves", "notes", "marks", EVIL, "cheap", "words"}
    assert [tables[name].key for name in ("makers", "goods", "stock", "moves")] == [
        ("name",),
        ("id",),
        ("good", "place"),
        ("rowid",),
    ]
    assert tables["notes"].key == ("_rowid_",) and tables["notes"].row_id == "_rowid_"
    assert tables["cheap"].is_view and tables["cheap"].key == ()
    assert tables["goods"].columns["cents"].filled_by == "computed"
    assert tables["goods"].search == "words" and tables["stock"].search == ""


def test_foreign_keys_lead_to_primary_keys_and_never_to_what_is_not_there(schema: Schema) -> None:
    (maker,) = schema.tables["goods"].foreign
    assert (maker.other, maker.other_columns) == ("makers", ("name",))
    (place,) = schema.tables["moves"].foreign
    assert (place.columns, place.other, place.other_columns) == (
        ("good", "place"),
        "stock",
        ("good", "place"),
    )
    assert [each.table for each in schema.referring["goods"]] == ["stock"]


def test_foreign_keys_have_the_names_of_the_schema() -> None:
    """SQLite ignores letter case, and PostgreSQL lists keys of tables and columns that nobody may read here."""
    columns = [("a", "table", "id", "INT", 0, 1, "", 0), ("b", "table", "a_id", "INT", 0, 0, "", 0)]
    rows = [("b", 0, "a_id", "A", "ID"), ("b", 1, "a_id", "a", "gone"), ("b", 2, "secret", "a", "id")]
    found = schema_of(
        SQLITE, columns, [*rows, ("secrets", 0, "a_id", "a", "id"), ("b", 3, "a_id", "A", None)]
    )
    key = ForeignKey("b", ("a_id",), "a", ("id",))
    assert found.tables["b"].foreign == (key, key) and found.referring == {"a": [key, key]}


# ---------------------------------------------------------------------------------------------------------
# URLs

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | TEXT | st.binary() | st.floats(allow_nan=False)


@given(TEXT.filter(bool))
def test_every_name_is_one_segment_of_a_path(name: str) -> None:
    from urllib.parse import unquote

    segment = encode_name(name)
    assert decode_name(unquote(segment)) == name
    assert segment.isascii() and not set(segment) & set("/.?#\\") and not segment.startswith("-")


@given(st.lists(VALUES))
def test_a_place_comes_back_from_its_text(values: list[Value]) -> None:
    assert values_in(cursor_text(values)) == values


def test_a_view_comes_back_from_its_query(schema: Schema) -> None:
    filters = (
        Filter("name", "contains", 'a&b="é+ %'),
        Filter("price", "null", ""),
        Filter("id", "in", "1, 2"),
    )
    view = View(filters, "wo ol", "price", True, ("maker", "name"), 7, (2.5, 3))
    assert view_of(schema.tables["goods"], view.query()[1:]) == view
    assert (
        view_of(schema.tables["goods"], "")
        == PLAIN
        == view_of(schema.tables["goods"], "utm=1&column=&op=eq&value=")
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("column=nope&op=eq&value=1", "no column “nope”"),
        ('column=id"--&op=eq&value=1', "no column"),
        ("column=id&op=drop&value=1", "no operator “drop”"),
        ("column=id&op=eq", "one of them is missing"),
        ("column=id&op=eq&value=%00", "NUL"),
        ("sort=nope", "no column"),
        ("facet=nope", "no column"),
        ("search=%00a", "NUL"),
        ("after=%5B%22%5Cud800%22%5D", "does not name a row"),
        ("column=id&op=in&value=" + "," * 1000, "more than 1000 values"),
        ("&".join(["column=id&op=in&value=" + "," * 99] * 11), "more than 1000 values"),
        ("size=0", "from 1 to 1000"),
        ("size=²", "from 1 to 1000"),
        ("size=9999999999999999999", "from 1 to 1000"),
        ("offset=-1", "offset must be"),
        ("after=1", "does not name a row"),
        ("after=[1,2]", "does not name a row"),
        ("after=[{}]", "does not name a row"),
        ("after=[[1]]", "does not name a row"),
        ("after=[99999999999999999999]", "does not name a row"),
        ('after=[{"float":' + "9" * 400 + "}]", "does not name a row"),
        ("sort=price&after=[1]", "does not name a row"),
        ("before=" + "[" * 2000, "does not name a row"),
        ("column=%ff&op=eq&value=1", "not UTF-8"),
        ("&".join(["a=1"] * 201), "more than 200"),
        ("&".join(["column=id&op=eq&value=1"] * 21), "more than 20 filters"),
        ("facet=id&facet=name&facet=price&facet=maker&facet=extra&facet=cents", "more than 5 columns"),
    ],
)
def test_a_query_that_cannot_be_is_refused_in_words(schema: Schema, query: str, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        view_of(schema.tables["goods"], query)
    assert words in refused.value.cause


def test_the_path_of_the_browser_may_have_any_letters() -> None:
    """The field Location can only have those of Latin-1, and the paths of URLs only those of ASCII."""
    browser = Browser(Config(browser="/日本"), Databases(Config()))
    response = complete(browser.respond(Request("GET", "/", (1, 1), path="/日本"), None))  # type: ignore[arg-type]
    assert response is not None and response.encoded()
    assert response.get("location") == "/%E6%97%A5%E6%9C%AC/"


def test_a_form_has_room_for_the_columns_of_a_wide_table() -> None:
    class Form(BodyReader):
        pieces = ["&".join(f"v.c{number}=&null.c{number}=1" for number in range(1600)).encode()]

        async def receive(self) -> bytes:
            return self.pieces.pop() if self.pieces else b""

    request = Request("POST", "/", (1, 1), (("content-type", "application/x-www-form-urlencoded"),))
    request.body = Form()
    assert len(complete(form_of(request))) == 3200


# ---------------------------------------------------------------------------------------------------------
# Statements


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("name", "sort"),
    [
        ("goods", ""),
        ("goods", "price"),
        ("goods", "maker"),
        ("goods", "extra"),
        ("goods", "id"),
        ("stock", ""),
        ("stock", "place"),
        ("stock", "count"),
        ("makers", "town"),
        ("moves", "place"),
        ("notes", "rowid"),
        ("cheap", "cost"),
    ],
)
def test_pages_hold_every_row_once(
    database: DatabaseConnection, schema: Schema, name: str, sort: str, descending: bool, size: int
) -> None:
    check_paging(database, schema, schema.tables[name], View(sort=sort, descending=descending, size=size))


@pytest.mark.parametrize(
    ("column", "op", "value", "ids"),
    [
        ("price", "eq", "2.5", [1, 3, 6]),
        ("price", "ne", "2.5", [4, 5]),
        ("price", "gt", "0", [1, 3, 5, 6]),
        ("price", "ge", "9", [5]),
        ("price", "lt", "2.5", [4]),
        ("price", "le", "2.5", [1, 3, 4, 6]),
        ("price", "null", "", [2]),
        ("price", "notnull", "", [1, 3, 4, 5, 6]),
        ("price", "in", "0, 9", [4, 5]),
        ("name", "eq", "7", [6]),
        ("name", "eq", "", [5]),
        ("name", "contains", "OOL", [1, 2]),
        ("name", "contains", "_", [4]),
        ("name", "contains", "0%", [2]),
        ("name", "lacks", "ool", [4, 5, 6]),
        ("name", "begins", "w", [1, 2, 4]),
        ("name", "ends", "%", [2]),
        ("extra", "eq", "7", [1]),
        ("extra", "eq", "007", [5]),
        ("extra", "eq", "1.5", [6]),
        ("maker", "in", "Ivy,x' OR 1=1", [3, 4]),
        ("name", "eq", "' OR 1=1 --", []),
    ],
)
def test_a_filter_finds_what_it_says(
    database: DatabaseConnection, schema: Schema, column: str, op: str, value: str, ids: list[int]
) -> None:
    view = View((Filter(column, op, value),), sort="id")
    listing = listing_of(database, schema, schema.tables["goods"], view)
    assert [row[0] for row in listing.rows.rows] == ids
    assert listing.total == len(ids)


def test_in_a_view_a_number_is_a_number(database: DatabaseConnection, schema: Schema) -> None:
    """The column of a view that computes has no affinity: 2.5 and '2.5' would differ there."""
    view = View((Filter("cost", "eq", "2.5"),))
    assert len(listing_of(database, schema, schema.tables["cheap"], view).rows.rows) == 3


@given(st.sampled_from(list(OPERATORS)), st.sampled_from(["id", "name", "extra"]), st.text(max_size=20))
def test_a_visitors_text_is_never_in_the_sql(
    database: DatabaseConnection, schema: Schema, op: str, column: str, text: str
) -> None:
    text = text.replace("\0", "") + "ẞentinel"
    view = View((Filter(column, op, text if OPERATORS[op].takes_value else ""),), search=text)
    for name in ("goods", "makers"):
        table = schema.tables[name]
        own = view if name == "goods" else View(search=text)
        statement = statements.rows_of(schema, table, own)
        assert "ẞ" not in statement.sql
        run(database, statement)


def test_names_of_any_kind_are_quoted(database: DatabaseConnection, schema: Schema) -> None:
    table = schema.tables[EVIL]
    view = View((Filter(EVIL, "eq", EVIL),), sort=EVIL, facets=(EVIL,))
    assert len(listing_of(database, schema, table, view).rows.rows) == 1
    assert run(database, statements.facet_of(schema, table, view, EVIL))[1] == [[EVIL, 1]]
    ((*counts,),) = run(database, statements.counts_of(schema.tables.values()))[1]
    assert dict(zip(schema.tables, counts, strict=True)) == {
        EVIL: 1, "cheap": 4, "goods": 6, "makers": 2, "marks": 4, "moves": 3, "notes": 3, "stock": 12, "words": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("goods", "wool", 2),  # by the index: words
        ("goods", "woo", 0),
        ("goods", 'wool" OR name:"7', 0),
        ("goods", "100 wool", 1),
        ("words", "wool", 2),
        ("makers", "ES", 1),  # by LIKE: parts of words
        ("makers", "%", 0),
    ],
)
def test_a_search_uses_the_index_or_looks_for_parts(
    database: DatabaseConnection, schema: Schema, name: str, text: str, count: int
) -> None:
    assert listing_of(database, schema, schema.tables[name], View(search=text)).total == count


def test_a_row_is_found_by_its_key_and_has_a_name(database: DatabaseConnection, schema: Schema) -> None:
    assert run(database, statements.row_of(schema.tables["stock"], [1, "shop"]))[1] == [[1, "shop", 1]]
    for key in (2, "2"):  # a visitor may write the key without brackets
        row = statements.row_of(schema.tables["notes"], [key])
        assert run(database, row)[1] == [[2, "a", "second"]]
    for mark, text in ((5, "a number"), ("5", "a text")):
        assert value_of_key(pages.key_text(mark)) == mark
        row = statements.row_of(schema.tables["marks"], [mark])
        assert run(database, row)[1] == [[mark, text]]
    (foreign,) = schema.tables["stock"].foreign
    labels = statements.statement_of_labels(schema, foreign, [1, 5])
    assert labels is not None and run(database, labels)[1] == [[1, "wool"], [5, ""]]


def test_a_row_with_null_in_its_key_has_no_page(database: DatabaseConnection, schema: Schema) -> None:
    """A change of such a row would change the other one, too."""
    marks = schema.tables["marks"]
    text = pages.table_page(
        PageTrail("/-/databases/", "shop", "marks"), listing_of(database, schema, marks, View())
    )
    assert text.count("marks/row?") == 2 and "none, too" in text
    for table, query in ((marks, "key=%5Bnull%5D"), (schema.tables["stock"], "key=%5B1%5D&key=%5Bnull%5D")):
        with pytest.raises(HTTPError, match="NULL") as refused:
            key_in_query(table, query)
        assert refused.value.status == 404


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT :a, :b_2 + :a", ["a", "b_2"]),
        ("SELECT ':a', \":b\", [:c], `:d` -- :e\n, /* :f */ :g", ["g"]),
        ("SELECT 'it''s :a', x::int, y[1:2]", []),
        ("SELECT 1 /* :open", []),
        ("SELECT [:open", []),
    ],
)
def test_the_parameters_of_a_statement_become_fields(sql: str, names: list[str]) -> None:
    assert statements.parameters_in(sql) == names


# ---------------------------------------------------------------------------------------------------------
# Pages


def no_markup_of_others(text: str) -> None:
    """Check that the text of a database has become no markup."""
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "\"&' ;" not in text


def test_a_page_shows_names_and_values_as_text(database: DatabaseConnection, schema: Schema) -> None:
    table = schema.tables[EVIL]
    place = PageTrail("/-/databases/", "db", EVIL)
    view = View((Filter(EVIL, "eq", EVIL),), EVIL, EVIL, False, (EVIL,))
    listing = listing_of(database, schema, table, view)
    facet = pages.Facet(EVIL, [(EVIL, 3), (None, 1), (b"\0", 1)])
    rows = Rows(["rowid", EVIL], [[1, EVIL]], False)
    listing = listing._replace(rows=rows, facets=[facet], labels={EVIL: {EVIL: EVIL}})
    no_markup_of_others(pages.table_page(place, listing))
    overview = pages.DatabaseOverview(EVIL, schema, {EVIL: 1})
    no_markup_of_others(pages.databases_page(place, [overview]))
    no_markup_of_others(pages.database_page(place, overview, {EVIL: EVIL}, True, EVIL))
    statement = statements.row_of(table, [1])
    row = dict(zip(rows.columns, rows.rows[0], strict=True))
    no_markup_of_others(
        pages.row_page(place, schema, table, row, [], {}, statement, editable=True, editor=True)
    )
    no_markup_of_others(pages.edit_page(place, table, {EVIL: EVIL}, EVIL, {"v." + EVIL: EVIL}))
    no_markup_of_others(pages.delete_page(place, table, {EVIL: EVIL}, EVIL))
    no_markup_of_others(pages.problem_page(place, EVIL, EVIL, EVIL))
    answers: list[StatementResult] = [
        StatementResult(Rows([EVIL], [[EVIL]], True)),
        StatementResult(error=EVIL),
        StatementResult(rows, "", True),
    ]
    for answer in answers:
        no_markup_of_others(pages.sql_page(place, EVIL, {"a": EVIL}, answer))
        no_markup_of_others(pages.sql_page(place, EVIL, {"a": EVIL}, answer, title=EVIL, editor=False))


SHOWN: list[tuple[Value, Callable[[str], bool]]] = [
    (None, lambda text: text == "<i>NULL</i>"),
    (b"\0" * 1234, lambda text: text == "<i>1,234 bytes</i>"),
    ("x" * 301, lambda text: text.startswith("x" * 300 + "<i>…") and "301" in text),
    ("a\u202eb\x07", lambda text: text == "a\ufffdb\u2407"),
    (2.5, lambda text: text == "2.5"),
]


@pytest.mark.parametrize(("value", "fits"), SHOWN)
def test_a_cell_is_short_and_visible(value: Value, fits: Callable[[str], bool]) -> None:
    assert fits(pages.cell(value))


def test_cells_lead_along_foreign_keys_and_the_key_to_its_row(
    database: DatabaseConnection, schema: Schema
) -> None:
    listing = listing_of(database, schema, schema.tables["goods"], View())
    listing = listing._replace(labels={"maker": {"Bess": "of Kendal"}})
    text = pages.table_page(PageTrail("/-/databases/", "shop", "goods"), listing)
    assert '<a href="/-/databases/shop/goods/row?key=%5B1%5D">1</a>' in text
    assert '<a href="/-/databases/shop/makers/row?key=Bess">Bess</a> <small>of Kendal</small>' in text
    listing = listing_of(database, schema, schema.tables["stock"], View())
    text = pages.table_page(PageTrail("/-/databases/", "shop", "stock"), listing)
    assert 'href="/-/databases/shop/stock/row?key=%5B1%5D&amp;key=barn"' in text


def test_the_form_of_a_page_sends_all_its_filters_again(schema: Schema) -> None:
    """Its last line is empty. The row id is a column of the page, but not of the table."""
    table = schema.tables["notes"]
    view = View((*[Filter("_rowid_", "gt", "0")] * 19, Filter("text", "eq", "first")))
    form = pages.filter_form("/", table, view)
    assert re.findall(r'<option value="(\w*)" selected>', form) == ["_rowid_", "gt"] * 19 + ["text", "eq", ""]
    assert view_of(table, view.query()[1:] + "&column=&op=eq&value=") == view


def test_the_label_of_a_column_with_two_foreign_keys_belongs_to_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = (("a", "id", 1), ("a", "name", 0), ("b", "id", 1), ("b", "name", 0), ("c", "id", 1))
    columns = [(table, "table", name, "TEXT", 1, key, "", 0) for table, name, key in names]
    schema = schema_of(SQLITE, columns, [("c", 0, "id", "a", "id"), ("c", 1, "id", "b", "id")])
    table = schema.tables["c"]

    async def answer(self: Asking, database: str, statement: BoundStatement, *_: object) -> list[list[Value]]:
        return [["x", statement.sql.partition("FROM ")[2].split()[0].strip('"')]]

    monkeypatch.setattr(Asking, "rows_or_none", answer)
    found = [(key, ["x"]) for key in table.foreign]
    labels = complete(Asking(None).labels("db", schema, found, None))  # type: ignore[arg-type]
    text = pages.value_of(PageTrail("/", "db", "c"), schema, table, {"id": "x"}, "id", labels)
    assert text == '<a href="/db/a/row?key=x">x</a> <small>a</small>'


@pytest.mark.parametrize(("key", "links"), [("a", 1), (b"a", 0), (None, 0)])
def test_bytes_have_no_link_to_the_rows_that_refer_to_them(
    monkeypatch: pytest.MonkeyPatch, key: Value, links: int
) -> None:
    """The filter of a link is text: it would find no row, and the page would say that no row refers to this one."""
    columns = [("files", "table", "id", "BLOB", 1, 1, "", 0), ("links", "table", "file", "BLOB", 0, 0, "", 0)]
    schema = schema_of(SQLITE, columns, [("links", 0, "file", "files", "id")])

    async def two(*_: object) -> int:
        return 2

    monkeypatch.setattr(Asking, "count", two)
    browser = Browser(Config(browser="/-/db"), Databases(Config()))
    trail, table = PageTrail("/-/db/", "db", "files"), schema.tables["files"]
    io: Any = None  # nothing waits
    page = browser.row_text(trail, schema, table, {"id": key}, BoundStatement("", {}), False, io)
    assert complete(page).count("2 rows") == links


def test_a_plan_is_indented() -> None:
    rows = Rows(["id", "parent", "notused", "detail"], [[2, 0, 0, "SCAN"], [5, 2, 0, "SEARCH"]], False)
    assert "SCAN\n  SEARCH" in pages.plan(rows)
