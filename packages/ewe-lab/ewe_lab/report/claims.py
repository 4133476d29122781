"""The page of claims: what each document claims, and what the last run of its experiment here found.

    ewe-lab run EWE X L R T --out runs/one            measure
    ewe-lab claims runs/one --page docs/claims.md     put the findings on the page

A page has a file beside it, claims.json, with the finding of each experiment, its date and its machine. A run on
another day may have a few experiments only: the others keep their finding. The reports themselves are many
megabytes, so they stay where they are.

A finding replaces another one unless it says less: a run without a verdict, beside other programs, does not
replace a verdict, a quick run does not replace a full one that has a verdict, and a run that leaves out a server
(one that is not installed) does not replace one that has measured it. Of two that say as much the later one counts.
A finding of the same run replaces the earlier one always: the rules of verdicts have changed meanwhile, and the
earlier word is no longer what the figures say. The kept reports are enough for this: nothing is measured.

    ewe-lab claims reports/*.json --page docs/claims.md
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import ascii_uppercase

from ewe_lab.bench import verdicts
from ewe_lab.bench.experiment import Experiment
from ewe_lab.bench.results import (
    BadResults,
    ExperimentTable,
    Results,
    seconds_since_1970,
    value_from_json,
    write_and_rename,
)
from ewe_lab.experiments.catalog import CATALOG, DOCUMENTS, TITLES, UNTESTED
from ewe_lab.report import summary
from ewe_lab.report.kept_reports import lacks_phases

FORMAT = 1  # of the file beside the page
# Facts that are the same only on the same machine; the versions of its programs may change
MACHINE_FACTS = ("processor", "cores", "memory", "system")
LEFT_OUT_FACTS = ("load before", "code")  # facts of a run, not of a machine
NOT_RUN = "not run yet"
FIGURE_IN_CLAIM = "in the claim"
HEAD = """\
# The claims, one by one

For readers of the documents. After this page you know which of their claims held here, and which cannot be tested.

