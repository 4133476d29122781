"""A database's schema: tables, columns and keys, read from its catalogue by one statement of its dialect.

SQLite has its catalogue in sqlite_schema and in functions such as pragma_table_xinfo(); PostgreSQL has
information_schema and pg_catalog. Each statement below returns rows of one form:

    column   table, kind, column, type, not null, position in the primary key, origin of the value, WITHOUT ROWID
    key      table, number, column, other table, other column

The other modules therefore treat both databases in the same way. `Dialect` contains the remaining differences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ewe.database.protocol import Value

NUMBERS = ("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC", "SERIAL", "MONEY")
TEXTS = ("CHAR", "CLOB", "TEXT", "NAME")
# Usual names of a column whose value names a row for people (Table.label_column), the best one first
LABELS = ("name", "title", "label", "subject", "username", "login", "email")
ROW_IDS = ("rowid", "_rowid_", "oid")


class Dialect(NamedTuple):
    """The differences between the databases.

    columns, keys: statements that read the schema. tables: like `columns`, without views, since SQLite returns no
    columns at all if the columns of one view cannot be found. like: the operator of a search that ignores case.
    as_text: converts a column to text. nulls_first: NULL is less than every value. explain: the words before a
    statement to explain it.
    """

    name: str
    title: str
    columns: str
    tables: str
    keys: str
    like: str
    as_text: str
    nulls_first: bool
    explain: str


# A column's place in the key counts from 1. `hidden` is 1 for a hidden column of a virtual table.
SQLITE_COLUMNS = """
SELECT t.name, CASE WHEN s.sql LIKE 'CREATE VIRTUAL TABLE%' THEN s.sql ELSE t.type END, c.name, c.type,
  c."notnull", c.pk, CASE WHEN c.hidden > 1 THEN 'computed' ELSE COALESCE(c.dflt_value, '') END, t.wr
FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c
LEFT JOIN sqlite_schema AS s ON s.name = t.name
WHERE t.schema = 'main' AND t.type <> 'shadow' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND c.hidden <> 1
ORDER BY t.name, c.cid"""
SQLITE = Dialect(
    "sqlite",
    "SQLite",
    columns=SQLITE_COLUMNS,
    tables=SQLITE_COLUMNS.replace("ORDER BY", "AND t.type <> 'view' ORDER BY"),
    keys="""
SELECT t.name, k.id, k."from", k."table", k."to"
FROM pragma_table_list AS t JOIN pragma_foreign_key_list(t.name) AS k
WHERE t.schema = 'main' AND t.type = 'table' ORDER BY t.name, k.id, k.seq""",
    like="LIKE",
    as_text="{}",
    nulls_first=True,
    explain="EXPLAIN QUERY PLAN ",
)
# Tables that the account may not read are left out: a link to such a table would only fail
POSTGRESQL_COLUMNS = """
SELECT r.relname, CASE r.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'view' ELSE 'table' END, a.attname,
  format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 1 ELSE 0 END,
  COALESCE(array_position(k.conkey, a.attnum), 0),
  CASE WHEN a.attgenerated <> '' THEN 'computed' WHEN a.attidentity <> '' THEN 'identity'
    ELSE COALESCE(pg_get_expr(d.adbin, d.adrelid), '') END, 0
FROM pg_class AS r JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_constraint AS k ON k.conrelid = r.oid AND k.contype = 'p'
LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.relnamespace = current_schema()::regnamespace AND r.relkind IN ('r', 'v', 'm', 'p', 'f')
  AND has_column_privilege(r.oid, a.attnum, 'SELECT') ORDER BY r.relname, a.attnum"""
POSTGRESQL = Dialect(
    "postgresql",
    "PostgreSQL",
    columns=POSTGRESQL_COLUMNS,
    tables=POSTGRESQL_COLUMNS,
    keys="""
