"""DELETE, MKCOL, COPY and MOVE (RFC 4918 sections 9.3 and 9.6 to 9.9). These functions may block.

A directory may be at most MAX_DEPTH directories deep, and have at most MAX_MEMBERS members. It may contain members
that clients cannot reach (tree.py). These are not deleted, copied or moved: a DELETE or a MOVE of such a directory
is refused before it changes anything, and a COPY leaves them out.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack

from ewe.features.webdav.tree import DIRECTORY_FLAGS, DavPath, Tree, names_in
from ewe.features.webdav.upload import NewFile, check_conditions, hidden_name
from ewe.gateway.spool import write
from ewe.gateway.true_names import NAME_ONLY_FLAGS
from ewe.http.messages import Request, Response
from ewe.http.status import HTTPError
from ewe.streams.descriptors import COPY_BYTES, NO_SENDFILE

MAX_DEPTH = 64  # directories one in the other; each holds a descriptor while they are walked
MAX_MEMBERS = 100_000  # of one request: a server must not copy or delete for hours
MAX_ATTEMPTS = 20  # attempts to empty a directory that other clients fill meanwhile
KERNEL_COPY_BYTES = 16 * 1024 * 1024  # bytes that one system call copies


class Budget:
    """Counts the members of a directory."""

    def __init__(self) -> None:
        self.members = 0

    def count(self, depth: int, real: str) -> None:
        """Count one member. Raises HTTPError(507) if there are too many members, or if this one is too deep."""
        self.members += 1
        if depth > MAX_DEPTH or self.members > MAX_MEMBERS:
            raise HTTPError(
                507,
                f"webdav: {real}: more than {MAX_MEMBERS} members, or more than {MAX_DEPTH} directories deep",
            )


class Member:
    """A member of the directory that dir_fd refers to. relative_path: below the directory where the walk began.

    file_status: the os.stat_result of the member itself; for a link, not that of its target.
    """

    def __init__(self, dir_fd: int, name: str, relative_path: str, file_status: os.stat_result) -> None:
        self.dir_fd = dir_fd
        self.name = name
        self.relative_path = relative_path
        self.file_status = file_status
        self.is_directory = stat.S_ISDIR(file_status.st_mode)
        self.is_file = stat.S_ISREG(file_status.st_mode)


def walk(
    dir_fd: int, real: str, below: str = "", budget: Budget | None = None, depth: int = 1
) -> Iterator[Member]:
    """Yield the members of an open directory, and of the directories in it, each directory before its members.

    dir_fd: its descriptor. real: its path, for messages. below, budget, depth: for the recursive calls only. A
    Member's descriptor is open until the next Member is requested. Raises OSError, HTTPError(507).
    """
    budget = budget or Budget()
    for name in names_in(dir_fd, real, 507):
        budget.count(depth, real)
        file_status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        member = Member(dir_fd, name, below + name, file_status)
        yield member
        if member.is_directory:
            child = os.open(name, DIRECTORY_FLAGS, dir_fd=dir_fd)
            try:
                yield from walk(child, real, f"{below}{name}/", budget, depth + 1)
            finally:
                os.close(child)


def reachable(tree: Tree, member: Member, path: str, real: str) -> bool:
    """Return whether clients can reach a member. path, real: the paths of the directory where the walk began."""
    if not (member.is_directory or member.is_file):
        return False
    descriptor = os.open(member.name, NAME_ONLY_FLAGS | os.O_NOFOLLOW, dir_fd=member.dir_fd)
    try:
        return tree.shows(
            f"{path}/{member.relative_path}", f"{real}/{member.relative_path}", member.name, descriptor
        )
    finally:
        os.close(descriptor)


def check_members(tree: Tree, resource: DavPath, path: str, real: str) -> None:
    """Raise HTTPError if clients cannot reach all members of a directory, here and at another path.

    path, real: the other path, in URLs and in the file system; it may be the same one.
    """
    dir_fd = resource.open(DIRECTORY_FLAGS)
    try:
        for member in walk(dir_fd, resource.real):
            for where in {(resource.path, resource.real), (path, real)}:
                if not reachable(tree, member, *where):
                    what = "a hidden file, a link, a program, or another location's"
                    raise HTTPError(403, f"webdav: {where[1]}/{member.relative_path} is out of reach: {what}")
    finally:
        os.close(dir_fd)


def remove(tree: Tree, resource: DavPath) -> None:
    """Delete the file or directory of a resource, with all its members. Raises HTTPError, OSError."""
    tree.check_resource(resource)
    if not resource.is_directory:
        os.unlink(resource.name, dir_fd=resource.parent_fd)
        return
    check_members(tree, resource, resource.path, resource.real)
    delete_tree(resource.parent_fd, resource.name)


def delete_tree(parent_fd: int, name: str, depth: int = 0) -> None:
    """Delete a directory and its members, without following links. Raises OSError, HTTPError(507).

    parent_fd: the open directory above. depth: of the recursion. A PUT that began before may add a file to a
    directory that has just been emptied. It is then emptied again.
    """
    if depth > MAX_DEPTH:
        raise HTTPError(507, f"webdav: {name!r} is too deep")
    dir_fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent_fd)
    try:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            for each in os.listdir(dir_fd):
                try:
                    if stat.S_ISDIR(os.stat(each, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                        delete_tree(dir_fd, each, depth + 1)
                    else:
                        os.unlink(each, dir_fd=dir_fd)
                except FileNotFoundError:
                    pass  # another client was faster
            try:
                os.rmdir(name, dir_fd=parent_fd)
                break
            except OSError as reason:
                if reason.errno != errno.ENOTEMPTY or attempt == MAX_ATTEMPTS:
                    raise
    finally:
        os.close(dir_fd)


def delete(request: Request, tree: Tree) -> Response:
    """Answer DELETE. Raises HTTPError, OSError."""
    with tree.resource(request.path) as resource, resource.locked():
        tree.check_parent(resource)
        if resource.restat() is None:
            raise HTTPError(404, f"webdav: there is no {resource.real}")
        check_conditions(request, resource)
        if tree.is_top(resource):
            raise HTTPError(403, "webdav: DELETE of the whole location")
        if resource.is_directory and request.values.get("depth", "infinity").lower() != "infinity":
            raise HTTPError(400, "webdav: DELETE of a directory has Depth: infinity (RFC 4918 section 9.6.1)")
        if request.path.endswith("/") and not resource.is_directory:
            raise HTTPError(404, f"webdav: {resource.real} is no directory")
        remove(tree, resource)
    return Response(204)


def make_directory(request: Request, tree: Tree) -> Response:
    """Answer MKCOL. Raises HTTPError, OSError."""
    with (
        tree.resource(request.path, missing=409) as resource,
        resource.locked(),
        tree.adding(resource.real),
    ):
        tree.check_parent(resource)
        if resource.restat() is not None:
            raise HTTPError(
                405, f"webdav: {resource.real} is there already", (("Allow", "OPTIONS, PROPFIND"),)
            )
        check_conditions(request, resource)
        tree.check_path(resource.path, is_directory=True)
        tree.check_resource(resource)
        os.mkdir(resource.name, dir_fd=resource.parent_fd)
    return Response(201)


def transfer(
    request: Request, tree: Tree, target: str, *, moves: bool, overwrites: bool, deep: bool
) -> Response:
    """Answer COPY and MOVE. target: the path of Destination. deep: include members. Raises HTTPError, OSError."""
    source_path, target = request.path.rstrip("/"), target.rstrip("/")
    if (
        target == source_path
        or f"{source_path}/".startswith(target + "/")
        or target.startswith(source_path + "/")
    ):
        raise HTTPError(403, "webdav: source and destination are the same, or one holds the other")
    with tree.resource(source_path) as source, tree.resource(target, missing=409) as destination:
        if source.file_status is None:
            raise HTTPError(404, f"webdav: there is no {source.real}")
        check_conditions(request, source)
        if request.path.endswith("/") and not source.is_directory:
            raise HTTPError(404, f"webdav: {source.real} is no directory")
        if tree.is_top(source) or tree.is_top(destination):
            raise HTTPError(403, "webdav: source or destination is the whole location")
        tree.check_resource(source)
        check_target(tree, source, destination)
        if moves:
            refuse_early(tree, source, destination, overwrites)
            replaced = publish(request, tree, source, source.parent_fd, source.name, destination, overwrites)
        else:
            temporary = copy_beside(request, tree, source, destination, deep=deep)
            try:
                replaced = publish(
                    request, tree, source, destination.parent_fd, temporary, destination, overwrites
                )
            except BaseException:
                discard(destination.parent_fd, temporary)
                raise
    return Response(204 if replaced else 201)


def refuse_early(tree: Tree, source: DavPath, destination: DavPath, overwrites: bool) -> None:
    """Raise HTTPError for a MOVE that publish() would refuse after a check of many members.

    publish() checks the members while other requests wait for it. A client must not make them wait in vain, again
    and again. Raises OSError.
    """
    replaces = destination.file_status is not None
    if replaces and not overwrites:
        raise HTTPError(412, f"webdav: {destination.real} is there already (Overwrite: F)")
    if source.is_directory:
        check_members(tree, source, destination.path, destination.real)
        if destination.is_directory:
            check_members(tree, destination, destination.path, destination.real)


def locked_together(*resources: DavPath) -> ExitStack:
    """Lock the directories of resources, each once, and always in the same order. Raises HTTPError(503)."""
    statuses = [(os.fstat(each.parent_fd), each) for each in resources]
    by_inode = {(status.st_dev, status.st_ino): each for status, each in statuses}
    with ExitStack() as locks:
        for inode in sorted(by_inode):
            locks.enter_context(by_inode[inode].locked())
        return locks.pop_all()


def publish(
    request: Request,
    tree: Tree,
    source: DavPath,
    dir_fd: int,
    name: str,
    destination: DavPath,
    overwrites: bool,
) -> bool:
    """Give a source, or its copy, the name of the destination; return whether it has replaced the target there.

    dir_fd: the descriptor of the directory where the source or its copy is. name: its name there. overwrites: it
    may replace a target. After a failure the target is as before. Raises HTTPError: 412 if it may not; OSError.
    """
    aside, parent_fd = "", destination.parent_fd
    moves = dir_fd == source.parent_fd  # the source itself, and not its copy
    moves_directory = moves and source.is_directory
    try:
        with (
            locked_together(destination, *((source,) if moves else ())),
            tree.adding(destination.real, moves_directory=moves_directory),
        ):
            tree.check_parent(destination)
            replaced = destination.restat() is not None
            if replaced and not overwrites:
                raise HTTPError(412, f"webdav: {destination.real} is there already (Overwrite: F)")
            if moves:  # another request may have replaced the source, or moved its directory
                tree.check_parent(source)
                if source.restat() is None:
                    raise HTTPError(404, f"webdav: {source.real} was moved or deleted meanwhile")
                if source.is_directory and not moves_directory:  # the lock is not exclusive
                    raise HTTPError(409, f"webdav: {source.real} was replaced meanwhile")
                check_conditions(request, source)
                tree.check_resource(source)
                check_target(tree, source, destination)
                if source.is_directory:
                    check_members(tree, source, destination.path, destination.real)
            if replaced:
                tree.check_resource(destination)
                same = moves and is_same_file(source, destination)
                if same and are_two_links(source, destination):
                    os.unlink(name, dir_fd=dir_fd)  # rename(2) keeps both names if they lead to one file
                    return True
                if not same and (source.is_directory or destination.is_directory):
                    aside = set_aside(tree, destination)
            try:
                os.rename(name, destination.name, src_dir_fd=dir_fd, dst_dir_fd=parent_fd)
            except OSError:
                if aside:
                    back, aside = aside, ""
                    os.rename(back, destination.name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
                raise
    finally:
        if aside:
            discard(parent_fd, aside)
    return replaced


def is_same_file(source: DavPath, destination: DavPath) -> bool:
    """Return whether two paths lead to one file or directory: see are_two_links()."""
    a, b = source.file_status, destination.file_status
    return a is not None and b is not None and os.path.samestat(a, b)


def are_two_links(source: DavPath, destination: DavPath) -> bool:
    """Return whether two paths of one file are two hard links. The file then survives if ewe deletes one of them.

    Two paths may also be one directory entry, and to delete it would delete the file: in a file system that ignores
    case (readme.txt, README.txt) or the form of Unicode, or through a bind mount. rename(2) then changes the
    spelling, or does nothing. Raises OSError.
    """
    if source.is_directory or source.file_status is None or source.file_status.st_nlink < 2:
        return False
    parents_are_same = os.path.samestat(os.fstat(source.parent_fd), os.fstat(destination.parent_fd))
    if parents_are_same and source.name == destination.name:
        return False
    return all(each.name in os.listdir(each.parent_fd) for each in (source, destination))


def set_aside(tree: Tree, destination: DavPath) -> str:
    """Rename the target of a COPY or MOVE to a hidden name; return that name.

    The caller does this if the target or the source is a directory, because rename(2) cannot replace a directory
    that has members. If ewe deleted the target first and the rename then failed, the target would be lost. The
    rename fails if the source is gone, or is in another file system. Raises HTTPError, OSError.
    """
    if destination.is_directory:
        check_members(tree, destination, destination.path, destination.real)
    aside = hidden_name()
    os.rename(destination.name, aside, src_dir_fd=destination.parent_fd, dst_dir_fd=destination.parent_fd)
    return aside


def check_target(tree: Tree, source: DavPath, destination: DavPath) -> None:
    """Raise HTTPError(403) if the source, at its destination, would be a program or belong to another location."""
    tree.check_path(destination.path, is_directory=source.is_directory)  # another location?
    descriptor = source.open(NAME_ONLY_FLAGS)
    try:
        tree.refuse_program(destination.real, descriptor)
    finally:
        os.close(descriptor)


def copy_beside(request: Request, tree: Tree, source: DavPath, destination: DavPath, *, deep: bool) -> str:
    """Copy the source to a hidden name beside the destination; return the name. Raises OSError, HTTPError.

    deep: copy the members of a directory too (Depth: infinity), not only the directory itself (Depth: 0).
    """
    temporary = hidden_name()
    descriptor = open_source(request, tree, source)
    try:
        if not source.is_directory:
            copy_file(descriptor, destination.parent_fd, temporary)
            return temporary
        os.mkdir(temporary, dir_fd=destination.parent_fd)
        try:
            if deep:
                copy_members(tree, source, descriptor, destination, temporary)
        except BaseException:
            discard(destination.parent_fd, temporary)
            raise
    finally:
        os.close(descriptor)
    return temporary


def open_source(request: Request, tree: Tree, source: DavPath) -> int:
    """Open the source of a COPY, and return its descriptor. Raises OSError, HTTPError.

    The open file is checked, too: another request may have replaced it after the checks of transfer(). The client
    would then get a copy of another version than the one that its If-Match names.
    """
    before = source.file_status
    descriptor = source.open()
    try:
        now = source.file_status = os.fstat(descriptor)
        if before is None or stat.S_IFMT(before.st_mode) != stat.S_IFMT(now.st_mode):
            raise HTTPError(409, f"webdav: {source.real} was replaced meanwhile")
        check_conditions(request, source)
        tree.refuse_program(source.real, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def copy_members(tree: Tree, source: DavPath, dir_fd: int, destination: DavPath, temporary: str) -> None:
    """Copy the members of a directory that clients can reach, both at the source and at the destination.

    dir_fd: the open source. temporary: the name of the copy, in the directory of the destination.
    """
    left_out = ""
    copy_fd = os.open(temporary, DIRECTORY_FLAGS, dir_fd=destination.parent_fd)
    try:
        for member in walk(dir_fd, source.real):
            if left_out and member.relative_path.startswith(left_out):
                continue
            if not all(reachable(tree, member, each.path, each.real) for each in (source, destination)):
                left_out = member.relative_path + "/" if member.is_directory else left_out
                continue
            if member.is_directory:
                os.mkdir(member.relative_path, dir_fd=copy_fd)
            else:
                copy_member(member, copy_fd)
    finally:
        os.close(copy_fd)


def copy_member(member: Member, target_fd: int) -> None:
    """Copy a file of a directory to the same relative path below another one, target_fd. Raises OSError.

    Raises HTTPError(409) if there is another file now, which reachable() has not checked, or a FIFO.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(member.name, flags, dir_fd=member.dir_fd)
    try:
        now = os.fstat(descriptor)
        if not (stat.S_ISREG(now.st_mode) and os.path.samestat(now, member.file_status)):
            raise HTTPError(409, f"webdav: {member.relative_path} was replaced meanwhile")
        copy_file(descriptor, target_fd, member.relative_path)
    finally:
        os.close(descriptor)


