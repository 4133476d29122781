"""`ewe --explain URL`: which site, which location and which rule would answer a request, and why.

It walks the same objects as a request does, in the same order, and asks them the same questions: does the location
cover the path, which file is the script. It starts no program, asks no other server, and sends nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ewe.features.encoded_slashes import same_proxy
from ewe.features.languages import Languages
from ewe.features.static import Static, hidden
from ewe.gateway.scripts import Script
from ewe.http.messages import Request
from ewe.http.status import REASONS, HTTPError
from ewe.http.target import ENCODED_SLASH, checked_host, parse_target, percent_encode
from ewe.http.virtual_hosts import name_of, parents
from ewe.site import MAX_REDIRECTS, Site
from ewe.sites.build import Asked, Offered
from ewe.sites.leads import Alias, Programs, Redirect, Rewrite, Status, Try
from ewe.sites.templates import values_of, with_path

if TYPE_CHECKING:
    from ewe.sites.location import Location
    from ewe.sites.virtual import Sites, VirtualSite

QUESTION = re.compile(r"(?:([A-Za-z]+)\s+)?(?:(https?)://([^/?#]+))?(/[^#\s]*)?")


class Nowhere:
    """A stream's facts, for templates; nothing is sent over it."""

    client = ("127.0.0.1", 0)
    connected = None

    def __init__(self, scheme: str, server: tuple[str, int]) -> None:
        self.scheme = scheme
        self.server = server


def explain(site: Site, question: str, server: tuple[str, int]) -> Iterator[str]:
    """Yield the lines of the answer. question: [METHOD] URL. server: the address that the client connects to.

    Raises ValueError for a question that is no URL.
    """
    match = QUESTION.fullmatch(question.strip())
    if match is None or not (match[3] or match[4]):
        raise ValueError(f"{question!r} is no URL: write /path, http://host/path or POST /path")
    method, scheme, host, target = match[1] or "GET", match[2] or "http", match[3] or "", match[4] or "/"
    request = Request(method.upper(), target, (1, 1), (("host", host or server[0]),))
    try:
        request.host = checked_host(host or server[0])
        parse_target(request, site.limits.encoded_slashes)
    except HTTPError as refused:
        raise ValueError(f"{question!r}: {refused.cause} ({refused.status})") from None
    io = Nowhere(scheme, server)
    yield f"{request.method} {scheme}://{request.host}{target}"
    if request.path != target.partition("?")[0]:
        yield f"  path      {request.path}   (decoded, without dot segments and double slashes)"
    sites = getattr(site, "sites", None)
    chosen = site if sites is None else site.hosts.choose(request.host, server)  # type: ignore[attr-defined]
    if not same_proxy(chosen, request):
        yield f"  answer    404: {ENCODED_SLASH}, and its two readings do not lead to the same proxy"
    elif sites is None:
        yield "  site      the only one: the settings have no [[site]]"
        yield from Explainer(io).features(site, request)
    else:
        try:
            yield from of_sites(site, request, io)  # type: ignore[arg-type]
        except HTTPError as refused:
            yield f"  answer    {refused.status}: {refused.cause}"


def of_sites(sites: Sites, request: Request, io: Nowhere) -> Iterator[str]:
    """Yield which of several sites answers, and what it answers."""
    chosen = sites.hosts.choose(request.host, io.server)
    host = next(host for host, site in sites.hosts.all if site is chosen)
    name = name_of(request.host)
    if name in host.names:
        why = f"{name} is one of its names"
    elif wildcard := next((each for each in parents(name) if each in host.names), ""):
        why = f"{name} matches its name {wildcard}"
    elif not host.names:
        why = "it has no names, and no other site has this one" if len(sites.sites) > 1 else "the only one"
    else:
        why = f"no site has the name {name}, and this is the first"
    if host.listen:
        why += "; it listens at " + ", ".join(f"{address}:{port}" for address, port in host.listen)
    yield f"  site      {chosen.table.place}: {chosen.table}   ({why})"
    yield f"            documentroot = {chosen.static.root}"
    yield from Explainer(io).walk(chosen, request)


