"""Verdicts: what they are, at their edges, and that they depend on ratios alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe_lab.bench import figures, verdicts
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Times, Usage
from ewe_lab.report import summary

EXPERIMENT = Experiment(
    "X", "EWE", "table", "title", "claim", "model", "rate", reference="apache", paper_reference="Apache"
)
FIGURE = st.floats(0.001, 100_000)
FACTOR = st.integers(-20, 20).map(lambda power: 2.0**power)  # exact, so that no verdict turns on rounding


def cell(server: str, ours: float | None, paper: float | None, column: str = "", **other) -> Cell:
    """Return a cell whose rate is ours."""
    samples = (
        [] if ours is None else [Sample("wrk", 1.0, extra={"rate": ours}, client=other.pop("client", None))]
    )
    return Cell(
        server,
        column,
        value="extra.rate",
        paper=paper,
        paper_server=server.capitalize(),
        samples=samples,
        **other,
    )


def table(*cells: Cell) -> ExperimentTable:
    return ExperimentTable("X", cells=list(cells))


def verdict(
    ours: float | None, paper: float | None, reference: float | None = 100, printed: float | None = 100
):
    """Return the judgement on a server beside a reference."""
    cells = table(cell("apache", reference, printed), cell("serial", ours, paper))
    return verdicts.judge(cells, EXPERIMENT)[1]


@pytest.mark.parametrize(
    ("paper", "ours", "expected"),
    [
        (0.5, 0.5, "reproduced"),
        (0.5, 0.75, "reproduced"),
        (0.5, 0.76, "shape"),
        (0.004, 0.5, "shape"),
        (3.0, 1.2, "shape"),
        (0.5, 1.05, "changed"),
        (10 / 11, 5.0, "changed"),
        (0.004, 1.0, "changed"),
        (1.0, 3.0, "changed"),
        (1.05, 0.3, "changed"),
        (1.3, 1.0, "changed"),
        (1.0, 0.7, "changed"),
        (1.18, 0.8, "inverted"),
        (0.5, 1.2, "inverted"),
        (2.0, 0.5, "inverted"),
        (0.0, 0.0, "reproduced"),
        (0.3, 0.0, "shape"),
        (3.0, 0.0, "inverted"),
        (0.0, 3.0, "inverted"),
    ],
)
def test_verdicts(paper: float, ours: float, expected: str) -> None:
    assert verdicts.compare(paper, ours) == expected
    assert verdict(ours * 100, paper * 100).verdict == expected


def repeated(printed: float, ours: tuple[float, ...]) -> verdicts.JudgedCell:
    """Return the judgement on repeats, beside a reference that has 100 each time."""
    cells = [
        Cell(name, value="extra.rate", paper=paper, paper_server=name.capitalize(),
             samples=[Sample("x", 1, extra={"rate": each}) for each in rates])
        for name, paper, rates in (("apache", 1, (100.0,) * len(ours)), ("serial", printed, ours))
    ]  # fmt: skip
    return verdicts.judge(table(*cells), EXPERIMENT)[1]


@pytest.mark.parametrize(
    ("printed", "ours", "expected"),
    [
        (1.18, (81.0, 85.0, 88.0), "inverted"),
        (1.2, (99.0, 100.0, 100.0), "changed"),
        (1.0, (128.0, 130.0, 131.0), "changed"),
        (1.2, (99.0, 108.0, 125.0), "not testable"),
        (1.15, (115.0,), "not testable"),
        (1.3, (130.0,), "reproduced"),
        (1.12, (107.0, 108.0, 109.0), "reproduced"),
        (1.02, (85.0,), "reproduced"),
        (1.4, (96.0, 104.0, 150.0), "not testable"),
        (1.0, (96.0, 102.0, 140.0), "reproduced"),
        (1.0, (37.0, 90.0, 120.0), "not testable"),
        (1.0, (98.0, 160.0, 250.0), "not testable"),
        (1.6, (96.0, 104.0, 170.0), "not testable"),
        (1.6, (30.0, 104.0, 900.0), "not testable"),
        (5.0, (30.0, 104.0, 900.0), "not testable"),
        (1.8, (96.0, 104.0, 170.0), "changed"),
    ],
)
def test_an_order_is_kept_only_if_it_is_seen(printed: float, ours: tuple[float, ...], expected: str) -> None:
    """Repeats that differ much overlap with anything. They are no proof that two servers are level."""
    found = repeated(printed, ours)
    assert found.verdict == expected
    assert found.reason == ("the difference from apache may be chance" if expected == "not testable" else "")


@pytest.mark.parametrize(
    ("rates", "word"),
    [((81.0, 85.0), "does not hold"), ((118.0, 120.0), "holds"), ((95.0,), "does not hold")],
)
def test_a_claim_of_a_small_difference_can_fail(rates: tuple[float, ...], word: str) -> None:
    """Events serve up to 18 % more requests than threads, says the document."""
    reference = Cell("apache", paper=100, paper_server="Apache")
    events = Cell("serial", paper=118, paper_server="Serial")
    for found, values in ((reference, (100.0,) * len(rates)), (events, rates)):
        found.samples = [Sample("x", 1, replies=int(each)) for each in values]
    assert verdicts.finding(table(reference, events), EXPERIMENT).word == word
    changed = verdicts.change_since_document(table(reference, events), EXPERIMENT)
    assert changed.startswith("Little has changed") is (word == "holds")
    assert ("No ratio moved by more than 1.5, but an order has changed; " in changed) is (word != "holds")


@pytest.mark.parametrize(
    ("testable", "word"), [(1, "holds in part"), (2, "holds in part"), (3, "holds"), (5, "holds")]
)
def test_a_claim_holds_only_if_most_of_it_was_tested(testable: int, word: str) -> None:
    """One order of six that is kept is no proof of the other five."""
    cells = [cell("apache", 100, 100)]
    for number in range(6):
        name = f"server{number}"
        cells.append(cell(name, 200, 200) if number < testable else cell(name, None, 200, failure="it ended"))
    found = verdicts.finding(table(*cells), EXPERIMENT)
    assert found.word == word
    assert f"{6 - testable} not testable" in found.sentence


def test_the_lost_share_of_the_reference_counts_as_a_figure_that_was_tested() -> None:
    """It is judged as that of each other server: two shares of three are tested."""
    cells = [
        Cell(name, value="lost", paper=0.0, samples=[Sample("x", 1, requests=9, replies=9)] if sound else [])
        for name, sound in (("apache", True), ("serial", True), ("fork", False), ("thread", False))
    ]
    assert verdicts.finding(table(*cells[:3]), EXPERIMENT).word == "holds"
    assert verdicts.finding(table(*cells), EXPERIMENT).word == "holds"
    cells[0].samples = []
    assert verdicts.finding(table(*cells), EXPERIMENT).word == "holds in part"


@pytest.mark.parametrize(
    ("over", "under", "bounds"),
    [
        ((30, 0.1), (10, 0.1), (3, 3)),
        ((30, 0.9), (10, 0.1), (3, math.inf)),
        ((30, 0.1), (10, 0.9), (0, 3)),
        ((30, 0.9), (10, 0.9), (0, math.inf)),
        ((30, 0.1), (0, 0.1), (math.inf, math.inf)),
        ((0, 0.1), (0, 0.1), None),
    ],
)
def test_a_load_generator_at_its_limit_leaves_a_ratio_open(
    over: tuple[int, float], under: tuple[int, float], bounds: tuple[float, float] | None
) -> None:
    first, second = (
        Cell("a", samples=[Sample("ab", 1, replies=n, client=share)]) for n, share in (over, under)
    )
    assert verdicts.bounds_of_ratio(first, second) == bounds
    assert verdicts.bounds_of_ratio(first, Cell("none")) is None


@pytest.mark.parametrize(
    ("bounds", "found"),
    [((3, 3), True), ((2, 4), True), ((3, 9), None), ((0, 3), None), ((5, 9), False), ((0, 1), False)],
)
def test_a_ratio_is_judged_only_if_its_bounds_decide(bounds: tuple[float, float], found: bool | None) -> None:
    assert verdicts.is_between(bounds, 2, 4) is found


def test_ratios_are_to_the_reference() -> None:
    found = verdict(30, 5, reference=60, printed=50)
    assert (found.paper, found.ours) == (0.1, 0.5)


def test_the_reference_has_no_verdict_of_its_own() -> None:
    found = verdicts.judge(table(cell("apache", 10, 20), cell("serial", 5, 10)), EXPERIMENT)
    assert [each.verdict for each in found] == ["reference", "reproduced"]
    assert (found[0].paper, found[0].ours) == (1, 1)


def test_what_was_not_printed_has_no_verdict() -> None:
    assert verdict(10, None).verdict == ""
    assert verdict(10, None).ours == 0.1


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (verdict(None, 50), "not measured"),
        (verdict(50, 50, reference=None), "the reference server was not measured"),
        (verdict(50, 50, reference=0), "the reference server apache gave no reply"),
        (verdict(50, 50, printed=None), "the document printed no figure for its reference server"),
    ],
)
def test_not_testable(found: verdicts.JudgedCell, reason: str) -> None:
    assert (found.verdict, found.reason) == ("not testable", reason)


@pytest.mark.parametrize(("ours", "reference"), [(math.nan, 100), (50, math.nan)])
def test_no_number_confirms_nothing(ours: float, reference: float) -> None:
    """Each comparison with NaN is false: it seemed to be smaller than the reference, as printed."""
    assert verdict(ours, 50, reference).verdict == "not testable"


def test_a_failure_is_the_reason() -> None:
    cells = table(cell("apache", 1, 1), cell("serial", None, 1, failure="it did not start"))
    assert verdicts.judge(cells, EXPERIMENT)[1].reason == "it did not start"


def test_no_reply_has_no_time_to_judge() -> None:
    late = Cell(
        "serial", value="service.p50", paper=2, samples=[Sample("locust", 1.0, requests=5, errors={"ct": 5})]
    )
    first = Cell("apache", value="service.p50", paper=1, paper_server="Apache")
    first.samples = [Sample("locust", 1.0, service=Times(1, 1, 1, 1, 1, 1, 1))]
    found = verdicts.judge(table(first, late), EXPERIMENT)[1]
    assert (found.verdict, found.reason) == ("not testable", "no reply")


def rated(apache: float, serial: float, paper: float, busy: str, value: str = "rate") -> verdicts.JudgedCell:
    """Return the judgement where the load generators of some servers were too busy."""
    cells = [
        Cell(name, value=value, paper=printed, paper_server=name.capitalize(),
             samples=[Sample("wrk", 1, replies=int(rate), client=0.71 if name in busy else 0.7,
                             service=Times(1_000, rate, rate, rate, rate, rate, rate))])
        for name, rate, printed in (("apache", apache, 1), ("serial", serial, paper))
    ]  # fmt: skip
    return verdicts.judge(table(*cells), EXPERIMENT)[1]


@pytest.mark.parametrize(
    ("apache", "serial", "paper", "busy", "expected"),
    [
        (100, 100, 1.0, "", "reproduced"),
        (100, 100, 1.0, "serial", "not testable"),
        (100, 100, 1.0, "apache", "not testable"),
        (100, 300, 2.0, "serial", "shape"),  # at least 3
        (100, 200, 2.0, "serial", "shape"),  # the factor is not known
        (100, 200, 1.0, "serial", "changed"),
        (100, 140, 1.0, "serial", "changed"),
        (100, 125, 1.1, "serial", "changed"),
        (100, 200, 0.5, "serial", "inverted"),
        (100, 115, 0.9, "serial", "not testable"),  # a factor below 1.5 might be all
        (100, 115, 2.0, "serial", "not testable"),  # measured once: below 20 % may be chance
        (100, 85, 0.5, "apache", "not testable"),
        (100, 50, 0.5, "serial", "not testable"),  # at least a half: perhaps more than apache
        (100, 50, 0.1, "apache", "shape"),  # at most a half
        (100, 50, 2.0, "apache", "inverted"),
        (100, 200, 2.0, "apache", "not testable"),
        (100, 300, 2.0, "apache serial", "not testable"),
    ],
)
def test_a_busy_load_generator_leaves_a_bound(
    apache: float, serial: float, paper: float, busy: str, expected: str
) -> None:
    found = rated(apache, serial, paper, busy)
    assert found.verdict == expected
    assert all(name in found.reason for name in busy.split())
    assert bool(found.reason) is bool(busy)


def test_times_under_a_busy_load_generator_say_nothing() -> None:
    assert rated(100, 300, 2.0, "serial", "service.p50").verdict == "not testable"
    assert rated(100, 300, 2.0, "", "service.p50").verdict == "reproduced"


@given(FIGURE, FIGURE, st.floats(1, 1000), st.sampled_from([1, -1]))
def test_a_bound_is_no_bolder_than_what_may_be_true(
    paper: float, bound: float, more: float, sense: int
) -> None:
    """Every ratio beyond the bound is on the side that the verdict names."""
    found, real = (
        verdicts.compare_with_bound(paper, bound, is_lower=sense > 0),
        verdicts.compare(paper, bound * more**sense),
    )
    if found == "shape":
        assert real in ("shape", "reproduced")
    elif found != "not testable":
        assert real == found


def test_a_busy_load_generator_does_not_spoil_memory() -> None:
    cells = [
        Cell(name, value="usage.memory", paper=1, paper_server=name.capitalize(),
             samples=[Sample("wrk", 1, client=1.0, usage=Usage(1, memory=5))])
        for name in ("apache", "serial")
    ]  # fmt: skip
    assert verdicts.judge(table(*cells), EXPERIMENT)[1].verdict == "reproduced"


def test_columns_are_judged_apart() -> None:
    cells = table(
        cell("apache", 100, 100, "a"), cell("serial", 50, 50, "a"),
        cell("apache", 10, 100, "b"), cell("serial", 50, 50, "b"),
    )  # fmt: skip
    assert [each.verdict for each in verdicts.judge(cells, EXPERIMENT)] == [
        "reference", "reproduced", "reference", "inverted",
    ]  # fmt: skip
    found = verdicts.finding(cells, EXPERIMENT)
    assert found.word == "holds in part"
    assert (
        found.sentence
        == "A: the one order compared is kept, within a factor of 1.5; b: the one order compared is inverted."
    )


def test_findings() -> None:
    def word(*cells: Cell) -> str:
        return verdicts.finding(table(cell("apache", 100, 100), *cells), EXPERIMENT).word

    assert word(cell("a", 50, 50), cell("b", 20, 50)) == "holds"
    assert word(cell("a", 50, 50), cell("b", 200, 50)) == "holds in part"
    assert word(cell("a", 100, 50)) == "does not hold"
    assert word() == "not testable"
    assert verdicts.finding(table(cell("a", 1, None)), None).word == "no printed figures"
    assert verdicts.finding(ExperimentTable("X", skipped="no servers"), EXPERIMENT).word == "not testable"


def test_a_column_that_cannot_be_tested_is_named() -> None:
    cells = [
        cell(name, ours, 100, column)
        for column, ours in (("a", 90), ("b", None))
        for name in ("apache", "fork")
    ]
    found = verdicts.finding(table(*cells), EXPERIMENT)
    assert found.word == "holds"
    assert found.sentence == "A: the one order compared is kept, within a factor of 1.5; b: not testable."


@pytest.mark.parametrize(
    ("printed", "ours", "sentence"),
    [
        (50, 50, "The one order compared is kept, within a factor of 1.5."),
        (50, 20, "The one order compared is kept."),
        (50, 100, "The one order compared has changed."),
        (50, 200, "The one order compared is inverted."),
    ],
)
def test_a_single_order_is_not_counted(printed: float, ours: float, sentence: str) -> None:
    cells = table(cell("apache", 100, 100), cell("serial", ours, printed))
    assert verdicts.finding(cells, EXPERIMENT).sentence == sentence


def test_many_columns_are_told_together() -> None:
    cells = [
        cell(name, ours, 100, column) for column in "abcde" for name, ours in (("apache", 100), ("fork", 90))
    ]
    found = verdicts.finding(table(*cells), EXPERIMENT)
    assert found.sentence == "5 settings, in all: 5 of 5 keep their order, 5 within a factor of 1.5."


def test_since_names_what_changed_most() -> None:
    cells = table(cell("apache", 100, 100), cell("serial", 100, 1), cell("fork", 40, 50))
    text = verdicts.change_since_document(cells, EXPERIMENT)
    assert text.startswith(
        "The largest change: Serial had 0.010 times Apache's figure then, and serial has 1.00 times"
    )
    assert text.endswith("fork had 50 times serial's, and has 0.40 times now.")
    quiet = verdicts.change_since_document(table(cell("apache", 100, 100), cell("fork", 40, 50)), EXPERIMENT)
    assert quiet.startswith("Little has changed")
    assert verdicts.change_since_document(table(cell("apache", 100, 100)), EXPERIMENT) == ""


@given(st.lists(st.tuples(FIGURE, FIGURE), min_size=2, max_size=6), FACTOR, FACTOR)
def test_scaling_changes_no_verdict(pairs: list[tuple[float, float]], ours: float, paper: float) -> None:
    """A machine that is a thousand times faster in all it does tells the same."""
    names = ["apache", *"bcdefg"]
    before = table(*(cell(name, o, p) for name, (o, p) in zip(names, pairs, strict=False)))
    after = table(*(cell(name, o * ours, p * paper) for name, (o, p) in zip(names, pairs, strict=False)))
    found = [verdicts.judge(each, EXPERIMENT) for each in (before, after)]
    assert [each.verdict for each in found[0]] == [each.verdict for each in found[1]]
    assert verdicts.finding(before, EXPERIMENT) == verdicts.finding(after, EXPERIMENT)


@given(FIGURE, FIGURE)
def test_then_and_now_may_be_exchanged(paper: float, ours: float) -> None:
    assert verdicts.compare(paper, ours) == verdicts.compare(ours, paper)


@given(FIGURE)
def test_the_same_ratio_is_reproduced(value: float) -> None:
    assert verdicts.compare(value, value) == "reproduced"


@given(FIGURE, FIGURE)
def test_an_inverted_pair_is_on_both_sides(paper: float, ours: float) -> None:
    found = verdicts.compare(paper, ours)
    if found == "inverted":
        assert (paper - 1) * (ours - 1) < 0
    if found == "shape":
        assert (paper - 1) * (ours - 1) > 0
    if found == "reproduced":
        assert abs(math.log(paper / ours)) <= math.log(1.5) + 1e-9


def measured(server: str, replies: int, errors: int, *cpu: float) -> Cell:
    """Return a cell with a repeat for each CPU time."""
    times = Times(1_000, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    return Cell(server, samples=[
        Sample("locust", 1, replies + errors, replies, errors={"ct": errors}, service=times,
               usage=Usage(each, memory=1000 / each))
        for each in cpu
    ])  # fmt: skip


def test_whoever_loses_requests_wins_nothing() -> None:
    found = verdicts.winners([measured("a", 100, 50, 0.1), measured("b", 90, 0, 1), measured("c", 50, 0, 2)])
    by_name = {each.name: each for each in found}
    assert by_name["rate"].server == "b"
    assert by_name["micros"].server == "b" and by_name["micros"].next is not None
    assert by_name["micros"].next.server == "c"
    assert by_name["usage.memory"].server == "c"
    assert by_name["service.p99"].server == ""  # they are level


def test_no_pair_is_named_as_inverted_that_overlaps() -> None:
    """Then a had twice b's figure. Now their repeats overlap, and the medians alone say the opposite."""

    def told(of_a: tuple[int, ...]) -> str:
        cells = [
            Cell(
                name, paper=paper, paper_server=name, samples=[Sample("x", 1, replies=each) for each in rates]
            )
            for name, paper, rates in (("apache", 1, (100,) * 3), ("a", 4, of_a), ("b", 2, (80, 105, 130)))
        ]
        return verdicts.change_since_document(table(*cells), replace(EXPERIMENT, paper_reference="apache"))

    assert "b's, and has" not in told((50, 88, 112))
    assert "a had 2.00 times b's, and has 0.48 times now" in told((49, 50, 51))


