"""Languages: one URL, a file for each language. The useful part of Apache's MultiViews (setting `languages`).

    GET /page.html                        htdocs/page.en.html      or page.html.en
    Accept-Language: de-CH, en;q=0.5      htdocs/page.de.html      or page.html.de   ◀── this one

- A file that has the asked name itself is sent, as without the setting, and no other file is looked for. A request
  for /page.de.html therefore always gets that language: a page can link to its translations.
- Otherwise ewe looks for variants in the languages that the setting names. It asks for file names and reads no
  directory: two names for each language, by one call of the kernel each.
- Accept-Language decides (RFC 4647 section 3.4). If the client likes none of them, it gets the first one that has a
  file, and never a 406: a page in the wrong language is better than none.
- The index file of a directory is chosen in the same way: index.en.html answers for index.html.

The response names its language (Content-Language) and the URL of the variant (Content-Location), and says
`Vary: Accept-Language`, so that a cache does not give one visitor's language to another. A variant has the entity
tag of its file, and its own compressed files beside it.

Charsets are not negotiated: browsers no longer send Accept-Charset, and RFC 9110 section 12.5.2 deprecates it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ewe.features.static import CODINGS, FRESH, Static, hidden
from ewe.gateway.claims import Claims
from ewe.http.messages import CachedFile, Request, Response, copy_of
from ewe.http.negotiation import preferred_language, with_vary
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.config.settings import Config

NEGOTIATED = frozenset({200, 206, 304})


class Languages(Static):
    """Files below a directory, of which some are there in several languages."""

    def __init__(
        self,
        config: Config,
        root: str = "",
        prefix: str = "",
        claims: Claims | None = None,
        owner: int | None = None,
    ) -> None:
        super().__init__(config, root, prefix, claims, owner)
        self.languages = config.languages
        self.suffixes = frozenset(language.lower() for language in config.languages)

    def serve(self, request: Request, path: str) -> Response | None:
        """Answer with the file at path, or with its variant in the client's language; None if there is neither."""
        response = super().serve(request, path)
        if response is not None or path.endswith("/") or hidden(path):
            return response
        variants = self.variants(path)
        while variants:
            language = preferred_language(request.values.get("accept-language"), [*variants])
            response = self.variant(request, variants.pop(language), language)
            if response is not None:
                return response
        return None

    def absent(self, path: str, why: str) -> str:
        """Return the line of `ewe --explain` for a path without a file of this name."""
        variants = self.variants(path)
        if not variants:
            return super().absent(path, why)
        names = " or ".join(self.name(each) for each in variants.values())
        return f"  answer    the file {names}, as Accept-Language says   (languages)"

    def directory(self, request: Request, path: str, descriptor: int) -> Response | None:
        """Answer with the directory's index file, in the client's language, or with a listing."""
        if path.endswith("/"):
            for name in self.index:
                if (response := self.serve(request, path + name)) is not None:
                    return response
        return super().directory(request, path, descriptor)

    def variants(self, path: str) -> dict[str, str]:
        """Return the path of the variant in each language that there is, in the order of the setting."""
        found: dict[str, str] = {}
        stem, dot, extension = path.rpartition(".")
        for language in self.languages:
            # The kernel knows letters apart that a language tag does not: page.pt-BR.html, page.pt-br.html
            for suffix in dict.fromkeys((language, language.lower())):
                names = [f"{path}.{suffix}"]
                if dot and stem and "/" not in extension:
                    names.insert(0, f"{stem}.{suffix}.{extension}")
                for name in names:
                    if language not in found and os.path.isfile(self.name(name)):
                        found[language] = name
        return found

    def variant(self, request: Request, path: str, language: str) -> Response | None:
        """Answer with one variant; None if it is not there any more. Raises HTTPError."""
        # The cache is asked and filled under the path of the variant: under the asked path, all would share it.
        cached = None if request.conditional else self.cached(path)
        if cached is not None and (known := cached.variants.get(request.path)) is not None:
            return known
        own = copy_of(request)
        own.path = path
        response = cached or super().serve(own, path)
        if response is None or response.status not in NEGOTIATED:
            return response
        fields = with_vary(response.fields, "Accept-Language")
        if response.status != 304:
            fields = (*fields, ("Content-Language", language))
        fields = (*fields, ("Content-Location", percent_encode(path)))
        if type(response.body) is not bytes:
            response.fields = fields
            return response
        if not isinstance(response, CachedFile):
            return Response(response.status, fields, response.body, cause=response.cause)
        found = CachedFile(response.status, fields, response.body)
        found.variants, found.keep = {}, response.keep
        if response.keep(0):
            response.variants[request.path] = found
        return found

    def cached(self, path: str) -> CachedFile | None:
        """Return the response of a variant that the cache holds and that is still true."""
        known = self.cache.get(path)
        if known is None or not known.plain:
            return None
        if time.monotonic() - known.checked > FRESH and not self.look_again(known):
            self.forget(path)
            return None
        return known.file.response

    def kind_of(self, path: str) -> str:
        """Return the Content-Type of a file: page.html.de has that of page.html."""
        stem, _, suffix = path.rpartition(".")
        return super().kind_of(stem if suffix.lower() in self.suffixes else path)


def answered_by(path: str, languages: Collection[str], index: Collection[str]) -> Iterator[str]:
    """Yield the paths of all URLs that the file at a path may answer: this one first, then those of negotiation.

    The mirror image of Static.sidecars(), Languages.variants() and directory(): /a/index.en.html.gz is sent for
    /a/index.en.html, /a/index.html and /a/. languages: in lower case. index: names of index files.
    """
    found = [path]
    found += [path.removesuffix(suffix) for _, suffix in CODINGS if path.endswith(suffix)]
    for each in tuple(found):
        directory, _, name = each.rpartition("/")
        parts = name.split(".")
        for place in (-1, -2):  # page.html.en, page.en.html
            if len(parts) + place > 0 and parts[place].lower() in languages:
                rest = parts[:place] + parts[len(parts) + place + 1 :]
                found.append(f"{directory}/{'.'.join(rest)}")
    yield from found
    for each in found:
        directory, _, name = each.rpartition("/")
        if name in index:
            yield directory + "/"
