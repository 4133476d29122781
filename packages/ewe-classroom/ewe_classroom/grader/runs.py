"""Checks of a measurement: is the data complete, does a second record confirm it, does it obey the laws of queues?

    Little's law ········· N = X R: clients = responses a second x mean time. It holds for every system.
    the server's log ····· each request of the data was served, and each served request is in the data
    saturation ··········· past the knee the rate stays constant, and the time grows with the clients
    open loop ············ requests are due by a schedule, also while the server stalls

Most load generators are wrong about the last point. A closed loop sends nothing while it waits. If a server stalls
for a second, the data then has one slow response in place of a hundred (coordinated omission,
packages/ewe-lab/docs/lab.md).
"""

from __future__ import annotations

import bisect
import json
import re
from itertools import accumulate

from ewe_classroom.grader.check import check
from ewe_classroom.grader.run_scene import LoadRun, RunScene, ServedRequest, TimedRequest, mean, percentile

MIN_REPETITIONS = 3
MIN_LEVELS = 4
MIN_REQUESTS = 30
SLACK_S = 0.005  # a client may be interrupted between two readings of the clock
CLOCK_TOLERANCE_S = 0.0001  # tolerance for times of the log, which has six decimal places
# Tolerated difference, as a share of the figure that the grader computes from the same data
LITTLE_TOLERANCE = 0.25  # share by which clients may differ from rate times mean time (Little's law)
USERS_TOLERANCE = 0.3  # the same for the figures of ewe-lab, which are rounded
HIGH_RATE_SHARE = 0.6  # of the best rate: one open loop must be above it
SATURATED_RATIO = 1.15  # of the two last rates: a server that gains more is not saturated
TOLERANCE_SHARE = 0.05
TINY_RATE = 1e-9  # in place of a rate of 0, by which no spread can be divided
MIN_DUE_REQUESTS = 5  # fewer requests in the longest response prove nothing
COUNT_TOLERANCE_SHARE, COUNT_TOLERANCE = 0.1, 2  # of the requests of an open run: a share, and requests


@check(
    "runs-complete",
    proves="the data has closed runs with increasing numbers of clients, and open runs at two rates",
    sends="nothing: the grader reads runs.json",
    expects=(
        f"{MIN_LEVELS} numbers of clients, from 1 on; two rates, one above 60 % of the best rate; "
        f"{MIN_REQUESTS} requests in each run"
    ),
    why="One point is not a curve. A server behaves differently below saturation and above it.",
    hint="CLIENTS, RATES and SECONDS at the top of measure.py set the loads.",
    kind="data",
)
def complete(scene: RunScene) -> None:
    closed_levels, open_levels = scene.levels("closed"), scene.levels("open")
    if len(closed_levels) < MIN_LEVELS or min(closed_levels) != 1:
        scene.fail(
            f"closed loops were measured with {', '.join(f'{level:g}' for level in closed_levels)} clients",
            f"measure at least {MIN_LEVELS} numbers of clients; one of them must be 1",
        )
    best_rate = max(mean([run.rate for run in runs]) for runs in closed_levels.values())
    if len(open_levels) < 2 or max(open_levels) < HIGH_RATE_SHARE * best_rate:
        scene.fail(
            f"open loops were measured at {', '.join(f'{level:.0f}' for level in open_levels)} requests a second; "
            f"the best closed rate is {best_rate:.0f}",
            "measure at least two rates, one of them above 60 % of the best closed rate",
        )
    for run in scene.runs():
        if len(run.requests) < MIN_REQUESTS:
            scene.fail(
                f"{run.name} has {len(run.requests)} requests", f"measure longer: {MIN_REQUESTS} at least"
            )
        for request in run.requests:
            # In this order: begin of the run, due, sent, done; with slack before the first two.
            if not run.began - SLACK_S <= request.due <= request.sent + SLACK_S <= request.done + SLACK_S:
                scene.fail(
                    f"{run.name} has a request that was due at {request.due:.3f}, sent at {request.sent:.3f} and "
                    f"done at {request.done:.3f}",
                    "note three times of one clock for each request: due, sent and done, in this order",
                    "the times are of two clocks, or were written by hand",
                )
    scene.confirm(
        f"{len(closed_levels)} closed and {len(open_levels)} open loads, "
        f"best rate {best_rate:.0f} responses a second"
    )


