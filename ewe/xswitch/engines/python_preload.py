"""Installed modules that the Python engine (python.py) loads before it forks for a script.

The import of a framework takes a hundred times as long as a fork. The process that forks (python_fork.py) therefore
records which installed modules a script's first run loads: its ImportProfile. It then keeps a *zygote* for the
script: a process that has loaded those modules and nothing else, and forks for each request of that script.
No script ever runs in the zygote itself.

    first run: a child writes a report ──▶ ImportProfile ──▶ zygote: imports, then forks for each request

A module that is loaded beforehand must be the module that the script would have loaded. A module is left out, and
imported at its usual time, if a difference could be seen:

- the file is another one, or has changed;
- its variables are not the same as in the script's run (fingerprint());
- its import loads one of the user's own modules, or a module that the run has not loaded;
- it reads an environment variable that the script sets, or that differs from request to request;
- it writes or changes a file, reads one of the user's own, keeps a descriptor, or connects to a server;
- it starts a thread or a process, or asks for the time or for random numbers.

Preloaded modules are not in sys.modules at first. The script's own `import` gets them from the module store
(ModuleStore), and only if the search path leads to the same file at that moment.
"""

import marshal
import mmap
import os
import sys
import zlib
from importlib import machinery
from time import monotonic
from types import FunctionType, ModuleType

import python_code as code
from python_code import file_signature, is_library
from python_protocol import script_variables

__builtins__ = vars(code)["__builtins__"]
KILL = 9
READY = b"!"  # a zygote writes this to its socket once it has loaded the modules
MAX_LIVE_ZYGOTES = 4
IDLE_SECONDS = 10.0  # a zygote without a request for so long may be ended, to make room for another
MAX_PROFILES = 200  # cached profiles of scripts
MAX_ITEMS = 50  # of a list or table, that a fingerprint covers
LENGTH_BYTES = 4  # a report begins with its length
MAX_ATTEMPTS = 24  # profiled runs and zygotes of one script, until its file changes
MAX_REPORT_BYTES = 1 << 20  # bytes of a report
CHECK_SECONDS = 1.0  # between two checks whether the files of a profile have changed
FINGERPRINT_DEPTH = 3  # nesting levels of tables that a fingerprint covers
# Variables that differ from request to request (RFC 3875); HTTP_* do, too
REQUEST_VARIABLES = set(
    b"""AUTH_TYPE CONTENT_LENGTH CONTENT_TYPE DOCUMENT_URI GATEWAY_INTERFACE PATH_INFO PATH_TRANSLATED QUERY_STRING
    REMOTE_ADDR REMOTE_HOST REMOTE_IDENT REMOTE_PORT REMOTE_USER REQUEST_METHOD REQUEST_SCHEME REQUEST_URI
    SCRIPT_FILENAME SCRIPT_NAME SERVER_ADDR SERVER_PORT SERVER_PROTOCOL UNIQUE_ID""".split()
)
LOGGING_STARTED_AT = "_startTime"  # a variable of logging: the time of its import
LOADERS = machinery.SourceFileLoader, machinery.ExtensionFileLoader
ORIGINAL_EXEC_MODULES = [loader.exec_module for loader in LOADERS]

profiles = {}  # script -> ImportProfile
modules_in_progress = []  # names of the modules that are being loaded, the innermost last
fingerprints = {}  # name of a module -> its fingerprint right after its import


def top_level_name(name):
    """Return the first part of a module's name."""
    return name.partition(".")[0]


# The state of a module, right after its import


def fingerprint(module):
    """Return a number computed from a module's variables. A different number means a different import."""
    items = [
        (name, describe(value))
        for name, value in vars(module).items()
        if not name.startswith("__") and name != LOGGING_STARTED_AT
    ]
    return zlib.crc32(repr(items).encode("utf-8", "replace"))


