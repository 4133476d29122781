"""DELETE, MKCOL, COPY and MOVE (RFC 4918 sections 9.3 and 9.6 to 9.9). These functions may block.

A directory with its members is bounded: MAX_DEPTH directories deep, MAX_MEMBERS files and directories. It may hold
members that clients cannot reach (tree.py). These are not deleted, copied or moved: a DELETE or a MOVE of such a
directory is refused before anything is changed, a COPY leaves them out.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from ewe.features.webdav.tree import DIRECTORY, Place, Tree
from ewe.features.webdav.upload import NewFile, check_conditions, hidden_name
from ewe.gateway.spool import write
from ewe.gateway.true_names import LOOK
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.descriptors import COPY, NO_SENDFILE

MAX_DEPTH = 64
MAX_MEMBERS = 100_000
ROUNDS = 20  # in which a directory is emptied, if other clients fill it meanwhile
CHUNK = 16 * 1024 * 1024  # bytes that are copied by one system call


class Budget:
    """Counts the members of a directory."""

    def __init__(self) -> None:
        self.members = 0

    def count(self, depth: int, real: str) -> None:
        """Count one member. Raises HTTPError(507) if there are too many, or they are too deep."""
        self.members += 1
        if depth > MAX_DEPTH or self.members > MAX_MEMBERS:
            raise HTTPError(
                507,
                f"webdav: {real}: more than {MAX_MEMBERS} members, or more than {MAX_DEPTH} directories deep",
            )


class Member:
    """A member of a directory. names: below the directory. about: of the member itself, not of a link's target."""

    def __init__(self, directory: int, name: str, names: str, about: os.stat_result) -> None:
        self.directory = directory
        self.name = name
        self.names = names
        self.about = about
        self.is_directory = stat.S_ISDIR(about.st_mode)
        self.is_file = stat.S_ISREG(about.st_mode)


def walk(
    directory: int, real: str, below: str = "", budget: Budget | None = None, depth: int = 1
) -> Iterator[Member]:
    """Yield the members of an open directory, and theirs, each directory before its members.

    A Member's descriptor is open until the next one is asked for. Raises OSError, HTTPError(507).
    """
    budget = budget or Budget()
    for name in sorted(os.listdir(directory)):
        budget.count(depth, real)
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
        member = Member(directory, name, below + name, about)
        yield member
        if member.is_directory:
            child = os.open(name, DIRECTORY, dir_fd=directory)
            try:
                yield from walk(child, real, f"{below}{name}/", budget, depth + 1)
            finally:
                os.close(child)


def reachable(tree: Tree, member: Member, path: str, real: str) -> bool:
    """Return whether clients can reach a member. path, real: of the directory in which the walk began."""
    if not (member.is_directory or member.is_file):
        return False
    descriptor = os.open(member.name, LOOK | os.O_NOFOLLOW, dir_fd=member.directory)
    try:
        return tree.shows(f"{path}/{member.names}", f"{real}/{member.names}", member.name, descriptor)
    finally:
        os.close(descriptor)


def check_members(tree: Tree, place: Place, path: str, real: str) -> None:
    """Raise HTTPError if a directory has members that clients cannot reach, or could not at another place.

    path, real: the other place, or the same.
    """
    directory = place.open(DIRECTORY)
    try:
        for member in walk(directory, place.real):
            for where in {(place.path, place.real), (path, real)}:
                if not reachable(tree, member, *where):
                    what = "a hidden file, a link, a program, or another location's"
                    raise HTTPError(403, f"webdav: {where[1]}/{member.names} is out of reach: {what}")
    finally:
        os.close(directory)


def remove(tree: Tree, place: Place) -> None:
    """Delete what is at a place, with all its members. Raises HTTPError, OSError."""
    tree.check_place(place)
    if not place.is_directory:
        os.unlink(place.name, dir_fd=place.parent)
        return
    check_members(tree, place, place.path, place.real)
    empty(place.parent, place.name)


def empty(parent: int, name: str, depth: int = 0) -> None:
    """Delete a directory and its members, without following links. Raises OSError, HTTPError(507).

    A PUT that began before may still put a file into a directory that was just emptied: it is emptied again then.
    """
    if depth > MAX_DEPTH:
        raise HTTPError(507, f"webdav: {name!r} is too deep")
    directory = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        for rounds_left in reversed(range(ROUNDS)):
            for each in os.listdir(directory):
                try:
                    if stat.S_ISDIR(os.stat(each, dir_fd=directory, follow_symlinks=False).st_mode):
                        empty(directory, each, depth + 1)
                    else:
                        os.unlink(each, dir_fd=directory)
                except FileNotFoundError:
                    pass  # another client was faster
            try:
                os.rmdir(name, dir_fd=parent)
                break
            except OSError as reason:
                if reason.errno != errno.ENOTEMPTY or not rounds_left:
                    raise
    finally:
        os.close(directory)


def delete(request: Request, tree: Tree) -> Response:
    """Answer DELETE. Raises HTTPError, OSError."""
    with tree.place(request.path) as place, place.locked():
        if place.look() is None:
            raise HTTPError(404, f"webdav: there is no {place.real}")
        check_conditions(request, place)
        if tree.is_top(place):
            raise HTTPError(403, "webdav: DELETE of the whole location")
        if place.is_directory and request.values.get("depth", "infinity").lower() != "infinity":
            raise HTTPError(400, "webdav: DELETE of a directory has Depth: infinity (RFC 4918 section 9.6.1)")
        if request.path.endswith("/") and not place.is_directory:
            raise HTTPError(404, f"webdav: {place.real} is no directory")
        remove(tree, place)
    return Response(204)