SELECT r.relname, k.oid::bigint, a.attname, o.relname, b.attname
FROM pg_constraint AS k JOIN pg_class AS r ON r.oid = k.conrelid JOIN pg_class AS o ON o.oid = k.confrelid
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS p(here, there, place)
JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum = p.here
JOIN pg_attribute AS b ON b.attrelid = o.oid AND b.attnum = p.there
WHERE k.contype = 'f' AND r.relnamespace = current_schema()::regnamespace AND o.relnamespace = r.relnamespace
ORDER BY 1, 2, p.place""",
    like="ILIKE",
    as_text="CAST({} AS text)",
    nulls_first=False,
    explain="EXPLAIN ",
)
DIALECTS = (SQLITE, POSTGRESQL)


class Column(NamedTuple):
    """A column. key: its position in the primary key, from 1; 0: it is not in the key.

    filled_by: where the value comes from if an insert gives none: the text of a default, or "computed"; "": from
    nowhere.
    """

    name: str
    type: str
    not_null: bool
    key: int
    filled_by: str

    @property
    def is_number(self) -> bool:
        """Return whether the declared type is a number."""
        return any(part in self.type.upper() for part in NUMBERS) and "POINT" not in self.type.upper()

    @property
    def is_text(self) -> bool:
        """Return whether the declared type is text."""
        return any(part in self.type.upper() for part in TEXTS)

    @property
    def is_bytes(self) -> bool:
        """Return whether the declared type is bytes, which a field of a form cannot contain."""
        return any(part in self.type.upper() for part in ("BLOB", "BYTEA"))


class ForeignKey(NamedTuple):
    """Columns of a table that refer to a row of another table: `other` by the values of its `other_columns`."""

    table: str
    columns: tuple[str, ...]
    other: str
    other_columns: tuple[str, ...]


class Table(NamedTuple):
    """A table or a view. key: the columns that identify a row, perhaps SQLite's row id; () if none do.

    search: the full-text index (FTS) over this table; "" if there is none. sql: the definition of a virtual table.
    """

    name: str
    is_view: bool
    columns: dict[str, Column]
    key: tuple[str, ...]
    foreign: tuple[ForeignKey, ...]
    search: str
    sql: str

    @property
    def row_id(self) -> str:
        """Return the name of SQLite's row id if it is the key; "" if the key consists of ordinary columns."""
        return self.key[0] if len(self.key) == 1 and self.key[0] not in self.columns else ""

    @property
    def label_column(self) -> str:
        """Return the column whose value names a row for people, such as `title`; "" if there is none.

        A table with only one column beside its key, such as a list of countries, has its label in this column.
        """
        by_lower_case = {name.lower(): name for name in self.columns}
        usual = next((by_lower_case[name] for name in LABELS if name in by_lower_case), "")
        others = [name for name in self.columns if name not in self.key]
        return usual or (others[0] if len(others) == 1 else "")

    def foreign_key(self, column: str) -> ForeignKey | None:
        """Return the foreign key that consists only of this column; None if there is none."""
        return next((each for each in self.foreign if each.columns == (column,)), None)


class Schema(NamedTuple):
    """The tables of a database, by name. referring: table -> the foreign keys of other tables that refer to it."""

    dialect: Dialect
    tables: dict[str, Table]
    referring: dict[str, list[ForeignKey]]


