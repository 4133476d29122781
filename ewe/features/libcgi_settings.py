"""The settings of LibCGI: where its libraries are, how they are called, and their limits."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, PATH, SIZE, WAIT, G, choice

# fmt: off
LIBCGI_PATH = Setting("libcgi-bin", PATH, "the directory whose libraries (.so) the URLs below /libcgi-bin/"
                      " name; ewe calls them in its own process, once `ewe --build-libcgi` was run",
                      group="programs", key="libcgi-path", after="program-timeout")
LIBCGI_ISOLATION = Setting("in-place", choice("in-place", "process"), "where LibCGI libraries are called: in"
                           " ewe's own process (in-place), or in an engine of X-Switch (process), which needs"
                           " --xswitch or the xswitch model", group="programs", scope="server",
                           key="libcgi-isolation", after="libcgi-path")
LIBCGI_STATUS = Setting(False, BOOL, "show the libraries that are loaded, with their calls and faults, at"
                        " /libcgi-status to loopback addresses; behind a proxy on this machine, that is"
                        " everybody", group="programs", key="libcgi-status", after="libcgi-isolation")
LIBCGI_MAX_OUTPUT = Setting(1 * G, SIZE, "how many bytes one call of a LibCGI library may write before ewe ends"
                            " it (500); long output is kept in a temporary file",
                            group="programs", scope="server", key="libcgi-max-output", after="libcgi-status")
LIBCGI_TIMEOUT = Setting(10.0, WAIT, "how long a call of a LibCGI library may take before ewe ends it (500)",
                         group="programs", scope="server", key="libcgi-timeout", after="libcgi-max-output")
# fmt: on
SETTINGS = (LIBCGI_PATH, LIBCGI_ISOLATION, LIBCGI_STATUS, LIBCGI_MAX_OUTPUT, LIBCGI_TIMEOUT)