def test_a_check_names_the_rows_that_lack_a_figure() -> None:
    """The claim is about each model, and one of them did not start."""
    cells = [Cell("thread", samples=[Sample("x", 1)]), Cell("fork", failure="it did not start")]
    found = ExperimentTable("FULL", cells=cells, foreign=0.0)
    judged = verdicts.Finding(verdicts.HOLDS, "All is well.")
    said = summary.finding_with_doubts(judged, found, EXPERIMENT, checked=True).sentence
    assert "1 of 2 rows lacks a figure (fork: it did not start)." in said


@pytest.mark.parametrize("word", verdicts.JUDGED)
def test_a_run_without_its_end_has_no_verdict(word: str) -> None:
    """The first of ten servers keeps its order. Nobody knows about the others."""
    found = replace(table(cell("apache", 100, 100), cell("serial", 200, 200)), interrupted=True, foreign=0.0)
    assert verdicts.finding(found, EXPERIMENT).word == "holds"
    said = summary.finding_of(found, EXPERIMENT)
    assert said.word == "no verdict" and "Until then: The one order compared is kept" in said.sentence
    judged = verdicts.Finding(word, "All is well.")
    assert summary.finding_with_doubts(judged, found, EXPERIMENT, checked=True).word == "no verdict"


@pytest.mark.parametrize("checked", [True, False])
def test_a_verdict_names_the_rows_in_which_a_repeat_failed(checked: bool) -> None:
    """A server that dies in the third repeat has a good figure of the first two."""
    died = Cell("fork", samples=[Sample("x", 1)] * 2, failure="the server ended during the load")
    found = ExperimentTable("FULL", cells=[Cell("thread", samples=[Sample("x", 1)] * 3), died], foreign=0.0)
    judged = verdicts.Finding(verdicts.HOLDS, "All is well.")
    said = summary.finding_with_doubts(judged, found, EXPERIMENT, checked=checked).sentence
    assert "In 1 of 2 rows a repeat failed (fork: the server ended during the load)." in said
    assert "lacks a figure" not in said


