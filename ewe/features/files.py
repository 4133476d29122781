"""Files below a directory: the settings decide which class serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.features.static import Static

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.protected_sources import ProtectedSources

# Modules that a worker may import later, for a change of settings or for a request (ewe.server.run)
LATE_OF_FILES = ("ewe.features.languages", "ewe.features.indexes")


def static_files(
    config: Config,
    root: str = "",
    prefix: str = "",
    protected: ProtectedSources | None = None,
    owner: int | None = None,
) -> Static:
    """Return the Static for a directory; Languages if the setting `languages` is used. Arguments: see Static."""
    if not config.languages:
        return Static(config, root, prefix, protected, owner)
    from ewe.features.languages import Languages

    return Languages(config, root, prefix, protected, owner)
