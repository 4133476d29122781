"""Try the rows of docs/features.md on Apache, nginx and Caddy, and compare the page's cells with the answers.

    python3 tests/applications/features_of_others.py [apache] [nginx] [caddy]

Needs the servers, php-cgi, htpasswd, openssl and curl, as Debian packages them. Each server runs on loopback with
one settings file of `others/`. All servers get the same requests: one probe for each row. A server that lacks a
feature has no settings for it, and its probe finds nothing. The program prints what each probe saw, and ends with
status 1 if a cell of the page says something else. A cell whose mark has a dagger (`✓†`) comes from
documentation, and is not compared.

A probe proves a ✓. It cannot prove a –: the settings files hold what their author knows of each server.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from others import backends  # noqa: E402 - the path comes first
from others.place import build, free_ports  # noqa: E402
from others.probes import PROBES, Server, threads_and_processes  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "features.md"
COLUMNS = {"apache": 2, "nginx": 3, "caddy": 4}
"""The column of each server in the page's tables; 0 names the row."""
APACHE_MODULES = """
    authz_core authz_host authz_user authn_core authn_file auth_basic auth_digest alias dir mime negotiation
    rewrite deflate brotli filter autoindex headers expires env setenvif userdir dav dav_fs dav_lock cgid lua
    include proxy proxy_http proxy_fcgi proxy_scgi proxy_uwsgi proxy_balancer lbmethod_byrequests slotmem_shm cache
    cache_disk socache_shmcb ssl http2 remoteip ratelimit
"""
MODELS = {"apache": ["prefork", "worker", "event"], "nginx": ["workers"], "caddy": ["goroutines"]}
"""The concurrency models of each server; the rows are tried under the last one."""
SETTINGS = {"apache": "apache.conf", "nginx": "nginx.conf", "caddy": "Caddyfile"}
READY_SECONDS = 20


def write_settings(name: str, place: Path, words: dict[str, str]) -> Path:
    """Write the settings of a server, with the places and ports of this run."""
    text = (HERE / "others" / SETTINGS[name]).read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    file = place / SETTINGS[name]
    file.write_text(text)
    return file


def commands(name: str, settings: Path) -> tuple[list[str], list[str]]:
    """Return the command that starts a server, and the one that makes it read its settings again."""
    if name == "apache":
        start = ["apache2", "-f", str(settings), "-D", "FOREGROUND"]
        return start, ["apache2", "-f", str(settings), "-k", "graceful"]
    if name == "nginx":
        start = ["nginx", "-e", "stderr", "-c", str(settings), "-g", "daemon off;"]
        return start, ["nginx", "-e", "stderr", "-c", str(settings), "-s", "reload"]
    start = ["caddy", "run", "--config", str(settings), "--adapter", "caddyfile"]
    return start, ["caddy", "reload", "--force", "--config", str(settings), "--adapter", "caddyfile"]


@contextmanager
def running(name: str, model: str) -> Iterator[Server]:
    """Start a server and the servers behind it; stop all of them at the end."""
    with tempfile.TemporaryDirectory(prefix="features-") as directory, backends.running() as behind:
        place = Path(directory)
        ports = free_ports("PORT", "TLS", "PROXIED", "ADMIN") | behind
        words = build(place) | {key: str(port) for key, port in ports.items()}
        words["MODULES"] = "\n".join(
            f"LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so"
            for module in [f"mpm_{model}", *APACHE_MODULES.split()]
        )
        start, reload = commands(name, write_settings(name, place, words))
        with (place / "output").open("wb") as output:
            process = subprocess.Popen(start, stdout=output, stderr=output, start_new_session=True, cwd=place)
        server = Server(name, place, ports, process.pid, reload)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not server.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{name} does not answer:\n{(place / 'output').read_text()}")
                time.sleep(0.05)
            yield server
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(READY_SECONDS)


def version(name: str) -> str:
    """Return what a server calls itself, with its version."""
    command = {"apache": ["apache2", "-v"], "nginx": ["nginx", "-v"], "caddy": ["caddy", "version"]}[name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"{name}: {(done.stdout + done.stderr).splitlines()[0]}"


def page_cells(server: str) -> dict[str, str]:
    """Return the page's cells of one server by the names of their rows."""
    cells = {}
    for line in PAGE.read_text().splitlines():
        parts = [part.strip() for part in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(parts) == 6:
            cells[parts[0]] = parts[COLUMNS[server]]
    return cells


def main() -> int:
    """Run every probe on the servers named; return 1 if the page says something else."""
    names = sys.argv[1:] or list(SETTINGS)
    wrong = []
    for name in names:
        for program in ("apache2" if name == "apache" else name, "php-cgi", "htpasswd", "openssl", "curl"):
            if not shutil.which(program):
                sys.exit(
                    f"features_of_others.py: {program} is not installed: see the first lines of this file"
                )
        print(f"\n{version(name)}\n", flush=True)
        cells = page_cells(name)
        for model in MODELS[name]:
            with running(name, model) as server:
                print(f"  {model}: {threads_and_processes(server)}")
        with running(name, MODELS[name][-1]) as server:
            for row, probe in PROBES.items():
                seen = probe(server)
                cell = cells.get(row, "no such row")
                agrees = cell[1:2] == "†" or cell.startswith("✓") == bool(seen)
                if not agrees:
                    wrong.append(
                        f"{name}, {row}: the page says {cell!r}, the probe saw {seen or 'nothing'!r}"
                    )
                print(f"{'  ' if agrees else '! '}{row}: {seen or '–'}   [page: {cell}]", flush=True)
    print("", *wrong or ["The page agrees with every probe."], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
