"""The page /libcgi-status: the libraries that this process has loaded, with their calls, faults and times.

Each worker process loads the libraries itself. The page therefore shows the id of the process that answers. Over a
new connection, another process may answer. Libraries in separate processes are engines: /xswitch-status shows them.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from ewe.config.setting_types import is_local
from ewe.gateway.own_names import foreign_host_response
from ewe.http.messages import Request, Response

if TYPE_CHECKING:
    from collections.abc import Collection

    from ewe.features.base import Explanation
    from ewe.features.libcgi.in_process import LibCGI
    from ewe.features.libcgi.libraries import LibraryState
    from ewe.streams.base import Stream

PATH = "/libcgi-status"
COLUMNS = ("library", "state", "calls", "inside", "mean_us", "longest_us", "threads", "recent_faults")


class LibCGIStatus:
    """Answers with the libraries of this process, as text or (?json) as JSON."""

    def __init__(self, feature: LibCGI, hosts: Collection[str] = ()) -> None:
        """hosts: the names of the server's sites."""
        self.feature = feature
        self.hosts = hosts

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the page for a client on this machine; None for other clients, as if there were no such page."""
        if request.path != PATH or not is_local(io.client[0]):
            return None
        if (refused := foreign_host_response(request, self.hosts)) is not None:
            return refused
        states: dict[str, LibraryState] = {}
        if self.feature.loaded:  # empty before the first call
            states = self.feature.loaded[0].libraries.states_by_file.copy()
        rows = [describe(file, states[file]) for file in sorted(states)]
        if "json" in (request.query or ""):
            kind, text = "application/json", json.dumps({"pid": os.getpid(), "libraries": rows}) + "\n"
        else:
            kind, text = "text/plain; charset=utf-8", as_text(rows)
        fields = (("Content-Type", kind), ("Cache-Control", "no-store"))
        return Response(200, fields, text.encode("utf-8", "backslashreplace"))

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the page. `ewe --explain` asks as a client on this machine."""
        is_status = request.path == PATH and is_local(io.client[0])
        if is_status:
            yield "  answer    the libraries of one process, for clients on this machine   (libcgi-status)"
        return is_status


def describe(file: str, state: LibraryState) -> dict[str, Any]:
    """Return the row of one library. Times are in microseconds. Calls are counted since the library was loaded."""
    library = state.library
    row: dict[str, Any] = {"library": file, "recent_faults": len(state.fault_times)}
    wait_s = state.kept_out_until - time.monotonic()
    if library is None:
        return {**row, "state": f"kept out for {wait_s:.0f} s" if wait_s > 0 else "not loaded"}
    info = library.info()
    mean_ns = info.nanoseconds / info.calls if info.calls else 0
    return {
        **row,
        "state": "loaded",
        "calls": info.calls,
        "inside": info.inside,
        "mean_us": round(mean_ns / 1000, 1),
        "longest_us": round(info.longest / 1000, 1),
        "threads": "many" if info.reentrant else "one at a time",
    }


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    lines = [list(COLUMNS), *([str(row.get(column, "-")) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([f"process {os.getpid()}", "", *(line.rstrip() for line in table)]) + "\n"
