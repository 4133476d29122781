"""X-Switch, table 2: the first and the average answer in each language, beside its native technology."""

from ewe_lab.bench.experiment import Chart, Experiment
from ewe_lab.bench.results import Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.xswitch_tables import COLD, FIRST, MACHINE, MEAN, NATIVE, TODAY, run

WITHIN = 1.13  # ratio to the native technology's average: the worst that is printed, of Java
COLUMNS = {
    f"{language}: {column}": (native, TODAY[native])
    for language, native in NATIVE.items()
    for column in (FIRST, MEAN)
}
NAMES = (
    *(name for name, printed in TODAY.items() if printed or name.startswith("cgi")),
    *(f"xswitch {language}{COLD}" for language in ("python", "perl")),  # whose engines can have a warm parent
)


def check(table: Table) -> Finding:
    """The claim holds for a language if X-Switch's average is near the native technology's (Python: below it)."""
    told, kept = [], []
    for language, native in NATIVE.items():
        found = {
            cell.server: cell.median
            for cell in table.cells
            if cell.column == f"{language}: {MEAN}" and cell.median
        }
        ours, theirs = found.get(f"xswitch {language}"), found.get(native)
        if not ours or not theirs:
            continue
        ratio = ours / theirs
        kept.append(ratio <= (1.0 if language == "python" else WITHIN))
        told.append(f"{language} {ratio:.2f}")
    if not told:
        return Finding(NOT_TESTABLE, "No language was measured both with X-Switch and natively.")
    word = HOLDS if all(kept) else IN_PART if any(kept) else FAILS
    return Finding(word, f"X-Switch's average over that of the native technology: {', '.join(told)}.")


EXPERIMENT = Experiment(
    id="X-T2",
    document="X-Switch",
    source="table 2",
    title="Initial and average response times",
    claim="X-Switch is within 13 % of the native technology of each language, and faster with Python.",
    varies="technology",
    measures="initial and average response time, 10 users without a pause",
    quick=True,
    minutes=4.0,
    reference="uwsgi python",
    paper_reference="Apache mod_python",
    by_column=COLUMNS,
    charts=(
        Chart("bars", "Average response time, over that of the native technology",
              columns=tuple(name for name in COLUMNS if name.endswith(MEAN)), y="response time"),
        Chart("bars", "Initial response time, over that of the native technology",
              columns=tuple(name for name in COLUMNS if name.endswith(FIRST)), y="response time"),
    ),
    run=lambda lab: run(lab, NAMES, by_language=True),
    machine=MACHINE,
)  # fmt: skip
