"""Prefork: processes started in advance, each serving one connection at a time.

The workers accept for themselves from the listener they share; the supervisor (ewe.server) replaces those
that die or retire. Nothing is shared but the listener, so nothing needs a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.processors.serial import Serial

if TYPE_CHECKING:
    from ewe.config import Config


class Prefork(Serial):
    """The serial model, in many processes."""

    name = "prefork"
    many_processes = True
    supervised = True
    workers = 8

    @classmethod
    def words(cls, config: Config) -> str:
        return f"{config.workers or cls.workers} processes started in advance"
