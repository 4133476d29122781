"""The requirements of this house: the server (and the houses that it stands on) in the house's version.

ewe/__init__.py has the version of the server and of all houses, so pyproject.toml does not repeat it. This file is
the same in each house.
"""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Requirements(MetadataHookInterface):
    """Completes `dependencies` from the table of pyproject.toml that names this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        same = [f"{name}=={metadata['version']}" for name in self.config["same-version"]]
        metadata["dependencies"] = same + self.config["others"]
