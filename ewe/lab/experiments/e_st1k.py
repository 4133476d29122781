"""Thesis, ST-1: an HTML page of 168 bytes on kept connections."""

from ewe.lab.experiments.thesis import KEEP, Static, experiment

PRINTED = {
    "apache-prefork": 15_000, "apache-worker": 15_000, "apache-event": 15_000, "nginx": 17_000, "lighttpd": 16_500,
}  # fmt: skip
EXPERIMENT = experiment(
    "T-ST1k",
    "figure 4.2",
    "A small page on kept connections",
    "With keep-alive Apache's three models are equal at 15,000, and nginx and lighttpd with one process a little "
    "faster at 17,000 and 16,500.",
    Static(168, {KEEP: PRINTED}),
    minutes=7.5,
)
