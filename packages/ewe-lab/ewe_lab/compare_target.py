"""`ewe-lab compare --target URL`: servers that run already, here or elsewhere, under the loads of `compare`.

The lab starts and stops nothing there. A first request shows that the target answers, before any load. CPU time and
memory are read on the target's machine (ewe_lab.machines), or are unknown, with the reason as a note.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from ewe_lab.bench.experiment import Load, ServerUnderTest, duration_text
from ewe_lab.bench.processes import LabError
from ewe_lab.bench.results import Cell, ExperimentTable
from ewe_lab.invocation import PlannedTable
from ewe_lab.lab_bench import CellJob, LabBench, expected_s
from ewe_lab.machines import session
from ewe_lab.machines.watch import LOOPBACK, TargetServer
from ewe_lab.machines.workers import LoadHosts
from ewe_lab.options import CommandError

NOWHERE = "none"  # the word of --target-ssh for a machine that ssh does not reach
LOCAL = ("models", "against", "root", "cgi", "gateways", "tls")  # options about servers that the lab starts


@dataclass(frozen=True)
class Target:
    """A server that runs already, and the path of the requests to it. name: its host and port, for the table."""

    name: str
    server: TargetServer
    path: str
    tls: bool


def split_url(url: str, path: str) -> tuple[str, str]:
    """Split the URL of a target into its server (http://HOST:PORT/ or http://HOST/) and its path with the query.

    path: the value of --path, "" without this option. It is used if the URL names no path.

    Raises CommandError if the URL has no host, or has a part that no request may have, such as a password.
    """
    bad_url = CommandError(f"--target {session.printable(url)!r} is no URL: write http://HOST:PORT/PATH")
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise bad_url
    # urlsplit() raises it for an IPv6 address without its closing bracket, parts.port for a port that is no number
    except ValueError:
        raise bad_url from None
    if (
        parts.username is not None
        or parts.fragment
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise bad_url
    path_of_url = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}/", path if path_of_url == "/" and path else path_of_url


def planned_target(url: str, where: str | None, options: Namespace) -> Target:
    """Return a target, with the machine on which an agent reads its resources. Raises CommandError.

    where: the word of --target-ssh, None to derive the machine from the URL.
    """
    base, path = split_url(url, options.path or "")
    ssh = ssh_arguments(options)
    name = urlsplit(base).hostname or ""
    if where == NOWHERE:
        server = TargetServer(base, None, why_unread="--target-ssh none", ssh=ssh)
    elif where is not None:
        server = TargetServer(base, ssh_host(where, "--target-ssh"), ssh=ssh)
    elif name in LOOPBACK:
        server = TargetServer(base, session.SshHost(""), ssh=ssh)
    else:  # the host of the URL; a name that ssh cannot have leaves the resources unknown
        try:
            server = TargetServer(base, session.parse_host(f"[{name}]" if ":" in name else name), ssh=ssh)
        except LabError as reason:
            server = TargetServer(base, None, why_unread=str(reason), ssh=ssh)
    return Target(name=urlsplit(base).netloc, server=server, path=path, tls=base.startswith("https"))


def ssh_arguments(options: Namespace) -> tuple[str, ...]:
    """Return the command of --ssh, with which the lab reaches other machines, as an argument list: `ssh -i KEY`.

    Raises CommandError.
    """
    try:
        arguments = ("ssh",) if options.ssh is None else tuple(shlex.split(options.ssh))
    except ValueError:  # a quote without its end
        arguments = ()
    if not arguments:
        raise CommandError(f"--ssh {options.ssh!r} is not a command")
    return arguments


def ssh_host(text: str, option: str) -> session.SshHost:
    """Return the host that an option names. Raises CommandError."""
    try:
        return session.parse_host(text)
    except LabError as reason:
        raise CommandError(f"{option}: {reason}") from None


def load_hosts(options: Namespace) -> LoadHosts | None:
    """Return the machines of --load-from, None for this one. Raises CommandError."""
    if not options.load_from:
        if options.load_python is not None:
            raise CommandError("--load-python needs --load-from, the machines on which it runs")
        return None
    if not options.target:
        raise CommandError(
            "--load-from needs --target URL: a server that the lab starts listens at 127.0.0.1, which other"
            " machines do not reach"
        )
    python = "python3" if options.load_python is None else options.load_python
    if not python.strip():
        raise CommandError(f"--load-python {python!r} is not a program")
    hosts = [ssh_host(text, "--load-from") for text in options.load_from]
    return LoadHosts(hosts, ssh_arguments(options), python)


def announcement(targets: list[Target], load: Load, repeats: int, hosts: LoadHosts | None) -> str:
    """Return the sentence that says, before any load, where it goes, how much it is, and how long it lasts."""
    amount = f"{load.rate:g} requests/s" if load.shape == "arrivals" else f"{load.users} users"
    urls = ", ".join(target.server.url for target in targets)
    times = f", {repeats} times" if repeats > 1 else ""
    origin = f" from {', '.join(map(str, hosts.hosts))}" if hosts else ""
    return f"Load goes to {urls}{origin}: {amount} for {duration_text(load.warm_up + load.seconds)}{times}."


def target_table(options: Namespace, load: Load, command: str) -> PlannedTable:
    """Return the table of the targets that the command line names. Raises CommandError.

    command: the command line, for the report.
    """
    targets = planned_targets(options)
    hosts = load_hosts(options)
    # A worker without a part of the connections would open one for each request
    if hosts and load.shape == "arrivals" and 0 < load.users < len(hosts.hosts):
        count = len(hosts.hosts)
        raise CommandError(f"--users {load.users}: the {count} workers of --load-from need a connection each")

    def run(lab: LabBench) -> Iterator[Cell]:
        """Say where the load goes, then load the targets in turns, and yield the cells."""
        lab.load_hosts = hosts
        if hosts:
            lab.progress.show_step("clocks")
            hosts.check_clocks()
            for note in hosts.notes:
                lab.add_note(note)
        lab.progress.print_line(announcement(targets, load, lab.repeats, hosts))
        jobs = []
        for target in targets:
            load_of_target = replace(load, path=target.path, tls="default" if target.tls else "")
            tested = ServerUnderTest(target.name, "target")
            cell = Cell(target.name)
            # The document root is not used: the lab does not start the target
            jobs.append(CellJob(tested, load_of_target, cell, root=lab.directory, target=target.server))
        yield from lab.fill_cells_in_turns(jobs)

    paths = ", ".join(dict.fromkeys(target.path for target in targets))
    origin = f", from {', '.join(map(str, hosts.hosts))}" if hosts else ""
    table = ExperimentTable("compare", f"{load.description()}, {paths}{origin}", command=command)
    return PlannedTable(table, run, len(targets) * options.repeats * expected_s(load))


def planned_targets(options: Namespace) -> list[Target]:
    """Return the targets that the command line names. Raises CommandError."""
    for name in LOCAL:
        if getattr(options, name):
            raise CommandError(f"--target measures a server that runs already: leave out {option_of(name)}")
    machines = options.target_ssh or [None] * len(options.target)  # None: the host of the URL
    if len(machines) != len(options.target):
        raise CommandError("write --target-ssh once for each --target, or not at all")
    targets = [
        planned_target(url, where, options) for url, where in zip(options.target, machines, strict=True)
    ]
    if options.path and all(target.path != options.path for target in targets):
        raise CommandError("--path is for a target without a path in its URL: leave out one of the two")
    return targets


def option_of(name: str) -> str:
    """Return an option as the user writes it; `models` has several options."""
    return "the models" if name == "models" else f"--{name}"
