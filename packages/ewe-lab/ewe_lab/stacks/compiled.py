"""The lab's programs in C (ewe_lab/stacks/sources), built when an experiment needs one. Raises LabError."""

from __future__ import annotations

import subprocess
from pathlib import Path

import ewe
from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, find_tool, last_line

SOURCES = Path(__file__).with_name("sources")
LIBCGI_HEADER = Path(ewe.__file__).with_name("libcgi")  # its directory
COMPILERS = ("gcc", "cc", "clang")
COMPILE_TIMEOUT_S = 60.0  # seconds that a compiler may take on a busy machine


def compiler() -> str:
    """Return the path of a C compiler, "" if there is none."""
    return next((found for name in COMPILERS if (found := find_tool(name))), "")


def why_missing() -> str:
    """Return the reason if nothing can be built here, else ""."""
    return "" if compiler() else "no C compiler: apt install gcc libc6-dev"


def build_source(lab: Bench, name: str) -> Path:
    """Return the program built of sources/NAME.c, which all accounts may run."""
    directory = lab.directory / "compiled"
    directory.mkdir(exist_ok=True)
    program = directory / name
    if not program.exists():
        build(SOURCES / f"{name}.c", program)
    return program


def build(source: Path, program: Path, *options: str) -> None:
    """Build a program that all accounts may run from a C file. options: more options of the compiler."""
    if lacking := why_missing():
        raise LabError(lacking)
    command = [compiler(), "-O2", "-o", str(program), *options, str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LabError(f"the C compiler took longer than {COMPILE_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise LabError(f"the C compiler failed: {last_line(done.stderr)}")
    program.chmod(0o755)


def build_library(source: Path, program: Path) -> None:
    """Build a LibCGI library from a C file."""
    build(source, program, "-shared", "-fPIC", "-I", str(LIBCGI_HEADER))
