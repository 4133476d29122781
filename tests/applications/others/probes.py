"""One probe for each row of docs/features.md: requests of which the answer shows whether a server has the feature.

A probe returns what it saw in a word or two, or nothing where the server lacks the feature.
"""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .place import BIG

Head = dict[str, str]


@dataclass
class Server:
    """A server that runs: its kind, its directory, its ports by name, its first process, its reload command."""

    name: str
    place: Path
    ports: dict[str, int]
    pid: int
    reload: list[str]

    def connect(self, port: str = "PORT") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[port]), 10)

    def raw(self, request: bytes, port: str = "PORT") -> bytes:
        """Send bytes, and return all that comes until the server closes."""
        with self.connect(port) as client:
            client.sendall(request)
            return b"".join(iter(lambda: client.recv(65536), b""))

    def get(self, path: str, *fields: str, method: str = "GET", body: bytes = b"") -> tuple[int, Head, bytes]:
        """Return status, header fields and body; the body is as it came, but for a chunked coding."""
        host = "" if any(field.startswith("Host:") for field in fields) else "Host: main.test\r\n"
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        lines = "".join(f"{field}\r\n" for field in fields)
        head = f"{method} {path} HTTP/1.1\r\n{host}{lines}{length}Connection: close\r\n\r\n"
        head_bytes, _, content = self.raw(head.encode() + body).partition(b"\r\n\r\n")
        first, *rest = head_bytes.decode("latin-1").split("\r\n")
        head_fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)
        }
        if head_fields.get("transfer-encoding") == "chunked":
            content = b"".join(chunks(content))
        return int(first.split()[1]), head_fields, content

    def answers(self) -> bool:
        try:
            return self.get("/index.html")[0] == 200
        except (OSError, IndexError):
            return False

    def processes(self) -> list[Path]:
        """Return the /proc directories of the server's processes; programs that it started have other names."""
        own = (Path(f"/proc/{self.pid}/comm")).read_text()
        return [
            entry
            for entry in Path("/proc").glob("[0-9]*")
            if (entry / "stat").exists()
            and os.getpgid(int(entry.name)) == os.getpgid(self.pid)
            and (entry / "comm").read_text() == own
        ]

    def tls(self, name: str, *, certificate: bool = False, alpn: str = "http/1.1") -> tuple[str, str, bytes]:
        """Ask for / over TLS; return the certificate's common name, the protocol chosen and the answer."""
        context = ssl.create_default_context(cafile=str(self.place / f"{name}.crt"))
        context.set_alpn_protocols([alpn])
        if certificate:
            context.load_cert_chain(self.place / "one.test.crt", self.place / "one.test.key")
        with self.connect("TLS") as plain, context.wrap_socket(plain, server_hostname=name) as client:
            common = dict(pair[0] for pair in client.getpeercert()["subject"])["commonName"]  # type: ignore[index,misc]
            protocol = client.selected_alpn_protocol() or ""
            if alpn == "h2":
                return common, protocol, b""
            client.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            return common, protocol, b"".join(iter(lambda: client.recv(65536), b""))


def chunks(body: bytes) -> Iterator[bytes]:
    """Yield the data of each chunk of a body."""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if length:
            yield rest[:length]
        body = rest[length + 2 :] if length else b""


def body_has(path: str, word: bytes, *fields: str) -> Callable[[Server], str]:
    """Return a probe: the answer is 200 and contains a word."""

    def probe(server: Server) -> str:
        status, _, body = server.get(path, *fields)
        return word.decode() if status == 200 and word in body else ""

    return probe


def threads_and_processes(server: Server) -> str:
    """Hold 20 connections open, and count processes and threads."""
    clients = [server.connect() for _ in range(20)]
    for client in clients:
        client.sendall(b"GET /index.html HTTP/1.1\r\nHost: main.test\r\n\r\n")
        client.recv(4096)
    counts = [len(list((entry / "task").iterdir())) for entry in server.processes()]
    for client in clients:
        client.close()
    return f"20 connections: {len(counts)} processes with {sorted(counts)} threads"


def pipelining(server: Server) -> str:
    old = server.raw(b"GET /index.html HTTP/1.0\r\n\r\n")
    one = b"GET /index.html HTTP/1.1\r\nHost: main.test\r\n"
    both = server.raw(one + b"\r\n" + one + b"Connection: close\r\n\r\n")
    return "1.0, two answers on one connection" if b" 200 " in old and both.count(b" 200 OK") == 2 else ""


def http2(server: Server) -> str:
    chosen = server.tls("one.test", alpn="h2")[1]
    versions = ["HTTP/2"] if chosen == "h2" else []
    if b"h3=" in server.tls("one.test")[2]:
        versions.append("HTTP/3 offered")
    return ", ".join(versions)


def ranges(server: Server) -> str:
    _, head, _ = server.get("/page.html")
    part = server.get("/page.html", "Range: bytes=0-9")
    same = server.get("/page.html", f"If-None-Match: {head.get('etag', '')}")[0]
    return "206, 304, ETag" if (part[0], len(part[2]), same) == (206, 10, 304) else ""


