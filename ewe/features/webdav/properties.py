"""PROPFIND and PROPPATCH: the XML of WebDAV (RFC 4918 sections 9.1, 9.2, 14 and 15).

XML from unknown clients is dangerous: entities may expand without limit, or include files. This module uses
Python's expat. A callback refuses every document type, and so every entity. The numbers of names, the depth and the
size are bounded.

A namespace multiplies, too. A document contains it once, but expat gives it to every name that has its prefix, and
the answer repeats each name for every file of a directory. MAX_NAME_CHARS bounds the names with their namespaces.
expat also builds the names of all attributes of an element before it calls start(): 4,000 attributes with a
namespace of 32 KB would take 150 MB. The document is therefore short (MAX_XML_BYTES): 16 KB give 10 MB at most.

ewe has the live properties of values_of(). It stores no dead properties: PROPPATCH answers 403 for each property,
and changes nothing, as RFC 4918 section 9.2 allows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple
from xml.parsers import expat

from ewe.features.indexes import date
from ewe.features.webdav.upload import etag_of
from ewe.http.dates import http_date, with_four_digits
from ewe.http.error_pages import html_escape
from ewe.http.media_types import content_type
from ewe.http.status import HTTPError
from ewe.http.target import percent_encode

MAX_XML_BYTES = 16 * 1024  # bytes of a request's XML
MAX_XML_DEPTH = 16  # elements one in the other; the bodies of WebDAV need four or five
MAX_PROPERTIES = 200  # of one request; the answer repeats each for every file
# Characters of the names of all elements, each with its namespace. The names of 200 usual properties have 12,000.
MAX_NAME_CHARS = 16 * 1024
DAV = "DAV:"
HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">\n'
END = "</D:multistatus>\n"
CONTENT_TYPE = ("Content-Type", 'application/xml; charset="utf-8"')
FINITE = (
    '<?xml version="1.0" encoding="utf-8"?>\n<D:error xmlns:D="DAV:"><D:propfind-finite-depth/></D:error>\n'
)

Name = tuple[str, str]  # namespace, local name


class Wanted(NamedTuple):
    """The properties that a PROPFIND asks for. names: None for all. only_names: send no values."""

    names: Sequence[Name] | None
    only_names: bool = False


class Document:
    """An XML document as a list of (depth, namespace, name), in document order. Raises HTTPError(400)."""

    def __init__(self, data: bytes) -> None:
        self.elements: list[tuple[int, str, str]] = []
        self.depth = 0
        self.name_chars = 0  # of all elements so far
        parser = expat.ParserCreate(namespace_separator="\n")
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = self.refuse
        parser.EntityDeclHandler = self.refuse
        try:
            parser.Parse(data, True)
        except (expat.ExpatError, ValueError, LookupError) as reason:
            raise HTTPError(400, f"webdav: the body is no XML: {reason}") from None
        finally:  # parser and document refer to each other: without this, only the garbage collector frees them
            parser.StartElementHandler = parser.EndElementHandler = None
            parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = None

    def start(self, name: str, attributes: object) -> None:
        """Note an element."""
        self.depth += 1
        if self.depth > MAX_XML_DEPTH or len(self.elements) > 2 * MAX_PROPERTIES:
            raise HTTPError(400, "webdav: the body's XML is too deep or has too many elements")
        self.name_chars += len(name)
        if self.name_chars > MAX_NAME_CHARS:
            raise HTTPError(400, f"webdav: the names in the body's XML exceed {MAX_NAME_CHARS} characters")
        namespace, _, local = name.rpartition("\n")
        self.elements.append((self.depth, namespace, local))

    def end(self, name: str) -> None:
        """Note the end of an element."""
        self.depth -= 1

    def refuse(self, *declaration: object) -> None:
        """Refuse a document type."""
        raise HTTPError(400, "webdav: the body's XML has a document type, which ewe does not read")


def parse_propfind(data: bytes) -> Wanted:
    """Return the properties that a PROPFIND asks for; all if it has no body. Raises HTTPError(400)."""
    if not data.strip():
        return Wanted(None)
    elements = Document(data).elements
    if elements[0][1:] != (DAV, "propfind"):
        raise HTTPError(400, "webdav: the body of PROPFIND is no propfind")
    kinds = [name for depth, space, name in elements if depth == 2 and space == DAV]
    if "propname" in kinds:
        return Wanted(None, only_names=True)
    if "allprop" in kinds:
        return Wanted(None)
    if "prop" not in kinds:
        raise HTTPError(400, "webdav: a propfind has prop, allprop or propname")
    return Wanted(bounded([(space, name) for depth, space, name in elements if depth == 3]))


def parse_proppatch(data: bytes) -> Sequence[Name]:
    """Return the properties that a PROPPATCH would set or remove. Raises HTTPError(400)."""
    elements = Document(data).elements
    if elements[0][1:] != (DAV, "propertyupdate"):
        raise HTTPError(400, "webdav: the body of PROPPATCH is no propertyupdate")
    # propertyupdate, set or remove, prop, and at depth 4 the properties
    return bounded([(space, name) for depth, space, name in elements if depth == 4])


def bounded(names: list[Name]) -> list[Name]:
    """Return the names without duplicates. Raises HTTPError(400) if there are too many."""
    if len(names) > MAX_PROPERTIES:
        raise HTTPError(400, f"webdav: more than {MAX_PROPERTIES} properties")
    return list(dict.fromkeys(names))


def values_of(name: str, file_status: os.stat_result) -> dict[str, str]:
    """Return the live properties of a file or directory, as XML. name: the last part of its path."""
    changed = int(file_status.st_mtime)
    # stat(2) has no time of creation. ctime is the time of the last change of any attribute, so it may be later
    # than mtime. The earlier of the two never shows a file as created after its last change.
    found = {
        "creationdate": iso_date(min(int(file_status.st_ctime), changed)),
        "displayname": escaped(name),
        "getlastmodified": http_date(changed),
        "supportedlock": "",
    }
    if stat.S_ISDIR(file_status.st_mode):
        found["resourcetype"] = "<D:collection/>"
    else:
        found |= {
            "getcontentlength": str(file_status.st_size),
            "getcontenttype": escaped(content_type(name)),
            "getetag": escaped(etag_of(file_status)),
            "resourcetype": "",
        }
    return found


def escaped(value: str) -> str:
    """Return a text for XML. U+FFFD replaces characters that XML does not allow."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return html_escape("".join(c if c >= " " and c not in "\ufffe\uffff" else "\ufffd" for c in value))


