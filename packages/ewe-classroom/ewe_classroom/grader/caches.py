"""Checks of a cache of files in the server's memory: is it one, does it notice a change, and does it have a bound?

The grader changes a file in the ways that editors, copies and backups do, with times that it chooses:

    rewritten, a second later ··· the simplest change
    rewritten within the second · the time differs only behind the point, and the size is the same
    replaced by an older file ··· a backup is put back: its time is older, and it is a change all the same
    removed ····················· 404

Whether the server reads a file again is seen from outside: /proc/PID/io counts the bytes that its processes read.
"""

from __future__ import annotations

import time

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.conditional import CHANGED, DAY, exchange, put, validators
from ewe_classroom.grader.scene import Scene

ASKED = 10  # times that a file is asked for, once it is in the cache
SMALL = 32 << 10  # bytes of a file that any cache of files should hold
PIECE = 2 << 20
PIECES = 24
MOST_GROWTH = 24 << 20  # three times what the lab allows a cache: interpreters give memory back late
SETTLED_S = 0.1  # a careful cache does not hold a file that was changed within a tick of the clock
LATER_S = 1.1  # a cache that looks once a second has looked by then
SECOND = 10**9


def bytes_read(scene: Scene) -> int:
    """Return how many bytes the server's processes have read with read() and sendfile(); recv() does not count."""
    total = 0
    for pid in scene.subject.running():
        for line in processes.read(f"/proc/{pid}/io").splitlines():
            if line.startswith("rchar:"):
                total += int(line.split()[1])
    return total


@check(
    "file-cache",
    proves="a file that was sent before is not read again",
    sends=f"GET for one file of {SMALL:,} bytes, {ASKED + 2} times",
    expects="the file each time; the server's processes read it from the disk at most twice more",
    why="Opening, reading and closing a file are four system calls of a response that needs none of them.",
    hint="Keep path, bytes and the result of os.stat() in a dictionary. /proc/PID/io shows what a process reads.",
)
def file_cache(scene: Scene) -> None:
    path, size = "/small.bin", SMALL
    put(scene, path, bytes(range(256)) * (SMALL // 256))
    time.sleep(SETTLED_S)
    for _ in range(2):
        scene.expect_answer(path)
    before = bytes_read(scene)
    for _ in range(ASKED):
        scene.expect_answer(path)
    read = bytes_read(scene) - before
    if read > 2 * size:
        scene.fail(
            f"for {ASKED} more responses with the same file the server read {read:,} bytes, "
            f"{read / size:.0f} times the file",
            "keep the bytes of a small file in memory, and look with os.stat() whether they are still good",
            "the file is opened and read for each request, or nothing is kept between two connections",
        )
    scene.confirm(f"{ASKED} more responses with a file of {size:,} bytes took {read:,} bytes of reading")


@check(
    "fresh-file",
    proves="a file that has changed is sent as it is now",
    sends=(
        "GET for a file before and after each of four changes: later, in the same second, to an older one, "
        "removed"
    ),
    expects="the new bytes with another ETag; 404 once the file is removed",
    why="A cache that does not notice a change serves yesterday's page, and nobody sees why.",
    hint=(
        "Call os.stat() for each request. What differs (!=) from what you hold has changed, whether newer or "
        "older."
    ),
    options={"within": "request: the next one counts; second: a change may take a second to be seen"},
)
def fresh_file(scene: Scene) -> None:
    base = CHANGED * SECOND
    changes = [
        (b"the first text\n", base, ""),
        (
            b"another, longer text\n",
            base + 10 * SECOND,
            "the cache does not look whether the file has changed",
        ),
        (
            b"AND AGAIN, the same\n\n",
            base + 10 * SECOND + 300_000_000,
            "the cache or the tag knows whole seconds only: compare st_mtime_ns",
        ),
        (
            b"from an old backup..\n",
            base - DAY * SECOND,
            "the cache looks for a newer file: another one, older or newer, is a change",
        ),
    ]
    patient = scene.options.get("within") == "second"
    etag = ""
    for content, changed_ns, because in changes:
        put(scene, "/changing.txt", content, changed_ns)
        response = exchange(scene, "/changing.txt")
        if response.body != content and patient:
            time.sleep(LATER_S)
            response = exchange(scene, "/changing.txt")
        if response.status != 200 or response.body != content:
            scene.fail(
                f"after the change, GET /changing.txt got status {response.status} and {response.body[:40]!r}",
                f"send what is in the file now: {content!r}",
                because,
            )
        tag, _ = validators(scene, "/changing.txt")
        if tag == etag:
            scene.fail(
                f"two versions of /changing.txt have the ETag {tag}",
                "give each version another tag: a client with the old one would get 304 for good",
                because,
            )
        if etag and exchange(scene, "/changing.txt", {"If-None-Match": etag}).status != 200:
            scene.fail(f"after the change the old tag {etag} got no 200", "send the new version", because)
        etag = tag
    (scene.site.root / "changing.txt").unlink()
    response = exchange(scene, "/changing.txt")
    if response.status == 200 and patient:
        time.sleep(LATER_S)
        response = exchange(scene, "/changing.txt")
    if response.status != 404:
        scene.fail(
            f"the file was removed, and GET /changing.txt got status {response.status}",
            "answer 404",
            "the cache answers without a look at the disk",
        )
    scene.confirm(f"{len(changes) - 1} changes and a removal were seen")


@check(
    "cache-bound",
    proves="the cache has a bound: it lets go of old files",
    sends=f"GET for {PIECES} files of 2 MB, one after another",
    expects=f"each file; the server's memory grows by less than {MOST_GROWTH >> 20} MB",
    why="A cache without a bound is a leak: a site with more files than memory ends the server.",
    hint=(
        "Count the bytes that you hold, and drop what was not asked for the longest: an OrderedDict knows its "
        "order."
    ),
    fresh=True,
)
def cache_bound(scene: Scene) -> None:
    for path in ("/hello.txt", "/bytes.bin", "/hello.txt"):
        scene.expect_answer(path)
    before = sum(map(processes.memory, scene.subject.running()))
    names = []
    for number in range(PIECES):
        names.append(f"/piece{number}.bin")
        put(scene, names[-1], bytes([number]) * PIECE)
        scene.expect_answer(names[-1])
    grown = sum(map(processes.memory, scene.subject.running())) - before
    for name in names:
        (scene.site.root / name[1:]).unlink()
        del scene.site.files[name]
    if grown > MOST_GROWTH:
        scene.fail(
            f"after {PIECES} files of 2 MB the server holds {grown >> 20} MB more",
            f"stay below {MOST_GROWTH >> 20} MB: the lab allows a cache of 8 MB",
            "every file that was ever asked for stays in memory",
        )
    scene.confirm(f"{PIECES} files of 2 MB left {max(grown, 0) >> 20} MB in the server")
