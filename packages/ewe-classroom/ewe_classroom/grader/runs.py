"""Checks of a measurement: is the data whole, does a second witness confirm it, does it keep the laws of queues?

    Little's law ········· N = X R: clients = responses a second x mean time. It needs no assumption, so no excuse.
    the server's log ····· each request of the data was served, and each request that was served is in the data
    saturation ··········· past the knee the rate stays, and the time grows with the clients
    open loop ············ requests are due by a schedule, also while the server stands still

The last one is where most load generators lie. A closed loop sends nothing while it waits, so that a server that
stands still for a second has one slow response in place of a hundred (coordinated omission:
packages/ewe-lab/docs/lab.md).
"""

from __future__ import annotations

import bisect
import json
import math
import re
from pathlib import Path

from ewe_classroom.grader.check import check
from ewe_classroom.grader.run_scene import Request, Run, RunScene, Served, mean, percentile

REPETITIONS = 3
LEVELS = 4
REQUESTS = 30
SLACK_S = 0.005  # a client may be interrupted between two readings of the clock
CLOCK_S = 0.0001  # the log is written with six digits
NEAR = 0.05  # of a figure that is computed from the same data


@check(
    "runs-complete",
    proves="the data has closed runs with more and more clients, and open runs at two rates",
    sends="nothing: the grader reads runs.json",
    expects=(
        f"{LEVELS} numbers of clients, from 1 on; two rates, one above 60 % of the best; {REQUESTS} requests "
        "a run"
    ),
    why="One point is no curve. Below saturation and above it are two different questions.",
    hint="CLIENTS, RATES and SECONDS at the top of measure.py say what is measured.",
    subject="data",
)
def complete(scene: RunScene) -> None:
    closed, opened = scene.levels("closed"), scene.levels("open")
    if len(closed) < LEVELS or min(closed) != 1:
        scene.fail(
            f"closed loops were measured with {', '.join(f'{level:g}' for level in closed)} clients",
            f"measure at least {LEVELS} numbers of clients, and one of them 1",
        )
    best = max(mean([run.rate for run in runs]) for runs in closed.values())
    if len(opened) < 2 or max(opened) < 0.6 * best:
        scene.fail(
            f"open loops were measured at {', '.join(f'{level:.0f}' for level in opened)} requests a second; "
            f"the best closed rate is {best:.0f}",
            "measure two rates at least, one of them above 60 % of the best closed rate",
        )
    for run in scene.runs():
        if len(run.requests) < REQUESTS:
            scene.fail(f"{run.name} has {len(run.requests)} requests", f"measure longer: {REQUESTS} at least")
        for request in run.requests:
            if not run.began - SLACK_S <= request.due <= request.sent + SLACK_S <= request.done + SLACK_S:
                scene.fail(
                    f"{run.name} has a request that was due at {request.due:.3f}, sent at {request.sent:.3f} and "
                    f"done at {request.done:.3f}",
                    "note three times of one clock: when it was due, sent and done, in this order",
                    "the times are of two clocks, or were written by hand",
                )
    scene.confirm(
        f"{len(closed)} closed and {len(opened)} open loads, best rate {best:.0f} responses a second"
    )


@check(
    "runs-repetitions",
    proves="each load was measured several times, and the spread is known",
    sends="nothing: the grader reads runs.json",
    expects=f"{REPETITIONS} repetitions of each load, each with its own times",
    why="One run says nothing about the next one. A difference below the spread of repetitions is no difference.",
    hint=(
        "Take turns: all loads once, then all again, so that a busy moment of the machine does not hit one load "
        "alone."
    ),
    subject="data",
)
def repetitions(scene: RunScene) -> None:
    spreads = []
    for kind in ("closed", "open"):
        for level, runs in scene.levels(kind).items():
            if len(runs) < REPETITIONS:
                scene.fail(
                    f"the {kind} load {level:g} was measured {len(runs)} times",
                    f"measure each load {REPETITIONS} times at least",
                    "one run was taken for the truth",
                )
            times = [tuple(round(each.done - each.sent, 6) for each in run.requests) for run in runs]
            if len(set(times)) < len(times):
                scene.fail(
                    f"two repetitions of the {kind} load {level:g} have the same times to the microsecond",
                    "measure again: no two runs are alike",
                    "a run was copied",
                )
            rates = [run.rate for run in runs]
            spreads.append((max(rates) - min(rates)) / max(mean(rates), 1e-9))
    scene.confirm(f"the rates of repetitions differ by {max(spreads):.0%} at most")


