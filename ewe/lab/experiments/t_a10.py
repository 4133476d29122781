"""Thesis, table A.10: the memory of what runs Python, and of the web servers before it."""

from ewe.lab.experiments.way_memory import PROGRAM, SERVER, experiment
from ewe.lab.ways import Way

PRINTED = {
    PROGRAM: {"nginx uwsgi": ("uWSGI", 2588.0)},
    SERVER: {
        "nginx uwsgi": ("Nginx uWSGI", 7196.0),
        "prefork uwsgi": ("Apache Prefork (mod_uWSGI)", 5088.0),
        "worker uwsgi": ("Apache Worker (mod_uWSGI)", 2196.0),
        "event uwsgi": ("Apache Event (mod_uWSGI)", 2188.0),
        "lighttpd fastcgi": ("Lighttpd FastCGI", 808.0),
    },
}
EXPERIMENT = experiment(
    "T-A10",
    "table A.10",
    "The memory of Python",
    "A uWSGI process needs 2.6 MB.",
    (
        Way("nginx", "uwsgi", "python"),
        Way("apache-prefork", "uwsgi", "python", label="prefork uwsgi"),
        Way("apache-worker", "uwsgi", "python", label="worker uwsgi"),
        Way("apache-event", "uwsgi", "python", label="event uwsgi"),
        Way("lighttpd", "fastcgi", "python"),
        Way("ewe", "xswitch", "python"),
    ),
    PRINTED,
    reference="nginx uwsgi",
    paper_reference="Nginx uWSGI",
    gone={"Cherokee FastCGI": 4852.0, "Yaws FastCGI": 41400.0},
)
