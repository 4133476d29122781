"""X-Switch, table 2: the first and the average answer in each language, beside its native technology."""

from ewe_lab.bench.results import ExperimentTable
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.xswitch_tables import MEAN, NATIVE

MAX_NATIVE_RATIO = 1.13  # greatest ratio to the native technology's average: the printed one of Java


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim holds for a language if X-Switch's average is near the native technology's (Python: below it).
    """
    pieces, part_holds = [], []
    for language, native in NATIVE.items():
        medians = {
            cell.server: cell.median
            for cell in table.cells
            if cell.column == f"{language}: {MEAN}" and cell.median
        }
        ours, theirs = medians.get(f"xswitch {language}"), medians.get(native)
        if not ours or not theirs:
            continue
        ratio = ours / theirs
        part_holds.append(ratio <= (1.0 if language == "python" else MAX_NATIVE_RATIO))
        pieces.append(f"{language} {ratio:.2f}")
    if not pieces:
        return Finding(NOT_TESTABLE, "No language was measured both with X-Switch and natively.")
    verdict = verdict_of_parts(part_holds)
    return Finding(verdict, f"X-Switch's average over that of the native technology: {', '.join(pieces)}.")
