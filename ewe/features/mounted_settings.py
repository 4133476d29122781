"""The setting of mounted features (mounted.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import MOUNTS

# fmt: off
MOUNT = Setting((), MOUNTS, "a feature of another package or of your own, and the path below which it is asked"
                " first: /hello=module:Class, or /hello=NAME as a package registers it; may be repeated",
                group="programs", key="mount", after="xswitch-status")
# fmt: on
SETTINGS = (MOUNT,)
