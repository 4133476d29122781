"""The feature LibCGI: programs in libraries, called in-process or in an engine of X-Switch.

in_process.py  in this process (`libcgi-isolation = in-place`): libraries.py loads and unloads libraries, shim.py
               binds the C side (ewe/libcgi), output.py makes a response from the output of a library
process.py     in an engine of X-Switch (`libcgi-isolation = process`)
status.py      the page /libcgi-status
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ewe.config.defaults import LIBCGI_PREFIX, LIBCGI_SUFFIX
from ewe.config.messages import ConfigError
from ewe.features import libcgi_settings as settings
from ewe.features.base import Handler, Mount, ProtectedSource
from ewe.features.declaration import Feature, NeededDirectory
from ewe.features.xswitch_settings import XSWITCH
from ewe.gateway.protected_sources import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.plan import LocationPlan, Plan


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the directory of libraries, or the libraries in it if it contains the document root."""
    libraries = os.path.realpath(plan.config[settings.LIBCGI_PATH])
    yield (
        ProtectedSource(extension=LIBCGI_SUFFIX)
        if is_in(root, libraries)
        else ProtectedSource(directory=libraries)
    )


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mount of the site's libraries, if their directory exists: for this process, or for X-Switch."""
    config, switch, root = plan.config, plan.provided("xswitch"), plan.static.root
    if not os.path.isdir(config[settings.LIBCGI_PATH]):
        return
    if config[settings.LIBCGI_ISOLATION] == "in-place":
        from ewe.features.libcgi.in_process import LibCGI

        libcgi = LibCGI(config, root, plan.limits)
        if config[settings.LIBCGI_STATUS]:
            from ewe.features.libcgi.status import PATH, LibCGIStatus

            yield Mount(PATH, LibCGIStatus(libcgi, config.names))
        yield Mount(LIBCGI_PREFIX, libcgi)
    elif switch is not None:
        from ewe.features.libcgi.process import LibCGIProcess

        yield Mount(LIBCGI_PREFIX, LibCGIProcess(config, switch, root))


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Handler:
    """Return the handler that calls the libraries in the directory of `alias`. Raises ConfigError."""
    if not location.has_alias or location.has_template or "programs" in location.table.values:
        raise ConfigError(
            f"{location.label_of('gateway')} libcgi needs a prefix and an alias, the directory of the libraries"
        )
    location.protect(extensions=())  # all files of the directory
    config, plan = location.config, location.plan
    root, directory, prefix = plan.static.root, location.static.root, location.prefix
    switch = plan.provided("xswitch")
    if config[settings.LIBCGI_ISOLATION] == "process" and switch is not None:
        from ewe.features.libcgi.process import LibCGIProcess

        return LibCGIProcess(config, switch, root, directory, prefix)
    from ewe.features.libcgi.in_process import LibCGI

    return LibCGI(config, root, plan.limits, directory, prefix)


def ends_processes(config: Config) -> bool:
    """Return whether a request may end the process: a library that is called in-process can do that."""
    if config[settings.LIBCGI_ISOLATION] != "in-place" or not os.path.isdir(config[settings.LIBCGI_PATH]):
        return False
    from ewe.features.libcgi.in_process import holds_libraries

    return holds_libraries(config[settings.LIBCGI_PATH])


def needs(config: Config) -> Iterator[str]:
    """Yield the reason why the server cannot start: libraries must run in X-Switch, and there is no X-Switch."""
    if config[settings.LIBCGI_ISOLATION] == "process" and config[XSWITCH] is None:
        yield (
            "LibCGI libraries in separate processes (libcgi-isolation) need X-Switch: start the xswitch model (-x),"
            " or name the address of an X-Switch (--xswitch)"
        )


def notes(config: Config) -> Iterator[str]:
    """Yield the reason why no library can be called, for `ewe --check-config`."""
    if os.path.isdir(config[settings.LIBCGI_PATH]) and config[settings.LIBCGI_ISOLATION] == "in-place":
        from ewe.features.libcgi.in_process import reason_unusable

        if hindrance := reason_unusable(config):
            yield hindrance


def preload() -> None:
    """Load the shim between libraries and Python, if it is built."""
    from ewe.libcgi.build import preload as load_shim

    load_shim()


def directories(config: Config) -> Iterator[NeededDirectory]:
    """Yield the directory of libraries."""
    yield NeededDirectory(
        config[settings.LIBCGI_PATH], "no library there is called", settings.LIBCGI_PATH.key
    )


FEATURE = Feature(
    "libcgi",
    settings=settings.SETTINGS,
    protected=protected,
    mounts=mounts,
    gateway=gateway,
    directories=directories,
    ends_processes=ends_processes,
    needs=needs,
    notes=notes,
    late=(
        "ewe.libcgi.build",
        *(
            f"ewe.features.libcgi.{name}"
            for name in ("in_process", "process", "status", "libraries", "output", "shim")
        ),
    ),
    preload=preload,
)
