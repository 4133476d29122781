"""What a processor is given to run, by the settings of a site: without a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ewe.config.settings import Config
from ewe.conversation import BUSY
from ewe.conversations import Conversations
from ewe.processors.pool import Pool
from ewe.processors.serial import Serial
from ewe.processors.thread import Thread
from ewe.streams.flag import Flag
from ewe.streams.loops import LoopThread


class Networks:
    """The networks of trusted proxies, as ewe.gateway.proxies has them."""

    def __contains__(self, client: str) -> bool:
        return client == "10.0.0.1"


def conversations(config: Config | None = None, **facts: Any) -> Conversations:
    site: Any = SimpleNamespace(**{"tls": None, "proxies": None, "applications": [], **facts})
    return Conversations(site, config or Config())


@pytest.mark.parametrize(
    ("secured", "announced", "name", "refusal", "computes_first"),
    [
        (False, False, "converse", BUSY, False),
        (True, False, "converse_securely", b"", True),
        (False, True, "converse_behind_proxy", BUSY, False),
        (True, True, "converse_behind_proxy", b"", True),
    ],
)
def test_the_settings_say_what_stands_before_http(
    secured: bool, announced: bool, name: str, refusal: bytes, computes_first: bool
) -> None:
    config = Config(proxy_protocol=announced, trusted_proxies=["10.0.0.0/8"] if announced else [])
    found = conversations(config, tls=object() if secured else None)
    stream: Any = None
    coroutine = found.of(stream)
    assert coroutine.__name__ == name
    coroutine.close()
    assert (found.refusal, found.computes_first) == (refusal, computes_first)


def test_only_a_trusted_proxy_is_trusted() -> None:
    assert not conversations().is_trusted("10.0.0.1")
    found = conversations(proxies=SimpleNamespace(networks=Networks()))
    assert found.is_trusted("10.0.0.1") and not found.is_trusted("10.0.0.2")


def test_nothing_is_started_without_applications() -> None:
    def run(work: Any) -> Any:
        raise AssertionError("there is nothing to run")

    assert conversations().start(Flag(), run) == ""


def test_applications_start_on_the_loop_of_the_model() -> None:
    ran: list[str] = []

    def run(work: Any) -> str:
        ran.append(work.__name__)
        work.close()
        return "application 'shop:app' cannot start"

    found = conversations(applications=[object()])
    assert found.start(Flag(), run) == "application 'shop:app' cannot start"
    found.stop(Flag(), run)
    assert ran == ["start_all", "stop_all"]


def test_a_loop_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_this_process(choice: str) -> Any:
        raise ModuleNotFoundError(f"No module named {choice!r}")

    monkeypatch.setattr(LoopThread, "of_this_process", of_this_process)
    found = conversations(Config(loop="uvloop"), applications=[object()])
    reason = "the event loop of the ASGI applications cannot start: No module named 'uvloop' (loop)"
    assert found.start(Flag()) == reason


def test_a_processor_runs_the_conversations_that_it_is_given() -> None:
    given, other = conversations(), conversations()
    processor = Serial(given, given.config)
    assert processor.conversations is given
    processor.listener = SimpleNamespace(limit_sends=lambda seconds: None)  # type: ignore[assignment]
    processor.adopt(other, other.config)
    assert processor.conversations is other and processor.config is other.config


def test_a_processor_may_be_given_a_site() -> None:
    """The former form: a program of a user may make a processor, or call adopt(), with a site."""
    site: Any = SimpleNamespace(tls=object(), proxies=None, applications=[])
    processor = Serial(site, Config())
    assert processor.conversations.site is site and processor.conversations.computes_first
    processor.listener = SimpleNamespace(limit_sends=lambda seconds: None)  # type: ignore[assignment]
    other: Any = SimpleNamespace(tls=None, proxies=None, applications=[])
    processor.adopt(other, Config())
    assert processor.conversations.site is other and not processor.conversations.computes_first


@pytest.mark.parametrize("parking", ["never", "always"])
def test_a_refusal_names_the_limit_that_refuses(parking: str) -> None:
    """A worker empties the queue between the refusal and its line in the log."""
    given = conversations(Config(parking=parking, queue=1, overload="refuse"))
    pool: Any = Pool(given, given.config)
    accepted, lengths, limits = SimpleNamespace(client=("192.0.2.1", 5000)), [1], []
    pool.queue = SimpleNamespace(qsize=lambda: lengths.pop() if lengths else 0)
    pool.refuse = lambda each, limit: limits.append(limit)
    listener = SimpleNamespace(closed=False, accepts_at_once=1, accept=lambda room, seconds: accepted)
    if parking == "never":
        assert pool.next_connection(listener) is None
    else:

        def wait(seconds: float, most: int) -> Any:
            listener.closed = True
            lengths[:] = [1]
            return [accepted], []

        listener.wait = wait
        pool.parking = SimpleNamespace(open=lambda listener: None, expire=lambda now: None)
        pool.threads = SimpleNamespace(look_from=0.0)
        pool.serve_parked(listener)
    assert limits == ["queue"]


def test_a_model_may_override_has_room() -> None:
    """The former name of the method that limits a model: its answer counts, and so does that of its base."""

    class Narrow(Thread):
        full = False

        def has_room(self) -> bool:
            return super().has_room() and not self.full  # type: ignore[misc, no-any-return]

    given = conversations(Config(connections=1))
    narrow = Narrow(given, given.config)
    assert narrow.limit_reached() == ""
    narrow.full = True
    assert narrow.limit_reached() == "connections"
    narrow.full = False
    stream: Any = object()
    narrow.live.add(stream)
    assert narrow.limit_reached() == "connections"
