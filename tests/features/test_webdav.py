"""WebDAV under every model: files that clients list, read and write, and all that they must not reach."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import web
from support.memory import MemoryStream
from support.proc import open_files
from support.server import MODELS, Server, Start, wait_until

from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.features.languages import paths_answered_by
from ewe.features.webdav import changes, feature, properties, upload
from ewe.features.webdav.feature import WebDAV
from ewe.features.webdav.tree import DavPath, Tree, refusal
from ewe.gateway.protected_sources import ProtectedSources
from ewe.http.messages import Request, Source
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.streams.base import Disconnected, Stream
from ewe.streams.blocking import run
from ewe.streams.descriptors import EXHAUSTED

SETTINGS = """\
[[site]]
[[site.location]]
prefix = "/dav/guarded"
allow = "10.0.0.1"
[[site.location]]
prefix = "/dav"
webdav = { max-size = "300k" }
[[site.location]]
prefix = "/read"
webdav = { write = false }
alias = "htdocs/dav"
"""
LARGE = 200 * 1024
PROPPATCH = b'<propertyupdate xmlns="DAV:"><set><prop><a xmlns="b">c</a></prop></set></propertyupdate>'


@pytest.fixture(params=MODELS)
def server(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    (tmp_path / "ewe.toml").write_text(SETTINGS)
    (tmp_path / "htdocs" / "dav" / "guarded").mkdir(parents=True)
    return start(request.param, "--config", str(tmp_path / "ewe.toml"), "--fastcgi", ".php=unix:/none")


class Client(web.Client):
    """A client that asks for one status after the other."""

    def ask(self, method: str, path: str, **more: Any) -> int:
        return self.request(method, path, **more).status_code

    def names(self, path: str) -> list[str]:
        """The hrefs that a PROPFIND of depth 1 shows."""
        answer = self.request("PROPFIND", path, headers={"Depth": "1"})
        assert answer.status_code == 207
        elements = properties.expat.ParserCreate(namespace_separator=" ")
        found: list[str] = []
        inside = []
        elements.StartElementHandler = lambda name, _: inside.append(name)
        elements.EndElementHandler = lambda name: inside.pop()
        elements.CharacterDataHandler = lambda text: found.append(text) if inside[-1] == "DAV: href" else None
        elements.Parse(answer.content, True)
        return found


def test_webdav(server: Server, tmp_path: Path) -> None:
    dav = server.root / "dav"
    (dav / "guarded" / "secret.txt").write_text("secret")
    with Client(base_url=server.url) as client:
        writes(client, dav)
        conditions(client, dav)
        collections(client, dav)
        limits(client, dav)
        out_of_reach(client, dav, tmp_path)
    partial(server, dav)
    with Client(
        base_url=server.url, headers={"Connection": "close"}
    ) as client:  # the serial model has one at a time
        raced(server, client)
    assert "Traceback" not in server.log()
    assert not [name for _, _, names in os.walk(dav) for name in names if name.startswith(".ewe-")]


def writes(client: Client, dav: Path) -> None:
    options = client.options("/dav/")
    assert options.headers["dav"] == "1" and "PROPFIND" in options.headers["allow"]
    made = client.put("/dav/a%20%C3%BC.txt", content="one")
    assert made.status_code == 201 and (dav / "a ü.txt").read_text() == "one"
    assert (dav / "a ü.txt").stat().st_mode & 0o111 == 0
    # A client that has just written a file reads the new bytes, with the tag of the response to PUT.
    for text in ("two", "three", "x" * LARGE):
        changed = client.put("/dav/a%20%C3%BC.txt", content=iter([text.encode()]))  # chunked
        read = client.get("/dav/a%20%C3%BC.txt")
        assert changed.status_code == 204 and read.text == text
        assert read.headers["etag"] == changed.headers["etag"]
    listed = client.request("PROPFIND", "/dav/a%20%C3%BC.txt", headers={"Depth": "0"}).text
    assert f"<D:getcontentlength>{LARGE}<" in listed and "<D:href>/dav/a%20%C3%BC.txt<" in listed
    assert client.delete("/dav/a%20%C3%BC.txt").status_code == 204
    assert (
        client.delete("/dav/a%20%C3%BC.txt").status_code
        == client.get("/dav/a%20%C3%BC.txt").status_code
        == 404
    )
    # Read only, at another place
    assert client.ask("PUT", "/read/b.txt", content="b") == client.ask("DELETE", "/read/b.txt") == 405
    assert "PUT" not in client.options("/read/").headers["allow"] and client.names("/read/") == [
        "/read/",
        "/read/guarded/",
    ]


def conditions(client: Client, dav: Path) -> None:
    """The second of two people who edit a page learns of the first."""
    tag = client.put("/dav/page", content="1").headers["etag"]
    assert client.ask("PUT", "/dav/page", content="x", headers={"If-None-Match": "*"}) == 412
    assert client.ask("PUT", "/dav/page", content="2", headers={"If-Match": tag}) == 204
    assert client.ask("PUT", "/dav/page", content="3", headers={"If-Match": tag}) == 412
    assert client.ask("DELETE", "/dav/page", headers={"If-Match": tag}) == 412
    assert client.ask("PUT", "/dav/none", content="x", headers={"If-Match": "*"}) == 412
    before = {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert client.ask("PUT", "/dav/page", content="x", headers=before) == 412
    assert client.ask("PUT", "/dav/page", content="x", headers={"If": "(<opaquelocktoken:1>)"}) == 412
    assert client.ask("PUT", "/dav/page", content="x", headers={"Content-Range": "bytes 0-0/3"}) == 400
    assert client.ask("PUT", "/dav/page", content="x", headers={"Content-Encoding": "gzip"}) == 415
    assert (dav / "page").read_text() == "2"


def collections(client: Client, dav: Path) -> None:
    """MKCOL, COPY, MOVE, DELETE."""
    assert [client.ask("MKCOL", path) for path in ("/dav/x/", "/dav/x", "/dav/no/y")] == [201, 405, 409]
    assert client.ask("MKCOL", "/dav/z", content="<a/>") == 415
    assert [client.ask("PUT", path, content="f") for path in ("/dav/x/f", "/dav/no/f", "/dav/x", "/dav/x/")] == [
        201, 409, 405, 409,
    ]  # fmt: skip
    there = {"Destination": str(client.base_url) + "dav/y"}
    assert client.ask("COPY", "/dav/x", headers={**there, "Depth": "0"}) == 201 and not os.listdir(dav / "y")
    assert client.ask("COPY", "/dav/x", headers={**there, "Overwrite": "F"}) == 412
    assert client.ask("COPY", "/dav/x", headers=there) == 204 and os.listdir(dav / "y") == ["f"]
    assert client.ask("MOVE", "/dav/y/f", headers={"Destination": "/dav/x/g"}) == 201
    assert client.ask("MOVE", "/dav/page", headers={"Destination": "/dav/x/g"}) == 204
    assert sorted(client.names("/dav/x")) == ["/dav/x/", "/dav/x/f", "/dav/x/g"]
    for target in (
        "/dav/x/in",
        "/dav/x",
        "/dav",
        "/elsewhere",
        "/dav/guarded/x",
        "/dav/.x",
        "/dav/../dav/.git/x",
    ):
        assert client.ask("MOVE", "/dav/x", headers={"Destination": target}) == 403, target
    assert client.ask("COPY", "/dav/x", headers={"Destination": "http://elsewhere/dav/n"}) == 502
    for wrong in (
        {},
        {"Destination": "x y"},
        {"Destination": "/dav/%2e%2e/%2e%2e/x"},
        {"Destination": "/dav/n?q"},
    ):
        assert client.ask("COPY", "/dav/x", headers=wrong) == 400, wrong
    assert client.ask("DELETE", "/dav/x", headers={"Depth": "0"}) == 400
    assert (
        client.ask("DELETE", "/dav/x/") == client.ask("DELETE", "/dav/y") == 204 and not (dav / "x").exists()
    )
    assert (
        client.ask("DELETE", "/dav/") == client.ask("MOVE", "/dav", headers={"Destination": "/dav/q"}) == 403
    )


def limits(client: Client, dav: Path) -> None:
    """Sizes, depths, and XML that means harm."""
    large = b"x" * (300 * 1024 + 1)
    assert (
        client.ask("PUT", "/dav/l", content=large)
        == client.ask("PUT", "/dav/l", content=iter([large]))
        == 413
    )
    assert not (dav / "l").exists()
    assert (
        client.ask("PROPFIND", "/dav/")
        == client.ask("PROPFIND", "/dav/", headers={"Depth": "infinity"})
        == 403
    )
    assert client.ask("PROPFIND", "/dav/", headers={"Depth": "2"}) == 400
    entities = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    bomb = entities + '<propfind xmlns="DAV:"><prop><x>&b;</x></prop></propfind>'
    for xml, status in (
        (bomb, 400),
        ("<a>" * 50, 400),
        ("<a", 400),
        ("x" * 70_000, 413),
        ("<propfind/>", 400),
    ):
        assert client.ask("PROPFIND", "/dav/", content=xml, headers={"Depth": "0"}) == status, xml[:40]
    names = (
        "<propfind xmlns='DAV:'><prop><getetag/><x xmlns='urn:y&quot;&lt;'/><resourcetype/></prop></propfind>"
    )
    answer = client.request("PROPFIND", "/dav/", content=names, headers={"Depth": "0"}).text
    assert (
        '<x:x xmlns:x="urn:y&quot;&lt;"/>' in answer
        and "404 Not Found" in answer
        and "<D:collection/>" in answer
    )
    patch = "<propertyupdate xmlns='DAV:'><set><prop><a xmlns='urn:a'>1</a></prop></set></propertyupdate>"
    patched = client.request("PROPPATCH", "/dav/", content=patch)
    assert (
        patched.status_code == 207
        and "HTTP/1.1 403" in patched.text
        and '<x:a xmlns:x="urn:a"/>' in patched.text
    )
    assert client.ask("LOCK", "/dav/page") == client.ask("POST", "/dav/page") == 405


def out_of_reach(client: Client, dav: Path, tmp_path: Path) -> None:
    """Links, hidden files, programs, and paths that another location guards."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "o.txt").write_text("outside")
    (dav / "link").symlink_to(outside)
    (dav / "file").symlink_to(outside / "o.txt")
    (dav / ".git").mkdir()
    (dav / "old.php").write_text("<?php secret")
    (dav / "held").mkdir()
    (dav / "held" / ".keep").write_text("")
    (dav / "t.txt").write_text("t")
    os.mkfifo(dav / "fifo")
    for path in ("link/new", "file", ".git/x", ".x", "a/.x/y", "new.php", "new.PHP", "old.php", "p.sql.html",
                 "fifo", "WEB-INF/x", "new.php.", "a%0d%0aX:%20y"):  # fmt: skip
        status = 409 if "/new" in path else 403
        assert client.ask("PUT", f"/dav/{path}", content="x") == status, path
        assert client.ask("MOVE", "/dav/t.txt", headers={"Destination": f"/dav/{path}"}) == status, path
        assert client.ask("COPY", "/dav/t.txt", headers={"Destination": f"/dav/{path}"}) == status, path
    reads = ("link", "file", "link/o.txt", ".git", "old.php", "guarded", "guarded/secret.txt", "held", "fifo")
    for path in reads:
        assert client.ask("DELETE", f"/dav/{path}") in (403, 404), path
        assert client.ask("MOVE", f"/dav/{path}", headers={"Destination": "/dav/new"}) in (403, 404), path
        if path != "held":
            assert client.ask("COPY", f"/dav/{path}", headers={"Destination": "/dav/new"}) in (403, 404), path
            assert client.ask("PROPFIND", f"/dav/{path}", headers={"Depth": "0"}) in (403, 404), path
    assert (
        client.ask("PUT", "/dav/%00", content="x") == 400
        and client.ask("PUT", f"/dav/{'n' * 300}", content="x") == 414
    )
    assert client.names("/dav/") == ["/dav/", "/dav/held/", "/dav/t.txt"]
    assert (outside / "o.txt").read_text() == "outside" and os.listdir(outside) == ["o.txt"]
    assert (dav / "guarded" / "secret.txt").exists() and (dav / "old.php").read_text() == "<?php secret"
    # A directory with such members cannot be moved away with them, and a copy leaves them out.
    assert client.ask("COPY", "/dav/held", headers={"Destination": "/dav/copy"}) == 201 and not os.listdir(
        dav / "copy"
    )


