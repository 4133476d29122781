"""The feature CGI: programs below `cgi-path`, and programs of a location with `gateway = "cgi"`.

Read next: programs.py, which runs them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.features.base import Mount, ProtectedSource
from ewe.features.cgi_settings import CGI_PATH, SETTINGS
from ewe.features.declaration import Feature, NeededDirectory, Runner
from ewe.gateway.protected_sources import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.plan import LocationPlan, Plan


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the directory of programs, or the executable files in it if it contains the document root."""
    programs = os.path.realpath(plan.config[CGI_PATH])
    yield (
        ProtectedSource(executables=programs)
        if is_in(root, programs)
        else ProtectedSource(directory=programs)
    )


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the site's programs, if their directory exists."""
    if os.path.isdir(plan.config[CGI_PATH]):
        from ewe.features.cgi.programs import CGI

        yield Mount("/cgi-bin/", CGI(plan.config, plan.static, plan.limits, plan.provided("xswitch")))


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Runner:
    """Return the Runner for the programs of a location (Feature.gateway). `gateway = "cgi"` names no target.

    The Runner starts a program itself, or passes it on to X-Switch if the settings ask for that.
    """
    from ewe.features.cgi.programs import CGI

    plan = location.plan
    run = CGI(location.config, plan.static, plan.limits, plan.provided("xswitch")).run
    return Runner(run, needs_files=True, executable=True)


def directories(config: Config) -> Iterator[NeededDirectory]:
    """Yield the directory of programs."""
    yield NeededDirectory(config[CGI_PATH], "no program there runs", CGI_PATH.key, starts=True)


def start_warnings(config: Config, public_url: str) -> Iterator[str]:
    """Yield a warning if ewe as root runs no programs, and one for each document root inside cgi-path.

    ewe would send a script without execute bit as a file there. Only executable files are protected, or ewe could
    send no file at all. If cgi-path lies inside the document root, which is usual, ewe sends none of its files.
    """
    if os.geteuid() == 0 and config.user is None and public_url and os.path.isdir(config[CGI_PATH]):
        yield "root runs no programs for a network: --user NAME runs them as somebody else, --user root as root"
    for pair in dict.fromkeys((each.documentroot, each[CGI_PATH]) for each in config.each_site()):
        root, programs = map(os.path.realpath, pair)
        if is_in(root, programs):
            yield (
                f"the document root {root} lies in cgi-path {programs}: "
                "a program there that is not executable is sent as a file"
            )


FEATURE = Feature(
    "cgi",
    settings=SETTINGS,
    protected=protected,
    mounts=mounts,
    gateway=gateway,
    directories=directories,
    start_warnings=start_warnings,
    late=("ewe.features.cgi.programs", "ewe.gateway.spawn"),
)