def make_directory(request: Request, tree: Tree) -> Response:
    """Answer MKCOL. Raises HTTPError, OSError."""
    with tree.place(request.path, missing=409) as place, place.locked():
        if place.look() is not None:
            raise HTTPError(405, f"webdav: {place.real} is there already", (("Allow", "OPTIONS, PROPFIND"),))
        check_conditions(request, place)
        tree.check_place(place)
        os.mkdir(place.name, dir_fd=place.parent)
    return Response(201)


def transfer(
    request: Request, tree: Tree, target: str, *, moves: bool, overwrites: bool, deep: bool
) -> Response:
    """Answer COPY and MOVE. target: the path of Destination. deep: with members. Raises HTTPError, OSError."""
    source_path, target = request.path.rstrip("/"), target.rstrip("/")
    if (
        target == source_path
        or f"{source_path}/".startswith(target + "/")
        or target.startswith(source_path + "/")
    ):
        raise HTTPError(403, "webdav: source and destination are the same, or one holds the other")
    with tree.place(source_path) as source, tree.place(target, missing=409) as place:
        if source.about is None:
            raise HTTPError(404, f"webdav: there is no {source.real}")
        check_conditions(request, source)
        if request.path.endswith("/") and not source.is_directory:
            raise HTTPError(404, f"webdav: {source.real} is no directory")
        if tree.is_top(source) or tree.is_top(place):
            raise HTTPError(403, "webdav: source or destination is the whole location")
        tree.check_place(source)
        check_target(tree, source, place)
        if source.is_directory and moves:
            check_members(tree, source, place.path, place.real)
        temporary = "" if moves else copied(tree, source, place, deep=deep)
        aside = ""
        try:
            with place.locked():
                before = place.look()
                if before is not None:
                    if not overwrites:
                        raise HTTPError(412, f"webdav: {place.real} is there already (Overwrite: F)")
                    tree.check_place(place)
                    if source.is_directory or place.is_directory:
                        aside = set_aside(tree, place)
                try:
                    if moves:
                        os.rename(source.name, place.name, src_dir_fd=source.parent, dst_dir_fd=place.parent)
                    else:
                        os.rename(temporary, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
                        temporary = ""
                except OSError:
                    if aside:
                        back, aside = aside, ""
                        os.rename(back, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
                    raise
        finally:
            for name in filter(None, (temporary, aside)):
                discard(place.parent, name)
    return Response(204 if before is not None else 201)


def set_aside(tree: Tree, place: Place) -> str:
    """Give what a directory replaces, or what replaces one, a hidden name; return that name.

    rename(2) replaces no directory that has members. To delete it first would lose it if the rename then fails: the
    source is gone, or lies in another file system. Raises HTTPError, OSError.
    """
    if place.is_directory:
        check_members(tree, place, place.path, place.real)
    aside = hidden_name()
    os.rename(place.name, aside, src_dir_fd=place.parent, dst_dir_fd=place.parent)
    return aside


def check_target(tree: Tree, source: Place, place: Place) -> None:
    """Raise HTTPError(403) if what is at the source would be a program or another location's at another place."""
    tree.check_path(place.path, is_directory=source.is_directory)
    descriptor = source.open(LOOK)
    try:
        tree.check(place.real, descriptor)
    finally:
        os.close(descriptor)


def copied(tree: Tree, source: Place, place: Place, *, deep: bool) -> str:
    """Return the hidden name of a copy that is complete, in the directory of a place. Raises OSError, HTTPError."""
    temporary = hidden_name()
    if not source.is_directory:
        copy_file(source.parent, source.name, place.parent, temporary)
        return temporary
    os.mkdir(temporary, dir_fd=place.parent)
    try:
        if deep:
            copy_members(tree, source, place, temporary)
    except BaseException:
        discard(place.parent, temporary)
        raise
    return temporary


def copy_members(tree: Tree, source: Place, place: Place, temporary: str) -> None:
    """Copy those members of a directory that clients can reach, here and at the new place."""
    left_out = ""
    directory = source.open(DIRECTORY)
    copy = os.open(temporary, DIRECTORY, dir_fd=place.parent)
    try:
        for member in walk(directory, source.real):
            if left_out and member.names.startswith(left_out):
                continue
            if not all(reachable(tree, member, each.path, each.real) for each in (source, place)):
                left_out = member.names + "/" if member.is_directory else left_out
                continue
            if member.is_directory:
                os.mkdir(member.names, dir_fd=copy)
            else:
                copy_file(member.directory, member.name, copy, member.names)
    finally:
        os.close(copy)
        os.close(directory)


def copy_file(directory: int, name: str, target: int, target_name: str) -> None:
    """Copy a file, which gets its new name when it is complete. The copy may not be executed. Raises OSError."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        where, _, last = target_name.rpartition("/")
        parent = os.open(where or ".", DIRECTORY, dir_fd=target)
        try:
            copy = NewFile(parent)
            try:
                copy_bytes(source, copy.descriptor)
                os.rename(copy.link(), last, src_dir_fd=parent, dst_dir_fd=parent)
                copy.name = ""
            finally:
                copy.close()
        finally:
            os.close(parent)
    finally:
        os.close(source)


def copy_bytes(source: int, target: int) -> None:
    """Copy a file to an empty file, in the kernel where sendfile(2) writes to files. Raises OSError."""
    offset = 0
    try:
        while sent := os.sendfile(target, source, offset, CHUNK):
            offset += sent
    except OSError as reason:
        if offset or reason.errno not in NO_SENDFILE:
            raise
        while data := os.read(source, COPY):
            write(target, data)


def discard(parent: int, name: str) -> None:
    """Delete an unfinished copy, or what was set aside, as far as that is possible."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            empty(parent, name)
        else:
            os.unlink(name, dir_fd=parent)
    except (OSError, HTTPError):
        pass
