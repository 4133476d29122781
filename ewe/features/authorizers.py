"""Authorizers: FastCGI programs that decide about the requests below a path (FastCGI specification section 6.3).

A site asks its authorizers before any feature gets the request. An authorizer gets the request's head, and no body.
Its status is the decision:

    request /members/list ─▶ authorizer of /members ─200─▶ the features: a file, a program, anything
                                                  │        Variable-REMOTE_USER: ada  ─▶ REMOTE_USER=ada
                                                  └─403, 302, 401 ...─▶ the client gets this answer

The variables of a 200 are added to the request. CGI programs, upstreams, X-Switch's engines, and applications of
WSGI and ASGI get them; a file does not use them. ewe does not cache decisions: it asks again for the next request.

Possible failures, and where each is prevented:

- **No decision.** The authorizer cannot be reached (503), closes the connection early (502), or is silent (504).
  The client gets this error, and not the page. An incomplete answer with a 200 is no decision either: ewe reads the
  whole answer first.
- **A bypass by another spelling.** ewe finds files by the decoded path without dot segments. A program may
  interpret REQUEST_URI differently: "/members/../x", "/x/..;/members", or "/%256dembers" if it decodes twice. ewe
  asks the authorizer if any of these readings() is below its path. The case of letters does not matter. An
  unnecessary question does no harm.
- **A bypass by a local redirect** (RFC 3875 section 6.2.2). ewe treats it as a request for its target, and asks the
  authorizers again.
- **Another name for a file.** A symbolic link, or another path in the settings, can lead to the same file.
  Authorizers guard URLs, not files.
- **A forged variable.** A client's fields become HTTP_* variables, and those of an authorizer replace them. An
  authorizer may not set the variables that the server sets (RESERVED).
- **Several authorizers** may cover a path. The outer one is asked first, and all must agree.

Read next: gateway/responder.py, which sends the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ewe.features.authorizer_paths import addresses_by_path
from ewe.features.base import Middleware, Reroute
from ewe.features.declaration import Feature
from ewe.features.fastcgi import connections_of
from ewe.features.fastcgi_settings import FASTCGI_AUTHORIZER
from ewe.gateway.cgi import MAX_DISCARDED_BYTES, connection_variables, request_variables, response
from ewe.gateway.protected_sources import is_in
from ewe.gateway.records import AuthorizerRequester, encode_pairs
from ewe.gateway.responder import ResponderSource
from ewe.gateway.scripts import Script
from ewe.gateway.spool import EMPTY
from ewe.http.local_redirect import redirected_request
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import path_of_target

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.features.plan import Plan
    from ewe.gateway.connections import Connections
    from ewe.http.limits import RequestLimits
    from ewe.streams.base import Stream

PREFIX = "variable-"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# Variables that describe the request, its script and the server: those of RFC 3875 section 4.1, and ewe's own
RESERVED = re.compile(
    r"(CONTENT|SERVER|REQUEST|SCRIPT|PATH|REDIRECT)_.*|REMOTE_(ADDR|PORT|HOST)"
    r"|GATEWAY_INTERFACE|QUERY_STRING|DOCUMENT_ROOT|HTTPS|SCGI|PATH|LD_.*"
)
SLASHES = re.compile(r"[/\\]+")  # some programs take a backslash for a slash, and several slashes for one
PARAMETERS = re.compile(";[^/]*")  # of a segment, as in /cart;jsessionid=17, which servers of Java leave out
# "The Web server does not send CONTENT_LENGTH, PATH_INFO, PATH_TRANSLATED, and SCRIPT_NAME headers." (section 6.3)
NOT_SENT = (b"CONTENT_LENGTH", b"PATH_INFO", b"PATH_TRANSLATED", b"SCRIPT_NAME", b"SCRIPT_FILENAME")


class Authorizers(Middleware):
    """All authorizers of a site, the outermost first."""

    def __init__(self, config: Config, root: str, limits: RequestLimits) -> None:
        """root: the document root, for the variables of a request. limits: for the head of an answer.

        Raises ValueError for an invalid address.
        """
        self.all = [
            Authorizer(
                path,
                connections_of(config, addresses, "fastcgi-authorizer", codec=AuthorizerRequester),
                config,
                root,
                limits,
            )
            for path, addresses in sorted(addresses_by_path(config).items(), key=lambda item: len(item[0]))
        ]

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the inner handler's response if all authorizers of the path agree; else the first refusal.

        While the inner handler runs, io.variables also has the variables of the authorizers. Raises Reroute if an
        authorizer answers with a local redirect; HTTPError: 502, 503, 504 if an authorizer does not decide; the
        inner handler's exceptions.
        """
        paths = [*readings(request)]
        variables_before = io.variables
        try:
            for authorizer in self.all:
                if any(is_in(path, authorizer.path) for path in paths):
                    decision = await authorizer.decide(request, io)
                    if isinstance(decision, Response):
                        if decision.target is not None:
                            raise Reroute(redirected_request(request, decision.target), by_program=True)
                        return decision
                    if decision:
                        io.variables = io.variables | decision
            return await self.inner.respond(request, io)
        finally:
            io.variables = variables_before


