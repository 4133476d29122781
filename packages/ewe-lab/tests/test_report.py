"""The report: complete in itself, well-formed, nothing unescaped, nothing drawn over anything else."""

from __future__ import annotations

import csv
import dataclasses
import html.parser
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_tables import compared, everything, ewe_table, sweep, times

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.results import ERRORS, Cell, ExperimentTable, Results, Sample, Usage, load
from ewe_lab.bench.verdicts import FigureRange
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.report import report, summary, terminal

NASTY = "<script>alert('1')</script> & \"quoted\" \x01 ünïcode"


@pytest.fixture(scope="module")
def page() -> str:
    return report.html(everything())


class Page(html.parser.HTMLParser):
    """What a page loads, its ids, the links in it, and whether its elements are closed in their order."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.loads += [
            given[name] for name in ("src", "srcset", "data", "poster", "xlink:href") if name in given
        ]
        if tag == "link":
            self.loads.append(given.get("href", ""))
        if tag == "a":
            self.links.append(given["href"])
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# The page


def test_the_page_needs_nothing_but_itself(page: str) -> None:
    found = Page(page)
    assert found.open == []
    assert found.loads == []
    assert all(link.startswith("#") for link in found.links)
    outside = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert outside <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", page)


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    found = Page(page)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    for named in re.findall(r'aria-labelledby="([^"]+)"', page):
        assert set(named.split()) <= set(found.ids)
    assert set(re.findall(r"url\(#([\w-]+)\)", page)) <= set(found.ids)


def test_the_page_is_complete_without_its_script(page: str) -> None:
    without = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert without.count("<svg") == page.count("<svg") > 8
    assert without.count("<details>") == page.count("<details>")


def test_what_stands_in_the_page(page: str) -> None:
    assert "Which concurrency model wins" in page
    assert CATALOG["E-T2"].claim in page
    for erratum in CATALOG["E-T2"].errata:
        assert erratum.replace("'", "&#39;") in page
    assert "ewe-lab run E-T2" in page and "ewe-lab compare -f -t" in page
    assert "the blog is not there yet" in page and "Cherokee" in page
    for verdict in ("reproduced", "shape", "changed", "reference"):
        assert f">{verdict}</span>" in page
    assert "EWE basic had" in page
    assert all(meaning.split(":")[0] in page for meaning in ERRORS.values())


def test_everything_is_escaped() -> None:
    table = compared((NASTY, "fork"))
    table.title = table.command = NASTY
    table.notes = [NASTY]
    table.cells[0].column = table.cells[0].load = table.cells[0].command = NASTY
    table.cells.append(Cell("broken", failure=NASTY))
    other = ewe_table()
    other.cells[3].paper_server = other.cells[3].paper_note = NASTY
    text = report.html(
        Results(NASTY, NASTY, {NASTY: NASTY}, [table, other, ExperimentTable(NASTY, skipped=NASTY)])
    )
    assert "<script>alert" not in text
    assert Page(text).tags.count("script") == 1
    for picture in re.findall(r"<svg.*?</svg>", text, flags=re.S):
        ET.fromstring(picture)


def test_commands_that_differ_in_a_capital_are_two() -> None:
    table = compared()
    table.cells[0].command, table.cells[1].command = "server -t", "server -T"
    text = report.html(Results("2026", "x", tables=[table]))
    assert "server -t" in text and "server -T" in text


def test_a_page_of_nothing() -> None:
    text = report.html(Results("2026-11-21", "ewe-lab"))
    assert "Nothing was measured" in text
    assert Page(text).open == []


def test_failures_are_told() -> None:
    table = ExperimentTable(
        "E-T2", cells=[Cell("fork", "as printed", paper=1, paper_server="EWE -f", failure="no such model")]
    )
    assert "no such model" in report.html(Results("2026", "x", tables=[table]))


def test_the_busy_load_generator_is_marked() -> None:
    table = compared()
    table.cells[2].samples[0].client = 0.9
    assert "client-limited" in report.html(Results("2026", "x", tables=[table]))
    assert "client-limited" in report.text(table, None)
    assert "client-limited: " not in report.text(compared(), None)


# Files


def test_json_goes_round_and_csv_reads_back(tmp_path: Path) -> None:
    results = everything()
    paths = report.write(results, tmp_path / "new")
    assert [path.name for path in paths] == ["report.html", "results.json", "results.csv"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    again = load(paths[1])
    assert dataclasses.asdict(again) == dataclasses.asdict(results)
    assert report.html(again) == paths[0].read_text(encoding="utf-8")
    with paths[2].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(max(1, len(cell.samples)) for table in results.tables for cell in table.cells)
    serial = [
        row
        for row in rows
        if row["table"] == "E-T2" and row["server"] == "serial" and row["column"] == "as printed"
    ]
    assert [row["repeat"] for row in serial] == ["1", "2", "3"]
    assert float(serial[1]["rate"]) == 1000 and float(serial[0]["paper"]) == 4.5
    assert serial[0]["verdict"] == "changed" and float(serial[0]["errors.ct"]) == 0
    assert float(serial[0]["service.p50"]) == 0.001 and float(serial[0]["usage.memory"]) == 2e7


def test_csv_holds_what_is_odd(tmp_path: Path) -> None:
    table = ExperimentTable("compare", cells=[Cell('a "b", c\nd', failure="x,y\n")])
    _, _, path = report.write(Results("2026", "x", tables=[table]), tmp_path)
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["server"], row["failure"]) == ('a "b", c\nd', "x,y\n")


def test_a_name_that_is_not_utf_8_costs_no_results(tmp_path: Path) -> None:
    """Python has such a byte of the command line as half a surrogate pair, which UTF-8 cannot write."""
    table = ExperimentTable(
        "compare", command="ewe-lab compare --root \udcff", cells=[Cell("a", command="\udcff")]
    )
    _, data, _ = report.write(Results("2026", "ewe-lab compare --root \udcff", tables=[table]), tmp_path)
    assert load(data).command == "ewe-lab compare --root ?"


# The terminal


def test_a_terminal_of_100_columns() -> None:
    for table in (compared(), ewe_table(), sweep(), compared((NASTY.replace("\x01", "") * 3, "fork"))):
        text = report.text(table, CATALOG.get(table.id))
        assert max(map(len, text.splitlines())) <= 100, text
    text = report.text(compared(), None)
    assert re.search(r"^serial +100 .*3 ct", text, re.M)
    head = next(line for line in text.splitlines() if line.startswith("server"))
    assert all(
        name in head
        for name in ("req/s", "p50", "p99", "p50 due", "p99 due", "CPU µs", "memory", "thr", "proc", "errors")
    )
    told = " ".join(text.split())
    assert "requests were lost" not in told and "Replies a second: no winner among" in told
    verdict = report.text(ewe_table(), CATALOG["E-T2"])
    assert "HOLDS IN PART" in verdict and "The largest change" in verdict


def test_a_table_that_was_not_run() -> None:
    assert (
        report.text(ExperimentTable("X-T2", skipped="no switch"), CATALOG["X-T2"]).splitlines()[1]
        == "  not run: no switch"
    )


# The summary


def test_the_summary_names_the_cheapest_and_the_losers() -> None:
    table = compared(("serial", "fork", "asyncio"))
    for cell, cpu in zip(table.cells, (0.1, 2.0, 0.5), strict=True):
        cell.samples[0].usage.cpu = cpu
        cell.samples[0].usage.core = cpu / cell.samples[0].seconds  # no other program runs
    table.cells[0].samples[0].errors = {"ct": 100}
    results = Results("2026", "x", tables=[table])
    ranked = summary.standings(results)
    assert [each.model for each in ranked] == ["asyncio", "fork", "serial"]
    said = " ".join(summary.headline(results, ranked))
    assert "Requests were lost by serial (17\N{NO-BREAK SPACE}%)" in said
    assert "Server CPU for a reply: asyncio is first" in said
    assert said.count("serial") == 1  # it wins nothing
    two = Results("2026", "x", tables=[table, dataclasses.replace(table, id="GROW")])
    said = " ".join(summary.headline(two, summary.standings(two)))
    assert "asyncio needs the least CPU time" in said and "fork the most" in said
    assert "serial (up to" in said


def test_a_model_between_two_that_are_level_is_level_too() -> None:
    """The repeats of c reach from those of a to beyond those of b: no sentence calls c the best and the worst."""
    ranked = [
        summary.ModelSummary(name, 3, FigureRange(name, *figure), None, 0.0, None, "")
        for name, figure in (("a", (1, 1, 1.1)), ("b", (1.3, 1.25, 1.4)), ("c", (2, 1.05, 3)))
    ]
    assert summary.headline(Results("", ""), ranked) == [
        "The models that answered almost every request need about the same CPU time for a reply."
    ]


def test_a_difference_is_told_in_words_that_can_be_read() -> None:
    table = compared(("fork", "thread", "asyncio"))
    for cell, cpu in zip(table.cells, (10.0, 4.0, 3.0), strict=True):
        cell.samples[0].replies, cell.samples[0].usage.cpu = 1000, cpu
    told = "asyncio is first with 3,000 µs, 25\N{NO-BREAK SPACE}% less than thread, the next."
    assert any(told in sentence for sentence in summary.sentences(table))


def test_one_loss_has_one_figure_everywhere() -> None:
    table = compared(("serial", "thread", "fork"))
    lost = table.cells[0].samples[0]
    lost.requests, lost.replies, lost.errors = 60, 20, {"ct": 49}  # 49 were sent before what counts began
    assert lost.lost == 49 / 69
    shown = Page(report.html(Results("2026", "x", tables=[table]))).text
    assert shown.count("71\N{NO-BREAK SPACE}%") >= 4  # sentence, models, chart, all figures
    assert "82\N{NO-BREAK SPACE}%" not in shown and "71.0" not in shown
    assert re.search("^serial .* 71\N{NO-BREAK SPACE}% 49 ct$", report.text(table, None), re.M)


def test_a_bound_and_the_notes_of_a_row_are_shown() -> None:
    """On the terminal and on the page, a request without an answer has a lower bound of its time."""
    table = compared(("serial", "thread"))
    found = table.cells[0].samples[0]
    found.notes = ["cut off after 60 s, with 3 sessions under way"]
    found.service = dataclasses.replace(times(0.001), at_least=0.005)
    note = "serial: cut off after 60 s, with 3 sessions under way."
    bound = figures.AT_LEAST + "5 ms"
    text, page = report.text(table, None), report.html(Results("2026", "x", tables=[table]))
    for shown in (text, page):
        assert note in shown and bound in shown and "the time that they waited" in shown
    assert figures.AT_LEAST + "1 ms" not in text  # half had their answer sooner
    assert Page(page).text.count(bound) >= 3  # in a chart, its figures, the table of all figures


def test_doubts() -> None:
    results = everything()
    assert not any(
        "differ by more than 20 %" in doubt
        for doubt in summary.reasons_to_doubt(Results("", "", tables=[compared()]))
    )
    assert any("differ by more than 20 %" in doubt for doubt in summary.reasons_to_doubt(results))
    assert any("not run to its end" in doubt for doubt in summary.reasons_to_doubt(results))
    assert any(
        "Nothing was repeated" in doubt
        for doubt in summary.reasons_to_doubt(Results("", "", tables=[compared()]))
    )


def sound(**changed: object) -> Sample:
    """Return a sample without a reason for doubt except the place of the server, and with `changed` attributes."""
    found = Sample("wrk", 1.0, requests=100, replies=100, client=0.3, usage=Usage(0.5, core=0.5))
    return dataclasses.replace(found, **changed)


@pytest.mark.parametrize(
    ("table", "begins"),
    [
        (ExperimentTable("x", cells=[Cell("a", samples=[sound(), sound()])]), ""),
        (ExperimentTable("x", cells=[Cell("a", samples=2 * [sound(client=0.8)])]), "In 1 of 1 rows the load"),
        (
            ExperimentTable("x", cells=[Cell("a", samples=2 * [sound(usage=Usage(0.5, core=0.7))])]),
            "In 1 of 1 rows other programs",
        ),
        (
            ExperimentTable("x", cells=[Cell("a", samples=2 * [sound(service=times(0.001))])]),
            "Where there is no response time",
        ),
        (ExperimentTable("x", cells=[Cell("a", samples=[sound(), sound(replies=70)])]), "In 1 rows the"),
        (ExperimentTable("x", cells=[Cell("a", samples=[sound()])]), "Nothing was repeated"),
        (ExperimentTable("x", cells=[Cell("a", samples=2 * [sound()])], quick=True), "Quick runs"),
        (
            ExperimentTable("x", cells=[Cell("a", samples=2 * [sound()])], interrupted=True),
            "An experiment has not run",
        ),
        (
            ExperimentTable("x", cells=[Cell("a", samples=2 * [sound()]), Cell("b", failure="lost")]),
            "1 rows have no figure",
        ),
    ],
)
def test_each_reason_to_doubt_has_one_sentence(table: ExperimentTable, begins: str) -> None:
    *reasons, place = summary.reasons_to_doubt(Results("", "", tables=[table]))
    assert len(reasons) == bool(begins) and all(each.startswith(begins) for each in reasons), reasons
    assert place.startswith("Everything ran on one machine")


def test_the_place_of_a_target_is_doubted() -> None:
    table = ExperimentTable("x", cells=[Cell("a", samples=2 * [sound(elsewhere=True)])])
    (reason,) = summary.reasons_to_doubt(Results("", "", tables=[table]))
    assert reason.startswith("A target ran already")


def test_a_page_without_a_measured_row_does_not_say_where_it_was_measured() -> None:
    skipped = ExperimentTable("T-LD", skipped="the blog is not there yet")
    for tables, measured in (([skipped], False), ([skipped, compared()], True)):
        doubts = summary.reasons_to_doubt(Results("", "", tables=tables))
        assert any("ran on one machine" in doubt for doubt in doubts) is measured


# Figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0044, "0.0044"),
        (12.94, "12.9"),
        (215.4, "215"),
        (8310.4, "8,310"),
        (1, "1"),
        (99.96, "100"),
        (None, "–"),
        (math.inf, "∞"),
        (0.5, "0.5"),
        (1e6, "1,000,000"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert figures.number_text(value) == text


def test_units() -> None:
    assert figures.time_text(0.000085) == "85 µs"
    assert figures.time_text(0.0012) == "1.2 ms"
    assert figures.time_text(3.4) == "3.4 s"
    assert figures.size_text(716_000) == "716 kB"
    assert figures.size_text(20_100_000) == "20.1 MB"
    assert (
        figures.ratio_text(0.00444) == "0.0044"
        and figures.ratio_text(-0.00444) == "-0.0044"
        and figures.ratio_text(1) == "1.00"
        and figures.ratio_text(37.2) == "37.2"
    )
    assert figures.errors_text({"res": 5, "st": 881, "ct": 0}) == "881 st, 5 res"
    assert figures.errors_text({}) == "0"


@given(st.floats(1e-9, 1e12))
def test_numbers_are_near_what_they_say(value: float) -> None:
    text = figures.number_text(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)


def counted_cell(server: str, cpu: tuple[float, ...], switches: int, processes: int) -> Cell:
    """A cell of 1,000 replies. cpu: seconds of each repeat."""
    usages = [Usage(each, 20e6, processes, processes, 10, switches, 0) for each in cpu]
    return Cell(server, samples=[Sample("locust", 1.0, 1000, 1000, 1000, usage=usage) for usage in usages])


def test_the_reason_names_what_was_measured_beside_the_greatest_difference() -> None:
    cheap, middle = (
        counted_cell("asyncio", (0.02, 0.021), 100, 1),
        counted_cell("thread", (0.03, 0.031), 100, 1),
    )
    dear = counted_cell("fork", (0.4, 0.41), 2500, 9)
    said = summary.cpu_time_sentence([middle, dear, cheap])
    assert (
        "that of fork and asyncio" in said
        and "has more context switches for a reply (2.5 against 0.1" in said
    )
    assert "processes at the peak (9 against 1)" in said and "memory" not in said
    assert (
        summary.cpu_time_sentence([cheap])
        == summary.cpu_time_sentence([cheap, counted_cell("x", (0.019, 0.03), 9000, 9)])
        == ""
    )
    assert summary.cpu_time_sentence([cheap, middle]) == ""  # nothing else differs


@pytest.mark.parametrize(
    ("dear_wait_s", "cheap_wait_s", "expected"),
    [
        (0.6, 0.02, "pool has more time of waiting for a core for a reply (600 µs against 20 µs)"),
        (0.02, 0.6, "lower are its time of waiting for a core for a reply (20 µs against 600 µs)"),
        (0.6, None, ""),
        (0.0, 0.0, ""),
    ],
)
def test_the_reason_names_waits_for_a_core(
    dear_wait_s: float, cheap_wait_s: float | None, expected: str
) -> None:
    dear, cheap = counted_cell("pool", (0.08, 0.081), 100, 1), counted_cell("event", (0.02, 0.021), 100, 1)
    for cell, wait_s in ((dear, dear_wait_s), (cheap, cheap_wait_s)):
        for sample in cell.samples:
            assert sample.usage is not None
            sample.usage.wait_s = wait_s
    said = summary.cpu_time_sentence([dear, cheap])
    assert expected in said and ("waiting" in said) == bool(expected)


def test_a_figure_of_which_the_dearer_server_has_less_is_no_reason() -> None:
    dear, cheap = counted_cell("pool", (0.08, 0.081), 5000, 1), counted_cell("fork", (0.02, 0.021), 200, 9)
    said = summary.cpu_time_sentence([dear, cheap])
    more, _, less = said.partition("; lower are its ")
    assert "has more context switches for a reply" in more and "processes" not in more
    assert "processes at the peak (1 against 9)" in less and less.endswith("cannot be the reason")
    other = counted_cell("event", (0.08, 0.081), 200, 1)
    assert "none of the figures beside it is a reason; lower are its" in summary.cpu_time_sentence(
        [other, cheap]
    )


def test_a_range_and_the_mark_of_the_first_leave_nobody_out() -> None:
    """thread lies between two servers that may differ by chance; its own repeats differ little."""
    first = counted_cell("asyncio", (0.026, 0.0265, 0.029), 1, 1)
    between = counted_cell("thread", (0.031, 0.032), 1, 1)
    last = counted_cell("pool", (0.028, 0.036, 0.045), 1, 1)
    micros = next(each for each in verdicts.winners([first, between, last]) if each.name == "micros")
    assert [each.server for each in micros.level] == ["asyncio", "thread", "pool"]
    table = ExperimentTable("compare", "a load", cells=[first, between, last])
    ranked = summary.standings(Results("now", "ewe-lab", {}, [table]))
    assert len(ranked) == 3 and not summary.first_model_leads(ranked)


TABLES = re.compile(r"<table.*?</table>", re.DOTALL)
ROWS = re.compile(r"<tr.*?</tr>", re.DOTALL)
CELLS = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
HAS_UNIT = re.compile(r"[/%µ]|\b(ms|s|second|[kMG]?B)\b")
COUNTS = ("threads", "processes", "users", "settings", "errors", "our errors", "printed errors")
RATIOS = ("printed ratio", "our ratio", "CPU per reply, over the best", "replies/s, over the best")
NUMBER = re.compile(r"[\d.,]+")


def test_each_figure_has_a_unit_in_the_head_or_in_its_cell() -> None:
    plain = ewe_table()
    plain.cells = [cell for cell in plain.cells if not cell.line]
    page = report.html(Results("now", "ewe-lab", {}, [compared(), ewe_table(), sweep(), plain]))
    bare: set[str] = set()
    for table in TABLES.findall(page):
        head, *rows = (CELLS.findall(row) for row in ROWS.findall(table))
        for row in rows:
            for title, value in zip(head, row, strict=False):
                known = title in COUNTS + RATIOS or HAS_UNIT.search(title)
                if not known and NUMBER.fullmatch(value.strip()):
                    bare.add(title)
    assert not bare
    assert "Times, sizes and shares have their unit in each cell" in page
    assert "1,013 → 1,000 req/s" in page and "1,013 req/s → " not in page


def test_a_setting_on_an_axis_has_its_unit() -> None:
    assert terminal.setting_text(2.25, CATALOG["E-C3"]) == "2.25 seconds"
    assert terminal.setting_text(3, None) == "3" and terminal.setting_text(None, None) == ""
