"""The lab measures servers under load and compares them. It needs Linux. No part of the server imports it.

    bench/          the base of every measurement: processes, CPU time, results, verdicts
    load/           clients that load a server: locust, wrk, ab, httperf, the pinger
    stacks/         the servers: ewe, other web servers, and programs behind them
    machines/       other machines: the resources of a target, and load that comes from there
    experiments/    the experiments, with the printed figures of five documents
    report/         tables, charts and the HTML page
    lab_bench.py    starts a server, loads it, watches it, stops it
    invocation.py   one run of the command: experiments in, report out

A directory imports only directories that stand above it in this list. Begin with bench/experiment.py, then
lab_bench.py.
"""