@check(
    "runs-repetitions",
    proves="each load was measured several times, so the spread is known",
    sends="nothing: the grader reads runs.json",
    expects=f"{MIN_REPETITIONS} repetitions of each load, with different times",
    why="One run does not predict the next. A difference smaller than the spread of repetitions means nothing.",
    hint=(
        "Run all loads once, then all loads again, so that a busy moment of the machine does not affect only one "
        "load."
    ),
    kind="data",
)
def repetitions(scene: RunScene) -> None:
    spreads = []
    for kind in ("closed", "open"):
        for level, runs in scene.levels(kind).items():
            if len(runs) < MIN_REPETITIONS:
                scene.fail(
                    f"the {kind} load {level:g} was measured {len(runs)} times",
                    f"measure each load at least {MIN_REPETITIONS} times",
                    "one run was taken for the truth",
                )
            times = [tuple(round(each.done - each.sent, 6) for each in run.requests) for run in runs]
            if len(set(times)) < len(times):
                scene.fail(
                    f"two repetitions of the {kind} load {level:g} have the same times to the microsecond",
                    "measure again: two real runs always differ",
                    "a run was copied",
                )
            rates = [run.rate for run in runs]
            spreads.append((max(rates) - min(rates)) / max(mean(rates), TINY_RATE))
    scene.confirm(f"the rates of repetitions differ by at most {max(spreads):.0%}")


@check(
    "runs-server-log",
    proves="the data and the server's log contain the same requests",
    sends="nothing: the grader compares runs.json with the log of queue_server.py",
    expects="each request of the data is in the log, and each line of the log is in the data",
    why="Without its slowest requests, any server looks fast. The server's log has all of them.",
    hint="Record every request that you send, also a failed one, and one that ends after the run.",
    kind="data",
)
def server_log(scene: RunScene) -> None:
    served = sorted(scene.served(), key=lambda line: line.arrival)
    arrivals = [line.arrival for line in served]
    runs = sorted(scene.runs(), key=first_sent)
    # The lines of a run in the log: from its first request to the first request of the next run. The first run also
    # has the lines before it, and the last run those after it: each line must be in the data. bisect finds them in
    # the sorted log: a look at each line for each run would take hours for forged data.
    next_runs = [bisect.bisect_left(arrivals, first_sent(run) - CLOCK_TOLERANCE_S) for run in runs[1:]]
    for run, begin, end in zip(runs, [0, *next_runs], [*next_runs, len(served)], strict=True):
        lines = served[begin:end]
        strange, missing = unmatched(run, lines)
        if missing:
            slow = mean([line.end - line.arrival for line in missing]) * 1000
            usual = mean([request.done - request.sent for request in run.requests]) * 1000
            scene.fail(
                f"the server served {len(lines)} requests in {run.name}; {len(missing)} of them are not in the "
                f"data. They took {slow:.1f} ms on average, those in the data {usual:.1f} ms",
                "record every request that you send",
                "slow requests were left out, or the requests in progress at the end of the run",
            )
        if strange:
            scene.fail(
                f"{run.name} has {len(strange)} requests that are not in the server's log; the first was sent at "
                f"{strange[0].sent:.3f}",
                "record only requests that you send",
                "requests were made up, or runs.json and server.log are of two measurements",
            )
    scene.confirm(f"the server's log contains all {sum(len(run.requests) for run in scene.runs())} requests")


def first_sent(run: LoadRun) -> float:
    """Return when the first request of a run was sent, in seconds of time.monotonic()."""
    return min(request.sent for request in run.requests)


def unmatched(run: LoadRun, lines: list[ServedRequest]) -> tuple[list[TimedRequest], list[ServedRequest]]:
    """Match requests and log lines; return the requests without a line, and the lines without a request.

    A line fits a request if sent <= arrival and end <= done. Lines are taken in the order of their arrival, so each
    line may choose among all requests that the earlier lines left. It takes the fitting request with the earliest
    `done`, because this choice leaves the most for the later lines.
    """
    # Requests that were sent after the present line, the earliest at the end, where pop() takes it.
    later = sorted(run.requests, key=lambda request: request.sent, reverse=True)
    # Requests that were sent before the present line and have no line, with their `done`, by which they are sorted.
    free: list[tuple[float, TimedRequest]] = []
    missing = []
    for line in sorted(lines, key=lambda line: line.arrival):
        while later and later[-1].sent <= line.arrival + CLOCK_TOLERANCE_S:
            request = later.pop()
            bisect.insort(free, (request.done, request), key=lambda entry: entry[0])
        index = bisect.bisect_left(free, line.end - CLOCK_TOLERANCE_S, key=lambda entry: entry[0])
        if index < len(free):
            del free[index]
        else:
            missing.append(line)
    return [*(request for _, request in free), *later], missing


