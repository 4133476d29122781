"""The setting of the feature Markdown (the package markdown)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL

# fmt: off
MARKDOWN = Setting(False, BOOL, "show Markdown files (.md) as pages and books; needs the package markdown",
                   group="files", key="markdown", after="languages")
# fmt: on
SETTINGS = (MARKDOWN,)
