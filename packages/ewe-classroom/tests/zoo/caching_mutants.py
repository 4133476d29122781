"""Servers that are wrong about conditional requests or their cache. `python caching_mutants.py NAME PORT ROOT N`.

Caching is correct. Each mutant overrides one method, as in mutants.py.
"""

import calendar
import os
import re
import sys
import threading
import time
from email.utils import formatdate
from typing import NamedTuple

from correct import Thread
from registry import Mutant

ZOO = {}
MAX_CACHED_BYTES, MAX_CACHED_FILES = 1 << 20, 8  # of one file; of all
FORMS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")


def mutant(check, says):
    """Return a decorator that registers a class in ZOO (registry.py)."""

    def add(kind):
        ZOO[kind.__name__] = Mutant(kind, check, "caching", says)
        return kind

    return add


class CachedFile(NamedTuple):
    """A file in the cache. info: the result of os.stat()."""

    info: os.stat_result
    body: bytes


class Caching(Thread):
    """Answers conditional requests, and keeps small files in memory."""

    def prepare(self):
        self.cache, self.lock = {}, threading.Lock()

    def answer(self, connection, head):
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3:
            return super().answer(connection, head)
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        keep = self.keeps(head, words[2].encode())
        found = self.find(words[1].encode())
        if found is None:
            self.send(connection, self.head(b"404 Not Found", b"missing", keep) + b"missing")
            return keep
        info, body = self.load(found)  # the result of os.stat(), and the bytes of the file
        tag, changed = self.tag(info), int(info.st_mtime)
        status = self.outcome(fields, tag, changed, info, words[0])
        self.respond(connection, status, tag, changed, body, words[0], keep)
        return keep

    def respond(self, connection, status, tag, changed, body, method, keep):
        reason = {200: "OK", 304: "Not Modified", 412: "Precondition Failed"}[status]
        out = [f"HTTP/1.1 {status} {reason}", *self.fields(status, tag, changed)]
        if status != 304:
            out.append(f"Content-Length: {len(body) if status == 200 else 0}")
        out += ["" if keep else "Connection: close\r\n"]
        data = "\r\n".join(out).encode() + (b"\r\n" if keep else b"")
        if not keep:
            data += b"\r\n"
        self.send(connection, data + (body if self.has_body(status, method) else b""))

    def has_body(self, status, method):
        return status == 200 and method != "HEAD"

    def fields(self, status, tag, changed):
        return [f"ETag: {tag}", f"Last-Modified: {formatdate(changed, usegmt=True)}"]

    # versions

    def tag(self, info):
        return f'"{info.st_mtime_ns:x}-{info.st_size:x}"'

    def tags(self, value):
        return re.findall(r'(?:W/)?"[^"]*"', value)

    def date(self, value):
        for form in FORMS:
            try:
                return calendar.timegm(time.strptime(value, form))
            except ValueError:
                continue
        return None

    def outcome(self, fields, tag, changed, info, method):
        if "if-match" in fields:
            if fields["if-match"] != "*" and tag not in self.tags(fields["if-match"]):
                return 412
        elif (since := self.date(fields.get("if-unmodified-since", ""))) is not None and changed > since:
            return 412
        if "if-none-match" in fields:
            return 304 if self.matches(fields["if-none-match"], tag) else 200
        if "if-modified-since" in fields:
            return 304 if self.unchanged(fields["if-modified-since"], changed, info) else 200
        return 200

    def matches(self, value, tag):
        return value == "*" or tag in [each.removeprefix("W/") for each in self.tags(value)]

    def unchanged(self, value, changed, info):
        since = self.date(value)
        return since is not None and changed <= since

    # the cache

    def load(self, path):
        info = os.stat(path)
        with self.lock:
            kept = self.cache.get(path)
        if kept and self.is_current(kept.info, info):
            return kept
        found = CachedFile(info, self.read_file(path))
        with self.lock:
            self.keep(path, found)
        return found

    def keep(self, path, found):
        """Add a file to the cache, unless it is too large; drop the files that were added first."""
        if len(found.body) <= MAX_CACHED_BYTES:
            self.cache[path] = found
            while len(self.cache) > MAX_CACHED_FILES:
                self.cache.pop(next(iter(self.cache)))

    def is_current(self, kept, info):
        """Return whether a file has not changed. kept, info: its os.stat() in the cache, and now."""
        return (kept.st_mtime_ns, kept.st_size, kept.st_ino) == (info.st_mtime_ns, info.st_size, info.st_ino)


@mutant("validators", "form of date")
class LocalDates(Caching):
    """Writes dates without the day's name."""

    def fields(self, status, tag, changed):
        return [f"ETag: {tag}", time.strftime("Last-Modified: %d %b %Y %H:%M:%S GMT", time.gmtime(changed))]


