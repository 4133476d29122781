"""Pages from SQL: how a file name.sql.html becomes a page. No I/O: ewe.features.sql_pages does that.

file ─▶ declarations.py ─▶ parameters, queries, posts, a template
                               │
URL, form ─▶ values.py ────────┤ bound values
                               ▼
               the daemon runs the queries ─▶ results.py: tables, links, charts ─▶ templates.py: the page
"""
