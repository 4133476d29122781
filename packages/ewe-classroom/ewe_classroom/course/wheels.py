"""The wheels of a pack: ewe itself, and the libraries that it needs, so that a platform installs them offline.

    --wheel FILE ... ─────────────────────────┐
    a clone of ewe ── pip wheel ──────────────┼─▶ {"ewe_server-0.1.0-py3-none-any.whl": bytes, ...}
    the index ── pip download ── per Python ──┘

No version of ewe is on an index yet. A pack that named one could not be installed, and platforms such as
PrairieLearn grade without a network. A pack therefore contains every wheel. A compiled library has one wheel for
each version of Python and each processor; the pack has those of PYTHONS and PROCESSORS, about 100 KB together.

The versions of the libraries are those that are installed beside ewe-course, so a pack of next month is the same.

The solutions of the labs are left out (without_sources): students can read the packs of some platforms, and a
graded program can read the installed package.

Possible failures: no clone and no index, no pip, no network. The message is one line, and --wheel always helps.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import ewe
from ewe import __version__
from ewe.config.messages import ConfigError, one_line
from ewe_classroom.course.archives import zip_of

# The distributions of this project that a pack needs, and their directories in a clone.
OWN_PROJECTS = {
    "ewe-server": ".",
    "ewe-explore": "packages/ewe-explore",
    "ewe-classroom": "packages/ewe-classroom",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
SYSTEMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")  # Linux with glibc 2.28 (2018) or newer
WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl"
)
REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")
PIP_TIMEOUT_S = 300.0
MAX_SHOWN_CHARS = 300  # of pip's output, in a message
# The files of the labs that contain solutions: all but the texts (.md) and the tables (.toml), and but
# test_queue.py, which the check queue-races reads.
SOURCES = re.compile(r"ewe_classroom/labs/(?!shared/test_queue\.py)[^/]+/[^/]+(?<!\.toml)(?<!\.md)")
HELP = "name the files with --wheel, or run ewe-course in a clone of ewe with a network"

Wheels = dict[str, bytes]  # name of the file -> content


def collect(given: Sequence[Path] = ()) -> Wheels:
    """Return all wheels of a pack; those in `given` take the place of others. Raises ConfigError."""
    wheels = dict(read(path) for path in given)
    given_projects = {project_of(name) for name in wheels}
    own = [name for name in OWN_PROJECTS if name not in given_projects]
    libraries = [each for each in requirements() if each.partition("==")[0] not in given_projects]
    with tempfile.TemporaryDirectory(prefix="ewe-course-") as directory:
        if own:
            write_own_wheels(own, directory)
        if libraries:
            download(libraries, directory)
        for path in sorted(Path(directory).glob("*.whl")):
            wheels[path.name] = path.read_bytes()
    return {name: without_sources(name, content) for name, content in sorted(wheels.items())}


def project_of(file: str) -> str:
    """Return the name of a wheel's project, as an index writes it: ewe_server-0.1.0-… is ewe-server."""
    return project_name(file.partition("-")[0])


def project_name(text: str) -> str:
    """Return the name of a project as an index writes it: ruamel.yaml and ruamel_yaml are ruamel-yaml (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def read(path: Path) -> tuple[str, bytes]:
    """Return the name and the content of a wheel. Raises ConfigError."""
    match = WHEEL.fullmatch(path.name)
    if match is None:
        raise ConfigError(
            f"--wheel {path}: not the name of a wheel, as pip writes them (NAME-VERSION-...whl)"
        )
    if project_of(path.name) in OWN_PROJECTS and match["version"] != __version__:
        raise ConfigError(
            f"--wheel {path}: version {match['version']}; this ewe-course writes packs of {__version__}"
        )
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise ConfigError(f"--wheel {path}: {reason.strerror}; name a file") from None
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise ConfigError(f"--wheel {path}: not a zip file, so it is no whole wheel; write it again")
    return path.name, content


def requirements() -> list[str]:
    """Return the libraries that ewe-classroom needs, with the installed versions: `jinja2==3.1.6`.

    A library may need more libraries, which are in the list, too. Raises ConfigError if one of them, or
    ewe-classroom, is not installed.
    """
    versions: dict[str, str] = {}
    waiting = ["ewe-classroom"]  # the distributions whose own requirements have not been read yet
    while waiting:
        name = waiting.pop()
        for line in requirements_of(name):
            match = REQUIREMENT.match(line)
            needed = project_name(match[0]) if match else ""
            # A requirement with "extra ==" is optional: no pack needs it.
            if "extra ==" in line or not needed or needed in versions or needed in OWN_PROJECTS:
                continue
            try:
                versions[needed] = metadata.version(needed)
                waiting.append(needed)
            except metadata.PackageNotFoundError:
                if is_needed(line):
                    raise ConfigError(
                        f"the wheels of the pack: {name} needs {needed}, which is not installed here; "
                        f"pip install {needed}"
                    ) from None
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def is_needed(requirement: str) -> bool:
    """Return whether one of PYTHONS needs a requirement; without the library `packaging`: whether it has no marker.

    A requirement of another Python has a marker, as in markdown 3.6:
    importlib-metadata>=4.4; python_version < "3.10".
    """
    marker = requirement.partition(";")[2]
    if not marker:
        return True
    try:
        from packaging.markers import InvalidMarker, Marker
    except ImportError:
        return False
    try:
        return any(
            Marker(marker).evaluate(
                {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
            )
            for python in PYTHONS
        )
    except InvalidMarker:
        return False


def requirements_of(name: str) -> list[str]:
    """Return the requirements of an installed distribution. Raises ConfigError if it is not installed."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"the wheels of the pack: {name} is not installed here, so the libraries that it needs are unknown; "
            "install it with pip"
        ) from None


