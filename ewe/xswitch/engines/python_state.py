"""The state that the Python engine (python.py) keeps from one script for the next, if it runs both itself.

It keeps installed modules. It resets everything else: note_initial_state() notes the state of the interpreter
before any script has run, and undo_changes() restores that state.
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

# A script may replace these functions in sys
from sys import getprofile, gettrace, setprofile, settrace
from time import monotonic

import python_code
from python_code import HERE, SUFFIXES, file_signature, is_library, loaded_own_modules, own_module_finder
from python_protocol import END_OF_DESCRIPTORS

__builtins__ = vars(python_code)["__builtins__"]
MAX_DIRECTORIES = 500  # of scripts, for which the shadowed modules are cached
SEED_BYTES = 16  # of the random numbers
CHECK_S = 1.0  # seconds between two checks whether files have changed
MANY_LEFT_OBJECTS = 200  # objects that a script has left behind. A collection scans so many in 10 us
FREEZES_PER_SCAN = 200  # freezes, after which all frozen objects are scanned once
LOG_LEVELS = {0: "NOTSET", 10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}  # of logging
STREAMS = "stdin", "stdout", "__stdin__", "__stdout__"  # of sys; between two scripts there are none
# Generations of the garbage collector: up to which one it collects
YOUNG_GENERATIONS, ALL_GENERATIONS = 1, 2
CAN_COLLECT_YOUNG = sys.version_info < (3, 14)  # gc can collect the young generations without the oldest one
# Settings of the interpreter: the function that reads each, and the one that writes it
SETTINGS = (
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
)
MONITORING_TOOLS = range(6) if hasattr(sys, "monitoring") else ()  # numbers of the tools of sys.monitoring
FLUSHED_TYPES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}

modules = sys.modules  # keeps the dictionary, even if a script replaces sys.modules
known_modules = {}  # name -> module, of the modules that stay
signatures = {}  # file of an installed module -> its signature when it was loaded
libraries_checked_at = 0.0  # monotonic time at which the signatures were last compared
# Directory of a script -> time of the check, its signature, number of installed modules at that time, and the names
# of installed modules that its own modules hide
shadowed_modules = {}
resets = []  # (function to call after each script, its module)
unloaded_modules = {}  # name -> module that unload_all_but() has removed from sys.modules
exit_functions = []  # functions that installed modules registered with atexit when they were loaded
newest_cached_path = ""  # the newest entry of sys.path_importer_cache
has_old_objects = True  # objects of a script may have reached an older generation of the garbage collector
freeze_count = 0  # calls of freeze()


# Modules: installed modules stay; modules beside the scripts are loaded again for each request


def modules_changed():
    """Return whether a script has loaded a module, or removed one from sys.modules."""
    name, module = next(reversed(modules.items()))
    return len(modules) != len(known_modules) or known_modules.get(name) is not module


def restore_modules():
    """Remove the user's own modules from sys.modules, restore removed ones; return whether there are new ones.

    New installed modules are noted, those outside of Python's own library with the signatures of their files.
    """
    has_new = False
    for name in sorted(modules.keys() - known_modules.keys()):
        module = modules[name]
        if not stays_loaded(name, module):
            del modules[name]
            continue
        has_new = True
        known_modules[name] = module
        note_signature(module)
    modules.update(known_modules)
    note_reset_functions()
    return has_new


def note_signature(module):
    """Note the signature of the module's file, if it lies outside of Python's own library."""
    file = getattr(module, "__file__", None)
    if file is not None and "-packages/" in file:
        try:
            signatures[file] = file_signature(file)
        except OSError:
            pass  # the module is in an archive, or its file is gone already


def note_reset_functions():
    """Note the reset functions of the loaded modules."""
    resets[:] = [(reset, known_modules[name]) for name, reset in RESETS.items() if name in known_modules]


def stays_loaded(name, module):
    """Return whether a module stays loaded: it is installed, and not one of the user's own.

    A module without a file stays if it is part of Python or of a library, or a directory of libraries.
    """
    file = getattr(module, "__file__", None)
    if file is not None:
        return is_library(file)
    if getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen"):
        return True
    parent, _, _ = name.rpartition(".")
    # A submodule stays with its package, for which restore_modules() has decided before
    return parent in known_modules if parent else any(map(is_library, getattr(module, "__path__", ())))


def hide_shadowed_modules(directory):
    """Remove from sys.modules the installed modules that a script's own modules shadow: both have the same name.

    The directory is read at most once in CHECK_S. directory: of the script.
    """
    checked_at, cached_signature, module_count, names = shadowed_modules.get(directory, (0, None, 0, ()))
    now = monotonic()
    has_new_modules = module_count != len(known_modules)
    if has_new_modules or now - checked_at > CHECK_S:
        current_signature = file_signature(directory)
        if has_new_modules or current_signature != cached_signature:
            names = [name for name in module_names_in(directory) if is_found_on_path(name)]
        if len(shadowed_modules) >= MAX_DIRECTORIES:
            shadowed_modules.clear()
        shadowed_modules[directory] = now, current_signature, len(known_modules), names
    for name in names:
        for hidden in [loaded for loaded in modules if loaded == name or loaded.startswith(name + ".")]:
            del modules[hidden]


def is_found_on_path(name):
    """Return whether this is the name of an installed module that Python finds along sys.path."""
    spec = getattr(known_modules.get(name), "__spec__", None)
    return getattr(spec, "has_location", False)


def module_names_in(directory):
    """Return the names of the modules and packages in a directory; none if it cannot be read, as in Python."""
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
    """Return whether a file of an installed module has changed since its import. Check once in CHECK_S."""
    global libraries_checked_at
    now = monotonic()
    if not signatures or now - libraries_checked_at < CHECK_S:
        return False
    libraries_checked_at = now
    return changed_library() is not None


def changed_library():
    """Return the file of an installed module that has changed since its import; None without one.

    A preloaded parent may have read files that this user may not examine: they count as unchanged.
    """
    for file, loaded_signature in signatures.items():
        try:
            if file_signature(file) != loaded_signature:
                return file
        except PermissionError:
            pass
        except OSError:
            return file
    return None


def forget_hidden_libraries():
    """Forget the files of installed modules that do not exist in the mount namespace of this process."""
    for file in list(signatures):
        if not os.path.lexists(file):
            del signatures[file]


# After a script: undo its changes


def register(function, /, *arguments, **named):
    """Replace atexit.register: note functions that an installed module registers when it is loaded."""
    caller = sys._getframe(1).f_code
    if caller.co_name == "<module>" and is_library(caller.co_filename):
        exit_functions.append((function, arguments, named))
    return original_register(function, *arguments, **named)


original_register, atexit.register = atexit.register, register


def flush(stream):
    """Flush a stream, if it is open and its other end is read."""
    try:
        stream.flush()
    except Exception:
        pass  # the script may have put any object there


def remove_tracers():
    """Remove all functions that a script has registered to trace, profile or monitor the interpreter."""
    if gettrace() or getprofile():
        settrace(None)
        setprofile(None)
    for tool in MONITORING_TOOLS:
        if sys.monitoring.get_tool(tool):
            stop_monitoring(tool)


def collect_garbage(marker=None):
    """Reset the modules, then collect the script's reference cycles. Finalizers may still write output.

    Objects older than the script are frozen and never scanned. Objects that it leaves behind are scanned once, then
    frozen. marker: a weak reference to an object in the script's variables. If that object is still alive, the
    variables are cleared.
    """
    global has_old_objects
    gc.disable()  # no object may reach an older generation unnoticed
    gc.set_debug(0)
    # Other callbacks: the script has removed note_age(), and `has_old_objects` may be wrong
    collects_all = has_old_objects or gc.callbacks != [note_age] or not CAN_COLLECT_YOUNG
    gc.callbacks.clear()
    has_new_modules = modules_changed() and restore_modules()
    for reset, module in resets.copy():  # reset_random() may replace the items of the list
        reset(module)
    generation = ALL_GENERATIONS if collects_all else YOUNG_GENERATIONS
    has_left_many = collect_cycles(marker, generation) > MANY_LEFT_OBJECTS
    # Frozen objects are not scanned again after the next scripts
    if has_new_modules or (has_left_many and len(gc.get_objects()) > MANY_LEFT_OBJECTS):
        freeze()
    has_old_objects = False
    gc.callbacks.append(note_age)
    gc.enable()


def collect_cycles(marker, generation):
    """Collect reference cycles up to a generation of gc; return how many objects the script had left behind.

    marker: a weak reference to an object in the script's variables, None if the variables are cleared already.
    """
    objects = gc.get_objects()
    # Flush files first: in a cycle, a file's descriptor may be collected before the file
    for left_object in objects:
        if type(left_object) in FLUSHED_TYPES:
            flush(left_object)
    count = len(objects)
    left_object = objects = None  # references would keep the objects alive
    gc.collect(generation)
    if marker and marker():  # the variables are still alive
        for referrer in gc.get_referrers(marker()):
            if type(referrer) is dict:
                referrer.clear()
    return count


def note_age(phase, collection):
    """Note that objects of the script have reached an older generation: only a full collection finds them then.

    gc calls this before and after each collection (gc.callbacks).
    """
    global has_old_objects
    has_old_objects = has_old_objects or collection["generation"] > 0


def freeze():
    """Exclude the present objects from later collections. Each FREEZES_PER_SCAN-th call first collects garbage."""
    global freeze_count
    freeze_count += 1
    if freeze_count % FREEZES_PER_SCAN == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def undo_changes(first_free):
    """Undo a script's changes to sys, builtins, settings of the interpreter, exit functions and search paths.

    Also close its descriptors. collect_garbage() has reset the other modules. The values in capitals are those
    that note_initial_state() and note_search_paths() have noted, below. first_free: the lowest descriptor that
    scripts get.
    """
    remove_tracers()
    vars(sys).update(SYS_VALUES)
    for module, variables_before, values_before in MODULE_VARIABLES:
        if not have_equal_items(list(vars(module).values()), values_before):
            restore_variables(vars(module), variables_before)
    if [read() for read, _ in SETTINGS] != SETTING_VALUES:
        for (_, write), value in zip(SETTINGS, SETTING_VALUES, strict=True):
            write(value)
    sys.set_asyncgen_hooks(None, None)
    # run_atexit() has called and removed all exit functions, also those of the modules that stay
    for function, arguments, named in exit_functions:
        original_register(function, *arguments, **named)
    for path_list, items_before in PATH_LISTS:
        path_list[:] = items_before
    if next(reversed(sys.path_importer_cache), None) != newest_cached_path:
        drop_cached_paths()
    if gc.get_threshold() != GC_THRESHOLD or gc.garbage:
        gc.set_threshold(*GC_THRESHOLD)
        gc.garbage.clear()
    os.closerange(first_free, END_OF_DESCRIPTORS)


def drop_cached_paths():
    """Drop cached paths of the script's modules: "." was its directory, and other files may appear there."""
    global newest_cached_path
    for path, finder in list(sys.path_importer_cache.items()):
        # A relative path; or no directory (an archive, for example) and no longer on the search path
        if path[:1] != "/" or (type(finder) is not FileFinder and path not in sys.path):
            del sys.path_importer_cache[path]
    newest_cached_path = next(reversed(sys.path_importer_cache), None)


