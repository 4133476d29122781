"""Checks of conditional requests: RFC 9110, section 13. The client has the file; need the server send it again?

    GET /page              ─▶ 200, ETag: "5f3-9a", Last-Modified: Tue, 06 Oct 2020 10:00:00 GMT, the file
    GET /page              ─▶ 304, ETag: "5f3-9a", no body: the client's copy is good
    If-None-Match: "5f3-9a"

Each check writes files with times that it chooses, so that a comparison of the wrong kind gives a wrong answer: the
day's name of a later date may come earlier in the alphabet, and a file's time has a fraction that no field carries.
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Mapping
from email.utils import formatdate

from ewe_classroom.grader.check import check
from ewe_classroom.grader.responses import Response
from ewe_classroom.grader.scene import Client, Scene

CHANGED = calendar.timegm((2020, 10, 6, 10, 0, 0))  # a Tuesday
FRACTION_NS = 500_000_000  # files are changed at this part of a second: no field of HTTP carries it
DAY = 86400
FORMS = {
    "RFC 9110": "%a, %d %b %Y %H:%M:%S GMT",
    "RFC 850": "%A, %d-%b-%y %H:%M:%S GMT",
    "asctime()": "%a %b %e %H:%M:%S %Y",
}
# What a 304 repeats of the 200 that it stands for: RFC 9110, section 15.4.5.
REPEATED = ("ETag", "Cache-Control", "Content-Location", "Expires", "Vary")


def put(scene: Scene, path: str, content: bytes, changed_ns: int = CHANGED * 10**9 + FRACTION_NS) -> None:
    """Write a file of the site, or change it, with the time of its last change. One that is so already stays."""
    file = scene.site.root / path[1:]
    if file.exists() and file.stat().st_mtime_ns == changed_ns and file.read_bytes() == content:
        return
    fresh = file.with_name(file.name + ".new")
    fresh.write_bytes(content)
    fresh.chmod(0o644)
    os.utime(fresh, ns=(changed_ns, changed_ns))
    fresh.rename(file)
    scene.site.files[path] = content
    scene.note(do="note", text=f"{path} is written: {len(content)} bytes, changed at {changed_ns / 1e9:.3f}")


def ask(client: Client, path: str, fields: Mapping[str, str], method: str = "GET") -> Client:
    """Send a request with these fields."""
    request = client.request(path, **fields)
    client.reader.bodiless += method == "HEAD"
    return client.send(request.replace(b"GET", method.encode(), 1))


def exchange(
    scene: Scene, path: str, fields: Mapping[str, str] | None = None, method: str = "GET"
) -> Response:
    """Ask on a new connection until it ends; return the response. Fail without one, or with bytes behind it."""
    fields = fields or {}
    client = ask(scene.client(), path, {**fields, "Connection": "close"}, method)
    scene.until(client.over, f"{client.name} sees the end")
    asked = f"{method} {path} with {shown(fields)}"
    if not client.answers:
        scene.expect_alive(asked)
        scene.fail(f"{asked}: the client {client.story()}", "answer", scene.last_words())
    expect_no_more(scene, client, asked)
    client.close()
    return client.answers[0]


def expect_no_more(scene: Scene, client: Client, asked: str) -> None:
    """Fail if bytes follow the responses that the client has asked for."""
    if not client.reader.fault and not client.reader.buffer:
        return
    response = client.reader.responses[-1]
    if response.status == 304:
        scene.fail(
            f"{asked}: bytes came behind the head of a 304",
            "send the head alone: a 304 has no body, and no field changes that (RFC 9112 section 6.3)",
            "the file is sent with the 304; the client takes its bytes for the next response",
        )
    scene.fail(
        f"{asked}: bytes came behind the response: {client.reader.fault or bytes(client.reader.buffer[:40])!r}",
        "send nothing after the head of a response to HEAD",
        "the body is sent although the method was HEAD",
    )


def shown(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in fields.items()) or "no condition"


def expect(
    scene: Scene, status: int, path: str, fields: Mapping[str, str], because: str, method: str = "GET"
) -> Response:
    """Ask with conditions; fail unless the status is this one, and a 200 has the whole file."""
    response = exchange(scene, path, fields, method)
    if response.status != status:
        meaning = {
            200: "the file has another version than the client's, or the condition does not count: send it",
            304: "the client has this version",
            412: "the file is not the version that the client means (Precondition Failed)",
            404: "there is no file, and so nothing to compare",
        }[status]
        scene.fail(
            f"{method} {path} with {shown(fields)} got status {response.status}",
            f"answer {status}: {meaning}",
            because,
        )
    if status == 200 and method == "GET" and response.body != scene.site.files[path]:
        scene.fail(
            f"{method} {path} with {shown(fields)} got 200 and {len(response.body)} bytes",
            f"send the file's {len(scene.site.files[path])} bytes",
            because,
        )
    return response


def validators(scene: Scene, path: str) -> tuple[str, str]:
    """Return ETag and Last-Modified of a file. Fail if one is missing or malformed."""
    response = exchange(scene, path)
    if response.status != 200:
        scene.fail(f"GET {path} got status {response.status}", "answer 200")
    etag, modified = (response.fields.get(name) or "" for name in ("ETag", "Last-Modified"))
    if not etag or not modified:
        missing = "ETag" if not etag else "Last-Modified"
        scene.fail(
            f"the 200 for {path} has no {missing}",
            "send ETag and Last-Modified with each file",
            "without them no client can ask whether its copy is still good",
        )
    opaque = etag.removeprefix("W/")
    if len(opaque) < 3 or opaque[0] != '"' or opaque[-1] != '"' or '"' in opaque[1:-1]:
        scene.fail(
            f"the 200 for {path} has ETag: {etag}",
            'put the tag between quotation marks: ETag: "5f3-9a" (RFC 9110 section 8.8.3)',
            "the quotation marks are part of the tag",
        )
    return etag, modified


@check(
    "validators",
    proves="each file comes with a tag and a date that say which version it is",
    sends="GET for two files, and again for the first",
    expects=(
        "ETag in quotation marks, the same each time and another for the other file; Last-Modified: the "
        "file's time"
    ),
    why=(
        "A client shows them again when it asks whether its copy is still good. Without them it must fetch the "
        "file."
    ),
    hint=(
        "os.stat() has st_mtime_ns and st_size. Last-Modified is UTC: email.utils.formatdate(seconds, "
        "usegmt=True)."
    ),
)
def check_validators(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    put(scene, "/longer.txt", b"a longer page\n", (CHANGED + DAY) * 10**9)
    etag, modified = validators(scene, "/page.txt")
    if modified != formatdate(CHANGED, usegmt=True):
        scene.fail(
            f"Last-Modified is {modified!r}; the file was changed at {formatdate(CHANGED, usegmt=True)!r}",
            "send the time of the file's last change, in UTC and in this form (RFC 9110 section 5.6.7)",
            "the time of the response or local time was sent, or another form of date",
        )
    again, _ = validators(scene, "/page.txt")
    other, _ = validators(scene, "/longer.txt")
    if again != etag:
        scene.fail(
            f"the same file had ETag {etag}, then {again}",
            "give the same tag as long as the file is the same",
            "the tag is made of something that changes: the time of the request, or hash() of a str",
        )
    if other == etag:
        scene.fail(
            f"two files of different size and time have the ETag {etag}",
            "make the tag of something that differs whenever the bytes differ",
        )
    scene.confirm(f"ETag {etag} and Last-Modified {modified} name the version")


@check(
    "not-modified",
    proves="a client that has this version gets 304 and no body",
    sends="GET with If-None-Match and the file's tag; then GET without it on the same connection",
    expects="304 with the same ETag and nothing behind its head; then 200 with the file",
    why="A 304 saves the body. A 304 with a body is worse than none: its bytes are read as the next response.",
    hint=(
        "304 has ETag, and Cache-Control, Expires or Vary if the 200 has them; no body, and no Content-Length "
        "of 0."
    ),
)
def not_modified(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, _ = validators(scene, "/page.txt")
    full = exchange(scene, "/page.txt")
    condition = {"If-None-Match": etag}
    response = expect(
        scene, 304, "/page.txt", condition, "If-None-Match is not read, or its tag not compared"
    )
    for name in REPEATED:
        if full.fields.get(name) != response.fields.get(name):
            scene.fail(
                f"the 200 has {name}: {full.fields.get(name)}; the 304 has {response.fields.get(name) or 'none'}",
                f"send the same {name} with the 304 (RFC 9110 section 15.4.5)",
                "the client renews its copy with the fields of the 304",
            )
    if response.length is not None and response.length != len(full.body):
        scene.fail(
            f"the 304 has Content-Length: {response.length}; the file has {len(full.body)} bytes",
            "leave Content-Length out: if it is there, it is the length that the 200 would have had",
            "the body that is not sent was counted",
        )
    client = scene.client()
    for fields, status in ((condition, 304), ({}, 200)):
        before = len(client.answers)
        ask(client, "/page.txt", fields)
        scene.until(lambda wanted=before + 1: len(client.answers) == wanted or client.over(), "the answer")  # type: ignore[misc]
        expect_no_more(scene, client, f"GET /page.txt with {shown(fields)}")
        if len(client.answers) == before or client.answers[-1].status != status:
            scene.fail(
                f"on one connection, GET /page.txt with {shown(fields)}: the client {client.story()}",
                f"answer {status}",
                "the 304 and what follows it are not told apart",
            )
        if not client.answers[-1].keeps_open:
            break
    scene.confirm(f"304 with ETag {etag} and without a body; the connection went on")


@check(
    "tag-lists",
    proves="If-None-Match may hold a list, weak tags and a star",
    sends="lists with and without the file's tag, W/ before it, *, and tags that only contain it",
    expects="304 for each list with the tag, for W/ and for *; 200 for all others",
    why="A cache with several versions asks about all of them at once, and proxies make tags weak.",
    hint=(
        "Take the list apart at the tags, not at the commas: a tag may hold one. Compare without W/ (weak "
        "comparison)."
    ),
)
def tag_lists(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, _ = validators(scene, "/page.txt")
    plain = etag.removeprefix("W/")
    other = '"another"'
    part = f"{plain[:-2]}" + '"'
    cases = [
        (304, f"{other}, {etag}", "only the first tag of the list is compared, or the list as a whole"),
        (304, f'{other},"a,b",{etag}', "the list is cut at a comma within a tag, or needs a space"),
        (
            304,
            f"W/{plain}",
            "a weak tag is not equal here: If-None-Match compares without W/ (section 8.8.3.2)",
        ),
        (304, "*", "* stands for any version that exists"),
        (200, other, "any tag counts as the file's"),
        (200, f"{other}, W/{other}", "any list counts as a match"),
        (200, part, "a tag matches that is only a part of the file's: compare whole tags"),
        (200, f'"x{plain[1:]}', "a tag matches that only ends like the file's: compare whole tags"),
        (200, f'"a,{plain[1:-1]},b"', "the list is cut at a comma within a tag: the quotation marks count"),
    ]
    for status, value, because in cases:
        expect(scene, status, "/page.txt", {"If-None-Match": value}, because)
    scene.confirm(f"{len(cases)} lists of tags were read right")


@check(
    "modified-since",
    proves="If-Modified-Since compares times, in all three forms of a date",
    sends=(
        "dates before, at and after the file's time, in the forms of RFC 9110, RFC 850 and asctime(); and "
        "nonsense"
    ),
    expects="304 for the file's time and later ones, 200 for earlier ones and for nonsense",
    why="A server that compares dates as text sends old pages for good: `Wed` comes after `Tue` in every year.",
    hint="Make a number of each date. Cut the file's time to whole seconds first: the field has no fraction.",
)
def modified_since(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    text = "the dates are compared as text: turn both into numbers"
    cases = [
        (304, 0, "the file's time has a fraction that the date cannot carry: compare whole seconds"),
        (200, -1, "a file that was changed a second later than the date counts as unchanged"),
        (304, 87 * DAY, text + ". Or only the very same date counts: a later one is as good"),  # a Friday
        (200, -279 * DAY, text),  # a Wednesday
        (304, 1, "only the very same date counts; a later one is as good"),
        (200, -10 * 365 * DAY, text),
        (304, 364 * DAY, text),
    ]
    for name, form in FORMS.items():
        for status, seconds, because in cases:
            value = time.strftime(form, time.gmtime(CHANGED + seconds))
            unread = f"; or a date in the form of {name} is not understood" if status == 304 else ""
            expect(scene, status, "/page.txt", {"If-Modified-Since": value}, because + unread)
    for value in ("yesterday", "", "Tue, 99 Oct 2020 10:00:00 GMT", "9999999999"):
        because = "a text that is not a date must be ignored: then there is no condition"
        expect(scene, 200, "/page.txt", {"If-Modified-Since": value}, because)
    scene.confirm(f"{len(cases)} times in {len(FORMS)} forms were compared right, and nonsense was ignored")


@check(
    "precedence",
    proves="If-None-Match decides alone; If-Modified-Since counts only without it",
    sends="both fields, of which one says that the file has changed and the other that it has not",
    expects="what the tag says",
    why="A date has a step of one second: two changes in one second have one date and two tags.",
    hint="RFC 9110 section 13.2.2, steps 3 and 4: if If-None-Match is there, do not look at If-Modified-Since.",
)
def precedence(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, modified = validators(scene, "/page.txt")
    old = formatdate(CHANGED - DAY, usegmt=True)
    expect(
        scene, 200, "/page.txt", {"If-None-Match": '"another"', "If-Modified-Since": modified},
        "If-Modified-Since was asked although If-None-Match is there: the client has another version",
    )  # fmt: skip
    expect(
        scene, 304, "/page.txt", {"If-None-Match": etag, "If-Modified-Since": old},
        "If-Modified-Since was asked although If-None-Match is there: the tag says that nothing has changed",
    )  # fmt: skip
    scene.confirm("the tag decided both times")


@check(
    "preconditions",
    proves="a request for one version is refused if the file is another one",
    sends="If-Match and If-Unmodified-Since, for this version and for another",
    expects="200 for this version, 412 for another; If-Match decides alone",
    why="A client that goes on with a broken download must not get the end of another file.",
    hint="If-Match compares strongly: W/ never matches. Both come before If-None-Match (RFC 9110 section 13.2.2).",
)
def preconditions(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, modified = validators(scene, "/page.txt")
    old = formatdate(CHANGED - DAY, usegmt=True)
    cases: list[tuple[int, dict[str, str], str]] = [
        (412, {"If-Match": '"another"'}, "If-Match is not read"),
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
    if not etag.startswith("W/"):
        cases.append((200, {"If-Match": f'"another", {etag}'}, "the tag is in the list"))
        cases.append((200, {"If-Match": etag, "If-Unmodified-Since": old}, "If-Match decides alone"))
    for status, fields, because in cases:
        expect(scene, status, "/page.txt", fields, because)
    scene.confirm(f"{len(cases)} preconditions were judged right")


@check(
    "head",
    proves="HEAD gets the head that GET would get, and no body",
    sends="HEAD without a condition, with the file's tag and with an old date",
    expects="the fields of the 200 without the file; 304 and 200 as for GET",
    why="Caches and checkers of links ask by HEAD. A body that they do not expect is read as the next response.",
    hint="Do all that GET does, and leave out the body: Content-Length stays the length of the file.",
)
def head(scene: Scene) -> None:
    put(scene, "/page.txt", b"a page\n")
    etag, _ = validators(scene, "/page.txt")
    full = exchange(scene, "/page.txt")
    response = expect(scene, 200, "/page.txt", {}, "HEAD is not answered as GET is", "HEAD")
    for name in ("ETag", "Last-Modified", "Content-Length"):
        if response.fields.get(name) not in (full.fields.get(name), None):
            scene.fail(
                f"GET has {name}: {full.fields.get(name)}; HEAD has {response.fields.get(name)}",
                f"send the same {name}",
                "the body that HEAD leaves out was counted" if name == "Content-Length" else "",
            )
    if response.fields.get("ETag") is None:
        scene.fail(
            "the answer to HEAD has no ETag", "send the fields of GET", "HEAD has fields of another kind"
        )
    expect(scene, 304, "/page.txt", {"If-None-Match": etag}, "the condition counts for GET alone", "HEAD")
    old = {"If-Modified-Since": formatdate(CHANGED - DAY, usegmt=True)}
    expect(scene, 200, "/page.txt", old, "any If-Modified-Since gets 304", "HEAD")
    scene.confirm("HEAD got the fields of GET, and the conditions count for it")


@check(
    "conditional-missing",
    proves="a condition changes nothing where there is no file",
    sends="GET for a missing file with If-None-Match: *, with a tag, and with If-Modified-Since",
    expects="404 each time",
    why="A 304 for a file that was removed keeps it alive in every cache.",
    hint=(
        "Look for the file first. Conditions are judged only where the answer would be 200 (RFC 9110 section "
        "13.2.1)."
    ),
)
def conditional_missing(scene: Scene) -> None:
    now = formatdate(CHANGED, usegmt=True)
    for fields in ({"If-None-Match": "*"}, {"If-None-Match": '"x"'}, {"If-Modified-Since": now}):
        expect(scene, 404, "/missing.txt", fields, "the condition is judged before the file is looked for")
    scene.confirm("three conditions about a missing file got 404")
