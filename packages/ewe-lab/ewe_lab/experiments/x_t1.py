"""X-Switch, table 1: the cost of each layer, measured by leaving out one layer after another.

There are five runs of the same script, with the same number of requests, one at a time:

    1 everything        client - front end - mod_x - X-Switch - engine - script
    2 null handler      client - front end
    3 X-Switch          client - - - - - - - - - - - X-Switch - engine - script       over FastCGI
    4 engine            client - - - - - - - - - - - - - - - - engine - script        over the engine protocol
    5 loop              the script alone, in a loop

The differences are the layers: run 2 is the front end, 1 - 2 - 3 is mod_x, 3 - 4 is X-Switch, 4 - 5 the engine, and
run 5 the script, as in the paper. CPU times need only two differences, because front end, X-Switch and engine are
separate processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ewe.config.defaults import SEARCH_PATH
from ewe.xswitch.engine_kinds import BUILT_IN
from ewe_lab.bench.experiment import Bench, RunningServer, ServerUnderTest
from ewe_lab.bench.processes import (
    LabError,
    cpu_seconds,
    last_line,
    load_core,
    on_core,
    output_text,
    own_cpu_seconds,
    process_tree,
    read_process,
    running,
    server_core,
    wait_for_end,
)
from ewe_lab.bench.results import Cell, ExperimentTable, Sample, Usage
from ewe_lab.bench.verdicts import NOT_TESTABLE, Finding, verdict_of_parts
from ewe_lab.experiments.papers import printed
from ewe_lab.load import pinger
from ewe_lab.load.pinger import PingTime, SendRequest
from ewe_lab.stacks.applications import HELLO
from ewe_lab.stacks.backends import run_xswitch, xswitch_status
from ewe_lab.stacks.programs import programs_directory
from ewe_lab.stacks.variants import HELLO_BODY
from ewe_lab.stacks.ways import serve_stack, technology

FRONT, MOD_X, SWITCH, ENGINE, SCRIPT = "front end", "mod_x", "X-Switch", "engine", "script"
LAYERS = (FRONT, MOD_X, SWITCH, ENGINE, SCRIPT)
ALL = ""  # all layers of a run together
RUNS = ("1 everything", "2 null handler", "3 X-Switch", "4 engine", "5 loop")
TABLE_1: Mapping[str, Sequence[float]] = printed("X-T1")  # of 100,000 requests: percent as printed, seconds
NAMES = {
    SCRIPT: "Web application",
    FRONT: "Apache",
    MOD_X: "Mod_x",
    ENGINE: "Processing engine",
    SWITCH: "X-Switch",
}
REMARKS = (
    "A layer is the difference of runs, each the fastest of three: other programs can only make a run slower.",
    "The pinger's own time is in runs 1 to 4. The front end's layer therefore includes it, and mod_x is too low "
    "by it.",
    "The script in a loop writes to /dev/null and does not flush after each request: sending is the engine's "
    "work.",
    "The engine's CPU time is that under X-Switch. Without X-Switch (run 4) it may differ.",
)
LANGUAGES = {"Perl": "pl", "Python": "py"}
# A limit so high that X-Switch does not replace the measured engine
NO_ENGINE_REPLACEMENT = "max-requests = 1000000\n"
REQUEST_COUNTS = (1_500, 10_000)  # of each run, quick and full
ROUNDS = 3  # of all runs in turn, so that a busy moment does not fall on one run only
LOOP_FACTOR = 10  # times as many requests in a loop, where each takes a microsecond
PERL_LOOP = """\
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);
my ($file, $count) = @ARGV;
open my $source, '<', $file or die "$file: $!\\n";
my $script = eval 'package main; sub { ' . join('', <$source>) . "\\n}" or die $@;
open my $report, '>&', STDOUT; open STDOUT, '>', '/dev/null';
my ($began, $cpu) = (clock_gettime(CLOCK_MONOTONIC), clock_gettime(CLOCK_PROCESS_CPUTIME_ID));
$script->() for 1 .. $count;
my ($ended, $spent) = (clock_gettime(CLOCK_MONOTONIC), clock_gettime(CLOCK_PROCESS_CPUTIME_ID));
printf $report "%.9f %.9f\\n", $ended - $began, $spent - $cpu;
"""
PYTHON_LOOP = """\
import sys, time
file, count = sys.argv[1], int(sys.argv[2])
with open(file) as source:
    script = compile(source.read(), file, "exec")
report, sys.stdout = sys.stdout, open("/dev/null", "w")
began, cpu = time.perf_counter(), time.process_time()
for _ in range(count):
    exec(script, {"__name__": "__main__"})
