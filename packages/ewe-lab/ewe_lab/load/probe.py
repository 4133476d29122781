"""Ask a server once: `python -m ewe_lab.load.probe URL [LENGTH]`, with the request of a load.

--method, --header and --status are those of the load. It is a separate process because it may run behind a slow
link. An error is one line on its output, and exit status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ewe.config.command_parser import CommandParser
from ewe_lab.bench.experiment import Load
from ewe_lab.load.client import BadAnswer, LoadConnection, StatusError, load_target

PROBE_TIMEOUT_S = 5.0


class ProbeResult(NamedTuple):
    """The outcome of one request. fault: of the answer. remark: on a good answer. "" without one."""

    fault: str = ""
    remark: str = ""


def probe(url: str, length: int | None, asked: Load | None = None) -> ProbeResult:
    """Send one request; return the fault of its answer, or a remark on it.

    length: of a right body in bytes, None for any. asked: a load with the method, the headers and the expected
    status of the request.
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
        return ProbeResult(f"a first request failed: {getattr(reason, 'strerror', None) or reason}")
    connection = LoadConnection(target)
    try:
        connection.ask()
    except StatusError as status:  # an error may be what the load expects
        is_expected = connection.status == asked.status
        return ProbeResult("" if is_expected else f"a first request was answered with {status}")
    except (OSError, BadAnswer) as reason:
        text = f"no answer within {PROBE_TIMEOUT_S:g} s" if isinstance(reason, TimeoutError) else str(reason)
        return ProbeResult(f"a first request failed: {text}")
    finally:
        connection.close()
    if asked.status and connection.status != asked.status:
        return ProbeResult(f"a first request was answered with {connection.status}, not {asked.status}")
    if 300 <= connection.status < 400 and not asked.status:
        redirect = f"the redirect {connection.status}, which the load does not follow"
        return ProbeResult(remark=f"/{path} is answered with {redirect}.")
    return ProbeResult()


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
    found = probe(options.url, options.length, asked)
    print(found.fault or found.remark)
    return 1 if found.fault else 0


if __name__ == "__main__":
    sys.exit(main())
