"""Compiled code of the Python engine (python.py): of scripts, and of users' own modules.

Code is immutable, so it may serve one request after another. A file is compiled once for each change.
"""

import builtins
import os
import sys
from importlib import machinery
from importlib.machinery import FileFinder

__builtins__ = dict(vars(builtins))  # for the engine's own functions: a script may change the real builtins
HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY_DIRECTORIES = tuple(os.path.join(path, "") for path in sys.path if path and path != HERE)
STANDARD_DIRECTORIES = tuple(os.path.join(path, "") for path in {os.path.dirname(os.__file__)})
SUFFIXES = tuple(machinery.all_suffixes())
MAX_CACHED_FILES = 500  # files whose compiled code is cached

cached_codes = {}  # file -> (its signature, its code)
scripts_with_finalizers = set()  # scripts in `cached_codes` that define a finalizer
# File -> its signature, if the analysis for this request has read the signature already (python_isolation.py)
request_signatures = {}
loaded_own_modules = []  # (name, file) of the user's own modules that the running script has loaded


def file_signature(file):
    """Return values of stat(2) that differ when a file has changed.

    An edit can keep the size and reset mtime, but not ctime.
    """
    status = os.stat(file)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def cached_code_of(script):
    """Return the compiled code of a script, from the cache if the file has not changed.

    Also note in `scripts_with_finalizers` whether a changed script defines a finalizer. Raises OSError; SyntaxError
    and the other exceptions of compile().
    """
    current_signature = request_signatures.pop(script, None) or file_signature(script)
    cached_signature, code = cached_codes.get(script, (None, None))
    if cached_signature != current_signature:
        with open(script, "rb") as opened:
            source = opened.read()
        code = compile(source, script, "exec", dont_inherit=True)
        cache_code(script, current_signature, code)
        if b"__del__" in source:
            scripts_with_finalizers.add(script)
        else:
            scripts_with_finalizers.discard(script)
    return code


def cache_code(file, current_signature, code):
    """Cache the code of a file for the next requests. current_signature: of the file that was compiled."""
    if len(cached_codes) >= MAX_CACHED_FILES:
        cached_codes.clear()
        scripts_with_finalizers.clear()
    cached_codes[file] = (current_signature, code)


# Users' own modules


class ModuleLoader(machinery.SourceFileLoader):
    """Loads one of the user's own modules; its code is cached like a script's."""

    def get_code(self, fullname):
        """Return the compiled code of the module, from the cache if its file has not changed.

        Also record the module in `loaded_own_modules`.
        """
        loaded_own_modules.append((fullname, self.path))
        # ScriptAnalysis may have read the signature for this request
        current_signature = request_signatures.pop(self.path, None) or file_signature(self.path)
        cached_signature, code = cached_codes.get(self.path, (None, None))
        if cached_signature != current_signature:
            code = super().get_code(fullname)  # reads a valid file in __pycache__, if there is one
            cache_code(self.path, current_signature, code)
        return code

    def _cache_bytecode(self, source_path, bytecode_path, data):
        """Do nothing: the engine writes no file into the user's directory."""


def own_module_finder(directory):
    """Return the finder for a directory of the user's own modules: importlib calls this hook (sys.path_hooks).

    Raises ImportError for all other entries of the search path, such as libraries and archives: importlib then asks
    the next hook.
    """
    if is_library(os.path.join(directory, "")) or not os.path.isdir(directory):
        raise ImportError
    return FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (ModuleLoader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def is_library(file):
    """Return whether this is a file of an installed module, by its path."""
    return file.startswith(LIBRARY_DIRECTORIES) or "/site-packages/" in file or "/dist-packages/" in file


def is_standard(file):
    """Return whether this is a file of Python's own library, by its path."""
    return file.startswith(STANDARD_DIRECTORIES) and "-packages/" not in file
