"""Run a load with the tool that suits it: locust for users and arrivals, wrk or ab for saturation.

wrk and ab are written in C, so that one core of load is enough for one core of server. If neither is installed,
locust takes their place and the sample has a note. httperf runs only if a load names it, to check locust.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ewe_lab.bench.experiment import Load
from ewe_lab.bench.processes import LabError, find_tool, share_of_core
from ewe_lab.bench.results import Sample
from ewe_lab.load.ab import run_ab
from ewe_lab.load.child import NoObserver, WindowObserver, run_locust
from ewe_lab.load.httperf import run_httperf
from ewe_lab.load.wrk import run_wrk

CLOSING_S = 0.05  # seconds after a load in which the server closes the remaining connections

Runner = Callable[[Load, str, "int | None", WindowObserver, Sequence[str]], Sample]


def choose_tool(load: Load) -> str:
    """Return the tool for a load. Raises LabError if it names one that cannot do it."""
    tools_of_shape = {
        "closed": ("locust",),
        "arrivals": ("locust", "httperf"),
        "saturation": ("wrk", "ab", "locust"),
    }
    tools: tuple[str, ...] = tools_of_shape.get(load.shape, ())
    if not tools:
        raise LabError(f"there is no load of shape {load.shape!r}; there are {', '.join(tools_of_shape)}")
    if load.tool:  # the load names its tool
        if load.tool not in tools:
            raise LabError(f"{load.tool} cannot make a load of shape {load.shape}: {', '.join(tools)} can")
        return load.tool
    if load.shape == "saturation":
        if load.tls == "parity":  # only ab has options for protocol and cipher
            tools = ("ab",)
        elif not load.keep_alive:  # ab is faster than wrk without keep-alive
            tools = ("ab", "wrk")
        return next((name for name in tools if name != "locust" and find_tool(name)), "locust")
    return "locust"


def run(
    load: Load,
    url: str,
    core: int | None = None,
    observer: WindowObserver | None = None,
    prefix: Sequence[str] = (),
) -> Sample:
    """Run a load; return its sample. Raises LabError.

    url: of the server, with a slash at its end. core: on which the tool runs, None for any. observer: learns when
    the measured time begins and ends. prefix: the first words of the tool's command, such as those that run it
    behind a slow link.
    """
    chosen = choose_tool(load)
    runners: dict[str, Runner] = {
        "locust": run_locust_as_tool,
        "wrk": measure_with_wrk,
        "ab": run_ab,
        "httperf": run_httperf,
    }
    found = runners[chosen](load, url, core, observer or NoObserver(), prefix)
    if load.shape == "saturation" and chosen == "locust" and not load.tool:
        lacking = "ab is not" if load.tls == "parity" else "neither wrk nor ab is"
        found.notes.append(f"{lacking} installed: locust may reach its limit before the server")
    return found


def run_locust_as_tool(
    load: Load, url: str, core: int | None, observer: WindowObserver, prefix: Sequence[str]
) -> Sample:
    """Run locust, with saturation as a closed loop without think time; return the sample."""
    if load.shape == "saturation":
        load = replace(load, shape="closed", think=0.0)
    return run_locust(load, url, core, observer, prefix)


def measure_with_wrk(
    load: Load, url: str, core: int | None, observer: WindowObserver, prefix: Sequence[str]
) -> Sample:
    """Run wrk twice, to warm up and to measure; return the sample of the second run. Raises LabError.

    wrk counts answers: no figure has a request whose connection the server closed, or one without an answer at the
    end. The kinds of errors are those of results.ERRORS: `res` is a reset, `ct` a timeout of the client.
    """

    def measure(seconds: float) -> Sample:
        """Run wrk for so many seconds; return its report as a sample."""
        report = run_wrk(
            url.rstrip("/") + load.path,
            seconds=seconds,
            connections=load.users,
            core=core,
            keep_alive=load.keep_alive,
            varied=load.varied,
            headers=load.headers,
            timeout_s=load.timeout,
            prefix=prefix,
        )
        errors = {"res": 0, "ct": 0, "status": 0, "other": 0}
        for name, count in report.errors.items():
            errors[WRK_ERRORS.get(name, "other")] += count
        # If the load expects an error status, wrk's "non-2xx" are the right answers, and all others are errors
        if load.status >= 400:
            errors["status"] = report.requests - errors["status"]
        errors = {name: count for name, count in errors.items() if count}
        return Sample(
            "wrk",
            seconds=report.seconds,
            requests=report.requests,
            # wrk counts an answer that came too late (ct) or is an error (status) among its requests
            replies=max(report.requests - errors.get("status", 0) - errors.get("ct", 0), 0),
            received=report.received,
            errors=errors,
            client=share_of_core(report.cpu_s, report.seconds),
            extra=report.latency,
        )

    if load.warm_up:
        measure(load.warm_up)
        time.sleep(CLOSING_S)
    observer.begin()
    found = measure(load.seconds)
    # The server's CPU time for closing the connections is measured, too
    time.sleep(CLOSING_S)
    observer.end()
    return found


WRK_ERRORS = {"read": "res", "write": "res", "timeout": "ct", "non-2xx": "status"}  # connect: any reason
