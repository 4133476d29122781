"""What the thesis (2011) printed of programs, in the order of the thesis: PHP, Python, servlets and JSP.

thesis_dynamic.py and thesis_memory.py say how these experiments run.
"""

from ewe_lab.experiments import thesis_dynamic, thesis_memory
from ewe_lab.experiments.thesis_dynamic import FLUP, DynamicTest
from ewe_lab.experiments.thesis_memory import PROGRAM, SERVER
from ewe_lab.experiments.thesis_static import KEEP, NO_KEEP
from ewe_lab.experiments.thesis_workers import ONE_CORE
from ewe_lab.stacks.ways import Way

# DT-1: 14 bytes from PHP, by all the ways there are to run it.

T_DT1_WAYS = (
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
    Way("nginx", "php-fpm", "php"),
    Way("lighttpd", "php-cgi", "php"),
    Way("apache-event", "php-fpm", "php", label="apache php-fpm"),
    Way("lighttpd", "cgi", "php"),
    Way("ewe", "xswitch", "php"),
    Way("ewe", "php-fpm", "php"),
    Way("ewe", "cgi", "php"),
)
T_DT1_PRINTED = {
    NO_KEEP: {
        "apache mod_php": ("Apache mod_php", 7_000.0), "nginx php-fpm": ("Nginx and Lighttpd", 3_500.0),
        "lighttpd php-cgi": ("Nginx and Lighttpd", 3_500.0), "apache php-fpm": ("Apache FastCGI", 3_000.0),
        "lighttpd cgi": ("CGI", 100.0),
    },
    KEEP: {
        "apache mod_php": ("Apache mod_php", 10_000.0), "nginx php-fpm": ("Nginx and Lighttpd", 4_000.0),
        "lighttpd php-cgi": ("Nginx and Lighttpd", 4_000.0), "apache php-fpm": ("Apache FastCGI", 3_000.0),
        "lighttpd cgi": ("CGI", 100.0),
    },
}  # fmt: skip
T_DT1_TEST = DynamicTest(T_DT1_WAYS, T_DT1_PRINTED, {NO_KEEP: ("Cherokee", 4_500.0)})
T_DT1 = thesis_dynamic.experiment(
    "T-DT1",
    "figures 4.11 and 4.12",
    "PHP",
    "mod_php answers twice as much as FastCGI, and CGI next to nothing.",
    T_DT1_TEST,
    reference="nginx php-fpm",
    paper_reference="Nginx and Lighttpd",
    minutes=6.0,
    quick=True,
    errata=("The wire's bound for PHP is printed as 8,390,857; by its own terms it is 8,392,857.",),
)


# DT-1 under Apache: mod_php, FastCGI and CGI, by its three models.

T_DT1A_WAYS = (
    Way("apache-prefork", "mod_php", "php"),
    Way("apache-prefork", "php-fpm", "php"),
    Way("apache-worker", "php-fpm", "php"),
    Way("apache-event", "php-fpm", "php"),
    Way("apache-prefork", "cgi", "php"),
    Way("apache-event", "cgi", "php"),
)


def printed_by_way(mod_php: float, fastcgi: float, cgi: float) -> dict[str, tuple[str, float]]:
    """Return what is printed for each of the ways: one figure for all models."""
    figures = {"mod_php": ("mod_php", mod_php), "php-fpm": ("FastCGI", fastcgi), "cgi": ("CGI", cgi)}
    return {way.name: figures[way.by] for way in T_DT1A_WAYS}


T_DT1A_TEST = DynamicTest(
    T_DT1A_WAYS, {NO_KEEP: printed_by_way(7_000, 2_600, 100), KEEP: printed_by_way(10_000, 3_000, 100)}
)
T_DT1A = thesis_dynamic.experiment(
    "T-DT1a",
    "figures 4.13 and A.9",
    "PHP under Apache",
    "mod_php reaches 10,000, “333 %” of FastCGI; keep-alive helps mod_php alone.",
    T_DT1A_TEST,
    reference="event php-fpm",
    paper_reference="FastCGI",
    minutes=4.0,
    varies="mod_php, FastCGI, CGI; Apache's models; clients at once",
    errata=("FastCGI's figure with keep-alive is the 3,000 that make 10,000 333 % of it.",),
)


# DT-1 with more than one process of lighttpd and of nginx.

T_DT1W_PROCESSES = (1, 2, 4, 8)
T_DT1W_WAYS = tuple(
    Way(front, by, "php", processes=count, label=f"{front} {count}")
    for front, by in (("lighttpd", "php-cgi"), ("nginx", "php-fpm"))
    for count in T_DT1W_PROCESSES
)


