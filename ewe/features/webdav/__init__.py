"""WebDAV, class 1 (RFC 4918): files that clients write, for one location of a site (setting `webdav`).

feature.py      which method does what; the conditions under which it does it
upload.py       PUT: a body becomes a file, all of it or nothing
changes.py      DELETE, MKCOL, COPY, MOVE
tree.py         from a path to a name in an open directory; nothing leads out, nothing follows a link
properties.py   PROPFIND and PROPPATCH: the XML that comes, and the XML that goes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError, quoted
from ewe.features.base import Handler
from ewe.features.declaration import Feature

if TYPE_CHECKING:
    from ewe.features.plan import LocationPlan


def answer(location: LocationPlan) -> Handler:
    """Return the handler of the files of a location. Raises ConfigError for an `alias` that is no directory."""
    from ewe.features.webdav.feature import WebDAV

    values = location.table.values
    if location.has_template:
        raise ConfigError(f"{location.at('alias')} {quoted(values['alias'])}: webdav needs a directory")
    neighbours = [(location.config, ()), *location.neighbours()]
    return WebDAV(
        location.config,
        location.static.root,
        location.static.prefix,
        location.static.claims,
        location.covers,
        location.prefix,
        values["webdav"],
        {language.lower() for config, _ in neighbours for language in config.languages},
        {name for config, index in neighbours for name in (*config.defaultindex, *index)},
        location.is_guarded,
    )


FEATURE = Feature("webdav", answer=answer, late=("ewe.features.webdav.feature",))
