"""X-Switch, table 2: the first and the average answer in each language, beside its native technology."""

from ewe_lab.bench.results import Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, IN_PART, NOT_TESTABLE, Finding
from ewe_lab.experiments.xswitch_tables import MEAN, NATIVE

WITHIN = 1.13  # ratio to the native technology's average: the worst that is printed, of Java


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
