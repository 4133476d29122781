"""Web applications of Java, seen from the web server: directories with a WEB-INF. X-Switch runs them."""

from __future__ import annotations

import os


def is_application(directory: str) -> bool:
    """Is this directory an application? Then all below is its business, what is not there as a file too."""
    return os.path.isdir(directory + "/WEB-INF")
