"""Measurements that lie, in one way each. `write(name, directory)` makes runs.json, server.log and a report.

honest() simulates a server with one clerk who stands still now and then, and clients before him: nothing is
measured, so that the data is the same each time. Each mutant is a function that spoils it.
"""

import json
import math
import random

ZOO = {}
SERVICE, STALL, EVERY = 0.004, 0.25, 1.0
CLIENTS, SHARES, REPETITIONS, SECONDS = (1, 2, 4, 8), (0.4, 0.75), 3, 1.2
BEST = 180


def mutant(check, says):
    def add(function):
        ZOO[function.__name__] = (function, check, "measure", says)
        return function

    return add


class Clerk:
    """Serves one request after the other."""

    def __init__(self):
        self.free_at, self.log, self.random = 0.0, [], random.Random(14)

    def serve(self, arrival):
        start = max(arrival, self.free_at)
        within = start % EVERY
        rest = EVERY - within if within > EVERY - STALL else 0.0
        self.free_at = start + rest + SERVICE * self.random.uniform(0.95, 1.05)
        self.log.append((arrival, start, self.free_at))
        return self.free_at


def closed(clerk, clients, began, think=0.0):
    requests, ready = [], [began] * clients
    while min(ready) < began + SECONDS:
        who = ready.index(min(ready))
        sent = ready[who]
        done = clerk.serve(sent + 0.0002) + 0.0002
        requests.append((sent, sent, done))
        ready[who] = done + think
    return requests


def open_loop(clerk, rate, began):
    requests = []
    for number in range(int(rate * SECONDS)):
        due = began + number / rate
        requests.append((due, due, clerk.serve(due + 0.0002) + 0.0002))
    return requests


def one_connection(clerk, rate, began):
    """Return requests that were due on time, over one connection: each is sent when the one before is done."""
    requests, free = [], began
    for number in range(int(rate * SECONDS)):
        due = began + number / rate
        sent = max(due, free)
        free = clerk.serve(sent + 0.0002) + 0.0002
        requests.append((due, sent, free))
    return requests


def figures(requests, began, since=0):
    times = sorted(request[2] - request[since] for request in requests)
    completed = sum(request[2] <= began + SECONDS for request in requests)
    p99 = times[math.ceil(0.99 * len(times)) - 1] * 1000
    return {"rate": completed / SECONDS, "mean_ms": sum(times) / len(times) * 1000, "p99_ms": p99}


def honest(closed=closed, open_loop=open_loop, clients=CLIENTS, repetitions=REPETITIONS, since=0):
    """Return runs, the server's log, and a report of ewe-lab."""
    clerk, runs = Clerk(), []

    def began():
        return math.ceil(clerk.free_at) + 1.0 + clerk.random.random() / 10

    for repetition in range(1, repetitions + 1):
        for count in clients:
            start = began()
            requests = closed(clerk, count, start)
            run = {
                "kind": "closed",
                "clients": count,
                "repetition": repetition,
                "began": start,
                "seconds": SECONDS,
            }
            runs.append({**run, **figures(requests, start), "requests": requests})
        for share in SHARES:
            start, rate = began(), round(share * BEST)
            requests = open_loop(clerk, rate, start)
            run = {
                "kind": "open",
                "rate_wanted": rate,
                "repetition": repetition,
                "began": start,
                "seconds": SECONDS,
            }
            runs.append({**run, **figures(requests, start, since), "requests": requests})
    sample = {"seconds": 2.0, "service": {"count": 4000, "mean": 0.004}}
    cell = {"server": "thread", "load": "8 users, no think time, 2 s", "samples": [sample] * 3}
    return runs, clerk.log, {"tables": [{"cells": [cell]}]}


def disturbed():
    """Return honest data of a machine that had no processor for this server during half of one run."""
    seen = []

    def once(clerk, count, began):
        seen.append(count)
        if count == CLIENTS[-2] and seen.count(count) == 1:
            clerk.free_at = began + SECONDS / 2
        return closed(clerk, count, began)

    return honest(closed=once)


HONEST = {"honest": honest, "disturbed": disturbed}


