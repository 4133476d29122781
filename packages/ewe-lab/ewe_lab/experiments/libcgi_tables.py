"""What the LibCGI paper measured on, and what its tables print."""

from __future__ import annotations

MACHINE = {
    "server": "Pentium 200, 32 MB, Linux 2.0.34, Apache 1.2.5",
    "client": "ab, 1000 requests, 30 at once",
    "network": "Ethernet, 10 and 100 Mbit/s",
}
SIZES = (28, 1024, 10_240, 102_400)  # bytes
CGI, FASTCGI, LIBCGI, STATIC = "CGI", "FastCGI", "LibCGI", "Web server"
KINDS = (CGI, FASTCGI, LIBCGI, STATIC)
TABLE_2 = ((8.2, 5.0, 1.3), (8.6, 5.3, 1.6), (11.6, 7.5, 2.4), (75, 71, 63))  # ms, a row for each size
TABLE_3 = {  # requests a second: by link, a row for each size, a figure for each of KINDS
    "10 Mbit/s": ((88, 162, 320, 323), (81, 151, 278, 285), (52, 72, 85, 86), (9, 10, 10, 10)),
    "100 Mbit/s": ((98, 193, 448, 460), (92, 188, 431, 436), (76, 130, 312, 315), (38, 47, 88, 89)),
}


def size_name(size: int) -> str:
    """Return a size as the tables print it: `28 B`, `10 KB`."""
    return f"{size // 1024} KB" if size >= 1024 else f"{size} B"
