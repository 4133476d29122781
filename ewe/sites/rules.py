"""Where a location leads: each class answers, passes on (None), or says under which path to look instead.

Status, Redirect, Rewrite, Try      from the keys of the same names
Programs                            programs and gateway: which file is the script, and who runs it
Alias                               alias: files of a directory elsewhere, or one file
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Protocol

from ewe.features.static import Static, redirect
from ewe.gateway.cgi import refuse_trace
from ewe.gateway.scripts import Script, leading_parts
from ewe.gateway.true_names import LOOK, true_name
from ewe.http.error_pages import error_page
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode
from ewe.sites.templates import Template, values_of, with_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ewe.streams.base import Stream

    Found = re.Match[str] | None


class Lead(Protocol):
    """One step on the way to an answer. why: for `ewe --explain`, in words."""

    why: str

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Request | Response | None:
        """Return an answer, a request to look up instead, or None to pass on.

        rest: of the path, after the location's prefix. found: the match of its pattern. Raises HTTPError.
        """
        ...


class Status:
    """Answer with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.why = f"status = {status}"

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Response:
        if self.status >= 400:
            return error_page(self.status, f"a location says status = {self.status}")
        return Response(self.status)


class Redirect:
    """Send the client elsewhere."""

    def __init__(self, template: Template, status: int) -> None:
        self.template = template
        self.status = status
        self.keeps_query = "?" not in template.text and "#" not in template.text
        self.why = f"redirect = {template.text!r}, status {status}"

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Response:
        target = self.template.url(values_of(request, rest, found, io))
        if self.keeps_query and request.query is not None:
            target += "?" + request.query
        response = redirect(target)
        return Response(self.status, response.fields, response.body)


class Rewrite:
    """Look another path up."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.why = f"rewrite = {template.text!r}"

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Request:
        return with_path(request, *self.template.path(values_of(request, rest, found, io)))


class Try:
    """Look the first path up that is a file or a directory; the last one is taken unseen."""

    def __init__(
        self, templates: Sequence[Template], status: int, static_of: Callable[[str], Static]
    ) -> None:
        """status: the answer if nothing is found; 0: the last template is the answer.

        static_of: return the files that a path is looked up in.
        """
        self.templates = templates
        self.status = status
        self.static_of = static_of
        self.why = f"try: {', '.join(each.text for each in templates)}{f', {status}' if status else ''}"

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Request | Response | None:
        values = values_of(request, rest, found, io)
        for template in self.templates:
            path, query = template.path(values)
            if (template is self.templates[-1] and not self.status) or self.is_there(path):
                if path == request.path + "/":
                    path = (
                        request.path
                    )  # a directory without its slash: the files' feature sends the client there
                return None if path == request.path and query is None else with_path(request, path, query)
        return error_page(self.status, f"none of {self.why} is there")

    def is_there(self, path: str) -> bool:
        """Return whether a path is a file, or, with a slash at its end, a directory. Raises HTTPError(403)."""
        static = self.static_of(path)
        if path.endswith("/"):
            return os.path.isdir(static.name(path))
        try:
            return static.has(path) or is_below_program(static, path)
        except HTTPError as refused:
            if refused.status == 404:
                return False
            raise


def is_below_program(static: Static, path: str) -> bool:
    """Return whether a path leads to a program and goes on: /admin.php/users. Raises HTTPError(403, 404)."""
    for part in leading_parts(static.root, static.prefix, path):
        if os.path.isdir(part.file):
            continue
        descriptor = static.open(part.file, for_program=True)
        if descriptor is None:
            return False
        try:
            return static.claims.claim(part.file, true_name(descriptor, part.file), descriptor)
        finally:
            os.close(descriptor)
    return False


class Runner(Protocol):
    """What runs a script."""

    async def __call__(self, script: Script, request: Request, io: Stream) -> Response | None:
        """Return its answer. Raises HTTPError."""
        ...


class Programs:
    """Answer with programs.

    Of four kinds: files with some extensions among other files, all files of a directory, one file, and a program
    behind an address that looks its paths up itself.
    """

    def __init__(
        self,
        static: Static,
        prefix: str,
        run: Runner,
        why: str,
        *,
        extensions: tuple[str, ...] = (),
        file: str = "",
        needs_file: bool = True,
        executable: bool = False,
    ) -> None:
        """static: the files. prefix: of the location, without a slash at its end. file: the one program.

        needs_file: the program is a file of this machine. executable: it must have its execute bit.
        """
        self.static = static
        self.prefix = prefix
        self.run = run
        self.why = why
        self.extensions = extensions
        self.file = file
        self.needs_file = needs_file
        self.executable = executable

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Response | None:
        script = self.find(request.path, rest)
        if script is None:
            return None
        refuse_trace(request)
        if self.executable and not os.access(script.file, os.X_OK):
            raise HTTPError(403, f"{script.file} is not executable: chmod +x {script.file}")
        return await self.run(script, request, io)

    def find(self, path: str, rest: str) -> Script | None:
        """Return the script that a path leads to. Raises HTTPError(403, 404)."""
        if self.file:
            return Script(self.file, path[: len(path) - len(rest)] if rest else path, rest)
        if not self.needs_file:
            return Script(self.static.name(self.prefix), self.prefix, path[len(self.prefix) :])
        if path.endswith("/"):
            path += next((name for name in self.static.index if self.is_program(path + name)), "")
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
    """Files of a directory elsewhere, or one file."""

    def __init__(self, static: Static, name: Template | None, why: str) -> None:
        """name: the path below the directory, if the location has a pattern or names one file."""
        self.static = static
        self.template = name
        self.why = why

    async def lead(self, request: Request, rest: str, found: Found, io: Stream) -> Response:
        if self.template is None:
            response = await self.static.respond(request, io)
        else:
            path, _ = self.template.path(values_of(request, rest, found, io))
            response = await self.static.respond(with_path(request, path, None), io)
            if response is not None and response.status == 301:  # a directory: its slash is missing here, too
                query = "" if request.query is None else "?" + request.query
                return redirect(percent_encode(request.path) + "/" + query)
        return response or error_page(404, "there is no such file")


def true_path(path: str) -> tuple[str, bool]:
    """Return a path without symbolic links, and whether it is a directory. Raises OSError."""
    descriptor = os.open(path, LOOK)
    try:
        return true_name(descriptor, path), stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
