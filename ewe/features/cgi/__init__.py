"""CGI as a feature: programs below `cgi-path`, and those of a location with `gateway = "cgi"`.

Read next: programs.py, which runs them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.features.base import Claim, Mount
from ewe.features.declaration import Feature, Runner
from ewe.gateway.claims import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.features.plan import LocationPlan, Plan


def claims(plan: Plan, root: str) -> Iterator[Claim]:
    """Yield the directory of programs, or the executable files in it if it contains the document root."""
    programs = os.path.realpath(plan.config.cgi_path)
    yield Claim(executables=programs) if is_in(root, programs) else Claim(directory=programs)


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the programs of the site, if it has a directory of them."""
    if os.path.isdir(plan.config.cgi_path):
        from ewe.features.cgi.programs import CGI

        yield Mount("/cgi-bin/", CGI(plan.config, plan.static, plan.limits, plan.provided("xswitch")))


def gateway(location: LocationPlan, kind: str, addresses: tuple[str, ...]) -> Runner:
    """Return what runs the programs of a location."""
    from ewe.features.cgi.programs import CGI

    plan = location.plan
    run = CGI(location.config, plan.static, plan.limits, plan.provided("xswitch")).run
    return Runner(run, needs_files=True, executable=True)


FEATURE = Feature(
    "cgi",
    settings=("cgi_path",),
    claims=claims,
    mounts=mounts,
    gateway=gateway,
    late=("ewe.features.cgi.programs", "ewe.gateway.spawn"),
)
