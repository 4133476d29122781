"""Find the submission in a directory: a platform may unpack it into a folder within the folder that it names.

    ewe-grade --lab pool ada        the submission may be server.py in a folder of the directory ada

A directory stands for the one file in it, or in its folders, that has the usual name of a submission. If a file of
such a name is missing, it is looked for in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ewe_classroom.grader.kinds import DATA, ENGINE, SERVER
from ewe_classroom.grader.subject import BadSubject

USUAL_NAMES = {SERVER: ("server.py", "model.py", "server"), ENGINE: ("engine.py",), DATA: ("runs.json",)}
MAX_DEPTH = 4  # folders within folders
MAX_FOLDERS = 1000  # a wrong directory, such as /, is not searched to its end
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site"}  # and each name with a dot at its beginning


def locate_submission(text: str, kind: str) -> str:
    """Return the path of the submission that a path of the command line stands for. Raises BadSubject.

    A platform may unpack a submission into a further folder. A directory, or a missing file with the usual name of
    a submission, therefore stands for the file below it. text: the path. Any other path is returned unchanged.
    kind: of the submission (kinds.py).
    """
    path = Path(text)
    # os.path.isdir() is false for a name that is too long, where Path.is_dir() raises an error.
    is_directory = os.path.isdir(path)
    is_usual = path.name in USUAL_NAMES[kind] and os.path.isdir(path.parent)
    if os.path.isfile(path) or not (is_directory or is_usual):
        return text
    top, names = (path, USUAL_NAMES[kind]) if is_directory else (path.parent, (path.name,))
    for name in names:  # the first name of which there is a file decides
        found = list(files(top, name))
        if len(found) == 1:
            return str(found[0])
        if found:
            shown = ", ".join(map(str, found[:3]))
            raise BadSubject(f"{text}: there are {len(found)} files {name}; name one of them: {shown}")
    if not is_directory:
        raise BadSubject(f"{text}: not a file, and no folder beside it has a {path.name}")
    raise BadSubject(f"{text}: a directory without {' or '.join(names)}; name the file, or use --command")


def files(top: Path, name: str) -> Iterator[Path]:
    """Yield the files of a name in a directory and its folders, within MAX_DEPTH and MAX_FOLDERS."""
    for count, (directory, folders, _) in enumerate(os.walk(top), 1):
        path = Path(directory, name)
        # A student's link may lead to a name that is too long: Path.is_file() would raise an error.
        if os.path.isfile(path):
            yield path
        is_limit = len(Path(directory).relative_to(top).parts) >= MAX_DEPTH or count > MAX_FOLDERS
        hidden = {each for each in folders if each[0] == "."}
        # os.walk() enters the folders that this list still contains: the list itself has to change.
        folders[:] = [] if is_limit else sorted(set(folders) - SKIPPED_FOLDERS - hidden)
