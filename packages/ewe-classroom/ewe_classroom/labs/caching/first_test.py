"""The first test of this lab: python3 first_test.py. It calls your functions, and stops at the first failure."""

import os
import sys
import tempfile
import time
from pathlib import Path

from conditional import date, etag_of, outcome
from files import Files

HOUR_S = 3600
NOW_S = 1_000_000_000  # the modification time of the file in the steps about dates: in September 2001


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "page.txt"
        hits_and_freshness(str(path))
    conditions()
    print("All steps pass. Next: ewe-grade, as README.md says.")


def hits_and_freshness(path):
    cache, now_s = Files(), time.time()
    write(path, "one", now_s - HOUR_S)
    first = cache.get(path).body
    expect(1, "A hit: the second request does not read the file.", cache.get(path).body is first)
    write(path, "two", now_s - 2 * HOUR_S)
    fresh = cache.get(path).body == b"two"
    expect(2, "The file has changed, and is older now: the cache reads it again.", fresh)


def conditions():
    tag, other = etag_of(NOW_S * 10**9, 3), etag_of(NOW_S * 10**9 + 1000, 3)
    expect(3, "Two changes in one second give two tags.", tag != other)
    for number, title, fields, wanted in (
        (4, "The client has this version: 304.", {"if-none-match": f'"a, b", {tag}'}, 304),
        (5, "The client has another version: 200.", {"if-none-match": other}, 200),
        (6, "The client's copy has the date of the file: 304.", {"if-modified-since": date(NOW_S)}, 304),
        (7, "The file has changed since: 200.", {"if-modified-since": date(NOW_S - HOUR_S)}, 200),
        (
            8,
            "The copy is an hour younger than the file: 304.",
            {"if-modified-since": date(NOW_S + HOUR_S)},
            304,
        ),
        (9, "The client wants another version only: 412.", {"if-match": other}, 412),
    ):
        found = outcome(fields, tag, NOW_S)
        expect(number, title, found == wanted, f"outcome() returns {found} for {fields}.")


def write(path, text, changed_s):
    """Write a file, and set its modification time in seconds since 1970."""
    Path(path).write_text(text)
    os.utime(path, (changed_s, changed_s))


def expect(number, title, right, shown=""):
    """End the program if a step has failed."""
    if not right:
        sys.exit(f"✗ {number}. This is not true: {title} {shown}")
    print(f"✓ {number}. {title}", flush=True)


if __name__ == "__main__":
    main()
