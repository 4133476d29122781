"""The declaration of a feature: the handlers and facts that its module offers to the builder of a site.

The last lines of such a module are FEATURE = Feature(...): everything that the server knows about the feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from ewe.config.messages import ConfigError
from ewe.config.setting import Key, Setting
from ewe.features.base import Middleware, Reroute, explained
from ewe.features.mounted_handler import checked
from ewe.http.messages import Response
from ewe.http.status import HTTPError
from ewe.registry import entry_points, in_words, load

if TYPE_CHECKING:
    from ewe.config.setting_types import Kind
    from ewe.config.settings import Config
    from ewe.features.base import Explanation, Handler, Mount, ProtectedSource
    from ewe.features.plan import HasProxies, LocationPlan, Plan
    from ewe.gateway.kept_programs import KeptProgram
    from ewe.gateway.scripts import Script
    from ewe.http.messages import Request
    from ewe.streams.base import Stream

T = TypeVar("T")
GROUP = "ewe.features"  # the entry-point group in which other packages register their features
# The parts that the declaration of a mounted feature may have. Each other one needs a row of the feature table.
PARTS_OF_MOUNTED = (
    "make", "settings", "protected", "needs", "notes", "start_warnings", "provide", "mounts", "answers_all",
    "shares_mounts", "programs", "fixed", "ends_processes", "measures", "imports_later", "directories", "late",
    "preload",
)  # fmt: skip


class StepKey(Key):
    """A key of [[site]] and [[site.location]] that puts a middleware around the handlers of a location."""

    def __init__(self, kind: Kind[T], help: str, make: Callable[[T], Middleware], secret: str = "") -> None:
        """make: return the middleware for a value that `kind` has read. It raises ValueError, OSError.

        secret: the key, in the table of the value, that names a file which no site may send.
        """
        super().__init__(kind, help)
        self.make, self.secret = make, secret

    def middleware(self, label: str, raw: object) -> Middleware:
        """Return the middleware for a value in a settings file. label: how an error begins. Raises ConfigError."""
        value = self.kind.read_at(label, raw)
        try:
            return self.make(value)
        except ValueError as reason:
            raise ConfigError(f"{label} {reason}") from None
        except OSError as reason:
            raise ConfigError(f"{label} {reason.strerror}") from None


class ScriptFunction(Protocol):
    """Runs a script."""

    async def __call__(self, script: Script, request: Request, io: Stream) -> Response | None:
        """Return the script's response. Raises HTTPError."""
        ...


class Runner(NamedTuple):
    """A gateway that runs scripts, each a file or a name that the location finds (ewe.sites.rules.Programs).

    needs_files: the scripts are files of this machine. executable: each must have its execute bit.
    """

    run: ScriptFunction
    needs_files: bool = False
    executable: bool = False


class MeasuredProcess(Protocol):
    """A process behind a feature: X-Switch, or the database daemon.

    name: its key in the status. title: for people.
    """

    name: str
    title: str

    async def numbers(self, request: Request, io: Stream, seconds: float) -> dict[str, Any]:
        """Return its numbers within `seconds`. Raises HTTPError, and MeasureError with the reason in one line."""
        ...


class SupervisedProcess(NamedTuple):
    """The functions of a process that the server runs beside the workers of a concurrency model.

    is_needed: return whether the settings ask for it. check: raise ConfigError for a fault in its own settings.
    completed: return a configuration in which the settings name the address of its socket and the account of the
    workers; None: they keep their account. command: return the command that starts it, from the completed
    configuration, the inheritable descriptor of its socket, the account, and an inheritable descriptor of the
    trace; None: no trace is written.
    """

    is_needed: Callable[[Config], bool]
    check: Callable[[Config], None]
    completed: Callable[[Config, str, str | None], Config]
    command: Callable[[Config, int, str | None, int | None], list[str]]


class ProgramMaker(Protocol):
    """Makes a program that the server keeps running."""

    def __call__(self, path: str) -> KeptProgram:
        """Return the program, with a listening socket at `path`. Raises OSError."""
        ...


class NeededDirectory(NamedTuple):
    """A directory of programs or libraries. The sample site has one of the same name as the default of its setting.

    effect: the consequence if nobody can read it, as a part of a warning. setting: the key of its setting. starts:
    the account of the workers starts each executable file in it.
    """

    path: str
    effect: str
    setting: str
    starts: bool = False


class MeasureError(Exception):
    """A process does not tell its numbers. The text is one line."""


