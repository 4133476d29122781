"""Thesis, DT-1: 14 bytes from PHP, by all the ways there are to run it."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.ways import Way

MOD_PHP, NGINX, APACHE, CGI = "Apache mod_php", "Nginx and Lighttpd", "Apache FastCGI", "CGI"
WAYS = (
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
    Way("nginx", "php-fpm", "php"),
    Way("lighttpd", "php-cgi", "php"),
    Way("apache-event", "php-fpm", "php", label="apache php-fpm"),
    Way("lighttpd", "cgi", "php"),
    Way("ewe", "xswitch", "php"),
    Way("ewe", "php-fpm", "php"),
    Way("ewe", "cgi", "php"),
)
PRINTED = {
    NO_KEEP: {
        "apache mod_php": (MOD_PHP, 7_000.0), "nginx php-fpm": (NGINX, 3_500.0),
        "lighttpd php-cgi": (NGINX, 3_500.0), "apache php-fpm": (APACHE, 3_000.0),
        "lighttpd cgi": (CGI, 100.0),
    },
    KEEP: {
        "apache mod_php": (MOD_PHP, 10_000.0), "nginx php-fpm": (NGINX, 4_000.0),
        "lighttpd php-cgi": (NGINX, 4_000.0), "apache php-fpm": (APACHE, 3_000.0),
        "lighttpd cgi": (CGI, 100.0),
    },
}  # fmt: skip
TEST = Dynamic(WAYS, PRINTED, {NO_KEEP: ("Cherokee", 4_500.0)})
EXPERIMENT = experiment(
    "T-DT1",
    "figures 4.11 and 4.12",
    "PHP",
    "mod_php answers twice as much as FastCGI, and CGI next to nothing.",
    TEST,
    reference="nginx php-fpm",
    paper_reference=NGINX,
    minutes=6.0,
    quick=True,
    errata=("The wire's bound for PHP is printed as 8,390,857; by its own terms it is 8,392,857.",),
)
