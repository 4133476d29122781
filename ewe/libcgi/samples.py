"""Builds the libraries of a directory from their sources: python -m ewe.libcgi.samples [DIRECTORY]

NAME.c, NAME.cpp and NAME.rs become NAME.so beside them, if the source is newer. If a compiler is not installed, the
sources of its language are skipped, with one line of output. Exit status: 0 nothing failed, 1 otherwise.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ewe.config.command import RaisingParser, entry_point
from ewe.libcgi.build import DIRECTORY, BuildError, compiler_command, run

DATABASE = DIRECTORY.parent / "database"  # of ewe_db.h
C_LIKE = ("-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{DIRECTORY}", f"-I{DATABASE}")
# extension: the variable that names another compiler, the default one, its options
COMPILERS = {
    ".c": ("CC", "cc", ("-std=gnu11", *C_LIKE)),
    ".cpp": ("CXX", "c++", ("-std=c++17", *C_LIKE)),
    ".rs": ("RUSTC", "rustc", ("-O", "--edition=2018", "--crate-type=cdylib")),
}


@entry_point("python -m ewe.libcgi.samples")
def main(arguments: list[str]) -> int:
    """Build all libraries of a directory; return the exit status."""
    parser = RaisingParser(
        prog="python -m ewe.libcgi.samples", description="Build the libraries of a directory."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=Path("libcgi-bin"))
    directory: Path = parser.parse_args(arguments).directory
    has_failed = False
    missing_compilers: set[str] = set()  # those that were reported
    for source in sorted(directory.iterdir()) if directory.is_dir() else ():
        if source.suffix not in COMPILERS or is_built(source):
            continue
        variable, default_compiler, _ = COMPILERS[source.suffix]
        try:
            compiler = compiler_command(variable, default_compiler)
            if is_working(compiler):
                build(source, compiler)
            elif compiler[0] not in missing_compilers:
                print(f"{directory}/*{source.suffix}: left out, {compiler[0]} is not installed")
                missing_compilers.add(compiler[0])
        except (BuildError, OSError) as error:
            has_failed = True
            print(f"{source}: {error}", file=sys.stderr)
    return int(has_failed)


def is_working(compiler: list[str]) -> bool:
    """Return whether a compiler works. A program of this name may only be a stub, as those of rustup are.

    compiler: the program, and its options. Raises OSError.
    """
    if shutil.which(compiler[0]) is None:
        return False
    command = [*compiler, "--version"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def is_built(source: Path) -> bool:
    """Return whether the library is newer than its source and than the headers."""
    try:
        built_at = source.with_suffix(".so").stat().st_mtime
    except FileNotFoundError:
        return False
    headers_changed_at = max(
        path.stat().st_mtime for path in (DIRECTORY / "ewe_libcgi.h", DATABASE / "ewe_db.h")
    )
    # Rust reads no headers
    return built_at > max(source.stat().st_mtime, headers_changed_at if source.suffix != ".rs" else 0)


def build(source: Path, compiler: list[str]) -> None:
    """Build one library, which appears only when it is complete. Raises BuildError, OSError."""
    _, _, options = COMPILERS[source.suffix]
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".build-") as directory:
        new_file = Path(directory) / source.with_suffix(".so").name
        run([*compiler, *options, "-o", str(new_file), str(source)])
        new_file.chmod(0o755)
        new_file.replace(source.with_suffix(".so"))


if __name__ == "__main__":
    sys.exit(main())
