"""Traces of the server as pictures: the work of each worker at each moment, and the queue of clients.

The server writes a trace, a line for each event of each connection (`ewe --trace FILE`). A list of times explains
the collapse of a thread pool to few readers. One picture does: five lanes, five silent clients, and a queue that
grows above them.

    trace ──▶ events.py ──▶ story.py ──▶ moments.py ──▶ document.py ──▶ page.py: watch.html, watch.js, watch.css
              lines          spans of     the most          numbers        │
                             workers,     telling ones,     for pages      ├──▶ --json
                             the queue    in words                         ├──▶ perfetto.py: --perfetto FILE
                                                                           └──▶ picture.py: --svg FILE

    cli.py   the command `ewe-watch`
    live/    models at work, side by side, with clients at the press of a button

story.py takes one event at a time, so live/ uses it for servers that run.
"""
