"""The command of the X-Switch process that the server runs beside the workers of the model xswitch.

From the settings, this file derives whether there is such a process, its command, and the settings that the workers
need besides. ewe.server.xswitch_process opens the socket of the process, and the supervisor starts it.
"""

from __future__ import annotations

import os
import sys

from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.features.cgi_settings import CGI_PATH
from ewe.features.libcgi_settings import LIBCGI_ISOLATION, LIBCGI_PATH
from ewe.features.users_settings import MIN_UID, USERDIR
from ewe.features.xswitch_settings import XSWITCH, XSWITCH_CONFIG, XSWITCH_STATUS

COMMAND = sys.executable, "-m", "ewe.xswitch"


def is_needed(config: Config) -> bool:
    """Return whether the server has to start the process: the settings name no X-Switch that runs already."""
    return config[XSWITCH] is None


def check(config: Config) -> None:
    """Run X-Switch to check its settings file. Raises ConfigError."""
    if (file := config[XSWITCH_CONFIG]) is not None:
        import subprocess

        command = [*COMMAND, "--check-config", "--config", os.path.abspath(file)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(done.stderr.strip().rpartition("\n")[2].removeprefix("ewe-xswitch: "))


def completed(config: Config, address: str, user: str | None) -> Config:
    """Return a configuration completed by X-Switch's address, the workers' user, and users' directories.

    user: None if the workers keep their account.
    """
    found = {"xswitch": address}
    if user is not None:
        found["user"] = user
    if config[USERDIR] is None:
        found["userdir"] = "public_html"
    return config.replace("the xswitch model", **found)


def command(config: Config, listener: int, user: str | None, trace: int | None) -> list[str]:
    """Return the command that starts X-Switch, for a configuration that is completed().

    listener: the inheritable descriptor of its socket. user: the workers' account; None if they keep theirs. trace:
    an inheritable descriptor of the trace; None: no trace is written.
    """
    userdir = config[USERDIR]
    assert userdir is not None
    # X-Switch uses these for the keys that its own file (--config) omits
    defaults = {
        "userdir": userdir,
        "min-uid": config[MIN_UID],
        "time-limit": Config.program_timeout.show(config.program_timeout),
        "status": str(config[XSWITCH_STATUS]).lower(),
    }
    if user is not None:
        # Workers may stay root (user), but X-Switch need not.
        defaults["user"] = "nobody" if user == "root" else user
        if any("engines" in location.values for site in config.sites for location in site.locations):
            # The workers serve the page of engines. X-Switch lets `managers` act on the engines of all users.
            defaults["managers"] = user
    found = [
        *COMMAND, "--listen", f"fd://{listener}", "--parent", str(os.getpid()),
        "--log", config.logfile, "--log-level", config.loglevel,
    ]  # fmt: skip
    for root in roots_of(config):
        found += ["--root", root]
    for key, value in defaults.items():
        found += ["--default", f"{key}={value}"]
    if (file := config[XSWITCH_CONFIG]) is not None:
        found += ["--config", os.path.abspath(file)]
    if trace is not None:
        found += ["--trace", f"fd://{trace}"]
    return found


def roots_of(config: Config) -> list[str]:
    """Return the directories whose scripts X-Switch may run: those of all sites and of their locations."""
    found: list[str] = []
    for site_config in config.each_site():
        found += [site_config[CGI_PATH], site_config.documentroot]
        if site_config[LIBCGI_ISOLATION] == "process":
            found.append(site_config[LIBCGI_PATH])
    for values in (location.values for table in config.sites for location in table.locations):
        if "root" in values:
            found.append(values["root"])
        if "alias" in values:
            # A variable such as $1 ends the fixed part of the path; $$ is a dollar sign.
            path = values["alias"].replace("$$", "\0").partition("$")[0].replace("\0", "$")
            found.append(path if os.path.isdir(path) else os.path.dirname(path) or ".")
    # /dev/null means that there is no directory of programs: `ewe -x DIR`
    return [*dict.fromkeys(os.path.realpath(each) for each in found if each != os.devnull)]
