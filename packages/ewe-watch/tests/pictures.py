"""Make the pictures of docs/: real runs of scenes in the live page, and the page of a real trace.

    make pictures                                            all of them (Chromium, and pngquant to make them small)
    python packages/ewe-watch/tests/pictures.py pool-starves     one

pool.png is the page of a trace that `ewe -p --parking never --head-timeout 10 --trace pool.trace` writes while six
silent clients and some visitors come. The others are scenes, played to their most telling step.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from devtools import Browser, browser
from endurance import watched

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 1280
SCENES = {"pool-starves": 3, "fork-processes": 3, "loop-blocks": 2, "thread-ceiling": 2}  # and how many steps
SECONDS = 60
SHOWN_S = 1.5  # from the end of the step to the picture
COLOURS = 64  # of a picture


def main(names: list[str]) -> int:
    wanted = names or ["pool", *SCENES]
    if unknown := set(wanted) - {"pool", *SCENES}:
        print(f"there is no picture {min(unknown)}; there are pool, {', '.join(SCENES)}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as place, browser(Path(place)) as page:
        for name in wanted:
            made = Path(place, f"{name}.png")
            if name == "pool":
                trace_page(page, Path(place), made)
            else:
                scene_page(page, name, Path(place), made)
            small(made, DOCS / f"{name}.png")
            print(f"{name}.png: {(DOCS / f'{name}.png').stat().st_size // 1024} KB", flush=True)
    return 0


def small(origin: Path, target: Path) -> None:
    """Write the picture with few colours, if pngquant is here."""
    if shutil.which("pngquant"):
        command = ["pngquant", "--force", "--strip", "--output", str(target), str(COLOURS), str(origin)]
        subprocess.run(command, check=True)
    else:
        shutil.copyfile(origin, target)


def until(page: Browser, condition: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not page.run(condition):
        assert time.monotonic() < deadline, (condition, page.run("document.body.innerText"))
        time.sleep(0.1)


def shoot(page: Browser, file: Path, elements: str) -> None:
    """Write the page down to the lowest end of these elements."""
    height = page.run(
        f"Math.ceil(Math.max(...{elements}.map(each => each.getBoundingClientRect().bottom)) + scrollY) + 12"
    )
    page.ask(
        "Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False
    )
    page.drawn()
    page.picture(file)


def scene_page(page: Browser, name: str, directory: Path, file: Path) -> None:
    """Choose a scene in the page, and play it to its step."""
    page.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=900, deviceScaleFactor=1, mobile=False)
    page.media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")  # open() says otherwise
    with watched("-t", directory) as (_, url):
        page.ask("Page.navigate", url=url)
        until(page, "typeof models !== 'undefined' && models.length > 0")
        page.run(f"byId('scene-name').value = {name!r}; byId('start').click()")
        until(page, f"byId('scene').hidden === false && scenes.find(s => s.name === {name!r}).title === "
              "document.querySelector('#scene h2').textContent")  # fmt: skip
        page.run("byId('window').value = '10'")
        for step in range(1, SCENES[name] + 1):
            time.sleep(1.2)
            until(page, "!byId('next').disabled")
            page.run("byId('next').click()")
            until(page, f"document.querySelectorAll('.steps .done').length === {step}")
        # For the lanes to become wide, and for the measurement of the second. A worker that has ended is grey for
        # three seconds (GREY_MS), then its row is folded.
        time.sleep(SHOWN_S)
        shoot(page, file, "[...document.querySelectorAll('.model .cost')]")


def trace_page(page: Browser, directory: Path, file: Path) -> None:
    """Write a trace under silent clients, and show its page."""
    trace, log = directory / "pool.trace", directory / "pool.log"
    words = [
        "-p",
        "--parking",
        "never",
        "--head-timeout",
        "10",
        "--port",
        "0",
        "--access-log",
        "off",
        "--trace",
        trace,
    ]
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "ewe", *map(str, words)], cwd=directory, stderr=errors
        )
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text())):
            time.sleep(0.05)
        send_clients(int(found[1]))
    finally:
        server.terminate()
        server.wait(30)
    command = [sys.executable, "-m", "ewe_watch", str(trace), "-o", str(directory / "pool.html")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page.open(directory / "pool.html", WIDTH)
    shoot(page, file, "[document.querySelector('#pictures')]")


def send_clients(port: int) -> None:
    """Send eight visitors, six silent clients, and a visitor each half second."""

    def visit() -> None:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            while sock.recv(65536):
                pass

    visitors: list[threading.Thread] = []
    silent: list[socket.socket] = []
    for tick in range(20):  # half seconds
        if tick == 2:
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
        if tick != 3:
            visitors.append(threading.Thread(target=visit))
            visitors[-1].start()
        time.sleep(0.5)
    for thread in visitors:
        thread.join(SECONDS)
    for sock in silent:
        sock.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
