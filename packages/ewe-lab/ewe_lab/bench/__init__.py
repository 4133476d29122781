"""What every measurement is made of. The rooms load, stacks, experiments and report build on it.

    experiment.py    what an experiment, a contender, a load and a chart are; the interface of the bench
    results.py       what is measured, as data; figures.py: figures as text; verdicts.py: does a claim still hold?
    processes.py     start, pin and stop processes; their CPU time; the cores of server and load
    watch.py         what a server uses, second by second
    links.py         slow links; accounts.py: temporary accounts
    progress.py      the line that shows the current step; interrupts.py: what Ctrl-C does

Begin with experiment.py and results.py. ewe_lab.lab_bench is the bench itself, which joins all rooms.
"""
