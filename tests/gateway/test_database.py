"""A feature that asks a database daemon, under every model: results, errors, and a daemon that comes and goes."""

from __future__ import annotations

import signal
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from support import web
from support.daemon import FEATURE, Daemon
from support.server import MODELS, Start, wait_until

from ewe.config.settings import Config
from ewe.database.protocol import DatabaseError, ServerResponse, encode_response
from ewe.features.databases.asking import Databases, ResultSource
from ewe.gateway.upstream import Upstream
from ewe.streams.blocking import run
from ewe.streams.poller import BlockingPoller

NUMBERS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT %d) SELECT n FROM c"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        try:
            made.start()
            yield made
        finally:
            made.stop(signal.SIGKILL)


@pytest.mark.parametrize("model", MODELS)
def test_under_every_model(start: Start, daemon: Daemon, tmp_path: Path, model: str) -> None:
    (tmp_path / "asks.py").write_text(FEATURE)
    server = start(model, "--mount", "/ask=asks:Asks", "--dbd", daemon.address)
    url = server.url + "ask/"
    table = web.get(url + "rows?SELECT 1 AS n, 'ü' AS t, NULL AS missing, x'00ff' AS b, 9e999 AS f")
    assert table.status_code == 200, server.log()
    assert table.json() == [
        ["n", "t", "missing", "b", "f"],
        [[1, "ü", None, "b'\\x00\\xff'", float("inf")]],
        False,
    ]
    assert web.get(url + "rows?" + NUMBERS % 3).json() == [["n"], [[1], [2]], True]
    assert web.get(url + "rows?" + NUMBERS % 2).json() == [["n"], [[1], [2]], False]
    assert web.get(url + "?" + NUMBERS % 50_000).text.count("\r\n") == 50_001  # a result in many frames
    assert web.get(url + "?SELEC 1").status_code == 500
    assert "syntax error" in server.wait_for_log('near "SELEC"')
    with closing(sqlite3.connect(daemon.directory / "shop.db")) as database:
        before = database.execute("SELECT COUNT(*) FROM goods").fetchone()
    written = web.post(url + "rows?INSERT INTO goods (name) VALUES ('new') RETURNING name", content=b"")
    assert written.json() == [["name"], [["new"]], False]
    with closing(sqlite3.connect(daemon.directory / "shop.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM goods").fetchone() == (before[0] + 1,)
    daemon.stop(signal.SIGKILL)
    away = web.get(url + "?SELECT 1")
    assert (away.status_code, away.headers.get("retry-after")) == (503, "1")
    daemon.start()
    # A connection that was kept from before the restart has ended: the request meets another one
    wait_until(lambda: web.get(url + "?SELECT 1").status_code == 200, 5)


def test_a_client_that_leaves_ends_its_statement(start: Start, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(FEATURE)
    server = start("asyncio", "--mount", "/ask=asks:Asks", "--dbd", daemon.address)
    endless = quote("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n FROM c) SELECT max(n) FROM c")
    client = server.connect()
    client.sendall(f"GET /ask/?{endless} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    wait_until(lambda: daemon.status()["running"] == 1, 5, str(daemon.status()))
    client.close()
    wait_until(lambda: daemon.status()["running"] == 0, 5)


def test_a_peer_that_is_no_daemon_answers_before_it_has_the_statement() -> None:
    """For example, a web server is at the address of the daemon."""

    class Peer:
        def send(self, data: memoryview) -> int:
            return 0

        async def exchange(self, outgoing: memoryview, seconds: float) -> tuple[memoryview, bytes]:
            return outgoing, b"HTTP/1.1 400 Bad Request\r\n"

    class ToPeer:
        async def open(self, io: object, must_be_new: bool) -> Peer:
            return Peer()

    result = ResultSource(ToPeer(), None, b"a statement", 1.0, writes=False)  # type: ignore[arg-type]
    with pytest.raises(DatabaseError, match="a frame of") as refused:
        run(result.begin())
    assert refused.value.kind == "MESSAGE"


def test_a_refusal_that_comes_before_the_statement_is_read() -> None:
    """A daemon refuses an account that may use no database when it connects, and closes the connection."""
    client, client_end = socket.socketpair()
    own_end, daemon_end = socket.socketpair()
    with client, client_end, own_end:
        own_end.setblocking(False)
        upstream = Upstream(own_end, BlockingPoller(client), None)  # type: ignore[arg-type]
        error = DatabaseError("FORBIDDEN", "this account may use no database")
        daemon_end.sendall(encode_response(ServerResponse(b"", more=False, error=error)))
        daemon_end.close()

        class ToDaemon:
            async def open(self, io: object, must_be_new: bool) -> Upstream:
                return upstream

            def release(self, upstream: Upstream, reusable: bool = False) -> None:
                """Do nothing: the test closes the connection."""

        result = ResultSource(ToDaemon(), None, b"a statement", 1.0, writes=True)  # type: ignore[arg-type]
        with pytest.raises(DatabaseError, match="may use no database") as refused:
            run(result.begin())
        assert refused.value.kind == "FORBIDDEN"
        upstream.close()


@pytest.mark.parametrize("surplus", [b"", b"\0", encode_response(ServerResponse(b"other", more=False))])
def test_a_connection_with_bytes_behind_the_answer_is_not_kept(surplus: bytes) -> None:
    """The next client must not get them."""
    kept: list[bool] = []

    class Peer:
        def send(self, data: bytes) -> int:
            return len(data)

        async def receive(self, seconds: float) -> bytes:
            return encode_response(ServerResponse(b"own", more=False)) + surplus

    class ToPeer:
        async def open(self, io: object, must_be_new: bool) -> Peer:
            return Peer()

        def release(self, upstream: Peer, reusable: bool = False) -> None:
            kept.append(reusable)

    result = ResultSource(ToPeer(), None, b"a statement", 1.0, writes=False)  # type: ignore[arg-type]
    run(result.begin())
    assert run(result.receive()) == b"own" and run(result.receive()) == b""
    assert kept == [not surplus]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"database": ["log"]}, "database log has no file: write log=FILE"),
        ({"dbd": "nowhere"}, "(dbd)"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="dbd") as wrong:
        Databases(Config(**settings))
    assert words in str(wrong.value)