def stop_monitoring(tool):
    """Remove a tool of sys.monitoring, by its number, and all its callbacks."""
    sys.monitoring.set_events(tool, 0)
    for event in filter(None, vars(sys.monitoring.events).values()):
        sys.monitoring.register_callback(tool, event, None)
    sys.monitoring.free_tool_id(tool)


def have_equal_items(values, values_before):
    """Return whether the values of a module's variables are equal to earlier ones, in the same order.

    This comparison runs after each script, and must be fast: identical objects are equal without a call of __eq__.
    To compare the names, or the identity of each pair, would take longer. An object that is only equal to the
    earlier one is therefore overlooked. undo_changes() sets the variables in SYS_VALUES again in any case.
    """
    try:
        return values == values_before
    except Exception:  # the script's own class has an __eq__ that fails
        return False


def restore_variables(variables, variables_before):
    """Set variables to their values in `variables_before`, and remove all others."""
    variables.update(variables_before)
    for name in variables.keys() - variables_before.keys():
        del variables[name]


def restore_signal_handlers():
    """Set the handler of each signal to that of a new interpreter, which ignores SIGPIPE, for example."""
    if list(map(_signal.getsignal, SIGNALS)) != SIGNAL_HANDLERS:
        for number, handler in zip(SIGNALS, SIGNAL_HANDLERS, strict=True):
            if _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)


