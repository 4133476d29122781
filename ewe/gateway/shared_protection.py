"""The protected sources of all sites together: a program of one site is not a document of another.

Two sites or two locations may show the same directory: an alias of /srv/shop beside a site whose document root is
/srv/shop. Each site then asks the protected sources of all sites (ewe.gateway.protected_sources). An extension
counts below the directory of the site or location that names it. The same kind of file may therefore be a program
here and a download there.
"""

from __future__ import annotations

import os
import re
import stat

from ewe.gateway.protected_sources import ProtectedSources, is_in


class SharedProtection(ProtectedSources):
    """The protected sources of one site. It also asks those of all other sites and locations.

    protected_on_all_sites: the protected sources of each site and location, in a list that all of them share.
    """

    protected_on_all_sites: list[ProtectedSources | ProtectedPattern]

    @classmethod
    def of(
        cls, own: ProtectedSources, protected_on_all_sites: list[ProtectedSources | ProtectedPattern]
    ) -> SharedProtection:
        """Return these protected sources as shared ones, and add them to all others."""
        shared = cls.__new__(cls)
        shared.__dict__.update(own.__dict__)
        shared.protected_on_all_sites = protected_on_all_sites
        protected_on_all_sites.append(own)  # not `shared`: each site would then ask all others again
        return shared

    def for_root(self, root: str, directories: object) -> ProtectedSources:
        """Return the same protection for a user's document root; see ProtectedSources.for_root()."""
        own = super().for_root(root, directories)  # type: ignore[arg-type]
        shared = SharedProtection.__new__(SharedProtection)
        shared.__dict__.update(own.__dict__)
        shared.protected_on_all_sites = self.protected_on_all_sites
        return shared

    def protects(self, name: str, real: str, descriptor: int) -> bool:
        """Return whether this site or another one protects an open file; see ProtectedSources.protects()."""
        return super().protects(name, real, descriptor) or any(
            protected_by(other, name, real, descriptor)
            # A link in this document root may lead to the Python application of another site.
            or (isinstance(other, ProtectedSources) and other.is_python_source(name, real, self.root))
            for other in self.protected_on_all_sites
        )


class ProtectedPattern:
    """The files whose path below a directory matches the pattern of a location with a gateway."""

    def __init__(self, root: str, pattern: str) -> None:
        """root: without links. pattern: for the path, as in a URL."""
        self.root = root.rstrip("/")
        self.pattern = re.compile(pattern, re.IGNORECASE | re.DOTALL)

    def has(self, name: str) -> bool:
        """Return whether a name below the root matches, in any letter case, with or without dots at its end."""
        if not is_in(name, self.root):
            return False
        path = name[len(self.root) :] or "/"
        return self.pattern.search(path) is not None or self.pattern.search(path.rstrip(". ")) is not None


def protected_by(other: ProtectedSources | ProtectedPattern, name: str, real: str, descriptor: int) -> bool:
    """Return whether another site or location protects a file because the file lies below its directory.

    other: its protected sources. name, real: the path of the file as the request names it, and its true name.
    descriptor: the open file. A pattern and an extension protect only regular files.
    """
    if isinstance(other, ProtectedPattern):
        return (other.has(real) or other.has(name)) and stat.S_ISREG(os.fstat(descriptor).st_mode)
    # All files below such a directory are protected, also if it lies outside of the other document root.
    if other.below is not None and (other.below.match(real) or other.below.match(name)):
        return True
    root = other.root
    return (is_in(real, root) or is_in(name, root)) and other.protects(name, real, descriptor)
