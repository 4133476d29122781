"""EWE_TRACE: one line for each event of a model, appended to the file that the variable names.

    SECONDS EVENT CLIENT WORKER TARGET
    8123.551207 arrival 40112 - -            a connection was accepted
    8123.551311 dispatch 40112 7120 -        its conversation begins, in the thread 7120 of the kernel
    8123.602544 completion 40112 7120 -      the conversation has ended

packages/ewe-classroom/docs/grading.md describes the lines. They show a class who runs which conversation, and when.
A model knows connections and no requests, so TARGET is "-".

Without the variable this module is not imported, and no call of a processor is different. With it, trace() puts
methods in front of those of one processor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ewe import logger

if TYPE_CHECKING:
    from ewe.processors.base import Processor
    from ewe.streams.base import Stream

VARIABLE = "EWE_TRACE"


def trace(processor: Processor) -> None:
    """Let a processor write its events, unless it does so itself.

    A file that cannot be written is logged once, and there is no trace.
    """
    if processor.traces_itself:
        return
    name = os.environ[VARIABLE]
    try:
        # One write() with O_APPEND for each line: those of several processes are not mixed.
        file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as reason:
        logger.errors.warning(f"{VARIABLE}: {name}: {reason.strerror}; no events are written")
        return
    register, converse = processor.register, processor.converse

    def note(event: str, stream: Stream, worker: int | str) -> None:
        os.write(file, f"{time.monotonic():.6f} {event} {stream.client[1]} {worker} -\n".encode())

    def register_traced(stream: Any) -> Any:
        note("arrival", stream, "-")
        return register(stream)

    def converse_traced(stream: Stream) -> Coroutine[Any, Any, None]:
        async def conversation() -> None:
            note("dispatch", stream, threading.get_native_id())
            try:
                await converse(stream)
            finally:
                note("completion", stream, threading.get_native_id())

        return conversation()

    processor.register = register_traced  # type: ignore[method-assign]
    processor.converse = converse_traced  # type: ignore[method-assign]
