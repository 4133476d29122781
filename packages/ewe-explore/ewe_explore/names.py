"""Names for messages: the name of a lock, from the source line that makes it, and the text of a line."""

from __future__ import annotations

import linecache
import re
from functools import lru_cache
from keyword import iskeyword

# The name in `self.lock = ...`, also with a type
ASSIGNED = re.compile(r"^\s*(?:self\.|cls\.)?([A-Za-z_][\w.]*)\s*(?::[^=]*)?=[^=]")
# The name in a line of a table or of arguments: `"lock": ...`, `lock=...`
KEYWORD = re.compile(r"^\s*\"?([A-Za-z_]\w*)\"?\s*[:=]")


@lru_cache(maxsize=4096)
def name_of(file: str, line: int) -> str:
    """Return the name that a source line assigns, in the singular for several objects; "" without an assignment."""
    if not file:
        return ""
    text = linecache.getline(file, line)
    found = ASSIGNED.match(text) or KEYWORD.match(text)
    if found is None or iskeyword(found[1]):  # a keyword as in `else: lock = Lock()`
        return ""
    name = found[1]
    # A comprehension, or a list that is repeated: the line makes several objects
    if re.search(r"\bfor\b.*\bin\b|\]\s*\*", text) and name.endswith("s"):
        name = name[:-1]
    return name


def forget_old_version(file: str) -> None:
    """Read a file again if it has changed since its lines were read: a notebook explores one file many times."""
    linecache.checkcache(file)
    name_of.cache_clear()


def source(file: str, line: int) -> str:
    """Return the text of a line, without its indentation."""
    return linecache.getline(file, line).strip() if file else ""