@check(
    "runs-server-log",
    proves="the data and the server's log tell of the same requests",
    sends="nothing: the grader compares runs.json with the log that queue_server.py has written",
    expects="each request of the data is in the log, and each line of the log in the data",
    why="Dropping a few slow requests makes any server fast. The server has counted them all.",
    hint="Record every request that was sent, also one that comes after the end of the run, and one that failed.",
    subject="data",
)
def server_log(scene: RunScene) -> None:
    served = scene.served()
    runs = sorted(scene.runs(), key=lambda run: run.began)
    firsts = [min(request.sent for request in run.requests) for run in runs]
    for run, first, last in zip(runs, firsts, [*firsts[1:], math.inf], strict=True):
        lines = [line for line in served if first - CLOCK_S <= line.arrival < last - CLOCK_S]
        strange, missing = matched(run, lines)
        if missing:
            slow = mean([line.end - line.arrival for line in missing]) * 1000
            usual = mean([request.done - request.sent for request in run.requests]) * 1000
            scene.fail(
                f"the server served {len(lines)} requests in {run.name}; {len(missing)} of them are not in the "
                "data. "
                f"They took {slow:.1f} ms on average, those in the data {usual:.1f} ms",
                "record every request that was sent",
                "slow requests were left out, or those under way at the end of the run",
            )
        if strange:
            scene.fail(
                f"{run.name} has {len(strange)} requests that the server has never seen, the first sent at "
                f"{strange[0].sent:.3f}",
                "record what was sent, and only that",
                "requests were made up, or runs.json and server.log are of two measurements",
            )
    scene.confirm(
        f"the server's log has each of the {sum(len(run.requests) for run in scene.runs())} requests"
    )


def matched(run: Run, lines: list[Served]) -> tuple[list[Request], list[Served]]:
    """Return the requests that no line of the log belongs to, and the lines that no request belongs to.

    A line belongs to a request if it lies within: sent, arrival, end, done. Lines are taken by their arrival, so
    that each can have all requests that those before it could have. Each takes the one that is done first of those
    that are done late enough: no other choice leaves more for the lines that follow.
    """
    waiting = sorted(run.requests, key=lambda request: request.sent, reverse=True)
    free: list[tuple[float, Request]] = []
    missing = []
    for line in sorted(lines, key=lambda line: line.arrival):
        while waiting and waiting[-1].sent <= line.arrival + CLOCK_S:
            request = waiting.pop()
            bisect.insort(free, (request.done, request), key=lambda entry: entry[0])
        at = bisect.bisect_left(free, line.end - CLOCK_S, key=lambda entry: entry[0])
        if at < len(free):
            del free[at]
        else:
            missing.append(line)
    return [*(request for _, request in free), *waiting], missing