@check(
    "runs-little",
    proves="the closed runs obey Little's law: clients = responses a second x mean time",
    sends="nothing: the grader computes both sides from runs.json",
    expects=(
        "figures that follow from the requests, never more simultaneous requests than clients, and N = X R within "
        "25 %"
    ),
    why="The law has no exception. If N is not X R, a figure is wrong, or the clients were not always busy.",
    hint=(
        "Clients without think time send the next request immediately. X counts responses within the run; R is the "
        "mean of done - sent."
    ),
    kind="data",
)
def little(scene: RunScene) -> None:
    worst = 0.0
    for run in scene.runs("closed"):
        rate = run.completed / run.seconds
        time_s = mean([request.done - request.sent for request in run.requests])
        expect_figures(scene, run, rate, time_s)
        under_way = max_under_way(run)
        if under_way > run.level:
            scene.fail(
                f"in {run.name}, {under_way} requests were under way at once",
                f"{run.level:g} clients that each wait for their response have at most {run.level:g}",
                "a client sends before its response has come: this is not a closed loop",
            )
        share = rate * time_s / run.level
        if not 1 - LITTLE_TOLERANCE <= share <= 1 + LITTLE_TOLERANCE:
            scene.fail(
                f"in {run.name}, {rate:.1f} responses a second times {time_s * 1000:.2f} ms are "
                f"{rate * time_s:.2f} requests in the server, and not {run.level:g}",
                "keep each client busy: send the next request immediately",
                "clients think or start late (N = X (R + Z)), or the time does not cover the whole request",
            )
        worst = max(worst, abs(1 - share))
    scene.confirm(f"N = X R in each closed run; the largest difference is {worst:.0%}")


def expect_figures(scene: RunScene, run: LoadRun, rate: float, time_s: float) -> None:
    """Fail if a run says another rate or mean time than its requests. rate, time_s: computed from the requests."""
    # A rate may also be rounded by half a response in the whole run.
    half_response = 0.5 / run.seconds
    for name, given, found, rounding in (
        ("rate", run.rate, rate, half_response),
        ("mean_ms", run.mean_ms, time_s * 1000, 0.0),
    ):
        if abs(given - found) > TOLERANCE_SHARE * found + rounding:
            scene.fail(
                f"{run.name} says {name} {given:.4g}; its requests say {found:.4g}. By Little's law "
                f"{run.rate:.4g} a second times {run.mean_ms:.4g} ms are {run.rate * run.mean_ms / 1000:.2f} "
                "clients",
                "compute the figures from the requests",
                "the figure is of another run, or counts sent requests in place of responses",
            )


def max_under_way(run: LoadRun) -> int:
    """Return how many requests of a run were under way at once, at most."""
    # At equal times, -1 comes first: a client sends when its response has come.
    changes = sorted([(each.sent, 1) for each in run.requests] + [(each.done, -1) for each in run.requests])
    return max(accumulate(change for _, change in changes))


@check(
    "runs-saturation",
    proves="the curve reaches the saturation of the server",
    sends="nothing: the grader compares the two largest numbers of clients",
    expects="nearly the same rate for both (the best of their repetitions), and times that grow with the clients",
    why="You know the best rate only if more clients do not raise it.",
    hint=(
        "Double the clients until the rate stays constant. Past the knee each new client only makes all others "
        "wait longer."
    ),
    kind="data",
)
def saturation(scene: RunScene) -> None:
    levels = scene.levels("closed")
    if len(levels) < 2:
        scene.fail(
            "closed loops were measured with one number of clients", "measure several numbers of clients"
        )
    # The two largest numbers of clients.
    (fewer, runs_of_fewer), (more, runs_of_more) = list(levels.items())[-2:]
    # Take the best repetition: other programs of the machine can only lower a rate.
    rates = [max(run.completed / run.seconds for run in runs) for runs in (runs_of_fewer, runs_of_more)]
    if rates[1] > SATURATED_RATIO * rates[0]:
        scene.fail(
            f"{fewer:g} clients got {rates[0]:.0f} responses a second at best, {more:g} got {rates[1]:.0f}",
            "go on with more clients until the rate stays constant",
            "the measurement ends before saturation",
        )
    times_s = [
        mean([each.done - each.sent for run in runs for each in run.requests])
        for runs in (runs_of_fewer, runs_of_more)
    ]
    scene.confirm(
        f"past the knee: {fewer:g} and {more:g} clients got {rates[0]:.0f} and {rates[1]:.0f} responses a second "
        f"at best, each after {times_s[0] * 1000:.1f} and {times_s[1] * 1000:.1f} ms"
    )


