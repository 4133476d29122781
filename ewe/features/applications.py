"""Python applications (WSGI and ASGI), each below a path (settings `wsgi` and `asgi`, and `gateway`).

A process imports each application once, even if the site has many locations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_application
from ewe.features.applications_settings import SETTINGS
from ewe.features.base import Handler, Mount, ProtectedSource
from ewe.features.declaration import Feature
from ewe.gateway.protected_sources import ProtectedSources
from ewe.registry import directories_of

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import LocationPlan, Plan


def sources_of_applications(names: Iterable[str]) -> Iterator[ProtectedSource]:
    """Yield a ProtectedSource for each source directory of Python applications. names: module:name."""
    for name in names:
        for directory in directories_of(name):
            yield ProtectedSource(sources=directory)


def protected(plan: Plan, root: str) -> Iterator[ProtectedSource]:
    """Yield the source directories of the applications."""
    named = (each for setting in SETTINGS for each in plan.config[setting])
    return sources_of_applications(name for _, name in map(parse_application, named))


def mounts(plan: Plan) -> Iterator[Mount]:
    """Yield the mounts of the applications, the longest path first, so that one at / comes last.

    Raises ValueError for two applications at the same path: an application answers every request below its path.
    """
    config = plan.config
    named = [(*parse_application(each), setting.key) for setting in SETTINGS for each in config[setting]]
    by_path: dict[str, tuple[str, str]] = {}
    for path, name, kind in named:
        other_name, other_kind = by_path.setdefault(path.rstrip("/"), (name, kind))
        if (other_name, other_kind) != (name, kind):
            raise ValueError(
                f"two applications at {path}: {other_name} ({other_kind}) and {name} ({kind}): mount one elsewhere"
            )
    for path, name, kind in sorted(named, key=lambda found: -len(found[0])):
        yield Mount(path.rstrip("/") or "/", application(plan, config, kind, path, name))


def application(plan: Plan, config: Config, kind: str, path: str, name: str) -> Handler:
    """Return the handler of an application. kind: "wsgi" or "asgi". name: module:app.

    Raises ValueError if the application is imported now (ServerPlan), and the import fails.
    """
    server = plan.server
    if kind == "wsgi":
        from ewe.features.wsgi import WSGI

        wsgi = WSGI(config, path, name, multithread=server.multithread, multiprocess=server.multiprocess)
        server.add_application(wsgi)
        return wsgi
    from ewe.features.asgi import ASGI

    asgi = ASGI(config, path, name)
    server.add_application(asgi)
    return asgi


def gateway(location: LocationPlan, kind: str, targets: tuple[str, ...]) -> Handler:
    """Return the handler of an application below a location's prefix. Raises ValueError."""
    [name] = targets
    location.plan.server.protect(ProtectedSources("/", sources=directories_of(name)))
    return application(location.plan, location.config, kind, location.prefix or "/", name)


def answers_all(config: Config) -> bool:
    """Return whether an application answers every path."""
    return any(each.startswith("/=") for setting in SETTINGS for each in config[setting])


FEATURE = Feature(
    "applications",
    settings=SETTINGS,
    protected=protected,
    mounts=mounts,
    answers_all=answers_all,
    shares_mounts=True,
    imports_later=True,
    gateway=gateway,
    late=("ewe.features.wsgi", "ewe.features.asgi", "ewe.gateway.asgi", "ewe.streams.loops"),
)
