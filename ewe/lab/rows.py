"""What was measured, a row for each server and setting, and how it is shown: a table, targets, JSON."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

REFERENCE = "nginx"  # what the others are compared with
# At 1 KB, kept alive, no access log: the most CPU time, in that of nginx. The first name measured counts.
TARGETS = (
    ("asyncio", ("asyncio-uvloop", "asyncio-standard"), 1.3),
    ("thread", ("thread",), 1.6),
    ("prefork", ("prefork",), 1.6),
    ("pool", ("pool-always",), 4.0),
)


@dataclass(frozen=True)
class Setting:
    """What is asked of a server. size: of the file, in bytes."""

    size: int
    keep_alive: bool = True
    access_log: bool = False


TARGETS_AT = Setting(1024)


@dataclass(frozen=True)
class Sample:
    """One measurement. micros: CPU time a request, in µs. The others: shares of a core, 1 is all of it."""

    rate: float  # requests/s
    micros: float
    server: float  # the server's process tree
    wrk: float
    server_core: float  # with whatever else ran there
    wrk_core: float
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def others(self) -> float:
        """The share of the server's core that neither it nor idleness had."""
        return max(self.server_core - self.server, 0.0)


@dataclass
class Row:
    """All measurements of one server at one setting."""

    server: str
    setting: Setting
    connections: int
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, what: str) -> float:
        """Return the median of a sample's figure."""
        return float(statistics.median(getattr(sample, what) for sample in self.samples))

    def notes(self) -> str:
        """Return what one has to know to believe the row."""
        found = []
        if self.failures:
            found.append(f"failed {len(self.failures)}x")
        if self.samples and self.median("wrk_core") > 0.95 and self.median("server_core") < 0.9:
            found.append("client-limited")
        for name in dict.fromkeys(name for sample in self.samples for name in sample.errors):
            found.append(f"{sum(sample.errors.get(name, 0) for sample in self.samples)} {name}")
        return ", ".join(found)


COLUMNS = {
    "server": 16,
    "size": 6,
    "keep": 4,
    "log": 3,
    "conns": 5,
    "req/s": 6,
    "µs/req": 6,
    "min-max": 9,
    "/nginx": 6,
    "wrk": 4,
    "other": 5,
}  # and their widths; the notes follow
WIDTH = 100  # of the table


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table; a setting's rows stand together."""
    lines = [line((*COLUMNS, "notes"))]
    last: Setting | None = None
    for row in rows:
        if row.samples or row.failures:
            if row.setting != last:
                lines.append("")
                last = row.setting
            lines.append(line(cells(row, ratio(rows, row))))
    return "\n".join(lines)


def line(texts: Sequence[str]) -> str:
    """Return a line of the table, more where there is much to note: names to the left, figures to the right."""
    *figures, notes = texts
    aligned = [text.rjust(width) for text, width in zip(figures, COLUMNS.values(), strict=True)]
    aligned[0] = figures[0].ljust(COLUMNS["server"])
    start = " ".join(aligned) + "  "
    if not notes:
        return start.rstrip()
    indent = " " * len(start)
    return textwrap.fill(notes, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def cells(row: Row, beside: float | None) -> tuple[str, ...]:
    """Return a row's texts."""
    setting = row.setting
    about = (
        row.server,
        size_text(setting.size),
        "yes" if setting.keep_alive else "no",
        "on" if setting.access_log else "off",
        str(row.connections),
    )
    if not row.samples:
        return (*about, *["-"] * 6, row.notes())
    spread = [sample.micros for sample in row.samples]
    return (
        *about,
        f"{row.median('rate'):.0f}",
        digits(row.median("micros")),
        f"{digits(min(spread))}-{digits(max(spread))}",
        "-" if beside is None else f"{beside:.2f}",
        f"{row.median('wrk'):.0%}",
        f"{row.median('others'):.0%}",
        row.notes(),
    )


def digits(micros: float) -> str:
    """Return µs with as many digits as mean something."""
    return f"{micros:.1f}" if micros < 100 else f"{micros:.0f}"


def size_text(size: int) -> str:
    """Return 64 B, 16 KB."""
    return f"{size // 1024} KB" if size % 1024 == 0 else f"{size} B"


def describe(setting: Setting) -> str:
    """Return a setting in words."""
    kept = "keep-alive" if setting.keep_alive else "a connection a request"
    return f"{size_text(setting.size)}, {kept}, access log {'on' if setting.access_log else 'off'}"


def ratio(rows: Sequence[Row], row: Row) -> float | None:
    """Return a row's CPU time a request in that of nginx at the same setting."""
    for other in rows:
        if other.server == REFERENCE and other.setting == row.setting and other.samples:
            return row.median("micros") / other.median("micros") if row.samples else None
    return None


def targets(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return (model, ratio reached, the most it may be) of each target that was measured."""
    reached = {row.server: ratio(rows, row) for row in rows if row.setting == TARGETS_AT}
    found = []
    for model, names, most in TARGETS:
        value = next((value for name in names if (value := reached.get(name)) is not None), None)
        if value is not None:
            found.append((model, value, most))
    return found


def report(rows: Sequence[Row]) -> str:
    """Return all that was found, in words and figures."""
    parts = [table(rows)]
    if found := targets(rows):
        parts.append(f"Targets, in nginx's CPU time a request at {describe(TARGETS_AT)}:")
        parts[-1] += "".join(
            f"\n  {model:8} {value:5.2f}, at most {most}: {'ok' if value <= most else 'MISSED'}"
            for model, value, most in found
        )
    failures = dict.fromkeys(f"{row.server}: {text}" for row in rows for text in row.failures)
    if failures:
        parts.append("Failed:\n  " + "\n  ".join(failures))
    return "\n\n".join(parts)


def as_json(rows: Sequence[Row], about: Mapping[str, object]) -> str:
    """Return everything, each sample too, for programs; about: what goes before it."""
    measured = [row for row in rows if row.samples or row.failures]
    return json.dumps(
        {
            **about,
            "rows": [
                {
                    "server": row.server,
                    **asdict(row.setting),
                    "connections": row.connections,
                    "samples": [asdict(sample) for sample in row.samples],
                    "failures": row.failures,
                    "ratio": ratio(rows, row),
                    "notes": row.notes(),
                }
                for row in measured
            ],
            "targets": [
                {"model": model, "ratio": value, "most": most, "ok": value <= most}
                for model, value, most in targets(rows)
            ],
        },
        indent=1,
    )
