"""Checks of a file cache in the server's memory: does it save reads, does it notice changes, does it have a bound?

The grader changes a file as editors, copies and backups do. It chooses the modification times itself:

    rewritten, a second later ··· the simplest change
    rewritten within the second · the times differ only in their fractions, and the size is the same
    replaced by an older file ··· a restored backup has an older time, and is a change all the same
    removed ····················· the response must be 404

The grader detects repeated reads from outside: /proc/PID/io counts the bytes that the server's processes read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.conditional import CHANGED_S, DAY_S, exchange, put, validators
from ewe_classroom.grader.responses import Response
from ewe_classroom.grader.scene import NotJudged, Scene

REQUEST_COUNT = 10  # requests for a file that is in the cache
SMALL_FILE_BYTES = 32 << 10  # bytes of a file that any file cache should keep
LARGE_FILE_BYTES = 2 << 20
LARGE_FILE_COUNT = 24
# Three times the lab's limit of a cache: an interpreter gives freed memory back to the system late, or never.
MAX_GROWTH_BYTES = 24 << 20
# A careful cache does not keep a file that was changed within the last tick of the clock
BEFORE_CACHING_S = 0.1
CACHE_CHECK_S = 1.1  # a cache that checks a file once a second has checked it by then
NS_PER_S = 10**9


class FileChange(NamedTuple):
    """One change of a file. changed_ns: its new modification time.

    because: the likely cause if the server does not notice the change.
    """

    content: bytes
    changed_ns: int
    because: str

    def is_in(self, response: Response) -> bool:
        """Return whether a response shows the file after this change."""
        return response.status == 200 and response.body == self.content


def bytes_read(scene: Scene) -> int:
    """Return the bytes that the server's processes have read together (processes.bytes_read())."""
    return sum(map(processes.bytes_read, scene.subject.running()))


def memory_bytes(scene: Scene) -> int:
    """Return the memory that the server's processes use together (processes.memory_bytes())."""
    return sum(map(processes.memory_bytes, scene.subject.running()))