print(time.perf_counter() - began, time.process_time() - cpu, file=report)
"""
IN_A_LOOP = {"Perl": ("perl", PERL_LOOP), "Python": ("python3", PYTHON_LOOP)}


@dataclass(frozen=True)
class AllRequestsRun:
    """A run of all requests.

    cpu_s: CPU seconds of the servers, by layer in run 1, else of all layers together (ALL).
    """

    ping_time: PingTime
    cpu_s: Mapping[str, float]


@dataclass(frozen=True)
class RunningServers:
    """The servers of runs 1 to 4, side by side.

    full, null, fastcgi, engine: each sends one request of run 1, 2, 3 or 4. pids_by_layer: the processes of run 1.
    roots: the first process of the server of runs 2, 3 and 4.
    """

    full: SendRequest
    null: SendRequest
    fastcgi: SendRequest
    engine: SendRequest
    pids_by_layer: Mapping[str, tuple[int, ...]]
    roots: tuple[int, int, int]


def run(lab: Bench) -> Iterator[Cell]:
    """Measure the layers in each language whose technology is installed; yield the cells."""
    count = int(lab.quick_or_full(*REQUEST_COUNTS))
    for language in LANGUAGES:
        if lacking := technology(f"xswitch {language.lower()}").why_missing:
            lab.notes.append(lacking)
            continue
        rounds: list[tuple[AllRequestsRun, ...]] = []
        failure = ""
        try:
            with ExitStack() as exits:
                servers = start_servers(lab, language, exits)
                for ask in (servers.full, servers.null, servers.fastcgi, servers.engine):
                    pinger.ping(ask, count // 10)  # warms up; not measured
                rounds = [make_runs(lab, servers, language, count) for _ in range(ROUNDS)]
        except LabError as reason:
            failure = str(reason)
        yield from cells(language, count, rounds, failure)
    lab.notes += REMARKS


def start_servers(lab: Bench, language: str, exits: ExitStack) -> RunningServers:
    """Start the servers of runs 1 to 4, connect to each, and return them. Raises LabError.

    exits: closes the connections and stops the servers when it is closed.
    """
    core = server_core()
    script = str(programs_directory(lab) / f"hello.{LANGUAGES[language]}")
    body = HELLO.encode()
    settings = lab.directory / "stays.toml"
    settings.write_text(NO_ENGINE_REPLACEMENT)
    # Run 1: the front end, X-Switch behind it, and an engine
    server, path = exits.enter_context(
        serve_stack(lab, technology(f"xswitch {language.lower()}"), "--xswitch-config", str(settings))
    )
    full = exits.enter_context(pinger.http(server.url, path, body))
    # The first request starts the engine, so that processes_by_layer() finds it
    full()
    # Run 2: a front end that answers each request itself
    tested_null = ServerUnderTest("null handler", model="ewe_lab.stacks.variants:Null")
    null_server = exits.enter_context(lab.start(tested_null, lab.site([])))
    null = exits.enter_context(pinger.http(null_server.url, path, HELLO_BODY))
    # Run 3: an X-Switch of which the lab is the front end
    cgi_variables = variables_of(script, path)
    switch_pid, socket = exits.enter_context(run_xswitch(lab, "--config", str(settings)))
    fastcgi = exits.enter_context(pinger.fastcgi(str(socket), cgi_variables, body))
    # Run 4: an engine of which the lab is the X-Switch
    command = BUILT_IN[language.lower()].command
    engine, engine_pid = exits.enter_context(pinger.engine(command, script, cgi_variables, body, core))
    return RunningServers(
        full=full,
        null=null,
        fastcgi=fastcgi,
        engine=engine,
        pids_by_layer=processes_by_layer(server),
        roots=(null_server.pid, switch_pid, engine_pid),
    )


def variables_of(script: str, path: str) -> dict[str, str]:
    """Return the CGI variables for runs 3 and 4 (see above): those that ewe sends to X-Switch in run 1.

    The script and the engine then have the same work in all three runs. The ports are examples.
    """
    return {
        "GATEWAY_INTERFACE": "CGI/1.1", "SERVER_SOFTWARE": "ewe", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "4000",
        "SERVER_PROTOCOL": "HTTP/1.1", "REQUEST_METHOD": "GET", "REQUEST_SCHEME": "http", "REQUEST_URI": path,
        "QUERY_STRING": "", "REMOTE_ADDR": "127.0.0.1", "REMOTE_HOST": "127.0.0.1", "REMOTE_PORT": "40000",
        "HTTP_USER_AGENT": "ewe-lab", "HTTP_HOST": "127.0.0.1:4000", "SCRIPT_NAME": path, "SCRIPT_FILENAME": script,
        "DOCUMENT_ROOT": str(Path(script).parent),
    }  # fmt: skip


def processes_by_layer(server: RunningServer) -> dict[str, tuple[int, ...]]:
    """Return the processes of `ewe -x` by layer. mod_x is part of the front end, the script part of the engine.

    Engines may be descendants of X-Switch, and X-Switch is a child of the front end: each is taken out of the tree
    above it.
    """
    engines = {int(each["pid"]) for each in xswitch_status(server)["engines"]}
    family = {each.pid for each in process_tree(server.pid)}
    xswitch_tree = {
        each.pid for child in family if is_switch(child, server.pid) for each in process_tree(child)
    }
    return {
        FRONT: tuple(family - xswitch_tree - engines),
        SWITCH: tuple(xswitch_tree - engines),
        ENGINE: tuple(engines),
    }


def is_switch(pid: int, front: int) -> bool:
    """Whether a process is the X-Switch that a front end started."""
    try:
        return pid != front and b"ewe.xswitch" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def cpu_seconds_of(pids: tuple[int, ...]) -> float:
    """Return the CPU seconds of processes. Raises LabError if one has ended."""
    found = [read_process(pid) for pid in pids]
    if None in found:
        raise LabError("a process that was to be measured has ended")
    return sum(own_cpu_seconds(each) for each in found if each)


def make_runs(lab: Bench, servers: RunningServers, language: str, count: int) -> tuple[AllRequestsRun, ...]:
    """Make the five runs of the module's docstring, each of `count` requests; return them in their order."""
    with on_core(load_core()):  # the pinger runs in this process
        before = {layer: cpu_seconds_of(pids) for layer, pids in servers.pids_by_layer.items()}
        duration = pinger.ping(servers.full, count)
        runs = [
            AllRequestsRun(
                duration,
                {
                    layer: cpu_seconds_of(pids) - before[layer]
                    for layer, pids in servers.pids_by_layer.items()
                },
            )
        ]
        # Runs 2, 3 and 4: the layers that remain are one process tree each
        for ask, root in zip((servers.null, servers.fastcgi, servers.engine), servers.roots, strict=True):
            spent = cpu_seconds(root)
            duration = pinger.ping(ask, count)
            runs.append(AllRequestsRun(duration, {ALL: cpu_seconds(root) - spent}))
    return (*runs, run_in_loop(lab, language, count * LOOP_FACTOR))


