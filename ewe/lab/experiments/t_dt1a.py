"""Thesis, DT-1 under Apache: mod_php, FastCGI and CGI, by its three models."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.ways import Way

FASTCGI, CGI = "FastCGI", "CGI"
WAYS = (
    Way("apache-prefork", "mod_php", "php"),
    Way("apache-prefork", "php-fpm", "php"),
    Way("apache-worker", "php-fpm", "php"),
    Way("apache-event", "php-fpm", "php"),
    Way("apache-prefork", "cgi", "php"),
    Way("apache-event", "cgi", "php"),
)


def printed(mod_php: float, fastcgi: float, cgi: float) -> dict[str, tuple[str, float]]:
    """Return what is printed for each of the ways: one figure for all models."""
    figures = {"mod_php": ("mod_php", mod_php), "php-fpm": (FASTCGI, fastcgi), "cgi": (CGI, cgi)}
    return {way.name: figures[way.by] for way in WAYS}


TEST = Dynamic(WAYS, {NO_KEEP: printed(7_000, 2_600, 100), KEEP: printed(10_000, 3_000, 100)})
EXPERIMENT = experiment(
    "T-DT1a",
    "figures 4.13 and A.9",
    "PHP under Apache",
    "mod_php reaches 10,000, “333 %” of FastCGI; keep-alive helps mod_php alone.",
    TEST,
    reference="event php-fpm",
    paper_reference=FASTCGI,
    minutes=4.0,
    varies="mod_php, FastCGI, CGI; Apache's models; clients at once",
    errata=("FastCGI's figure with keep-alive is the 3,000 that make 10,000 333 % of it.",),
)