def partial(server: Server, dav: Path) -> None:
    """A client that leaves within its body has written nothing, and the old file is still complete."""
    (dav / "whole").write_text("whole")
    for path in ("whole", "begun"):
        with socket.create_connection(("127.0.0.1", server.port), 20) as sock:
            head = f"PUT /dav/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
            sock.sendall(head.encode() + b"x" * 50_000)
    wait_until(lambda: server.access_file.read_text().count('"PUT /dav/whole HTTP/1.1" 4') == 1, 20)
    wait_until(lambda: server.access_file.read_text().count('"PUT /dav/begun HTTP/1.1" 4') == 1, 20)
    assert (dav / "whole").read_text() == "whole" and not (dav / "begun").exists()


def raced(server: Server, client: Client) -> None:
    """A GET beside many PUTs gets one body or another, never a part of one."""
    bodies = [bytes([48 + number]) * LARGE for number in range(2)]
    client.put("/dav/raced", content=bodies[0])
    end = threading.Event()

    def write() -> None:
        with Client(base_url=server.url, headers={"Connection": "close"}) as other:
            for number in range(6):
                other.put("/dav/raced", content=bodies[number % 2])
        end.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not end.is_set():
        assert client.get("/dav/raced").content in bodies
    writer.join()


def tree_of(root: Path, **more: Any) -> Tree:
    return Tree(str(root), "", ProtectedSources(str(root)), **more)


