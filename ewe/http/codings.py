"""Content codings: gzip, brotli and zstd, each piece by piece. RFC 9110 section 8.4.1, RFC 7932, RFC 8878. No I/O.

zlib, which makes gzip, comes with Python. The other two are optional packages (pip install 'ewe-server[compress]');
from Python 3.14 on, zstd comes with Python too. A coder is made for one body:

    coder = coder_of("zstd")
    coder.add(b"...")           bytes to send now, perhaps none: the coder collects
    coder.flush(b"...")         all bytes so far: the client can decode everything that was added
    coder.finish()              the rest

The levels are a choice between time and size. For 29 KB of Markdown they take 0.3 to 0.7 ms; twice the time would
save 1 to 4 % more. The windows are small (256 KB), since a coder holds its window as long as its response is sent.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

GZIP_LEVEL = 5
BROTLI_QUALITY = 5
ZSTD_LEVEL = 6
WINDOW_BITS = 18  # 256 KB; gzip's is 32 KB
GZIP_WINDOW = 15 + 16  # zlib's way to ask for the gzip format
# The cheapest first: at equal size zstd takes about half the time of the others.
NAMES = ("zstd", "br", "gzip")
PACKAGES = {"zstd": "backports.zstd", "br": "brotli"}


class Coder(Protocol):
    """Encodes one body, piece by piece."""

    def add(self, data: bytes) -> bytes:
        """Take more of the body; return encoded bytes that are ready."""
        ...

    def flush(self, data: bytes) -> bytes:
        """Take more of the body; return encoded bytes with which the client can decode all of it so far."""
        ...

    def finish(self) -> bytes:
        """Return the last encoded bytes."""
        ...


class Gzip:
    """gzip, by zlib."""

    def __init__(self) -> None:
        self.coder = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
        self.add = self.coder.compress
        self.finish = self.coder.flush

    def flush(self, data: bytes) -> bytes:
        return self.coder.compress(data) + self.coder.flush(zlib.Z_SYNC_FLUSH)


class Brotli:
    """br, by the package brotli."""

    def __init__(self, library: Any) -> None:
        self.coder = library.Compressor(quality=BROTLI_QUALITY, lgwin=WINDOW_BITS)
        self.add: Callable[[bytes], bytes] = self.coder.process
        self.finish: Callable[[], bytes] = self.coder.finish

    def flush(self, data: bytes) -> bytes:
        started: bytes = self.coder.process(data)
        rest: bytes = self.coder.flush()
        return started + rest


class Zstd:
    """zstd, by Python 3.14 or the package backports.zstd."""

    def __init__(self, library: Any) -> None:
        kinds = library.CompressionParameter
        options = {kinds.compression_level: ZSTD_LEVEL, kinds.window_log: WINDOW_BITS}
        self.coder = library.ZstdCompressor(options=options)
        self.add: Callable[[bytes], bytes] = self.coder.compress
        self.finish: Callable[[], bytes] = self.coder.flush

    def flush(self, data: bytes) -> bytes:
        found: bytes = self.coder.compress(data, self.coder.FLUSH_BLOCK)
        return found


def maker(name: str) -> Callable[[], Coder]:
    """Return what makes a coder of a coding. Raises ImportError if its package is not installed."""
    if name == "br":
        brotli = import_module("brotli")
        return lambda: Brotli(brotli)
    if name == "zstd":
        zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        return lambda: Zstd(zstd)
    return Gzip


def makers(names: tuple[str, ...] = ()) -> dict[str, Callable[[], Coder]]:
    """Return what makes the coders of some codings, by name, in their order; without names, of all that there are.

    Raises ValueError if a coding is named and its package is not installed.
    """
    found: dict[str, Callable[[], Coder]] = {}
    for name in names or NAMES:
        try:
            found[name] = maker(name)
        except ImportError:
            if names:
                raise ValueError(
                    f"coding {name!r} needs the package {PACKAGES[name]}: pip install {PACKAGES[name]}, or leave it"
                    " out (compress-codings)"
                ) from None
    return found


def encode(coder: Coder, body: bytes) -> bytes:
    """Return a whole body, encoded."""
    return coder.add(body) + coder.finish()
