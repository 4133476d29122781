"""Thesis, ST-2: an image of 7,500 bytes, both ways, behind a link of 1 Gbit/s."""

from ewe.lab.experiments.thesis import KEEP, NO_KEEP, Static, experiment

ALL = ("apache-prefork", "apache-worker", "apache-event", "nginx", "lighttpd")
PRINTED = {
    NO_KEEP: dict.fromkeys(ALL, 8_000),
    KEEP: {
        "apache-prefork": 15_000,
        "apache-worker": 15_000,
        "apache-event": 12_500,
        "nginx": 14_000,
        "lighttpd": 13_000,
    },
}
EXPERIMENT = experiment(
    "T-ST2",
    "figures 4.5 and 4.6",
    "A small image behind a link of 1 Gbit/s",
    "All servers are nearly equal: 8,000 a second without keep-alive, 12,500 to 15,000 with it, below what the "
    "wire carries (15,666).",
    Static(7_500, PRINTED, link="1gbit"),
    minutes=15.0,
    errata=(
        "Apache event is only said to be slightly lower than prefork and worker; 12,500 is the range's end.",
    ),
)