def iso_date(seconds: int) -> str:
    """Return a time in the format of RFC 3339, or the nearest one whose year has four digits."""
    return date(int(with_four_digits(seconds))) or ""


def response_of(path: str, name: str, file_status: os.stat_result, wanted: Wanted) -> str:
    """Return the element `response` of one file or directory. path: the decoded path of its URL."""
    values = values_of(name, file_status)
    if wanted.names is None:
        found = [(f"<D:{key}/>" if wanted.only_names or not value else f"<D:{key}>{value}</D:{key}>")
                 for key, value in values.items()]  # fmt: skip
        return in_response(path, [(200, found)])
    have = [(f"<D:{key}>{values[key]}</D:{key}>" if values[key] else f"<D:{key}/>")
            for space, key in wanted.names if space == DAV and key in values]  # fmt: skip
    lack = [element(each) for each in wanted.names if each[0] != DAV or each[1] not in values]
    return in_response(path, [(200, have), (404, lack)])


def refused_changes(path: str, names: Sequence[Name]) -> str:
    """Return the answer to a PROPPATCH: no property was changed."""
    return HEAD + in_response(path, [(403, [element(each) for each in names])]) + END


def in_response(path: str, groups: Sequence[tuple[int, Sequence[str]]]) -> str:
    """Return the element `response`. groups: (status, the properties with this status)."""
    reasons = {200: "OK", 403: "Forbidden", 404: "Not Found"}
    parts = [f"<D:response><D:href>{html_escape(percent_encode(path))}</D:href>"]
    parts += [
        f"<D:propstat><D:prop>{''.join(found)}</D:prop><D:status>HTTP/1.1 {status} {reasons[status]}</D:status>"
        "</D:propstat>"
        for status, found in groups
        if found or status != 404
    ]
    return "".join(parts) + "</D:response>\n"


def element(name: Name) -> str:
    """Return an empty element."""
    space, local = name
    if space == DAV:
        return f"<D:{escaped(local)}/>"
    return f'<x:{escaped(local)} xmlns:x="{escaped(space)}"/>' if space else f'<{escaped(local)} xmlns=""/>'