def describe(value, depth=FINGERPRINT_DEPTH):
    """Return a description of a value that is the same in each process: no address, and no method is called.

    depth: nesting levels of tables whose items are described, too.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return value
    if kind in (tuple, list) and depth:
        return kind.__name__, len(value), [describe(item, depth - 1) for item in value[:MAX_ITEMS]]
    if kind in (set, frozenset):
        # Not its items: their order may differ from process to process
        return kind.__name__, len(value)
    if kind is dict and depth:
        items = list(value.items())[:MAX_ITEMS]
        return "dict", len(value), [(describe(key, 0), describe(item, depth - 1)) for key, item in items]
    if kind is FunctionType:
        return value.__module__, value.__qualname__, value.__code__.co_firstlineno
    if issubclass(kind, type):
        return type.__getattribute__(value, "__module__"), type.__getattribute__(value, "__qualname__")
    # Of a module its name, of any other object its class: no method of the object is called
    return value.__name__ if kind is ModuleType else (kind.__module__, kind.__qualname__)


def follow_imports():
    """From now on fill `modules_in_progress` and `fingerprints` at each import."""
    for loader in LOADERS:
        loader.exec_module = with_notes(loader.exec_module)


def stop_following_imports():
    """Restore the loaders that follow_imports() has changed."""
    for loader, execute in zip(LOADERS, ORIGINAL_EXEC_MODULES, strict=True):
        loader.exec_module = execute


def with_notes(execute):
    """Return a function that does the same as `execute`, exec_module() of a loader, and notes each module."""

    def exec_module(self, module):
        """Load a module, as importlib's exec_module(); note its name and its fingerprint."""
        modules_in_progress.append(module.__name__)
        try:
            return execute(self, module)
        finally:
            modules_in_progress.pop()
            fingerprints[module.__name__] = fingerprint(module)

    # With this file name, warnings skip this frame, as they skip the import system's own frames
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    return exec_module


# The import profile of a script