@mutant("not-modified", "a 304 has no body")
class BodyBehind304(Caching):
    """Sends the file with the 304."""

    def has_body(self, status, method):
        return method != "HEAD"


@mutant("not-modified", "the 304 has none")
class NoTagIn304(Caching):
    """Sends a 304 without ETag."""

    def fields(self, status, tag, changed):
        return [] if status == 304 else super().fields(status, tag, changed)


@mutant("tag-lists", "only the first tag")
class OneTag(Caching):
    """Takes If-None-Match for one tag."""

    def matches(self, value, tag):
        return value in ("*", tag, "W/" + tag)


@mutant("tag-lists", "compares without W/")
class Strong(Caching):
    """Compares If-None-Match strongly."""

    def matches(self, value, tag):
        return value == "*" or tag in self.tags(value)


@mutant("tag-lists", "cut at a comma")
class CutsAtCommas(Caching):
    """Cuts a list of tags at its commas."""

    def tags(self, value):
        return [each.strip().strip('"').join('""') for each in value.replace("W/", "").split(",")]


@mutant("modified-since", "compared as text")
class TextDates(Caching):
    """Compares dates as text."""

    def unchanged(self, value, changed, info):
        return self.date(value) is not None and formatdate(changed, usegmt=True) <= value


@mutant("modified-since", "only the very same date")
class SameDate(Caching):
    """Takes only the very same date for unchanged."""

    def unchanged(self, value, changed, info):
        return self.date(value) == changed


@mutant("modified-since", "fraction")
class Fractions(Caching):
    """Compares the file's time with its fraction."""

    def unchanged(self, value, changed, info):
        since = self.date(value)
        return since is not None and info.st_mtime <= since


@mutant("modified-since", "RFC 850 is not understood")
class OneForm(Caching):
    """Reads only the preferred form of a date."""

    def date(self, value):
        try:
            return calendar.timegm(time.strptime(value, FORMS[0]))
        except ValueError:
            return None


@mutant("precedence", "If-Modified-Since decided")
class DateFirst(Caching):
    """Ignores If-None-Match when If-Modified-Since is given."""

    def outcome(self, fields, tag, changed, info, method):
        if "if-modified-since" in fields:
            fields.pop("if-none-match", None)
        return super().outcome(fields, tag, changed, info, method)


@mutant("preconditions", "If-Unmodified-Since is not read")
class As2006(Caching):
    """Does not read If-Unmodified-Since, as the EWE of 2006."""

    def outcome(self, fields, tag, changed, info, method):
        fields.pop("if-unmodified-since", None)
        return super().outcome(fields, tag, changed, info, method)


@mutant("head", "the method was HEAD")
class BodyOfHead(Caching):
    """Sends the file in answer to HEAD."""

    def has_body(self, status, method):
        return status == 200


@mutant("conditional-missing", "before the file is looked for")
class MissingIsGood(Caching):
    """Answers If-None-Match: * with 304 before it looks for the file."""

    def answer(self, connection, head):
        if b"If-None-Match: *" in head:
            self.respond(connection, 304, '""', 0, b"", "GET", False)
            return False
        return super().answer(connection, head)


@mutant("file-cache", "opened and read for each request")
class NoCache(Caching):
    """Reads the file for each request."""

    def is_current(self, kept, info):
        return False


@mutant("fresh-file", "does not check whether the file has changed")
class Stale(Caching):
    """Never looks whether a file in the cache has changed."""

    def is_current(self, kept, info):
        return True


@mutant("fresh-file", "whole seconds")
class Seconds(Caching):
    """Looks for changes of a second or more."""

    def is_current(self, kept, info):
        return (int(kept.st_mtime), kept.st_size) == (int(info.st_mtime), info.st_size)


@mutant("fresh-file", "looks for a newer file")
class NewerOnly(Caching):
    """Takes a file for changed only if it is newer."""

    def is_current(self, kept, info):
        return info.st_mtime_ns <= kept.st_mtime_ns


@mutant("fresh-file", "have the ETag")
class TagOfSize(Caching):
    """Makes the tag of the file's size and its second."""

    def tag(self, info):
        return f'"{int(info.st_mtime)}-{info.st_size}"'


@mutant("cache-bound", "stays in memory")
class Hoards(Caching):
    """Never lets go of a file."""

    def keep(self, path, found):
        self.cache[path] = found


if __name__ == "__main__":
    name, port, root, workers = sys.argv[1:]
    kind = ZOO[name].kind if name in ZOO else Caching
    kind(int(port), root, int(workers)).run()
