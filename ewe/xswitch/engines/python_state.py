"""What the Python engine (python.py) keeps of one script for the next: compiled code, and installed modules.

And what it does not keep: remember() notes how the interpreter is before any script has run, forget() makes it so
again.
"""

import _locale
import _signal
import builtins
import gc
import io
import os
import sys
import time
import warnings
from importlib import machinery

MAX_CODES = 500  # files whose compiled code is kept
MANY = 200  # objects that a script has left: to look through them costs 10 us
THAW = 200  # a freeze of so many begins with a look at all that was frozen
STREAMS = "stdin", "stdout", "__stdin__", "__stdout__"  # of sys; between two scripts there are none
YOUNG_ALONE = sys.version_info < (3, 14)  # can be collected
FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}

codes = {}  # file -> (its signature, its code)
known_modules = set()  # names of those that stay
signatures = {}  # file of an installed module -> its signature when it was loaded
looked = 0.0  # when they were last compared
grown_old = True
freezes = 0


# Compiled code


def signature(file):
    """Return what changes when a file does."""
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size, status.st_ino


def code_of(file):
    """Return the compiled code of a file; it is compiled once for each change."""
    now = signature(file)
    known, code = codes.get(file, (None, None))
    if known != now:
        with open(file, "rb") as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
        if len(codes) >= MAX_CODES:
            codes.clear()
        codes[file] = (now, code)
    return code


# Modules: those that are installed stay; those beside the scripts are as new for each request


class Loader(machinery.SourceFileLoader):
    """Loads a module of the user's own; its code is kept as that of a script is."""

    def get_code(self, fullname):
        return code_of(self.path)


def find_own(directory):
    """Return the finder for a directory of modules of the user's own; sys.path_hooks calls this."""
    if is_library(os.path.join(directory, "")):
        raise ImportError
    return machinery.FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (Loader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def is_library(file):
    """Is this a file of an installed module?"""
    return file.startswith(LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file


def modules_changed():
    """Has a script loaded any, or dropped any?"""
    return len(sys.modules) != len(known_modules) or next(reversed(sys.modules)) not in known_modules


def sort_modules():
    """Drop the modules of the user's own; note the files of those that are new, and say whether one stays."""
    fresh = [
        (name, getattr(sys.modules[name], "__file__", None)) for name in sys.modules.keys() - known_modules
    ]
    for name, file in fresh:
        if file is not None and not is_library(file):
            del sys.modules[name]
            continue
        known_modules.add(name)
        if file is not None and "-packages/" in file:
            signatures[file] = signature(file)
    return any(name in sys.modules for name, _ in fresh)


def libraries_changed():
    """Has an installed module changed since it was loaded? Looks once a second."""
    global looked
    now = time.monotonic()
    if not signatures or now - looked < 1:
        return False
    looked = now
    try:
        return any(signature(file) != known for file, known in signatures.items())
    except OSError:
        return True


# After a script: what it has changed is as it was


def flush(stream):
    """Write out what a stream holds, if it is open and somebody reads."""
    try:
        stream.flush()
    except Exception:
        pass  # it may be anything that the script has put there


def collect():
    """Let go of what refers to itself; what is ended so may still have something to say.

    What was there before the script is not looked through, and what it has left for good is not a second time.
    """
    global grown_old
    gc.disable()  # nothing may grow old unseen meanwhile
    full = grown_old or gc.callbacks != [note_age] or not YOUNG_ALONE
    gc.callbacks.clear()
    objects = gc.get_objects()
    for each in objects:  # a file in a cycle: its descriptor may be collected first, then it could not write
        if type(each) in FILES:
            flush(each)
    many = len(objects) > MANY
    each = objects = None
    stays = modules_changed() and sort_modules()
    gc.collect(2 if full else 1)
    if stays or (many and len(gc.get_objects()) > MANY):
        freeze()
    grown_old = False
    gc.callbacks.append(note_age)
    gc.enable()


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
    if sys.gettrace() or sys.getprofile():
        sys.settrace(None)
        sys.setprofile(None)
    vars(sys).update(OURS)
    for module, names, values in KEPT:
        if not same(list(vars(module).values()), values):
            restore(vars(module), names)
    sys.setrecursionlimit(RECURSION)
    for kept, items in LISTS:
        kept[:] = items
    for path in [path for path in sys.path_importer_cache if path[:1] != "/"]:
        del sys.path_importer_cache[path]  # "." was the script's own directory
    for name, reset in RESETS.items():
        if name in sys.modules:
            reset(sys.modules[name])
    if gc.get_threshold() != THRESHOLD or gc.get_debug():
        gc.set_threshold(*THRESHOLD)
        gc.set_debug(0)
    os.closerange(first_free, 1 << 20)


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
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())  # that of the module makes an enumeration of each number


def reset_logging(module):
    module.disable(module.NOTSET)
    for logger in (module.root, *module.root.manager.loggerDict.values()):
        if isinstance(logger, module.Logger):
            logger.handlers[:] = [each for each in logger.handlers if isinstance(each, module.NullHandler)]
            logger.setLevel(module.WARNING if logger is module.root else module.NOTSET)
            logger.disabled = False


def reset_locale(module):
    if _locale.setlocale(_locale.LC_ALL) != LOCALE:
        _locale.setlocale(_locale.LC_ALL, LOCALE)


def reset_random(module):
    """Seed it anew: who has seen enough of its numbers knows the next. seed() itself would take thrice as long."""
    try:
        module._inst.seed(int.from_bytes(os.urandom(16), "little"))
    except AttributeError:  # the script has broken it
        known_modules.discard("random")
        del sys.modules["random"]


# What to do about a module where a script has imported it
RESETS = {
    "signal": reset_signals,
    "locale": reset_locale,
    "logging": reset_logging,
    "random": reset_random,
    "asyncio.events": lambda module: setattr(module, "_event_loop_policy", None),
    "socket": lambda module: module.setdefaulttimeout(None),
    "warnings": lambda module: module.filters.__setitem__(slice(None), FILTERS),
}


def remember():
    """Note how the interpreter is before any script has run."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ("python_state", "python_streams"):  # no script finds these by name
        sys.modules.pop(name, None)
    sys.path[:] = [path for path in sys.path if path and path != here]
    sys.path_hooks.insert(0, find_own)
    known_modules.update(sys.modules)
    global LIBRARIES, LOCALE, SIGNALS, HANDLERS, FILTERS, KEPT, OURS, RECURSION, THRESHOLD, ZONE
    RECURSION = sys.getrecursionlimit()
    ZONE = time.tzname
    LIBRARIES = tuple(os.path.join(path, "") for path in sys.path)
    LOCALE = _locale.setlocale(_locale.LC_ALL)
    SIGNALS = list(_signal.valid_signals())
    HANDLERS = list(map(_signal.getsignal, SIGNALS))
    FILTERS = warnings.filters[:]
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


def remember_paths():
    """Note where modules are looked for, which a user's own site-packages may have changed since remember()."""
    global LISTS
    LISTS = [(kept, kept[:]) for kept in (sys.path, sys.meta_path, sys.path_hooks)]
