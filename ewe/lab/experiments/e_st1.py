"""Thesis, ST-1: an HTML page of 168 bytes, a connection for each request."""

from ewe.lab.experiments.thesis import NO_KEEP, Static, experiment

PRINTED = {
    "apache-prefork": 11_000, "apache-worker": 8_000, "apache-event": 8_000, "nginx": 10_000, "lighttpd": 10_000,
}  # fmt: skip
EXPERIMENT = experiment(
    "T-ST1",
    "figure 4.1",
    "A small page, a connection for each request",
    "Without keep-alive the servers are close (8,000 to 11,000 a second): Apache prefork leads worker and event by "
    "3,000, nginx and lighttpd lie between.",
    Static(168, {NO_KEEP: PRINTED}),
    minutes=7.5,
)
