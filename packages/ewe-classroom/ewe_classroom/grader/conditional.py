"""Checks of conditional requests (RFC 9110 section 13). The client has a copy: must the server send the file?

    GET /page              ─▶ 200, ETag: "5f3-9a", Last-Modified: Tue, 06 Oct 2020 10:00:00 GMT, the file
    GET /page              ─▶ 304, ETag: "5f3-9a", no body: the client's copy is current
    If-None-Match: "5f3-9a"

Each check writes files with chosen modification times, so that a wrong comparison gives a wrong response: the
weekday of a later date may come earlier in the alphabet, and a file's time has a fraction that no header field can
carry.
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import NamedTuple

from ewe_classroom.grader.check import check
from ewe_classroom.grader.responses import Response
from ewe_classroom.grader.scene import Scene, SceneClient

CHANGED_S = calendar.timegm((2020, 10, 6, 10, 0, 0))  # a Tuesday
FRACTION_NS = 500_000_000  # the fraction of a file's time; no header field can carry it
DAY_S = 86400
FORMS = {
    "RFC 9110": "%a, %d %b %Y %H:%M:%S GMT",
    "RFC 850": "%A, %d-%b-%y %H:%M:%S GMT",
    "asctime()": "%a %b %e %H:%M:%S %Y",
}
# The fields of a 200 that a 304 must repeat (RFC 9110, section 15.4.5).
REPEATED_FIELDS = ("ETag", "Cache-Control", "Content-Location", "Expires", "Vary")


def put(scene: Scene, path: str, content: bytes, changed_ns: int = CHANGED_S * 10**9 + FRACTION_NS) -> None:
    """Write a file of the site and set its modification time. Do nothing if both are the same already."""
    file = scene.site.root / path[1:]
    if file.exists() and file.stat().st_mtime_ns == changed_ns and file.read_bytes() == content:
        return
    # The new file gets its name only when it is complete: the server never sees half of a change.
    new_file = file.with_name(file.name + ".new")
    new_file.write_bytes(content)
    new_file.chmod(0o644)
    os.utime(new_file, ns=(changed_ns, changed_ns))
    new_file.rename(file)
    scene.site.files[path] = content
    scene.note(do="note", text=f"the grader writes {path}: {len(content)} bytes, time {changed_ns / 1e9:.3f}")


def ask(client: SceneClient, path: str, fields: Mapping[str, str], method: str = "GET") -> SceneClient:
    """Send a request with these header fields; return the client."""
    request = client.request(path, **fields)
    client.reader.head_requests += method == "HEAD"  # the reader must not wait for the body of this response
    return client.send(request.replace(b"GET", method.encode(), 1))


def exchange(
    scene: Scene, path: str, fields: Mapping[str, str] | None = None, method: str = "GET"
) -> Response:
    """Send one request on a new connection; return the response.

    Fail without a response, or with bytes after it.
    """
    fields = fields or {}
    client = ask(scene.client(), path, {**fields, "Connection": "close"}, method)
    # The end of the connection, not of the response: surplus bytes would come after it.
    scene.until(client.over, f"{client.name} sees the end of the connection")
    asked = f"{method} {path} with {fields_text(fields)}"
    if not client.answers:
        scene.expect_alive(asked)
        scene.fail(
            f"{asked}: the client {client.outcome_text()}", "answer the request", scene.likely_reason()
        )
    expect_no_more(scene, client, asked)
    client.close()
    return client.answers[0]


def expect_no_more(scene: Scene, client: SceneClient, asked: str) -> None:
    """Fail if bytes follow the last response of a client that has one. asked: the request, for the message."""
    if not client.reader.fault and not client.reader.buffer:
        return
    response = client.reader.responses[-1]
    if response.status == 304:
        scene.fail(
            f"{asked}: bytes followed the head of a 304",
            "send the head alone: a 304 has no body, and no field changes that (RFC 9112 section 6.3)",
            "the server sends the file with the 304; the client takes these bytes for the next response",
        )
    scene.fail(
        f"{asked}: bytes followed the response: {client.reader.fault or bytes(client.reader.buffer[:40])!r}",
        "send nothing after the head of a response to HEAD",
        "the body is sent although the method was HEAD",
    )


def fields_text(fields: Mapping[str, str]) -> str:
    """Return the header fields of a request for a message."""
    return ", ".join(f"{name}: {value}" for name, value in fields.items()) or "no condition"


def expect(
    scene: Scene, status: int, path: str, fields: Mapping[str, str], *, because: str, method: str = "GET"
) -> Response:
    """Send a conditional request; return the response.

    Fail if the status differs, or if a 200 does not have the whole file. because: the likely cause of both.
    """
    response = exchange(scene, path, fields, method)
    if response.status != status:
        meaning = {
            200: "the client has another version, or the condition does not count: send the file",
            304: "the client has this version",
            412: "the file is not the version that the client requires (Precondition Failed)",
            404: "there is no file to compare with",
        }[status]
        scene.fail(
            f"{method} {path} with {fields_text(fields)} got status {response.status}",
            f"answer {status}: {meaning}",
            because,
        )
    if status == 200 and method == "GET" and response.body != scene.site.files[path]:
        scene.fail(
            f"{method} {path} with {fields_text(fields)} got 200 and {len(response.body)} bytes",
            f"send the file's {len(scene.site.files[path])} bytes",
            because,
        )
    return response


class Validators(NamedTuple):
    """The header fields that identify a version of a file (RFC 9110 section 8.8)."""

    etag: str
    last_modified: str


def validators(scene: Scene, path: str) -> Validators:
    """Return the validators of a file. Fail if either is missing or malformed."""
    response = exchange(scene, path)
    if response.status != 200:
        scene.fail(f"GET {path} got status {response.status}", "answer 200")
    etag, modified = (response.fields.get(name) or "" for name in ("ETag", "Last-Modified"))
    if not etag or not modified:
        missing = "ETag" if not etag else "Last-Modified"
        scene.fail(
            f"the 200 for {path} has no {missing}",
            "send ETag and Last-Modified with each file",
            "without these fields no client can ask whether its copy is current",
        )
    quoted_tag = etag.removeprefix("W/")  # W/ marks a weak tag
    if (
        len(quoted_tag) < len('"x"')
        or quoted_tag[0] != '"'
        or quoted_tag[-1] != '"'
        or '"' in quoted_tag[1:-1]
    ):
        scene.fail(
            f"the 200 for {path} has ETag: {etag}",
            'put the tag between quotation marks: ETag: "5f3-9a" (RFC 9110 section 8.8.3)',
            "the quotation marks are part of the tag",
        )
    return Validators(etag, modified)


@check(
    "validators",
    proves="each response with a file has a tag and a date that identify the version of the file",
    sends="GET for two files, and again for the first",
    expects=(
        "ETag in quotation marks, the same each time, and a different one for the other file; Last-Modified: the "
        "file's modification time"
    ),
    why=(
        "A client sends them back to ask whether its copy is current. Without them it must fetch the "
        "file again."
    ),
    hint=(
        "os.stat() has st_mtime_ns and st_size. Last-Modified is UTC: email.utils.formatdate(seconds, "
        "usegmt=True)."
    ),
)
def check_validators(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    put(scene, "/longer.txt", b"a longer page\n", (CHANGED_S + DAY_S) * 10**9)
    etag, modified = validators(scene, "/page.txt")
    if modified != formatdate(CHANGED_S, usegmt=True):
        scene.fail(
            f"Last-Modified is {modified!r}; the file was changed at {formatdate(CHANGED_S, usegmt=True)!r}",
            "send the time of the file's last change, in UTC and in this form (RFC 9110 section 5.6.7)",
            "the server sent the time of the response, local time, or another form of date",
        )
    again, other = validators(scene, "/page.txt").etag, validators(scene, "/longer.txt").etag
    if again != etag:
        scene.fail(
            f"the same file had ETag {etag}, then {again}",
            "give the same tag as long as the file is the same",
            "the tag depends on a value that changes: the time of the request, or hash() of a str",
        )
    if other == etag:
        scene.fail(
            f"two files of different size and time have the ETag {etag}",
            "compute the tag from values that differ whenever the bytes differ",
        )
    scene.confirm(f"ETag {etag} and Last-Modified {modified} identify the version")


@check(
    "not-modified",
    proves="a client that has the current version gets 304 and no body",
    sends="GET with If-None-Match and the file's tag; then GET without it on the same connection",
    expects="304 with the same ETag and no byte after its head; then 200 with the file",
    why="A 304 saves the body. A 304 with a body does harm: the client reads the body as the next response.",
    hint=(
        "A 304 has ETag, and Cache-Control, Expires or Vary if the 200 has them. It has no body, and no "
        "Content-Length of 0."
    ),
)
def not_modified(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag = validators(scene, "/page.txt").etag
    full = exchange(scene, "/page.txt")
    condition = {"If-None-Match": etag}
    response = expect(
        scene,
        304,
        "/page.txt",
        condition,
        because="the server does not read If-None-Match, or does not compare its tag",
    )
    for name in REPEATED_FIELDS:
        if full.fields.get(name) != response.fields.get(name):
            scene.fail(
                f"the 200 has {name}: {full.fields.get(name)}; the 304 has {response.fields.get(name) or 'none'}",
                f"send the same {name} with the 304 (RFC 9110 section 15.4.5)",
                "the client updates its copy with the fields of the 304",
            )
    if response.length is not None and response.length != len(full.body):
        scene.fail(
            f"the 304 has Content-Length: {response.length}; the file has {len(full.body)} bytes",
            "leave Content-Length out; a 304 that has it must give the length of the 200",
            "the server counted the bytes of the empty body",
        )
    # On one connection, a body of the 304 would become the beginning of the next response.
    client = scene.client()
    for fields, status in ((condition, 304), ({}, 200)):
        before = len(client.answers)
        ask(client, "/page.txt", fields)
        scene.until(lambda wanted=before + 1: len(client.answers) == wanted or client.over(), "the answer")  # type: ignore[misc]
        if client.answers:
            expect_no_more(scene, client, f"GET /page.txt with {fields_text(fields)}")
        if len(client.answers) == before or client.answers[-1].status != status:
            scene.fail(
                f"on one connection, GET /page.txt with {fields_text(fields)}: the client {client.outcome_text()}",
                f"answer {status}",
                "the server or the client mistakes bytes of the 304 for the next message",
            )
        if not client.answers[-1].keeps_open:
            break
    scene.confirm(f"304 with ETag {etag} and without a body; the connection went on")


@check(
    "tag-lists",
    proves="the server understands lists, weak tags and * in If-None-Match",
    sends="lists with and without the file's tag, W/ and the tag, *, and tags that only contain the file's tag",
    expects="304 for each list with the tag, for W/ and for *; 200 for all others",
    why="A cache with several versions asks about all of them in one request, and proxies make tags weak.",
    hint=(
        "Split the list at the tags, not at the commas: a tag may contain a comma. Compare without W/ (weak "
        "comparison)."
    ),
)
def tag_lists(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag = validators(scene, "/page.txt").etag
    plain = etag.removeprefix("W/")
    other = '"another"'
    part = plain[:-2] + '"'  # the tag without its last character
    # The status, the value of the field, and the likely cause of another status.
    cases = [
        (304, f"{other}, {etag}", "only the first tag of the list is compared, or the list as a whole"),
        (304, f'{other},"a,b",{etag}', "the list is cut at a comma within a tag, or needs a space"),
        (
            304,
            f"W/{plain}",
            "a weak tag is not equal here: If-None-Match compares without W/ (section 8.8.3.2)",
        ),
        (304, "*", "* stands for any version that exists"),
        (200, other, "the server accepts any tag"),
        (200, f"{other}, W/{other}", "the server accepts any list"),
        (200, part, "a part of the file's tag counts as a match: compare whole tags"),
        (200, f'"x{plain[1:]}', "a tag with the same ending counts as a match: compare whole tags"),
        (200, f'"a,{plain[1:-1]},b"', "the list is cut at a comma within a tag: the quotation marks count"),
    ]
    for status, value, because in cases:
        expect(scene, status, "/page.txt", {"If-None-Match": value}, because=because)
    scene.confirm(f"the server understood {len(cases)} lists of tags")


@check(
    "modified-since",
    proves="the server compares If-Modified-Since as a time, in all three date formats",
    sends=(
        "dates before, at and after the file's time, in the formats of RFC 9110, RFC 850 and asctime(); and "
        "invalid dates"
    ),
    expects="304 for the file's time and later dates, 200 for earlier dates and for invalid ones",
    why=(
        "A server that compares dates as text may always answer 304: as text, `Wed` comes after "
        "`Tue` in every year."
    ),
    hint="Convert each date to a number. First cut the file's time to whole seconds: the field has no fraction.",
)
def modified_since(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    text = "the dates are compared as text: turn both into numbers"
    # The status, the seconds from the file's time (put()) to the date, and the likely cause of another status. The
    # file was changed on a Tuesday. A later Friday comes before Tuesday in the alphabet, and an earlier Wednesday
    # after it: as text, these dates compare in the wrong way.
    friday_s, wednesday_s = 87 * DAY_S, -279 * DAY_S
    cases = [
        (304, 0, "the file's time has a fraction that the date cannot carry: compare whole seconds"),
        (200, -1, "a file that changed one second after the date counts as unchanged"),
        (304, friday_s, text + ". Or only the very same date counts, but a later date is as good"),
        (200, wednesday_s, text),
        (304, 1, "only the very same date counts, but a later date is as good"),
        (200, -10 * 365 * DAY_S, text),
        (304, 364 * DAY_S, text),
    ]
    for name, form in FORMS.items():
        for status, seconds, because in cases:
            value = time.strftime(form, time.gmtime(CHANGED_S + seconds))
            or_unread = f"; or a date in the format of {name} is not understood" if status == 304 else ""
            expect(scene, status, "/page.txt", {"If-Modified-Since": value}, because=because + or_unread)
    for value in ("yesterday", "", "Tue, 99 Oct 2020 10:00:00 GMT", "9999999999"):
        because = "a value that is not a date must be ignored, as if the field were missing"
        expect(scene, 200, "/page.txt", {"If-Modified-Since": value}, because=because)
    scene.confirm(
        f"the server compared {len(cases)} times in {len(FORMS)} formats correctly, and ignored invalid dates"
    )


@check(
    "precedence",
    proves="If-None-Match decides alone; If-Modified-Since counts only without it",
    sends="both fields; one says that the file has changed, the other says that it has not",
    expects="the response that the tag requires",
    why="A date has a resolution of one second: two changes in one second have one date and two tags.",
    hint="RFC 9110 section 13.2.2, steps 3 and 4: if the request has If-None-Match, ignore If-Modified-Since.",
)
def precedence(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, modified = validators(scene, "/page.txt")
    old = formatdate(CHANGED_S - DAY_S, usegmt=True)
    expect(
        scene, 200, "/page.txt", {"If-None-Match": '"another"', "If-Modified-Since": modified},
        because="If-Modified-Since decided, but the request has If-None-Match: the client has another version",
    )  # fmt: skip
    expect(
        scene, 304, "/page.txt", {"If-None-Match": etag, "If-Modified-Since": old},
        because="If-Modified-Since decided, but the request has If-None-Match: by its tag the file is unchanged",
    )  # fmt: skip
    scene.confirm("the tag decided both times")


@check(
    "preconditions",
    proves="the server refuses a request for one version if the file is another version",
    sends="If-Match and If-Unmodified-Since, for this version and for another",
    expects="200 for this version, 412 for another; If-Match decides alone",
    why="A client that resumes a broken download must not get the end of another version.",
    hint="If-Match compares strongly: W/ never matches. Judge both before If-None-Match (RFC 9110 section 13.2.2).",
)
def preconditions(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, modified = validators(scene, "/page.txt")
    old = formatdate(CHANGED_S - DAY_S, usegmt=True)
    # The status, the fields of the request, and the likely cause of another status.
    cases: list[tuple[int, dict[str, str], str]] = [
        (412, {"If-Match": '"another"'}, "the server does not read If-Match"),
        (200, {"If-Match": "*"}, "* stands for any version that exists"),
        (
            412,
            {"If-Match": f"W/{etag.removeprefix('W/')}"},
            "If-Match compares strongly: a weak tag never matches",
        ),
        (412, {"If-Unmodified-Since": old}, "If-Unmodified-Since is not read, as in 2006"),
        (200, {"If-Unmodified-Since": modified}, "the file was not changed after this time"),
        (412, {"If-Match": '"another"', "If-None-Match": etag}, "If-Match comes before If-None-Match"),
    ]
    if not etag.startswith("W/"):  # If-Match never matches a weak tag
        cases.append((200, {"If-Match": f'"another", {etag}'}, "the tag is in the list"))
        cases.append((200, {"If-Match": etag, "If-Unmodified-Since": old}, "If-Match decides alone"))
    for status, fields, because in cases:
        expect(scene, status, "/page.txt", fields, because=because)
    scene.confirm(f"the server judged {len(cases)} preconditions correctly")


@check(
    "head",
    proves="the response to HEAD has the head of the response to GET, and no body",
    sends="HEAD without a condition, with the file's tag and with an old date",
    expects="the fields of the 200 without the file; 304 and 200 as for GET",
    why="Caches and link checkers send HEAD. They would read an unexpected body as the next response.",
    hint="Do the same as for GET, and leave out the body: Content-Length stays the length of the file.",
)
def head(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag = validators(scene, "/page.txt").etag
    get_fields = exchange(scene, "/page.txt").fields
    because = "the server treats HEAD differently from GET"
    head_fields = expect(scene, 200, "/page.txt", {}, because=because, method="HEAD").fields
    for name in ("ETag", "Last-Modified", "Content-Length"):
        # A response to HEAD may leave a field out (RFC 9110 section 9.3.2), but not give it another value.
        if head_fields.get(name) not in (get_fields.get(name), None):
            scene.fail(
                f"GET has {name}: {get_fields.get(name)}; HEAD has {head_fields.get(name)}",
                f"send the same {name}",
                "the server counted the bytes of the missing body" if name == "Content-Length" else "",
            )
    if head_fields.get("ETag") is None:
        scene.fail(
            "the response to HEAD has no ETag",
            "send the fields of GET",
            "separate code makes the head for HEAD",
        )
    expect(
        scene,
        304,
        "/page.txt",
        {"If-None-Match": etag},
        because="the condition counts for GET alone",
        method="HEAD",
    )
    old = {"If-Modified-Since": formatdate(CHANGED_S - DAY_S, usegmt=True)}
    expect(scene, 200, "/page.txt", old, because="any If-Modified-Since gets 304", method="HEAD")
    scene.confirm("HEAD got the fields of GET, and the conditions counted for HEAD, too")


@check(
    "conditional-missing",
    proves="a condition does not change the response for a missing file",
    sends="GET for a missing file with If-None-Match: *, with a tag, and with If-Modified-Since",
    expects="404 each time",
    why="A 304 for a removed file keeps the file alive in every cache.",
    hint=(
        "Look for the file first. Judge conditions only if the response would be 200 (RFC 9110 section "
        "13.2.1)."
    ),
)
def conditional_missing(scene: Scene) -> None:
    now = formatdate(CHANGED_S, usegmt=True)
    for fields in ({"If-None-Match": "*"}, {"If-None-Match": '"x"'}, {"If-Modified-Since": now}):
        expect(
            scene,
            404,
            "/missing.txt",
            fields,
            because="the condition is judged before the file is looked for",
        )
    scene.confirm("three conditions about a missing file got 404")
