"""Pages from SQL: what a file name.sql.html means, and what it becomes. No I/O: ewe.features.sql_pages does that.

file ─▶ declarations.py ─▶ parameters, queries, posts, a template
                               │
URL, form ─▶ values.py ────────┤ bound values
                               ▼
               the demon runs the queries ─▶ results.py: tables, links, charts ─▶ templates.py: the page
"""