def reset_signals(module):
    """Reset the signal handlers, the timers and the wakeup descriptor; discard pending signals, and unblock all."""
    restore_signal_handlers()
    for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
        _signal.setitimer(timer, 0)
    for number in _signal.sigpending():  # a blocked signal is still pending: discard it
        _signal.signal(number, _signal.SIG_IGN)
        _signal.signal(number, SIGNAL_HANDLERS[SIGNALS.index(number)])
    _signal.set_wakeup_fd(-1)
    # signal.pthread_sigmask would make an enum of each number
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def reset_logging(module):
    """Reset logging. Loggers named after an installed module belong to it, and stay."""
    module.disable(module.NOTSET)
    module.captureWarnings(False)
    module.setLoggerClass(module.Logger)
    module.setLogRecordFactory(module.LogRecord)
    module.raiseExceptions = True
    module._levelToName.update(LOG_LEVELS)
    loggers = module.root.manager.loggerDict
    for name in [name for name in loggers if name.partition(".")[0] not in known_modules]:
        del loggers[name]
    for logger in (module.root, *loggers.values()):
        if isinstance(logger, module.Logger):
            logger.handlers[:] = [
                handler for handler in logger.handlers if isinstance(handler, module.NullHandler)
            ]
            logger.filters.clear()
            logger.setLevel(module.WARNING if logger is module.root else module.NOTSET)
            logger.propagate, logger.disabled = True, False


