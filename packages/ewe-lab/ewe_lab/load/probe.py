"""Ask a server once: `python -m ewe_lab.load.probe URL [LENGTH]`. It is a
separate process because it may run behind a slow link. An error is one line on its output, and exit status 1."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from ewe_lab.bench.experiment import Load
from ewe_lab.load.client import BadAnswer, Connection, Status, target

SECONDS = 5.0


def probe(url: str, length: int | None) -> str:
    """Return what is wrong, "" if nothing is."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    connection = Connection(
        target(Load(path=f"/{path}", timeout=SECONDS, length=length), f"{scheme}://{host}/")
    )
    try:
        connection.ask()
    except Status as status:
        return f"a first request was answered with {status}"
    except (OSError, BadAnswer) as reason:
        text = f"no answer within {SECONDS:g} s" if isinstance(reason, socket.timeout) else str(reason)
        return f"a first request failed: {text}"
    finally:
        connection.close()
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Probe; return the exit status."""
    url, *length = argv or sys.argv[1:]
    wrong = probe(url, int(length[0]) if length else None)
    print(wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
