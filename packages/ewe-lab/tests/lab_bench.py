"""A bench of the lab for tests: it measures once, shortly, and says nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _pytest.mark import ParameterSet

from ewe_lab.bench.progress import Progress
from ewe_lab.lab_bench import LabBench
from ewe_lab.stacks.ways import ServingStack

# The resources of a way to serve a program, by its front server, by the process that runs it, and by its language
NEEDED = {
    "nginx": "nginx",
    "apache-prefork": "apache2",
    "apache-event": "apache2",
    "apache-worker": "apache2",
    "lighttpd": "lighttpd",
    "tomcat": "Tomcat",
    "uwsgi": "uWSGI",
    "uwsgi-script": "uWSGI",
    "fcgi": "FCGI.pm",
    "php-fpm": "php-fpm",
    "mod_perl": "mod_perl",
    "mod_php": "mod_php",
    "perl": "Perl",
}


def tried(way: ServingStack, name: str = "") -> ParameterSet:
    """Return a way as a row of parametrize(), marked with what it needs. name: the row's, in place of the way's."""
    names = [NEEDED[part] for part in (way.front, way.by, way.language) if part in NEEDED]
    if way.language == "php" and way.by in ("cgi", "php-cgi", "xswitch"):
        names.append("php-cgi")
    if way.language == "java":
        names += ["Maven", "Java"]
    return pytest.param(name or way, id=name or f"{way.name} {way.language}", marks=pytest.mark.needs(*names))


@contextmanager
def quick_lab() -> Iterator[LabBench]:
    """Make a bench for the block."""
    with LabBench(Progress(file=io.StringIO()), quick=True, repeats=1) as lab:
        yield lab
