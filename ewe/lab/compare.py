"""`ewe-lab compare`: models of ewe and other servers under one load."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ewe.config.messages import nearest
from ewe.lab.bench.experiment import Contender, Load
from ewe.lab.bench.results import Cell, Table
from ewe.lab.invocation import PlannedTable
from ewe.lab.lab_bench import Job, LabBench, expected, missing
from ewe.lab.options import CommandError
from ewe.lab.stacks import peers
from ewe.processors import base


def contenders(models: Sequence[str], against: Sequence[str]) -> list[Contender]:
    """Return the servers that the command line names; all models if it names none. Raises CommandError."""
    found = [ewe_contender(text) for text in models or list(base.FLAGS.values())]
    for name in against:
        if name not in peers.PEERS:
            near = nearest(name, peers.PEERS)
            raise CommandError(f"there is no peer {name!r}{near or '; there are ' + ', '.join(peers.PEERS)}")
        found.append(Contender(name, name))
    return list(dict.fromkeys(found))


def ewe_contender(text: str) -> Contender:
    """Return the model that a text names, with its options: `pool --parking never`. Raises CommandError."""
    try:
        name, *options = shlex.split(text)
        model = base.SYNONYMS.get(name, name)
        base.find(model)
    except base.UnknownModel as reason:
        near = "" if "did you mean" in str(reason) else nearest(text.split()[0], base.names())
        raise CommandError(f"{reason}{near}") from None
    except ValueError:
        raise CommandError(f"--model {text!r} is not the name of a model") from None
    return Contender(" ".join((model, *options)), "ewe", model, tuple(options))


def the_load(options: Namespace) -> Load:
    """Return the load that the command line describes."""
    load = Load(
        users=options.users or 50,
        think=options.think,
        seconds=options.time,
        warm_up=options.warm_up,
        timeout=options.timeout,
        keep_alive=options.keep_alive,
        path=options.path,
        tls="default" if options.tls else "",
    )
    if options.rate:
        load = replace(load, shape="arrivals", rate=options.rate, users=options.users or 0, think=0.0)
    return load


def check_root(root: Path | None, path: str) -> int | None:
    """Return the length of the file at `path`; None if there is no file (a program may answer). Raises
    CommandError."""
    if root is None:
        if path != "/index.html":
            raise CommandError("--path needs --root DIR: the lab's own site has /index.html only")
        return 1024
    if not root.is_dir():
        raise CommandError(f"--root {str(root)!r} is not a directory")
    file = root / path.lstrip("/")
    return file.stat().st_size if file.is_file() else None


def part(options: Namespace, command: str) -> PlannedTable:
    """Return the table to fill. Raises CommandError."""
    found = contenders(options.models, options.against)
    root = options.root.resolve() if options.root else None
    load = replace(the_load(options), length=check_root(root, options.path))

    def run(lab: LabBench) -> Iterator[Cell]:
        jobs = [Job(each, load, Cell(each.name), root or lab.site([])) for each in lab.servers(found)]
        yield from lab.measure_all(jobs)

    table = Table("compare", f"{load.words()}, {load.path}", command=command)
    count = sum(not missing(each) for each in found)
    return PlannedTable(table, run, count * options.repeats * expected(load))
