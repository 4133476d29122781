"""WebDAV, class 1 (RFC 4918): files that clients write, for one location of a site (setting `webdav`).

feature.py      chooses the function for each method, and checks the request
upload.py       PUT: a body becomes a file, completely or not at all
changes.py      DELETE, MKCOL, COPY, MOVE
tree.py         finds the name for a path in an open directory; it leaves no directory and follows no link
properties.py   PROPFIND and PROPPATCH: parses and writes the XML
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.config.setting import Key
from ewe.config.setting_types import SIZE, Kind
from ewe.config.table_kinds import TableKind
from ewe.features.authorizer_paths import authorizer_paths
from ewe.features.base import Handler
from ewe.features.declaration import Feature
from ewe.gateway.protected_sources import is_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ewe.config.settings import Config
    from ewe.features.plan import LocationPlan


def answer(location: LocationPlan) -> Handler:
    """Return the handler for the files of a location. Raises ConfigError if `alias` is not a directory."""
    from ewe.features.webdav.feature import WebDAV

    values = location.table.values
    if location.has_template:
        raise ConfigError(f"{location.label_of('alias')} {quoted(values['alias'])}: webdav needs a directory")
    # An authorizer is asked about the path of a request, and not about Destination, or the members of a directory.
    # The paths of the authorizers below the location are therefore out of reach. Possible failure: an authorizer of
    # the whole location that decides by the path does not see these other paths (docs/sites.md).
    top = location.prefix
    paths = authorizer_paths(location.plan.config)
    guarded = [path for path in paths if is_in(path, top) and not is_in(top, path)]  # below the location

    def covers(path: str) -> bool:
        return location.covers(path) and not any(is_in(path, each) for each in guarded)

    # A file may be sent for a path of another location, in a language or as an index file that only that one names.
    locations = [(location.config, ()), *location.settings_of_locations()]
    static = location.static
    return WebDAV(
        location.config,
        static.root,
        static.prefix,
        static.protected,
        covers=covers,
        top=location.prefix,
        options=values["webdav"],
        languages={language.lower() for config, _ in locations for language in config.languages},
        index={name for config, index in locations for name in (*config.defaultindex, *index)},
        has_log_in=location.is_guarded,
    )


def start_warnings(config: Config, public_url: str) -> Iterator[str]:
    """Yield a line for each location where everybody may write."""
    for site in config.sites:
        for location in site.locations:
            options = location.values.get("webdav")
            if options and options["write"] and not {"auth", "allow"} & (location.steps | site.steps).keys():
                yield (
                    f"{location.label_of('webdav')} everybody may write and delete files below"
                    f" {location.match_value}: add auth,"
                    " or allow with the addresses of those who may"
                )


def _flag(raw: object) -> bool:
    """Return true or false. Raises ValueError for any other value."""
    if not isinstance(raw, bool):
        raise ValueError(raw)
    return raw


OPTIONS = {
    "write": Key(Kind("yes|no", "true or false", _flag), "clients may write; absent: true"),
    "max-size": Key(SIZE, "the largest file that a client may write"),
}
KIND = TableKind(
    'true, or { write = false, max-size = "100m" }',
    OPTIONS,
    defaults={"write": True},
    short=lambda raw: {} if raw is True else raw,
)
MEANING = (
    "clients may list, read and write the files below the location (WebDAV, class 1): the site's, or those of root"
    " or alias"
)
FEATURE = Feature(
    "webdav",
    keys={"webdav": Key(KIND, MEANING)},
    answer=answer,
    start_warnings=start_warnings,
    late=("ewe.features.webdav.feature",),
)
