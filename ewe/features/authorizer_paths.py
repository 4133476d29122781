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


def authorizer_paths(config: Config) -> tuple[str, ...]:
    """Return the paths below which an authorizer decides, each once and without a slash at its end."""
    paths = (path for path, _ in map(parse_responder, config[FASTCGI_AUTHORIZER]))
    return tuple(dict.fromkeys(path.rstrip("/") or "/" for path in paths))
