"""The one table of ewe's features: the names of their modules, and the settings that switch each of them on.

No other file outside of ewe.features names a feature's module. A module of the table ends in FEATURE, its
declaration (ewe.features.declaration). It is imported only if the settings need it, since a forked child copies the
memory of its parent. Only the files of SETTINGS are imported in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

# In the order in which a site asks them: the module, and the settings of which at least one must be on. A module
# with "always" protects sources also where it answers nothing.
FEATURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ewe.features.trace", ("trace",)),
    ("ewe.features.status", ("status",)),
    ("ewe.features.mounted", ("mount",)),
    ("ewe.features.databases", ("database", "dbd")),
    ("ewe.features.browser", ("database", "dbd")),
    ("ewe.features.applications", ("wsgi", "asgi")),
    ("ewe.features.xswitch", ("xswitch", "xswitch_config")),
    ("ewe.features.far_scripts", ("xswitch_config",)),
    ("ewe.features.cgi", ("always",)),
    ("ewe.features.libcgi", ("always",)),
    ("ewe.features.users", ("userdir",)),
    ("ewe.features.proxy", ("proxy",)),
    ("ewe.features.fastcgi", ("fastcgi", "fastcgi_start", "scgi", "uwsgi")),
    ("ewe.features.pages", ("xswitch",)),
    ("ewe.features.sql_pages", ("database", "dbd")),
    ("ewe.features.markdown", ("markdown",)),
    ("ewe.features.content_cache", ("content_cache",)),
    ("ewe.features.homes", ("userdir_settings",)),
)


class LocationMiddleware(NamedTuple):
    """A middleware around the answer of a location: its module, and the key or the setting that asks for it.

    is_log_in: it knows who the visitor is.
    """

    module: str
    key: str = ""
    setting: str = ""
    is_log_in: bool = False


# Asked before the answer; the first in the table is asked first.
GUARDS = (
    LocationMiddleware("ewe.features.authorizers", setting="fastcgi_authorizer"),
    LocationMiddleware("ewe.features.guards.methods", "methods"),
    LocationMiddleware("ewe.features.guards.addresses", "deny"),
    LocationMiddleware("ewe.features.guards.addresses", "allow"),
    LocationMiddleware("ewe.features.guards.request_rate", "requests-per-second"),
    LocationMiddleware("ewe.features.guards.auth", "auth", is_log_in=True),
)
# They change the response; the first in the table gets it first.
FILTERS = (
    LocationMiddleware("ewe.features.guards.error_pages", "error-pages"),
    LocationMiddleware("ewe.features.compression", setting="compress"),
    LocationMiddleware("ewe.features.guards.headers", "headers"),
    LocationMiddleware("ewe.features.guards.freshness", "expires"),
    LocationMiddleware("ewe.features.guards.freshness", "cache-control"),
    LocationMiddleware("ewe.features.guards.limit_rate", "limit-rate"),
)
STEPS = {step.key: step for step in (*GUARDS, *FILTERS) if step.key}


class LocationGateway(NamedTuple):
    """A kind of the key `gateway` of a location: its module, and what its value names behind the colon.

    target_kind: "" (nothing, and there is no colon), "address", "application" (MODULE:APP) or "url".
    """

    module: str
    target_kind: str = ""

    @property
    def runs_files(self) -> bool:
        """Whether the gateway runs programs that are files, so that a location may say which files."""
        return self.target_kind in ("", "address")

    @property
    def may_be_several(self) -> bool:
        """Whether a location may have several gateways of the kind, which share its requests."""
        return self.target_kind in ("address", "url")


GATEWAYS = {
    "cgi": LocationGateway("ewe.features.cgi"),
    "xswitch": LocationGateway("ewe.features.xswitch"),
    "libcgi": LocationGateway("ewe.features.libcgi"),
    "fastcgi": LocationGateway("ewe.features.fastcgi", "address"),
    "scgi": LocationGateway("ewe.features.fastcgi", "address"),
    "uwsgi": LocationGateway("ewe.features.fastcgi", "address"),
    "wsgi": LocationGateway("ewe.features.applications", "application"),
    "asgi": LocationGateway("ewe.features.applications", "application"),
    "http": LocationGateway("ewe.features.proxy", "url"),
    "https": LocationGateway("ewe.features.proxy", "url"),
}


class LocationAnswer(NamedTuple):
    """A key of a location that names its handler by itself. beside: the keys of a location that may be beside it.

    A handler beside `root` answers with files of the document root.
    """

    module: str
    beside: Sequence[str] = ()


ANSWERS = {
    "webdav": LocationAnswer("ewe.features.webdav", ("alias", "root", "index")),
    "engines": LocationAnswer("ewe.features.engines"),
}
# The module of each key of [[site]] and [[site.location]] that a feature has declared
MODULE_OF_KEY = {key: answer.module for key, answer in ANSWERS.items()}
MODULE_OF_KEY |= {key: step.module for key, step in STEPS.items()}
# The files in which features declare their settings (ewe.config.setting), in the order of the documentation.
# Each has a tuple SETTINGS, and imports only kinds of values. All of them are imported with Config. Every
# process that ewe forks has them in memory, and so has a command that serves nothing.
SETTINGS = (
    "ewe.features.users_settings",
    "ewe.features.markdown_settings",
    "ewe.features.cgi_settings",
    "ewe.features.libcgi_settings",
    "ewe.features.fastcgi_settings",
    "ewe.features.xswitch_settings",
    "ewe.features.mounted_settings",
    "ewe.features.applications_settings",
    "ewe.features.content_cache_settings",
    "ewe.features.database_settings",
    "ewe.features.proxy_settings",
    "ewe.features.compression_settings",
)


class CommandOption(NamedTuple):
    """An option of the command `ewe` that does something else than to serve: module:function, and its help."""

    option: str
    help: str
    run: str


COMMANDS = (
    CommandOption(
        "build-libcgi",
        "build what LibCGI libraries need (with a C compiler), and end",
        "ewe.xswitch.tools.libcgi:build_all",
    ),
)
# The feature whose setting names other features, of packages or of the user
MOUNTED = "ewe.features.mounted"
# A mount of the sample site: ewe's own documentation
MANUAL = "/docs=ewe.features.markdown.manual:Manual"
# The feature whose process runs beside the workers of a model that needs it (Processor.needs_xswitch)
XSWITCH = "ewe.features.xswitch"
# Around the whole server: the setting that switches it on; the outermost is the last
SERVER = {
    "status": "ewe.features.status",
    "trusted_proxies": "ewe.features.trusted_proxies",
    "trace": "ewe.features.trace",
}
OFF = (False, None, 0, (), "", "off")


def feature(module: str) -> Any:
    """Return the declaration in a module of the table: a Feature."""
    return import_module(module).FEATURE


def declared_settings() -> Iterator[Any]:
    """Yield the settings that features declare."""
    for module in SETTINGS:
        yield from import_module(module).SETTINGS


def is_on(config: object, setting: str) -> bool:
    """Return whether a setting asks for its feature."""
    return setting == "always" or getattr(config, setting) not in OFF


def features(config: Any, part: str = "") -> Iterator[Any]:
    """Yield the declarations of the features that a configuration asks for, in the order of the table.

    Those that the setting `mount` names follow the feature of this setting. part: only those whose declaration has
    this part (ewe.features.declaration.Feature); "": all. Raises ConfigError if a mounted one cannot be loaded.
    """
    for module, settings in FEATURES:
        found = [feature(module)] if any(is_on(config, each) for each in settings) else []
        if module == MOUNTED:
            found += mounted(config)
        yield from (each for each in found if not part or getattr(each, part) is not None)


def mounted(config: Any) -> list[Any]:
    """Return the declarations that `mount` names, on the server and on its sites. Raises ConfigError."""
    is_asked = any(is_on(each, "mount") for each in config.each_site())
    return list(feature(MOUNTED).declares(config)) if is_asked else []


def unmet_needs(config: Any, part: str = "needs") -> Iterator[str]:
    """Yield why a server with this configuration cannot start, a line for each fault of a feature of a site.

    part: only of the features whose declaration has this part.
    """
    found: dict[str, None] = {}
    for site_config in config.each_site():
        for each in features(site_config, part):
            if each.needs is not None:
                found |= dict.fromkeys(each.needs(site_config))
    yield from found


def fixed_settings(config: Any, fresh: Any = None) -> Iterator[str]:
    """Yield the names of the settings that only a restart can change (Feature.fixed).

    fresh: the new configuration; None: `config`. Raises ConfigError if a mounted feature names an unknown setting.
    """
    for each in features(config, "fixed"):
        yield from each.fixed(config if fresh is None else fresh)


def directories(config: Any) -> Iterator[Any]:
    """Yield each NeededDirectory of the features that a configuration asks for (Feature.directories)."""
    for each in features(config, "directories"):
        yield from each.directories(config)


def programs(config: Any) -> Iterator[Any]:
    """Yield the maker of each program that the server starts before the first request (Feature.programs)."""
    for each in features(config, "programs"):
        yield from each.programs(config)


def start_warnings(config: Any, public_url: str = "") -> Iterator[str]:
    """Yield the warnings at a start, of the features that the settings of a site or the keys of a table ask for.

    public_url: a URL of the server that other machines can reach; "" if there is none.
    """
    tables = [*config.sites, *(location for site in config.sites for location in site.locations)]
    keys = {key for table in tables for key in (*table.values, *table.steps)}
    asked = sorted({module for key, module in MODULE_OF_KEY.items() if key in keys})
    declared = [feature(module) for module in asked]
    for site_config in config.each_site():
        declared += features(site_config, "start_warnings")
    for each in {each.name: each for each in declared}.values():
        warnings_of = each.start_warnings
        yield from warnings_of(config, public_url) if warnings_of is not None else ()


def module_names() -> list[str]:
    """Return the names of all modules in the table, each once."""
    found = [module for module, _ in FEATURES]
    found += [step.module for step in (*GUARDS, *FILTERS)]
    found += [kind.module for kind in GATEWAYS.values()]
    return list(dict.fromkeys([*found, *MODULE_OF_KEY.values(), *SERVER.values()]))