def test_a_member_that_another_location_covers_stays(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    tree = tree_of(tmp_path, covers=lambda path: not path.startswith("/a/b"), top="/x")
    with pytest.raises(HTTPError) as refused:
        changes.delete(Request("DELETE", "/a", (1, 1), path="/a"), tree)
    assert refused.value.status == 403 and (tmp_path / "a" / "b").exists()


def test_a_directory_is_not_made_where_another_location_covers_it(tmp_path: Path) -> None:
    """A location with a pattern may cover /a/, and not /a."""
    tree = tree_of(tmp_path, covers=lambda path: path != "/a/", top="/x")
    with pytest.raises(HTTPError) as refused:
        changes.make_directory(Request("MKCOL", "/a", (1, 1), path="/a"), tree)
    assert refused.value.status == 403 and not os.listdir(tmp_path)
    assert changes.make_directory(Request("MKCOL", "/b", (1, 1), path="/b"), tree).status == 201


def test_a_file_that_another_location_covers_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("mine", "grades", "a/grades", "a/mine"):
        (tmp_path / name).write_text(name)
    tree = tree_of(tmp_path, covers=lambda path: not path.endswith("/grades"), top="/x")
    assert not tree.contains("/grades")

    def asked(path: str, target: str, moves: bool) -> int:
        request = Request("COPY", path, (1, 1), path=path)
        try:
            return changes.transfer(request, tree, target, moves=moves, overwrites=True, deep=True).status
        except HTTPError as refused:
            return refused.status

    assert asked("/grades/", "/b", moves=False) == 404
    # The file that ewe sends for /grades to clients with gzip is out of reach, too.
    assert asked("/mine", "/grades.gz", moves=False) == 403 and not tree.contains("/grades.gz")
    assert asked("/mine", "/mine.gz", moves=False) == 201
    assert asked("/mine", "/grades", moves=True) == 403 and (tmp_path / "grades").read_text() == "grades"
    assert asked("/a", "/b", moves=True) == 403
    assert asked("/a", "/b", moves=False) == 201 and os.listdir(tmp_path / "b") == ["mine"]
    assert asked("/a", "/grades/", moves=False) == 403 and (tmp_path / "grades").is_file()


@pytest.mark.parametrize(
    ("path", "others"),
    [
        ("/a/page.html", []),
        ("/a/page.html.gz", ["/a/page.html"]),
        ("/a/page.en.html", ["/a/page.html"]),
        ("/a/page.EN.html.br", ["/a/page.EN.html", "/a/page.html"]),
        ("/a/page.html.pt-BR", ["/a/page.html"]),
        ("/a/page.html.en.zst", ["/a/page.html.en", "/a/page.html", "/a/page.html.zst"]),
        ("/a/page.html.gz.en", ["/a/page.html.gz"]),
        ("/a/page.fr.html", []),
        ("/a/en.html", []),  # a variant has a name before its language
        ("/a.en/page.html", []),
        ("/a/index.html", ["/a/"]),
        ("/index.en.html.gz", ["/index.en.html", "/index.html", "/"]),
    ],
)
def test_what_a_file_answers(path: str, others: list[str]) -> None:
    found = [*paths_answered_by(path, {"en", "pt-br"}, {"index.html"})]
    assert found[0] == path and sorted({*found[1:]}) == sorted(others)


LANGUAGES_SETTINGS = """\
languages = ["en"]
[[site]]
[[site.location]]
path = "/dav/guarded.html"
methods = ["GET", "HEAD"]
languages = ["en", "de"]
[[site.location]]
path = "/dav/sub/"
methods = ["GET", "HEAD"]
index = ["start.html"]
[[site.location]]
prefix = "/dav"
webdav = true
"""


def test_no_file_answers_for_another_location(start: Start, tmp_path: Path) -> None:
    """A file that negotiation sends for a path of another location cannot be written, moved there or deleted."""
    (tmp_path / "ewe.toml").write_text(LANGUAGES_SETTINGS)
    (tmp_path / "htdocs" / "dav" / "sub").mkdir(parents=True)
    (tmp_path / "htdocs" / "dav" / "guarded.de.html").write_text("guarded")
    (tmp_path / "htdocs" / "dav" / "sub" / "start.html").write_text("start")
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    with Client(base_url=server.url) as client:
        assert client.ask("PUT", "/dav/free.en.html", content="attack") == 201
        names = ("guarded.html", "guarded.en.html", "guarded.de.html", "guarded.html.en", "guarded.en.html.gz",
                 "sub/start.html", "sub/start.en.html", "sub/start.html.gz")  # fmt: skip
        for name in names:
            assert client.ask("PUT", f"/dav/{name}", content="attack") in (403, 405), name
            target = {"Destination": f"/dav/{name}"}
            assert client.ask("COPY", "/dav/free.en.html", headers=target) == 403, name
            assert client.ask("MOVE", "/dav/free.en.html", headers=target) == 403, name
            assert client.ask("DELETE", f"/dav/{name}") in (403, 404, 405), name
        assert client.ask("DELETE", "/dav/sub/") in (403, 405)
        for language in ("en", "de"):
            found = client.get("/dav/guarded.html", headers={"Accept-Language": language})
            assert (found.status_code, found.text) == (200, "guarded")
        assert client.get("/dav/sub/").text == "start"


def test_nothing_passes_an_authorizer_by(start: Start, tmp_path: Path) -> None:
    """It is asked about the path of a request. Destination, and the members of a directory, are other paths."""
    (tmp_path / "ewe.toml").write_text(
        'fastcgi-authorizer = "/DAV/sub/guarded=unix:/none"\n'
        '[[site]]\n[[site.location]]\nprefix = "/dav"\nwebdav = true\n'
    )
    guarded = tmp_path / "htdocs" / "dav" / "sub" / "guarded"
    guarded.mkdir(parents=True)
    (guarded / "marks").write_text("secret")
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    with Client(base_url=server.url) as client:
        assert client.ask("PUT", "/dav/mine", content="attack") == 201
        assert client.get("/dav/sub/guarded/marks").status_code == 503
        for method in ("COPY", "MOVE"):
            for target in ("guarded/new", "guarded/marks", "guarded"):
                assert client.ask(method, "/dav/mine", headers={"Destination": f"/dav/sub/{target}"}) == 403
        assert client.ask("DELETE", "/dav/sub") == 403
        assert client.ask("MOVE", "/dav/sub", headers={"Destination": "/dav/moved"}) == 403
        assert client.ask("COPY", "/dav/sub", headers={"Destination": "/dav/copy"}) == 201
        assert client.get("/dav/copy/guarded/marks").status_code == 404
        assert client.names("/dav/sub/") == ["/dav/sub/"]
    assert (guarded / "marks").read_text() == "secret" and os.listdir(guarded) == ["marks"]


def test_names_of_a_mac(start: Start, tmp_path: Path) -> None:
    """macOS asks for ._NAME beside each file, and writes .DS_Store: hidden names are not there, nor written."""
    (tmp_path / "ewe.toml").write_text('[[site]]\n[[site.location]]\nprefix = "/dav"\nwebdav = true\n')
    directory = tmp_path / "htdocs" / "dav"
    directory.mkdir(parents=True)
    (directory / "._there").write_text("x")
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    with Client(base_url=server.url) as client:
        assert client.ask("PUT", "/dav/note.txt", content="x") == 201
        for name in ("._note.txt", "._there", ".DS_Store"):
            for method in ("PROPFIND", "GET", "HEAD", "DELETE", "PROPPATCH"):
                body = b"" if method != "PROPPATCH" else PROPPATCH
                assert client.ask(method, f"/dav/{name}", content=body) == 404, (method, name)
            assert client.ask("MOVE", f"/dav/{name}", headers={"Destination": "/dav/new"}) == 404
            assert (
                client.ask("PUT", f"/dav/{name}", content="x") == client.ask("MKCOL", f"/dav/{name}") == 403
            )
            assert client.ask("MOVE", "/dav/note.txt", headers={"Destination": f"/dav/{name}"}) == 403
        assert client.names("/dav/") == ["/dav/", "/dav/note.txt"]
    assert sorted(os.listdir(directory)) == ["._there", "note.txt"]


ALL = b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:allprop/></D:propfind>'
QUOTA = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop><D:getlastmodified/>'
    b"<D:getcontentlength/><D:creationdate/><D:resourcetype/><D:quota-available-bytes/><D:quota-used-bytes/></D:prop>"
    b"</D:propfind>"
)
LOCK = (
    b'<?xml version="1.0" encoding="utf-8"?><D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope>'
    b"<D:locktype><D:write/></D:locktype><D:owner><D:href>ada</D:href></D:owner></D:lockinfo>"
)
WIN32 = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propertyupdate xmlns:D="DAV:" xmlns:Z="urn:schemas-microsoft-com:">'
    b"<D:set><D:prop><Z:Win32LastModifiedTime>Wed, 25 Nov 2026 10:00:00 GMT</Z:Win32LastModifiedTime>"
    b"<Z:Win32FileAttributes>00000020</Z:Win32FileAttributes></D:prop></D:set></D:propertyupdate>"
)
PLAIN = {"Depth": "0"}
MEMBERS = {"Depth": "1"}
TIMEOUT = {"Depth": "0", "Timeout": "Second-600"}
FINDER = [  # mount, look, copy a file into it, rename it, delete it
    ("OPTIONS", "", b"", {}, 204),
    ("PROPFIND", "", QUOTA, PLAIN, 207),
    ("PROPFIND", "", QUOTA, MEMBERS, 207),
    ("PROPFIND", "._.", ALL, PLAIN, 404),
    ("PROPFIND", ".DS_Store", ALL, PLAIN, 404),
    ("GET", ".DS_Store", b"", {}, 404),
    ("PROPFIND", ".metadata_never_index", ALL, PLAIN, 404),
    ("PROPFIND", "n.txt", ALL, PLAIN, 404),
    ("PROPFIND", "._n.txt", ALL, PLAIN, 404),
    ("PUT", "n.txt", b"", {}, 201),
    ("LOCK", "n.txt", LOCK, TIMEOUT, 405),
    ("PUT", "n.txt", b"text", {}, 204),
    ("PUT", "._n.txt", b"\0\5\x16\7", {}, 403),
    ("LOCK", "._n.txt", LOCK, TIMEOUT, 405),
    ("PUT", ".DS_Store", b"x" * 6148, {}, 403),
    ("PROPFIND", "n.txt", ALL, PLAIN, 207),
    ("UNLOCK", "n.txt", b"", {"Lock-Token": "<opaquelocktoken:1>"}, 405),
    ("MOVE", "n.txt", b"", {"Destination": "/dav/m.txt"}, 201),
    ("MOVE", "._n.txt", b"", {"Destination": "/dav/._m.txt"}, 404),
    ("GET", "m.txt", b"", {}, 200),
    ("DELETE", "._m.txt", b"", {}, 404),
    ("DELETE", "m.txt", b"", {}, 204),
]
WINDOWS = [  # connect a drive, look, copy a file onto it, make a directory, rename it, delete both
    ("OPTIONS", "", b"", {"translate": "f"}, 204),
    ("PROPFIND", "", b"", PLAIN, 207),
    ("PROPFIND", "", b"", MEMBERS, 207),
    ("PROPFIND", "desktop.ini", b"", PLAIN, 404),
    ("PROPFIND", "n.txt", b"", PLAIN, 404),
    ("PUT", "n.txt", b"", {}, 201),
    ("LOCK", "n.txt", LOCK, TIMEOUT, 405),
    ("PROPPATCH", "n.txt", WIN32, {}, 207),
    ("HEAD", "n.txt", b"", {}, 200),
    ("PUT", "n.txt", b"text", {}, 204),
    ("PROPPATCH", "n.txt", WIN32, {}, 207),
    ("GET", "n.txt", b"", {"translate": "f"}, 200),
    ("PROPFIND", "New%20folder", b"", PLAIN, 404),
    ("MKCOL", "New%20folder", b"", {}, 201),
    ("MOVE", "New%20folder", b"", {"Destination": "/dav/b", "Overwrite": "F"}, 201),
    ("PROPFIND", "b", b"", MEMBERS, 207),
    ("DELETE", "b", b"", {}, 204),
    ("DELETE", "n.txt", b"", {}, 204),
]


