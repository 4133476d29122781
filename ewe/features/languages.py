"""Languages: one URL, a file for each language. The useful part of Apache's MultiViews (setting `languages`).

    GET /page.html                        htdocs/page.en.html      or page.html.en
    Accept-Language: de-CH, en;q=0.5      htdocs/page.de.html      or page.html.de   ◀── this one

- If a file has exactly the requested name, ewe sends it, and looks for no other file. A request for /page.de.html
  therefore always gets that language: a page can link to its translations.
- Otherwise ewe looks for variants in the languages of the setting. It checks file names and reads no directory: two
  names for each language, each with one system call.
- Accept-Language decides (RFC 4647 section 3.4). If the client wants none of the languages, it gets the first one
  that has a file, and never a 406: a page in the wrong language is better than no page.
- The index file of a directory is chosen in the same way: index.en.html answers for index.html.

The response has its language (Content-Language), the URL of the variant if ewe knows it (Content-Location), and
`Vary: Accept-Language`, so that a cache does not give one visitor's language to another. A variant has the entity
tag of its file, and its own compressed files beside it.

Charsets are not negotiated: browsers no longer send Accept-Charset, and RFC 9110 section 12.5.2 deprecates it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ewe.features.static import CODINGS, FILE_CHECK_S, Static, hidden
from ewe.http.messages import CachedFile, Request, Response, copy_of
from ewe.http.negotiation import preferred_language, with_vary
from ewe.http.target import percent_encode

if TYPE_CHECKING:
    from ewe.config.settings import Config

NEGOTIATED = frozenset({200, 206, 304})  # statuses of responses with the file, or in place of it


class Languages(Static):
    """Answers with the files below a directory. Some of them exist in several languages."""

    def __init__(self, config: Config, *others: Any) -> None:
        """others: the other arguments of Static."""
        super().__init__(config, *others)
        self.languages = config.languages
        # The suffixes in the names of variants: file names such as page.pt-br.html ignore the case of the tag.
        self.known_suffixes = frozenset(language.lower() for language in config.languages)

    def serve(self, request: Request, path: str) -> Response | None:
        """Return the file at path, or its variant in the client's language; None if neither exists."""
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

    def line_for_missing_file(self, path: str, why: str) -> str:
        """Return the line of `ewe --explain` for a path without a file of this name."""
        variants = self.variants(path)
        if not variants:
            return super().line_for_missing_file(path, why)
        names = " or ".join(self.name(each) for each in variants.values())
        return f"  answer    the file {names}, as Accept-Language says   (languages)"

    def directory(self, request: Request, path: str, descriptor: int) -> Response | None:
        """Return the response with the directory's index file, in the client's language, or with a listing."""
        if path.endswith("/"):
            for name in self.index_names:
                if (response := self.serve(request, path + name)) is not None:
                    return response
        return super().directory(request, path, descriptor)

    def has_index(self, path: str) -> bool:
        """Return whether the directory at path has an index file, perhaps in one of the languages."""
        return super().has_index(path) or any(self.variants(path + name) for name in self.index_names)

    def has_or_variant(self, path: str) -> bool:
        """Return whether a regular file is at path, or a variant of it. Raises HTTPError(403, 404)."""
        return self.has(path) or (not hidden(path) and bool(self.variants(path)))

    def is_index_file(self, path: str) -> bool:
        """Return whether a file exists at path, or a variant of it."""
        return super().is_index_file(path) or bool(self.variants(path))

    def variants(self, path: str) -> dict[str, str]:
        """Return language -> path of the existing variants, in the order of the setting."""
        found: dict[str, str] = {}
        stem, dot, extension = path.rpartition(".")
        for language in self.languages:
            # Language tags ignore case, file names do not: page.pt-BR.html, page.pt-br.html
            for suffix in dict.fromkeys((language, language.lower())):
                names = [f"{path}.{suffix}"]
                if dot and stem and "/" not in extension:
                    names.insert(0, f"{stem}.{suffix}.{extension}")
                for name in names:
                    if language not in found and os.path.isfile(self.name(name)):
                        found[language] = name
        return found

    def variant(self, request: Request, path: str, language: str) -> Response | None:
        """Return the response for one variant; None if it does not exist any more. Raises HTTPError."""
        # The key in the cache is the path of the variant: under the requested path, all variants would share it.
        cached = None if request.conditional else self.cached(path)
        if cached is not None and (known_variant := cached.variants.get(request.path)) is not None:
            return known_variant
        request_for_variant = copy_of(request)
        request_for_variant.path = path
        response = cached or super().serve(request_for_variant, path)
        if response is None or response.status not in NEGOTIATED:
            return response
        fields = with_vary(response.fields, "Accept-Language")
        if response.status != 304:
            fields = (*fields, ("Content-Language", language))
        if self.has_urls:
            fields = (*fields, ("Content-Location", percent_encode(path)))
        if type(response.body) is not bytes:
            response.fields = fields
            return response
        if not isinstance(response, CachedFile):
            return Response(response.status, fields, response.body, cause=response.cause)
        variant = CachedFile(response.status, fields, response.body)
        variant.prepare_variants(response.take_room)
        if response.take_room(0):
            response.variants[request.path] = variant
        return variant

    def cached(self, path: str) -> CachedFile | None:
        """Return the cached response of the file at a path; None if it is not cached, or the file has changed.

        A file with sidecars (compressed variants) has no cached response: its response depends on Accept-Encoding.
        """
        entry = self.cache.get(path)
        if entry is None or entry.sidecars:
            return None
        if time.monotonic() - entry.checked_at > FILE_CHECK_S and not self.revalidate(path, entry):
            self.forget(path)
            return None
        return entry.file.response

    def media_type_of(self, path: str) -> str:
        """Return the Content-Type of a file: page.html.de has the type of page.html."""
        stem, _, suffix = path.rpartition(".")
        return super().media_type_of(stem if suffix.lower() in self.known_suffixes else path)


def paths_answered_by(path: str, languages: Collection[str], index: Collection[str]) -> Iterator[str]:
    """Yield the paths of all URLs for which the file at a path may be sent: its own first, then those of
    negotiation.

    This is the inverse of Static.sidecars(), Languages.variants() and directory(): /a/index.en.html.gz is sent for
    /a/index.en.html, /a/index.html and /a/. languages: in lower case. index: the names of index files.
    """
    found = [path]
    found += [path.removesuffix(suffix) for _, suffix in CODINGS if path.endswith(suffix)]
    for each in tuple(found):
        directory, _, name = each.rpartition("/")
        parts = name.split(".")
        for at in (-1, -2):  # page.html.en, page.en.html
            if len(parts) + at > 0 and parts[at].lower() in languages:
                rest = parts[:at] + parts[len(parts) + at + 1 :]
                found.append(f"{directory}/{'.'.join(rest)}")
    yield from found
    for each in found:
        directory, _, name = each.rpartition("/")
        if name in index:
            yield directory + "/"
