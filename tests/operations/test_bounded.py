"""The caches that clients fill: bounded in number, and in the time for which an answer holds."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import pytest
from support.wire import request_of

from ewe import bounded, logger
from ewe.bounded import BoundedDict, TimedCache
from ewe.config.settings import Config
from ewe.conversation import converse
from ewe.http.messages import MAX_REQUESTS, Request, RequestCache
from ewe.sites import make_site
from ewe.streams.blocking import BlockingStream, run, set_timeouts


def test_the_entry_that_is_one_too_many_drops_all_others() -> None:
    cache: BoundedDict[int, str] = BoundedDict(3)
    for number in range(3):
        cache[number] = "sheep"
    assert list(cache) == [0, 1, 2]
    cache[3] = "ram"
    assert cache == {3: "ram"}


def test_a_lookup_is_that_of_dict() -> None:
    """A lookup is on the way of each request, so it is no function of Python."""
    for name in ("__getitem__", "get", "__contains__", "__len__"):
        assert getattr(BoundedDict, name) is getattr(dict, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that time.monotonic() returns, as a list of one number."""
    seconds = [100.0]
    monkeypatch.setattr(bounded, "monotonic", lambda: seconds[0])
    return seconds


def test_an_answer_holds_for_a_time(clock: list[float]) -> None:
    asked: list[str] = []

    def find_uncached(name: str) -> None:
        asked.append(name)

    cache: TimedCache[str, None] = TimedCache(10, 1.0)
    for _ in range(3):  # None is an answer, too
        cache.find("flock", find_uncached)
    assert asked == ["flock"]
    clock[0] += 0.9
    cache.find("flock", find_uncached)
    assert asked == ["flock"]
    clock[0] += 0.2
    cache.find("flock", find_uncached)
    assert asked == ["flock", "flock"]


def test_a_name_that_does_not_exist_is_looked_up_each_time(clock: list[float]) -> None:
    asked: list[str] = []
    flock = {"ewe": 1}

    def find_uncached(name: str) -> int | None:
        asked.append(name)
        return flock.get(name)

    cache: TimedCache[str, int] = TimedCache(10, 1.0)
    found = [cache.find_existing(name, find_uncached) for name in ("ewe", "ram", "ewe", "ram")]
    assert found == [1, None, 1, None]
    assert asked == ["ewe", "ram", "ram"]
    flock["ram"] = 2
    clock[0] += 1.1
    assert [cache.find_existing(name, find_uncached) for name in ("ram", "ewe")] == [2, 1]
    assert asked == ["ewe", "ram", "ram", "ram", "ewe"]


def test_an_answer_is_as_old_as_its_question(clock: list[float]) -> None:
    """The result of a slow look-up may have changed during the look-up."""

    def find_slowly(name: str) -> str:
        clock[0] += 0.8
        return name

    cache: TimedCache[str, str] = TimedCache(10, 1.0)
    cache.find("flock", find_slowly)
    clock[0] += 0.15
    assert cache.get("flock", "") == "flock"
    clock[0] += 0.15
    assert cache.get("flock", "") == ""


def test_an_error_is_not_kept() -> None:
    def fail(name: str) -> str:
        raise KeyError(name)

    cache: TimedCache[str, str] = TimedCache(10, 1.0)
    for _ in range(2):
        with pytest.raises(KeyError):
            cache.find("flock", fail)
    assert len(cache) == 0


def test_an_answer_may_be_forgotten(clock: list[float]) -> None:
    cache: TimedCache[str, int] = TimedCache(2, 1.0)
    cache["ram"] = 1
    cache["ewe"] = 2
    cache.forget("ram")
    cache.forget("wolf")
    assert (cache.get("ram", 0), cache.get("ewe", 0)) == (0, 2)
    cache["lamb"], cache["wether"] = 3, 4
    assert (cache.get("ewe", 0), cache.get("wether", 0), len(cache)) == (0, 4, 1)
    cache.clear()
    assert len(cache) == 0


SITES = """
access-log = "off"
[[site]]
[[site.location]]
prefix = "/scgi"
gateway = "scgi:127.0.0.1:1"
[[site.location]]
prefix = "/http"
gateway = "http://127.0.0.1:1"
[[site.location]]
prefix = "/other"
rewrite = "/none"
"""


def test_no_long_head_outlives_its_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand heads of 32 KB, remembered by the log and by each gateway, would fill the memory of a worker."""
    monkeypatch.setattr(logger, "access", logger.AccessLog(os.devnull))
    monkeypatch.setattr(logger, "errors", logger.ErrorLog(os.devnull))
    settings = tmp_path / "ewe.toml"
    settings.write_text(f"documentroot = {str(tmp_path)!r}{SITES}")
    config = Config.load(environ={}, file=str(settings))
    site = make_site(config)
    for path in ("/none", "/scgi/a", "/http/a", "/other"):
        client, server = socket.socketpair()
        with client, server:
            set_timeouts(server, 1.0, 1.0)
            for mark, length in (("long", 10_000), ("short", 10)):
                client.sendall(request_of(f"GET {path}", f"X-{mark}: {'x' * length}"))
            client.shutdown(socket.SHUT_WR)
            run(converse(BlockingStream(server, ("192.0.2.1", 1), ("127.0.0.1", 80), config), site))
    gc.collect()
    left = [each.values for each in gc.get_objects() if isinstance(each, Request)]
    assert sum("x-short" in each for each in left) >= 4
    assert not any("x-long" in each for each in left)


def test_what_is_made_of_requests_is_bounded() -> None:
    made: RequestCache[int] = RequestCache()
    for number in range(MAX_REQUESTS + 1):
        made[Request("GET", f"/{number}", (1, 1))] = number
    assert list(made.values()) == [MAX_REQUESTS]
