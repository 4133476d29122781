"""What answers a request: one file a concern.

A feature has `async respond(request, io) -> Response | None`; None passes the request on. io is the
client's connection: its addresses, and spawn() for programs. A feature may await it; it never blocks on a
socket or pipe by itself and does not know which concurrency model runs it.
"""
