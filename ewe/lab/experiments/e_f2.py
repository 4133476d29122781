"""EWE, figure 2: what a server answers of what it is asked, one request on a connection."""

from ewe.lab.experiments.ewe_sweeps import check, experiment

__all__ = ["EXPERIMENT", "check"]

EXPERIMENT = experiment("E-F2", "figure 2", calls=1, minutes=9.0)
