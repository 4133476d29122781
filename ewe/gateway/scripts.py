"""Scripts: find the file that a URL names, and the part of the path that is left for the script.

A URL does not say where the name of its script ends. In /cgi-bin/shop/basket.cgi/add/3 any part may be the script;
only the file system knows. The server tries the parts from the left, until one is not a directory:

    /cgi-bin   /shop        /basket.cgi     /add/3
    prefix     directory    script          the rest
    └──────── SCRIPT_NAME ────────────┘     PATH_INFO          (RFC 3875 sections 4.1.13 and 4.1.5)

leading_parts() is this walk. Each caller has further rules: the CGI feature requires an executable file. Users'
directories and pages leave that check to X-Switch, which runs the script as its owner. A web application of Java is
a directory with a WEB-INF: the walk ends there, and the rest of the path belongs to the application.

Possible failure: the file may be exchanged between this check and the start of the script. Nothing here decides
about the script's privileges: X-Switch's suexecme resolves and checks the path again, and cgi-bin belongs to the
site.

Read next: cgi.py, which passes the result to the script; features/cgi/programs.py.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence

from ewe.config.defaults import WEB_INF
from ewe.http.status import HTTPError

MAX_FIRST_LINE_BYTES = 256  # as the kernel reads them
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
INDEX = "index.php"  # the script that X-Switch runs for a directory


class Script:
    """A script that a URL leads to. file: its path on disk. name, path_info: the two parts of the URL's path."""

    __slots__ = ("file", "name", "path_info")

    def __init__(self, file: str, name: str, path_info: str) -> None:
        self.file = file
        self.name = name
        self.path_info = path_info


def lines_about_script(script: Script, why: str, *, executable: bool = False) -> Iterator[str]:
    """Yield the lines of `ewe --explain` for a script: the program, its path variables, and a possible fault."""
    yield f"  answer    the program {script.file}   ({why})"
    yield f"            SCRIPT_NAME={script.name} PATH_INFO={script.path_info or '(none)'}"
    if executable and not os.access(script.file, os.X_OK):
        yield f"            but 403: it is not executable: chmod +x {script.file}"


def leading_parts(root: str, prefix: str, path: str) -> Iterator[Script]:
    """Yield each leading part of a path as a candidate script, the shortest first.

    prefix: the part of the URL that leads to the directory `root`, without its last slash. The walk ends before an
    empty segment and before a hidden file (".git"), which no URL leads to.
    """
    file = root
    end = len(prefix)
    for segment in path[end + 1 :].split("/"):
        if not segment or segment.startswith("."):
            return
        file += "/" + segment
        end += 1 + len(segment)
        yield Script(file, path[:end], path[end:])


def script_of(root: str, prefix: str, path: str, indexes: Sequence[str] = (INDEX,)) -> Script | None:
    """Return the script that a path leads to: its first part that is not a directory, or is a web application.

    indexes: names of files that stand for a directory, for a path that ends with the directory's slash. X-Switch
    checks whether the script may run, and that no symbolic link leads out of `root`.
    """
    directory, name = root, prefix
    for part in leading_parts(root, prefix, path):
        if not os.path.isdir(part.file) or is_application(part.file):
            return part if is_there(part.file) else None
        directory, name = part.file, part.name
    if path != name + "/":
        return None
    index = next((file for file in indexes if os.path.isfile(f"{directory}/{file}")), None)
    return None if index is None else Script(f"{directory}/{index}", name=path + index, path_info="")


def is_there(file: str) -> bool:
    """Return whether a file exists. Raises HTTPError(403) if a directory on its path may not be entered."""
    try:
        os.lstat(file)
    except PermissionError:
        raise HTTPError(403, closed_directory_message(os.path.dirname(file))) from None
    except (OSError, ValueError):
        return False
    return True


def closed_directory_message(directory: str) -> str:
    """Return a line for the log: the closed directory (this one or one above it), and the remedy."""
    return closed_directory_reason(closed_directory(directory) or directory)


def closed_directory(path: str) -> str:
    """Return the first directory above `path` that this process may not enter; "" if it may enter all."""
    above = os.path.dirname(path)
    if above == path or not above:
        return ""
    return closed_directory(above) or (above if is_closed(above) else "")


def is_closed(directory: str) -> bool:
    """Return whether a directory exists that this process may not enter."""
    return os.path.isdir(directory) and not os.access(directory, os.X_OK, effective_ids=True)


def closed_directory_reason(directory: str) -> str:
    """Return the message for a directory that this process may not enter, with the remedy."""
    return f"{directory} may not be entered by the server, {account_name()}: chmod o+x {directory}"


def account_name() -> str:
    """Return this process's account, for a message: "user nobody"."""
    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"


def is_application(directory: str) -> bool:
    """Return whether a directory is a web application of Java, which answers for every URL below it."""
    return os.path.isdir(f"{directory}/{WEB_INF}")


def fault_of(file: str) -> str:
    """Return a message about a wrong first line of a script, which names the interpreter; "" if it is right."""
    try:
        with open(file, "rb") as script:
            line = script.readline(MAX_FIRST_LINE_BYTES)
    except OSError as reason:
        return f"cannot read {file}: {reason.strerror}"
    if line.startswith(BYTE_ORDER_MARK):
        return f"{file} begins with a byte order mark: save it as UTF-8 without one"
    if line.startswith(b"\x7fELF"):
        return ""
    if not line.startswith(b"#!"):
        return f"the first line of {file} must name its interpreter, as #!/usr/bin/env python3 does"
    if line.endswith(b"\r\n"):
        return f"{file} has the line ends of Windows: sed -i 's/\\r$//' {file}"
    words = [os.fsdecode(word) for word in line[2:].split()]
    fault = fault_of_interpreter(*words[:2]) if words else ""
    return f"the first line of {file} names {fault}" if fault else ""


def fault_of_interpreter(program: str, argument: str = "") -> str:
    """Return the program of a first line that cannot run, and the reason; "" for none. argument: of env."""
    if closed := closed_directory(program):
        return f"{program}, and {closed_directory_reason(closed)}"
    if not os.path.exists(program):
        return f"{program}, which is not there"
    if not os.access(program, os.X_OK):
        return f"{program}, which {account_name()} may not run: chmod a+x {program}"
    for_env = os.path.basename(program) == "env" and argument and not argument.startswith("-")
    return f"{argument}, which is not there" if for_env and not is_on_path(argument) else ""


def is_on_path(program: str) -> bool:
    """Return whether PATH has a program of this name."""
    return any(os.access(os.path.join(each, program), os.X_OK) for each in os.get_exec_path())
