"""The target of a request, and its Host: RFC 9112 sections 3.2 and 3.3, RFC 3986.

A target has one of four forms. parse_target() makes a path and a query of it:

    origin-form      GET /a/b?q HTTP/1.1              path /a/b, query q
    absolute-form    GET http://host/a/b HTTP/1.1     path /a/b; this host replaces the Host field
    asterisk-form    OPTIONS * HTTP/1.1               path *
    authority-form   CONNECT host:443 HTTP/1.1        501: ewe is no forward proxy

The path is checked and decoded once, here: allowed characters, percent-decoding, dot segments, repeated slashes.
Every other part of ewe compares and opens only the decoded path. A path that leads above the root, such as
/%2e%2e/etc/passwd, is therefore refused here, and /%252e names the file "%2e".
"""

from __future__ import annotations

import re

from ewe.bounded import BoundedDict
from ewe.http.messages import Request
from ewe.http.status import HTTPError

# uri-host [":" port]: RFC 9112 section 3.2. Sub-delimiters are legal in a reg-name, but no real host has them. They
# are refused, since a comma could turn one host into two.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|(?:[0-9A-Za-z._~-]++|%[0-9A-Fa-f]{2})+)(?::([0-9]{0,5}))?")
# Hosts that were checked before: a server has few names. Longer ones are not cached.
MAX_CACHED_HOSTS = 256
MAX_CACHED_HOST_CHARS = 256
checked_hosts: BoundedDict[str, str] = BoundedDict(MAX_CACHED_HOSTS)
H16 = re.compile(r"[0-9A-Fa-f]{1,4}")  # h16 and IPv4address: RFC 3986 section 3.2.2
IPV4 = re.compile(r"(?:(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])(?:\.(?!$)|$)){4}")
ABSOLUTE = re.compile(r"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
# pchar (RFC 3986 section 3.3), and characters that browsers do not encode: [ ] | in paths, also { } ^ ` \ in
# queries (the percent-encode sets of the URL standard). The characters < > " # and bytes above ASCII are never
# allowed.
PATH = re.compile(r"/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@\[\]|/]++|%[0-9A-Fa-f]{2})*")
# The program decodes its query itself, so a percent sign needs no digits after it: browsers send "?q=100%".
QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|{}^`\\%]*")
KEPT_SLASH = re.compile("%2F", re.IGNORECASE)
ENCODED_SLASH = "the path has an encoded slash"
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
UNESCAPED_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$'()*+,=@/"
UNESCAPED = frozenset(UNESCAPED_BYTES)


def parse_host(host: str | None, fields: tuple[tuple[str, str], ...], version: tuple[int, int]) -> str:
    """Return the Host field as sent. HTTP/1.1 needs exactly one, HTTP/1.0 at most one (RFC 9112 section 3.2).

    Raises HTTPError(400) if a Host field is missing, repeated or malformed.
    """
    if host is None:
        if version == (1, 1):
            raise HTTPError(400, "there is no Host field")
        return ""
    try:
        return checked_hosts.get(host) or checked_host(host)
    except HTTPError:
        # The values of several fields are joined by a comma, which no host contains: only then they are counted.
        if [name for name, _ in fields].count("host") != 1:
            raise HTTPError(400, "there is more than one Host field") from None
        raise


def checked_host(host: str) -> str:
    """Return `host`; raise HTTPError(400) if it is malformed. Cache it if it is short."""
    match = HOST.fullmatch(host)
    if match is None or (match[2] and int(match[2]) > 65535) or (match[1] and not is_ipv6(match[1])):
        raise HTTPError(400, f"the host is malformed: {host[:80]!r}")
    if len(host) <= MAX_CACHED_HOST_CHARS:
        checked_hosts[host] = host
    return host


def is_ipv6(text: str) -> bool:
    """Return whether `text` is an IPv6address: eight groups, or at most seven groups and one "::".

    An IPv4 address may replace the last two groups (RFC 3986 section 3.2.2).
    """
    head, gap, tail = text.partition("::")
    groups = [group for part in (head, tail) if part for group in part.split(":")]
    count = len(groups)
    if groups and IPV4.fullmatch(groups[-1]) and not text.endswith(":"):
        groups.pop()
        count += 1
    return all(map(H16.fullmatch, groups)) and (count <= 7 if gap else count == 8)


def host_in_url(host: str) -> str:
    """Return a host in the form that a URL has: an IPv6 address gets brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def parse_target(request: Request, encoded_slashes: bool = False) -> None:
    """Set path, query and (from a target in absolute-form) host: RFC 9112 sections 3.2.1 to 3.2.4.

    encoded_slashes: decode %2F, too. The caller then also checks the path in which %2F stays (with_kept_slashes).
    Raises HTTPError: 400, 501, and 404 for an encoded slash.
    """
    target = request.target
    if target == "*":
        if request.method != "OPTIONS":
            raise HTTPError(400, f"target * with method {request.method[:40]}")
        request.path = "*"
        return
    if request.method == "CONNECT":  # authority-form: ewe is not a forward proxy
        raise HTTPError(501, "method CONNECT is not implemented")
    if not target.startswith("/"):
        match = ABSOLUTE.fullmatch(target)
        if match is None:
            raise HTTPError(400, f"the target is malformed: {target[:80]!r}")
        request.host = checked_host(match[1])  # the Host field is ignored: section 3.2.2
        target = match[2] if match[2].startswith("/") else "/" + match[2]
        if request.method == "OPTIONS" and not match[2]:
            request.path = "*"  # section 3.2.4: the absolute-form of OPTIONS *
            return
    path, mark, query = target.partition("?")
    if PATH.fullmatch(path) is None or QUERY.fullmatch(query) is None:
        raise HTTPError(400, f"the target is malformed: {target[:80]!r}")
    if encoded_slashes and has_encoded_slash(path):
        request.path = with_decoded_slashes(path)
    else:
        request.path = remove_dot_segments(path)
    request.query = query if mark else None


def remove_dot_segments(path: str) -> str:
    """Percent-decode a path once, remove its dot segments (RFC 3986 section 5.2.4), and merge repeated slashes.

    The result begins with a slash, and ends with one if the last segment was empty, "." or "..". Raises
    HTTPError: 400 for an encoded NUL, and for a path that leads above the root; 404 for an encoded slash. A file
    name cannot contain a slash, and the decoded path would name another file.
    """
    if "%" in path:
        if has_encoded_slash(path):
            raise HTTPError(404, ENCODED_SLASH)
        path = percent_decode(path)
        if "\0" in path:
            raise HTTPError(400, "the path has an encoded NUL")
    if "/." not in path and "//" not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if not kept:
                raise HTTPError(400, "the path leads above the root")
            kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    ends_in_slash = bool(kept) and segments[-1] in ("", ".", "..")
    return "/" + "/".join(kept) + ("/" if ends_in_slash else "")


def path_of_target(target: str) -> str:
    """Return the path of a target as sent, without its query; "/" for an absolute form without a path."""
    path = target.partition("?")[0]
    return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]


def has_encoded_slash(path: str) -> bool:
    """Return whether a path, or a target, contains %2F."""
    return "%2F" in path or "%2f" in path


def with_decoded_slashes(path: str) -> str:
    """Percent-decode a path, including its encoded slashes.

    Raises HTTPError: 400 for an encoded NUL; 404 if a segment then begins with a dot or is empty.
    """
    path = percent_decode(path)
    if "\0" in path:
        raise HTTPError(400, "the path has an encoded NUL")
    if "/." in path or "//" in path:
        raise HTTPError(404, ENCODED_SLASH)
    return path


def with_kept_slashes(target: str) -> str:
    """Return the path of a target, percent-decoded except for its encoded slashes."""
    return percent_decode(KEPT_SLASH.sub("%252F", path_of_target(target)))


def percent_decode(text: str) -> str:
    """Decode each %HH once. Bytes that are not UTF-8 are surrogate-escaped, so that a URL can name any file."""
    raw = ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("latin-1"))
    return raw.decode("utf-8", "surrogateescape")


def percent_encode(path: str) -> str:
    """Percent-encode a decoded path for a URL. Slashes are not encoded. This is the inverse of percent_decode()."""
    raw = path.encode("utf-8", "surrogateescape")
    if not raw.translate(None, UNESCAPED_BYTES):  # most names
        return path
    return "".join(chr(byte) if byte in UNESCAPED else f"%{byte:02X}" for byte in raw)
