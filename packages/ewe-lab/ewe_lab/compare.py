"""`ewe-lab compare`: models of ewe, gateways to one program, and other servers under one load."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ewe.config.messages import nearest
from ewe.processors import base
from ewe_lab.bench.experiment import Contender, Load
from ewe_lab.bench.results import Cell, Table
from ewe_lab.invocation import PlannedTable
from ewe_lab.lab_bench import Job, LabBench, expected, missing
from ewe_lab.options import CommandError
from ewe_lab.stacks import gateways, peers
from ewe_lab.stacks.gateways import Program

GATEWAY_MODEL = "thread"  # under which gateways are compared if no model is named


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


def the_program(options: Namespace) -> Program:
    """Return the program that --cgi and --path name. Raises CommandError."""
    path, _, query = options.path.partition("?")
    if options.cgi is None:
        raise CommandError("--gateways needs --cgi DIR, the directory of the program")
    if options.root or options.against or options.tls:
        raise CommandError("--gateways compares ways of ewe: leave out --root, --against and --tls")
    if not path.startswith(gateways.URL) or "/" in path[len(gateways.URL) :]:
        raise CommandError(f"--path {path!r} names no program: write {gateways.URL}hello.py")
    program = Program(options.cgi.resolve(), path[len(gateways.URL) :], query)
    if not program.script.is_file():
        raise CommandError(f"there is no {program.file} in {str(options.cgi)!r} (--cgi, --path)")
    return program


def by_gateway(options: Namespace, command: str) -> PlannedTable:
    """Return the table of one program behind several gateways. Raises CommandError."""
    names = list(dict.fromkeys(options.gateways)) or [gateways.CGI]
    for name in names:
        if name not in gateways.GATEWAYS:
            near = nearest(name, gateways.GATEWAYS)
            raise CommandError(
                f"there is no gateway {name!r}{near or '; there are ' + ', '.join(gateways.GATEWAYS)}"
            )
    program = the_program(options)
    models = contenders(options.models or [GATEWAY_MODEL], [])
    load = the_load(options)

    def run(lab: LabBench) -> Iterator[Cell]:
        jobs = []
        with ExitStack() as stack:
            for name in names:
                if lacking := gateways.missing(name, program):
                    lab.note(lacking)
                    continue
                for each in lab.servers(models):
                    found, path = stack.enter_context(gateways.ready(lab, name, program, each))
                    label = f"{name}, {each.name}" if len(models) > 1 else name
                    jobs.append(
                        Job(found, replace(load, path=path), Cell(label), lab.site([])),
                    )
            yield from lab.measure_all(jobs)

    under = f" under {models[0].name}" if len(models) == 1 else ""
    table = Table("compare", f"{program.file} by gateway{under}, {load.words()}", command=command)
    count = len(names) * len(models)
    return PlannedTable(table, run, count * options.repeats * expected(load))


def part(options: Namespace, command: str) -> PlannedTable:
    """Return the table to fill. Raises CommandError."""
    if options.gateways or options.cgi:
        return by_gateway(options, command)
    found = contenders(options.models, options.against)
    root = options.root.resolve() if options.root else None
    load = replace(the_load(options), length=check_root(root, options.path))

    def run(lab: LabBench) -> Iterator[Cell]:
        jobs = [Job(each, load, Cell(each.name), root or lab.site([])) for each in lab.servers(found)]
        yield from lab.measure_all(jobs)

    table = Table("compare", f"{load.words()}, {load.path}", command=command)
    count = sum(not missing(each) for each in found)
    return PlannedTable(table, run, count * options.repeats * expected(load))
