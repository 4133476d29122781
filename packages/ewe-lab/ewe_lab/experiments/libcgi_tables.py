"""The printed tables of the LibCGI paper."""

from __future__ import annotations

from ewe_lab.experiments.papers import printed

SIZES = (28, 1024, 10_240, 102_400)  # bytes
CGI, FASTCGI, LIBCGI, STATIC = "CGI", "FastCGI", "LibCGI", "Web server"
KINDS = (CGI, FASTCGI, LIBCGI, STATIC)
TABLE_2 = printed("L-T2")  # ms, by size and kind
TABLE_3 = printed("L-T3")  # requests a second, by link, size and kind


def size_name(size: int) -> str:
    """Return a size as the tables print it: `28 B`, `10 KB`."""
    return f"{size // 1024} KB" if size >= 1024 else f"{size} B"
