"""The feature interface, and how a feature is found.

A feature answers requests: with a file, with what a program prints, with a page that it makes itself. It is one
class with one method, respond(). A site asks the features that are mounted at a request's path, one after the
other, until one answers (ewe.site):

    /cgi-bin/hello.py ──▶ CGI ──None──▶ FastCGI ──None──▶ ... ──None──▶ Static ──None──▶ 404
                           └─Response──▶ the client

A feature never knows which concurrency model runs it. It may await the client's stream (`io`) and the request's
body; it never blocks on a socket or a pipe by itself. One object serves all requests of a process, in the thread
model many at once; a forked process has a copy.

FEATURES lists ewe's own. A feature of yours needs no entry there: the setting `mount` switches it on, and
docs/write-a-feature.md leads through one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ewe.registry import entry_points, in_words, load

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.http.messages import Request, Response
    from ewe.streams.base import Stream

# name: where it is defined; imported only by a site that needs it. In the order in which a site asks them.
FEATURES = {
    "browser": "ewe.features.browser.feature:Browser",
    "wsgi": "ewe.features.wsgi:WSGI",
    "asgi": "ewe.features.asgi:ASGI",
    "xswitch": "ewe.features.xswitch:XSwitch",
    "cgi": "ewe.features.cgi:CGI",
    "libcgi": "ewe.features.libcgi:LibCGI",
    "users": "ewe.features.users:Users",
    "proxy": "ewe.features.proxy:Proxy",
    "fastcgi": "ewe.features.fastcgi:FastCGI",
    "pages": "ewe.features.pages:SitePages",
    "sql_pages": "ewe.features.sql_pages:SQLPages",
    "markdown_pages": "ewe.features.markdown_pages:MarkdownPages",
    "static": "ewe.features.static:Static",
}
GROUP = "ewe.features"  # the entry-point group in which other packages name theirs


class Feature(Protocol):
    """What answers requests."""

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return a response, or None to pass the request on. Raises HTTPError."""
        ...


class Mounted:
    """A feature below one path. Mounted at /hello it answers for /hello and /hello/there, not for /hellos."""

    def __init__(self, feature: Feature, path: str) -> None:
        self.feature = feature
        self.path = path.rstrip("/")

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Ask the feature, if the path is below its own."""
        if request.path != self.path and not request.path.startswith(self.path + "/"):
            return None
        return await self.feature.respond(request, io)


class UnknownFeature(ValueError):
    """There is no such feature; the text is one line."""


def make(name: str, config: Config, path: str) -> Feature:
    """Return a feature that the setting `mount` names: module:Class, or the name that a package registered.

    path: where it is mounted. Raises UnknownFeature, and ValueError for settings that the feature cannot use.
    """
    try:
        found = load(name) if ":" in name else entry_points(GROUP)[name].load()
    except KeyError:
        known = ", ".join(entry_points(GROUP)) or "no package registers any"
        raise UnknownFeature(f"feature {name!r} is unknown; there are: {known} (mount)") from None
    except Exception as reason:  # of a module that may be anybody's
        raise UnknownFeature(f"feature {name!r} cannot be loaded: {in_words(reason)} (mount)") from None
    if not (isinstance(found, type) and callable(getattr(found, "respond", None))):
        raise UnknownFeature(f"feature {name!r} is not a class with a method respond() (mount)")
    try:
        made: Feature = found(config, path)
    except ValueError:  # what the feature itself says of the settings
        raise
    except Exception as reason:
        raise UnknownFeature(
            f"feature {name!r} cannot be made from (config, path): {in_words(reason)} (mount)"
        ) from None
    return made
