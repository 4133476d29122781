"""Thesis, ST-3: an image of 83,572 bytes, both ways, behind a link of 1 Gbit/s."""

from ewe.lab.experiments.thesis import KEEP, NO_KEEP, Static, experiment

ALL = ("apache-prefork", "apache-worker", "apache-event", "nginx", "lighttpd")
EXPERIMENT = experiment(
    "T-ST3",
    "figures 4.9 and 4.10",
    "A large image behind a link of 1 Gbit/s",
    "The wire is the limit: 1,400 a second for everyone (it carries 1,405), with and without keep-alive.",
    Static(83_572, {NO_KEEP: dict.fromkeys(ALL, 1_400), KEEP: dict.fromkeys(ALL, 1_400)}, link="1gbit"),
    minutes=15.0,
)
