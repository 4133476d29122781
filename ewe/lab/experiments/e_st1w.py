"""Thesis, figures 4.3, 4.4, A.3 and A.4: one, two, four, eight processes."""

from ewe.lab.experiments.thesis_workers import experiment

EXPERIMENT = experiment(
    "T-ST1w",
    "figures 4.3, 4.4, A.3 and A.4",
    "A small page from one to eight processes",
    "On kept connections a second process nearly doubles the rate of nginx (17,000 to 28,000), more "
    "than two bring nothing; without keep-alive they change nothing.",
    168,
    {1: 17_000, 2: 28_000, 4: 28_000, 8: 28_000},
    {1: 10_000, 2: 10_000, 4: 10_000, 8: 10_000},
)