@pytest.mark.parametrize("sequence", [FINDER, WINDOWS], ids=["finder", "windows"])
def test_what_file_managers_send(start: Start, tmp_path: Path, sequence: list[Any]) -> None:
    """One kept connection, as file managers use it: after a refusal the next request on it is served."""
    (tmp_path / "ewe.toml").write_text('[[site]]\n[[site.location]]\nprefix = "/dav"\nwebdav = true\n')
    directory = tmp_path / "htdocs" / "dav"
    directory.mkdir(parents=True)
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    with Client(base_url=server.url) as client:
        ports = set()
        for method, name, body, fields, expected in sequence:
            answer = client.request(method, f"/dav/{name}", content=body, headers=fields)
            assert answer.status_code == expected, (method, name)
            if method == "OPTIONS":
                assert answer.headers["dav"] == "1" and "LOCK" not in answer.headers["allow"]
            if method == "GET" and expected == 200:
                assert answer.text == "text"
            if expected == 405:
                assert "PUT" in answer.headers["allow"]
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(ports) == 1
    assert not list(directory.iterdir())


def test_a_file_that_comes_while_its_directory_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PUT that began before puts its file into a directory that was just emptied."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("f")
    rmdir, unlink = os.rmdir, os.unlink
    late = [tmp_path / "a" / "late"]

    def comes(name: str, *, dir_fd: int) -> None:
        if late:
            late.pop().write_text("late")
        rmdir(name, dir_fd=dir_fd)

    def goes(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rmdir", comes)
    monkeypatch.setattr(os, "unlink", goes)
    changes.delete(Request("DELETE", "/a", (1, 1), path="/a"), tree_of(tmp_path, top="/x"))
    assert not os.listdir(tmp_path)


def test_a_move_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is in another file system, or another client was faster: the destination stays unchanged."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    tree = tree_of(tmp_path, top="/x")
    rename = os.rename

    def fails(source: str, target: str, **where: int) -> None:
        if source == "a":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target, **where)

    request = Request("MOVE", "/a", (1, 1), path="/a")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="cross-device"):
        patched.setattr(os, "rename", fails)
        changes.transfer(request, tree, "/b", moves=True, overwrites=True, deep=True)
    assert (tmp_path / "b" / "f").read_text() == "b" and sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert changes.transfer(request, tree, "/b", moves=True, overwrites=True, deep=True).status == 204
    assert (tmp_path / "b" / "f").read_text() == "a" and os.listdir(tmp_path) == ["b"]


