"""A browser: pictures over six connections, seeking in a recording, EventSource, an upload of 3 MB; narrow pages.

The page does one thing after the other and posts what it found to a program, which writes it into a file.

`make test` runs this under two models, `make applications` under all but serial: Chromium opens connections before
it needs them, and a serial server waits on the first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.server import MODELS, ROOT, Server, Start, wait_until

from ewe.config.feature_table import MANUAL

ALL = bool(os.environ.get("EWE_TEST_APPLICATIONS"))
SOME = [model for model in MODELS if model != "serial"] if ALL else ["pool", "asyncio"]
PICTURES = 40
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="2" height="2"/>'
PAGE = """<!DOCTYPE html><meta charset="utf-8"><title>waits</title><body><script>
const found = {};
const event = (target, name) => new Promise((yes, no) => {
  target.addEventListener(name, yes, {once: true});
  target.addEventListener("error", () => no(new Error("no " + name)), {once: true});
});
async function all() {
  const pictures = [];
  for (let number = 0; number < PICTURES; number++) {
    const picture = document.body.appendChild(new Image());
    pictures.push(event(picture, "load"));
    picture.src = `/pictures/${number}.svg`;
  }
  found.pictures = (await Promise.all(pictures)).length;

  const recording = new Audio();
  const ready = event(recording, "loadedmetadata");
  recording.preload = "metadata";
  recording.src = "/recording.wav";
  await ready;
  found.duration = recording.duration;
  const sought = event(recording, "seeked");
  recording.currentTime = 200;
  await sought;
  found.at = recording.currentTime;

  const events = new EventSource("/cgi-bin/events.py");
  found.events = [];
  await new Promise(yes => { events.onmessage = message => {
    found.events.push(message.data);
    if (found.events.length == 3) { events.close(); yes(); }
  }});

  const upload = new FormData();
  upload.append("file", new Blob([new Uint8Array(3 << 20).fill(0xC3)]), "three.bin");
  found.upload = await (await fetch("/cgi-bin/upload.py", {method: "POST", body: upload})).json();
  found.again = (await fetch("/pictures/0.svg", {cache: "no-cache"})).status;
}
all().catch(error => { found.error = String(error); }).then(
  () => fetch("/cgi-bin/done.py", {method: "POST", body: JSON.stringify(found)}));
</script>""".replace("PICTURES", str(PICTURES))
EVENTS = """import time
print("Content-Type: text/event-stream\\n", flush=True)
for number in range(3):
    print(f"data: {number}\\n", flush=True)
    time.sleep(0.05)
time.sleep(10)
"""
UPLOAD = """import json, os, sys
body = sys.stdin.buffer.read(int(os.environ["CONTENT_LENGTH"]))
print("Content-Type: application/json\\n")
print(json.dumps({"bytes": body.count(b"\\xc3"), "type": os.environ["CONTENT_TYPE"].partition(";")[0]}))
"""
WIDTHS = """<!DOCTYPE html><meta charset="utf-8"><title>waits</title><body><script>
const found = {};
async function all() {
  for (const name of NAMES) {
    const frame = document.createElement("iframe");
    frame.width = 390;
    frame.height = 844;
    const loaded = new Promise(yes => frame.addEventListener("load", yes, {once: true}));
    frame.src = "/docs/" + name;
    document.body.append(frame);
    await loaded;
    const {scrollWidth, clientWidth} = frame.contentDocument.documentElement;
    found[name] = {heading: frame.contentDocument.querySelector("h1").textContent, over: scrollWidth - clientWidth};
    frame.remove();
  }
}
all().catch(error => { found.error = String(error); }).then(
  () => fetch("/cgi-bin/done.py", {method: "POST", body: JSON.stringify(found)}));
</script>"""
DONE = """import os, sys
with open("FOUND.part", "w") as file:
    file.write(sys.stdin.read())
os.rename("FOUND.part", "FOUND")
print("Content-Type: text/plain\\n\\nthanks")
"""


@contextmanager
def chromium(profile: Path, url: str) -> Iterator[None]:
    """Open a page in a Chromium without a window; stop the whole browser afterwards."""
    command = [
        "chromium", "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio", "--no-proxy-server",
        f"--user-data-dir={profile}", "--remote-debugging-port=0",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    # A browser that is killed leaves files in TMPDIR, which must be short: it has a Unix socket there.
    with TemporaryDirectory() as temporary, (profile.parent / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(
            [*command, url],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"HOME": str(profile.parent), "TMPDIR": temporary},
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()


def write_script(server: Server, name: str, text: str) -> None:
    """Write a CGI program in Python."""
    script = server.cgi / f"{name}.py"
    script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(0o755)


@pytest.mark.starts_processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("model", SOME)
@pytest.mark.needs("Chromium")
def test_a_page_in_chromium(start: Start, tmp_path: Path, model: str) -> None:
    server = start(model)
    found = tmp_path / "found.json"
    (server.root / "page.html").write_text(PAGE)
    (server.root / "pictures").mkdir()
    for number in range(PICTURES):
        (server.root / "pictures" / f"{number}.svg").write_text(PICTURE)
    # 40 MB: more than a browser reads ahead
    with wave.open(str(server.root / "recording.wav"), "wb") as recording:
        recording.setnchannels(2)
        recording.setsampwidth(2)
        recording.setframerate(44_100)
        recording.writeframes(bytes(240 * 44_100 * 4))
    for name, text in (("events", EVENTS), ("upload", UPLOAD), ("done", DONE.replace("FOUND", str(found)))):
        write_script(server, name, text)

    with chromium(tmp_path / "profile", f"{server.url}page.html"):
        wait_until(found.exists, 60, lambda: (tmp_path / "chromium.log").read_text() + server.log())
    told = json.loads(found.read_text())
    assert told == {
        "pictures": PICTURES,
        "duration": 240,
        "at": 200,
        "events": ["0", "1", "2"],
        "upload": {"bytes": 3 << 20, "type": "multipart/form-data"},
        "again": 200,
    }, server.log()
    assert server.stop() == 0  # and the access log is whole
    parts = re.findall(r'"GET /recording\.wav HTTP/1\.1" (\d+)', server.access_file.read_text())
    assert parts.count("206") >= 2 and set(parts) <= {"206", "304"}, parts
    assert "Traceback" not in server.log()


@pytest.mark.starts_processes
@pytest.mark.timeout(120)
@pytest.mark.needs("Chromium")
def test_no_page_of_the_manual_is_wider_than_a_phone(start: Start, tmp_path: Path) -> None:
    """A window of 390 px shows each page of docs/ whole: only tables and code scroll to the side."""
    server = start("pool", "--mount", MANUAL)
    names = [*sorted(path.name for path in (ROOT / "docs").glob("*.md")), "README.md?print"]
    (server.root / "page.html").write_text(WIDTHS.replace("NAMES", json.dumps(names)))
    found = tmp_path / "found.json"
    write_script(server, "done", DONE.replace("FOUND", str(found)))
    with chromium(tmp_path / "profile", f"{server.url}page.html"):
        wait_until(found.exists, 60, lambda: (tmp_path / "chromium.log").read_text() + server.log())
    pages = json.loads(found.read_text())
    assert pages.keys() == set(names), pages
    assert all(page["heading"] for page in pages.values())
    assert not {name: page["over"] for name, page in pages.items() if page["over"] > 0}
