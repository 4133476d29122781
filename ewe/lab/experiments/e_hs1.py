"""Thesis, HTTPS-1: the small page with TLS 1.2 and AES256-SHA, both ways."""

from ewe.lab.experiments.contenders import (
    APACHE_EVENT,
    APACHE_PREFORK,
    APACHE_WORKER,
    ASYNCIO,
    LIGHTTPD,
    NGINX,
    THREAD,
)
from ewe.lab.experiments.thesis import KEEP, NO_KEEP, Static, experiment

SERVERS = (APACHE_PREFORK, APACHE_WORKER, APACHE_EVENT, NGINX, LIGHTTPD, THREAD, ASYNCIO)
ALL = ("apache-prefork", "apache-worker", "apache-event", "nginx", "lighttpd")
PRINTED = {
    NO_KEEP: dict.fromkeys(ALL, 1_400),
    KEEP: {"apache-prefork": 11_000, "apache-event": 9_500, "nginx": 10_000, "lighttpd": 9_000},
}
EXPERIMENT = experiment(
    "T-HS1",
    "figures 4.21 to 4.23",
    "The small page over TLS",
    "Without keep-alive the handshake is all that counts: 1,400 a second for everyone. With it Apache prefork "
    "leads.",
    Static(168, PRINTED, tls=True, servers=SERVERS),
    minutes=12.0,
    errata=("Nginx with two processes or more reaches 14,000; here each server has one core.",),
)