Each claim of the five documents, and of ours, that an experiment of the lab tests, and the finding of its last
run here. `ewe-lab show ID` says how it is measured. Figures of different decades are never compared:
[lab.md](lab.md#how-far-to-trust-it) says how a verdict is made. Where other programs had the cores there is no
verdict. A claim about settings, events or memory keeps its verdict there, and the row says so.

One command measures everything on a quiet machine, and writes this page:

```
make claims                                  # all, about {full_hours:.0f} hours
make claims ARGS="--minutes 40"              # as much as fits into 40 minutes
make claims ARGS="--minutes 40" ROWS="X L"   # of two documents; ROWS="L-T1 R-F5": these rows
make claims ARGS=--quick                     # shorter, and once: about {quick_minutes:.0f} minutes in all
```

It measures first what lacks a verdict, then what was measured quickly, then the oldest rows. Each experiment that
has ended is kept at once, so the command may be interrupted, and goes on another evening where it has stopped. It
waits while other programs have the cores. `packages/ewe-lab/reports/` keeps a small report of each row, with the
machine, the date and the version of the code. `ewe-lab report FILE` shows one. `.bench/claims-DATE-TIME/` has the
whole reports. `ewe-lab claims DIR --page claims.md` puts the findings of any other run on a page. After a change of
the rules `make verdicts` judges the kept reports again and writes this page, without a measurement.
"""

UNTESTED_HEAD = """\
## What cannot be tested here

Each claim, measurement or future work of a document that no row above tests, or only in part, with the reason.
[lab.md](lab.md#other-servers) lists the programs that are in no current distribution, each with its last release.
"""


@dataclass
class KeptFinding:
    """The finding of one run of an experiment. since: the largest change since the document. machine: a letter."""

    word: str
    sentence: str
    since: str
    started: str  # ISO 8601, with the zone
    machine: str
    quick: bool
    foreign: float | None  # the share of the cores that other programs had
    code: str = ""  # the version of the code that was measured, if the report has it
    left_out: tuple[str, ...] = ()  # the servers that could not be measured, since something is not installed

    @property
    def date(self) -> str:
        """The day of the run."""
        return self.started[:10]  # YYYY-MM-DD

    @property
    def rank(self) -> tuple[int, float]:
        """The rank, as a pair to compare: of two findings the one with the greater rank is kept.

        First 3 for a verdict of a full run, 2 of a quick one, 1 for "not testable", 0 for no verdict; then the
        time of the run.
        """
        if self.word in verdicts.JUDGED:
            value = 2 if self.quick else 3
        else:
            value = int(self.word == verdicts.NOT_TESTABLE)
        return value, seconds_since_1970(self.started)


@dataclass
class KeptFindings:
    """The findings on a page, by id. machines: the facts of each machine, by its letter."""

    machines: dict[str, dict[str, str]] = field(default_factory=dict)
    findings: dict[str, KeptFinding] = field(default_factory=dict)
    format: int = FORMAT

    def letter_of_machine(self, facts: Mapping[str, str]) -> str:
        """Return the letter of a machine, and store its facts. A new machine gets the next letter.

        Runs with the same MACHINE_FACTS are of one machine. The versions of its programs may be newer than before.
        """
        facts_of_machine = {name: text for name, text in facts.items() if name not in LEFT_OUT_FACTS}
        for letter, stored in self.machines.items():
            if all(stored.get(name) == facts_of_machine.get(name) for name in MACHINE_FACTS):
                self.machines[letter] = facts_of_machine
                return letter
        letter = next(letters for letters in machine_letters() if letters not in self.machines)
        self.machines[letter] = facts_of_machine
        return letter

    def add_findings(self, results: Results) -> Iterator[str]:
        """Add the findings of a run; yield a sentence for each that does not replace an earlier one."""
        for table in results.tables:
            experiment = CATALOG.get(table.id)
            if experiment is None or table.interrupted or table.skipped:
                continue
            new, old = self.kept_finding(table, experiment, results), self.findings.get(table.id)
            is_judged_again = old is not None and new.started == old.started
            if is_judged_again and lacks_phases(table):
                continue  # the report has too little for a verdict
            if old is not None and not is_judged_again and (why := reason_to_keep(old, new)):
                yield f"{table.id}: {why}"
                continue
            self.findings[table.id] = new

    def kept_finding(self, table: ExperimentTable, experiment: Experiment, results: Results) -> KeptFinding:
        """Return the finding of a table, with the date and the machine of its run."""
        found = summary.finding_of(table, experiment)
        since = ""
        if found.word in verdicts.JUDGED:
            since = verdicts.change_since_document(table, experiment)
        letter = self.letter_of_machine(results.machine)
        return KeptFinding(
            word=found.word,
            sentence=found.sentence,
            since=since,
            started=results.started,
            machine=letter,
            quick=table.quick,
            foreign=table.foreign,
            code=results.machine.get("code", ""),
            left_out=left_out_names(table),
        )


def machine_letters() -> Iterator[str]:
    """Yield A to Z, then AA, AB and so on, as the columns of a spreadsheet are named."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(ascii_uppercase, repeat=length))


def reason_to_keep(old: KeptFinding, new: KeptFinding) -> str:
    """Return a sentence that says why a later finding does not replace the kept one; "" if it does."""
    if new.rank < old.rank:
        return f"“{old.word}” of {old.date} stays, and not “{new.word}” of {new.date}"
    lost = [name for name in new.left_out if name not in old.left_out]
    if lost and old.word in verdicts.JUDGED:
        return f"“{old.word}” of {old.date} stays: the run of {new.date} has left out {' and '.join(lost)}"
    return ""


def left_out_names(table: ExperimentTable) -> tuple[str, ...]:
    """Return the servers that a run has left out: those of its notes "NAME is left out: REASON"."""
    return tuple(
        name for name, left_out, _ in (note.partition(" is left out: ") for note in table.notes) if left_out
    )


def kept_file(page: Path) -> Path:
    """Return the file beside a page."""
    return page.with_suffix(".json")


def load(path: Path) -> KeptFindings:
    """Return the findings in the file beside a page; none if there is no file. Raises OSError, BadResults."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("format") != FORMAT:
            raise BadResults(f"{path}: not findings in format {FORMAT}")
        kept = value_from_json(KeptFindings, found)
    except FileNotFoundError:
        return KeptFindings()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as reason:
        raise BadResults(f"{path}: not findings of the lab: {reason}") from None
    assert isinstance(kept, KeptFindings)
    return kept


def write(kept: KeptFindings, page: Path) -> None:
    """Write the page, and the file beside it, in the order of the catalogue. Raises OSError.

    An interrupt or a full disk leaves the findings of all earlier runs.
    """
    kept.findings = {id: kept.findings[id] for id in CATALOG if id in kept.findings}
    text = json.dumps(asdict(kept), ensure_ascii=False, indent=1)
    for path, content in ((kept_file(page), text + "\n"), (page, markdown(kept))):
        try:
            write_and_rename(path, content)
        except OSError as reason:
            reason.filename = str(path)  # the user knows this name
            raise


# ---------------------------------------------------------------------------------------------------------
# The page


def markdown(kept: KeptFindings) -> str:
    """Return the page of all claims."""
    parts = [
        HEAD.format(
            full_hours=sum(each.minutes for each in CATALOG.values()) / 60,
            quick_minutes=sum(each.quick_seconds for each in CATALOG.values()) / 60,
        ),
        *overview_lines(kept),
    ]
    for document in DOCUMENTS:
        parts += document_lines(kept, document)
    parts += [*untested_lines(), *machine_lines(kept)]
    return "\n".join(parts).rstrip() + "\n"


def overview_lines(kept: KeptFindings) -> Iterator[str]:
    """Yield the table that counts the claims of each document by their verdict."""
    # All that a finding may be; words that no document needs get no column
    words = (*verdicts.JUDGED, verdicts.NO_VERDICT, verdicts.NOT_TESTABLE, verdicts.NO_CLAIM, NOT_RUN)
    counts = {
        document: Counter(
            verdict_of_claim(kept, id) for id, each in CATALOG.items() if each.document == document
        )
        for document in DOCUMENTS
    }
    used = [word for word in words if any(count[word] for count in counts.values())]
    yield f"| document | {' | '.join(used)} | not tested |"
    yield "|---" * (len(used) + 2) + "|"
    for document, count in counts.items():
        cells = [str(count[word] or "") for word in used]
        yield f"| {TITLES[document]} | {' | '.join(cells)} | {len(UNTESTED[document]) or ''} |"
    yield ""


def verdict_of_claim(kept: KeptFindings, id: str) -> str:
    """Return the verdict on a claim; NOT_RUN without a finding."""
    return kept.findings[id].word if id in kept.findings else NOT_RUN


def document_lines(kept: KeptFindings, document: str) -> Iterator[str]:
    """Yield the lines about a document's claims: a table of those that are tested."""
    yield f"## {TITLES[document]}\n"
    yield "| id | claim | the document's figure | here | verdict |"
    yield "|---|---|---|---|---|"
    for id, each in CATALOG.items():
        if each.document == document:
            claim = f"{table_cell(each.claim)} ({table_cell(each.source)})"
            figure = table_cell(each.paper_figure) or FIGURE_IN_CLAIM
            yield f"| {id} | {claim} | {figure} | {finding_text(kept, id)} | {verdict_of_claim(kept, id)} |"
    yield ""


def untested_lines() -> Iterator[str]:
    """Yield the table of all claims that are not tested, or in part, with the reason; nothing if there are none."""
    if not any(UNTESTED.values()):
        return
    yield UNTESTED_HEAD
    yield "| document | claim | state | why |"
    yield "|---|---|---|---|"
    for document, claims in UNTESTED.items():
        for each in claims:
            text = f"{table_cell(each.claim)} ({table_cell(each.source)})"
            yield f"| {TITLES[document]} | {text} | {each.state} | {table_cell(each.reason)} |"
    yield ""


def finding_text(kept: KeptFindings, id: str) -> str:
    """Return the finding, the change since the document, the date and the machine as one text; "" if not run."""
    found = kept.findings.get(id)
    if found is None:
        return ""
    length = "quick" if found.quick else "full"
    left_out = f"Left out: {', '.join(found.left_out)}." if found.left_out else ""
    text = " ".join(filter(None, (found.sentence, found.since, left_out)))
    return f"{table_cell(text)} ({length}, {found.date}, machine {found.machine})"


def table_cell(text: str) -> str:
    """Return a text for a cell of a Markdown table: on one line, with each bar escaped."""
    return " ".join(text.replace("|", "\\|").split())


def machine_lines(kept: KeptFindings) -> Iterator[str]:
    """Yield the lines about the machines of the findings that are shown."""
    shown = {each.machine for each in kept.findings.values()}
    if not shown:
        return
    yield "## Machines\n"
    for letter in sorted(shown, key=lambda letter: (len(letter), letter)):
        facts = [f"{name} {text}" for name, text in kept.machines[letter].items() if text != "not installed"]
        yield f"- **{letter}**: {table_cell('; '.join(facts))}."
