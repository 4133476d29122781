"""What the Python engine (python.py) keeps of one script that it runs itself for the next: installed modules.

And what it does not keep: remember() notes how the interpreter is before any script has run, forget() makes it so
again.
"""

import _locale
import _signal
import _thread
import atexit
import builtins
import gc
import io
import itertools
import os
import sys
import warnings
from importlib.machinery import FileFinder
from time import monotonic

import python_code
from python_code import HERE, SUFFIXES, find_own, is_library, loaded, signature

__builtins__ = vars(python_code)["__builtins__"]
MAX_DIRECTORIES = 500  # of scripts, of which is known what others there hide
MANY = 200  # objects that a script has left: to look through them costs 10 us
THAW = 200  # a freeze of so many begins with a look at all that was frozen
LEVELS = {0: "NOTSET", 10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}  # of logging
STREAMS = "stdin", "stdout", "__stdin__", "__stdout__"  # of sys; between two scripts there are none
YOUNG_ALONE = sys.version_info < (3, 14)  # can be collected
SETTINGS = (
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
)
TOOLS = range(6) if hasattr(sys, "monitoring") else ()  # that may follow what is run
FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}

modules = sys.modules  # this name stays, even if a script replaces sys.modules
known_modules = {}  # name -> module, of those that stay
signatures = {}  # file of an installed module -> its signature when it was loaded
looked = 0.0  # when they were last compared
directories = {}  # of a script -> (when we looked, its signature, installed modules that others there hide)
resets = []  # (what is to be done after each script, the module)
dropped = {}  # what leave_only() has taken from a script
at_exit = []  # what installed modules, as they were loaded, have registered to run at the end of a process
newest_path = ""  # in which modules have been looked for
grown_old = True
freezes = 0


# Modules: those that are installed stay; those beside the scripts are as new for each request


def modules_changed():
    """Has a script loaded any, or dropped any?"""
    name, module = next(reversed(modules.items()))
    return len(modules) != len(known_modules) or known_modules.get(name) is not module


def sort_modules():
    """Drop the modules of the user's own, and have back those that stay; say whether there is a new one."""
    stays = False
    for name in sorted(modules.keys() - known_modules.keys()):
        module = modules[name]
        if not stays_loaded(name, module):
            del modules[name]
            continue
        stays = True
        known_modules[name] = module
        file = getattr(module, "__file__", None)
        if file is not None and "-packages/" in file:
            signatures[file] = signature(file)
    modules.update(known_modules)
    note_resets()
    return stays


def note_resets():
    """Note what there is to do after each script about the modules that are loaded."""
    resets[:] = [(reset, known_modules[name]) for name, reset in RESETS.items() if name in known_modules]


def stays_loaded(name, module):
    """Is a module installed? Without a file: of Python itself, a library's part, or a directory of libraries?"""
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_library(file)
    if getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen"):
        return True
    parent = name.rpartition(".")[0]
    return parent in known_modules if parent else any(map(is_library, getattr(module, "__path__", ())))


def hide_modules(directory):
    """Hide installed modules from a script that has others of these names beside it. Looks once a second."""
    when, known, count, names = directories.get(directory, (0, None, 0, ()))
    now = monotonic()
    if now - when > 1 or count != len(known_modules):
        found = signature(directory)
        if found != known or count != len(known_modules):
            names = [name for name in modules_in(directory) if is_found(name)]
        if len(directories) >= MAX_DIRECTORIES:
            directories.clear()
        directories[directory] = now, found, len(known_modules), names
    for name in names:
        for each in [each for each in modules if each == name or each.startswith(name + ".")]:
            del modules[each]


def is_found(name):
    """Is this the name of an installed module for which Python looks along sys.path?"""
    spec = getattr(known_modules.get(name), "__spec__", None)
    return getattr(spec, "has_location", False)


def modules_in(directory):
    """Return the names of the modules and packages in a directory; none, as for Python, if it cannot be read."""
    try:
        entries = os.listdir(directory)
    except OSError:
        return []
    parts = [entry.partition(".") for entry in entries]
    return [
        name
        for name, dot, suffix in parts
        if dot + suffix in SUFFIXES
        or os.path.exists(os.path.join(directory, name + dot + suffix, "__init__.py"))
    ]


def libraries_changed():
    """Has an installed module changed since it was loaded? Looks once a second."""
    global looked
    now = monotonic()
    if not signatures or now - looked < 1:
        return False
    looked = now
    try:
        return any(signature(file) != known for file, known in signatures.items())
    except OSError:
        return True


# After a script: what it has changed is as it was


def register(function, /, *arguments, **named):
    """Be atexit.register; note what an installed module registers as it is loaded, which is once for all."""
    caller = sys._getframe(1).f_code
    if caller.co_name == "<module>" and is_library(caller.co_filename):
        at_exit.append((function, arguments, named))
    return register_once(function, *arguments, **named)


register_once, atexit.register = atexit.register, register