def readings(request: Request) -> Iterator[str]:
    """Yield the paths as which a program may interpret a request. The first is ewe's own.

    A program gets the target (REQUEST_URI), and the parts of the path, which is another one after a `rewrite`.
    """
    yield request.path
    # Without duplicates: both are the same path in most requests.
    once = dict.fromkeys((unquote(path_of_target(request.target), errors="surrogateescape"), request.path))
    twice = [unquote(path, errors="surrogateescape") for path in once]
    for decoded in dict.fromkeys((*once, *twice)):
        for path in (decoded, PARAMETERS.sub("", decoded)):
            path = SLASHES.sub("/", path)
            yield path
            yield normpath(path)


class Authorizer:
    """One authorizer, and the path below which it decides.

    connections: to its processes. root: the document root, for the variables of a request. limits: for an answer.
    """

    def __init__(
        self, path: str, connections: Connections, config: Config, root: str, limits: RequestLimits
    ) -> None:
        self.path = path
        self.connections = connections
        self.timeout_s = config.program_timeout
        self.root = root
        self.limits = limits

    async def decide(self, request: Request, io: Stream) -> Response | dict[bytes, bytes]:
        """Ask the authorizer; return the variables of a 200, or the response for the client.

        Raises HTTPError: 502, 503, 504.
        """
        script = Script("", f"the authorizer of {self.path}", "")
        variables = request_variables(request, io, script, 0, self.root) | connection_variables(io)
        params = encode_pairs((name, value) for name, value in variables.items() if name not in NOT_SENT)
        source = ResponderSource(self.connections, request, io, params, EMPTY, script.name, self.timeout_s)
        source.is_repeatable = True  # the question may be sent twice
        try:
            await source.begin()
            found = await response(request, script, source, self.limits)
            if found.status != 200 or found.target is not None:
                fields = tuple(each for each in found.fields if not is_variable(each[0]))
                return Response(found.status, fields, found.body, target=found.target, reason=found.reason)
            await source.discard()
            if not source.finished:
                raise HTTPError(502, f"{script.name}: a 200 with more than {MAX_DISCARDED_BYTES} bytes")
            return dict(variables_of(found, script.name))
        except BaseException:
            source.end()
            raise


def is_variable(field: str) -> bool:
    """Return whether a field of an authorizer's answer is a variable, which the client does not get."""
    return field.lower().startswith(PREFIX)


def variables_of(answer: Response, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the variables of a 200. name: for the log. Raises HTTPError(502) for a variable of the server."""
    for field, value in answer.fields:
        if not is_variable(field):
            continue
        variable = field[len(PREFIX) :]
        if NAME.fullmatch(variable) is None or RESERVED.fullmatch(variable):
            raise HTTPError(502, f"{name} sets the variable {variable[:64]!r}, which it may not set")
        yield variable.encode(), value.encode("latin-1")


def middleware(plan: Plan, config: Config) -> Authorizers:
    """Return the authorizers of a site, which all its locations share. Raises ValueError."""
    found: Authorizers = plan.shared(
        Authorizers, lambda: Authorizers(plan.config, plan.static.root, plan.limits)
    )
    return found


FEATURE = Feature("authorizers", settings=(FASTCGI_AUTHORIZER,), middleware=middleware)
