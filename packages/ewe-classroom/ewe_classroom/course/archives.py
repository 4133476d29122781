"""Archives that depend on their files alone: the same files give the same bytes, on each day and for each account.

    {"setup.sh": b"...", "wheels/a.whl": b"..."} ── zip_of(), tar_of() ─▶ bytes

An archive usually records when a file was written, by which account, and in which order a directory lists its
files. A lecturer who writes a pack again could then not see whether it has changed. Here each file has the same
date, belongs to account 0, and stands in the order of the names.
"""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Mapping

SCRIPT_MODE, FILE_MODE = 0o755, 0o644
EARLIEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the first one that a zip file can hold


def mode_of(content: bytes) -> int:
    """Return the permissions of a file, by its content: a script, which begins with `#!`, may be executed."""
    return SCRIPT_MODE if content.startswith(b"#!") else FILE_MODE


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a zip file with these files: name -> content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, EARLIEST_ZIP_DATE)
            # The upper 16 bits hold the file's type and permissions in Unix.
            entry.external_attr = (stat.S_IFREG | mode_of(content)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a tar file with these files, without compression."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)  # its date and its owner are 0 by default
            entry.size, entry.mode = len(content), mode_of(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
