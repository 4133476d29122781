"""LibCGI libraries for tests: C files in support/libcgi_sources, compiled once in a run of pytest."""

from __future__ import annotations

import shutil
from pathlib import Path

from ewe.libcgi import build
from support import needs

SOURCES = Path(__file__).with_name("libcgi_sources")
HEADER = f"-I{build.DIRECTORY}"


def compile_libraries(directory: Path) -> Path:
    """Compile the libraries into a directory that every account may write: they note there what they do."""
    needs.require("gcc")
    build.build()
    directory.chmod(0o777)
    macros = {
        "contract": (f'-DNOTES="{directory}/notes"', '-DVERSION="one"'),
        "second": (f'-DNOTES="{directory}/notes"', '-DVERSION="two"'),
        "faulty": (f'-DDIRECTORY="{directory}"',),
        "plain": (),
        "zoo": ("-fno-stack-protector",),
    }
    for name, options in macros.items():
        source = SOURCES / f"{'contract' if name == 'second' else name}.c"
        build.compile_c(
            directory / f"{name}.so", (source,), ("-shared", HEADER, "-Wno-infinite-recursion", *options)
        )
    return directory


def install(built: Path, name: str, place: Path) -> None:
    """Put a library into a directory: whole, as `mv` does."""
    new = place.with_name(place.name + ".new")
    shutil.copy(built / f"{name}.so", new)
    new.chmod(0o644)
    new.rename(place)
