"""The page of claims: what it keeps of a run, and what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.server import ROOT

from ewe.config.messages import ConfigError
from ewe_lab import cli
from ewe_lab.bench import results as lab_results
from ewe_lab.bench.results import BadResults, Cell, ExperimentTable, Results, Sample
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding
from ewe_lab.experiments.catalog import CATALOG, CHECKS, TITLES, UNTESTED
from ewe_lab.experiments.papers import paper_of
from ewe_lab.report import claims
from ewe_lab.report.claims import KeptFindings

PAGE = ROOT / "packages/ewe-lab/docs/claims.md"
QUIET, BUSY = 0.01, 0.9  # shares of the cores that other programs had
A_MACHINE = {
    "processor": "one, 2 cores",
    "cores": "both",
    "memory": "8 GB",
    "system": "Linux 6",
    "load before": "0.1",
}


def run_of(
    date: str = "2026-01-01",
    *,
    exec_micros: float = 700,
    quick: bool = False,
    foreign: float = QUIET,
    facts: dict[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Results:
    """Return a run of L-T1. exec_micros: of 1,000 µs in all; the claim holds if that is most of them."""
    cells = [
        Cell(
            name,
            "C, parent of 10 MB",
            value="extra.micros",
            samples=[Sample("x", 0, extra={"micros": micros})],
        )
        for name, micros in {"fork": 90, "exec": exec_micros, "IPC": 10, "total": 1000}.items()
    ]
    table = ExperimentTable("L-T1", cells=cells, quick=quick, foreign=foreign, notes=list(notes))
    return Results(f"{date}T12:00:00+00:00", "ewe-lab run L-T1", A_MACHINE | (facts or {}), [table])


def kept_after(*runs: Results) -> tuple[KeptFindings, list[str]]:
    """Return the findings after some runs, and the sentences about those that replaced nothing."""
    kept = KeptFindings()
    return kept, [sentence for run in runs for sentence in kept.add_findings(run)]


def test_the_later_of_two_runs_counts_whatever_their_zones() -> None:
    earlier, later = run_of(), run_of(exec_micros=100)
    earlier.started, later.started = "2026-10-25T02:45:00+02:00", "2026-10-25T02:15:00+01:00"
    kept, sentences = kept_after(earlier, later)
    assert kept.findings["L-T1"].started == later.started and not sentences
    assert lab_results.join_runs([later, earlier]).started == later.started


def test_the_page_is_up_to_date() -> None:
    """`ewe-lab claims --page packages/ewe-lab/docs/claims.md` writes it again after a change of the catalogue."""
    assert PAGE.read_text() == claims.markdown(claims.load(claims.kept_file(PAGE)))


def test_the_page_has_each_claim_once() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^\| ([A-Z]+(?:-\w+)?) \| .* \|$", page, re.M) == list(CATALOG)
    for document, untested in UNTESTED.items():
        assert all(claims.table_cell(each.reason) in page for each in untested), document
        assert {each.state for each in untested} <= {"missing", "in part"}


def test_one_table_has_all_that_is_not_tested() -> None:
    page = PAGE.read_text()
    table = page.partition("## What cannot be tested here")[2].partition("\n## ")[0]
    claimed = {(document, each.claim) for document, untested in UNTESTED.items() for each in untested}
    assert all(f"| {TITLES[document]} | {claims.table_cell(claim)} (" in table for document, claim in claimed)
    rows = re.findall(r"^\| .* \| (?:in part|missing) \| .* \|$", page, re.M)
    assert len(rows) == sum(map(len, UNTESTED.values())) and all(row in table for row in rows)


def test_no_row_of_the_page_gives_a_timed_verdict_beside_other_programs() -> None:
    for id, found in claims.load(claims.kept_file(PAGE)).findings.items():
        crowded = found.foreign is None or found.foreign * 2 > 0.25
        if crowded and found.word in ("holds", "holds in part", "does not hold"):
            assert not CATALOG[id].timed and "Other programs had" in found.sentence, id


NEW = "2026-02-02"
NO_C = ("The program in C is left out: apt install gcc",)


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        pytest.param(run_of(), run_of(NEW, foreign=BUSY), True, id="none-after-full"),
        pytest.param(run_of(), run_of(NEW, quick=True), True, id="quick-after-full"),
        pytest.param(run_of(quick=True), run_of(NEW), False, id="full-after-quick"),
        pytest.param(run_of(foreign=BUSY), run_of(NEW, quick=True), False, id="quick-after-none"),
        pytest.param(run_of(foreign=BUSY), run_of(NEW, foreign=BUSY), False, id="none-after-none"),
        pytest.param(run_of(), run_of(NEW, exec_micros=100), False, id="full-after-full"),
        pytest.param(run_of(), run_of("2025-12-31"), True, id="older-says-as-much"),
        pytest.param(run_of(foreign=BUSY), run_of("2025-12-31"), False, id="older-says-more"),
        pytest.param(run_of(quick=True), run_of(NEW, notes=NO_C), True, id="a-server-left-out"),
        pytest.param(run_of(notes=NO_C), run_of(NEW, notes=NO_C), False, id="both-left-it-out"),
        pytest.param(run_of(notes=NO_C), run_of(NEW), False, id="the-first-left-it-out"),
        pytest.param(run_of(foreign=BUSY), run_of(NEW, notes=NO_C), False, id="left-out-after-none"),
    ],
)
def test_a_finding_that_says_less_replaces_nothing(before: Results, after: Results, stays: bool) -> None:
    kept, said = kept_after(before, after)
    assert kept.findings["L-T1"].started == (before if stays else after).started
    assert bool(said) is stays
    assert all("“holds” of 2026-01-01 stays" in sentence for sentence in said)


def test_no_verdict_says_less_than_not_testable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "L-T1", lambda table: Finding(NOT_TESTABLE, "It may be chance."))
    kept, said = kept_after(run_of(quick=True), run_of(NEW, foreign=BUSY))
    assert said == ["L-T1: “not testable” of 2026-01-01 stays, and not “no verdict” of 2026-02-02"]
    assert kept.findings["L-T1"].sentence == "It may be chance."


def test_a_run_that_is_judged_again_keeps_no_earlier_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules have changed. The report says which code was measured, and the page still does."""
    kept, _ = kept_after(run_of(facts={"code": "0.1 abc"}))
    assert (kept.findings["L-T1"].word, kept.findings["L-T1"].code) == ("holds", "0.1 abc")
    monkeypatch.setitem(CHECKS, "L-T1", lambda table: Finding(NOT_TESTABLE, "It may be chance."))
    assert list(kept.add_findings(run_of(NEW, facts={"code": "0.2 def"})))  # another run replaces no verdict
    assert not list(kept.add_findings(run_of(facts={"code": "0.1 abc"})))
    assert (kept.findings["L-T1"].word, kept.findings["L-T1"].code) == ("not testable", "0.1 abc")


