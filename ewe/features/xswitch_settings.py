"""The settings of X-Switch: its address, its settings file, its status page."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, PATH, TEXT, unset

# fmt: off
XSWITCH = Setting(None, unset(TEXT), "the address of an X-Switch that runs programs in engines: unix:PATH or"
                  " HOST:PORT; empty: the xswitch model starts one, other models have none",
                  group="programs", scope="server", key="xswitch", after="fastcgi-queue-timeout")
XSWITCH_CONFIG = Setting(None, unset(PATH), "X-Switch's settings file (TOML); ewe reads in it which directories"
                         " hold scripts", group="programs", scope="server", key="xswitch-config", after="xswitch")
XSWITCH_STATUS = Setting(False, BOOL, "show X-Switch's engines, with all users' scripts, at /xswitch-status to"
                         " loopback addresses; behind a proxy on this machine, that is everybody",
                         group="programs", key="xswitch-status", after="xswitch-config")
# fmt: on
SETTINGS = (XSWITCH, XSWITCH_CONFIG, XSWITCH_STATUS)
