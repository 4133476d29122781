"""Show what the lab is doing: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TextIO

EVERY = 1.0  # seconds between two updates of the time left
ENOUGH = 5.0  # seconds of finished tables from which on their pace corrects the estimate


class Progress:
    """The progress of a run. plan: estimated seconds of all tables. Use it in a `with`, which updates the line."""

    def __init__(self, plan: float = 0.0, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self.live = self.file.isatty()
        self.rest = plan  # estimated seconds of the tables that have not begun
        self.part = 0.0  # estimated seconds of the table that is being filled
        self.done = 0.0  # estimated seconds of the finished tables
        self.passed = 0.0  # seconds that those really took
        self.began = time.monotonic()
        self.text = ""
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.ticker = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> Progress:
        if self.live:
            self.ticker.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        if self.live:
            self.ticker.join()
        self.clear()

    def tick(self) -> None:
        """Update the line once a second."""
        while not self.over.wait(EVERY):
            with self.lock:
                if self.text:
                    self.draw()

    def begin(self, seconds: float) -> None:
        """Note that a table begins, which should take `seconds`."""
        self.part = seconds
        self.rest = max(self.rest - seconds, 0.0)
        self.began = time.monotonic()

    def end(self) -> None:
        """Note that the table is finished."""
        self.done += self.part
        self.passed += time.monotonic() - self.began
        self.part = 0.0

    def say(self, text: str) -> None:
        """Show the current step."""
        if not self.live:
            print(text, file=self.file, flush=True)
            return
        with self.lock:
            self.text = text
            self.draw()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=self.file, flush=True)

    def clear(self) -> None:
        """Clear the line before other output."""
        if self.live:
            with self.lock:
                self.text = ""
                print("\r\x1b[K", end="", file=self.file, flush=True)

    def draw(self) -> None:
        """Write the line, no wider than the terminal."""
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{f'[{self.left()}] {self.text}'[:width]}", end="", file=self.file, flush=True)

    def left(self) -> str:
        """Return the time left, in words."""
        pace = self.passed / self.done if self.done > ENOUGH else 1.0
        here = max(self.part * pace - (time.monotonic() - self.began), 0.0) if self.part else 0.0
        seconds = here + self.rest * pace
        return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"
