"""The policies of the pool's queue: which settings ask for one, and which settings exclude them.

Read next: ../processors/request_queue.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.linux import needs_linux

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.processors.base import Processor

DROPS = ("drop-oldest", "drop-largest")


def is_scheduled(config: Config) -> bool:
    """Return whether the settings ask for another queue than the pool's usual one."""
    return config.schedule != "fifo" or config.overload in DROPS


def with_policies(model: type[Processor], config: Config) -> type[Processor]:
    """Return the model that serves: the scheduled pool instead of the pool, if the settings ask for a policy.

    Raises ValueError, with one line, if another model or setting excludes the policy.
    """
    if not is_scheduled(config):
        return model
    from ewe.processors.pool import Pool
    from ewe.processors.scheduled_pool import ScheduledPool

    policy = f"overload = {config.overload}" if config.overload in DROPS else f"schedule = {config.schedule}"
    if model is not Pool:
        raise ValueError(f"{policy} is a policy of the pool's queue, and {model.name} has none: choose -p")
    if reason := why_excluded(policy, config):
        raise ValueError(reason)
    return ScheduledPool


def why_excluded(policy: str, config: Config) -> str:
    """Return one line about a setting, or a system, that excludes a policy of the pool; "" if none does."""
    if config.parking == "never":
        return (
            f"{policy} has to see a request before a thread takes it, and parking = never gives the thread the"
            f" connection first: choose parking = idle, or always"
        )
    if config.schedule == "srpt" and config.parking != "always":
        return (
            "schedule = srpt interrupts responses, and parking = idle sends them whole: choose parking = always,"
            " or schedule = sff"
        )
    if any(each.tls == "self" or each.tls_cert for each in config.each_site()):
        return f"{policy} has to read requests before a thread does, and TLS hides them: leave tls and tls-cert out"
    if config.proxy_protocol:
        return f"{policy} has to read requests at the begin of a connection: leave proxy-protocol out"
    if config.schedule != "fifo" and config.sites:
        return f"schedule = {config.schedule} knows the files of one document root: leave the [[site]] tables out"
    return needs_linux(policy, f"ewe -p --{policy.replace(' = ', ' ')}")
