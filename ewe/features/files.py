"""Files below a directory: which class serves them, as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.static import Static

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.claims import Claims


def static_files(
    config: Config, root: str = "", prefix: str = "", claims: Claims | None = None, owner: int | None = None
) -> Static:
    """Return what serves the files below a directory, in several languages if the settings name some."""
    if not config.languages:
        return Static(config, root, prefix, claims, owner)
    from ewe.features.languages import Languages

    return Languages(config, root, prefix, claims, owner)