MOVE = {"moves": True, "overwrites": True, "deep": True}


def test_a_move_waits_for_a_change_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.features.webdav.tree.LOCK_TIMEOUT_S", 0.05)
    tree = tree_of(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "f").write_text("1")
    request = Request("MOVE", "/a/f", (1, 1), path="/a/f")
    with tree.resource("/a/f") as resource, resource.locked(), pytest.raises(HTTPError) as refused:
        changes.transfer(request, tree, "/b/f", **MOVE)
    assert refused.value.status == 503 and os.listdir(tmp_path / "b") == []
    assert changes.transfer(request, tree, "/b/f", **MOVE).status == 201
    request.path = "/b/f"
    assert changes.transfer(request, tree, "/b/g", **MOVE).status == 201  # one directory, and one lock


def test_a_move_does_not_take_a_version_that_the_client_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, check_target = tmp_path / "f", changes.check_target
    file.write_text("1")

    def replaced(*arguments: Any) -> None:
        check_target(*arguments)
        file.write_text("by another client")

    monkeypatch.setattr(changes, "check_target", replaced)
    fields = (("if-match", upload.etag_of(file.stat())),)
    with pytest.raises(HTTPError) as refused:
        changes.transfer(Request("MOVE", "/f", (1, 1), fields, path="/f"), tree_of(tmp_path), "/g", **MOVE)
    assert refused.value.status == 412 and file.exists() and not (tmp_path / "g").exists()


@pytest.mark.parametrize(("replace", "status"), [
    (lambda file: file.write_text("by another client"), 412), (lambda file: file.mkdir(), 409), (os.mkfifo, 409),
    (lambda file: file.symlink_to("/etc/passwd"), 403), (lambda file: None, 404),
])  # fmt: skip
def test_a_copy_is_of_the_version_that_the_client_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], object], status: int
) -> None:
    """Another request replaces the source between the check of If-Match and the copy."""
    file, copy_beside, tree = tmp_path / "f", changes.copy_beside, tree_of(tmp_path)
    file.write_text("seen")
    seen = upload.etag_of(file.stat())

    def copy_late(*arguments: Any, **options: Any) -> str:
        file.unlink()
        replace(file)
        return copy_beside(*arguments, **options)

    request = Request("COPY", "/f", (1, 1), (("if-match", seen),), path="/f")
    with monkeypatch.context() as patched, pytest.raises((HTTPError, OSError)) as refused:
        patched.setattr(changes, "copy_beside", copy_late)
        changes.transfer(request, tree, "/g", moves=False, overwrites=True, deep=True)
    reason = refused.value
    assert (reason if isinstance(reason, HTTPError) else refusal(reason, "f")).status == status
    assert os.listdir(tmp_path) == (["f"] if file.is_symlink() or file.exists() else [])


@pytest.mark.parametrize("replace", [os.mkfifo, lambda file: (file.parent / "other").rename(file)])
def test_a_copy_of_a_directory_has_only_members_that_were_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], object]
) -> None:
    """Another program replaces a member between its check and its copy."""
    file, copy_member = tmp_path / "a" / "f", changes.copy_member
    file.parent.mkdir()
    for name in ("f", "other"):
        (tmp_path / "a" / name).write_text(name)

    def copy_late(member: changes.Member, target_fd: int) -> None:
        if member.name == "f":
            file.unlink()
            replace(file)
        copy_member(member, target_fd)

    monkeypatch.setattr(changes, "copy_member", copy_late)
    tree, request = tree_of(tmp_path, top="/x"), Request("COPY", "/a", (1, 1), path="/a")
    with pytest.raises(HTTPError) as refused:
        changes.transfer(request, tree, "/b", moves=False, overwrites=True, deep=True)
    assert refused.value.status == 409 and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("method", ["DELETE", "MKCOL", "MOVE"])
