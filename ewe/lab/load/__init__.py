"""Load: what is asked of a server, counted and timed. `python -m ewe.lab.load` is locust, in a child process."""
