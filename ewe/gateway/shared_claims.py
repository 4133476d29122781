"""Claims of all sites together: a program of one site is no file of another.

Two sites or two locations may show the same directory: an alias of /srv/shop beside a site whose document root is
/srv/shop. Each then asks the claims of all (ewe.gateway.claims). An extension counts below the directory of the
site or location that names it, so the same kind of file may be a program here and a download there.
"""

from __future__ import annotations

import os
import re
import stat

from ewe.gateway.claims import Claims, is_in


class SharedClaims(Claims):
    """The claims of one site, which asks those of all others, too."""

    together: list[Claims | PatternClaims]

    @classmethod
    def of(cls, own: Claims, together: list[Claims | PatternClaims]) -> SharedClaims:
        """Return these claims as shared ones, and add them to all others."""
        shared = cls.__new__(cls)
        shared.__dict__.update(own.__dict__)
        shared.together = together
        together.append(own)
        return shared

    def for_root(self, root: str, directories: object) -> Claims:
        own = super().for_root(root, directories)  # type: ignore[arg-type]
        shared = SharedClaims.__new__(SharedClaims)
        shared.__dict__.update(own.__dict__)
        shared.together = self.together
        return shared

    def claim(self, name: str, real: str, descriptor: int) -> bool:
        return super().claim(name, real, descriptor) or any(
            claimed_by(other, name, real, descriptor)
            or (isinstance(other, Claims) and other.is_source(name, real, self.root))
            for other in self.together
        )


class PatternClaims:
    """The files whose path below a directory matches the pattern of a location with a gateway."""

    def __init__(self, root: str, pattern: str) -> None:
        """root: without links. pattern: for the path, as in a URL."""
        self.root = root.rstrip("/")
        self.pattern = re.compile(pattern, re.IGNORECASE | re.DOTALL)

    def has(self, name: str) -> bool:
        """Return whether a name below the root matches: in any case of letters, with dots at its end or not."""
        if not is_in(name, self.root):
            return False
        path = name[len(self.root) :] or "/"
        return self.pattern.search(path) is not None or self.pattern.search(path.rstrip(". ")) is not None


def claimed_by(other: Claims | PatternClaims, name: str, real: str, descriptor: int) -> bool:
    """Return whether another site or location claims a file, because the file lies below its directory."""
    if isinstance(other, PatternClaims):
        return (other.has(real) or other.has(name)) and stat.S_ISREG(os.fstat(descriptor).st_mode)
    if other.below is not None and (other.below.match(real) or other.below.match(name)):
        return True
    root = other.root
    return (is_in(real, root) or is_in(name, root)) and other.claim(name, real, descriptor)
