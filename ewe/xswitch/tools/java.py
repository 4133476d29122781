"""Builds the Java engine with Maven, beside its source, and an archive of its classes for a faster start.

Maven downloads Jetty, in the versions that pom.xml pins. A first run of the engine writes the archive (Java calls
it AppCDS). In this run the engine answers a few requests to the sample application: every engine needs the classes
that are loaded by then.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from ewe.config.messages import Failure
from ewe.gateway import records
from ewe.xswitch.engine_kinds import BUILT_IN, ENGINES, JAVA_DIRECTORY, WORK_PLACEHOLDER
from ewe.xswitch.tools.client import FastCGIClient
from ewe.xswitch.webapp import WebApplication

SOURCE = Path(ENGINES) / "java"
# For a JVM that runs for seconds: its optimizing compiler and a collector with threads cost more than they save
SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
JAVAC = ("javac", *(f"-J{option}" for option in SHORT_RUN))
MAVEN_TIMEOUT_S = 600.0  # seconds that Maven may take
ANSWER_TIMEOUT_S = 60.0  # seconds that the engine may take to answer, and to end
PAGES = ("index.html", "page.jsp", "hello", "none")  # of the sample, requested in the first run
# The option of Java that names an archive: in the first run Java writes it
ARCHIVE_OPTION = "-XX:SharedArchiveFile="


class BuildError(Failure):
    """The engine cannot be built. The text is one line."""


def build() -> str:
    """Build the engine; return its directory. Raises BuildError."""
    for program, package in (("mvn", "Maven"), ("java", "a JDK"), ("javac", "a JDK")):
        if shutil.which(program) is None:
            raise BuildError(
                f"{program} is not installed: the Java engine is built with Maven and a JDK ({package})"
            )
    if not os.access(SOURCE, os.W_OK):
        raise BuildError(f"cannot write {SOURCE}: run this command as the owner of the directory")
    os.umask(0o022)  # every user of an engine must be able to read it
    with open(SOURCE / "pom.xml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time
        shutil.rmtree(SOURCE / "target", ignore_errors=True)
        run(["mvn", "--quiet", "--batch-mode", "package"], SOURCE)
        archive_classes(Path(JAVA_DIRECTORY))
    return JAVA_DIRECTORY


def run(command: list[str], directory: Path, timeout_s: float = MAVEN_TIMEOUT_S) -> None:
    """Run a program. Raises BuildError with the first line of its output if it fails."""
    try:
        completed = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"MAVEN_OPTS": " ".join(SHORT_RUN), **os.environ},
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} has not ended within {timeout_s:g} s") from None
    if completed.returncode:
        lines = [line for line in (completed.stdout + completed.stderr).splitlines() if line.strip()]
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else 'it says nothing'}")


def archive_classes(engine: Path) -> None:
    """Run the engine with the sample application, and archive the classes that it loads. Raises BuildError.

    engine: the directory of the engine that was built.
    """
    with tempfile.TemporaryDirectory(prefix="xswitch-java-") as name:
        directory = Path(name)
        sample = directory / "sample"
        shutil.copytree(SOURCE / "sample", sample)
        library = next((engine / "lib").glob("jakarta.servlet-api-*.jar"))
        source = sample / "WEB-INF/src/Hello.java"
        run([*JAVAC, "-cp", str(library), "-d", str(sample / "WEB-INF/classes"), str(source)], directory)
        command = [word.replace(WORK_PLACEHOLDER, name) for word in archiving_command()]
        path = directory / "socket"
        with socket.socket(socket.AF_UNIX) as listener, open(directory / "log", "w+") as log:
            listener.bind(str(path))
            listener.listen()
            process = subprocess.Popen(command, stdin=listener.fileno(), stdout=log, stderr=log, cwd=name)
            try:
                for page in PAGES:
                    ask(str(path), WebApplication(str(sample), "/sample", f"/{page}".encode()))
                process.terminate()
                process.wait(ANSWER_TIMEOUT_S)
            except (OSError, ValueError, subprocess.TimeoutExpired, records.FastCGIError) as reason:
                log.seek(0)
                log_line = log.readline().strip()
                raise BuildError(f"the engine does not answer: {reason} {log_line}") from None
            finally:
                process.kill()
                process.wait()


def archiving_command() -> list[str]:
    """Return the command of the Java engine, but Java writes the archive of its classes at its end."""
    return [
        word.replace(ARCHIVE_OPTION, "-XX:ArchiveClassesAtExit=")
        for word in BUILT_IN["java"].command
        if word != "-Xshare:auto"
    ]


def ask(path: str, application: WebApplication) -> bytes:
    """Return the engine's answer to a GET. Raises OSError, FastCGIError; ValueError if it is no CGI response.

    path: of the engine's socket. application: the page that is asked for.
    """
    with FastCGIClient(f"unix:{path}", ANSWER_TIMEOUT_S) as client:
        answer = client.ask(application.variables({b"REQUEST_METHOD": b"GET"}))
    if not answer.startswith(b"Status: "):
        raise ValueError(f"{answer[:80]!r}")
    return answer
