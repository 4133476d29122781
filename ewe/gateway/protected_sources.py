"""Protected sources: the files that belong to programs. The static files' feature never sends them.

A script's source may contain passwords, and its bugs help attackers. Usually a program's feature stands in front of
the static files (ewe.site) and answers the request. That is not enough to keep the source secret:

- The file may be created between the two checks: `git checkout` removes a page and creates it again.
- Another feature may lead to the file: a user's directory is served before `fastcgi` is asked.
- A symbolic link, or another spelling of the name, may lead to the file: `page.txt` -> `page.php`, `page.PHP` on a
  file system that ignores case, `page.php.` on one that drops a dot at the end.

Each Static therefore asks its ProtectedSources about every file that it opens, by the name in the URL and by the
true name that the kernel reports. A protected file is refused with 403, whether or not its program can be reached
now.

A page from SQL (name.sql.html, ewe.features.sql_pages) is refused with 404 on every site, even on one without
databases: the file has statements, and reveals the structure of a database. The same is true of copies of it
that editors and compressors leave beside it.

An application in Python (`wsgi`, `asgi`, `mount`) may lie in the document root, for example with
`ewe --documentroot .`. Python files in its directory, and below, are then protected: the application may import any
of them. Files of other kinds are sent. If the document root itself lies below that directory (htdocs/ beside
app.py), its Python files are documents.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence

# No client may read these directories of a web application: Servlet specification section 10.5
PRIVATE = re.compile(r"/(?:WEB|META)-INF(?:/|\Z)", re.IGNORECASE)
# A page from SQL, or a copy of it. Some file systems ignore case, or dots and spaces at the end.
SQL_PAGE = re.compile(
    r"\.sql\.html(?:\.(?:gz|br|zst|bz2|xz|bak|old|orig|save|swp|tmp)|~)*[. ]*\Z", re.IGNORECASE
)
# A source of Python, its compiled form, or a copy of one
PYTHON = re.compile(
    r"\.py[cow]?(?:\.(?:gz|br|zst|bz2|xz|bak|old|orig|save|swp|tmp)|~)*[. ]*\Z", re.IGNORECASE
)
EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


class ProtectedSources:
    """The set of files that are programs: by extension, or by directory.

    root: the document root, without links. extensions: ".php" and the like. directories: every file below them is
    protected. executables: a directory that contains the document root; below it only executable files are
    protected, or no files would be left to send. "": none does. sources: directories of applications in Python.
    below, ending: the patterns of paths in `directories`, and of names with `extensions`; None: there are none.
    """

    def __init__(
        self,
        root: str,
        extensions: Sequence[str] = (),
        directories: Iterable[str] = (),
        executables: str = "",
        sources: Iterable[str] = (),
    ) -> None:
        self.root = root.rstrip("/") + "/"
        self.extensions = extensions
        self.protect_below(name for each in directories for name in names_of(each))
        self.executables = executables
        self.sources = tuple(sorted({name for each in sources for name in names_of(each)}))
        ends = "|".join(re.escape(each) for each in extensions)
        self.ending = re.compile(rf"[^/](?:{ends})[. ]*\Z", re.IGNORECASE) if ends else None

    def for_root(self, root: str, directories: Iterable[str]) -> ProtectedSources:
        """Return the same protection for a user's document root, with more directories. root: without links."""
        protected = ProtectedSources(root, self.extensions, (), self.executables, self.sources)
        own = (name for each in directories for name in names_of(each))
        protected.protect_below((*self.directories, *own))
        return protected

    def protect_below(self, directories: Iterable[str]) -> None:
        """Protect these directories, named as names_of() returns them. One pattern checks all of them at once."""
        self.directories = tuple(sorted(set(directories)))
        names = "|".join(re.escape(each.rstrip("/")) for each in self.directories)
        self.below = re.compile(rf"(?:{names})(?:/|\Z)", re.IGNORECASE) if self.directories else None

    def protects(self, name: str, real: str, descriptor: int) -> bool:
        """Return whether an open file or directory belongs to a program. name: in the URL. real: its true name."""
        if self.below is not None and (
            self.below.match(real) is not None or (name != real and self.below.match(name) is not None)
        ):
            return True
        # A hidden directory may contain the document root, so only names below the root count.
        if PRIVATE.search(real, len(self.root) - 1 if real.startswith(self.root) else 0):
            return True
        if self.sources and self.is_python_source(name, real, self.root):
            return True
        has_extension = self.ending is not None and bool(self.ending.search(name) or self.ending.search(real))
        if not has_extension and not self.executables:
            return False
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return False  # files in a directory with such a name are like any others
        return has_extension or (mode & EXECUTABLE != 0 and is_in(real, self.executables))

    def is_python_source(self, name: str, real: str, root: str) -> bool:
        """Return whether a file sent from this document root is the source of an application in Python.

        A directory of sources counts if it lies in the document root, or if a link leads out of the root.
        """
        if PYTHON.search(name) is None and PYTHON.search(real) is None:
            return False
        linked = not is_in(real, root)
        return any(
            (is_in(real, each) or is_in(name, each)) and (linked or is_in(each, root))
            for each in self.sources
        )


def is_sql_page(name: str, real: str) -> bool:
    """Return whether a file is a page from SQL or a copy of one. name: in the URL. real: its true name."""
    return SQL_PAGE.search(name) is not None or SQL_PAGE.search(real) is not None


def names_of(directory: str) -> set[str]:
    """Return the names of a directory: as written, below its parent's true name, and its own true name.

    The directory may be a symbolic link that changes at any moment, for example to the next release of a program.
    The new target is still protected, by the name of the link.
    """
    directory = directory.rstrip("/") or "/"
    above, name = os.path.split(directory)
    names = {directory}
    try:
        names |= {os.path.join(os.path.realpath(above), name), os.path.realpath(directory)}
    except OSError:
        pass  # a link was changed during the check
    return names


def with_languages(extensions: Iterable[str], languages: Iterable[str]) -> list[str]:
    """Return extensions of programs, and of their variants: page.php.en is a variant of page.php (languages)."""
    plain = list(extensions)
    return plain + [f"{each}.{language}" for each in plain for language in languages]


def is_in(path: str, directory: str) -> bool:
    """Return whether a path is the directory or below it, by the names alone; letter case does not matter."""
    path, directory = path.lower(), directory.rstrip("/").lower()
    return path == directory or path.startswith(directory + "/")