def test_a_directory_that_is_moved_is_not_changed_for_its_old_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The request has opened /a, and waits for its lock. Meanwhile /a becomes /b, and there is another /a."""
    path = "/a/new" if method == "MKCOL" else "/a/f"
    tree, locked = tree_of(tmp_path, top="/x"), DavPath.locked
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("text")

    def moved(resource: DavPath) -> Any:
        if not (tmp_path / "b").exists():
            (tmp_path / "a").rename(tmp_path / "b")
            (tmp_path / "a").mkdir()
        return locked(resource)

    monkeypatch.setattr(DavPath, "locked", moved)
    request = Request(method, path, (1, 1), path=path)
    with pytest.raises(HTTPError) as refused:
        if method == "MOVE":
            changes.transfer(request, tree, "/g", **MOVE)
        else:
            {"DELETE": changes.delete, "MKCOL": changes.make_directory}[method](request, tree)
    assert refused.value.status == 409 and os.listdir(tmp_path / "b") == ["f"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("adds", ["PUT", "MKCOL", "COPY"])
def test_no_member_is_added_to_a_directory_while_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adds: str
) -> None:
    """At its new path the member would belong to another location, and nobody has checked it."""
    tree = tree_of(tmp_path, covers=lambda path: not path.startswith("/b/sub/late"), top="/x")
    for name in ("a/sub", "a/z", "f"):
        (tmp_path / name).mkdir(parents=True) if name != "f" else (tmp_path / name).write_text("f")
    monkeypatch.setattr("ewe.features.webdav.tree.LOCK_TIMEOUT_S", 60)
    reachable, adding, statuses, threads = changes.reachable, Tree.adding, [], []
    begins = threading.Event()  # the thread is about to take the lock

    def add() -> None:
        try:
            statuses.append(added(tree, adds, "/a/sub/late"))
        except HTTPError as refused:
            statuses.append(refused.status)

    def adding_seen(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() in threads:
            begins.set()
        return adding(*arguments, **options)

    def reachable_late(*arguments: Any) -> bool:
        # The check within the lock; all members of sub are checked.
        if arguments[1].name == "z" and tree.addition_lock.holders and not threads:
            threads.append(threading.Thread(target=add))
            threads[0].start()
            assert begins.wait(60)
            threads[0].join(0.3)
        return reachable(*arguments)

    monkeypatch.setattr(changes, "reachable", reachable_late)
    monkeypatch.setattr(Tree, "adding", adding_seen)
    moved = changes.transfer(Request("MOVE", "/a", (1, 1), path="/a"), tree, "/b", **MOVE)
    threads[0].join()
    assert (moved.status, statuses) == (201, [409]) and os.listdir(tmp_path / "b" / "sub") == []
    assert sorted(os.listdir(tmp_path)) == ["b", "f"]


def test_requests_wait_only_for_a_directory_that_is_moved_below_the_same_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ewe.features.webdav.tree.LOCK_TIMEOUT_S", 0.05)
    roots = [tmp_path / "one", tmp_path / "other"]
    for root in roots:
        (root / "a").mkdir(parents=True)
        (root / "f").write_text("f")
    tree, other = (tree_of(root, top="/x") for root in roots)
    move = Request("MOVE", "/a", (1, 1), path="/a")
    for holder, moves_directory, expected in ((tree, True, 503), (tree, False, 201), (other, True, 201)):
        for method in ("PUT", "MKCOL", "COPY"):
            with holder.adding("/", moves_directory=moves_directory):
                try:
                    status = added(tree, method, f"/{method}-{expected}-{holder is tree}")
                except HTTPError as reason:
                    status = reason.status
            assert status == expected, method
    with tree_of(roots[0]).adding("/"), pytest.raises(HTTPError) as refused:
        changes.transfer(move, tree, "/b", **MOVE)
    assert refused.value.status == 503 and changes.transfer(move, tree, "/b", **MOVE).status == 201


@pytest.mark.parametrize(("hidden", "overwrites", "status"), [
    ("a/.git", True, 403), ("b/.git", True, 403), ("b/f", False, 412),
])  # fmt: skip
def test_a_move_that_is_refused_lets_no_other_request_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, overwrites: bool, status: int
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / hidden).write_text("x")
    monkeypatch.setattr(Tree, "adding", None)
    request, options = Request("MOVE", "/a", (1, 1), path="/a"), {**MOVE, "overwrites": overwrites}
    with pytest.raises(HTTPError) as refused:
        changes.transfer(request, tree_of(tmp_path, top="/x"), "/b", **options)
    assert refused.value.status == status and (tmp_path / hidden).exists()


def added(tree: Tree, method: str, path: str) -> int:
    """Return the status of a request that adds a name to a tree."""
    if method == "MKCOL":
        return changes.make_directory(Request(method, path, (1, 1), path=path), tree).status
    if method == "COPY":
        request = Request(method, "/f", (1, 1), path="/f")
        return changes.transfer(request, tree, path, moves=False, overwrites=True, deep=True).status
    request = Request(method, path, (1, 1), path=path)
    request.body, request.length = Body(lambda: b"text"), None
    return run(upload.put(request, MemoryStream([]), tree, 100)).status


def test_two_names_of_one_file_become_one(tmp_path: Path) -> None:
    """rename(2) does nothing if both names lead to one file."""
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    request = Request("MOVE", "/a", (1, 1), path="/a")
    assert changes.transfer(request, tree_of(tmp_path), "/b", **MOVE).status == 204
    assert os.listdir(tmp_path) == ["b"] and (tmp_path / "b").read_text() == "text"


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize(("path", "target", "expected"), [
    ("/a/f", "/a/F", "a/F"), ("/a/f", "/A/F", "a/F"), ("/a/f", "/A/f", "a/f"), ("/a", "/A", "A/f"),
])  # fmt: skip
def test_two_spellings_of_one_name_lose_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, target: str, expected: str, links: int
) -> None:
    """The file system ignores case. A path with another directory, and the same name, is like a bind mount."""
    (root := tmp_path / "root").mkdir()
    (root / "a").mkdir()
    (root / "a" / "f").write_text("text")
    if links == 2:
        (tmp_path / "elsewhere").hardlink_to(root / "a" / "f")
    for function in ("stat", "open"):
        monkeypatch.setattr(os, function, caseless(getattr(os, function)))
    response = changes.transfer(
        Request("MOVE", path, (1, 1), path=path), tree_of(root, top="/x"), target, **MOVE
    )
    monkeypatch.undo()
    files = [str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()]
    assert (response.status, files) == (204, [expected]) and (root / expected).read_text() == "text"


def caseless(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return os.stat or os.open of a file system that ignores case, for names in an open directory."""

    def call(name: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
        if dir_fd is not None:
            name = next((each for each in os.listdir(dir_fd) if each.lower() == name.lower()), name)
        return function(name, *arguments, dir_fd=dir_fd, **options)

    return call


def test_depth_and_members_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_DEPTH", 5)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)
    with pytest.raises(HTTPError) as refused:
        changes.delete(Request("DELETE", "/a", (1, 1), path="/a"), tree_of(tmp_path, top="/x"))
    assert refused.value.status == 507 and (tmp_path / "/".join("abcdefgh")).exists()


class Body(type(Request("PUT", "/", (1, 1)).body)):  # type: ignore[misc]
    """The body of a PUT: an effect at the reading of each piece, and the piece."""

    def __init__(self, *pieces: Callable[[], bytes]) -> None:
        self.pieces = list(pieces)

    async def receive(self) -> bytes:
        return self.pieces.pop(0)() if self.pieces else b""


def put(tree: Tree, body: Body, **fields: str) -> int:
    """The status of a PUT to /f."""
    request = Request("PUT", "/f", (1, 1), tuple(fields.items()), path="/f")
    request.body, request.length = body, None
    try:
        return run(upload.put(request, Stream(("", 0), ("", 0), None), tree, 100)).status  # type: ignore[arg-type]
    except HTTPError as error:
        return error.status


class Leaving(Stream):
    """A client that leaves during a call: an executor thread makes the call later (run_late)."""

    async def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.late = function, arguments, options.get("abandoned", lambda: None)
        raise Disconnected

    def run_late(self) -> Any:
        """Make the call, and clean up after it; return its result."""
        function, arguments, abandoned = self.late
        try:
            return function(*arguments)
        finally:
            abandoned()


def test_a_client_that_leaves_while_its_file_gets_a_name(tmp_path: Path) -> None:
    """Other files have the numbers of closed descriptors soon: the call must not find them."""
    for name in "ab":
        (tmp_path / name).mkdir()
    tree, io = tree_of(tmp_path, top="/x"), Leaving(("", 0), ("", 0), None)  # type: ignore[arg-type]
    before = len(open_files(os.getpid()))
    request = Request("PUT", "/a/f", (1, 1), path="/a/f")
    request.body, request.length = Body(lambda: b"mine"), None
    with pytest.raises(Disconnected):
        run(upload.put(request, io, tree, 100))

    def look() -> bytes:
        assert io.run_late().status == 201
        return b"of another client"

    request = Request("PUT", "/b/g", (1, 1), path="/b/g")
    request.body, request.length = Body(look), None
    assert run(upload.put(request, Stream(("", 0), ("", 0), None), tree, 100)).status == 201  # type: ignore[arg-type]
    assert (tmp_path / "a" / "f").read_text() == "mine"
    assert os.listdir(tmp_path / "b") == ["g"] and (tmp_path / "b" / "g").read_text() == "of another client"
    assert len(open_files(os.getpid())) == before


def test_a_client_that_leaves_while_its_directory_is_listed(tmp_path: Path) -> None:
    (tmp_path / "name").touch()
    io = Leaving(("", 0), ("", 0), None)  # type: ignore[arg-type]
    root, protected = str(tmp_path), ProtectedSources(str(tmp_path))
    webdav = WebDAV(Config(), root, "", protected, lambda path: True, "", {"write": False}, has_log_in=True)
    before = len(open_files(os.getpid()))
    request = Request("PROPFIND", "/", (1, 1), (("depth", "1"),))
    with pytest.raises(Disconnected):
        run(webdav.respond(request, io))
    # The call that reads the names opens and closes its own descriptor.
    assert io.run_late() == ["name"] and len(open_files(os.getpid())) == before
    response = run(webdav.respond(request, Stream(("", 0), ("", 0), None)))  # type: ignore[arg-type]
    assert response is not None and isinstance(response.body, feature.Members)
    response.body.io = io
    with pytest.raises(Disconnected):
        run(response.body.receive())
    run(response.close())
    assert b"name" in io.run_late() and len(open_files(os.getpid())) == before


def test_a_namespace_of_many_properties_is_counted_for_each() -> None:
    """The answer repeats it for each property of each file: a short request would make a huge answer."""
    names = "".join(f"<a:p{number}/>" for number in range(100))
    body = f'<propfind xmlns="DAV:"><prop xmlns:a="{"n" * 10_000}">{names}</prop></propfind>'.encode()
    assert len(body) < properties.MAX_XML_BYTES
    with pytest.raises(HTTPError) as refused:
        properties.parse_propfind(body)
    assert refused.value.status == 400 and "exceed 16384 characters" in refused.value.cause
    usual = body.replace(b"n" * 10_000, b"http://example.org/a/namespace/of/usual/length/")
    assert len(properties.parse_propfind(usual).names or ()) == 100


def test_a_piece_of_a_listing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "PIECE_CHARS", 1)
    for name in "abc":
        (tmp_path / name).touch()
    io = Stream(("", 0), ("", 0), None)  # type: ignore[arg-type]
    root, protected = str(tmp_path), ProtectedSources(str(tmp_path))
    webdav = WebDAV(Config(), root, "", protected, lambda path: True, "", {"write": False}, has_log_in=True)
    response = run(webdav.respond(Request("PROPFIND", "/", (1, 1), (("depth", "1"),)), io))
    assert response is not None and isinstance(response.body, Source)
    pieces = [run(response.body.receive()) for _ in range(5)]
    run(response.close())
    assert [piece.count(b"<D:response>") for piece in pieces] == [2, 1, 1, 0, 0]
    assert pieces[3] == properties.END.encode() and pieces[4] == b""


