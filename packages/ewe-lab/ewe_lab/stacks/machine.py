"""Facts on which the figures depend: the machine and the versions. No names of hosts or persons."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from ewe import __version__
from ewe_lab.bench.processes import two_cores
from ewe_lab.stacks import other_servers

TOOLS = {"wrk": "wrk", "ab": "ab", "httperf": "httperf"}


def machine_facts(noted_servers: Iterable[str] = ()) -> dict[str, str]:
    """Return facts by name. noted_servers: the other servers that are measured."""
    facts = {
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "cores": cores(),
        "memory": memory(),
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f} processes wanted to run in the minute before",
        "python": platform.python_version(),
        "ewe": __version__,
    }
    for name in ("uvloop", "locust"):
        facts[name] = other_servers.version_of_module(name) or "not installed"
    for name in TOOLS:
        facts[name] = other_servers.version_of(name) or "not installed"
    for name in noted_servers:
        if name in other_servers.OTHER_SERVERS and not other_servers.OTHER_SERVERS[name].why_missing:
            facts[name] = other_servers.OTHER_SERVERS[name].version() or "version unknown"
    return facts


def processor() -> str:
    """Return the processor's name."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(errors="replace"))
    return found[1] if found else platform.machine()


def cores() -> str:
    """Return in words which core runs the server and which core runs the load."""
    server, load = two_cores()
    if server == load:
        return "server and load on the same core, the only one"
    return f"server on core {server}, load on core {load}"


def memory() -> str:
    """Return the size of the memory."""
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    return f"{int(found[1]) / 2**20:.1f} GB" if found else "unknown"
