"""ewe on a person's machine: the log of a terminal, addresses for other computers, the browser, Markdown."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import web
from support.server import Start, wait_until, write_program

from ewe import short_line
from ewe.http.dates import http_date
from ewe.server.run import network_address, other_urls_line

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"\d\d:\d\d:\d\d  \x1b\[(\d+)m(\d+)\x1b\[0m +[\d.]+ [KMG]?B +[\d.]+ m?s  (.+)")


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (1434, "1.4 KB"), (12 << 10, "12 KB"), (999 << 10, "999 KB"),
     (1 << 20, "1.0 MB"), (3 << 30, "3.0 GB"), (5000 << 30, "5000 GB")],
)  # fmt: skip
def test_sizes(count: int, shown: str) -> None:
    assert short_line.size(count) == shown


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(7, "0.01 ms"), (80, "0.08 ms"), (999, "1.0 ms"), (1400, "1.4 ms"), (120_000, "120 ms"), (2_500_000, "2.5 s"),
     (100_000_000, "100 s")],
)  # fmt: skip
def test_durations(micros: int, shown: str) -> None:
    assert short_line.duration(micros) == shown


def test_clients_are_named_if_they_are_other_computers() -> None:
    for client, end in (("127.0.0.1", "/x"), ("::1", "/x"), ("192.0.2.7", "/x  192.0.2.7")):
        assert (
            short_line.short_line("GET /x HTTP/1.1", client, 200, 1, 1, False).rstrip().endswith("GET " + end)
        )


@pytest.mark.starts_processes
@pytest.mark.parametrize("model", ["thread", "asyncio"])
@pytest.mark.needs("a pseudo-terminal")
def test_the_log_of_a_terminal(tmp_path: Path, model: str) -> None:
    """Status, size, time and path, in color; in a file it is the combined format."""
    (tmp_path / "a.txt").write_text("a" * 5000)
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "ewe", "--model", model, "--port", "0", str(tmp_path)],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ,
    )  # fmt: skip
    try:
        os.close(theirs)
        assert process.stderr is not None
        found = re.search(r"http://[^ ]+/", process.stderr.readline())
        assert found
        said = ""
        # A thread may write its line after the next one has: each line is waited for.
        for lines, (path, status) in enumerate((("a.txt", 200), ("no%1b[31mway", 404)), 1):
            assert web.get(found[0] + path).status_code == status
            while said.count("\n") < lines:
                said += os.read(ours, 1000).decode()
        first, second = said.splitlines()
        assert (match := LINE.fullmatch(first)) and match.groups() == ("32", "200", "GET /a.txt"), said
        assert "4.9 KB" in first
        assert (match := LINE.fullmatch(second)) and match.groups()[:2] == ("33", "404"), said
        assert "\x1b[31m" not in second, "a client cannot color a terminal"
    finally:
        process.terminate()
        process.communicate(timeout=30)
        os.close(ours)


def test_addresses_for_other_computers() -> None:
    here = network_address()
    assert re.fullmatch(r"(\d+\.){3}\d+|", here)
    said = other_urls_line("http://0.0.0.0:8080/ unix:/run/x")
    assert said.startswith("ewe: on this computer http://127.0.0.1:8080/")
    assert said.endswith(f"on the network http://{here}:8080/\n" if here else "8080/\n")
    assert other_urls_line("https://[::]:4/").startswith("ewe: on this computer https://[::1]:4/")
    assert other_urls_line("http://127.0.0.1:8080/") == other_urls_line("http://192.0.2.1:80/") == ""


@pytest.mark.starts_processes
def test_the_browser_is_shown_the_site(start: Start, tmp_path: Path) -> None:
    write_program(
        tmp_path / "browser",
        f'#!/bin/sh\necho "$1" > {tmp_path}/shown.new\nmv {tmp_path}/shown.new {tmp_path}/shown\n',
    )
    server = start("pool", "--open", env={"BROWSER": f"{tmp_path}/browser %s"})
    wait_until((tmp_path / "shown").exists, 20)
    assert (tmp_path / "shown").read_text().strip() == server.url


def test_markdown(start: Start, model: str) -> None:
    """A page for people, the file for programs that ask for it; conditions, HEAD, and files that are no page."""
    server = start(model, "--markdown")
    notes = server.root / "notes.md"
    notes.write_text("# Notes & *more*\n\n| a | b |\n|---|---|\n| 1 | <b>2</b> |\n")
    (server.root / ".hidden.md").write_text("secret")
    (server.root / "large.md").write_text("large\n\n" * 50_000)
    (server.root / "no.md").mkdir()
    os.utime(notes, (1e9, 1e9))
    with web.Client(base_url=server.url) as client:
        page = client.get("notes.md")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "<title>Notes &amp; more</title>" in page.text and "<td><b>2</b></td>" in page.text
        assert page.headers["last-modified"] == http_date(1e9)
        etag = page.headers["etag"]
        again = client.get("notes.md", headers={"If-None-Match": etag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        head = client.head("notes.md")
        assert (head.headers["content-length"], head.content) == (str(len(page.content)), b"")
        source = client.get("notes.md?source")
        assert source.text.startswith("# Notes") and source.headers["etag"] != etag
        assert source.headers["content-type"] == "text/markdown; charset=utf-8"
        assert client.get("large.md").headers["content-type"].startswith("text/markdown")
        assert client.get(".hidden.md").status_code == client.get("none.md").status_code == 404
        assert client.post("notes.md").status_code == 405
        assert client.get("no.md").status_code == 301
        notes.write_text("No heading")
        page = client.get("notes.md")
        assert "<title>notes.md</title>" in page.text and page.headers["etag"] != etag


def test_without_the_package_markdown_the_start_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from ewe.config.settings import Config
    from ewe.sites import make_site

    monkeypatch.setitem(sys.modules, "markdown", None)
    with pytest.raises(ValueError, match="pip install markdown"):
        make_site(Config(markdown=True))


def test_completion_and_manual_are_those_of_the_command_line(tmp_path: Path) -> None:
    """`make docs` writes them."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("share_make", ROOT / "share" / "make.py")
    assert spec and spec.loader
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    for name, text in make.files().items():
        assert (ROOT / "share" / name).read_text() == text, f"share/{name} is not up to date: run make docs"


@pytest.mark.starts_processes
def test_bash_completes_options_and_their_values() -> None:
    script = (
        f"source {shlex.quote(str(ROOT))}/share/completion/ewe\n"
        'ask() { COMP_WORDS=(ewe "$@"); COMP_CWORD=$#; _shtab_ewe; echo "${COMPREPLY[@]}"; }\n'
        f'cd {shlex.quote(str(ROOT))}; ask --doc; ask --tls ""; ask --model pre; ask htd; ask 8080 htd\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["--documentroot", "off self", "prefork", "htdocs", "htdocs"]