def test_a_listing_that_lacks_members_is_not_sent_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor, a file looks as if it were deleted, and a client would delete its own copy."""
    (tmp_path / "a").touch()
    io = Stream(("", 0), ("", 0), None)  # type: ignore[arg-type]
    root, protected = str(tmp_path), ProtectedSources(str(tmp_path))
    webdav = WebDAV(Config(), root, "", protected, lambda path: True, "", {"write": False}, has_log_in=True)
    response = run(webdav.respond(Request("PROPFIND", "/", (1, 1), (("depth", "1"),)), io))
    assert response is not None and isinstance(response.body, Source)

    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor left")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no descriptor left"):
        patched.setattr(os, "open", none_left)
        run(response.body.receive())
    run(response.close())


def test_a_directory_with_too_many_names_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.features.webdav.tree.MAX_NAMES", 2)
    (tmp_path / "a").mkdir()
    for name in "xyz":
        (tmp_path / "a" / name).touch()
    io = Stream(("", 0), ("", 0), None)  # type: ignore[arg-type]
    root, protected = str(tmp_path), ProtectedSources(str(tmp_path))
    webdav = WebDAV(Config(), root, "", protected, lambda path: True, "/x", {"write": True}, has_log_in=True)
    before = len(open_files(os.getpid()))
    for method, depth, status in (("PROPFIND", "1", 403), ("DELETE", "infinity", 507)):
        with pytest.raises(HTTPError) as refused:
            run(webdav.respond(Request(method, "/a", (1, 1), (("depth", depth),), path="/a"), io))
        assert refused.value.status == status, method
    assert len(os.listdir(tmp_path / "a")) == 3 and len(open_files(os.getpid())) == before


def test_a_member_whose_path_is_too_long_for_a_pattern_is_not_listed(tmp_path: Path) -> None:
    """No client can request it, and one such file must not end the listing of its directory."""
    prefix = "/" + "p" * 150
    (tmp_path / "dav" / "d").mkdir(parents=True)
    for name in ("n" * 250, "short"):
        (tmp_path / "dav" / "d" / name).touch()
    (tmp_path / "ewe.toml").write_text(
        f"documentroot = '{tmp_path}'\n[[site]]\n[[site.location]]\npattern = '^/(.*)/(.*)/(.*)[.]php$'\n"
        f"status = 404\n[[site.location]]\nprefix = '{prefix}'\nalias = '{tmp_path}/dav'\nwebdav = true\n"
    )
    site = make_site(Config.load(environ={}, file=str(tmp_path / "ewe.toml")))
    request = Request("PROPFIND", f"{prefix}/d/", (1, 1), (("depth", "1"),), path=f"{prefix}/d/")
    response = run(site.respond(request, MemoryStream([])))
    assert response.status == 207 and isinstance(response.body, Source)
    assert b"short" in (piece := run(response.body.receive())) and b"nnn" not in piece
    run(response.close())


def test_a_member_with_control_characters_is_out_of_reach(tmp_path: Path) -> None:
    """A request for its path is refused, so no request for its directory may show or delete it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b\nc").write_text("x")
    with pytest.raises(HTTPError) as refused:
        changes.delete(Request("DELETE", "/a", (1, 1), path="/a"), tree_of(tmp_path, top="/x"))
    assert refused.value.status == 403 and os.listdir(tmp_path / "a") == ["b\nc"]