def reset_threading(module):
    """Reset the stack size, the exception and trace functions, and the numbers of new threads."""
    _thread.stack_size(0)
    count = itertools.count(1).__next__  # numbers the threads without a name
    vars(module).update(
        excepthook=module.__excepthook__, _trace_hook=None, _profile_hook=None, _counter=count
    )


def reset_finalizers(module):
    """Reset weakref. Its finalizers run only at the first end of a script unless these flags are reset."""
    if module.finalize._registered_with_atexit:
        module.finalize._registered_with_atexit = module.finalize._shutdown = False


def reset_warnings(module):
    """Reset the filters of warnings, and the functions that show a warning."""
    module.resetwarnings()  # also forgets which warnings were shown
    module.filters[:] = WARNING_FILTERS
    vars(module).update(WARNING_FUNCTIONS)


def reset_locale(module):
    """Restore the locale that the interpreter started with."""
    if _locale.setlocale(_locale.LC_ALL) != START_LOCALE:
        _locale.setlocale(_locale.LC_ALL, START_LOCALE)


def reset_random(module):
    """Seed random again: a client could predict the next numbers from earlier ones.

    The method of `_inst` takes a third of the time of random.seed().
    """
    try:
        module._inst.seed(int.from_bytes(os.urandom(SEED_BYTES), "little"))
    except AttributeError:  # the script has broken the module
        del known_modules["random"]
        del modules["random"]
        note_reset_functions()


def setter(**values):
    """Return a function that sets variables of a module to these values."""
    return lambda module: vars(module).update(values)


# Name of a module -> the function that resets its state after each script, if the module is imported. The function
# gets the module as its argument, also if it does not use it
RESETS = {
    "signal": reset_signals,
    "locale": reset_locale,
    "logging": reset_logging,
    "random": reset_random,
    "threading": reset_threading,
    "warnings": reset_warnings,
    "weakref": reset_finalizers,
    "asyncio.events": setter(_event_loop_policy=None),
    "socket": lambda module: module.setdefaulttimeout(None),
    "calendar": lambda module: module.setfirstweekday(0),
    "faulthandler": lambda module: (module.cancel_dump_traceback_later(), module.disable()),
    "fileinput": setter(_state=None),
    "gettext": setter(_current_domain="messages"),
    "multiprocessing.context": lambda module: vars(module._default_context).update(_actual_context=None),
    "multiprocessing.process": lambda module: setattr(module, "_process_counter", itertools.count(1)),
    "multiprocessing.util": setter(_exiting=False, _logger=None, _log_to_stderr=False),
    "subprocess": lambda module: module._active.clear(),  # unreaped children keep open descriptors
    "tempfile": setter(tempdir=None),
    "tracemalloc": lambda module: module.stop(),
    "urllib.request": setter(_opener=None),
    "zipimport": lambda module: module._zip_directory_cache.clear(),
}


