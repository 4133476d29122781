"""DNS rebinding: what a server on loopback shows to its machine alone, no page of another site can read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import web
from support.server import Server, Start
from support.xswitch_client import xswitch

from ewe.gateway.own_names import is_own, misdirected_response
from ewe.http.messages import Request
from ewe.streams.base import Endpoints, Stream

NAMES = ("shop.example", "*.wild.example")


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:4000", "shop.localhost", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:4000",
        "192.0.2.1", "Shop.Example:4000", "shop.example.", "a.wild.example", "a.b.wild.example", "",
    ],
)  # fmt: skip
def test_own_names(host: str) -> None:
    assert is_own(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:4000", "localhost.evil.example", "xlocalhost", "127.0.0.1.evil.example",
        "wild.example", "shop.example.evil.example", "127.0.0.1.nip.io", "0x7f000001", "2130706433",
        "::1.example",
    ],
)  # fmt: skip
def test_names_of_others(host: str) -> None:
    assert not is_own(host, NAMES)


def asked(host: str, server: str, client: str = "127.0.0.1", connected: str = "", peer: str = "") -> int:
    """The status for a request to a server at an address, 0 if it may be answered."""
    request = Request("GET", "/", (1, 1), (("host", host),))
    stream = Stream((client, 1), (server, 80), None)  # type: ignore[arg-type]
    if connected:
        stream.endpoints = Endpoints((peer, 1), (connected, 80), "http", trusted=True)
        stream.peer = (peer, 1)
    refused = misdirected_response(request, stream, NAMES)
    assert refused is None or ("[[site]]" in refused.cause and "evil" in refused.cause)
    return refused.status if refused is not None else 0


def test_only_a_loopback_socket_looks_at_the_name() -> None:
    assert asked("evil.example", "127.0.0.1") == asked("evil.example", "::1") == 421
    assert asked("shop.example", "127.0.0.1") == asked("localhost", "::1") == 0
    assert asked("evil.example", "192.0.2.1") == asked("evil.example", "0.0.0.0") == 0
    # A socket of systemd that takes IPv4 and IPv6
    assert asked("evil.example", "::ffff:127.0.0.1") == 421 and asked("evil.example", "::ffff:192.0.2.1") == 0
    assert asked("evil.example", "localhost", client="unix:") == 0  # no browser reaches it


def test_what_a_trusted_proxy_says_does_not_help() -> None:
    """Where a proxy on this machine is trusted, the browser of a visitor on this machine is trusted, too."""
    assert asked("evil.example", "192.0.2.1", "192.0.2.7", connected="127.0.0.1", peer="127.0.0.1") == 421
    assert asked("evil.example", "localhost", "192.0.2.7", connected="localhost", peer="unix:") == 0


def status(server: Server, path: str, host: str, method: str = "GET") -> int:
    with web.Client() as client:
        return client.request(method, server.url + path, headers={"Host": host}).status_code


def test_a_location_with_webdav_without_a_log_in(start: Start, tmp_path: Path) -> None:
    """A browser sends the password of a site to this site alone, so a log-in needs no look at the name."""
    (tmp_path / "htdocs" / "dav").mkdir()
    passwords = tmp_path / "htpasswd"
    passwords.write_text("ada:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=\n")  # test
    (tmp_path / "ewe.toml").write_text(
        f"""[[site]]
        names = "shop.example"
        [[site.location]]
        prefix = "/dav"
        webdav = true
        [[site.location]]
        prefix = "/locked"
        alias = "htdocs/dav"
        webdav = true
        auth = {{ realm = "r", file = "{passwords}" }}
        """
    )
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    for host, expected in (
        ("evil.example", 421),
        ("shop.example", 404),
        ("localhost", 404),
        ("127.0.0.1", 404),
    ):
        assert status(server, "dav/a.txt", host) == expected, host
    assert status(server, "dav/a.txt", "evil.example", "PUT") == 421
    assert status(server, "dav/a.txt", "evil.example", "OPTIONS") == 421
    assert not list((tmp_path / "htdocs" / "dav").iterdir())
    assert status(server, "locked/a.txt", "evil.example") == 401
    with web.Client(auth=("ada", "test")) as client:
        assert client.get(server.url + "locked/a.txt", headers={"Host": "evil.example"}).status_code == 404
    assert "421" in server.log() and "names of a [[site]]" in server.log()


def test_the_page_of_x_switch(start: Start) -> None:
    with xswitch("status = true") as behind:
        server = start("thread", "--xswitch", behind.address, "--xswitch-status")
        assert status(server, "xswitch-status", "localhost") == 200
        assert status(server, "xswitch-status", "evil.example") == 421


def test_a_page_can_forge_what_a_proxy_would_say(start: Start, tmp_path: Path) -> None:
    """A page's scripts may set X-Forwarded-Host, but not Host. A proxy may keep its own Host and name another."""
    (tmp_path / "htdocs" / "dav").mkdir()
    (tmp_path / "ewe.toml").write_text(
        'trusted-proxies = "127.0.0.1"\n[[site]]\n[[site.location]]\nprefix = "/dav"\nwebdav = true\n'
    )
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    with web.Client() as client:
        for host, said, expected in (
            ("evil.example", "localhost", 421),
            ("evil.example", "127.0.0.1", 421),
            ("127.0.0.1:4000", "public.example", 404),
        ):
            fields = {"Host": host, "X-Forwarded-Host": said, "X-Forwarded-For": "192.0.2.7"}
            assert client.get(server.url + "dav/a.txt", headers=fields).status_code == expected, (host, said)
