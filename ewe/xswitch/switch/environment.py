"""The command line and the environment of a script, made from the parameters that a web server sends.

Source: RFC 3875, the Common Gateway Interface. The parameters come over FastCGI, and a client chooses the names of
many of them: every header `X-Y: z` becomes HTTP_X_Y=z. Variables that change how an interpreter or the dynamic
loader works are therefore left out. No I/O.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from ewe.xswitch.webapp import WebApplication

# Names that a script's environment may have. No web server has a reason to set the excluded ones.
ALLOWED_NAME = re.compile(
    rb"(?!(?:LD_|PYTHON|PERL|RUBY|NODE_|PHP|BASH|GLIBC_|MALLOC_|FCGI_|XSWITCH_|HTTP_PROXY\Z|IFS\Z|ENV\Z|SHELL\Z))"
    rb"[A-Za-z_][A-Za-z0-9_]*"
)
MAX_LENGTH_DIGITS = 18  # of CONTENT_LENGTH: such a number fits into 64 bits
MAX_NAMES = 2000  # names in the cache below
# Names that have passed is_allowed(): most requests have the same ones.
allowed_names: set[bytes] = set()


def arguments_of(params: dict[bytes, bytes]) -> list[bytes]:
    """Return the command line of an indexed query, one without "=": RFC 3875 section 4.4."""
    query = params.get(b"QUERY_STRING", b"")
    if not query or b"=" in query or params.get(b"REQUEST_METHOD") not in (b"GET", b"HEAD"):
        return []
    words = [unquote_to_bytes(word) for word in query.split(b"+")]
    return [] if any(b"\0" in word for word in words) else words


def environment_of(
    params: dict[bytes, bytes], own_variables: dict[bytes, bytes], application: WebApplication | None
) -> dict[bytes, bytes]:
    """Return a script's environment.

    params: the web server's parameters. own_variables: those that X-Switch sets itself; they replace those of the
    web server. application: the Java web application that the request belongs to, if any.
    """
    variables = params.copy()
    if not variables.keys() <= allowed_names:
        variables = {name: value for name, value in variables.items() if is_allowed(name)}
    variables.setdefault(b"GATEWAY_INTERFACE", b"CGI/1.1")
    variables.setdefault(b"REDIRECT_STATUS", b"200")  # php-cgi runs nothing without it
    if b"PATH_TRANSLATED" in variables:
        # After a rewrite Apache sends both. php-cgi would then run PATH_TRANSLATED, which suexecme has not checked.
        variables.pop(b"REDIRECT_URL", None)
    variables.update(own_variables)
    return variables if application is None else application.variables(variables)


def is_allowed(name: bytes) -> bool:
    """Return whether a script may have a variable of this name; remember the allowed names."""
    if name in allowed_names:
        return True
    if ALLOWED_NAME.fullmatch(name) is None:
        return False
    if len(allowed_names) < MAX_NAMES:
        allowed_names.add(name)
    return True


def body_length(params: dict[bytes, bytes]) -> int:
    """Return CONTENT_LENGTH in bytes (RFC 3875 section 4.1.2), 0 if it is missing, -1 if it is not a number."""
    length = params.get(b"CONTENT_LENGTH") or b"0"
    return int(length) if length.isdigit() and len(length) <= MAX_LENGTH_DIGITS else -1
