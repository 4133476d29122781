"""A real Chromium without a window, driven by the DevTools protocol over two pipes: NUL ends each message.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SECONDS = 40.0  # for one answer, on a busy machine
OPTIONS = (
    "--headless --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-dev-shm-usage --mute-audio --no-proxy-server --hide-scrollbars --remote-debugging-pipe"
)
# Chromium reads messages from descriptor 3, and writes to 4.
STARTER = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a browser. errors: the text of each message on the console, exception and forbidden load."""

    def __init__(self, to: int, origin: int) -> None:
        self.to = to
        self.origin = origin
        self.buffer = b""
        self.number = 0
        self.session = ""
        self.errors: list[str] = []
        self.attach()

    def attach(self, **where: str) -> None:
        """Make an empty page, and talk to it from now on. where: the browser's context of the page."""
        self.session = ""
        target = self.ask("Target.createTarget", url="about:blank", **where)["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    @contextmanager
    def fresh(self) -> Iterator[Browser]:
        """Talk to a page that shares nothing with those before it, as in a new browser: no cookie, no cache."""
        self.session = ""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        self.attach(browserContextId=context)
        self.errors = []
        yield self
        self.session = ""
        self.ask("Target.disposeBrowserContext", browserContextId=context)

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": values}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.note(answer)

    def read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.origin], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self.origin, 1 << 20)
            assert data, "the browser has ended"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def note(self, event: dict[str, Any]) -> None:
        """Keep an event that says that something is wrong."""
        values = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(values["args"]))
        elif event.get("method") == "Log.entryAdded":
            self.errors.append(values["entry"]["text"])

    def media(self, **features: str) -> None:
        """Set what the page knows of its reader: media(prefers_reduced_motion="reduce")."""
        found = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.ask("Emulation.setEmulatedMedia", features=found)

    def open(self, path: Path, width: int = 1280, height: int = 900, *, scheme: str = "light") -> None:
        """Open a file in a window of this size, and wait until it is drawn."""
        self.errors.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        self.ask("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < deadline
        self.drawn()

    def drawn(self) -> None:
        """Wait for the next two frames."""
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        self.run(frames)

    def run(self, program: str) -> Any:
        """Return the value of an expression in JavaScript."""
        result = self.ask("Runtime.evaluate", expression=program, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, and wait until the page is drawn."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            code = {
                "Tab": 9,
                "Enter": 13,
                "Escape": 27,
                " ": 32,
                "ArrowLeft": 37,
                "ArrowUp": 38,
                "ArrowRight": 39,
                "ArrowDown": 40,
            }.get(key, 0)
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.drawn()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as a PNG."""
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """Start a browser with its files in this directory; stop all its processes afterwards."""
    command = ["chromium", *OPTIONS.split(), f"--user-data-dir={directory / 'profile'}"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    theirs, to = os.pipe()
    origin, them = os.pipe()
    with TemporaryDirectory() as temporary, (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(theirs), str(them), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs, them),
            env=os.environ | {"HOME": str(directory), "TMPDIR": temporary},
            start_new_session=True,
        )
        try:
            os.close(theirs)
            os.close(them)
            yield Browser(to, origin)
        finally:
            os.close(to)
            os.close(origin)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