def run_in_loop(lab: Bench, language: str, count: int) -> AllRequestsRun:
    """Make run 5: run the script `count` times in a loop, in a new interpreter; return the run. Raises LabError."""
    interpreter, loop_program = IN_A_LOOP[language]
    file = lab.directory / f"loop.{LANGUAGES[language]}"
    file.write_text(loop_program)
    script = programs_directory(lab) / f"hello.{LANGUAGES[language]}"
    command = [interpreter, str(file), str(script), str(count)]
    # The same search path as X-Switch gives to its engines, so that the loop runs in the same interpreter
    env = {"PATH": SEARCH_PATH}
    with tempfile.TemporaryFile() as output, running(command, output, server_core(), env=env) as started:
        if not wait_for_end(started, pinger.ANSWER_TIMEOUT_S):
            raise LabError(f"the script in a loop did not end within {pinger.ANSWER_TIMEOUT_S} s")
        # The loop prints its seconds and its CPU seconds. After an error the output has the error, too
        try:
            seconds, cpu = map(float, output_text(output).split())
        except ValueError:
            raise LabError(f"the script in a loop: {last_line(output_text(output))}") from None
    # No pinger takes part, so its CPU time is 0
    return AllRequestsRun(PingTime(count, seconds, client_cpu_s=0.0), {ALL: cpu})


# From runs to layers


def fastest_runs(rounds: Sequence[tuple[AllRequestsRun, ...]]) -> tuple[AllRequestsRun, ...]:
    """Return the fastest of each run: other programs can only make a run slower. rounds: of all runs."""
    return tuple(min(each, key=lambda run: run.ping_time.seconds) for each in zip(*rounds, strict=True))


# By layer: the indexes (run 1 has index 0) of the runs from which micros_by_layer() makes its time
RUNS_OF_LAYER = {FRONT: (1,), MOD_X: (0, 1, 2), SWITCH: (2, 3), ENGINE: (3, 4), SCRIPT: (4,)}


def noise_of_layer(layer: str, rounds: Sequence[tuple[AllRequestsRun, ...]]) -> float:
    """Return the µs by which a layer may be wrong: the sum over the runs that it is made from.

    A run may be wrong by as much as its two fastest rounds differ.
    """
    noise = 0.0
    for index in RUNS_OF_LAYER[layer]:
        micros = sorted(runs[index].ping_time.micros for runs in rounds)
        noise += micros[1] - micros[0] if len(micros) > 1 else 0.0
    return noise