class ImportProfile:
    """The import profile of a script, and its zygote."""

    def __init__(self, script):
        """Make the profile of a script that has not run yet. Raises OSError if there is no such file."""
        self.signature = file_signature(script)  # of the script's own file
        self.report_memory = mmap.mmap(-1, MAX_REPORT_BYTES)  # a child writes its report here
        # (name, file, the file's signature, fingerprint) of the installed modules, in the order of their
        # import; file and signature are "" and () if a module has no file. None until a run has written its
        # report
        self.recorded_modules = None
        self.search_path = []  # sys.path at the end of the profiled run
        # File or directory on which the modules depend -> its signature: see has_unchanged_files()
        self.file_signatures = {}
        # Environment variables that the script sets, or whose value differs from one request to another
        self.changed_variables = set()
        self.skipped_prefixes = ()  # prefixes of the names of modules that are left out
        self.attempts = 0  # profiled runs and started zygotes so far
        # The profiled request's lines (python_protocol.py) and arguments, and those of its variables that are
        # the same for each request
        self.request_lines, self.request_arguments, self.constant_variables = b"", [], {}
        self.checked_at = self.used_at = monotonic()  # when the files were checked, when a request came
        # The zygote's pid, 0 if there is none, and the descriptor of the socket to it
        self.zygote_pid = self.zygote_socket = 0
        # Environment variable that a module has read -> its value; None until the zygote has loaded the modules
        self.read_variables = None

    def write_report(self, *values):
        """Write a report for the parent process, in a child. A report that is too long is left out."""
        data = marshal.dumps(values)
        if len(data) < MAX_REPORT_BYTES - LENGTH_BYTES:
            self.report_memory[LENGTH_BYTES : LENGTH_BYTES + len(data)] = data
            self.report_memory[:LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES, "little")

    def take_report(self):
        """Return the report of a child, and remove it; None if the child has left none."""
        length = int.from_bytes(self.report_memory[:LENGTH_BYTES], "little")
        self.remove_report()
        return marshal.loads(self.report_memory[LENGTH_BYTES : LENGTH_BYTES + length]) if length else None

    def remove_report(self):
        """Remove the report, if there is one: its length becomes 0."""
        self.report_memory[:LENGTH_BYTES] = bytes(LENGTH_BYTES)

    def end_zygote(self):
        """End the zygote, if there is one."""
        if self.zygote_pid:
            os.close(self.zygote_socket)  # then the zygote ends, after its own pre-forked child
            try:
                if self.read_variables is None:
                    os.kill(self.zygote_pid, KILL)  # the zygote is still loading modules
                os.waitpid(self.zygote_pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass  # the zygote has ended
        self.zygote_pid, self.read_variables = 0, None

    def has_unchanged_files(self):
        """Return whether all files of the profile are unchanged. Check at most once in CHECK_SECONDS.

        Note that the profile was used now.
        """
        now = self.used_at = monotonic()
        if now - self.checked_at < CHECK_SECONDS:
            return True
        self.checked_at = now
        try:
            return all(file_signature(file) == recorded for file, recorded in self.file_signatures.items())
        except OSError:
            return False


def write_run_report(profile, start_modules, environment_before):
    """Write the report of a script's run at its end, for read_report(). The report has four parts:

    - of each installed module that the run has loaded: its name, its file and the signature, and its fingerprint;
    - the search path of modules;
    - the names of the environment variables that the run has changed;
    - the files of the user's own modules that it has loaded.

    start_modules: names of the modules of a new interpreter. environment_before: the variables before the run.
    """
    # A script may put any object in the place of os.environ: then its changes cannot be told, and no report is left
    if not isinstance(os.environ, os._Environ):
        return
    modules = []
    for name, module in list(sys.modules.items()):
        file = installed_file(module)  # "": it has no file; None: it is not an installed one
        if name not in start_modules and type(module) is ModuleType and file is not None:
            modules.append((name, file, file_signature(file) if file else (), fingerprints.get(name)))
    environment_after = os.environ._data
    changed = [
        key
        for key in {*environment_after, *environment_before}
        if environment_after.get(key) != environment_before.get(key)
    ]
    own_files = [file for _, file in code.loaded_own_modules]
    search_path = [path for path in sys.path if isinstance(path, str)]
    profile.write_report(modules, search_path, changed, own_files)


def installed_file(module):
    """Return the file of an installed module, "" if it has none, None if the module is not installed."""
    variables = getattr(module, "__dict__", {})
    file = variables.get("__file__")
    if file is not None:
        return file if is_library(file) else None
    if getattr(variables.get("__spec__"), "origin", None) in ("built-in", "frozen"):
        return ""  # a part of the interpreter
    # A package without __init__.py: are all its directories those of libraries?
    search_path = list(variables.get("__path__", ()))
    return "" if search_path and all(map(is_library, search_path)) else None


# In the process that forks


def profile_for_report(script, arguments, lines):
    """Return the profile for which the next run of a script must write a report.

    Return None if an earlier run has written it, if MAX_ATTEMPTS are used up, or if the script cannot be read. A
    script gets a new profile if it has none, or if its file has changed. The run counts as an attempt.

    arguments, lines: of the request that the run answers, as receive_lines() returns them.
    """
    try:
        profile = profiles.get(script)
        if profile is None or profile.signature != file_signature(script):
            drop_profile(script)
            if len(profiles) >= MAX_PROFILES:
                for old_script in list(profiles):
                    drop_profile(old_script)
            profile = profiles[script] = ImportProfile(script)
    except OSError:
        return None
    if profile.recorded_modules is not None or profile.attempts >= MAX_ATTEMPTS:
        return None
    profile.attempts += 1
    profile.request_lines, profile.request_arguments = lines, arguments
    profile.constant_variables = constant_variables(environment_of(lines))
    return profile


def drop_profile(script):
    """Drop the profile of a script, and end its zygote. The script's next run writes a new report."""
    if profile := profiles.pop(script, None):
        profile.end_zygote()


def read_report(profile):
    """Read the report of a run into its profile, and compile the user's own modules that the run has loaded.

    profile: from profile_for_report(), or None.
    """
    if profile and profile.recorded_modules is None and (report := profile.take_report()):
        profile.recorded_modules, profile.search_path, changed, own_files = report
        profile.changed_variables.update(changed)
        for file in own_files:
            try:
                code.ModuleLoader("", file).get_code("")  # compiles the file, for all later children
                profile.file_signatures[file] = file_signature(file)
            except Exception:
                pass  # the file does not exist any more, or cannot be compiled
        profile.file_signatures.update(
            (file, recorded_signature)
            for _name, file, recorded_signature, _fingerprint in profile.recorded_modules
            if file
        )
        # A new file in a directory of libraries could hide a module
        for path in profile.search_path:
            if is_library(os.path.join(path, "")) and os.path.isdir(path):
                profile.file_signatures[path] = file_signature(path)
        code.loaded_own_modules.clear()  # get_code() has noted the files there, but no script runs here


def profile_with_zygote(script, lines, arguments):
    """Return the profile of a script if its zygote may answer this request, else None.

    The zygote ends if it cannot answer this request, or if one of its files has changed. It answers requests with
    the same arguments, and the same values of constant_variables() and of the variables that its modules have read.
    If one of the latter has another value, it is noted in `changed_variables`: no module that reads it is preloaded
    from then on.
    """
    profile = profiles.get(script)
    if profile is None or not profile.zygote_pid:
        return None
    if profile.read_variables is None and not has_become_ready(profile):  # it still loads the modules
        return None
    try:
        is_unchanged = profile.signature == file_signature(script) and profile.has_unchanged_files()
    except OSError:
        is_unchanged = False  # the script is gone: a child will report that
    if not is_unchanged:
        drop_profile(script)
        return None
    environment = environment_of(lines)
    changed = {key for key, value in profile.read_variables.items() if environment.get(key) != value}
    if (
        changed
        or constant_variables(environment) != profile.constant_variables
        or arguments != profile.request_arguments
    ):
        profile.changed_variables |= changed
        profile.end_zygote()
        return None
    return profile


def environment_of(lines):
    """Return the environment of the script of a request."""
    _, variables, _ = lines.split(b"\n")
    return dict([variable.split(b"=", 1) for variable in script_variables(variables)])


def constant_variables(environment):
    """Return the part of an environment that is the same from request to request."""
    return {
        key: value
        for key, value in environment.items()
        if key not in REQUEST_VARIABLES and not key.startswith(b"HTTP_")
    }


def has_become_ready(profile):
    """Return whether a zygote has loaded its modules; if so, read its report into the profile.

    If the zygote has failed, end it: the next one leaves out the module at fault. The report (load() of
    python_zygote.py) is then the prefix of names to leave out; else the variables and files that modules have read.
    """
    try:
        os.set_blocking(profile.zygote_socket, False)
        ready_byte = os.read(profile.zygote_socket, 1)  # b"" if the zygote has ended
    except BlockingIOError:
        return False  # it is still loading
    except OSError:
        ready_byte = b""
    os.set_blocking(profile.zygote_socket, True)
    report = profile.take_report()
    if ready_byte and report:
        profile.read_variables, read_files = report
        try:
            profile.file_signatures.update((file, file_signature(file)) for file in read_files)
        except OSError:
            profile.attempts = MAX_ATTEMPTS  # a file is gone: no later zygote
        return True
    profile.end_zygote()
    if report:
        profile.skipped_prefixes += report
    else:
        profile.attempts = MAX_ATTEMPTS  # the cause is not known: no later zygote
    return False


def profile_needing_zygote(script):
    """Return the profile of a script if a zygote should be started for it, else None. Prepare that start.

    If there are MAX_LIVE_ZYGOTES already, end the one that was used least recently, if it is idle. Count the start
    as an attempt, and remove an old report.
    """
    profile = profiles.get(script)
    if (
        profile is None
        or profile.zygote_pid
        or not profile.recorded_modules
        or profile.attempts >= MAX_ATTEMPTS
    ):
        return None
    with_zygote = [other for other in profiles.values() if other.zygote_pid]
    if len(with_zygote) >= MAX_LIVE_ZYGOTES:
        least_recently_used = min(with_zygote, key=lambda other: other.used_at)
        if monotonic() - least_recently_used.used_at < IDLE_SECONDS:
            return None
        least_recently_used.end_zygote()
    profile.attempts += 1
    profile.used_at = monotonic()
    profile.remove_report()
    return profile


def note_reaped(pid):
    """Note that a child has ended and was reaped. If it was a zygote, its profile has none from now on."""
    for profile in profiles.values():
        if profile.zygote_pid == pid:
            os.close(profile.zygote_socket)
            profile.zygote_pid, profile.read_variables = 0, None


def zygote_pids():
    """Return the pids of all zygotes."""
    return [profile.zygote_pid for profile in profiles.values() if profile.zygote_pid]
