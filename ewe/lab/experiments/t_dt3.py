"""Thesis, DT-3: 670 bytes from a servlet, beside PHP."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.ways import Way

SERVLET, MOD_PHP = "Servlet", "mod_php"
WAYS = (
    Way("tomcat", "servlet", "java"),
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
    Way("nginx", "php-fpm", "php"),
    Way("ewe", "xswitch", "php", label="ewe xswitch php"),
)
TEST = Dynamic(
    WAYS,
    {
        NO_KEEP: {"tomcat servlet": (SERVLET, 10_000.0), "apache mod_php": (MOD_PHP, 7_000.0)},
        KEEP: {"tomcat servlet": (SERVLET, 18_400.0), "apache mod_php": (MOD_PHP, 10_000.0)},
    },
)
EXPERIMENT = experiment(
    "T-DT3",
    "figures A.19 and A.20",
    "Servlets beside PHP",
    "A servlet is faster than any PHP on kept connections.",
    TEST,
    reference="tomcat servlet",
    paper_reference=SERVLET,
    minutes=2.5,
    errata=("The figures show servlets beside HTML, too; that is T-ST1 and T-ST1k.",),
)