@pytest.mark.parametrize("died", ["apache", "serial"])
@pytest.mark.parametrize("value", ["rate", "lost"])
def test_a_row_in_which_a_repeat_failed_is_no_proof(died: str, value: str) -> None:
    """The figure of the other repeats keeps the order."""
    cells = [
        replace(cell(name, None, paper=rate / 1000), value=value, failure="it ended" if name == died else "",
                samples=[Sample("x", 1, requests=1000, replies=rate)])
        for name, rate in (("apache", 100), ("serial", 200))
    ]  # fmt: skip
    is_judged = value == "lost" and died == "apache"  # a lost share is not compared with the reference's
    found = verdicts.judge(table(*cells), EXPERIMENT)[1]
    assert (found.verdict == "not testable") is not is_judged
    assert ("it ended" in found.reason) is not is_judged


def test_a_check_names_the_rows_in_which_the_load_generator_was_the_limit() -> None:
    cells = [Cell(name, x=1.0, samples=[Sample("ab", 1, replies=9, client=busy)])
             for name, busy in (("a", 0.5), ("b", 0.8))]  # fmt: skip
    found = ExperimentTable("X", cells=cells, foreign=0.0)
    judged = verdicts.Finding(verdicts.HOLDS, "All is well.")
    said = summary.finding_with_doubts(judged, found, EXPERIMENT, checked=True).sentence
    assert "In 1 of 2 rows the load generator was the limit" in said
    assert "limit" not in summary.finding_with_doubts(judged, found, EXPERIMENT, checked=False).sentence


