"""The browser of a database: a read-only site over its tables, for people and for programs.

    URL ──urls──▶ View ──statements──▶ SQL + parameters ──the demon──▶ rows ──pages──▶ HTML
                    ▲                     ▲
                    └── schema: only names of tables and columns that exist

A visitor's text reaches SQL in two ways only. Names of tables and columns are looked up in the schema, and the
schema's own spelling is quoted. Values are bound as parameters. The SQL editor is the one exception: there a
visitor writes a whole statement, which the demon runs on a read-only connection with limits for time and rows.

    schema.py       tables, columns and keys of a database, from its catalogue; quoting
    urls.py         what a URL asks for, and the URL of everything
    statements.py   the SQL for a page of rows, a count, the most frequent values, one row, a change of a row
    pages.py        rows to HTML
    style.py        how it looks
    feature.py      the feature: asks the demon, and chooses the status when something fails

Read next: urls.py.
"""
