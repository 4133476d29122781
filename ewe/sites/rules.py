"""Rules: the handlers of a location. Each answers, passes the request on (None), or raises Reroute.

A location of a site (glossary) has keys, such as `redirect`. Each of these keys becomes one of the handlers below.
Reroute makes the site look for the handlers of another path, as if the client had requested that path.

FixedStatus                for `status`
Redirect, Rewrite, Try     for the keys of the same names; Rewrite and Try send a request to another path (Reroute)
Programs                   for `programs` and `gateway`: finds the script, and has the gateway run it
Alias                      for `alias`: the files of another directory, or one file
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ewe.features.base import Reroute
from ewe.features.static import Static, redirect
from ewe.gateway.cgi import refuse_trace
from ewe.gateway.scripts import Script, leading_parts, lines_about_script
from ewe.gateway.true_names import NAME_ONLY_FLAGS, true_name
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response
from ewe.http.status import REASONS, HTTPError
from ewe.http.target import percent_encode
from ewe.sites.templates import Template, URLTemplate, with_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ewe.features.base import Explanation
    from ewe.features.declaration import ScriptFunction
    from ewe.sites.match import Match
    from ewe.streams.base import Stream


class FixedStatus:
    """Answers every request with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.why = f"status = {status}"

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the rule; return True."""
        yield f"  answer    {self.status} {REASONS.get(self.status, '')}   ({self.why})"
        return True

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return a response with the status."""
        if self.status >= 400:
            return error_page(self.status, f"a location says status = {self.status}")
        return Response(self.status)


class Redirect:
    """Redirects the client to another URL."""

    def __init__(self, location: Match, template: URLTemplate, status: int) -> None:
        self.location = location
        self.template = template
        self.status = status
        self.keeps_query = "?" not in template.text and "#" not in template.text
        self.why = f"redirect = {template.text!r}, status {status}"

    def target(self, request: Request, io: Stream) -> str:
        """Return the URL to which the client is redirected. Raises HTTPError(400) as URLTemplate.url() does."""
        target = self.template.url(self.location.values_of(request, io))
        if self.keeps_query and request.query is not None:
            target += "?" + request.query
        return target

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the rule; return True."""
        yield f"  answer    {self.status}, Location: {self.target(request, io)}   ({self.why})"
        return True

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the redirect."""
        response = redirect(self.target(request, io))
        return Response(self.status, response.fields, response.body)


class Rewrite:
    """Replaces the path of a request by another path of the site."""

    def __init__(self, location: Match, template: Template) -> None:
        self.location = location
        self.template = template
        self.why = f"rewrite = {template.text!r}"

    def rewritten(self, request: Request, io: Stream) -> Request:
        """Return the request for the other path. Raises HTTPError(404) if the path leads out of its directory."""
        return with_path(request, *self.template.path(self.location.values_of(request, io)))

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the line about the rule. Raises Reroute, HTTPError(404)."""
        rewritten = self.rewritten(request, io)
        yield f"  rewrite   {self.why}"
        raise Reroute(rewritten, io.variables)

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Raise Reroute, HTTPError(404)."""
        raise Reroute(self.rewritten(request, io), io.variables)


class Try:
    """Chooses the first of several paths that is a file or a directory. The last path is not checked."""

    def __init__(
        self, location: Match, templates: Sequence[Template], status: int, static_of: Callable[[str], Static]
    ) -> None:
        """location: gives the variables for the templates. templates: the paths, in their order.

        status: the answer if no path exists; 0: the last template is used without a check. static_of: a function
        that takes a path, and returns the Static that would serve it.
        """
        self.location = location
        self.templates = templates
        self.status = status
        self.static_of = static_of
        self.why = f"try: {', '.join(each.text for each in templates)}{f', {status}' if status else ''}"

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Find the first path that exists. Pass the request on if it is its own path, else raise Reroute."""
        if io.tried is self:
            return None
        values = self.location.values_of(request, io)
        for template in self.templates:
            path, query = template.path(values)
            if self.is_unchecked(template) or self.exists(path):
                self.reroute(request, path, query, io)
                return None
        return error_page(self.status, f"no path of the rule exists ({self.why})")

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield a line for each path: whether it exists; return whether none exists. Raises Reroute, HTTPError."""
        if io.tried is self:
            yield f"  try       is not applied again: it has found {request.path}"
            return False
        values = self.location.values_of(request, io)
        for template in self.templates:
            path, query = template.path(values)
            unchecked = self.is_unchecked(template)
            usable = unchecked or self.exists(path)
            word = "is used without a check" if unchecked else "exists" if usable else "does not exist"
            yield f"  try       {template.text}: {path} {word}"
            if usable:
                self.reroute(request, path, query, io)
                return False
        yield f"  answer    {self.status}   ({self.why})"
        return True

    def is_unchecked(self, template: Template) -> bool:
        """Return whether a template is used without a check."""
        return template is self.templates[-1] and not self.status

    def reroute(self, request: Request, path: str, query: str | None, io: Stream) -> None:
        """Send the request to another path of the site: raise Reroute, unless the path is the request's own.

        query: of the new request; None: the query stays. The exception names this handler (tried), so that the same
        `try` is not applied to the path that it has found.
        """
        # The path found is the request's own with a slash: it is a directory, and Static redirects the client.
        if path == request.path + "/":
            path = request.path
        if path != request.path or query is not None:
            raise Reroute(with_path(request, path, query), io.variables, tried=self)

    def exists(self, path: str) -> bool:
        """Return whether there is a file at a path, or a directory if it ends in a slash. Raises HTTPError(403)."""
        static = self.static_of(path)
        if path.endswith("/"):
            return os.path.isdir(static.name(path))
        try:
            return static.has_or_variant(path) or leads_to_program(static, path)
        except HTTPError as refused:
            if refused.status == 404:
                return False
            raise