def several_ranges(server: Server) -> str:
    status, head, _ = server.get("/page.html", "Range: bytes=0-9,100-109")
    return "multipart/byteranges" if status == 206 and "multipart/byteranges" in head["content-type"] else ""


def packed(server: Server) -> str:
    for path in ("/negotiated/packed.html", "/negotiated/chosen"):
        status, head, body = server.get(path, "Accept-Encoding: gzip")
        if (
            status == 200
            and "gzip" in head.get("content-encoding", "")
            and b"in advance" in gzip.decompress(body)
        ):
            return f"{path} came from its .gz"
    return ""


def codings(server: Server) -> str:
    answers = {
        name: server.get("/fly/page.html", f"Accept-Encoding: {name}")[1] for name in ("gzip", "br", "zstd")
    }
    return " ".join(name for name, head in answers.items() if head.get("content-encoding") == name)


def languages(server: Server) -> str:
    fields = ["Accept-Language: de", "Accept-Language: en, de;q=0.5"]
    german, english = (server.get("/negotiated/tongue.html", field)[2] for field in fields)
    return "de and en" if b"deutsch" in german and b"english" in english else ""


def charsets(server: Server) -> str:
    fields = ["Accept-Charset: utf-8", "Accept-Charset: iso-8859-1"]
    one, other = (server.get("/negotiated/signs.html", field)[2] for field in fields)
    return "utf-8 and iso-8859-1" if b"utf" in one and b"latin" in other else ""


def trailers(server: Server) -> str:
    head = b"POST /up HTTP/1.1\r\nHost: main.test\r\nConnection: close\r\nTE: trailers\r\nTrailer: X-Sum\r\n"
    received = server.raw(
        head + b"Transfer-Encoding: chunked\r\n\r\n" + b"4\r\nbody\r\n0\r\nX-Sum: 42\r\n\r\n"
    )
    return "the server behind received it" if b"x-sum: 42" in received.lower() else ""


