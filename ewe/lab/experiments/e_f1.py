"""EWE, figure 1: what a server answers of what it is asked, 10 requests on a connection."""

from ewe.lab.experiments.ewe_sweeps import check, experiment

__all__ = ["EXPERIMENT", "check"]

EXPERIMENT = experiment("E-F1", "figure 1", calls=10, minutes=9.0)