def write(name, directory):
    """Write the data of a mutant, or honest data, into a directory; return the path of runs.json."""
    runs, log, report = ZOO[name][0]() if name in ZOO else HONEST[name]()
    (directory / "server.log").write_text("".join("{:.6f} {:.6f} {:.6f}\n".format(*line) for line in log))
    (directory / "lab").mkdir(exist_ok=True)
    (directory / "lab" / "results.json").write_text(json.dumps(report))
    table = {"format": "ewe-runs/1", "log": "server.log", "report": "lab/results.json", "runs": runs}
    (directory / "runs.json").write_text(json.dumps(table))
    return directory / "runs.json"


@mutant("runs-complete", "of two clocks")
def two_clocks():
    """Notes the end of a request by another clock."""
    runs, log, report = honest()
    for run in runs:
        run["requests"] = [(due, sent, done - 1000) for due, sent, done in run["requests"]]
    return runs, log, report


@mutant("runs-repetitions", "one run was taken for the truth")
def once():
    """Measures each load once."""
    return honest(repetitions=1)


@mutant("runs-repetitions", "a run was copied")
def copied():
    """Copies a run in place of a repetition."""
    runs, log, report = honest()
    first = runs[0]
    for run in runs:
        if run["kind"] == "closed" and run["clients"] == 1 and run["repetition"] == 2:
            move = run["began"] - first["began"]
            run["requests"] = [tuple(each + move for each in request) for request in first["requests"]]
    return runs, log, report


@mutant("runs-server-log", "slow requests were left out")
def drops_slow():
    """Leaves out the slowest requests."""
    runs, log, report = honest()
    for run in runs:
        run["requests"] = [each for each in run["requests"] if each[2] - each[0] < 0.1]
        run.update(figures(run["requests"], run["began"]))
    return runs, log, report


@mutant("runs-server-log", "requests were made up")
def made_up():
    """Makes up a request behind each that was sent."""
    runs, log, report = honest()
    for run in runs:
        run["requests"] += [(due, sent, (sent + done) / 2) for due, sent, done in run["requests"]]
        run.update(figures(run["requests"], run["began"]))
    return runs, log, report


@mutant("runs-little", "are 2.0|are 4.0|are 1.9|are 3.9")
def twice_the_rate():
    """Claims twice the rate."""
    runs, log, report = honest()
    for run in runs:
        run["rate"] *= 2
    return runs, log, report


@mutant("runs-little", "clients think")
def thinks():
    """Has clients that think, and calls them busy."""
    return honest(closed=lambda clerk, count, began: closed(clerk, count, began, 0.01))


@mutant("runs-little", "under way at once")
def too_many():
    """Has more clients than it says."""
    return honest(closed=lambda clerk, count, began: closed(clerk, 2 * count, began))


@mutant("runs-saturation", "before saturation")
def stops_early():
    """Ends before more clients stop to help."""

    def parallel(clerk, count, began):
        return [
            (sent, sent, done)
            for number in range(count)
            for sent, done in pairs(clerk, began + number / 1000)
        ]

    def pairs(clerk, began):
        sent = began
        while sent < began + SECONDS:
            clerk.log.append((sent + 0.0001, sent + 0.0001, sent + 0.0301))
            yield sent, sent + 0.0302
            sent += 0.0302
        clerk.free_at = max(clerk.free_at, sent)

    return honest(closed=parallel)


@mutant("runs-open-loop", "coordinated omission")
def waits_for_server():
    """Waits for each response before it sends the next request of an open load."""

    def waits(clerk, rate, began):
        requests, sent = [], began
        while sent < began + SECONDS:
            done = clerk.serve(sent + 0.0002) + 0.0002
            requests.append((sent, sent, done))
            sent = max(done, sent + 1 / rate)
        return requests

    return honest(open_loop=waits)


@mutant("runs-latency", "from the sending")
def from_sending():
    """Counts the times of an open load from the sending."""
    return honest(open_loop=one_connection, since=1)


@mutant("runs-report", "was measured 1 times")
def one_repeat():
    """Has a report of ewe-lab with one repeat."""
    runs, log, report = honest()
    report["tables"][0]["cells"][0]["samples"] = report["tables"][0]["cells"][0]["samples"][:1]
    return runs, log, report
