"""The setting of the feature CGI: the directory of its programs."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import PATH

# fmt: off
CGI_PATH = Setting("cgi-bin", PATH, "the directory whose programs the URLs below /cgi-bin/ name",
                   group="programs", key="cgi-path", after="cache")
# fmt: on
SETTINGS = (CGI_PATH,)