def schema_of(
    dialect: Dialect, columns: Iterable[Sequence[Value]], keys: Iterable[Sequence[Value]]
) -> Schema:
    """Return the schema, from the rows of a dialect's two statements (see the module)."""
    # table -> "table", "view" or "virtual"; of a virtual table its CREATE statement
    kinds: dict[str, str] = {}
    without_row_ids: set[str] = set()  # tables that are WITHOUT ROWID
    columns_of: dict[str, dict[str, Column]] = {}  # table -> name -> column
    for table, kind, name, type_, not_null, key, filled_by, without_row_id in columns:
        column = Column(str(name), str(type_ or ""), bool(not_null), int(key or 0), str(filled_by or ""))
        columns_of.setdefault(str(table), {})[column.name] = column
        kinds[str(table)] = str(kind)
        if without_row_id:
            without_row_ids.add(str(table))
    foreign = foreign_keys(keys, columns_of)
    virtual = {name: kind for name, kind in kinds.items() if kind not in ("table", "view", "virtual")}
    tables = {}
    for name, table_columns in columns_of.items():
        is_view = kinds[name] == "view"
        has_row_id = dialect is SQLITE and not is_view and name not in without_row_ids
        primary = primary_key_of(table_columns, has_row_id)
        is_index = name in virtual and is_full_text_index(virtual[name])
        search = name if is_index else full_text_index_of(name, virtual)
        tables[name] = Table(
            name,
            is_view=is_view,
            columns=table_columns,
            key=primary,
            foreign=tuple(foreign.get(name, ())),
            search=search,
            sql=virtual.get(name, ""),
        )
    referring: dict[str, list[ForeignKey]] = {}
    for keys_of_table in foreign.values():
        for foreign_key in keys_of_table:
            referring.setdefault(foreign_key.other, []).append(foreign_key)
    return Schema(dialect, tables, referring)


def foreign_keys(
    rows: Iterable[Sequence[Value]], tables: dict[str, dict[str, Column]]
) -> dict[str, list[ForeignKey]]:
    """Return the foreign keys of each table. A key with a missing table or column is left out.

    rows: those of Dialect.keys, one for each column of a key (see the module). tables: table -> name -> column.
    SQLite ignores letter case in the names that follow REFERENCES, and does not check that they exist. PostgreSQL
    also lists the keys of tables that this account may not read.
    """
    by_lower_case = {name.lower(): name for name in tables}
    # (table, number of the key, other table) -> the pairs of a column and the column of the other table
    pairs: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for table, number, column, other, other_column in rows:
        other_table = str(other) if str(other) in tables else by_lower_case.get(str(other).lower(), "")
        if other_table and str(table) in tables:
            pair = str(column), str(other_column or "")
            pairs.setdefault((str(table), str(number), other_table), []).append(pair)
    found: dict[str, list[ForeignKey]] = {}
    for (table, _, other_table), key in pairs.items():
        columns, others = tuple(column for column, _ in key), tuple(name for _, name in key)
        if "" in others:  # REFERENCES other, without columns, means its primary key
            others = primary_key_of(tables[other_table], False)
        others = tuple(own_spelling(name, tables[other_table]) for name in others)
        if (
            len(columns) == len(others)
            and "" not in others
            and all(each in tables[table] for each in columns)
        ):
            found.setdefault(table, []).append(ForeignKey(table, columns, other_table, others))
    return found


def own_spelling(name: str, names: Collection[str]) -> str:
    """Return the one of `names` that differs from `name` in letter case at most; "" if there is none."""
    return name if name in names else next((each for each in names if each.lower() == name.lower()), "")


def primary_key_of(columns: dict[str, Column], has_row_id: bool) -> tuple[str, ...]:
    """Return the columns that identify a row: the primary key, else SQLite's row id, else none."""
    primary = sorted((column.key, name) for name, column in columns.items() if column.key)
    if primary:
        return tuple(name for _, name in primary)
    lower = {name.lower() for name in columns}
    free = next((name for name in ROW_IDS if name not in lower), "")
    return (free,) if has_row_id and free else ()


def is_full_text_index(sql: str) -> bool:
    """Return whether a virtual table is a full-text index."""
    return any(f"using {kind}" in " ".join(sql.lower().split()) for kind in ("fts5", "fts4", "fts3"))


def full_text_index_of(table: str, virtual: dict[str, str]) -> str:
    """Return the full-text index over this table; "" if there is none."""
    for name, sql in virtual.items():
        text = "".join(sql.lower().split())
        quoted = (f"content={mark}{table.lower()}{mark}" for mark in ("'", '"', ""))
        if is_full_text_index(sql) and any(each + end in text for each in quoted for end in (",", ")")):
            return name
    return ""


def quote(name: str) -> str:
    """Return a name of the schema as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