def drop_if_noise(cell: Cell, micros: float, noise: float) -> None:
    """Leave the figure of a layer out if it is not larger than the noise of the runs that it is made from.

    micros, noise: the layer's µs, and by how many µs they may be wrong.
    """
    if micros <= noise:
        cell.samples.clear()
        cell.failure = f"not resolved: {micros:.0f} µs, while the fastest rounds differ by {noise:.0f} µs"


def micros_by_layer(runs: Sequence[AllRequestsRun]) -> dict[str, float]:
    """Return the µs that each layer takes of a request: differences of the five runs, as the module says."""
    full, null, fastcgi, engine, script = (run.ping_time.micros for run in runs)
    return {
        FRONT: null, MOD_X: full - null - fastcgi, SWITCH: fastcgi - engine, ENGINE: engine - script,
        SCRIPT: script,
    }  # fmt: skip


def cpu_micros_by_layer(runs: Sequence[AllRequestsRun]) -> dict[str, float]:
    """Return the µs of CPU time that each layer takes of a request, by the clocks of its processes."""
    full, null, loop = runs[0], runs[1], runs[4]
    spent = {layer: seconds / full.ping_time.count * 1e6 for layer, seconds in full.cpu_s.items()}
    # Run 2 is the front end without mod_x, run 5 the script without its engine
    front, script = (run.cpu_s[ALL] / run.ping_time.count * 1e6 for run in (null, loop))
    return {
        FRONT: front, MOD_X: spent[FRONT] - front, SWITCH: spent[SWITCH], ENGINE: spent[ENGINE] - script,
        SCRIPT: script,
    }  # fmt: skip


def cells(
    language: str, count: int, rounds: Sequence[tuple[AllRequestsRun, ...]], failure: str
) -> Iterator[Cell]:
    """Yield the cells of a language: its layers, then its runs. rounds: of all runs, empty after a failure."""
    for layer in LAYERS:
        cell = Cell(layer, language, value="extra.share", unit="%", failure=failure)
        if language == "Perl":
            cell.paper, cell.paper_server = printed_share(layer), NAMES[layer]
        if rounds:
            cell.samples.append(layer_sample(layer, count, fastest_runs(rounds)))
            drop_if_noise(cell, micros_by_layer(fastest_runs(rounds))[layer], noise_of_layer(layer, rounds))
        yield cell
    for number, name in enumerate(RUNS):
        cell = Cell(name, f"{language}, runs", value="extra.micros", unit="µs", failure=failure)
        cell.samples = [run_sample(runs[number]) for runs in rounds]
        yield cell


def printed_share(layer: str) -> float:
    """Return the percentage that table 1's seconds make."""
    return round(TABLE_1[layer][1] / sum(seconds for _, seconds in TABLE_1.values()) * 100, 2)


def layer_sample(layer: str, count: int, runs: Sequence[AllRequestsRun]) -> Sample:
    """Return the sample of a layer: its share of the time in percent, and its µs of a request.

    count: the requests of each run. runs: the fastest of each.
    """
    times, cpu = micros_by_layer(runs), cpu_micros_by_layer(runs)
    extra = {"share": times[layer] / sum(times.values()) * 100, "micros": times[layer], "cpu": cpu[layer]}
    return Sample(
        "pinger",
        seconds=0.0,
        requests=count,
        replies=count,
        connections=1,
        extra=extra,
        usage=Usage(cpu=cpu[layer] * count / 1e6),  # seconds of all requests
    )


def run_sample(run: AllRequestsRun) -> Sample:
    """Return the sample of a run, with the µs of a request, and those of them that the pinger itself used."""
    ping_time = run.ping_time
    extra = {
        "micros": ping_time.micros,
        "pinger": ping_time.client_cpu_s / ping_time.count * 1e6,
    }
    usage = Usage(cpu=sum(run.cpu_s.values()))
    return Sample(
        "pinger",
        seconds=ping_time.seconds,
        requests=ping_time.count,
        replies=ping_time.count,
        connections=1,
        extra=extra,
        usage=usage,
    )


def check(table: ExperimentTable) -> Finding:
    """Return the finding on the claim.

    The claim has two parts: the front end and the script take most, and X-Switch takes least.
    """
    share = {cell.server: cell.median for cell in table.cells if cell.column == "Perl"}
    found = {layer: value for layer, value in share.items() if value is not None}
    if len(found) < len(LAYERS):
        return Finding(NOT_TESTABLE, "The layers were not all measured in Perl.")
    front_and_script = found[FRONT] + found[SCRIPT]
    least_layer = min(found, key=lambda layer: found[layer])
    parts = (front_and_script > 50, least_layer == SWITCH)
    summary = ", ".join(f"{layer} {found[layer]:.0f} %" for layer in LAYERS)
    verdict = verdict_of_parts(parts)
    return Finding(
        verdict,
        f"Front end and script together take {front_and_script:.0f} %, and the least is the {least_layer}'s (in "
        f"Perl: {summary}).",
    )
