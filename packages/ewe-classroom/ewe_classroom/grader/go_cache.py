"""The cache of Go for the builds of submissions: Go's library is built once, before any time limit begins.

    warm_up() ─ go list -export [-race] ─▶ the shared cache ─ hard links ─▶ a copy for one build
                of the labs' conversation.go

The first build of a Go program also builds the packages of Go's library that the program uses: for 15 s, and for a
minute or more on a busy machine. Go keeps the results in a cache. A build as the grader's own
account uses the usual cache of that account. A build as another account must not write to a cache that later builds
use: it gets a copy, of which only the directories are its own.

Go finds an earlier result only if the variables of the build are the same. Therefore both builds have no variables
of the grader's account but PATH and LANG.

Possible failures: there is no Go, or no C compiler for the race detector. The build of the submission then says so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from ewe_classroom.grader.sandbox import SubjectAccount

SHARED = Path(__file__).resolve().parents[1] / "labs" / "shared"
WARM_UP_TIMEOUT_S = 600.0  # of each of the two builds of Go's library
MAIN = "package main\n\nfunc main() { Run(nil) }\n"
NO_DOWNLOADS = {"GOTOOLCHAIN": "local", "GOPROXY": "off"}
OPTIONS: tuple[tuple[str, ...], ...] = ((), ("-race",))


def variables(account: SubjectAccount | None, temporary: Path) -> dict[str, str]:
    """Return the variables of a build that uses Go. The cache has Go's library, if that can be built.

    account: of the build; None: the grader's own one. temporary: the directory for a copy of the cache.
    """
    warm_up(own_account=account is None)
    cache = usual_cache()
    if account is not None:
        cache = temporary / "go-build"
        # Without a copy, the build makes a cache.
        with suppress(OSError):
            shutil.copytree(shared_cache(), cache, copy_function=link_or_copy, dirs_exist_ok=True)
            for directory in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
                os.chown(directory, account.uid, account.gid)
    return {"GOCACHE": str(cache), **NO_DOWNLOADS}


def usual_cache() -> Path:
    """Return the cache of Go of the grader's own account."""
    return Path(os.environ.get("GOCACHE") or caches() / "go-build")


def shared_cache() -> Path:
    """Return the cache from which builds as other accounts get their copies."""
    return caches() / "ewe-classroom" / "go"


def caches() -> Path:
    """Return the directory for caches of the grader's own account."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def warm_up(*, own_account: bool) -> None:
    """Build Go's library, unless that is done. Do nothing where it cannot be built.

    own_account: for builds as the grader's own account, else as other accounts.

    Other graders wait meanwhile, because two such builds would only take the processors from each other.
    """
    with suppress(OSError, subprocess.SubprocessError):
        shared_cache().parent.mkdir(parents=True, exist_ok=True)
        with (shared_cache().parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if own_account:
                fill(usual_cache())
            elif not shared_cache().is_dir():
                fill_shared_cache()


def fill_shared_cache() -> None:
    """Fill the shared cache. It gets its name only when it is complete. Raises OSError, SubprocessError."""
    with tempfile.TemporaryDirectory(dir=shared_cache().parent) as scratch:
        fill(Path(scratch) / "go")
        (Path(scratch) / "go").rename(shared_cache())


def fill(cache: Path) -> None:
    """Build Go's library into a cache, without and with the race detector. Raises OSError, SubprocessError.

    `go list -export` builds each package and links no program: with a full cache it takes half a second.
    """
    with tempfile.TemporaryDirectory() as scratch:
        # Go ignores a go.mod directly in TMPDIR.
        program = Path(scratch) / "program"
        program.mkdir()
        for name in ("conversation.go", "go.mod"):
            shutil.copyfile(SHARED / name, program / name)
        (program / "main.go").write_text(MAIN)
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment |= {"HOME": scratch, "TMPDIR": scratch, "GOCACHE": str(cache), **NO_DOWNLOADS}
        for options in OPTIONS:
            subprocess.run(
                ["go", "list", *options, "-export", "-deps", "-f", "", "."],
                cwd=program, env=environment, check=True, capture_output=True, timeout=WARM_UP_TIMEOUT_S,
            )  # fmt: skip


def link_or_copy(source: str, target: str) -> None:
    """Make a hard link, which takes no time; a copy where the target is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
