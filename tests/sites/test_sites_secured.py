"""Sites with their certificates, chosen by SNI, beside an address without TLS; and a reload of the tables."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from support import web
from support.server import Start, free_port, wait_until
from support.wire import read_all

SETTINGS = """
[[site]]
names = ["a.example"]
listen = ["127.0.0.1:SECURE"]
tls-cert = "a.pem"
documentroot = "a"
[[site]]
names = ["*.b.example"]
listen = ["127.0.0.1:SECURE"]
tls-cert = "b.pem"
documentroot = "b"
[[site]]
listen = ["127.0.0.1:PLAIN"]
[[site.location]]
prefix = "/"
redirect = "https://$host$path"
status = 308
"""


def asked(port: int, name: str, trusted: ssl.SSLContext) -> bytes:
    """Return the answer of the site that a client names in the handshake. The client checks the certificate."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    with sock, trusted.wrap_socket(sock, server_hostname=name) as secure:
        secure.sendall(b"GET / HTTP/1.0\r\nHost: %s\r\n\r\n" % name.encode())
        return read_all(secure)


def alert_for(port: int, name: bytes) -> bytes:
    """Return the first byte of the answer to a handshake that names any bytes: its type, 0x15 for an alert."""
    place = b"z" * len(name)
    records = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), records, server_hostname=place.decode())
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(records.read().replace(place, name))
        return read_all(sock)[:1]


@pytest.mark.parametrize("model", ["thread", "asyncio"])
def test_certificates_by_name(start: Start, tmp_path: Path, model: str) -> None:
    authority = trustme.CA()
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    for site, name in (("a", "a.example"), ("b", "*.b.example")):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{site}.pem")
        (tmp_path / site).mkdir()
        (tmp_path / site / "index.html").write_text(f"site {site}")
    secure, plain = free_port(), free_port()
    settings = tmp_path / "ewe.toml"
    settings.write_text(SETTINGS.replace("SECURE", str(secure)).replace("PLAIN", str(plain)))
    server = start(model, "--config", "ewe.toml")
    assert asked(secure, "a.example", trusted).endswith(b"site a")
    assert asked(secure, "x.b.example", trusted).endswith(b"site b")
    with pytest.raises(ssl.SSLCertVerificationError):  # an unknown name gets the first site's certificate
        asked(secure, "c.example", trusted)
    assert alert_for(secure, b"\xff\xfe.example") == b"\x15"
    server.wait_for_log(r"b'\xff\xfe.example': 'ascii' codec can't decode")
    assert asked(secure, "a.example", trusted).endswith(b"site a")
    assert "Traceback" not in server.log()  # Python itself would write a traceback and wait for a reader
    answer = web.get(f"http://127.0.0.1:{plain}/x", headers={"Host": "a.example:80"})
    assert (answer.status_code, answer.headers["location"]) == (308, "https://a.example/x")
    settings.write_text(settings.read_text().replace("status = 308", "status = 307"))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: web.get(f"http://127.0.0.1:{plain}/x").status_code == 307, 10)
    settings.write_text("[[site]]\nname = 1\n")  # a mistake: the old settings stay
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log('line 2: unknown key "name" in [[site]]; did you mean "names"?')
    assert web.get(f"http://127.0.0.1:{plain}/x").status_code == 307
