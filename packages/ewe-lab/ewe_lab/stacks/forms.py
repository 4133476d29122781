"""The program of the LibCGI paper's section 5 in every form: its query is the number of bytes of the answer.

    bytes.cgi, bytes.fcgi, bytes.so      in C: CGI, FastCGI, LibCGI (ewe_lab/stacks/sources)
    bytes.py                             in Python: CGI, and under X-Switch
    bytes_wsgi.py, bytes_asgi.py         in Python: in the server's interpreter
    28.html, 1024.html, ...              the same bytes as files

All send the same body and a Content-Length. ewe_lab.stacks.gateways runs them. Raises LabError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.stacks import compiled
from ewe_lab.stacks.programs import PYTHON

SIZE = "size = int(query or 28)\n"
SCRIPT = f"""\
{PYTHON}import os, sys

query = os.environ.get("QUERY_STRING")
{SIZE}sys.stdout.write("Content-Type: text/plain\\nContent-Length: %d\\n\\n" % size)
sys.stdout.write("x" * (size - 1) + "\\n")
"""
WSGI = """\
def application(environ, start_response):
    size = int(environ["QUERY_STRING"] or 28)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(size))])
    return [b"x" * (size - 1) + b"\\n"]
"""
ASGI = """\
async def application(scope, receive, send):
    if scope["type"] != "http":
        raise ValueError("HTTP only")
    size = int(scope["query_string"] or 28)
    head = [(b"content-type", b"text/plain"), (b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"x" * (size - 1) + b"\\n"})
"""
TEXTS = {"bytes.py": SCRIPT, "bytes_wsgi.py": WSGI, "bytes_asgi.py": ASGI}
PROGRAM = "bytes.cgi"  # all other forms are in the same directory


def write_forms(lab: Bench, sizes: Sequence[int] = ()) -> Path:
    """Return the directory with all forms, and a file of each size. Without a compiler there are no forms in C."""
    directory = lab.directory / "forms"
    if not directory.exists():
        directory.mkdir()
        for name, text in TEXTS.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        if not compiled.why_missing():
            compiled.build(compiled.SOURCES / "bytes_cgi.c", directory / "bytes.cgi")
            compiled.build(compiled.SOURCES / "bytes_fcgi.c", directory / "bytes.fcgi")
            compiled.build_library(compiled.SOURCES / "bytes_lib.c", directory / "bytes.so")
    for size in sizes:
        (directory / f"{size}.html").write_bytes(body(size))
    return directory


def body(size: int) -> bytes:
    """Return the body of an answer."""
    return b"x" * (size - 1) + b"\n"