def flush(stream):
    """Write out what a stream holds, if it is open and somebody reads."""
    try:
        stream.flush()
    except Exception:
        pass  # it may be anything that the script has put there


def untrace():
    """Have nobody follow what is run."""
    if sys.gettrace() or sys.getprofile():
        sys.settrace(None)
        sys.setprofile(None)
    for tool in TOOLS:
        if sys.monitoring.get_tool(tool):
            stop(tool)


def collect(marker=None):
    """Let go of what modules still hold, then of what refers to itself; what ends so may have something to say.

    What was there before the script is not looked through, and what it has left for good is not a second time.
    marker: a reference to an object of the script's variables; they are cleared if somebody still holds them.
    """
    global grown_old
    gc.disable()  # nothing may grow old unseen meanwhile
    gc.set_debug(0)
    full = grown_old or gc.callbacks != [note_age] or not YOUNG_ALONE
    gc.callbacks.clear()
    stays = modules_changed() and sort_modules()
    for reset, module in resets:
        reset(module)
    many = let_go(marker, 2 if full else 1) > MANY
    if stays or (many and len(gc.get_objects()) > MANY):
        freeze()
    grown_old = False
    gc.callbacks.append(note_age)
    gc.enable()


def let_go(marker, generation):
    """Collect what refers to itself; return how many objects the script had left."""
    objects = gc.get_objects()
    for each in objects:  # a file in a cycle: its descriptor may be collected first, then it could not write
        if type(each) in FILES:
            flush(each)
    count = len(objects)
    each = objects = None
    gc.collect(generation)
    if marker and marker():
        for each in gc.get_referrers(marker()):
            if type(each) is dict:
                each.clear()
    return count


def note_age(phase, collection):
    """Note that objects of the script have become old, so that only a full collection finds them."""
    global grown_old
    grown_old = grown_old or collection["generation"] > 0


def freeze():
    """Have no collection look through what is there; now and then look whether it still is of use."""
    global freezes
    freezes += 1
    if freezes % THAW == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def forget(first_free):
    """Undo what a script has done to the interpreter. first_free: the lowest descriptor that scripts get."""
    untrace()
    vars(sys).update(OURS)
    for module, names, values in KEPT:
        if not same(list(vars(module).values()), values):
            restore(vars(module), names)
    if [read() for read, _ in SETTINGS] != VALUES:
        for (_, write), value in zip(SETTINGS, VALUES, strict=True):
            write(value)
    sys.set_asyncgen_hooks(None, None)
    for function, arguments, named in at_exit:
        register_once(function, *arguments, **named)
    for kept, items in LISTS:
        kept[:] = items
    if next(reversed(sys.path_importer_cache), None) != newest_path:
        forget_paths()
    if gc.get_threshold() != THRESHOLD or gc.garbage:
        gc.set_threshold(*THRESHOLD)
        gc.garbage.clear()
    os.closerange(first_free, 1 << 20)


def forget_paths():
    """Forget where a script has looked for modules: "." was its own directory, others may come to be there."""
    global newest_path
    for path, finder in list(sys.path_importer_cache.items()):
        if path[:1] != "/" or (type(finder) is not FileFinder and path not in sys.path):
            del sys.path_importer_cache[path]
    newest_path = next(reversed(sys.path_importer_cache), None)


def stop(tool):
    """Have a tool of sys.monitoring follow nothing."""
    sys.monitoring.set_events(tool, 0)
    for event in filter(None, vars(sys.monitoring.events).values()):
        sys.monitoring.register_callback(tool, event, None)
    sys.monitoring.free_tool_id(tool)


def same(values, known):
    """Are these the same objects? Faster than to look at their names, whose text would have to be read."""
    try:
        return values == known
    except Exception:  # one of the script's own, which cannot be compared
        return False


def restore(variables, names):
    """Make a module's variables what they were."""
    variables.update(names)
    for name in variables.keys() - names.keys():
        del variables[name]


def reset_signals(module):
    if list(map(_signal.getsignal, SIGNALS)) != HANDLERS:
        for number, handler in zip(SIGNALS, HANDLERS, strict=True):
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)
    for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
        _signal.setitimer(timer, 0)
    for number in _signal.sigpending():  # blocked, it has not come; nor shall it
        _signal.signal(number, _signal.SIG_IGN)
        _signal.signal(number, HANDLERS[SIGNALS.index(number)])
    _signal.set_wakeup_fd(-1)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())  # that of the module makes an enumeration of each number


def reset_logging(module):
    """Loggers that bear the name of an installed module are its own, and stay."""
    module.disable(module.NOTSET)
    module.captureWarnings(False)
    module.setLoggerClass(module.Logger)
    module.setLogRecordFactory(module.LogRecord)
    module.raiseExceptions = True
    module._levelToName.update(LEVELS)
    loggers = module.root.manager.loggerDict
    for name in [name for name in loggers if name.partition(".")[0] not in known_modules]:
        del loggers[name]
    for logger in (module.root, *loggers.values()):
        if isinstance(logger, module.Logger):
            logger.handlers[:] = [each for each in logger.handlers if isinstance(each, module.NullHandler)]
            logger.filters.clear()
            logger.setLevel(module.WARNING if logger is module.root else module.NOTSET)
            logger.propagate, logger.disabled = True, False


