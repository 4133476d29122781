"""The base of every measurement. The directories load, stacks, experiments and report build on it.

    experiment.py    classes: an experiment, a server under test, a load, a chart; the interface of the bench
    results.py       the results as data; figures.py: figures as text; verdicts.py: does a claim still hold?
    processes.py     start, pin and stop processes; their CPU time; the cores of server and load
    guard.py         ends the servers if the lab itself is killed, by after_kill.py
    watch.py         CPU, memory and processes of a server, second by second
    foreign.py       the CPU time that other programs take meanwhile
    links.py         slow links; accounts.py: temporary accounts
    progress.py      the line that shows the current step; interrupts.py: the first Ctrl-C ends the run

Begin with experiment.py and results.py. ewe_lab.lab_bench is the bench itself, which uses all the others.
"""
