"""Ask a server once: `python -m ewe_lab.load.probe URL [LENGTH]`. It is a
separate process because it may run behind a slow link. An error is one line on its output, and exit status 1."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from ewe_lab.bench.experiment import Load
from ewe_lab.load.client import BadAnswer, LoadConnection, StatusError, load_target

PROBE_TIMEOUT_S = 5.0


def probe(url: str, length: int | None) -> tuple[str, str]:
    """Send a request. Return its failure and a remark on a good answer; each is "" if there is none."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    try:
        target = load_target(
            Load(path=f"/{path}", timeout=PROBE_TIMEOUT_S, length=length), f"{scheme}://{host}/"
        )
    except (OSError, ValueError) as reason:
        return f"a first request failed: {getattr(reason, 'strerror', None) or reason}", ""
    connection = LoadConnection(target)
    try:
        connection.ask()
    except StatusError as status:
        return f"a first request was answered with {status}", ""
    except (OSError, BadAnswer) as reason:
        text = (
            f"no answer within {PROBE_TIMEOUT_S:g} s" if isinstance(reason, socket.timeout) else str(reason)
        )
        return f"a first request failed: {text}", ""
    finally:
        connection.close()
    if 300 <= connection.status < 400:
        return (
            "",
            f"/{path} is answered with the redirect {connection.status}, which the load does not follow.",
        )
    return "", ""


def main(argv: Sequence[str] | None = None) -> int:
    """Send a request, and print its failure or a remark; return the exit status."""
    url, *length = argv or sys.argv[1:]
    failure, remark = probe(url, int(length[0]) if length else None)
    print(failure or remark)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