@check(
    "runs-little",
    proves="the closed runs keep Little's law: clients = responses a second x mean time",
    sends="nothing: the grader computes both sides from runs.json",
    expects=(
        "figures that follow from the requests, never more requests at once than clients, and N = X R within "
        "25 %"
    ),
    why="The law has no exception. Where N is not X R, a figure is wrong, or the clients were not always there.",
    hint=(
        "Clients without think time ask again at once. X counts responses within the run, R is the mean of done "
        "- sent."
    ),
    subject="data",
)
def little(scene: RunScene) -> None:
    worst = 0.0
    for run in scene.runs("closed"):
        rate = run.completed / run.seconds
        time_s = mean([request.done - request.sent for request in run.requests])
        for name, given, found in (("rate", run.rate, rate), ("mean_ms", run.mean_ms, time_s * 1000)):
            if abs(given - found) > NEAR * found + 0.5 / run.seconds * (name == "rate"):
                scene.fail(
                    f"{run.name} says {name} {given:.4g}; its requests say {found:.4g}. By Little's law "
                    f"{run.rate:.4g} a second times {run.mean_ms:.4g} ms are {run.rate * run.mean_ms / 1000:.2f} "
                    "clients",
                    "compute the figures from the requests",
                    "the figure is of another run, or counts requests that were sent in place of responses",
                )
        events = sorted(
            [(each.sent, 1) for each in run.requests] + [(each.done, -1) for each in run.requests]
        )
        under_way = most = 0
        for _, change in events:
            under_way += change
            most = max(most, under_way)
        if most > run.level:
            scene.fail(
                f"in {run.name}, {most} requests were under way at once",
                f"{run.level:g} clients that each wait for their response have {run.level:g} at most",
                "a client sends before its response has come: that is no closed loop",
            )
        share = rate * time_s / run.level
        if not 0.75 <= share <= 1.25:
            scene.fail(
                f"in {run.name}, {rate:.1f} responses a second times {time_s * 1000:.2f} ms are "
                f"{rate * time_s:.2f} requests in the server, and not {run.level:g}",
                "keep each client busy: send the next request at once",
                "clients think or start late (N = X (R + Z)), or the time is not that of the whole request",
            )
        worst = max(worst, abs(1 - share))
    scene.confirm(f"N = X R in each closed run; the largest difference is {worst:.0%}")


@check(
    "runs-saturation",
    proves="the curve was followed until the server had no more to give",
    sends="nothing: the grader looks at the two largest numbers of clients",
    expects="nearly the same rate with both (the best of their repetitions), and times that grow as the clients do",
    why="The best rate is known only if more clients do not raise it.",
    hint=(
        "Double the clients until the rate stays. Past the knee each new client only makes all others wait "
        "longer."
    ),
    subject="data",
)
def saturation(scene: RunScene) -> None:
    levels = scene.levels("closed")
    if len(levels) < 2:
        scene.fail("closed loops were measured with one number of clients", "measure a curve")
    (before, low), (after, high) = list(levels.items())[-2:]
    # The best of the repetitions: anything else the machine did can only have taken from a rate.
    rates = [max(run.completed / run.seconds for run in runs) for runs in (low, high)]
    if rates[1] > 1.15 * rates[0]:
        scene.fail(
            f"{before:g} clients got {rates[0]:.0f} responses a second at best, {after:g} got {rates[1]:.0f}",
            "go on with more clients until the rate stays",
            "the measurement ends before saturation",
        )
    times = [mean([each.done - each.sent for run in runs for each in run.requests]) for runs in (low, high)]
    scene.confirm(
        f"past the knee: {before:g} and {after:g} clients got {rates[0]:.0f} and {rates[1]:.0f} responses a second "
        f"at best, each after {times[0] * 1000:.1f} and {times[1] * 1000:.1f} ms"
    )


@check(
    "runs-open-loop",
    proves="the open load goes on while the server stands still",
    sends="nothing: the grader looks at the times at which requests were due",
    expects="as many as the rate wants; also during the longest response",
    why=(
        "Visitors do not know that the server stands still. A load that waits for it leaves out those who suffer "
        "most."
    ),
    hint=(
        "Compute all times first: began + number / rate. Give each request a thread, so that none waits for "
        "another."
    ),
    subject="data",
)
def open_loop(scene: RunScene) -> None:
    for run in scene.runs("open"):
        longest = max(run.requests, key=lambda request: request.done - request.sent)
        length = min(longest.done, run.began + run.seconds) - longest.sent
        meanwhile = sum(longest.sent < request.due < longest.sent + length for request in run.requests)
        wanted = run.level * length
        if wanted >= 5 and meanwhile < wanted / 2:
            scene.fail(
                f"in {run.name}, one response took {length * 1000:.0f} ms; {wanted:.0f} more requests should "
                "have been "
                f"due meanwhile, and {meanwhile} were",
                "let requests be due by the clock, also while the server stands still",
                "the load waits for the response before it sends again: that is a closed loop (coordinated "
                "omission)",
            )
        if abs(len(run.requests) - run.level * run.seconds) > 0.1 * run.level * run.seconds + 2:
            scene.fail(
                f"{run.name} has {len(run.requests)} requests in {run.seconds:g} s",
                f"send {run.level * run.seconds:.0f}: the rate times the duration",
                "the load fell behind its schedule, and left out what was due",
            )
    scene.confirm("requests were due on time, also while the server stood still")


