"""Print docs/experiments.md: `python -m ewe_lab.experiments > packages/ewe-lab/docs/experiments.md`."""

from __future__ import annotations

import sys

from ewe.config.command import page_printer
from ewe_lab.experiments.catalog import CATALOG, DOCUMENTS, TITLES

OURS = sum(each.document == "ewe" for each in CATALOG.values())
HEAD = f"""\
# The experiments

For those who repeat a measurement. After this page you know the id of its experiment, and the time that it takes.

These are all tables, figures and claims of five documents that can be measured, and {OURS} that we added.
`ewe-lab show ID` describes one, `ewe-lab run ID` runs it, and `--quick` makes it shorter.
`ewe-lab run --all --quick` runs those marked q. The minutes are for the full length.

`python -m ewe_lab.experiments` writes this page. `ewe_lab/experiments/__init__.py` says where each experiment
stands.
"""


def listing() -> str:
    """Return the page: a table for each document."""
    parts = [HEAD]
    for document in DOCUMENTS:
        parts.append(
            f"\n## {TITLES[document]}\n\n| id | | experiment | source | state |\n|---|---|---|---|---|\n"
        )
        for each in CATALOG.values():
            if each.document == document:
                state = f"waits for {each.needs}" if each.needs else f"runs, {each.minutes:g} min"
                parts.append(
                    f"| {each.id} | {'q' if each.quick else ''} | {each.title} | {each.source} | {state} |\n"
                )
    return "".join(parts)


main = page_printer("python -m ewe_lab.experiments", lambda: [listing().rstrip("\n")])


if __name__ == "__main__":
    sys.exit(main())