class Explainer:
    """Says what the parts of a site would do. io: the connection's facts."""

    def __init__(self, io: Nowhere) -> None:
        self.io: Any = io

    def walk(self, site: VirtualSite, request: Request) -> Iterator[str]:
        """Yield the locations that a request meets, with its rewrites, and what answers."""
        tried: Location | None = None
        for _ in range(MAX_REDIRECTS + 1):
            location, found = site.find(request.path)
            yield from self.location(site, location, request.path)
            if location.decides:
                yield f"  decides   {', '.join(location.decides)}: may answer instead"
            outcome: Request | bool = False
            for lead in location.leads:
                if location is tried and isinstance(lead, Try):
                    yield f"  try       not again: it gave {request.path}"
                    continue
                lines, outcome = self.lead(lead, request, location.rest(request.path), found)
                yield from lines
                if outcome:
                    break
            if isinstance(outcome, Request):
                request, tried = outcome, location
                yield f"            so ewe looks {request.path} up"
                continue
            if not outcome:
                yield "  answer    404: nothing here answers"
            if location.finishes:
                yield f"  finishes  {', '.join(location.finishes)}: may change the answer"
            return
        yield f"  answer    500: more than {MAX_REDIRECTS} rewrites"

    def location(self, site: VirtualSite, location: Location, path: str) -> Iterator[str]:
        """Yield which location covers a path, and which were asked before it."""
        if location.table is None:
            why = "no location covers this path" if len(site.locations) > 1 else "the site has no locations"
            yield f"  location  none: {why}"
            return
        before = site.locations.index(location)
        passed = f", after {before} that do not" if before else ""
        yield f"  location  {location.table.place}: {location.table}   (the first that covers {path}{passed})"

    def lead(
        self, lead: Any, request: Request, rest: str, found: re.Match[str] | None
    ) -> tuple[list[str], Request | bool]:
        """Return what one lead says, and its outcome: an answer (True), a request to look up, or no answer."""
        if type(lead).__name__ == "CachedLead":
            lead = lead.inner
        values = values_of(request, rest, found, self.io)
        if isinstance(lead, Status):
            return [f"  answer    {lead.status} {REASONS.get(lead.status, '')}   ({lead.why})"], True
        if isinstance(lead, Redirect):
            target = lead.template.url(values)
            if lead.keeps_query and request.query is not None:
                target += "?" + request.query
            return [f"  answer    {lead.status}, Location: {target}   ({lead.why})"], True
        try:
            if isinstance(lead, Rewrite):
                return [f"  rewrite   {lead.why}"], with_path(request, *lead.template.path(values))
            if isinstance(lead, Try):
                return self.tries(lead, request, values)
            if isinstance(lead, Programs):
                script = lead.find(request.path, rest)
                if script is None:
                    return [f"  programs  {request.path} leads to no program   ({lead.why})"], False
                return [*of_script(script, lead.why, lead.executable)], True
            if isinstance(lead, Alias):
                below = request
                if lead.template is not None:
                    below = with_path(request, lead.template.path(values)[0], None)
                return [*self.files(lead.static, below, lead.why, request)], True
            if isinstance(lead, Asked):
                if isinstance(lead.feature, Offered):
                    return [*self.features(lead.feature.part, request)], True
                line = self.feature(lead.feature, request)
                return ([line], True) if line else ([], False)
        except HTTPError as refused:
            return [f"  answer    {refused.status}: {refused.cause}"], True
        return [f"  asks      {type(lead).__name__}"], False

    def tries(self, lead: Try, request: Request, values: dict[str, str]) -> tuple[list[str], Request | bool]:
        """Return what `try` finds."""
        lines = []
        for template in lead.templates:
            path, query = template.path(values)
            last = template is lead.templates[-1] and not lead.status
            there = last or lead.is_there(path)
            word = "taken unseen" if last else "is there" if there else "is not there"
            lines.append(f"  try       {template.text}: {path} {word}")
            if there:
                if path == request.path + "/":
                    path = request.path
                same = path == request.path and query is None
                return lines, False if same else with_path(request, path, query)
        return [*lines, f"  answer    {lead.status}   ({lead.why})"], True

    def features(self, site: Site, request: Request) -> Iterator[str]:
        """Yield which of a site's features answers."""
        if site.authorizers is not None or getattr(site, "guard", None) is not None:
            yield "  decides   an authorizer may answer instead (fastcgi-authorizer)"
        for prefix, feature in site.mounts:
            if request.path.startswith(prefix):
                try:
                    line = self.feature(feature, request)
                except HTTPError as refused:
                    line = f"  answer    {refused.status}: {refused.cause}"
                if line:
                    yield line
                    return
        yield from self.files(site.static, request, "no program is at this path")

    def feature(self, feature: Any, request: Request) -> str:
        """Return the line of a feature that answers, "" of one that does not. Raises HTTPError."""
        if type(feature).__name__ == "Cached":
            feature = feature.feature
        name, path = type(feature).__name__, request.path
        if name == "CGI":
            return "\n".join(of_script(script, "cgi-path", True)) if (script := feature.find(path)) else ""
        if name == "FastCGI":
            own = feature.known_or_found(path) if feature.where[0] == "." else feature.below(path)
            return "\n".join(of_script(own, f"a responder for {feature.where}", False)) if own else ""
        if name == "SitePages":
            page = feature.pages.find(path)
            return "\n".join(of_script(page, "X-Switch", False)) if page else ""
        if name in ("WSGI", "ASGI"):
            root = getattr(feature, "path", None) or getattr(feature, "root_path", "")
            below = not root or path == root or path.startswith(root + "/")
            text = getattr(feature, "name", "") or feature.application.text
            return f"  answer    {name} application {text} at {root or '/'}" if below else ""
        if name == "Homes":
            feature, name = feature.users, "Users"
        if name == "Users":
            return (
                f"  answer    the directory of a user, {path.split('/')[1]} (userdir)"
                if feature.home(path)
                else ""
            )
        if name == "Proxy":
            below = path.startswith(feature.where + "/") or path == (feature.where or "*")
            return f"  answer    the next server of {feature.name}" if below else ""
        if name == "WebDAV":
            return f"  answer    WebDAV, for the files below {feature.tree.root}"
        if name == "MarkdownPages":
            file = feature.static.name(path)
            is_page = path.endswith(".md") and request.query != "source" and feature.static.has(path)
            return f"  answer    the page of {file}   (markdown)" if is_page else ""
        if name == "SQLPages":
            return ""
        return f"  asks      {name}, which alone knows whether it answers"

    def files(
        self, static: Static, request: Request, why: str, asked: Request | None = None
    ) -> Iterator[str]:
        """Yield which file or directory answers. asked: the client's request, if an alias changed its path."""
        path, asked = request.path, asked or request
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            yield f"  answer    405: {request.method} to a file"
            return
        name = static.name(path)
        try:
            if hidden(path):
                raise HTTPError(404, "its name begins with a dot, or is WEB-INF or META-INF")
            descriptor = static.open(name)
        except HTTPError as refused:
            yield f"  answer    {refused.status}: {refused.cause}"
            return
        variants = static.variants(path) if isinstance(static, Languages) and descriptor is None else {}
        if variants:
            names = " or ".join(static.name(each) for each in variants.values())
            yield f"  answer    the file {names}, as Accept-Language says   (languages)"
        elif descriptor is None:
            yield f"  answer    404: there is no {name}   ({why})"
        if descriptor is None:
            return
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                yield f"  answer    the file {name}   ({why})"
            elif not path.endswith("/"):
                target = percent_encode(asked.path) + "/" + ("" if asked.query is None else f"?{asked.query}")
                yield f"  answer    301, Location: {target}   ({name} is a directory)"
            elif index := next((each for each in static.index if os.path.exists(name + each)), ""):
                yield f"  answer    the file {name}{index}   (the first of {', '.join(static.index)} that is there)"
            elif static.indexes:
                yield f"  answer    a listing of {name}   (it has no {' or '.join(static.index)})"
            else:
                yield f"  answer    403: {name} has no {' or '.join(static.index)}, and indexes is off"
        finally:
            os.close(descriptor)


def of_script(script: Script, why: str, executable: bool) -> Iterator[str]:
    """Yield what runs a script, and what the script is told of its path."""
    yield f"  answer    the program {script.file}   ({why})"
    yield f"            SCRIPT_NAME={script.name} PATH_INFO={script.path_info or '(none)'}"
    if executable and not os.access(script.file, os.X_OK):
        yield f"            but 403: it is not executable: chmod +x {script.file}"