def reset_threading(module):
    _thread.stack_size(0)
    count = itertools.count(1).__next__  # of the threads without a name
    vars(module).update(
        excepthook=module.__excepthook__, _trace_hook=None, _profile_hook=None, _counter=count
    )


def reset_finalizers(module):
    """Those of weakref run at the end once; after that they would not at all."""
    if module.finalize._registered_with_atexit:
        module.finalize._registered_with_atexit = module.finalize._shutdown = False


def reset_warnings(module):
    module.resetwarnings()  # also forgets what has been said
    module.filters[:] = FILTERS
    vars(module).update(SHOWN)


def reset_locale(module):
    if _locale.setlocale(_locale.LC_ALL) != LOCALE:
        _locale.setlocale(_locale.LC_ALL, LOCALE)


def reset_random(module):
    """Seed it again: its numbers tell a client the next ones. seed() would take three times as long."""
    try:
        module._inst.seed(int.from_bytes(os.urandom(16), "little"))
    except AttributeError:  # the script has broken it
        del known_modules["random"]
        del modules["random"]
        note_resets()


def to(**values):
    """Return what gives variables of a module these values."""
    return lambda module: vars(module).update(values)


# What to do about a module where a script has imported it
RESETS = {
    "signal": reset_signals,
    "locale": reset_locale,
    "logging": reset_logging,
    "random": reset_random,
    "threading": reset_threading,
    "warnings": reset_warnings,
    "weakref": reset_finalizers,
    "asyncio.events": to(_event_loop_policy=None),
    "socket": lambda module: module.setdefaulttimeout(None),
    "calendar": lambda module: module.setfirstweekday(0),
    "faulthandler": lambda module: (module.cancel_dump_traceback_later(), module.disable()),
    "fileinput": to(_state=None),
    "gettext": to(_current_domain="messages"),
    "multiprocessing.context": lambda module: vars(module._default_context).update(_actual_context=None),
    "multiprocessing.process": lambda module: setattr(module, "_process_counter", itertools.count(1)),
    "multiprocessing.util": to(_exiting=False, _logger=None, _log_to_stderr=False),
    "subprocess": lambda module: module._active.clear(),  # what was not waited for has descriptors yet
    "tempfile": to(tempdir=None),
    "tracemalloc": lambda module: module.stop(),
    "urllib.request": to(_opener=None),
    "zipimport": lambda module: module._zip_directory_cache.clear(),
}


def remember():
    """Note how the interpreter is before any script has run."""
    for name in [name for name in sys.modules if name.startswith("python_")]:  # no script finds ours by name
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path and path != HERE]
    sys.path_hooks.insert(0, find_own)
    known_modules.update(sys.modules)
    note_resets()
    global LOCALE, SIGNALS, HANDLERS, FILTERS, SHOWN, KEPT, OURS, VALUES, THRESHOLD
    VALUES = [read() for read, _ in SETTINGS]
    LOCALE = _locale.setlocale(_locale.LC_ALL)
    SIGNALS = list(_signal.valid_signals())
    HANDLERS = list(map(_signal.getsignal, SIGNALS))
    FILTERS = warnings.filters[:]
    SHOWN = {name: getattr(warnings, name) for name in ("showwarning", "formatwarning")}
    THRESHOLD = gc.get_threshold()
    before = {name: getattr(sys, name) for name in STREAMS}
    OURS = {**dict.fromkeys(STREAMS), "stderr": sys.stderr, "__stderr__": sys.__stderr__}
    for name in ("argv", "modules", "path", "meta_path", "path_hooks", "path_importer_cache", "warnoptions"):
        OURS[name] = getattr(sys, name)  # itself, not one that is equal
    vars(sys).update(OURS)
    KEPT = [(module, dict(vars(module)), list(vars(module).values())) for module in (sys, builtins)]
    vars(sys).update(before)
    gc.callbacks.append(note_age)
    compile("", "", "exec")  # the first call makes hundreds of objects
    gc.collect()
    gc.freeze()


def leave_only(names):
    """Have no other modules than these, as in an interpreter that has just started."""
    global known_modules
    known_modules = {name: module for name, module in modules.items() if name in names}
    dropped.update(modules)  # what a module defines may still be in use
    modules.clear()
    modules.update(known_modules)
    gc.callbacks.clear()


def finish(marker):
    """Let go of what the script holds at the end of its process, so that what ends can say something."""
    gc.disable()
    gc.set_debug(0)
    for name, _ in loaded:
        modules.pop(name, None)
    let_go(marker, 2)


def remember_paths():
    """Note where modules are looked for, which a user's own site-packages may have changed since remember()."""
    global LISTS
    LISTS = [(kept, kept[:]) for kept in (sys.path, sys.meta_path, sys.path_hooks)]