def leads_to_program(static: Static, path: str) -> bool:
    """Return whether a path leads to a program, or continues after one, such as /admin.php/users.

    A file is a program if its source is protected. Raises HTTPError(403, 404).
    """
    for part in leading_parts(static.root, static.prefix, path):
        if os.path.isdir(part.file):
            continue
        # The first part that is no directory: it is a program, or the path leads nowhere.
        descriptor = static.open(part.file, for_program=True)
        if descriptor is None:
            return False
        try:
            return static.protected.protects(part.file, true_name(descriptor, part.file), descriptor)
        finally:
            os.close(descriptor)
    return False


class Programs:
    """Answers with programs: of `programs` and `gateway`.

    The programs of a location are the files with certain extensions, all files of a directory, or one file; or one
    program at a socket's address, which handles the paths itself.
    """

    def __init__(
        self,
        static: Static,
        location: Match,
        run: ScriptFunction,
        why: str,
        *,
        extensions: tuple[str, ...] = (),
        file: str = "",
        needs_file: bool = True,
        executable: bool = False,
    ) -> None:
        """static: finds the files of programs. location: decides which paths they answer.

        run: a function that runs a script. why: the rule, for --explain. extensions: of the programs' names; ():
        all files are programs. file: the only program; "" if the path names it. needs_file: the program is a file
        of this machine; otherwise it is behind an address. executable: the file must have its execute bit.
        """
        self.static = static
        self.location = location
        self.prefix = location.prefix
        self.run = run
        self.why = why
        self.extensions = extensions
        self.file = file
        self.needs_file = needs_file
        self.executable = executable

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the program; return whether the path has one. Raises HTTPError(403, 404)."""
        script = self.find(request.path)
        if script is None:
            yield f"  programs  {request.path} leads to no program   ({self.why})"
        else:
            yield from lines_about_script(script, self.why, executable=self.executable)
        return script is not None

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Run the program at the path and return its response; None if there is no program. Raises HTTPError."""
        script = self.find(request.path)
        if script is None:
            return None
        refuse_trace(request)
        if self.executable and not os.access(script.file, os.X_OK):
            raise HTTPError(403, f"{script.file} is not executable: chmod +x {script.file}")
        return await self.run(script, request, io)

    def find(self, path: str) -> Script | None:
        """Return the script for a path, None if there is none. Raises HTTPError(403, 404)."""
        if self.file:
            rest = self.location.rest(path)
            return Script(self.file, path.removesuffix(rest), rest)
        if not self.needs_file:  # the upstream handles the rest of the path
            return Script(self.static.name(self.prefix), self.prefix, path[len(self.prefix) :])
        if path.endswith("/"):
            path += next((name for name in self.static.index_names if self.is_program(path + name)), "")
        for part in leading_parts(self.static.root, self.static.prefix, path):
            if self.extensions and not part.name.endswith(self.extensions):
                continue
            if self.static.has(part.name):
                return part
            if not os.path.isdir(part.file):
                return None
        return None

    def is_program(self, path: str) -> bool:
        """Return whether a path is a file that this location runs."""
        return (not self.extensions or path.endswith(self.extensions)) and self.static.has(path)


class Alias:
    """Answers with the files of another directory, or with one file."""

    def __init__(self, location: Match, static: Static, template: Template | None, why: str) -> None:
        """location: gives the variables of the template. static: the other directory. why: the rule, for --explain.

        template: the path below the directory, if the location has a pattern or names one file; None: the request's
        path.
        """
        self.location = location
        self.static = static
        self.template = template
        self.why = why

    async def respond(self, request: Request, io: Stream) -> Response:
        """Return the file, or 404. Raises HTTPError."""
        if self.template is None:
            response = await self.static.respond(request, io)
        else:
            response = await self.static.respond(self.below(request, io), io)
            # The file is a directory. The client's path lacks the slash, too: redirect the client to its own path
            if response is not None and response.status == 301:
                query = "" if request.query is None else "?" + request.query
                return redirect(percent_encode(request.path) + "/" + query)
        return response or error_page(404, "there is no such file")

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines about the file that answers; return True. Raises HTTPError(404)."""
        below = request if self.template is None else self.below(request, io)
        yield from self.static.explain(below, self.why, request)
        return True

    def below(self, request: Request, io: Stream) -> Request:
        """Return the request for a path below the directory. Raises HTTPError(404) if the path leads out of it."""
        assert self.template is not None
        return with_path(request, self.template.path(self.location.values_of(request, io))[0], None)


def true_path(path: str) -> tuple[str, bool]:
    """Return a path without symbolic links, and whether it is a directory. Raises OSError."""
    descriptor = os.open(path, NAME_ONLY_FLAGS)
    try:
        return true_name(descriptor, path), stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
