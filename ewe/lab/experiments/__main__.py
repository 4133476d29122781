"""docs/experiments.md, from the experiments themselves: `python -m ewe.lab.experiments > docs/experiments.md`."""

from __future__ import annotations

from ewe.lab.experiments import CATALOG, DOCUMENTS

HEAD = """\
# The experiments

Every table, figure and claim of five documents that can be measured, and two experiments of our
own. `ewe-lab show ID` tells all about one, `ewe-lab run ID` runs it, `--quick` in a shorter form; those marked q
are what `ewe-lab run --all --quick` runs. Minutes are for the full form.

Made by `python -m ewe.lab.experiments`; an experiment is a file in `ewe/lab/experiments`.
"""
TITLES = {
    "EWE": "EWE (2006)",
    "X-Switch": "X-Switch (2010)",
    "LibCGI": "LibCGI",
    "RDBMS": "Database gateways",
    "thesis": "The thesis (2011)",
    "ewe": "Our own",
}


def listing() -> str:
    """Return the page."""
    parts = [HEAD]
    for document in DOCUMENTS:
        parts.append(f"\n## {TITLES[document]}\n\n| id | | what | source | state |\n|---|---|---|---|---|\n")
        for each in CATALOG.values():
            if each.document == document:
                state = f"waits for {each.needs}" if each.needs else f"runs, {each.minutes:g} min"
                parts.append(
                    f"| {each.id} | {'q' if each.quick else ''} | {each.title} | {each.source} | {state} |\n"
                )
    return "".join(parts)


if __name__ == "__main__":
    print(listing(), end="")