def copy_file(source: int, target_fd: int, target_path: str) -> None:
    """Copy an open file. The copy gets its name when it is complete, and has no execute bit. Raises OSError.

    target_path: the copy's path, below the directory target_fd.
    """
    with ExitStack() as descriptors:
        directory, _, target_name = target_path.rpartition("/")
        parent_fd = os.open(directory or ".", DIRECTORY_FLAGS, dir_fd=target_fd)
        descriptors.callback(os.close, parent_fd)
        copy = NewFile(parent_fd)
        descriptors.callback(copy.close)
        copy_bytes(source, copy.descriptor)
        copy.rename_to(target_name, parent_fd)


def copy_bytes(source: int, target: int) -> None:
    """Copy a file to an empty one, both open; by sendfile(2) if it can write to files here. Raises OSError."""
    offset = 0
    try:
        while sent := os.sendfile(target, source, offset, KERNEL_COPY_BYTES):
            offset += sent
    except OSError as reason:
        if offset or reason.errno not in NO_SENDFILE:
            raise
        while data := os.read(source, COPY_BYTES):
            write(target, data)


def discard(parent_fd: int, name: str) -> None:
    """Delete an unfinished copy, or a target that was set aside, as far as that is possible."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
            delete_tree(parent_fd, name)
        else:
            os.unlink(name, dir_fd=parent_fd)
    except (OSError, HTTPError):
        pass
