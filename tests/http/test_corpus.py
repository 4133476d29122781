"""Requests on disk, raw, each beside what is to become of it: tests/corpus/valid and invalid.

Beside NAME.http lies NAME.toml. Both kinds name the `rule` they show. A valid one lists the `requests` that are
understood (method, path; query, host, body and some fields where they matter), and says if the connection does
not stay open (`keeps = false`). An invalid one has the `status`, a part of the reason (`says`), and how many good
requests were served `after` which it was refused. The limits are LIMITS.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.memory import Answer, Echo, answers, every_cut, talk
from support.server import Start, write_program

from ewe.http.limits import RequestLimits

CORPUS = Path(__file__).parents[1] / "corpus"
LIMITS = {"max_target": 200, "max_head": 1000, "max_field": 300, "max_fields": 12, "max_body": 1000}
OPTIONS = [word for name, value in LIMITS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
ECHO = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nexec cat\n"


class Case:
    """One message, and its expected result."""

    def __init__(self, path: Path) -> None:
        self.message = path.read_bytes()
        told: dict[str, Any] = tomllib.loads(path.with_suffix(".toml").read_text())
        self.rule: str = told["rule"]
        self.is_valid = path.parent.name == "valid"
        if self.is_valid:
            self.requests: list[dict[str, Any]] = told["requests"]
            self.keeps: bool = told.get("keeps", True)
            self.statuses = [200] * len(self.requests)
        else:
            self.says: str = told["says"]
            self.statuses = [200] * told.get("after", 0) + [told["status"]]


def cases(kind: str) -> list[Any]:
    """Return the cases of one directory as parameters."""
    return [pytest.param(Case(path), id=path.stem) for path in sorted((CORPUS / kind).glob("*.http"))]


VALID, INVALID = cases("valid"), cases("invalid")


def test_the_corpus_is_whole() -> None:
    for path in CORPUS.glob("*/*"):
        assert path.with_suffix(".http").exists() and path.with_suffix(".toml").exists(), path
    for parameter in VALID + INVALID:
        assert parameter.values[0].rule.startswith("RFC "), parameter.id
    assert len(VALID) >= 60 and len(INVALID) >= 140


def finals(data: bytes, *methods: str) -> list[Answer]:
    """Return the final responses."""
    return [answer for answer in answers(data, *methods) if answer.status >= 200]


@pytest.mark.parametrize("case", VALID)
def test_valid(case: Case) -> None:
    methods = [request["method"] for request in case.requests]
    for pieces in ([case.message], *every_cut(case.message)):
        site = Echo(RequestLimits(**LIMITS))
        stream = talk(site, *pieces)
        for seen, body, expected in zip(site.seen, site.bodies, case.requests, strict=True):
            assert (seen.method, seen.path) == (expected["method"], expected["path"])
            assert seen.query == expected.get("query")
            assert seen.host == expected.get("host", "ewe")
            assert body == expected.get("body", "").encode("latin-1")
            for name, value in expected.get("fields", {}).items():
                assert seen.get(name) == value
        found = finals(stream.output(), *methods)
        assert [answer.status for answer in found] == case.statuses
        assert [answer.fields.get("connection") == "close" for answer in found[:-1]] == [False] * (
            len(found) - 1
        )
        assert (found[-1].fields.get("connection") != "close") is case.keeps
        assert bool(stream.did[-1].startswith("next_request")) is case.keeps


@pytest.mark.parametrize("case", INVALID)
def test_invalid(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    monkeypatch.setattr("ewe.logger.errors.info", reasons.append)
    monkeypatch.setattr("ewe.logger.errors.warning", reasons.append)
    monkeypatch.setattr("ewe.logger.errors.debug", reasons.append)
    for pieces in ([case.message], *every_cut(case.message)):
        site = Echo(RequestLimits(**LIMITS))
        stream = talk(site, *pieces)
        assert len(site.seen) == len(case.statuses) - 1
        found = finals(stream.output())
        assert [answer.status for answer in found] == case.statuses
        assert found[-1].fields["connection"] == "close"
        assert stream.lingered and stream.did[-1] == "linger"
        if pieces == [case.message]:
            assert len(reasons) == 1 and case.says in reasons[0], reasons


NEXT = b"GET /next HTTP/1.1\r\nHost: ewe\r\nConnection: close\r\n\r\n"


def test_over_the_server(start: Start, model: str) -> None:
    """The whole corpus over one server, under each model: a message is read as in memory."""
    server = start(model, *OPTIONS)
    write_program(server.cgi / "echo", ECHO)
    (server.root / "next").write_text("next")
    wrong: list[str] = []
    for parameter in VALID + INVALID:
        case: Case = parameter.values[0]
        if case.is_valid:
            methods = [request["method"] for request in case.requests]
            data = server.ask(case.message + NEXT)
            expected = [served(request) for request in case.requests]
            if case.keeps:
                expected.append((200, b"next"))
        else:
            methods = []
            data = server.ask(case.message)
            expected = [(200, None)] * (len(case.statuses) - 1) + [(case.statuses[-1], None)]
        found = [(answer.status, answer.body) for answer in finals(data, *methods)]
        same = len(found) == len(expected) and all(
            one[0] == other[0] and other[1] in (None, one[1])
            for one, other in zip(found, expected, strict=True)
        )
        if not same:
            wrong.append(f"{parameter.id}: {found}, expected {expected}")
    assert not wrong, "\n".join(wrong)


def served(request: dict[str, Any]) -> tuple[int, bytes | None]:
    """Return what the real site answers: the status, and the body where it is not a page of ours."""
    if request["path"] == "/cgi-bin/echo":
        return 200, request.get("body", "").encode("latin-1")
    if request["method"] == "OPTIONS":
        return 204, b""
    return (200, None) if request["path"] == "/" else (404, None)
