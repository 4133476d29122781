"""Thesis, table A.9: the memory of what runs PHP."""

from ewe.lab.experiments.way_memory import PROGRAM, experiment
from ewe.lab.ways import Way

PRINTED = {
    PROGRAM: {
        "apache mod_php": ("Apache mod_php", 5012.0),
        "lighttpd php-cgi": ("FastCGI", 3748.0),
        "nginx php-fpm": ("PHP-FPM", 4140.0),
    }
}
EXPERIMENT = experiment(
    "T-A9",
    "table A.9",
    "The memory of PHP",
    "mod_php needs most, FastCGI least.",
    (
        Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
        Way("lighttpd", "php-cgi", "php"),
        Way("nginx", "php-fpm", "php"),
        Way("ewe", "xswitch", "php"),
    ),
    PRINTED,
    reference="apache mod_php",
    paper_reference="Apache mod_php",
)
