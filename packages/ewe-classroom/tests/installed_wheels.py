"""Wheels for the tests of packs, of this clone and of the installed libraries.

A test may not need an index. A wheel is a zip file of installed files, and the tests put it together again.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path

from ewe_classroom.course.archives import zip_of
from ewe_classroom.course.wheels import requirements

NOT_OF_A_WHEEL = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}  # pip writes them


def library_wheels(directory: Path) -> list[Path]:
    """Write a wheel of each library that ewe-classroom needs to a directory; return the paths."""
    return [library_wheel(each.partition("==")[0], directory) for each in requirements()]


def library_wheel(name: str, directory: Path) -> Path:
    """Write the wheel of an installed library to a directory; return its path.

    MarkupSafe also works without its compiled part, which is for one version of Python alone: the system's Python,
    which a pack takes, may be another one than that of the tests.
    """
    found = metadata.distribution(name)
    pure = name == "markupsafe"
    files: dict[str, bytes] = {}
    for each in found.files or ():
        path = str(each)
        if path.startswith("..") or "__pycache__" in path or each.name in NOT_OF_A_WHEEL:
            continue
        if not (pure and path.endswith(".so")):
            files[path] = Path(str(found.locate_file(each))).read_bytes()
    (about,) = (path for path in files if path.endswith(".dist-info/WHEEL"))
    lines = files[about].decode().splitlines()
    tags = [line.partition(": ")[2] for line in lines if line.startswith("Tag: ")]
    if pure:
        tags = ["py3-none-any"]
        lines = ["Wheel-Version: 1.0", "Generator: tests", "Root-Is-Purelib: true", "Tag: py3-none-any"]
        files[about] = ("\n".join(lines) + "\n").encode()
    record = about.replace("/WHEEL", "/RECORD")
    rows = [f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items()]
    files[record] = ("".join(rows) + f"{record},,\n").encode()
    target = directory / f"{name.replace('-', '_')}-{found.version}-{tag_of(tags)}.whl"
    target.write_bytes(zip_of(files))
    return target


def tag_of(tags: list[str]) -> str:
    """Return several tags as the name of a wheel writes them: cp36-abi3-linux_x86_64.manylinux_2_17_x86_64."""
    python, interface, _ = tags[0].split("-")
    return f"{python}-{interface}-{'.'.join(tag.split('-', 2)[2] for tag in tags)}"


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
