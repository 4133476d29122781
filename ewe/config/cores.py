"""Cores: how many processors this process may use, for ``workers = auto``.

A machine has processors, and two mechanisms give a process fewer of them:

    affinity   these processors, no others: sched_setaffinity(2), taskset(1), cpusets, docker --cpuset-cpus
    quota      so much time in each period: cpu.max (cgroups v2), cpu.cfs_quota_us (v1), docker --cpus 1.5

A quota of 1.5 processors lets two processes run for three quarters of the time. More processes than that would only
wait for each other, so the quota is rounded up: half a processor is one core.

Read next: count_range.py, which reads the setting.
"""

from __future__ import annotations

import math
import os

from ewe.config.cgroup_paths import cgroups_above

PROC = "/proc"


def usable_cores(proc: str = "") -> int:
    """Return how many processors this process may use at once, at least 1.

    proc: where the system describes this process; "": PROC.
    """
    cores = allowed_processors()
    for quota in quotas(proc or PROC):
        cores = min(cores, math.ceil(quota))
    return max(cores, 1)


def allowed_processors() -> int:
    """Return on how many processors the kernel may run this process."""
    if (counted := getattr(os, "process_cpu_count", None)) is not None:  # from Python 3.13 on
        number: int | None = counted()
        return number or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quotas(proc: str) -> list[float]:
    """Return the processors that each cgroup above this process allows it: 1.5 for three halves of one's time."""
    limits = []
    for directory in cgroups_above(proc):  # version 2
        words = words_of(f"{directory}/cpu.max")
        limits.append(quota_of(*words) if len(words) == 2 else math.inf)
    for directory in cgroups_above(proc, "cpu"):  # version 1
        words = words_of(f"{directory}/cpu.cfs_quota_us") + words_of(f"{directory}/cpu.cfs_period_us")
        limits.append(quota_of(*words) if len(words) == 2 else math.inf)
    return [limit for limit in limits if limit < math.inf]


def words_of(path: str) -> list[str]:
    """Return the words of a file, [] if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []


def quota_of(quota: str, period: str) -> float:
    """Return the processors of a quota in each period, both in microseconds; infinity without a quota (max, -1)."""
    try:
        time_us, period_us = int(quota), int(period)
    except ValueError:
        return math.inf
    return time_us / period_us if time_us > 0 and period_us > 0 else math.inf
