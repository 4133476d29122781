"""The likely causes in verdicts: each check that can tell two causes apart names the right one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ewe_classroom.grader import conditional, progress, race_bursts, workers
from ewe_classroom.grader.conversations import half_close, keep_alive
from ewe_classroom.grader.responses import ResponseSplitter
from ewe_classroom.grader.sanitizers import SanitizedBuild
from ewe_classroom.grader.scene import (
    NO_LIMIT,
    FailedExpectation,
    Findings,
    NotJudged,
    Scene,
    SceneClient,
)
from ewe_classroom.grader.subject import Subject

LOCK = "a lock or a condition"


class ScriptedClient:
    """A client whose server has answered at once, or never answers and never closes."""

    reads = True

    def __init__(self, name: str, *, is_answered: bool) -> None:
        self.name = name
        self.is_answered = is_answered
        self.answers = [SimpleNamespace(keeps_open=False)] if is_answered else []

    def act(self, *_: object, **__: object) -> ScriptedClient:
        return self

    ask = send = send_half = send_rest = half_close = close = note = act

    def answered(self) -> bool:
        return self.is_answered

    answered_or_over = answered

    def over(self) -> bool:
        return False

    def outcome_text(self) -> str:
        return "got no response"


class ScriptedScene(Scene):
    """A scene without a server. answered, unread: names of clients. sleeps: the calls in which threads sleep."""

    def __init__(self, answered: str = "", unread: str = "", sleeps: dict[str, int] | None = None) -> None:
        site = SimpleNamespace(files={}, order=lambda name, clients: clients)
        super().__init__(cast(Subject, SimpleNamespace(port=80, site=site, workers=4)), {"limit": "workers"})
        self.answered_names, self.unread_names = answered.split("; "), unread.split("; ")
        self.sleeps = sleeps or {}

    def client(self, name: str = "", *, reads: bool = True) -> SceneClient:
        self.steps.append({"client": name})
        shown = name or f"client {len(self.steps)}"
        return cast(SceneClient, ScriptedClient(shown, is_answered=shown in self.answered_names))

    def until(self, condition: Callable[[], bool], what: str = "", **_: Any) -> bool:
        return condition()

    def is_unread(self, client: SceneClient) -> bool:
        return client.name in self.unread_names

    def threads_by_call(self) -> dict[str, int]:
        return self.sleeps

    def blocked_text(self) -> str:
        return ""

    def expect_file(self, *_: object, **__: object) -> Any:
        return None


def cause(check: Callable[[Scene], None], scene: Scene) -> str:
    """Return the likely cause with which a check fails."""
    with pytest.raises(FailedExpectation) as failed:
        check(scene)
    return failed.value.because


@pytest.mark.parametrize(
    ("sleeps", "says"),
    [
        ({"accept()": 1, LOCK: 4}, "nothing closes its connection: no thread is in recv()"),
        ({"accept()": 1, "recv()": 1}, "a loop calls recv() again"),
        ({"running": 1}, "a loop calls recv() again"),
    ],
)
def test_a_connection_that_stays_open_after_fin(sleeps: dict[str, int], says: str) -> None:
    assert says in cause(half_close, ScriptedScene("client 1", sleeps=sleeps))


@pytest.mark.parametrize(
    ("sleeps", "says"),
    [
        ({"accept()": 1, LOCK: 4}, "nothing closes its connection: no thread is in recv()"),
        ({"accept()": 1, "recv()": 1}, "does not read the version and Connection"),
    ],
)
def test_a_connection_that_stays_open_against_a_promise(
    monkeypatch: pytest.MonkeyPatch, sleeps: dict[str, int], says: str
) -> None:
    monkeypatch.setattr(
        "ewe_classroom.grader.conversations.next_response", lambda *_: SimpleNamespace(keeps_open=False)
    )
    assert says in cause(keep_alive, ScriptedScene(sleeps=sleeps))


@pytest.mark.parametrize(
    ("unread", "did", "says"),
    [
        ("waits 1", "which came earlier, still waited", "a stack"),
        ("", "the server had read its half request", "there are more than 4 workers"),
    ],
)
def test_a_request_that_overtakes_another_one(unread: str, did: str, says: str) -> None:
    """A worker too many reads the first of the waiting requests, so the order says nothing about a stack."""
    scene = ScriptedScene("waits 4", unread)
    with pytest.raises(FailedExpectation, match=did) as failed:
        progress.fifo(scene)
    assert says in failed.value.because


@pytest.mark.parametrize(
    ("unread", "says"),
    [
        ("", "a wake-up is lost: the queue is not empty"),
        (
            "stalled 2; stalled 3; stalled 4",
            "3 of the 4 stalled clients were not read by a worker: there are fewer workers, or a worker holds a "
            "lock while it serves its client",
        ),
    ],
)
def test_a_free_worker_that_serves_nobody(unread: str, says: str) -> None:
    assert says in cause(workers.exactly_n, ScriptedScene("stalled 1", unread))


@pytest.mark.parametrize(
    ("threads", "received", "says"),
    [
        (2, 0, "two threads each hold a lock"),
        (1, 0, "so this is no deadlock: the thread blocks in a call for one client"),
        (1, 4096, "so this is no deadlock: it has sent a part of the response"),
    ],
)
def test_one_thread_alone_has_no_deadlock(threads: int, received: int, says: str) -> None:
    scene = ScriptedScene()
    scene.subject = cast(Subject, SimpleNamespace(tasks=lambda: dict.fromkeys(range(threads))))
    stuck = cast(SceneClient, SimpleNamespace(received_bytes=received))
    assert says in progress.deadlock_cause(scene, stuck)


@pytest.mark.parametrize(
    ("is_answered", "received", "says"),
    [
        (True, 200, "two connections share a buffer for the response"),
        (False, 200, "only a part of the response was sent"),
        (False, 0, ""),
    ],
)
def test_a_client_without_its_own_file(is_answered: bool, received: int, says: str) -> None:
    client = SimpleNamespace(answered=lambda: is_answered, received_bytes=received)
    found = progress.cause_of_wrong_file(cast(SceneClient, client), "response")
    assert found.startswith(says) and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("output", "status", "says"),
    [
        (
            "OSError: [Errno 24] Too many open files",
            1,
            "no descriptor was free: accept() and open() then fail",
        ),
        ("accept4: too many open files", None, "no descriptor was free"),
        ("KeyError: 'x'", 1, "its last words: KeyError: 'x'"),
        ("", -13, "ignore SIGPIPE"),
        ("", -25, "a file has more than 64 MB; write less"),
        ("", None, ""),
    ],
)
def test_a_server_that_has_ended(output: str, status: int | None, says: str) -> None:
    scene = ScriptedScene()
    process = SimpleNamespace(poll=lambda: status)
    scene.subject = cast(Subject, SimpleNamespace(log=lambda *_: output, process=process))
    assert says in scene.likely_reason() and bool(says) == bool(scene.likely_reason())


def test_nonsense_in_place_of_a_304_is_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first connection that stays open: the responses before it were right."""
    response = SimpleNamespace(fields={}, length=None, body=b"")
    monkeypatch.setattr(conditional, "put", lambda *_: None)
    monkeypatch.setattr(conditional, "validators", lambda *_: conditional.Validators('"tag"', ""))
    monkeypatch.setattr(conditional, "exchange", lambda *_: response)
    monkeypatch.setattr(conditional, "expect", lambda *_, **__: response)
    monkeypatch.setattr(conditional, "ask", lambda *_: None)
    scene, client = ScriptedScene(), ScriptedClient("client 1", is_answered=False)
    client.reader = ResponseSplitter()  # type: ignore[attr-defined]
    client.reader.feed(b"nonsense")  # type: ignore[attr-defined]
    monkeypatch.setattr(scene, "client", lambda: client)
    with pytest.raises(FailedExpectation, match="on one connection, GET /page"):
        conditional.not_modified(scene)


