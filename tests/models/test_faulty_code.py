"""Faults in the code of a user: in the module of a model, and in a conversation."""

from __future__ import annotations

import socket
from asyncio import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ewe import logger
from ewe.config.settings import Config
from ewe.processors.accounting import Accounts
from ewe.processors.base import UnknownModel, model_named
from ewe.processors.event import Event
from ewe.processors.pool import Pool
from ewe.processors.pool_parking import PoolTask
from ewe.processors.serial import Serial
from ewe.streams.event import DEADLINE_CHECK_S


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{}['home']\n", "KeyError: 'home', in .* line 1"),
        ("raise SystemExit(3)\n", "(ImportError: )?SystemExit: 3, in .* line 1"),
    ],
)
def test_a_model_whose_import_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "faulty_model.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownModel, match=f"'faulty_model:Mine' cannot be loaded: {reason}"):
        model_named("faulty_model:Mine")


def test_a_model_that_does_not_exist() -> None:
    with pytest.raises(UnknownModel, match="'thred' is unknown; there are serial, fork"):
        model_named("thred")


class OwnException(BaseException):
    """An exception that no `except Exception` catches."""


@pytest.mark.parametrize(
    "kind", [ValueError, SystemExit, KeyboardInterrupt, CancelledError, GeneratorExit, OwnException]
)
def test_a_conversation_that_fails_ends_no_worker(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation turns the faults of features into responses. This is for a fault of its own."""

    async def fails() -> None:
        raise kind

    released: list[object] = []
    lines: list[str] = []
    monkeypatch.setattr(Accounts, "release", lambda processor, stream: released.append(stream))
    monkeypatch.setattr(logger.errors, "exception", lines.append)
    site: Any = SimpleNamespace(tls=None)
    pool, serial = Pool(site, Config()), Serial(site, Config())
    monkeypatch.setattr(serial, "converse", lambda stream: fails())
    with socket.socket() as sock:
        stream: Any = SimpleNamespace(socket=sock, client=("192.0.2.1", 1))
        pool.advance(PoolTask(stream, fails()))
        serial.run(stream)
    assert released == [stream, stream]
    assert lines == ["a conversation with 192.0.2.1 failed"] * 2


class FaultyStream:
    """A stream whose deadline cannot be checked."""

    def check_deadline(self, now: float) -> None:
        raise ValueError("no descriptor")


def test_a_stream_that_fails_does_not_end_the_checks_of_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    conversations: Any = SimpleNamespace(of=None)
    event = Event(conversations, Config(loop="asyncio"))
    planned: list[object] = []
    monkeypatch.setattr(event.loop, "call_later", lambda *call: planned.append(call))
    stream: Any = FaultyStream()
    event.streams.add(stream)
    with pytest.raises(ValueError, match="no descriptor"):
        event.tick()
    assert planned == [(DEADLINE_CHECK_S, event.tick)]
    event.loop.close()
