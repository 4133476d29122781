"""The lab measures servers under load and compares them. It needs Linux. No part of the server imports it.

    bench/          what every measurement is made of: processes, CPU time, results, verdicts
    load/           clients that load a server: locust, wrk, ab, httperf, the pinger
    stacks/         the servers: ewe, other web servers, and programs behind them
    experiments/    what is measured, and what five documents printed
    report/         tables, charts and the HTML page
    lab_bench.py    starts a server, loads it, watches it, stops it
    invocation.py   one run of the command: experiments in, report out

A room imports only rooms that stand above it in this list. Begin with bench/experiment.py, then lab_bench.py.
"""
