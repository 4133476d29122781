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

# The resources of a ServingStack, by its front server, by the process that runs the program, and by its language
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


def tried(stack: ServingStack, name: str = "") -> ParameterSet:
    """Return a stack as a row of parametrize(), marked with its needs. name: the row's, "" for the stack's own."""
    names = [NEEDED[part] for part in (stack.front, stack.by, stack.language) if part in NEEDED]
    if stack.language == "php" and stack.by in ("cgi", "php-cgi", "xswitch"):
        names.append("php-cgi")
    if stack.language == "java":
        names += ["Maven", "Java"]
    return pytest.param(
        name or stack, id=name or f"{stack.name} {stack.language}", marks=pytest.mark.needs(*names)
    )


@contextmanager
def quick_lab() -> Iterator[LabBench]:
    """Make a bench for the block."""
    with LabBench(Progress(file=io.StringIO()), quick=True, repeats=1) as lab:
        yield lab
