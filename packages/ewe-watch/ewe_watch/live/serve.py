"""The server of the live page: ewe itself, under the model thread, in this process.

It listens on a free port of the loopback interface. Ctrl-C, TERM and a closed terminal (HUP) end it, and with it
all models, clients and files.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ewe.config.settings import Config
from ewe.server.processor_factory import ProcessorFactory
from ewe.server.run import listening_sockets, open_browser
from ewe.server.worker import Worker
from ewe_watch.live.accounts import AccountLimitSocket, own_accounts
from ewe_watch.live.director import Director
from ewe_watch.live.page import WatchPage
from ewe_watch.live.scenes import SceneChooser
from ewe_watch.moment import several

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from ewe_watch.live.scenes import WatchScene

# Another account can open as many connections as the page's server accepts, and say nothing. It has no token, but
# its connections occupy threads until they end. A browser on the same computer sends its request at once.
HEAD_TIMEOUT_S = 2.0

# Leads a browser to the page: the URL has a secret part, and all accounts can read the arguments of a program
OPENER = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<title>ewe-watch</title>
<p><a href="{url}">The models at work</a></p>
</html>
"""


class PageWorker(Worker):
    """Ends the streams of the pages, and a scene in play, when it stops: they would last for the grace time."""

    director: Director
    has_ended_streams = False

    def on_stop(self, signum: int, frame: object) -> None:
        """End the scene and the streams, then stop as each worker does. It is a signal handler."""
        if not self.has_ended_streams:
            # First: a second signal may come within set(), and would wait for the lock that this thread holds there
            self.has_ended_streams = True
            self.director.stopping.set()
            self.director.end_readers()
        super().on_stop(signum, frame)

    def on_reload(self, number: int, frame: object) -> None:
        """End at HUP: the terminal was closed."""
        self.on_stop(number, frame)


@contextmanager
def open_director(users: Sequence[str] = ()) -> Iterator[Director]:
    """Yield a director; at the end, end its models and remove its files.

    users: accounts whose scripts X-Switch runs. TERM and HUP raise KeyboardInterrupt until the server of the page
    has its own handlers, so a stop during the start leaves nothing, either.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with (
        TemporaryDirectory(prefix="ewe-watch-") as directory,
        director_in(Path(directory), users) as director,
    ):
        yield director


@contextmanager
def director_in(directory: Path, users: Sequence[str] = ()) -> Iterator[Director]:
    """Yield a director with its files in this directory; at the end, end its models and clients."""
    director = Director(directory, users)
    try:
        yield director
    finally:
        director.close()


def serve(director: Director, scene: WatchScene | None = None, *, browser: bool = False) -> int:
    """Serve the page until a stop; return the exit status. browser: show the page in this computer's browser.

    scene: to begin with. Raises StartError, StartFailure.
    """
    config = page_config(director.directory)
    # The server makes the WatchPage (`mount` in page_config()), so its class has what it needs
    WatchPage.director, WatchPage.chooser = director, SceneChooser(director, scene)
    WatchPage.token = secrets.token_urlsafe(16)
    factory = ProcessorFactory(config)
    with listening_sockets(factory) as sockets:
        # In the same list, since its owner closes the sockets at the end
        sockets[:] = [AccountLimitSocket(sock, own_accounts()) for sock in sockets]
        url = f"http://127.0.0.1:{port_of(sockets)}/{WatchPage.token}/"

        def ready() -> None:
            """Print the page's address, once the server accepts connections."""
            print(
                f"ewe-watch: {url} shows {several(len(director.models), 'models')}; Ctrl-C ends all",
                file=sys.stderr,
                flush=True,
            )
            # By a file: other accounts can see the arguments of a browser, and the address has the token
            if browser:
                with suppress(OSError):  # the address is printed, and the page works without this file
                    open_browser(write_opener(director.directory, url).as_uri())

        worker = PageWorker(factory, sockets, name="0")
        worker.director = director
        return worker.run(ready)


def page_config(directory: Path) -> Config:
    """Return the settings of the page's server. directory: the private one of the director.

    The server runs no programs and no libraries: the directory `none` does not exist.
    """
    return Config(
        concurrency="thread", port="0", access_log="off", logfile="-", loglevel="error", grace="1",
        documentroot=str(directory / "htdocs"), cgi_path=str(directory / "none"),
        libcgi_path=str(directory / "none"), mount=("/=ewe_watch.live.page:WatchPage",),
        head_timeout=str(HEAD_TIMEOUT_S),
    )  # fmt: skip


def write_opener(directory: Path, url: str) -> Path:
    """Write the file that leads a browser to the page, which only this account may read; return its path.

    directory: of the director, which ends with it. url: of the page. Raises OSError.
    """
    path = directory / "open.html"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "w", encoding="utf-8") as opener:
        opener.write(OPENER.format(url=url))
    return path


def port_of(sockets: list[socket.socket]) -> int:
    """Return the port of the first listening socket."""
    port: int = sockets[0].getsockname()[1]
    return port
