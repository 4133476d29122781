"""Write the tables and the picture of docs/speed.md, from the figures of a run of `ewe-lab speed`.

    make bench ARGS="--json speed.json"
    PYTHONPATH=packages/ewe-lab python packages/ewe-lab/tests/speed_page.py speed.json

It replaces the two tables below "## A run", and speed.svg. The author then reads the sentences around them again.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ewe.svg import Picture
from ewe_lab.report.charts import Bar, draw_bars

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PICTURE = DOCS / "speed.md", DOCS / "speed.svg"
HEADS = {
    "asyncio-uvloop": "asyncio, uvloop", "asyncio-standard": "asyncio, standard", "thread": "thread",
    "pool-always": "pool, always", "pool-idle": "pool, idle", "pool-never": "pool, never", "prefork": "prefork",
    "fork": "fork", "serial": "serial", "lighttpd": "lighttpd", "h2o": "h2o", "apache-event": "Apache, event",
}  # fmt: skip
DRAWN = {"asyncio-uvloop": "asyncio", "thread": "thread", "pool-always": "pool", "prefork": "prefork"}
NOT_DRAWN = {"listing"}  # its bars would lie far on the other side
SHORT = {
    "1 KB, a connection each": "close", "1 KB, log": "log", "1 KB, varied heads": "varied", "1 KB, TLS": "TLS",
    "1 KB, TLS, resumed, a connection each": "resumed", "1 KB, TLS, a connection each": "handshake",
}  # fmt: skip
TITLE = "CPU time for a request over that of nginx"
STYLE = """text{font-family:system-ui,"DejaVu Sans",sans-serif;fill:#1d2126;font-size:12px}text.dim{fill:#5b636d}
.grid{stroke:#d9d8d3}.axis{stroke:#5b636d}.ground{fill:#fff}
.c0{fill:#0072b2}.c1{fill:#d55e00}.c2{fill:#00805f}.c3{fill:#b0568e}
@media (prefers-color-scheme: dark){text{fill:#e8e6e1}text.dim{fill:#a3a9b0}.grid{stroke:#363c43}
.axis{stroke:#a3a9b0}.ground{fill:#1c2024}.c0{fill:#56b4e9}.c1{fill:#f0934a}.c2{fill:#35c99b}.c3{fill:#e08fc4}}"""


def work(row: dict[str, Any]) -> str:
    """Return the name of a row's work, the same for all servers."""
    if row["asked"] or row["comparison"]:
        name: str = row["asked"] or row["comparison"]
        return name
    size = f"{row['size'] // 1024} KB" if row["size"] >= 1024 else f"{row['size']} B"
    more = [
        ("log", row["access_log"]), ("varied heads", row["varied"]), ("TLS", row["tls"]),
        ("resumed", row["resumed"]), ("a connection each", not row["keep_alive"]),
    ]  # fmt: skip
    return ", ".join([size, *(word for word, applies in more if applies)])


def micros(row: dict[str, Any]) -> float:
    """Return the median of a row's CPU time for a request, in microseconds."""
    return statistics.median(sample["micros"] for sample in row["samples"])


def rounded(value: float) -> str:
    """Return a figure with three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def blocks(rows: list[dict[str, Any]], compared: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the measured rows by their work: of comparisons, or of files."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if bool(row["comparison"]) == compared and row["samples"] and not row["server"].startswith("floor-"):
            found.setdefault(work(row), []).append(row)
    return found


def table_of_files(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of ratios to nginx."""
    found = blocks(rows, compared=False)
    servers = [name for name in HEADS if any(row["server"] == name for row in rows)]
    yield f"| work | nginx, µs | {' | '.join(HEADS[name] for name in servers)} |"
    yield "|---" * (len(servers) + 2) + "|"
    for name, block in found.items():
        by_server = {row["server"]: row for row in block}
        cells = [rounded(micros(by_server["nginx"]))]
        cells += [rounded(by_server[each]["ratio"]) if each in by_server else "" for each in servers]
        yield f"| {name} | {' | '.join(cells)} |"


def table_of_comparisons(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of CPU times beside servers of the same kind."""
    yield "| work | CPU time, µs |"
    yield "|---|---|"
    for name, block in blocks(rows, compared=True).items():
        figures = ", ".join(f"{row['server']} {rounded(micros(row))}" for row in block)
        yield f"| {name} | {figures} |"


def picture(rows: list[dict[str, Any]]) -> str:
    """Return the picture: a group of bars for each kind of row."""
    groups: dict[str, list[Bar]] = {}
    words = []
    for name, block in blocks(rows, compared=False).items():
        ratios = {row["server"]: row["ratio"] for row in block}
        measured = [each for each in DRAWN if each in ratios and name not in NOT_DRAWN]
        if measured:
            groups[SHORT.get(name, name)] = [
                Bar(ratios[each], f"c{list(DRAWN).index(each)}", f"{ratios[each]:.2f}") for each in measured
            ]
            words.append(f"{name} {', '.join(f'{DRAWN[each]} {ratios[each]:.2f}' for each in measured)}")
    drawn = Picture("speed", TITLE, f"{TITLE}, by kind of row: {'; '.join(words)}.")
    legend = [(f"c{index}", model) for index, model in enumerate(DRAWN.values())]
    draw_bars(drawn, groups, legend, f"{TITLE} (less is better)", 1.0, "")
    size = f'width="400" height="{drawn.height:.0f}"'
    ground = f'<style>{STYLE}</style><rect class="ground" {size}/>'
    head, _, rest = drawn.svg().partition("</desc>")
    return head.replace("<svg ", f"<svg {size} ", 1) + "</desc>" + ground + rest


def with_tables(page: str, tables: list[list[str]]) -> str:
    """Return a page whose first tables after "## A run" are replaced."""
    before, heading, after = page.partition("## A run\n")
    lines, result = after.splitlines(), []
    while lines:
        line = lines.pop(0)
        if line.startswith("| work |") and tables:
            result += tables.pop(0)
            while lines and lines[0].startswith("|"):
                lines.pop(0)
        else:
            result.append(line)
    return before + heading + "\n".join(result) + "\n"


def main() -> None:
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    tables = [list(table_of_files(rows)), list(table_of_comparisons(rows))]
    PAGE.write_text(with_tables(PAGE.read_text(), tables))
    PICTURE.write_text(picture(rows))


if __name__ == "__main__":
    main()
