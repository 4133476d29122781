"""Ask a server once: `python -m ewe_lab.load.probe URL [LENGTH]`, with the request of a load.

--method, --header and --status are those of the load. It is a separate process because it may run behind a slow
link. An error is one line on its output, and exit status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from ewe.config.command_parser import CommandParser
from ewe_lab.bench.experiment import Load
from ewe_lab.load.client import BadAnswer, LoadConnection, StatusError, load_target

PROBE_TIMEOUT_S = 5.0


def probe(url: str, length: int | None, asked: Load | None = None) -> tuple[str, str]:
    """Return the fault of an answer, "" without one; and a remark on a good answer, "" without one.

    asked: the method, the headers and the status of a load.
    """
    asked = asked or Load()
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    # load_target() wants the server's URL, and the path as a field of the load
    try:
        target = load_target(
            replace(asked, path=f"/{path}", timeout=PROBE_TIMEOUT_S, length=length), f"{scheme}://{host}/"
        )
    except (OSError, ValueError) as reason:
        return f"a first request failed: {getattr(reason, 'strerror', None) or reason}", ""
    connection = LoadConnection(target)
    try:
        connection.ask()
    except StatusError as status:  # an error may be what the load expects
        wrong = "" if connection.status == asked.status else f"a first request was answered with {status}"
        return wrong, ""
    except (OSError, BadAnswer) as reason:
        text = f"no answer within {PROBE_TIMEOUT_S:g} s" if isinstance(reason, TimeoutError) else str(reason)
        return f"a first request failed: {text}", ""
    finally:
        connection.close()
    if asked.status and connection.status != asked.status:
        return f"a first request was answered with {connection.status}, not {asked.status}", ""
    if 300 <= connection.status < 400 and not asked.status:
        return (
            "",
            f"/{path} is answered with the redirect {connection.status}, which the load does not follow.",
        )
    return "", ""


def main(argv: Sequence[str] | None = None) -> int:
    """Probe; return the exit status."""
    parser = CommandParser(prog="python -m ewe_lab.load.probe")
    parser.add_argument("url")
    parser.add_argument("length", type=int, nargs="?")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--header", nargs=2, action="append", default=[])
    parser.add_argument("--status", type=int, default=0)
    options = parser.parse_args(argv)
    headers = tuple((name, value) for name, value in options.header)
    asked = Load(method=options.method, headers=headers, status=options.status)
    wrong, remark = probe(options.url, options.length, asked)
    print(wrong or remark)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
