"""The first test of this lab: python3 first_test.py. It is a small X-Switch, and stops at the first failure."""

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESPONSE_TIMEOUT_S = 10  # seconds that one script may take
SCRIPTS = {
    "hello.py": "print('hello')\n",
    "pid.py": "import os\nprint(os.getpid())\n",
    "name.py": "import os\nprint(os.environ.get('HTTP_COOKIE', 'no cookie'))\n",
    "global.py": "import builtins\nprint(getattr(builtins, 'visitor', 'nobody'))\nbuiltins.visitor = 'ann'\n",
    "fails.py": "raise ValueError('this script fails on purpose')\n",
}


def main():
    with tempfile.TemporaryDirectory() as directory:
        for name, text in SCRIPTS.items():
            (Path(directory) / name).write_text(text)
        with Engine(directory) as engine:
            test(engine)
    print("All steps pass. Next: ewe-grade, as README.md says.")


def test(engine):
    expect(1, "The engine runs a script.", engine.run("hello.py"), "hello")
    pid = engine.run("pid.py")
    expect(2, "The engine is kept: two scripts have the same process.", engine.run("pid.py"), pid)
    engine.run("name.py", "HTTP_COOKIE=ann")
    found = engine.run("name.py")
    expect(3, "The next script finds no cookie of the previous visitor.", found, "no cookie")
    engine.run("global.py")
    found = engine.run("global.py")
    expect(4, "The next script finds no object that a script has put into `builtins`.", found, "nobody")
    cookie = engine.run("name.py", "HTTP_COOKIE=50%25")
    expect(5, "The engine decodes %25 in a word.", cookie, "50%")
    engine.run("fails.py")
    expect(6, "The engine goes on after a script that fails.", engine.run("pid.py"), pid)


def expect(number, title, found, wanted):
    """End the program if a script has printed another text."""
    if found != wanted:
        sys.exit(f"✗ {number}. {title}\n  The script prints {found!r}, and should print {wanted!r}.")
    print(f"✓ {number}. {title}", flush=True)


class Engine:
    """Your engine with its two sockets. directory: that of the scripts."""

    def __init__(self, directory):
        self.directory = directory
        self.control, control = socket.socketpair()
        self.data, data = socket.socketpair()
        # The engine has the control socket as descriptor 3, and this program under another number.
        command = f'exec "$0" engine.py 3<&{control.fileno()}'
        self.process = subprocess.Popen(
            ["sh", "-c", command, sys.executable], stdin=data, stdout=data, pass_fds=(control.fileno(),)
        )
        control.close()
        data.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def run(self, script, *variables):
        """Run a script; return the text that it prints, without the last line feed."""
        words = "\t".join([*variables, "CONTENT_LENGTH=0"])
        output, mark = b"", b""
        open_sockets = [self.control, self.data]
        try:
            self.control.sendall(f"{self.directory}/{script}\n{words}\n".encode())
            deadline = time.monotonic() + RESPONSE_TIMEOUT_S
            while not mark.endswith(b"\n"):
                left_s = deadline - time.monotonic()
                ready, _, _ = select.select(open_sockets, [], [], max(0, left_s))
                if not ready or left_s < 0:
                    sys.exit(
                        f"✗ {script}: {RESPONSE_TIMEOUT_S} seconds have passed without the end mark EOT status LF."
                    )
                # First the output: it comes before the mark.
                if self.data in ready:
                    piece = os.read(self.data.fileno(), 65536)
                    output += piece
                    if not piece:  # the engine has closed the socket, which from now on is always ready
                        open_sockets.remove(self.data)
                elif not (piece := os.read(self.control.fileno(), 64)):
                    raise ConnectionError
                else:
                    mark += piece
        except OSError:
            sys.exit(f"✗ {script}: the engine has ended without an end mark.")
        return output.decode().removesuffix("\n")


if __name__ == "__main__":
    main()