def test_the_page_says_what_the_kept_reports_say() -> None:
    """`make verdicts` writes the page again after a change of the rules. The letters of machines stay."""
    kept, again = claims.load(claims.kept_file(PAGE)), claims.load(claims.kept_file(PAGE))
    for path in (ROOT / "packages/ewe-lab/reports").glob("*.json"):
        assert list(again.add_findings(lab_results.load(path))) == []
    assert again.findings == kept.findings


def test_what_did_not_run_to_its_end_has_no_finding() -> None:
    interrupted, skipped, unknown = run_of(), run_of(), run_of()
    interrupted.tables[0].interrupted = True
    skipped.tables[0].skipped = "no reason"
    unknown.tables[0].id = "compare"
    assert kept_after(interrupted, skipped, unknown)[0].findings == {}


def test_a_machine_has_one_letter() -> None:
    kept, _ = kept_after(run_of(), run_of(facts={"load before": "9"}), run_of(facts={"python": "3.99"}))
    assert list(kept.machines) == ["A"]
    assert kept.machines["A"]["python"] == "3.99" and "load before" not in kept.machines["A"]
    kept, _ = kept_after(run_of(), run_of(NEW, facts={"memory": "16 GB"}))
    assert list(kept.machines) == ["A", "B"]
    assert kept.findings["L-T1"].machine == "B"
    assert "- **A**" not in claims.markdown(kept)  # no finding is of this machine any more


