"""`ewe-lab compare`: some models and peers under one load."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ewe.config import nearest
from ewe.lab import peers
from ewe.lab.bench import Job, LabBench, expected, missing
from ewe.lab.experiment import Contender, Load
from ewe.lab.invocation import Part
from ewe.lab.results import Cell, Table
from ewe.processors import base


class UsageError(Exception):
    """The command line asks for what is not there; the text is one line."""


def contenders(models: Sequence[str], against: Sequence[str]) -> list[Contender]:
    """Return the servers that were asked for; of ewe's all models if none was. Raises UsageError."""
    found = [ewe_contender(text) for text in models or list(base.FLAGS.values())]
    for name in against:
        if name not in peers.PEERS:
            near = nearest(name, peers.PEERS)
            raise UsageError(f"there is no peer {name!r}{near or '; there are ' + ', '.join(peers.PEERS)}")
        found.append(Contender(name, name))
    return list(dict.fromkeys(found))


def ewe_contender(text: str) -> Contender:
    """Return the model that a text names, perhaps with options: `pool --parking never`. Raises UsageError."""
    try:
        name, *options = shlex.split(text)
        model = base.SYNONYMS.get(name, name)
        base.find(model)
    except base.UnknownModel as reason:
        near = "" if "did you mean" in str(reason) else nearest(text.split()[0], base.names())
        raise UsageError(f"{reason}{near}") from None
    except ValueError:
        raise UsageError(f"--model {text!r} is not the name of a model") from None
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
    """Return the length of the file that the path means, None if it is no file of ours. Raises UsageError."""
    if root is None:
        if path != "/index.html":
            raise UsageError("--path needs --root DIR: the lab's own site has /index.html only")
        return 1024
    if not root.is_dir():
        raise UsageError(f"--root {str(root)!r} is not a directory")
    file = root / path.lstrip("/")
    return file.stat().st_size if file.is_file() else None


def part(options: Namespace, command: str) -> Part:
    """Return what is to be carried out. Raises UsageError."""
    found = contenders(options.models, options.against)
    root = options.root.resolve() if options.root else None
    load = replace(the_load(options), length=check_root(root, options.path))

    def run(lab: LabBench) -> Iterator[Cell]:
        jobs = [Job(each, load, Cell(each.name), root or lab.site([])) for each in lab.servers(found)]
        yield from lab.measure_all(jobs)

    table = Table("compare", f"{load.words()}, {load.path}", command=command)
    count = sum(not missing(each) for each in found)
    return Part(table, run, count * options.repeats * expected(load))