def websocket(server: Server) -> str:
    with server.connect() as client:
        client.sendall(
            b"GET /socket HTTP/1.1\r\nHost: main.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        received = client.recv(4096)
        client.sendall(b"\x81\x05hello")
        while b"hello" not in received and (chunk := client.recv(4096)):
            received += chunk
    return "101, then bytes both ways" if b" 101 " in received and b"echo \x81\x05hello" in received else ""


def language_inside(server: Server) -> str:
    found = {"Lua": b"lua 42" in server.get("/page.lua")[2]}
    found["templates"] = b"-->/ssi/page.html" in server.get("/ssi/page.html")[2]
    return ", ".join(name for name, there in found.items() if there)


def redirects(server: Server) -> str:
    alias, redirect, rewrite = (
        server.get(path) for path in ("/alias/here.html", "/redirect", "/rewrite/index.html")
    )
    good = b"elsewhere" in alias[2] and redirect[0] == 301 and b"start" in rewrite[2]
    return "alias, 301, rewriting" if good else ""


def htaccess(server: Server) -> str:
    return "302 by .htaccess" if server.get("/htaccess/old")[0] == 302 else ""


def basic(server: Server) -> str:
    allowed = server.get("/basic/", "Authorization: Basic YWRhOmxvdmVsYWNl")[0]
    return "401 without, 200 with" if (server.get("/basic/")[0], allowed) == (401, 200) else ""


def digest(server: Server) -> str:
    url = f"http://127.0.0.1:{server.ports['PORT']}/digest/"
    curl = ["curl", "-s", "--digest", "-u", "ada:lovelace", url]
    allowed = subprocess.run(curl, capture_output=True, check=True).stdout == b"secret\n"
    return "401 without, 200 with" if server.get("/digest/")[0] == 401 and allowed else ""


def addresses(server: Server) -> str:
    return "403" if server.get("/deny/")[0] == 403 else ""


def request_rate(server: Server) -> str:
    return "429" if 429 in [server.get("/limited/")[0] for _ in range(5)] else ""


def byte_rate(server: Server) -> str:
    began = time.monotonic()
    body = server.get("/slow/big.bin")[2]
    took = time.monotonic() - began
    return f"{len(body)} bytes in {took:.0f} s" if len(body) == BIG and took > 4 else ""


def fields(server: Server) -> str:
    head = server.get("/field.html")[1]
    return (
        "X-Own, max-age"
        if head.get("x-own") == "yes" and "max-age=3600" in head.get("cache-control", "")
        else ""
    )


def error_page(server: Server) -> str:
    status, _, body = server.get("/not-there")
    return "404 with the own page" if status == 404 and b"gone fishing" in body else ""


def put_and_delete(server: Server) -> str:
    put = server.get("/dav/new.txt", method="PUT", body=b"new")[0]
    delete = server.get("/dav/new.txt", method="DELETE")[0]
    return "PUT, DELETE" if (put, delete) == (201, 204) else ""


def webdav(server: Server) -> str:
    return "PROPFIND" if server.get("/dav/", "Depth: 0", method="PROPFIND")[0] == 207 else ""


def webdav_locks(server: Server) -> str:
    lock = b"<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope>"
    lock += b"<D:locktype><D:write/></D:locktype></D:lockinfo>"
    head = server.get("/dav/there.txt", "Content-Type: text/xml", method="LOCK", body=lock)[1]
    return "Lock-Token" if "lock-token" in head else ""


def cache(server: Server) -> str:
    first, second = (server.get("/cached")[2] for _ in range(2))
    return "the second answer was the first" if b"number" in first and first == second else ""


def sni(server: Server) -> str:
    names = [server.tls(name)[0] for name in ("one.test", "two.test")]
    return "two certificates on one port" if names == ["one.test", "two.test"] else ""


def client_certificates(server: Server) -> str:
    try:
        without = b" 200 OK" in server.tls("guard.test")[2]
    except (ssl.SSLError, OSError):
        without = False
    allowed = b" 200 OK" in server.tls("guard.test", certificate=True)[2]
    return "refused without, 200 with" if allowed and not without else ""


def balance(server: Server) -> str:
    names = {server.get("/balance")[2].split()[0] for _ in range(6)}
    return "both answered" if names == {b"one", b"two"} else ""


def proxy_protocol(server: Server) -> str:
    try:
        server.raw(
            b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\nGET /index.html HTTP/1.1\r\nHost: main.test\r\n"
            b"Connection: close\r\n\r\n",
            "PROXIED",
        )
    except OSError:
        return ""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        if (log := server.place / "proxied.log").exists() and "192.0.2.7" in log.read_text():
            return "PROXY: the log has the client's address"
        time.sleep(0.05)
    return ""


def reload(server: Server) -> str:
    """Make the server read its settings while a response is on its way."""
    with server.connect() as client:
        client.sendall(b"GET /huge.bin HTTP/1.1\r\nHost: main.test\r\nConnection: close\r\n\r\n")
        received = len(client.recv(1000))
        subprocess.run(server.reload, check=True, capture_output=True, cwd=server.place)
        fresh = [server.get("/index.html")[0] for _ in range(20)]
        while chunk := client.recv(1 << 20):
            received += len(chunk)
    return "a response under way was finished" if received > 40 * BIG and fresh == [200] * 20 else ""


def privileges(server: Server) -> str:
    if os.geteuid():
        return "not root, not tried"
    status = [(entry / "status").read_text() for entry in server.processes()]
    users = {line.split()[1] for text in status for line in text.splitlines() if line.startswith("Uid:")}
    return f"users {sorted(users)}" if users - {"0"} else ""


def log(file: str, expected: str) -> Callable[[Server], str]:
    """Return a probe: a log file of the settings has an entry of this form."""

    def probe(server: Server) -> str:
        server.get("/page.html")
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            if (path := server.place / file).exists() and expected in path.read_text():
                return expected
            time.sleep(0.05)
        return ""

    return probe


PROBES: dict[str, Callable[[Server], str]] = {
    "HTTP/1.0 and HTTP/1.1, kept connections, pipelining": pipelining,
    "HTTP/2": http2,
    "virtual hosts by name, address and port": body_has("/", b"second", "Host: second.test"),
    "ranges, conditional requests, entity tags": ranges,
    "several ranges in one response": several_ranges,
    "files compressed in advance": packed,
    "compression on the fly": codings,
    "negotiation of language": languages,
    "negotiation of charset": charsets,
    "trailers of requests, for the program or server behind": trailers,
    "WebSocket, by a proxy": websocket,
    "CGI": body_has("/cgi/hello.cgi", b"cgi 127.0.0.1"),
    "FastCGI": body_has("/hello.php", b"php 42"),
    "SCGI": body_has("/scgi", b"scgi 42"),
    "uwsgi": body_has("/uwsgi", b"uwsgi 42"),
    "a language inside the server": language_inside,
    "server-side includes": body_has("/ssi/page.html", b"/ssi/page.html{{"),
    "aliases, redirects, rewriting": redirects,
    "one program for all pages (`try`)": body_has("/front/any/path", b"front"),
    "rules in the served directories (.htaccess)": htaccess,
    "Basic authentication": basic,
    "Digest authentication": digest,
    "addresses that may and may not": addresses,
    "requests a second, with 429": request_rate,
    "bytes a second of a response": byte_rate,
    "response fields, Expires, Cache-Control": fields,
    "own error pages": error_page,
    "directory listings": body_has("/list/", b"one-file.txt"),
    "users' directories (`/~ada/`)": body_has("/~ada/", b"ada"),
    "PUT, DELETE": put_and_delete,
    "WebDAV": webdav,
    "locks of WebDAV": webdav_locks,
    "a cache of responses": cache,
    "TLS, certificates by SNI": sni,
    "client certificates": client_certificates,
    "reverse proxy, several servers behind": balance,
    "behind a proxy: PROXY protocol": proxy_protocol,
    "new settings without a request lost": reload,
    "privileges given up after the start": privileges,
    "logs in Apache's formats": log("common.log", '"GET /page.html HTTP/1.1" 200'),
    "logs in JSON": log("json.log", '"status":200'),
}