def test_each_of_many_machines_has_letters_of_its_own() -> None:
    kept = claims.KeptFindings()
    letters = [kept.letter_of_machine({"memory": f"{number} GB"}) for number in range(800)]
    assert letters[:2] + letters[25:28] + letters[51:53] == ["A", "B", "Z", "AA", "AB", "AZ", "BA"]
    assert letters[701:703] == ["ZZ", "AAA"]
    assert len({*letters}) == len(letters) and all(each.isalpha() for each in letters)
    assert kept.letter_of_machine({"memory": "27 GB"}) == "AB"


def test_what_cannot_be_written_leaves_the_findings_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after some bytes of each file."""
    page = tmp_path / "claims.md"
    claims.write(KeptFindings(), page)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    write = Path.write_text

    def half(path: Path, text: str, **more: str) -> int:
        write(path, text[:9], **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError):
        claims.write(KeptFindings(machines={"A": {"processor": "one"}}), page)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_row_names_the_servers_that_were_left_out() -> None:
    kept, _ = kept_after(run_of(notes=(*NO_C, "A note about another thing.")))
    (row,) = [line for line in claims.markdown(kept).splitlines() if line.startswith("| L-T1 |")]
    assert "Left out: The program in C. (full, " in row


def test_a_row_has_the_finding_with_its_date() -> None:
    kept, _ = kept_after(run_of(quick=True))
    (row,) = [line for line in claims.markdown(kept).splitlines() if line.startswith("| L-T1 |")]
    assert row.endswith(" (quick, 2026-01-01, machine A) | holds |")
    kept.findings["L-T1"].sentence = "a | b\nc"
    (row,) = [line for line in claims.markdown(kept).splitlines() if line.startswith("| L-T1 |")]
    assert "a \\| b c" in row and len(re.split(r"(?<!\\)\|", row)) == 7


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, run in (("late", run_of("2026-02-02", quick=True)), ("early", run_of())):
        (tmp_path / name).mkdir()
        lab_results.save(run, tmp_path / name / "results.json")
    page = tmp_path / "page.md"
    assert cli.main(["claims", str(tmp_path / "late"), str(tmp_path / "early"), "--page", str(page)]) == 0
    assert "L-T1: “holds” of 2026-01-01 stays" in capsys.readouterr().out  # the runs are taken by their date
    assert "(full, 2026-01-01, machine A) | holds |" in page.read_text()
    before = page.read_text()
    assert cli.main(["claims", "--page", str(page)]) == 0
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--page", "claims.html"], "--page claims.html: the page's name has to end in .md"),
        (["nowhere", "--page", "a.md"], "cannot read nowhere: No such file or directory"),
        (["--page", "bad.md"], "bad.json: not findings in format 1"),
        (["--page", "no/such/page.md"], "cannot write no/such/page.json: No such file or directory"),
    ],
)
def test_a_wrong_command_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text('{"format": 7}')
    assert cli.main(["claims", *words]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"format": 1, "findings": {"L-T1": {"word": 3}}}'], ids=len
)
def test_a_damaged_file_of_findings_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.json"
    path.write_text(text)
    with pytest.raises(BadResults, match=r"claims\.json: not findings of the lab"):
        claims.load(path)
    with pytest.raises(BadResults, match=r"claims\.json: not results of the lab"):
        lab_results.load(path)


def test_a_wrong_key_of_an_untested_claim_is_named() -> None:
    with pytest.raises(ConfigError, match="untested"):
        paper_of(
            {"document": "x", "untested": [{"source": "a", "claim": "b", "state": "c", "why": "d"}]}, "x"
        )