def clone() -> Path | None:
    """Return the clone of ewe from which this program runs; None if it is installed."""
    root = Path(ewe.__file__).resolve().parents[1]
    there = all((root / each / "pyproject.toml").is_file() for each in OWN_PROJECTS.values())
    return root if there else None


def write_own_wheels(names: Iterable[str], directory: str) -> None:
    """Write the wheels of own projects to a directory: build them from the clone, or else download them.

    Raises ConfigError.
    """
    root = clone()
    if root is None:
        pip(["download", "--no-deps", "--dest", directory, *(f"{name}=={__version__}" for name in names)])
        return
    # Without isolation pip needs no network, if the builder of these packages is installed.
    isolation = ["--no-build-isolation"] if find_spec("hatchling") else []
    pip(
        [
            "wheel",
            "--no-deps",
            *isolation,
            "--wheel-dir",
            directory,
            *(str(root / OWN_PROJECTS[name]) for name in names),
        ]
    )


def download(libraries: Sequence[str], directory: str) -> None:
    """Download the wheels of libraries to a directory, for each version of Python and each processor.

    Raises ConfigError.
    """
    commands = []
    for python in PYTHONS:
        for processor in PROCESSORS:
            systems = [word for system in SYSTEMS for word in ("--platform", f"{system}_{processor}")]
            version = ["--python-version", python, "--only-binary", ":all:"]
            commands.append(["download", "--no-deps", "--dest", directory, *version, *systems, *libraries])
    pip(*commands)


def pip(*commands: Sequence[str]) -> None:
    """Run a pip for each command, all at the same time. Raises ConfigError with the last line that a pip wrote."""
    quiet = ["--disable-pip-version-check", "--quiet"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "pip", *words, *quiet],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for words in commands
    ]  # fmt: skip
    try:
        for process in running:
            output, _ = process.communicate(timeout=PIP_TIMEOUT_S)
            if process.returncode:
                raise ConfigError(f"the wheels of the pack: {last_line(output)}; {HELP}")
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"the wheels of the pack: pip did not end within {PIP_TIMEOUT_S:.0f} s; {HELP}"
        ) from None
    finally:  # after an error, the other pips are still at work
        for process in running:
            process.kill()
            process.communicate()


def last_line(output: bytes) -> str:
    """Return the last line that pip wrote, for a message; "pip failed" if it wrote none."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return one_line(lines[-1].removeprefix("ERROR: "))[:MAX_SHOWN_CHARS] if lines else "pip failed"


def without_sources(name: str, wheel: bytes) -> bytes:
    """Return a wheel without the sources of the labs, which contain the solutions. Raises ConfigError.

    The list of files in the wheel (RECORD) must not name what is not there, or pip would refuse the wheel.
    """
    if project_of(name) != "ewe-classroom":
        return wheel
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            files = {each: archive.read(each) for each in archive.namelist() if not SOURCES.fullmatch(each)}
        # The list is CSV, and the name of the file is the first value of a line.
        (record,) = (each for each in files if each.endswith(".dist-info/RECORD"))
    except (ValueError, zipfile.BadZipFile, zlib.error):  # ValueError: there is no list, or more than one
        raise ConfigError(f"{name}: damaged, so it is no whole wheel; write it again") from None
    lines = files[record].decode().splitlines(keepends=True)
    files[record] = "".join(line for line in lines if not SOURCES.fullmatch(line.partition(",")[0])).encode()
    return zip_of(files)
