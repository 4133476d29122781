"""Charts: well-formed, told in words, nothing outside the picture and no label over another."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_tables import MODELS, compared, ewe_table, sweep
from support.examples import examples

from ewe import svg
from ewe_lab.bench.experiment import Chart, Experiment
from ewe_lab.bench.results import Cell, ExperimentTable, Sample
from ewe_lab.experiments.catalog import CATALOG
from ewe_lab.report import lines, report
from ewe_lab.report.charts import draw, printed_errors
from ewe_lab.report.lines import DrawnChart


def boxes(picture: ET.Element) -> list[tuple[float, float, float, float, str]]:
    """Return where texts are: left, top, right, bottom. Letters are taken a little narrower than they may be."""
    found = []
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        size = float(text.get("font-size"))
        wide = svg.width(text.text, size) * 0.92
        x, y = float(text.get("x")), float(text.get("y"))
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[text.get("text-anchor")]
        found.append((left, y - size * 0.72, left + wide, y, text.text))
    return found


def check(drawn: DrawnChart) -> ET.Element:
    """Check that a picture can be read."""
    picture = ET.fromstring(drawn.svg)
    _, _, width, height = map(float, picture.get("viewBox").split())
    title, desc = picture[0], picture[1]
    assert picture.get("role") == "img"
    assert picture.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert title.text and len(desc.text) > 20
    texts = boxes(picture)
    assert texts
    for left, top, right, bottom, text in texts:
        assert left >= -1 and right <= width + 1 and top >= -1 and bottom <= height + 1, text
    for index, (left, top, right, bottom, text) in enumerate(texts):
        for other in texts[index + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (text, other[4])
    for shape in picture.iter():
        if shape.tag.endswith("rect"):
            x, wide = float(shape.get("x")), float(shape.get("width"))
            assert x >= 0 and x + wide <= width + 1, ET.tostring(shape)
        for number in re.findall(
            r"-?[\d.]+", " ".join(value for name, value in shape.attrib.items() if name == "d")
        ):
            assert math.isfinite(float(number))
    assert drawn.rows and all(len(row) == len(drawn.head) for row in drawn.rows)
    return picture


@pytest.mark.parametrize("chart", [*report.COMPARE], ids=lambda chart: chart.title)
def test_the_charts_of_a_comparison(chart: Chart) -> None:
    check(draw(chart, compared(), None, "c"))


@pytest.mark.parametrize("chart", CATALOG["E-T2"].charts, ids=lambda chart: chart.title)
def test_the_charts_of_a_printed_table(chart: Chart) -> None:
    check(draw(chart, ewe_table(), CATALOG["E-T2"], "c"))


@pytest.mark.parametrize(
    "chart", [chart for chart in CATALOG["GROW"].charts if chart.columns == ("users",)], ids=lambda c: c.title
)
def test_lines_of_ten_servers(chart: Chart) -> None:
    picture = check(draw(chart, sweep(), CATALOG["GROW"], "c"))
    names = {text for *_, text in boxes(picture)}
    assert names >= set(MODELS)


def test_bars_are_ratios_that_grow_from_the_reference() -> None:
    picture = check(draw(CATALOG["E-T2"].charts[0], ewe_table(), CATALOG["E-T2"], "c"))
    bars = [
        each for each in picture.iter("{http://www.w3.org/2000/svg}rect") if each.get("class") == "paper"
    ][1:]
    ends = [float(bar.get("x")) for bar in bars]
    serial, fork = ends[1], ends[2]
    assert serial < fork  # 0.0044 of Apache reaches further to the left than 0.21
    texts = [text for *_, text in boxes(picture)]
    assert "0.0044" in texts and "0.21" in texts


def test_stacked_bars() -> None:
    cells = [
        Cell(
            server, layer, value="extra.time", unit="s", samples=[Sample("pinger", 1, extra={"time": value})]
        )
        for server in ("X-Switch", "CGI")
        for layer, value in (("web application", 15.0), ("Apache", 24.5), ("engine", 6.0), ("switch", 6.7))
    ]
    drawn = draw(Chart("stacked", "Layers", y="seconds"), ExperimentTable("X-T1", cells=cells), None, "c")
    check(drawn)
    assert ["CGI", "engine", "6 s"] in drawn.rows


def test_errors_of_the_document_and_ours() -> None:
    found = printed_errors(Cell("serial", paper_note="881 st, 5 res of 1000"))
    assert found == {"st": pytest.approx(88.1), "res": pytest.approx(0.5)}
    assert printed_errors(Cell("serial", paper_note="67 of 1000")) == {}
    drawn = draw(Chart("errors", "Errors"), ewe_table(), CATALOG["E-T2"], "c")
    assert ["serial", "printed", "st", "88\N{NO-BREAK SPACE}%"] in drawn.rows
    assert any(row[:3] == ["serial", "think 100 ms", "ct"] for row in drawn.rows)


@given(
    text=st.text("ailmw. ", min_size=1, max_size=30),
    margin=st.floats(0, 200),
    size=st.sampled_from((10.5, 12.5)),
)
def test_a_text_fits_into_a_room_of_its_own_width(text: str, margin: float, size: float) -> None:
    """Sums of floats differ by rounding, and by the version of Python: 3.12 adds them more exactly."""
    assert svg.shortened(text, svg.width(text, size) + margin - margin, size) == text


def test_errors_keep_the_order_of_the_servers_and_the_document_is_drawn_once() -> None:
    lost, note = Sample("x", 1, requests=10, errors={"ct": 5}), "5 st of 10"
    cells = [
        Cell("first", "1 user", samples=[Sample("x", 1, requests=10)]),
        Cell("second", "1 user", paper_note=note, samples=[lost]),
        Cell("second", "2 users", paper_note=note, samples=[Sample("x", 1, requests=10)]),
        Cell("first", "2 users", samples=[lost]),
        Cell("third", samples=[lost], paper_note=note),
    ]
    drawn = draw(Chart("errors", "Errors"), ExperimentTable("E-T2", cells=cells), None, "c")
    names = [text for *_, text in boxes(check(drawn)) if text in ("first", "second", "third")]
    assert names == ["first", "second", "third"]
    assert [row[:3] for row in drawn.rows] == [
        ["second", "printed", "st"],
        ["second", "1 user", "ct"],
        ["first", "2 users", "ct"],
        ["third", "printed", "st"],
        ["third", "here", "ct"],
    ]


def test_a_timeline_with_gaps() -> None:
    table = compared(("fork",))
    for second in table.cells[0].samples[0].timeline[1:3]:
        second.p50 = second.p99 = second.cpu = second.memory = None
    drawn = draw(Chart("timeline", "Second by second"), table, None, "c")
    check(drawn)
    assert len(drawn.rows) == 5


def test_nothing_to_draw_is_no_chart() -> None:
    for kind in ("bars", "lines", "stacked", "errors", "timeline"):
        assert (
            draw(
                Chart(kind, "t"), ExperimentTable("compare", cells=[Cell("fork", failure="x")]), None, "c"
            ).svg
            == ""
        )


CROWDED = (0, 1, 4, 8, 16, 64, 300, 301, 302)
POSITIVE = st.one_of(st.just(0.0), st.floats(1e-4, 1e7))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=10), st.sampled_from(["rate", "micros", "usage.memory"]))
def test_bars_of_any_figures(values: list[float], value: str) -> None:
    cells = [
        Cell(MODELS[index], value="extra.v", samples=[Sample("x", 1, extra={"v": v})])
        for index, v in enumerate(values)
    ]
    drawn = draw(Chart("bars", "Any", "extra.v", y=value), ExperimentTable("compare", cells=cells), None, "c")
    check(drawn)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-4, 1e4), st.floats(1e-4, 1e4)), min_size=1, max_size=9),
)
def test_ratio_bars_of_any_figures(pairs: list[tuple[float, float]]) -> None:
    experiment = Experiment("Y", "EWE", "t", "t", "c", "v", "m", reference="ref", paper_reference="Ref")
    cells = [
        Cell(
            "ref", "a", value="extra.v", paper=1, paper_server="Ref", samples=[Sample("x", 1, extra={"v": 1})]
        )
    ]
    cells += [
        Cell(MODELS[index], "a", value="extra.v", paper=paper, samples=[Sample("x", 1, extra={"v": ours})])
        for index, (paper, ours) in enumerate(pairs)
    ]
    check(draw(Chart("bars", "Any"), ExperimentTable("Y", cells=cells), experiment, "c"))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(POSITIVE, min_size=1, max_size=9), min_size=1, max_size=10),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(1, 10, 100, 250, 500, 1000, 3000, 9000, 10_000), tuple(range(9)), CROWDED]),
)
def test_lines_of_any_figures(
    series: list[list[float]], log_x: bool, log_y: bool, xs: tuple[int, ...]
) -> None:
    cells = [
        Cell(MODELS[index], x=xs[at], value="extra.v", samples=[Sample("x", 1, extra={"v": value})])
        for index, values in enumerate(series)
        for at, value in enumerate(values)
    ]
    drawn = draw(
        Chart("lines", "Any", x="x", log_x=log_x, log_y=log_y),
        ExperimentTable("compare", cells=cells),
        None,
        "c",
    )
    if drawn.svg:
        check(drawn)


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(1e-6, 1e9), st.floats(1.0, 1e9), st.integers(2, 12), st.booleans())
def test_ticks_lie_within_their_scale(low: float, factor: float, most: int, log: bool) -> None:
    scale = svg.scale_for([low, low * factor], 0, most * 30, log=log)
    ticks = scale.ticks(30)
    assert ticks == sorted(set(ticks)) and 1 <= len(ticks) <= most + 2
    assert all(-0.5 <= scale(tick) <= most * 30 + 0.5 for tick in ticks)


@given(st.lists(st.floats(0, 200), max_size=12))
def test_labels_are_spread(wanted: list[float]) -> None:
    places = svg.spread(wanted, 12.5, 0, 200)
    for one, other in zip(sorted(places), sorted(places)[1:], strict=False):
        assert other - one >= 12.4
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    assert [places[index] for index in order] == sorted(places)


def test_lines_do_without_what_a_logarithm_has_no_place_for() -> None:
    cells = [
        Cell("fork", x=x, value="extra.v", samples=[Sample("x", 1, extra={"v": v})])
        for x, v in ((0, 5), (1, 0), (2, 5))
    ]
    found = lines.chart_lines(Chart("lines", "t", log_x=True, log_y=True), cells)
    assert found == [lines.ChartLine("fork", ((2, 5.0),))]


def test_bars_made_of_servers_beside_the_printed_ones() -> None:
    cells = [
        Cell(
            layer,
            language,
            value="extra.share",
            unit="%",
            paper=printed if language == "Perl" else None,
            samples=[Sample("pinger", 1, extra={"share": share, "cpu": share * 3})],
        )
        for language in ("Perl", "Python")
        for layer, share, printed in (
            ("front end", 30.0, 60.0),
            ("engine", 70.4, 40.0),
            ("script", -0.4, 0.0),
        )
    ]
    table = ExperimentTable("X-T1", cells=cells)
    drawn = draw(Chart("stacked", "Layers", y="percent", across=True), table, None, "c")
    check(drawn)
    assert ["Perl, printed", "front end", "60 %"] in drawn.rows
    assert ["Perl, here", "engine", "70.4 %"] in drawn.rows and ["Python", "engine", "70.4 %"] in drawn.rows
    texts = [text for *_, text in boxes(ET.fromstring(drawn.svg))]
    assert texts.count("100 %") == 1 and "100 % printed" in texts and "100 % here" in texts
    assert "60" in texts and texts.count("70") == 2  # in the bars themselves
    other = draw(Chart("stacked", "CPU", "extra.cpu", y="µs", across=True), table, None, "c")
    assert ["Perl", "front end", "90 µs"] in other.rows  # nothing is printed of another figure, nor its unit


def test_a_line_of_another_figure_has_its_own_unit() -> None:
    """The cells are in ms and the chart in seconds: 1.65 s is not "1.65 ms"."""
    samples = [Sample("x", 1, extra={"response": 25.0, "duration": 1.65})]
    cells = [Cell("a", x=x, value="extra.response", unit="ms", samples=samples) for x in (1, 2)]
    drawn = lines.draw_lines_chart(
        Chart("lines", "Duration", value="extra.duration", x="clients", y="s"), cells, "c"
    )
    assert drawn.head[-1] == "s" and {row[-1] for row in drawn.rows} == {"1.65 s"}
    drawn = lines.draw_lines_chart(Chart("lines", "Time", x="clients"), cells, "c")
    assert {row[-1] for row in drawn.rows} == {"25 ms"}
