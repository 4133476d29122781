"""What the RDBMS paper measured on, and what its text says of the figures whose numbers are lost."""

from __future__ import annotations

MACHINE = {
    "figure 5": "Sun Ultra 30, 250 MHz, Solaris 2.6, Informix 7.2, Netscape FastTrack; clients on Windows NT 4",
    "figures 7, 8": "Pentium 133, 64 MB, Windows NT 4, Oracle 7.3.4, IIS and FastTrack, clients beside them",
    "data": "50,000 rows of 196 bytes, an access log",
    "answer": "5.605 KB of HTML",
    "network": "10 Mbit/s for figure 5, loopback for figures 7 and 8",
}
LOST = "The results are in a figure whose numbers are not in the text: only order and shape can be compared."
