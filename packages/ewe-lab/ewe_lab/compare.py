"""`ewe-lab compare`: models of ewe, gateways to one program, and other servers under one load.

    options ─▶ planned_table() ──┬── --target URL      servers that run already (compare_target.py)
                                 ├── --gateways --cgi  one program behind several gateways of ewe
                                 └── else              models of ewe, and other servers (--against)
                                       ▼
                    PlannedTable: run() yields the cells (invocation.py)

The options are checked before the first server starts: a run of an hour must not end by a wrong word. All servers
of a table get the same load, and take turns. Something that disturbs the machine then meets all of them.

Read next: lab_bench.py, which starts and loads the servers.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ewe.config.messages import nearest
from ewe.processors import base
from ewe_lab import compare_target
from ewe_lab.bench.experiment import Load, ServerUnderTest
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.invocation import PlannedTable
from ewe_lab.lab_bench import CellJob, LabBench, expected_s, why_server_is_missing
from ewe_lab.options import DEFAULT_PATH, DEFAULT_THINK_S, CommandError
from ewe_lab.stacks import gateways, other_servers
from ewe_lab.stacks.gateways import CgiProgram

GATEWAY_MODEL = "thread"  # the model for a comparison of gateways if the command line names none


def tested_servers(models: Sequence[str], against: Sequence[str]) -> list[ServerUnderTest]:
    """Return the servers that the command line names; all models if it names none. Raises CommandError."""
    found = [tested_ewe(text) for text in models or list(base.FLAGS.values())]
    for name in against:
        if reason := other_servers.GONE_SERVERS.get(name):
            raise CommandError(
                f"{name} is in no current distribution, and the lab does not build it: {reason}"
            )
        if name not in other_servers.OTHER_SERVERS:
            near = nearest(name, other_servers.OTHER_SERVERS)
            raise CommandError(
                f"there is no server {name!r}{near or '; there are ' + ', '.join(other_servers.OTHER_SERVERS)}"
            )
        found.append(ServerUnderTest(name, name))
    return list(dict.fromkeys(found))


def tested_ewe(text: str) -> ServerUnderTest:
    """Return ewe under the model that a text names, with options: `pool --parking never`. Raises CommandError.

    The text is also its name in tables, but a synonym is replaced: `event` by `asyncio`.
    """
    try:
        name, *options = shlex.split(text)
        model = base.SYNONYMS.get(name, name)
        base.model_named(model)  # raises UnknownModel
    except base.UnknownModel as reason:
        near = "" if "did you mean" in str(reason) else nearest(text.split()[0], base.names())
        raise CommandError(f"{reason}{near}") from None
    except ValueError:
        raise CommandError(f"--model {text!r} is not the name of a model") from None
    return ServerUnderTest(" ".join((model, *options)), "ewe", model, tuple(options))


def load_of(options: Namespace) -> Load:
    """Return the load that the command line describes. Raises CommandError."""
    if options.rate and options.think is not None:
        raise CommandError("--think is for users: with --rate requests arrive however long an answer takes")
    load = Load(
        users=options.users or 50,
        think=DEFAULT_THINK_S if options.think is None else options.think,
        seconds=options.time,
        warm_up=options.warm_up,
        timeout=options.timeout,
        keep_alive=options.keep_alive,
        reopens=True,  # a server may close a connection that is idle during a think time
        path=options.path or DEFAULT_PATH,
        tls="default" if options.tls else "",
    )
    if options.rate:
        # Requests arrive by themselves. Users are then the connections that they share; 0: one for each
        load = replace(load, shape="arrivals", rate=options.rate, users=options.users or 0, think=0.0)
    return load


def expected_length(root: Path | None, path: str) -> int | None:
    """Return the length of the answer that the load expects: of the file at `path`; None if a program may answer.

    root: the document root, None for the lab's own site. Raises CommandError.
    """
    if root is None:
        if path != DEFAULT_PATH:
            raise CommandError("--path needs --root DIR: the lab's own site has /index.html only")
        return 1024  # the length of the page that LabBench.site() makes
    if not root.is_dir():
        raise CommandError(f"--root {str(root)!r} is not a directory")
    file = root / path.lstrip("/")
    return file.stat().st_size if file.is_file() else None


def program_of(options: Namespace) -> CgiProgram:
    """Return the program that --cgi and --path name. Raises CommandError."""
    path, _, query = (options.path or DEFAULT_PATH).partition("?")
    if options.cgi is None:
        raise CommandError("--gateways needs --cgi DIR, the directory of the program")
    if options.root or options.against or options.tls:
        raise CommandError("--gateways compares ways of ewe: leave out --root, --against and --tls")
    if not path.startswith(gateways.URL) or "/" in path[len(gateways.URL) :]:
        raise CommandError(f"--path {path!r} names no program: write {gateways.URL}hello.py")
    program = CgiProgram(options.cgi.resolve(), path[len(gateways.URL) :], query)
    if not program.script.is_file():
        raise CommandError(f"there is no {program.file} in {str(options.cgi)!r} (--cgi, --path)")
    return program


def gateway_cell(gateway: str, program: CgiProgram, model: ServerUnderTest | None) -> Cell:
    """Return the empty cell of a gateway. model: to name in its label, if several models are compared."""
    other_program = gateways.other_form(gateway, program)  # a library in place of the script, for example
    label = f"{gateway} ({other_program})" if other_program else gateway
    remark = ""
    if other_program:
        remark = f"runs {other_program}, and not {program.file}: the two programs differ"
    return Cell(f"{label}, {model.name}" if model else label, remark=remark)


def gateways_table(options: Namespace, command: str) -> PlannedTable:
    """Return the table of one program behind several gateways. Raises CommandError.

    command: the command line, for the report.
    """
    names = list(dict.fromkeys(options.gateways)) or [gateways.CGI]
    for name in names:
        if name not in gateways.GATEWAYS:
            near = nearest(name, gateways.GATEWAYS)
            raise CommandError(
                f"there is no gateway {name!r}{near or '; there are ' + ', '.join(gateways.GATEWAYS)}"
            )
    program = program_of(options)
    models = tested_servers(options.models or [GATEWAY_MODEL], [])
    load = load_of(options)

    def run(lab: LabBench) -> Iterator[Cell]:
        """Start all gateways under all models, load them in turns, and yield the cells."""
        jobs = []
        with ExitStack() as exits:
            for name in names:
                if reason := gateways.why_missing(name, program):
                    lab.add_note(reason)
                    continue
                # All gateways run side by side until the last turn
                for model in lab.servers(models):
                    tested, path = exits.enter_context(gateways.start_gateway(lab, name, program, model))
                    cell = gateway_cell(name, program, model if len(models) > 1 else None)
                    jobs.append(CellJob(tested, replace(load, path=path), cell, root=lab.site([])))
            yield from lab.fill_cells_in_turns(jobs)

    under = f" under {models[0].name}" if len(models) == 1 else ""
    table = ExperimentTable(
        "compare", f"{program.file} by gateway{under}, {load.description()}", command=command
    )
    count = len(names) * len(models)
    return PlannedTable(table, run, count * options.repeats * expected_s(load))


def planned_table(options: Namespace, command: str) -> PlannedTable:
    """Return the table that the command line asks for: of targets, of gateways, or of servers.

    command: the command line, for the report. Raises CommandError.
    """
    if options.target:
        return compare_target.target_table(options, load_of(options), command)
    compare_target.load_hosts(options)  # raises CommandError for --load-from, which needs --target
    for option, is_given in (("--target-ssh", options.target_ssh), ("--ssh", options.ssh is not None)):
        if is_given:
            raise CommandError(f"{option} needs --target URL")
    if options.gateways or options.cgi:
        return gateways_table(options, command)
    tested = tested_servers(options.models, options.against)
    root = options.root.resolve() if options.root else None
    load = load_of(options)
    load = replace(load, length=expected_length(root, load.path))

    def run(lab: LabBench) -> Iterator[Cell]:
        yield from lab.fill_cells_in_turns(
            [
                CellJob(server, load, Cell(server.name), root=root or lab.site([]))
                for server in lab.servers(tested)
            ]
        )

    table = ExperimentTable("compare", f"{load.description()}, {load.path}", command=command)
    count = sum(not why_server_is_missing(server) for server in tested)  # for the estimate only
    return PlannedTable(table, run, count * options.repeats * expected_s(load))
