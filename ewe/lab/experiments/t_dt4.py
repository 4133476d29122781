"""Thesis, DT-4: 373 bytes from a JSP page, beside a servlet and PHP."""

from ewe.lab.experiments.thesis_dynamic import KEEP, NO_KEEP, Dynamic, experiment
from ewe.lab.ways import Way

JSP, SERVLET, MOD_PHP = "JSP", "Servlet", "mod_php"
WAYS = (
    Way("tomcat", "jsp", "java"),
    Way("tomcat", "servlet", "java"),
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
)
TEST = Dynamic(
    WAYS,
    {
        column: {
            "tomcat jsp": (JSP, jsp),
            "tomcat servlet": (SERVLET, servlet),
            "apache mod_php": (MOD_PHP, php),
        }
        for column, jsp, servlet, php in (
            (NO_KEEP, 10_000.0, 10_000.0, 7_000.0),
            (KEEP, 22_400.0, 18_400.0, 10_000.0),
        )
    },
)
EXPERIMENT = experiment(
    "T-DT4",
    "figures A.21 and A.22",
    "JSP beside servlets and PHP",
    "A JSP page is as fast as a servlet without keep-alive, and faster with it.",
    TEST,
    reference="tomcat servlet",
    paper_reference=SERVLET,
    minutes=2.5,
)
