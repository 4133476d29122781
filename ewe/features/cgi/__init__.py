"""The feature CGI: programs below `cgi-path`, and programs of a location with `gateway = "cgi"`.

Read next: programs.py, which runs them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.features.base import Mount, ProtectedSource
from ewe.features.declaration import Feature, Runner
from ewe.gateway.protected_sources import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.features.plan import LocationPlan, Plan


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the directory of programs, or the executable files in it if it contains the document root."""
    programs = os.path.realpath(plan.config.cgi_path)
    yield (
        ProtectedSource(executables=programs)
        if is_in(root, programs)
        else ProtectedSource(directory=programs)
    )


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the site's programs, if their directory exists."""
    if os.path.isdir(plan.config.cgi_path):
        from ewe.features.cgi.programs import CGI

        yield Mount("/cgi-bin/", CGI(plan.config, plan.static, plan.limits, plan.provided("xswitch")))


def gateway(location: LocationPlan, kind: str, addresses: tuple[str, ...]) -> Runner:
    """Return the Runner for the programs of a location."""
    from ewe.features.cgi.programs import CGI

    plan = location.plan
    run = CGI(location.config, plan.static, plan.limits, plan.provided("xswitch")).run
    return Runner(run, needs_files=True, executable=True)


FEATURE = Feature(
    "cgi",
    settings=("cgi_path",),
    protected=protected,
    mounts=mounts,
    gateway=gateway,
    late=("ewe.features.cgi.programs", "ewe.gateway.spawn"),
)
