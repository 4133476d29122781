"""The files that the servers of features_of_others.py serve, and their ports."""

from __future__ import annotations

import base64
import gzip
import hashlib
import socket
import subprocess
from pathlib import Path

BIG = 600_000
"""Bytes of the file that is sent slowly, or while the server reads its settings again."""


def free_ports(*names: str) -> dict[str, int]:
    """Return a free port of loopback for each name."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return dict(zip(names, ports, strict=True))


def files() -> dict[str, str | bytes]:
    """Return the files below the place, by path."""
    page = "<p>A page.\n" + "All work and no play. " * 200
    return {
        "htdocs/index.html": "start\n",
        "htdocs/page.html": page,
        "htdocs/own-404.html": "gone fishing\n",
        "htdocs/fly/page.html": page,
        "htdocs/negotiated/packed.html.gz": gzip.compress(b"packed in advance\n"),
        "htdocs/negotiated/packed.html": b"not packed\n",
        "htdocs/negotiated/chosen.html.gz": gzip.compress(b"packed in advance\n" * 50),
        "htdocs/negotiated/chosen.html": b"not packed\n" * 50,
        "htdocs/negotiated/tongue.html.de": "deutsch\n",
        "htdocs/negotiated/tongue.html.en": "english\n",
        "htdocs/negotiated/signs.html.utf8": "utf\n",
        "htdocs/negotiated/signs.html.latin1": "latin\n",
        "htdocs/front/front.html": "front\n",
        "htdocs/htaccess/.htaccess": "Redirect 302 /htaccess/old /page.html\n",
        "htdocs/htaccess/index.html": "htaccess\n",
        "htdocs/basic/index.html": "secret\n",
        "htdocs/digest/index.html": "secret\n",
        "htdocs/deny/index.html": "secret\n",
        "htdocs/limited/index.html": "limited\n",
        "htdocs/slow/big.bin": b"x" * BIG,
        "htdocs/huge.bin": b"x" * (40 * BIG),
        "htdocs/field.html": "field\n",
        "htdocs/list/one-file.txt": "one\n",
        "htdocs/dav/there.txt": "there\n",
        "htdocs/hello.php": "<?php echo 'php ' . (6 * 7);",
        "htdocs/page.lua": "function handle(r) r:puts('lua ' .. 6 * 7) return apache2.OK end\n",
        "htdocs/ssi/page.html": '<!--#echo var="REQUEST_URI" -->{{.Req.URL.Path}}',
        "second/index.html": "second\n",
        "elsewhere/here.html": "elsewhere\n",
        "homes/ada/public_html/index.html": "ada\n",
        "cgi/hello.cgi": "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\ncgi %s' \"$REMOTE_ADDR\"\n",
        "htdigest": f"ada:digest:{hashlib.md5(b'ada:digest:lovelace').hexdigest()}\n",
    }


def build(place: Path) -> dict[str, str]:
    """Write the files, passwords and certificates; return the words that settings files contain."""
    place.chmod(0o755)
    for path, content in files().items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (place / "cgi/hello.cgi").chmod(0o755)
    for directory in ("davlock", "cache", "caddy", "htdocs/dav"):
        (place / directory).mkdir(exist_ok=True)
        (place / directory).chmod(0o777)
    htpasswd = ["htpasswd", "-nbB", "ada", "lovelace"]
    line = subprocess.run(htpasswd, capture_output=True, text=True, check=True).stdout.strip()
    (place / "htpasswd").write_text(line + "\n")
    for name in ("one.test", "two.test", "guard.test"):
        certificate(place, name)
    hashed = line.partition(":")[2].encode()
    return {"PLACE": str(place), "BCRYPT64": base64.b64encode(hashed).decode()}


def certificate(place: Path, name: str) -> None:
    """Write a certificate for a name, signed by itself."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    command += ["-addext", f"subjectAltName=DNS:{name}"]
    command += ["-keyout", str(place / f"{name}.key"), "-out", str(place / f"{name}.crt")]
    subprocess.run(command, check=True, capture_output=True)
