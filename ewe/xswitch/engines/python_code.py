"""Compiled code of the Python engine (python.py): of scripts, and of modules of the user's own.

Code is immutable, so it may serve one request after another. A file is compiled once for each change.
"""

import builtins
import os
import sys
from importlib import machinery
from importlib.machinery import FileFinder

__builtins__ = dict(vars(builtins))  # for what the engine's files define: a script may change its own
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = tuple(os.path.join(path, "") for path in sys.path if path and path != HERE)
STANDARD = tuple(os.path.join(path, "") for path in {os.path.dirname(os.__file__)})
SUFFIXES = tuple(machinery.all_suffixes())
MAX_CODES = 500  # files whose compiled code is kept

codes = {}  # file -> (its signature, its code)
with_finalizers = set()  # scripts of them that define any
fresh = {}  # file -> its signature, where this request has looked at it already
loaded = []  # (name, file) of the user's own modules that the running script has loaded


def signature(file):
    """Return what changes when a file does. An edit can keep the size and set the time back, but not ctime."""
    status = os.stat(file)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def code_of(script):
    """Return the compiled code of a script."""
    now = fresh.pop(script, None) or signature(script)
    known, code = codes.get(script, (None, None))
    if known != now:
        with open(script, "rb") as opened:
            source = opened.read()
        code = compile(source, script, "exec", dont_inherit=True)
        keep(script, now, code)
        (with_finalizers.add if b"__del__" in source else with_finalizers.discard)(script)
    return code


def keep(file, now, code):
    """Keep the code of a file for the next request."""
    if len(codes) >= MAX_CODES:
        codes.clear()
        with_finalizers.clear()
    codes[file] = (now, code)


# Modules of the user's own


class Loader(machinery.SourceFileLoader):
    """Loads a module of the user's own; its code is kept as that of a script is."""

    def get_code(self, fullname):
        loaded.append((fullname, self.path))
        now = fresh.pop(self.path, None) or signature(self.path)
        known, code = codes.get(self.path, (None, None))
        if known != now:
            code = super().get_code(fullname)  # of a valid file in __pycache__, where there is one
            keep(self.path, now, code)
        return code

    def _cache_bytecode(self, source_path, bytecode_path, data):
        """Write no file into the user's directory."""


def find_own(directory):
    """Return the finder for a directory of modules of the user's own; sys.path_hooks calls this."""
    if is_library(os.path.join(directory, "")) or not os.path.isdir(directory):
        raise ImportError  # for the next hook, of the library or of archives
    return FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (Loader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def is_library(file):
    """Is this a file of an installed module?"""
    return file.startswith(LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file


def is_standard(file):
    """Is this a file of Python's own library?"""
    return file.startswith(STANDARD) and "-packages/" not in file