def note_initial_state():
    """Note the state of the interpreter before any script has run, and prepare it for scripts.

    The values in capitals are those that undo_changes() and the reset functions (RESETS) restore.
    """
    global START_LOCALE, SIGNALS, SIGNAL_HANDLERS, WARNING_FILTERS, WARNING_FUNCTIONS
    global SETTING_VALUES, GC_THRESHOLD
    hide_engine()
    known_modules.update(sys.modules)
    for module in known_modules.values():  # a preloaded parent may have loaded installed ones
        note_signature(module)
    note_reset_functions()
    SETTING_VALUES = [read() for read, _ in SETTINGS]
    START_LOCALE = _locale.setlocale(_locale.LC_ALL)
    SIGNALS = list(_signal.valid_signals())
    SIGNAL_HANDLERS = list(map(_signal.getsignal, SIGNALS))
    WARNING_FILTERS = warnings.filters[:]
    # A script may replace these two functions to show warnings in its own way
    WARNING_FUNCTIONS = {name: getattr(warnings, name) for name in ("showwarning", "formatwarning")}
    GC_THRESHOLD = gc.get_threshold()
    note_variables()
    prepare_collector()


def hide_engine():
    """Hide the engine's own modules and directory from scripts; let own_module_finder() find the users' modules."""
    for name in [name for name in sys.modules if name.startswith("python_")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path and path != HERE]
    sys.path_hooks.insert(0, own_module_finder)


def note_variables():
    """Note the variables of sys and builtins as they are between two scripts: without streams."""
    global MODULE_VARIABLES, SYS_VALUES
    streams = {name: getattr(sys, name) for name in STREAMS}
    SYS_VALUES = {**dict.fromkeys(STREAMS), "stderr": sys.stderr, "__stderr__": sys.__stderr__}
    # Variables that are restored after each script, since have_equal_items() overlooks an equal object: a list that
    # is equal to the earlier one, or an excepthook whose class has an __eq__ that returns True
    for name in (
        "argv", "excepthook", "modules", "path", "meta_path", "path_hooks", "path_importer_cache", "warnoptions",
    ):  # fmt: skip
        SYS_VALUES[name] = getattr(sys, name)
    vars(sys).update(SYS_VALUES)
    MODULE_VARIABLES = [
        (module, dict(vars(module)), list(vars(module).values())) for module in (sys, builtins)
    ]
    vars(sys).update(streams)


def prepare_collector():
    """Exclude the present objects from garbage collections: these then scan only the objects of scripts."""
    # note_age() tells collect_garbage() whether it must scan the objects of all generations
    gc.callbacks.append(note_age)
    # The first call of compile() makes hundreds of objects. They must exist before freeze(), which excludes them
    # from later collections
    compile("", "", "exec")
    gc.collect()
    gc.freeze()


def unload_all_but(names):
    """Remove all modules but those of these names from sys.modules, as in an interpreter that has just started."""
    global known_modules
    known_modules = {name: module for name, module in modules.items() if name in names}
    unloaded_modules.update(modules)  # keeps them alive: functions of a module may still be in use
    modules.clear()
    modules.update(known_modules)
    gc.callbacks.clear()  # note_age() serves only an engine that runs several scripts


def release_objects(marker):
    """Release the script's objects at the end of its process. Finalizers may still write output.

    marker: see collect_cycles(); None if the script defines no finalizer.
    """
    gc.disable()
    gc.set_debug(0)
    for name, _ in loaded_own_modules:
        modules.pop(name, None)
    collect_cycles(marker, ALL_GENERATIONS)


def note_search_paths():
    """Note the lists of search paths and their items, once the user's own site-packages are among them."""
    global PATH_LISTS
    PATH_LISTS = [(path_list, path_list[:]) for path_list in (sys.path, sys.meta_path, sys.path_hooks)]
