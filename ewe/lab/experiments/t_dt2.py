"""Thesis, DT-2: 750 bytes from Python, by uWSGI, FastCGI and CGI."""

from ewe.lab.experiments.thesis_dynamic import FLUP, KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.ways import Way

NGINX, APACHE, FASTCGI, CGI = "Nginx uWSGI", "Apache uWSGI", "FastCGI", "CGI"
WAYS = (
    Way("nginx", "uwsgi", "python"),
    Way("apache-event", "uwsgi", "python", label="apache uwsgi"),
    Way("lighttpd", "fastcgi", "python"),
    Way("lighttpd", "cgi", "python"),
    Way("ewe", "xswitch", "python"),
    Way("ewe", "cgi", "python"),
)
PRINTED = {
    "nginx uwsgi": (NGINX, 8_000.0),
    "apache uwsgi": (APACHE, 5_000.0),
    "lighttpd fastcgi": (FASTCGI, 1_500.0),
    "lighttpd cgi": (CGI, 100.0),
}
TEST = Dynamic(WAYS, {NO_KEEP: PRINTED, KEEP: PRINTED}, notes=(FLUP,))
EXPERIMENT = experiment(
    "T-DT2",
    "figures 4.16 and 4.17",
    "Python",
    "uWSGI is far ahead of FastCGI, and CGI answers about 100; keep-alive changes nothing.",
    TEST,
    reference="nginx uwsgi",
    paper_reference=NGINX,
    minutes=4.2,
    quick=True,
    errata=(
        "With keep-alive no figures are given, only that nothing changes: the same stand in both columns.",
    ),
)
