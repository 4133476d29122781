"""Slow links on one machine: a private network whose loopback has a token bucket.

    with link("100mbit") as prefix:
        subprocess.run([*prefix, "ewe", ...]); subprocess.run([*prefix, "wrk", ...])

A command behind the prefix has its own loopback, with that speed for both directions together and the packet size
of Ethernet. Requests are small beside answers, so the answers use nearly the whole link. Root makes a network
namespace. Another account has to make a user namespace first, which some systems and containers forbid. The kernel
removes the namespaces with the last process in them.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ewe_lab.bench.processes import LabError, find_tool, last_line, output_text, path_of_tool, running

# A burst large enough for 1 Gbit/s, a queue of 50 ms, packets as on Ethernet.
LINK_SCRIPT = (
    "{ip} link set lo mtu 1500 up && {tc} qdisc add dev lo root tbf rate {speed} burst 128kb latency 50ms"
    " && echo ready && exec sleep 86400"
)
SPEEDS = ("10mbit", "100mbit", "1gbit")
COMMAND_TIMEOUT_S = 5.0  # seconds


@contextmanager
def link(speed: str) -> Iterator[list[str]]:
    """Make a link; yield the words before a command that has to run behind it.

    speed: one of SPEEDS. Raises LabError if the link cannot be made here.
    """
    if speed not in SPEEDS:
        raise LabError(f"there is no link of {speed!r}; there are {', '.join(SPEEDS)}")
    lacking = [name for name in ("ip", "tc") if not find_tool(name)]
    if lacking:
        raise LabError(f"no link of {speed}: {' and '.join(lacking)} missing: apt install iproute2")
    script = LINK_SCRIPT.format(ip=path_of_tool("ip"), tc=path_of_tool("tc"), speed=speed)
    superuser = os.geteuid() == 0
    user_namespace = [] if superuser else ["--user", "--map-current-user", "--keep-caps"]
    command = [path_of_tool("unshare"), *user_namespace, "--net", "sh", "-c", script]
    with tempfile.TemporaryFile() as output, running(command, output, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        with holder.stdout as script_output:
            readable, _, _ = select.select([script_output], [], [], COMMAND_TIMEOUT_S)
            # LINK_SCRIPT writes `ready` when the link is made
            if not readable or script_output.readline() != b"ready\n":
                raise LabError(f"no link of {speed} can be made here: {last_line(output_text(output))}")
            enter = [] if superuser else ["--user", "--preserve-credentials"]
            yield [path_of_tool("nsenter"), "--target", str(holder.pid), *enter, "--net", "--"]
