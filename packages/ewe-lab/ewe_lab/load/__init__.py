"""Load generators: they send requests, and count and time the answers.

    run.py          chooses the tool for a load: locust, wrk.py, ab.py, httperf.py
    child.py        starts locust in a child process, `python -m ewe_lab.load` (__main__.py, users.py)
    master.py       locust's master for workers on other machines: worker.py runs there, merged.py adds up
    client.py       the HTTP client of locust's users; recorder.py counts, histogram.py keeps times
    pinger.py       one request after another, for what a layer costs; probe.py: one request, before a load
    http_pinger.py  starts http_clients.py: clients with a connection for each request

exchanges.py, ipc_kinds.py, protected_calls.py and steps.py measure one layer each, without a server: an experiment
runs them as programs. stub_dns.py is a slow name server.

Begin with run.py. ewe_lab.bench.experiment.Load lists the shapes of load, and the figures that count.
"""
