"""The kinds of engines: one for each language, built in or from a settings file.

The built-in kinds are Python, Perl, PHP, Java, `libcgi` for shared libraries, and `cgi`, which runs each file as a
plain CGI program. docs/xswitch-internals.md explains preloaded parents and `isolation`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ewe.config.defaults import ENGINE_EXTENSIONS, WEB_INF
from ewe.config.setting_types import one_of, size
from ewe.config.tables import setting
from ewe.xswitch.setting_types import COUNT, FROM_ZERO, HOST, SUFFIXES, TABLE, TEXTS

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")
JAVA_DIRECTORY = f"{ENGINES}/java/target/engine"  # ewe.xswitch.tools.java builds it
LIBCGI_PROGRAM = f"{ENGINES}/libcgi/target/host"  # of LibCGI libraries; ewe.xswitch.tools.libcgi builds it
FAR_CONNECTIONS = 1000  # requests at once to another machine; its X-Switch divides its engines among users
FAR_KEYS = ("address", "connections", "extensions")  # the keys of such a kind of engine
# In a command: a private directory of the engine's user; it exists as long as the engine
WORK_PLACEHOLDER = "{work}"


@dataclass(frozen=True)
class EngineKind:
    """One language, and the way to start its engines. A table [engines.NAME] of a settings file makes one."""

    name: str
    command: tuple[str, ...] = setting(
        (),
        TEXTS,
        "the program and its arguments; `{work}` stands for a private directory of the engine's user",
    )
    extensions: tuple[str, ...] = setting((), SUFFIXES, "extensions of the files that these engines run")
    interpreters: tuple[str, ...] = setting(
        (), TEXTS, "programs on the first line (`#!`) of the files that these engines run"
    )
    protocol: str = setting("engine", one_of("engine", "fastcgi"), "the protocol of the engine")
    preload: tuple[str, ...] | None = setting(
        None,
        TEXTS,
        "modules that a preloaded parent loads; only for engines in Python (`.py`) or Perl (`.pl`)",
        was="warm",
    )
    per_user: int = setting(0, COUNT, "engines of this language for one user; 0: max-engines-per-user")
    memory: int | None = setting(None, size(0), "instead of `memory` under [limits]; 0: no limit")
    processes: int | None = setting(None, FROM_ZERO, "instead of `processes` under [limits]; 0: no limit")
    max_memory: int | None = setting(None, size(0), "instead of the general `max-memory`; 0: no limit")
    max_requests: int | None = setting(None, FROM_ZERO, "instead of the general `max-requests`; 0: no limit")
    connections: int = setting(1, COUNT, "requests that one engine runs at once; more than 1 needs `fastcgi`")
    program: str = ""  # a file that `ewe-xswitch NAME` builds; without it these engines do not start
    environment: Mapping[str, str] = setting({}, TABLE, "variables of the engines' environment")
    isolation: str = setting(
        "auto",
        one_of("auto", "fork", "none"),
        "how an engine keeps one script from the next; only for `engine`",
    )
    address: str = setting(
        "",
        HOST,
        "an X-Switch on another machine, which runs these scripts in its engines; instead of `command`",
    )

    @property
    def variables(self) -> dict[str, str]:
        """Return the additional variables of these engines."""
        isolation = {"XSWITCH_ISOLATION": self.isolation} if self.protocol == "engine" else {}
        return {**isolation, **self.environment}


# Modules that many scripts import. A module is left out if the engine would have to reset its state after each
# request.
PRELOADED = (
    "collections", "csv", "datetime", "functools", "hashlib", "html", "http.cookies", "json", "math", "re",
    "sqlite3", "string", "subprocess", "time", "typing", "urllib.parse",
)  # fmt: skip
PRELOADED_PERL = (
    "CGI", "Cwd", "Data::Dumper", "Encode", "Fcntl", "File::Basename", "File::Spec", "File::Temp", "JSON::PP",
    "List::Util", "MIME::Base64", "POSIX", "Scalar::Util", "Storable", "Time::HiRes", "Time::Local",
)  # fmt: skip
PRELOADING_ENGINES = (".py", ".pl")  # suffixes of engine programs that can have a preloaded parent

BUILT_IN = {
    "python": EngineKind(
        "python",
        ("python3", f"{ENGINES}/python.py"),
        ENGINE_EXTENSIONS["python"],
        ("python", "python3"),
        preload=PRELOADED,
    ),
    "perl": EngineKind(
        "perl",
        ("perl", f"{ENGINES}/perl.pl"),
        ENGINE_EXTENSIONS["perl"],
        ("perl",),
        preload=PRELOADED_PERL,
    ),
    "cgi": EngineKind("cgi", ("python3", "-ES", f"{ENGINES}/run_cgi.py")),
    "php": EngineKind(
        "php",
        ("php-cgi", "-d", "opcache.revalidate_freq=0"),  # PHP sees a changed file at once, not after 2 seconds
        ENGINE_EXTENSIONS["php"],
        ("php", "php-cgi"),
        "fastcgi",
        environment={"PHP_FCGI_CHILDREN": "0", "PHP_FCGI_MAX_REQUESTS": "0"},
    ),
    "libcgi": EngineKind(
        "libcgi", (LIBCGI_PROGRAM,), ENGINE_EXTENSIONS["libcgi"], program=LIBCGI_PROGRAM
    ),
    "java": EngineKind(
        "java",
        (
            "java", "-Xmx256m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:ReservedCodeCacheSize=32m",
            "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
            f"-XX:SharedArchiveFile={JAVA_DIRECTORY}/engine.jsa", "-Xshare:auto", "-Xlog:cds*=off",
            "-XX:-UsePerfData", "-XX:+ErrorFileToStderr", "-XX:+ExitOnOutOfMemoryError",
            "-Djava.io.tmpdir={work}", "-Djava.awt.headless=true",
            "-jar", f"{JAVA_DIRECTORY}/engine.jar",
        ),
        interpreters=(WEB_INF,),  # suexecme reports this name instead of a first line
        protocol="fastcgi",
        per_user=1,  # sessions are in its memory
        memory=0,
        max_memory=512 << 20,
        max_requests=0,
        connections=8,
        program=f"{JAVA_DIRECTORY}/engine.jar",
    ),
}  # fmt: skip