def test_a_loss_in_any_repeat_is_a_loss() -> None:
    """The repeat with the median rate, which a table shows, lost nothing."""
    broken = measured("a", 100, 0, 0.1, 0.1)
    broken.samples += measured("a", 50, 50, 0.05).samples
    sound = measured("b", 99, 0, 1.0, 1.0, 1.0)
    assert figures.middle_sample(broken).lost == 0
    assert verdicts.winners([broken, sound]) == []
    told = [*summary.outcomes([broken, sound]), *summary.remarks(table(broken, sound))]
    percent = "50\N{NO-BREAK SPACE}%"
    assert any(f"requests were lost by a ({percent})" in each for each in told)
    assert f"a: it lost {percent} of the requests in another repeat than the one that is shown." in told
    assert summary.remarks(table(measured("a", 50, 50, 1.0))) == []  # the row itself shows this loss


@pytest.mark.parametrize(
    ("ours", "verdict"), [((115.0,), "changed"), ((125.0,), "inverted"), ((99.0, 115.0, 120.0), "changed")]
)
def test_nothing_is_inverted_within_the_spread_of_the_repeats(ours: tuple[float, ...], verdict: str) -> None:
    """The document has a quarter of the reference's figure."""
    cells = [
        Cell(
            name,
            paper=paper,
            paper_server=name.capitalize(),
            samples=[Sample("x", 1, replies=int(each)) for each in rates],
        )
        for name, paper, rates in (("apache", 4, (100.0,) * len(ours)), ("serial", 1, ours))
    ]
    assert verdicts.judge(table(*cells), EXPERIMENT)[1].verdict == verdict


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ((1.0, 1.1, 1.2), (1.15, 1.3, 1.4), ""),  # the repeats overlap
        ((1.0, 1.1, 1.2), (1.3, 1.4, 1.5), "a"),
        ((1.0, 1.0, 1.0), (1.03, 1.03, 1.03), ""),  # repeats that agree by chance
        ((1.0, 1.0, 1.0), (1.06, 1.06, 1.06), "a"),
        ((1.0,), (1.15,), ""),  # measured once: below 20 % nobody knows
        ((1.0,), (1.3,), "a"),
    ],
)
def test_nobody_wins_by_less_than_the_repeats_differ(
    one: tuple[float, ...], other: tuple[float, ...], winner: str
) -> None:
    cells = [measured("a", 100, 0, *one), measured("b", 100, 0, *other)]
    found = {each.name: each for each in verdicts.winners(cells)}
    assert found["micros"].server == winner
    assert found["rate"].server == ""
