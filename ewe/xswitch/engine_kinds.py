"""The kinds of engines: one for each language, those that are built in and those of a settings file.

The built-in kinds are Python, Perl, PHP, Java, `libcgi` for shared libraries, and `cgi`, which runs each file as a
plain CGI program.
docs/xswitch-internals.md explains warm parents and `isolation`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ewe.config.defaults import WEB_INF
from ewe.config.setting_types import size
from ewe.config.tables import setting
from ewe.xswitch.setting_types import COUNT, FROM_ZERO, SUFFIXES, TABLE, TEXTS, one_of

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")
JAVA = f"{ENGINES}/java/target/engine"  # what ewe.xswitch.tools.java builds
LIBCGI = f"{ENGINES}/libcgi/target/host"  # of LibCGI libraries; ewe.xswitch.tools.libcgi builds it
WORK = "{work}"  # in a command: a directory of its user's own, that is there as long as the engine


@dataclass(frozen=True)
class EngineKind:
    """One language, and how its engines are started. The table [engines.NAME] of a settings file makes one."""

    name: str
    command: tuple[str, ...] = setting(
        (),
        TEXTS,
        "the program and its arguments; `{work}` stands for a private directory of the engine's user",
    )
    extensions: tuple[str, ...] = setting((), SUFFIXES, "of the files that these engines run")
    interpreters: tuple[str, ...] = setting(
        (), TEXTS, "on the first line (`#!`) of the files that these engines run"
    )
    protocol: str = setting("engine", one_of("engine", "fastcgi"), "what an engine speaks")
    warm: tuple[str, ...] | None = setting(
        None, TEXTS, "modules that a warm parent loads; only for engines in Python (`.py`) or Perl (`.pl`)"
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

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that these engines have besides those of every engine."""
        told = {"XSWITCH_ISOLATION": self.isolation} if self.protocol == "engine" else {}
        return {**told, **self.environment}


# Modules that many scripts import, without those whose state the engine would have to reset after every request.
WARM = (
    "collections", "csv", "datetime", "functools", "hashlib", "html", "http.cookies", "json", "math", "re",
    "sqlite3", "string", "subprocess", "time", "typing", "urllib.parse",
)  # fmt: skip
WARM_PERL = (
    "CGI", "Cwd", "Data::Dumper", "Encode", "Fcntl", "File::Basename", "File::Spec", "File::Temp", "JSON::PP",
    "List::Util", "MIME::Base64", "POSIX", "Scalar::Util", "Storable", "Time::HiRes", "Time::Local",
)  # fmt: skip
WARM_ENGINES = (".py", ".pl")  # how the program of an engine ends that can have a warm parent

BUILT_IN = {
    "python": EngineKind(
        "python", ("python3", f"{ENGINES}/python.py"), (".py",), ("python", "python3"), warm=WARM
    ),
    "perl": EngineKind("perl", ("perl", f"{ENGINES}/perl.pl"), (".pl",), ("perl",), warm=WARM_PERL),
    "cgi": EngineKind("cgi", ("python3", "-ES", f"{ENGINES}/run_cgi.py")),
    "php": EngineKind(
        "php",
        ("php-cgi", "-d", "opcache.revalidate_freq=0"),  # PHP notices a change at once, not after 2 seconds
        (".php",),
        ("php", "php-cgi"),
        "fastcgi",
        environment={"PHP_FCGI_CHILDREN": "0", "PHP_FCGI_MAX_REQUESTS": "0"},
    ),
    "libcgi": EngineKind("libcgi", (LIBCGI,), (".so",), program=LIBCGI),
    "java": EngineKind(
        "java",
        (
            "java", "-Xmx256m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:ReservedCodeCacheSize=32m",
            "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
            f"-XX:SharedArchiveFile={JAVA}/engine.jsa", "-Xshare:auto", "-Xlog:cds*=off",
            "-XX:-UsePerfData", "-XX:+ErrorFileToStderr", "-XX:+ExitOnOutOfMemoryError",
            "-Djava.io.tmpdir={work}", "-Djava.awt.headless=true",
            "-jar", f"{JAVA}/engine.jar",
        ),
        interpreters=(WEB_INF,),  # what suexecme says in place of a first line
        protocol="fastcgi",
        per_user=1,  # sessions are in its memory
        memory=0,
        max_memory=512 << 20,
        max_requests=0,
        connections=8,
        program=f"{JAVA}/engine.jar",
    ),
}  # fmt: skip