@check(
    "runs-latency",
    proves="the times of open runs count from when a request was due",
    sends="nothing: the grader computes mean and p99 from runs.json",
    expects="mean_ms and p99_ms of done - due",
    why="A request that the load could not send in time has waited, too: its visitor was there when it was due.",
    hint="Response time is done - due; service time is done - sent. Report the first.",
    subject="data",
)
def latency(scene: RunScene) -> None:
    shown = []
    for run in scene.runs("open"):
        from_due = [(request.done - request.due) * 1000 for request in run.requests]
        from_sent = [(request.done - request.sent) * 1000 for request in run.requests]
        for name, given, right, other in (
            ("mean_ms", run.mean_ms, mean(from_due), mean(from_sent)),
            ("p99_ms", run.p99_ms, percentile(from_due, 0.99), percentile(from_sent, 0.99)),
        ):
            if abs(given - right) <= NEAR * right:
                continue
            because = "the figure is of another run, or of a part of the requests"
            if abs(given - other) <= NEAR * other:
                because = "the time was counted from the sending of the request, not from when it was due"
            scene.fail(f"{run.name} says {name} {given:.4g}; from when requests were due it is {right:.4g}",
                       "count from when each request was due", because)  # fmt: skip
        shown.append(run.p99_ms)
    scene.confirm(f"p99 from when requests were due: {', '.join(f'{each:.0f}' for each in shown)} ms")


@check(
    "runs-report",
    proves="a report of ewe-lab stands beside the data, with repeats, and keeps Little's law, too",
    sends="nothing: the grader reads lab/results.json",
    expects="a comparison of closed users without think time, three repeats, users = rate x mean time",
    why="A second tool is the best check of the first.",
    hint="ewe-lab compare -t -p --users 8 --think 0 --time 2s --repeats 3 --out lab",
    subject="data",
)
def report(scene: RunScene) -> None:
    name = str(scene.table().get("report", "lab/results.json"))
    path = scene.subject.path.parent / name
    if not path.exists():
        path = scene.subject.path.parent / Path(name).name  # where files are handed in without directories
    make = "make one with: ewe-lab compare -t -p --users 8 --think 0 --time 2s --repeats 3 --out lab"
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))["tables"]
        cells = [cell for table in tables for cell in table["cells"] if cell["samples"]]
        loads = [(cell, re.match(r"(\d+) users, no think time", cell["load"])) for cell in cells]
        closed = [(cell, int(match[1])) for cell, match in loads if match]
        if not closed:
            scene.fail(f"{name} has no closed users without think time", make)
        for cell, users in closed:
            if len(cell["samples"]) < REPETITIONS:
                scene.fail(
                    f"{name}: {cell['server']} was measured {len(cell['samples'])} times",
                    f"measure {REPETITIONS} times: --repeats {REPETITIONS}",
                )
            for sample in cell["samples"]:
                found = sample["service"]["count"] / sample["seconds"] * sample["service"]["mean"]
                if not 0.7 * users <= found <= 1.3 * users:
                    scene.fail(
                        f"{name}: {cell['server']} had {users} users; rate times mean time are {found:.1f}",
                        "measure again on a quiet machine: the load generator had no time to keep its users busy",
                    )
    except OSError:
        scene.fail(f"there is no {name} beside runs.json", make)
    except (ValueError, TypeError, KeyError, ZeroDivisionError):
        scene.fail(f"{name} is not a file of ewe-lab", make)
    scene.confirm(f"{len(closed)} servers measured with ewe-lab, {REPETITIONS} times at least")
