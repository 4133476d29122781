"""The setting of the content cache around programs (content_cache.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import size

# fmt: off
CONTENT_CACHE = Setting(0, size(0), "memory for responses of programs, of each process, as far as their"
                        " Cache-Control allows it; 0: off", group="programs", scope="location",
                        key="content-cache", after="development")
# fmt: on
SETTINGS = (CONTENT_CACHE,)
