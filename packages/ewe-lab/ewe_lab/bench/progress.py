"""Show the current step of the lab: one line that is rewritten on a terminal, plain lines elsewhere.

    [4 min left] E-T2: thread, 16 KB, repeat 2 of 3

The time left is an estimate: planned seconds of the tables that have not begun, and of the rest of the current one.
This machine may be slower than the one of the estimates, so the finished tables correct it: if they took twice
their plan, the rest is doubled.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TextIO

UPDATE_EVERY_S = 1.0  # seconds between two updates of the time left
CLEAR_LINE = "\r\x1b[K"  # to the first column; erase to the end of the line
# After finished tables of this many estimated seconds, their real duration corrects the estimate.
MIN_FINISHED_S = 5.0


class Progress:
    """The progress of a run. plan: estimated seconds of all tables. A `with` block updates the line each second."""

    def __init__(self, plan: float = 0.0, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self.is_terminal = self.file.isatty()
        self.unbegun_s = plan  # estimated seconds of the tables that have not begun
        self.current_s = 0.0  # estimated seconds of the table that is being filled
        self.finished_s = 0.0  # estimated seconds of the finished tables
        self.finished_real_s = 0.0  # real seconds of the finished tables
        self.began = time.monotonic()  # of the table that is being filled
        self.text = ""  # the current step
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.ticker = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> Progress:
        if self.is_terminal:
            self.ticker.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        if self.is_terminal:
            self.ticker.join()
        self.clear()

    def tick(self) -> None:
        """Update the line once a second, so that the time left goes on between two steps. Runs in a thread."""
        while not self.ended.wait(UPDATE_EVERY_S):
            with self.lock:
                if self.text:
                    self.draw()

    def begin_table(self, seconds: float) -> None:
        """Note that a table begins. seconds: its estimated duration."""
        self.current_s = seconds
        self.unbegun_s = max(self.unbegun_s - seconds, 0.0)
        self.began = time.monotonic()

    def end_table(self) -> None:
        """Note that the table is finished."""
        self.finished_s += self.current_s
        self.finished_real_s += time.monotonic() - self.began
        self.current_s = 0.0

    def show_step(self, text: str) -> None:
        """Show the current step: in the line that is rewritten, or as a new line if there is no terminal."""
        if not self.is_terminal:
            time_left = f"[{self.time_left_text()}] " if self.unbegun_s or self.current_s else ""
            print(time_left + text, file=self.file, flush=True)
            return
        with self.lock:
            self.text = text
            self.draw()

    def print_line(self, text: str) -> None:
        """Print a line that is not rewritten."""
        self.clear()
        print(text, file=self.file, flush=True)

    def clear(self) -> None:
        """Clear the line before other output."""
        if self.is_terminal:
            with self.lock:
                self.text = ""
                print(CLEAR_LINE, end="", file=self.file, flush=True)

    def draw(self) -> None:
        """Write the line, no wider than the terminal."""
        width = shutil.get_terminal_size().columns - 1  # in the last column some terminals begin a new line
        line = f"[{self.time_left_text()}] {self.text}"[:width]
        print(f"{CLEAR_LINE}{line}", end="", file=self.file, flush=True)

    def planned_time_text(self) -> str:
        """Return the time that the run will take, as text; "" if it is not known."""
        planned_s = self.unbegun_s + self.current_s
        return f"about {duration_text(planned_s)}" if planned_s else ""

    def time_left_text(self) -> str:
        """Return the time that is left, as text: the estimates, corrected by the finished tables' real times.

        "longer than planned" if the last table has taken longer than its estimate.
        """
        factor = self.finished_real_s / self.finished_s if self.finished_s > MIN_FINISHED_S else 1.0
        current_left_s = (
            max(self.current_s * factor - (time.monotonic() - self.began), 0.0) if self.current_s else 0.0
        )
        seconds = current_left_s + self.unbegun_s * factor
        if self.current_s and not seconds:
            return "longer than planned"
        return f"{duration_text(seconds)} left"


def duration_text(seconds: float) -> str:
    """Return a duration as text: seconds up to a minute and a half, minutes above."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