def bursts(concurrency: int | None) -> race_bursts.Bursts:
    """Return the bursts on a server of which `progress` has found how many clients it serves at a time."""
    scene = ScriptedScene()
    scene.check, scene.findings = "queue-races", Findings({"progress": "progress"}, concurrency=concurrency)
    scene.subject = cast(Subject, SimpleNamespace(alive=lambda: True))
    made = race_bursts.Bursts(scene, cast(SanitizedBuild, None))
    made.expect_no_race = made.settle = lambda: None  # type: ignore[method-assign]
    made.traced_waits = lambda: iter(())  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(("concurrency", "expected"), [(None, 4), (3, 3), (5, 5), (1, 4), (NO_LIMIT, 4)])
def test_the_bursts_have_the_number_of_workers_that_progress_has_found(
    concurrency: int | None, expected: int
) -> None:
    """A pool with a worker too few would leave the last client of a burst without a response."""
    assert bursts(concurrency).workers == expected


@pytest.mark.parametrize(
    ("concurrency", "raised"),
    [(None, FailedExpectation), (3, FailedExpectation), (1, NotJudged), (NO_LIMIT, NotJudged)],
)
def test_a_burst_that_hangs_on_no_pool_is_not_judged(
    concurrency: int | None, raised: type[Exception]
) -> None:
    client = cast(SceneClient, ScriptedClient("client 1", is_answered=False))
    with pytest.raises(raised):
        bursts(concurrency).no_answer([client], "4 clients at once")