@check(
    "runs-open-loop",
    proves="the open load goes on while the server stalls",
    sends="nothing: the grader examines the due times of the requests",
    expects="as many due requests as the rate requires, also during the longest response",
    why=(
        "Visitors do not know that the server stalls. A load that waits for the server leaves out the visitors "
        "with the longest waits."
    ),
    hint=(
        "Compute the due time of each request: began + number / rate. Send each request from a separate thread, so "
        "that none waits for another."
    ),
    kind="data",
)
def open_loop(scene: RunScene) -> None:
    for run in scene.runs("open"):
        longest = max(run.requests, key=lambda request: request.done - request.sent)
        length_s = min(longest.done, run.began + run.seconds) - longest.sent  # within the run
        meanwhile = sum(longest.sent < request.due < longest.sent + length_s for request in run.requests)
        planned = run.level * length_s  # the level of an open run: its planned requests a second
        if planned >= MIN_DUE_REQUESTS and meanwhile < planned / 2:
            scene.fail(
                f"in {run.name}, one response took {length_s * 1000:.0f} ms; {planned:.0f} more requests should "
                f"have been due meanwhile, and {meanwhile} were",
                "let requests be due by the clock, also while the server stalls",
                "the load waits for the response before it sends again: that is a closed loop (coordinated "
                "omission)",
            )
        planned = run.level * run.seconds
        if abs(len(run.requests) - planned) > COUNT_TOLERANCE_SHARE * planned + COUNT_TOLERANCE:
            scene.fail(
                f"{run.name} has {len(run.requests)} requests in {run.seconds:g} s",
                f"send {planned:.0f}: the rate times the duration",
                "the load fell behind its schedule, and left out due requests",
            )
    scene.confirm("requests were due on time, also while the server stalled")


@check(
    "runs-latency",
    proves="the times of open runs begin when a request is due",
    sends="nothing: the grader computes mean and p99 from runs.json",
    expects="mean_ms and p99_ms of done - due",
    why="A visitor waits from the due time on, even if the load generator sends the request late.",
    hint="The response time is done - due; the service time is done - sent. Report the response time.",
    kind="data",
)
def latency(scene: RunScene) -> None:
    shown = []
    for run in scene.runs("open"):
        from_due = [(request.done - request.due) * 1000 for request in run.requests]
        from_sent = [(request.done - request.sent) * 1000 for request in run.requests]
        for name, given, right, service_time in (
            ("mean_ms", run.mean_ms, mean(from_due), mean(from_sent)),
            ("p99_ms", run.p99_ms, percentile(from_due, 0.99), percentile(from_sent, 0.99)),
        ):
            if abs(given - right) <= TOLERANCE_SHARE * right:
                continue
            because = "the figure is of another run, or of only a part of the requests"
            if abs(given - service_time) <= TOLERANCE_SHARE * service_time:
                because = "the time was counted from the sending of the request, not from its due time"
            scene.fail(f"{run.name} says {name} {given:.4g}; counted from the due times it is {right:.4g}",
                       "count from the due time of each request", because)  # fmt: skip
        shown.append(run.p99_ms)
    scene.confirm(f"p99, counted from the due times: {', '.join(f'{each:.0f}' for each in shown)} ms")


@check(
    "runs-report",
    proves="the submission has a report of ewe-lab with repeats, which also obeys Little's law",
    sends="nothing: the grader reads lab/results.json",
    expects="a comparison of closed users without think time, three repeats, users = rate x mean time",
    why="A second tool is the best check of your first tool.",
    hint="ewe-lab compare -t -p --users 8 --think 0 --time 2s --repeats 3 --out lab",
    kind="data",
)
def report(scene: RunScene) -> None:
    name = str(scene.table().get("report", "lab/results.json"))
    how = "make one with: ewe-lab compare -t -p --users 8 --think 0 --time 2s --repeats 3 --out lab"
    try:
        tables = json.loads(scene.text_beside(name))["tables"]
        cells = [cell for table in tables for cell in table["cells"] if cell["samples"]]
        loads = [(cell, re.match(r"(\d+) users, no think time", cell["load"])) for cell in cells]
        closed = [(cell, int(match[1])) for cell, match in loads if match]
        if not closed:
            scene.fail(f"{name} has no closed users without think time", how)
        for cell, users in closed:
            if len(cell["samples"]) < MIN_REPETITIONS:
                scene.fail(
                    f"{name}: {cell['server']} was measured {len(cell['samples'])} times",
                    f"measure {MIN_REPETITIONS} times: --repeats {MIN_REPETITIONS}",
                )
            for sample in cell["samples"]:
                # Little's law again: the mean number of users in the server.
                busy_users = sample["service"]["count"] / sample["seconds"] * sample["service"]["mean"]
                if not (1 - USERS_TOLERANCE) * users <= busy_users <= (1 + USERS_TOLERANCE) * users:
                    scene.fail(
                        f"{name}: {cell['server']} had {users} users; rate times mean time are {busy_users:.1f}",
                        "measure again on a quiet machine: the load generator got too little processor time",
                    )
    except OSError:
        scene.fail(f"there is no {name} beside runs.json", how)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        scene.fail(f"{name} is not a report of ewe-lab", how)
    scene.confirm(f"ewe-lab measured {len(closed)} servers, each at least {MIN_REPETITIONS} times")