class Feature(NamedTuple):
    """The declaration of a feature. Only the name is required. Most parts are functions:

    settings: the settings that this feature declares (ewe.config.setting).
    provide: return an object that other features use, by the name of this feature (Plan.provided).
    protected: yield the sources to protect; the second argument is the document root, without symbolic links.
    mounts: yield the handlers of a site, in the order in which they are called.
    answers_all: return whether the feature answers every path of a site, which then needs no document root.
    shares_mounts: a site and its locations share the mounts, because they contain an application.
    wrap: return a handler inside a middleware; it is called for each handler that mounts() has yielded.
    answered_by: return a handler inside the middleware that notes its feature; it is called for each handler,
    but not for a bare mount.
    files: yield the handlers for the files of a location's directory (`alias`).
    middleware: return the middleware around all handlers of a location, from its settings.
    server_middleware: return the middleware around all sites.
    keys: keys of [[site]] and [[site.location]], each with its middleware.
    gateway: return the handler, or the Runner, for the key `gateway` of a location. The other two arguments are the
    kind in its value, and the targets of its values: addresses, or one application (site_tables.GatewayValue).
    answer: return the handler for a location that has the feature's own key.
    make: return the handler for a path of the setting `mount`.
    ends_processes: return whether a request may end its process, so that a supervisor must start another.
    programs: yield a ProgramMaker for each program that the server starts before the first request, keeps running,
    and ends after the last one. (ServerPlan.add_application() registers an application in Python instead.)
    process: the SupervisedProcess of a concurrency model that needs this feature.
    fixed: yield the names of the settings whose new values a running server does not take over (HUP). The argument
    is the new configuration.
    needs: yield the reasons why the server cannot start. notes: yield more lines for `ewe --check-config`.
    start_warnings: yield warnings for a start. The second argument is a URL of the server that other machines
    reach, or "".
    measures: return the MeasuredProcess behind the feature, whose numbers the status shows; None if there is none.
    imports_later: it imports modules after the start, as the account of the workers.
    directories: yield the directories of programs, which the account of the workers must be able to read.
    late: modules that a request may import; a server that gives up root imports them before.
    preload: load other files, such as a library, which a process without root may be unable to read. A server that
    gives up root calls it before.
    declares: yield the declarations of other features, which its setting names.

    A feature that the setting `mount` names has `make`, and may have the parts of PARTS_OF_MOUNTED. ewe uses these
    parts in the same way as the parts of the features in its own table.
    """

    name: str
    settings: tuple[Setting[Any], ...] = ()
    provide: Callable[[Plan], Any] | None = None
    protected: Callable[[Plan, str], Iterable[ProtectedSource]] | None = None
    mounts: Callable[[Plan], Iterable[Mount]] | None = None
    answers_all: Callable[[Config], bool] | None = None
    shares_mounts: bool = False
    wrap: Callable[[Plan, Config, Handler], Handler] | None = None
    answered_by: Callable[[Handler], Handler] | None = None
    files: Callable[[LocationPlan], Iterable[Mount]] | None = None
    middleware: Callable[[Plan, Config], Middleware] | None = None
    server_middleware: Callable[[HasProxies], Middleware] | None = None
    keys: Mapping[str, Key] = {}
    gateway: Callable[[LocationPlan, str, tuple[str, ...]], Handler | Runner] | None = None
    answer: Callable[[LocationPlan], Handler] | None = None
    make: Callable[[Config, str], Handler] | None = None
    ends_processes: Callable[[Config], bool] | None = None
    programs: Callable[[Config], Iterable[ProgramMaker]] | None = None
    process: SupervisedProcess | None = None
    fixed: Callable[[Config], Iterable[str]] | None = None
    needs: Callable[[Config], Iterable[str]] | None = None
    notes: Callable[[Config], Iterable[str]] | None = None
    start_warnings: Callable[[Config, str], Iterable[str]] | None = None
    measures: Callable[[Config], MeasuredProcess | None] | None = None
    imports_later: bool = False
    directories: Callable[[Config], Iterable[NeededDirectory]] | None = None
    late: tuple[str, ...] = ()
    preload: Callable[[], None] | None = None
    declares: Callable[[Config], Iterable[Feature]] | None = None

    def parts(self) -> list[str]:
        """Return the names of the parts that this declaration has, without the name."""
        return [name for name, part in self._asdict().items() if part and name != "name"]


class UnknownFeature(ConfigError):
    """No feature has this name, or it cannot be loaded. The text is one line."""


def module_and_name(name: str) -> str:
    """Return module:NAME of a feature that the setting `mount` names; `name` itself if no package registered it."""
    if ":" in name or name not in (registered := entry_points(GROUP)):
        return name
    found: str = registered[name].value
    return found