def printed_by_processes(
    lighttpd: tuple[float, ...], nginx: tuple[float, ...]
) -> dict[str, tuple[str, float]]:
    """Return what is printed for one, two, four and eight processes."""
    found = {}
    for front, name, rates in (("lighttpd", "Lighttpd", lighttpd), ("nginx", "Nginx", nginx)):
        for count, rate in zip(T_DT1W_PROCESSES, rates, strict=True):
            found[f"{front} {count}"] = (f"{name} {count}", rate)
    return found


T_DT1W_TEST = DynamicTest(
    T_DT1W_WAYS,
    {
        NO_KEEP: printed_by_processes((4_000, 5_000, 5_000, 5_000), (4_000, 4_500, 4_500, 4_500)),
        KEEP: printed_by_processes((4_500, 6_000, 6_000, 6_000), (3_800, 4_200, 5_100, 5_100)),
    },
    clients=(10, 100, 250),
    notes=(ONE_CORE,),
)
T_DT1W = thesis_dynamic.experiment(
    "T-DT1w",
    "figures 4.14, 4.15, A.10 and A.11",
    "PHP and the number of processes",
    "More processes bring lighttpd and nginx up to 1,500 a second.",
    T_DT1W_TEST,
    reference="nginx 1",
    paper_reference="Nginx 1",
    minutes=4.5,
    varies="server processes, clients at once",
    errata=(
        "“More than one” of lighttpd's processes have one figure; it stands beside two, four and eight.",
    ),
)


# table A.9: the memory of what runs PHP.

T_A9_PRINTED = {
    PROGRAM: {
        "apache mod_php": ("Apache mod_php", 5012.0),
        "lighttpd php-cgi": ("FastCGI", 3748.0),
        "nginx php-fpm": ("PHP-FPM", 4140.0),
    }
}
T_A9 = thesis_memory.experiment(
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
    T_A9_PRINTED,
    reference="apache mod_php",
    paper_reference="Apache mod_php",
)


# DT-2: 750 bytes from Python, by uWSGI, FastCGI and CGI.

T_DT2_WAYS = (
    Way("nginx", "uwsgi", "python"),
    Way("apache-event", "uwsgi", "python", label="apache uwsgi"),
    Way("lighttpd", "fastcgi", "python"),
    Way("lighttpd", "cgi", "python"),
    Way("ewe", "wsgi", "python", model="thread", label="ewe -t wsgi"),
    Way("ewe", "wsgi", "python", label="ewe -a wsgi"),
    Way("ewe", "uwsgi", "python"),
    Way("ewe", "fastcgi", "python"),
    Way("ewe", "xswitch", "python"),
    Way("ewe", "cgi", "python"),
)
T_DT2_PRINTED = {
    "nginx uwsgi": ("Nginx uWSGI", 8_000.0),
    "apache uwsgi": ("Apache uWSGI", 5_000.0),
    "lighttpd fastcgi": ("FastCGI", 1_500.0),
    "lighttpd cgi": ("CGI", 100.0),
}
T_DT2_TEST = DynamicTest(T_DT2_WAYS, {NO_KEEP: T_DT2_PRINTED, KEEP: T_DT2_PRINTED}, notes=(FLUP,))
T_DT2 = thesis_dynamic.experiment(
    "T-DT2",
    "figures 4.16 and 4.17",
    "Python",
    "uWSGI is far ahead of FastCGI, and CGI answers about 100; keep-alive changes nothing.",
    T_DT2_TEST,
    reference="nginx uwsgi",
    paper_reference="Nginx uWSGI",
    minutes=4.2,
    quick=True,
    errata=(
        "With keep-alive no figures are given, only that nothing changes: the same stand in both columns.",
    ),
)


# DT-2 server by server: Apache's models, nginx's and lighttpd's processes; and ewe's engines.

T_DT2S_APACHE = tuple(Way(f"apache-{mpm}", "uwsgi", "python") for mpm in ("prefork", "worker", "event"))
T_DT2S_NGINX = tuple(Way("nginx", "uwsgi", "python", count, label=f"nginx {count}") for count in (1, 2, 4, 8))
T_DT2S_LIGHTTPD = tuple(
    Way("lighttpd", "fastcgi", "python", count, label=f"lighttpd {count}") for count in (1, 2, 4, 8)
)
T_DT2S_EWE = tuple(
    Way(
        "ewe",
        "xswitch",
        "python",
        children=count,
        label=f"ewe, {count} engine{'s' if count > 1 else ''}",
    )
    for count in (1, 2, 4)
)
T_DT2S_PRINTED = {
    **{way.name: ("Apache uWSGI", 5_000.0) for way in T_DT2S_APACHE},
    **{way.name: ("Nginx uWSGI", 6_000.0) for way in T_DT2S_NGINX},
    **{way.name: ("Lighttpd FastCGI", 1_800.0) for way in T_DT2S_LIGHTTPD},
}
T_DT2S_WITHOUT = T_DT2S_PRINTED | {way.name: ("Lighttpd FastCGI", 1_700.0) for way in T_DT2S_LIGHTTPD}
T_DT2S_TEST = DynamicTest(
    (*T_DT2S_APACHE, *T_DT2S_NGINX, *T_DT2S_LIGHTTPD, *T_DT2S_EWE),
    {NO_KEEP: T_DT2S_WITHOUT, KEEP: T_DT2S_PRINTED},
    clients=(10, 100, 250),
    notes=(FLUP, ONE_CORE),
)
T_DT2S = thesis_dynamic.experiment(
    "T-DT2s",
    "figures 4.18 to 4.20 and A.14 to A.18",
    "Python, server by server",
    "Apache event is the best of Apache's; nginx stays at 6,000 with 250 clients for any number of processes.",
    T_DT2S_TEST,
    reference="nginx 1",
    paper_reference="Nginx uWSGI",
    minutes=8.0,
    varies="server, its processes, clients at once",
    errata=("nginx's 6,000 are those at 250 clients; Apache's 5,000 stand beside all three of its models.",),
)


