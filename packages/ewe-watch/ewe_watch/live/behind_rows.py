"""The rows of X-Switch's engines and of the connections to databases on the live page.

Engines and connections come and go while a server runs. Each gets a row when it begins. The row of one that has
ended goes to the next one of its kind, so the picture stays small:

    engine    alice: python     row 0    ended ──▶ the row of the next engine
    engine    bob: perl         row 1
    database  demo              row 0    the page draws these rows below those of the engines

At most MOST_ROWS of a kind have rows. The page says how many others live.

A script or a statement in a row also tells which worker asked for it, so that the page can draw a line from there:

    worker of ewe     ──asked──┐
    engine                     └──▶ begin ══════ end
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ewe_watch.behind import KINDS, LEFT, QUEUED, BehindLane, BehindRequest, BehindStory

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_ROWS = 12  # of a kind


class AskingWorker(NamedTuple):
    """The worker of the server that asked for a script or a statement. row: its row. at: when it asked."""

    row: int
    at: float


class BehindLiveSpan(NamedTuple):
    """A span that has ended in a lane, for the page. row: of its kind. begin, end: as the page counts time.

    kind: of the lane. want: "", as the spans of workers have a value here. label: the client that waits. text: the
    script, or the statement. asked: None unless the lane took the request at `begin`. outcome: "" if the work goes
    on in another span.
    """

    row: int
    begin: float
    end: float
    kind: str
    want: str
    label: str
    text: str
    asked: AskingWorker | None
    outcome: str


class BehindLiveRow(NamedTuple):
    """A lane and its work now, for the page. name, detail: of the lane, for people.

    working: the kind of a lane that works, "" of another one. since: when the work began, as the page counts time;
    0 without one. note: "ended" of a lane that has ended, else "". label: the client that waits; without work, the
    outcome of the last work. text: the script, or the statement; "" without work. asked: as in BehindLiveSpan.
    kind: of the lane.
    """

    name: str
    detail: str
    working: str
    since: float
    note: str
    label: str
    text: str
    asked: AskingWorker | None
    kind: str


class BehindRows:
    """The rows so far, for one model.

    name_of: returns the name of a connection of the server for people. at: returns a time of the trace as the page
    counts it. row_of: returns the row of a worker of the server, or -1.
    """

    def __init__(
        self, name_of: Callable[[str], str], at: Callable[[float], float], row_of: Callable[[str], int]
    ) -> None:
        self.name_of = name_of
        self.at = at
        self.row_of = row_of
        self.rows: dict[str, list[BehindLane]] = {kind: [] for kind in KINDS}  # kind -> row -> its lane

    def changes(self, behind: BehindStory) -> dict[str, Any]:
        """Return the rows, and the spans since the last call, for JSON. Call behind.forget_ended() after it.

        rows: as BehindLiveRow. spans: as BehindLiveSpan. lives: of lives(). queued: how many requests of each kind
        are in the queue now. hidden: how many lanes have no row.
        """
        # Before and after: a lane that has ended may lose its row now, but its last spans belong there
        row_of_lane = self.numbers()
        hidden = sum(1 for lane in behind.lanes if not self.give_row(lane) and lane.ended is None)
        row_of_lane |= self.numbers()
        spans = [
            BehindLiveSpan(
                row_of_lane[id(span.lane)], self.at(span.begin), self.at(span.end), span.lane.kind, "",
                self.label(span.request, span.state), span.request.text,
                self.asking_worker(span.request, span.begin),
                span.request.outcome if span.request.ended == span.end else "",
            )
            for span in behind.spans
            if span.lane is not None and span.state != QUEUED and id(span.lane) in row_of_lane
        ]  # fmt: skip
        rows = [self.current_row(lane) for lanes in self.rows.values() for lane in lanes]
        return {
            "rows": [list(row) for row in rows],
            "spans": [list(span) for span in spans],
            "lives": self.lives(behind, row_of_lane),
            "queued": {kind: behind.queued[kind] for kind in KINDS},
            "hidden": hidden,
        }

    def lives(self, behind: BehindStory, row_of_lane: dict[int, int]) -> dict[str, list[list[Any]]]:
        """Return the lives of engines and connections, as the page counts time.

        row_of_lane: the row of its kind by the id() of a lane. now: [begin, end or null] of each row. past: [row,
        begin, end, kind] of those that have ended since the last call.
        """
        lanes = [lane for rows in self.rows.values() for lane in rows]
        now = [[self.at(lane.began), None if lane.ended is None else self.at(lane.ended)] for lane in lanes]
        past = [
            [row_of_lane[id(lane)], self.at(lane.began), self.at(lane.ended), lane.kind]
            for lane in behind.lanes
            if lane.ended is not None and id(lane) in row_of_lane
        ]
        return {"now": now, "past": past}

    def numbers(self) -> dict[int, int]:
        """Return the row of each lane, by the id() of the lane."""
        return {id(lane): row for rows in self.rows.values() for row, lane in enumerate(rows)}

    def asking_worker(self, request: BehindRequest, begin: float) -> AskingWorker | None:
        """Return the row of the asking worker and the time; None unless a lane took the request at `begin`."""
        row = self.row_of(request.worker)
        return AskingWorker(row, self.at(request.began)) if row >= 0 and request.took == begin else None

    def give_row(self, lane: BehindLane) -> bool:
        """Give a lane its row: its own, that of a lane that has ended, or a new one; return whether it has one."""
        rows = self.rows[lane.kind]
        if any(each is lane for each in rows):
            return True
        for row, other in enumerate(rows):
            if other.ended is not None:
                rows[row] = lane
                return True
        if len(rows) < MOST_ROWS:
            rows.append(lane)
            return True
        return False

    def current_row(self, lane: BehindLane) -> BehindLiveRow:
        """Return a lane and its work now."""
        request = lane.busy
        if lane.ended is not None or request is None or not request.state:
            note = "" if lane.ended is None else "ended"
            return BehindLiveRow(lane.name, lane.detail, "", 0, note, lane.outcome, "", None, lane.kind)
        return BehindLiveRow(
            lane.name, lane.detail, lane.kind, self.at(request.since), "", self.label(request, request.state),
            request.text, self.asking_worker(request, request.since), lane.kind,
        )  # fmt: skip

    def label(self, request: BehindRequest, state: str) -> str:
        """Return the name of a request for people: that of the client that asks."""
        name = self.name_of(request.server) if request.server else request.user
        return f"{name} (its client has left)" if state == LEFT else name