@check(
    "file-cache",
    proves="the server does not read a file again that it has sent before",
    sends=f"GET for one file of {SMALL_FILE_BYTES:,} bytes, {REQUEST_COUNT + 2} times",
    expects="the file each time; after two requests, the server reads it from the disk at most twice more",
    why=(
        "Opening, examining, reading and closing a file cost four system calls. A cached response "
        "needs none of them."
    ),
    hint=(
        "Keep path, bytes and the result of os.stat() in a dictionary. /proc/PID/io counts the bytes "
        "that a process reads."
    ),
)
def file_cache(scene: Scene) -> None:
    if not os.path.exists("/proc/self/io"):
        raise NotJudged("this kernel does not count the bytes that a process reads (/proc/PID/io)")
    path, size = "/small.bin", SMALL_FILE_BYTES
    put(scene, path, bytes(range(256)) * (SMALL_FILE_BYTES // 256))
    time.sleep(BEFORE_CACHING_S)
    for _ in range(2):  # now the file should be in the cache
        scene.expect_answer(path)
    before = bytes_read(scene)
    for _ in range(REQUEST_COUNT):
        scene.expect_answer(path)
    read = bytes_read(scene) - before
    if read > 2 * size:
        scene.fail(
            f"for {REQUEST_COUNT} more responses with the same file the server read {read:,} bytes, "
            f"{read / size:.0f} times the file",
            "keep the bytes of a small file in memory, and check with os.stat() that the file has not changed",
            "the file is opened and read for each request, or the cache does not outlive a connection",
        )
    scene.confirm(
        f"for {REQUEST_COUNT} more responses with a file of {size:,} bytes the server read {read:,} bytes"
    )


def exchange_after_change(
    scene: Scene, path: str, is_seen: Callable[[Response], bool], *, may_be_late: bool
) -> Response:
    """Request a file that has changed; return the response.

    is_seen: whether a response shows the change. may_be_late: without it, ask again after CACHE_CHECK_S.
    """
    response = exchange(scene, path)
    if may_be_late and not is_seen(response):
        time.sleep(CACHE_CHECK_S)
        response = exchange(scene, path)
    return response


@check(
    "fresh-file",
    proves="after a change of a file, the server sends the new contents",
    sends=(
        "GET for a file before and after each of four changes: rewritten later, rewritten in the same second, "
        "replaced by an older file, removed"
    ),
    expects="the new bytes with a new ETag; 404 once the file is removed",
    why="A cache that does not notice a change serves yesterday's page, and the author cannot see why.",
    hint=(
        "Call os.stat() for each request. The file has changed if the result differs (!=) from the stored one; "
        "the time may be newer or older."
    ),
    options={
        "within": "request: the next request must see a change; second: a request one second later must see it"
    },
)
def fresh_file(scene: Scene) -> None:
    base = CHANGED_S * NS_PER_S
    # The last three contents have the same size.
    changes = [
        FileChange(b"the first text\n", base, because=""),
        FileChange(
            b"another, longer text\n",
            base + 10 * NS_PER_S,
            because="the cache does not check whether the file has changed",
        ),
        FileChange(
            b"AND AGAIN, the same\n\n",
            base + 10 * NS_PER_S + 300_000_000,
            because="the cache or the tag uses whole seconds only: compare st_mtime_ns",
        ),
        FileChange(
            b"from an old backup..\n",
            base - DAY_S * NS_PER_S,
            because="the cache looks for a newer file, but an older file is a change, too",
        ),
    ]
    may_be_late = scene.options.get("within") == "second"
    etag = ""
    for change in changes:
        put(scene, "/changing.txt", change.content, change.changed_ns)
        response = exchange_after_change(scene, "/changing.txt", change.is_in, may_be_late=may_be_late)
        if not change.is_in(response):
            scene.fail(
                f"after the change, GET /changing.txt got status {response.status} and {response.body[:40]!r}",
                f"send the present contents of the file: {change.content!r}",
                change.because,
            )
        tag = validators(scene, "/changing.txt").etag
        if tag == etag:
            scene.fail(
                f"two versions of /changing.txt have the ETag {tag}",
                "give each version another tag: otherwise a client with the old version always gets 304",
                change.because,
            )
        if etag and exchange(scene, "/changing.txt", {"If-None-Match": etag}).status != 200:
            scene.fail(
                f"after the change the old tag {etag} got no 200", "send the new version", change.because
            )
        etag = tag
    (scene.site.root / "changing.txt").unlink()
    response = exchange_after_change(
        scene, "/changing.txt", lambda response: response.status != 200, may_be_late=may_be_late
    )
    if response.status != 404:
        scene.fail(
            f"the file was removed, and GET /changing.txt got status {response.status}",
            "answer 404",
            "the cache answers without checking the disk",
        )
    scene.confirm(f"the server noticed {len(changes) - 1} changes and a removal")


@check(
    "cache-bound",
    proves="the cache has a bound: it drops old files",
    sends=f"GET for {LARGE_FILE_COUNT} files of 2 MB, one after another",
    expects=f"each file; the server's memory grows by less than {MAX_GROWTH_BYTES >> 20} MB",
    why="A cache without a bound is a leak: a site with more files than memory ends the server.",
    hint=(
        "Count the bytes in the cache, and drop the file that was requested least recently. An OrderedDict keeps "
        "the order."
    ),
    fresh=True,
)
def cache_bound(scene: Scene) -> None:
    # A server needs memory for its first requests, also without a cache: measure after them.
    for path in ("/hello.txt", "/bytes.bin", "/hello.txt"):
        scene.expect_answer(path)
    before_bytes = memory_bytes(scene)
    paths = [f"/piece{number}.bin" for number in range(LARGE_FILE_COUNT)]
    for number, path in enumerate(paths):
        put(scene, path, bytes([number]) * LARGE_FILE_BYTES)
        scene.expect_answer(path)
    grown_bytes = memory_bytes(scene) - before_bytes
    # Later checks use this site, too.
    for path in paths:
        (scene.site.root / path[1:]).unlink()
        del scene.site.files[path]
    if grown_bytes > MAX_GROWTH_BYTES:
        scene.fail(
            f"after {LARGE_FILE_COUNT} files of 2 MB the server uses {grown_bytes >> 20} MB more memory",
            f"stay below {MAX_GROWTH_BYTES >> 20} MB: the lab allows a cache of 8 MB",
            "every requested file stays in memory",
        )
    scene.confirm(
        f"after {LARGE_FILE_COUNT} files of 2 MB the server used {max(grown_bytes, 0) >> 20} MB more"
    )
