"""The paths below which an authorizer decides (setting fastcgi-authorizer), for features that act on other paths.

An authorizer is asked about the path of a request (authorizers.py). A feature that also reads or changes the files
of other paths, such as the members of a directory, has to leave out those that an authorizer guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.setting_types import parse_responder
from ewe.features.fastcgi_settings import FASTCGI_AUTHORIZER

if TYPE_CHECKING:
    from ewe.config.settings import Config


def addresses_by_path(config: Config) -> dict[str, list[str]]:
    """Return the addresses of the authorizers of each path, without a slash at its end.

    An authorizer may run at several addresses, which take the requests in turn.
    """
    found: dict[str, list[str]] = {}
    for path, address in map(parse_responder, config[FASTCGI_AUTHORIZER]):
        found.setdefault(path.rstrip("/") or "/", []).append(address)
    return found


def authorizer_paths(config: Config) -> tuple[str, ...]:
    """Return the paths below which an authorizer decides, each once and without a slash at its end."""
    return tuple(addresses_by_path(config))