def named(name: str) -> Any:
    """Return the Feature or the class of handlers that the setting `mount` names. Raises UnknownFeature.

    name: module:FEATURE, module:Class, or a name that a package has registered.
    """
    registered = {} if ":" in name else entry_points(GROUP)
    if ":" not in name and name not in registered:
        known = ", ".join(registered) or "none"
        raise UnknownFeature(
            f"feature {name!r} is unknown; registered by packages: {known}; a class of your own is {name}:CLASS"
            " (mount)"
        )
    try:
        found = load(name) if ":" in name else registered[name].load()
    except (Exception, SystemExit) as reason:  # the import of a user's module may raise any exception
        raise UnknownFeature(f"feature {name!r} cannot be loaded: {in_words(reason)} (mount)") from None
    if isinstance(found, Feature):
        if found.make is None:
            raise UnknownFeature(f"feature {name!r} has no make=, which makes the handler for a path (mount)")
        for part in found.parts():
            if part not in PARTS_OF_MOUNTED:
                possible = ", ".join(f"{each}=" for each in PARTS_OF_MOUNTED)
                raise UnknownFeature(
                    f"feature {name!r} has {part}=; a mounted feature can have only {possible} (mount)"
                )
        settings: Any = found.settings  # a user may have written anything there
        if not isinstance(settings, tuple) or not all(isinstance(each, Setting) for each in settings):
            raise UnknownFeature(f"feature {name!r}: its settings= must be a tuple of Setting (mount)")
    elif not (isinstance(found, type) and callable(getattr(found, "respond", None))):
        raise UnknownFeature(f"feature {name!r} is not a class with a method respond() (mount)")
    return found


def in_one_line(name: str, text: object) -> str:
    """Return what a mounted feature says in one line that names the feature and the setting."""
    return f"feature {name!r}: {' '.join(str(text).split())} (mount)"


def make(name: str, config: Config, path: str) -> Handler:
    """Return the handler of the feature that the setting `mount` names.

    A class, or the `make` of a Feature, is called with config and path. path: the path at which the handler is
    mounted. Raises UnknownFeature, also for a ValueError of the feature about settings that it cannot use.
    """
    found = named(name)
    maker: Callable[[Config, str], Handler] | None = found.make if isinstance(found, Feature) else found
    assert maker is not None, "named() refuses a Feature without make="
    try:
        made = maker(config, path)
    except ValueError as reason:  # the feature's own message about the settings, or about its file
        raise UnknownFeature(in_one_line(name, reason)) from None
    except (Exception, SystemExit) as reason:
        raise UnknownFeature(
            f"feature {name!r} cannot be made from (config, path): {in_words(reason)} (mount)"
        ) from None
    if not callable(getattr(made, "respond", None)):
        raise UnknownFeature(
            f"feature {name!r} has made an object without respond(), of type {type(made).__name__} (mount)"
        )
    return made


class ExplainError(ValueError):
    """The explain() of a mounted feature has failed. The text is one line."""


class Mounted:
    """A handler below one path. Mounted at /hello it answers for /hello and /hello/there, not for /hellos."""

    def __init__(self, handler: Handler, path: str, name: str = "") -> None:
        """name: of the feature, for messages; "": the name of the handler's class."""
        self.handler = handler
        self.path = path.rstrip("/")
        self.name = name or type(handler).__name__

    def around(self, inner: Handler) -> Mounted:
        """Return the same for a middleware with its inner handler."""
        assert isinstance(self.handler, Middleware)
        return Mounted(self.handler.around(inner=inner, site=inner), self.path, self.name)

    def covers(self, path: str) -> bool:
        """Return whether a path is this handler's path, or below it."""
        return path == self.path or path.startswith(self.path + "/")

    async def respond(self, request: Request, io: Stream) -> Response | None:
        """Return the handler's response, if the path is below its own; else None. Raises as checked()."""
        if not self.covers(request.path):
            return None
        found = await self.handler.respond(request, io)
        try:
            return checked(found, request, self.name)
        except (TypeError, ValueError):
            if isinstance(found, Response):
                await found.close()
            raise

    def explain(self, request: Request, io: Stream) -> Explanation:
        """Yield the lines of the handler, if the path is below its own. Raises ExplainError."""
        if not self.covers(request.path):
            return False
        if isinstance(self.handler, Middleware) and type(self.handler).explain is Middleware.explain:
            yield f"  decides   {type(self.handler).__name__}: may answer instead, or change the answer (mount)"
        lines = explained(self.handler, request, io)
        while True:
            try:
                line: Any = next(lines)
            except StopIteration as end:
                return bool(end.value)
            except (HTTPError, Reroute, ExplainError):
                raise
            except (Exception, SystemExit) as reason:
                fault = f"fails: {in_words(reason)}"
            else:
                if isinstance(line, str):
                    yield line
                    continue
                fault = f"yields {type(line).__name__}, and not text"
            raise ExplainError(f"feature {self.name!r}: its explain() {fault} (mount)")
