"""Thesis, figures 4.7, 4.8 and A.6 to A.8: one, two, four, eight processes and a small image."""

from ewe.lab.experiments.thesis_workers import experiment

EXPERIMENT = experiment(
    "T-ST2w",
    "figures 4.7, 4.8 and A.6 to A.8",
    "A small image from one to eight processes",
    "The wire allows little: more processes bring nginx 1,000 a second, to 15,000, on kept connections, and "
    "nothing without.",
    7_500,
    {1: 14_000, 2: 15_000, 4: 15_000, 8: 15_000},
    {1: 8_000, 2: 8_000, 4: 8_000, 8: 8_000},
    link="1gbit",
)