def test_dates_of_files_beyond_the_calendar() -> None:
    """One such file must not end the listing of its directory."""
    assert properties.iso_date(1_000_000_000) == "2001-09-09T01:46:40Z"
    assert properties.iso_date(-(10**17)) == "0001-01-01T00:00:00Z"
    assert properties.iso_date(10**17) == "9999-12-31T23:59:59Z"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's word for it becomes a 507, and nothing is left."""

    def full(descriptor: int, data: bytes) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(upload, "write", full)
    assert put(tree_of(tmp_path, top="/x"), Body(lambda: b"x")) == 507 and not os.listdir(tmp_path)


def test_a_system_without_descriptors_memory_or_threads_is_503() -> None:
    for number in EXHAUSTED:
        refused = refusal(OSError(number, os.strerror(number)), "/a")
        assert (refused.status, refused.fields) == (503, (("Retry-After", "1"),)), refused.cause


def test_a_file_system_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        upload, "UNNAMED_FILE_FLAGS", os.O_WRONLY
    )  # to open a directory: EISDIR, as such file systems say
    tree = tree_of(tmp_path, top="/x")
    names: list[str] = []

    def look() -> bytes:
        names.extend(os.listdir(tmp_path))
        return b"text"

    assert put(tree, Body(look)) == 201 and os.listdir(tmp_path) == ["f"] and names[0].startswith(".ewe-")
    assert put(tree, Body(lambda: b"x" * 200)) == 413 and (tmp_path / "f").read_text() == "text"
    request = Request("COPY", "/f", (1, 1), path="/f")
    changes.transfer(request, tree, "/g", moves=False, overwrites=True, deep=True)
    assert sorted(os.listdir(tmp_path)) == ["f", "g"] and (tmp_path / "g").read_text() == "text"


def test_a_change_while_the_body_comes(tmp_path: Path) -> None:
    """The condition held when the request came, and does not hold any more when its body has come."""
    tree = tree_of(tmp_path, top="/x")
    (tmp_path / "f").write_text("first")
    tag = upload.etag_of((tmp_path / "f").stat())

    def another_client() -> bytes:
        assert put(tree, Body(lambda: b"second"), **{"if-match": tag}) == 204
        return b"third"

    assert put(tree, Body(another_client), **{"if-match": tag}) == 412
    assert (tmp_path / "f").read_text() == "second" and os.listdir(tmp_path) == ["f"]


def test_a_directory_that_is_moved_gets_no_file_of_an_earlier_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was checked for the path /a/f. Another location may cover the path /b/f."""
    tree = tree_of(tmp_path, top="/x")
    (tmp_path / "a").mkdir()

    def move() -> bytes:
        (tmp_path / "a").rename(tmp_path / "b")
        return b"text"

    request = Request("PUT", "/a/f", (1, 1), path="/a/f")
    request.body, request.length = Body(move), None
    with pytest.raises(HTTPError) as refused:
        run(upload.put(request, Stream(("", 0), ("", 0), None), tree, 100))  # type: ignore[arg-type]
    assert refused.value.status == 409 and os.listdir(tmp_path / "b") == []

    (tmp_path / "a").mkdir()
    (tmp_path / "b").rename(tmp_path / "old")
    (tmp_path / "g").write_text("text")
    copy_beside = changes.copy_beside

    def copy_slowly(*arguments: Any, **options: Any) -> str:
        name = copy_beside(*arguments, **options)
        move()
        (tmp_path / "a").mkdir()  # another directory at the path
        return name

    monkeypatch.setattr(changes, "copy_beside", copy_slowly)
    with pytest.raises(HTTPError) as refused:
        request = Request("COPY", "/g", (1, 1), path="/g")
        changes.transfer(request, tree, "/a/f", moves=False, overwrites=True, deep=True)
    assert refused.value.status == 409 and os.listdir(tmp_path / "b") == os.listdir(tmp_path / "a") == []


@pytest.mark.parametrize(
    "lines, words",
    [
        ('path = "/x"\nwebdav = true', "webdav = answers below a prefix"),
        ('prefix = "/x"\nwebdav = { max-size = "big" }', 'webdav.max-size = "big": expected a size'),
        ('prefix = "/x"\nwebdav = true\ngateway = "cgi"', "lead to different places"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "ewe.toml").write_text(f"[[site]]\n[[site.location]]\n{lines}\n")
    with pytest.raises(ConfigError) as refused:
        Config.load(file=str(tmp_path / "ewe.toml"), environ={})
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.needs("litmus")
def test_litmus(start: Start, tmp_path: Path) -> None:
    """The test suite of neon's authors: all of it but dead properties, and locks, which ewe does not claim."""
    (tmp_path / "ewe.toml").write_text('[[site]]\n[[site.location]]\nprefix = "/dav"\nwebdav = true\n')
    server = start("asyncio", "--config", str(tmp_path / "ewe.toml"))
    server.wait_for_log("everybody may write and delete files below /dav")
    (server.root / "dav").mkdir()
    done = subprocess.run(
        ["litmus", "-k", f"{server.url}dav/"], capture_output=True, text=True, cwd=tmp_path, timeout=50,
        env={**os.environ, "TESTS": "basic copymove http"},
    )  # fmt: skip
    assert done.stdout.count("0 failed. 100.0%") == 3, done.stdout
    shutil.rmtree(server.root / "dav")