# table A.10: the memory of what runs Python, and of the web servers before it.

T_A10_PRINTED = {
    PROGRAM: {"nginx uwsgi": ("uWSGI", 2588.0)},
    SERVER: {
        "nginx uwsgi": ("Nginx uWSGI", 7196.0),
        "prefork uwsgi": ("Apache Prefork (mod_uWSGI)", 5088.0),
        "worker uwsgi": ("Apache Worker (mod_uWSGI)", 2196.0),
        "event uwsgi": ("Apache Event (mod_uWSGI)", 2188.0),
        "lighttpd fastcgi": ("Lighttpd FastCGI", 808.0),
    },
}
T_A10 = thesis_memory.experiment(
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
        Way("ewe", "wsgi", "python", model="thread", label="ewe -t wsgi"),
        Way("ewe", "xswitch", "python"),
    ),
    T_A10_PRINTED,
    reference="nginx uwsgi",
    paper_reference="Nginx uWSGI",
    gone={"Cherokee FastCGI": 4852.0, "Yaws FastCGI": 41400.0},
)


# DT-3: 670 bytes from a servlet, beside PHP.

T_DT3_WAYS = (
    Way("tomcat", "servlet", "java"),
    Way("ewe", "xswitch", "java", children=0, label="ewe servlet"),
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
    Way("nginx", "php-fpm", "php"),
    Way("ewe", "xswitch", "php", label="ewe xswitch php"),
)
T_DT3_TEST = DynamicTest(
    T_DT3_WAYS,
    {
        NO_KEEP: {"tomcat servlet": ("Servlet", 10_000.0), "apache mod_php": ("mod_php", 7_000.0)},
        KEEP: {"tomcat servlet": ("Servlet", 18_400.0), "apache mod_php": ("mod_php", 10_000.0)},
    },
)
T_DT3 = thesis_dynamic.experiment(
    "T-DT3",
    "figures A.19 and A.20",
    "Servlets beside PHP",
    "A servlet is faster than any PHP on kept connections.",
    T_DT3_TEST,
    reference="tomcat servlet",
    paper_reference="Servlet",
    minutes=2.5,
    errata=("The figures show servlets beside HTML, too; that is T-ST1 and T-ST1k.",),
)


# DT-4: 373 bytes from a JSP page, beside a servlet and PHP.

T_DT4_WAYS = (
    Way("tomcat", "jsp", "java"),
    Way("tomcat", "servlet", "java"),
    Way("ewe", "xswitch", "java", children=0, program="jsp", label="ewe jsp"),
    Way("ewe", "xswitch", "java", children=0, label="ewe servlet"),
    Way("apache-prefork", "mod_php", "php", label="apache mod_php"),
)
T_DT4_TEST = DynamicTest(
    T_DT4_WAYS,
    {
        column: {
            "tomcat jsp": ("JSP", jsp),
            "tomcat servlet": ("Servlet", servlet),
            "apache mod_php": ("mod_php", php),
        }
        for column, jsp, servlet, php in (
            (NO_KEEP, 10_000.0, 10_000.0, 7_000.0),
            (KEEP, 22_400.0, 18_400.0, 10_000.0),
        )
    },
)
T_DT4 = thesis_dynamic.experiment(
    "T-DT4",
    "figures A.21 and A.22",
    "JSP beside servlets and PHP",
    "A JSP page is as fast as a servlet without keep-alive, and faster with it.",
    T_DT4_TEST,
    reference="tomcat servlet",
    paper_reference="Servlet",
    minutes=2.5,
)


EXPERIMENTS = (T_DT1, T_DT1A, T_DT1W, T_A9, T_DT2, T_DT2S, T_A10, T_DT3, T_DT4)
