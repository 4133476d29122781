"""Finds the uses that one file of Python source makes of imported objects, for python_isolation.py.

A SourceVisitor walks the syntax tree of a file, and runs none of its code. It notes three kinds of facts:

    import json, os                  imports: json, os
    print(json.dumps(os.environ))    uses: ("json.dumps", CALL), ("os.environ", VALUE)
    order.total = 3                  changed_attributes: total     (if `order` may belong to another file)
    class Order: total = 0           own_attributes: total

It follows names and attributes, and nothing else. An object of the library may get another name: as an item of a
list, a parameter, or a class that Python itself passes. The SourceVisitor cannot follow such an object. It notes
the use as a VALUE, or the whole file as `always_forks`, and python_isolation.py gives the script a separate
process. An unnecessary fact costs a fork. A missing fact may cost a wrong page.
"""

import ast

import python_code

__builtins__ = vars(python_code)["__builtins__"]

# How a script uses an imported object: it calls it, names it (`except json.Error`), uses it as a value, derives a
# class from it, sets it (`sys.stdout = x`), or changes the table in it (`os.environ["X"] = x`)
CALL, NAME, VALUE, BASE, SET, CHANGE = "call", "name", "value", "base", "set", "change"

# Built-in functions that run unknown code, or find an object by its name
POWERFUL_BUILTINS = {
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
    "globals", "locals", "setattr", "type", "vars",
}  # fmt: skip
# Attributes of any object that lead to shared state, or change it
SHARED_STATE_NAMES = {
    "BOOLEAN_STATES", "ag_frame", "cr_frame", "enable_callback_tracebacks", "f_back", "f_builtins",
    "f_globals", "f_locals", "gi_frame", "header_factory", "map_to_type", "mro", "parser", "policy", "tb_frame",
}  # fmt: skip
# First letters of names of functions that register something for the whole process
REGISTER_PREFIXES = "register", "unregister"
HARMLESS_DUNDERS = {  # attributes of any object that do not lead to shared state
    "__call__", "__contains__", "__doc__", "__enter__", "__eq__", "__exit__", "__getitem__", "__hash__", "__init__",
    "__iter__", "__len__", "__name__", "__new__", "__next__", "__post_init__", "__qualname__", "__repr__",
    "__str__",
}  # fmt: skip
# Special variables that each script has, and may read
SCRIPT_VARIABLES = {"__annotations__", "__debug__", "__doc__", "__file__", "__name__", "__package__"}
# Methods that change a list, dict or set
CONTENT_CHANGING_METHODS = {
    "__delitem__", "__setitem__", "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
# Attributes of library objects that are made for one script
SETTABLE_ATTRIBUTES = {"isolation_level", "row_factory", "text_factory"}
# Methods to which Python passes classes: an exception's, the bases of a class, or one that isinstance() asks about
METHODS_GIVEN_CLASSES = {"__aexit__", "__exit__", "__mro_entries__", "__subclasscheck__", "__subclasshook__"}
# Names of the library that give access to such classes, or make Python pass them to a function
CLASS_PASSING_NAMES = {"contextlib.ExitStack", "sys.exc_info", "sys.excepthook"}
# Functions that take a descriptor: by its number, a script could reach one of the engine's own
DESCRIPTOR_FUNCTIONS = {
    "codecs.open", "fcntl.flock", "fcntl.lockf", "io.open", "os.chdir", "os.chmod", "os.fstat", "os.fsync",
    "os.isatty", "os.listdir", "os.read", "os.scandir", "os.stat", "os.truncate", "os.utime", "os.write",
}  # fmt: skip
# Arguments of open() and of functions of the library that may be a descriptor
DESCRIPTOR_ARGUMENTS = {
    "dir_fd", "dst_dir_fd", "fd", "file", "filename", "path", "src_dir_fd", "stderr", "stdin", "stdout",
}  # fmt: skip
LAST_OF_SCRIPT = 2  # the last descriptor that each script has: standard error
# Built-in functions that call a function, and pass it on to no other code
CALLING_BUILTINS = {"filter", "map", "max", "min", "sorted"}
# Built-in functions that only compare classes
CLASS_TESTING_BUILTINS = {"isinstance", "issubclass"}
FUNCTION_NODES = ast.FunctionDef, ast.AsyncFunctionDef


class SourceVisitor(ast.NodeVisitor):
    """Reads the source of one file.

    always_forks: the file needs a separate process, even if all its imports are harmless.
    imports: (level, module, names) of each import.
    uses: (the imported name, with dots, and its kind of use) of each use.
    changed_attributes: changed attributes, and private ones, of objects other than `self`.
    own_attributes: the attributes that its own classes define.
    gets_unnamed_classes: Python may pass it a class of the library that the file does not name.
    """

    def __init__(self, source):
        """Read source, and fill the attributes that the class describes. Raises the errors of ast.parse().

        The names come first: those that the file imports, and those of its functions and classes. visit() needs
        both to recognize the uses.
        """
        tree = ast.parse(source)
        self.always_forks = False
        self.imports = []
        self.import_paths = {}  # name in the file -> full names of the objects that it may stand for ("os.environ")
        self.uses = set()
        self.changed_attributes = set()
        self.own_attributes = set()
        self.gets_unnamed_classes = False
        self.own_names = set()  # `self` of its methods, and names of its functions and classes
        self.number_names = set()  # variables to which the file assigns the number of a descriptor
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.note_import(node)
            elif isinstance(node, ast.ImportFrom):
                self.note_import_from(node)
            elif isinstance(node, ast.ClassDef):
                self.note_class(node)
            elif isinstance(node, FUNCTION_NODES):
                self.own_names.add(node.name)
            elif isinstance(node, ast.Assign) and self.is_descriptor(node.value):
                self.number_names.update(name.id for name in node.targets if isinstance(name, ast.Name))
        self.own_names -= self.import_paths.keys()
        self.visit(tree)

    # Before the uses: which names are imported ones, which are the file's own

    def note_import(self, node):
        """Note the modules and the names of an `import` statement."""
        for alias in node.names:
            self.imports.append((0, alias.name, ()))
            name = alias.asname or alias.name.partition(".")[0]
            self.import_paths.setdefault(name, set()).add(alias.name if alias.asname else name)

    def note_import_from(self, node):
        """Note the modules and the names of a `from ... import` statement."""
        names = [alias.name for alias in node.names]
        self.imports.append((node.level, node.module or "", names))
        for alias in node.names:
            path = f"{node.module}.{alias.name}" if not node.level else "." + alias.name
            self.import_paths.setdefault(alias.asname or alias.name, set()).add(path)
            if alias.name == "*" or changes_shared_state(alias.name):
                self.always_forks = True

    def note_class(self, node):
        """Note the attributes that a class of the file defines, in its body and in its methods.

        Note also whether Python may pass it a class of the library: see METHODS_GIVEN_CLASSES.
        """
        self.own_names.add(node.name)
        self.gets_unnamed_classes |= any("abc.ABCMeta" in self.imported_paths(base) for base in node.bases)
        for part in node.body:
            if isinstance(part, FUNCTION_NODES):
                self.own_attributes.add(part.name)
                self.gets_unnamed_classes |= part.name in METHODS_GIVEN_CLASSES
                is_static = any(is_name(decorator, "staticmethod") for decorator in part.decorator_list)
                if part.args.args and not is_static:
                    first_parameter = part.args.args[0]
                    self.note_method(part, self_name=first_parameter.arg)
            else:
                for name in ast.walk(part):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        self.own_attributes.add(name.id)
                    elif isinstance(name, (ast.Import, ast.ImportFrom)):
                        self.always_forks = True  # an attribute of the class: uses by `self` are not followed

    def note_method(self, method, self_name):
        """Note the attributes that a method sets. self_name: the name of its first parameter, usually `self`."""
        self.own_names.add(self_name)
        for part in ast.walk(method):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and is_name(part.value, self_name)
            ):
                self.own_attributes.add(part.attr)

    # The uses

    def imported_paths(self, node):
        """Return all imported names that an expression may stand for, with dots ("os.environ")."""
        if isinstance(node, ast.Name):
            return self.import_paths.get(node.id, ())
        if isinstance(node, ast.Attribute):
            return [f"{base}.{node.attr}" for base in self.imported_paths(node.value)]
        return ()

    def note_use(self, node, kind):
        """Note how the file uses an expression, if that leads to an imported object; else visit the expression.

        node: the expression, such as `os.environ`; None if the statement has none, as `except:`. kind: CALL, NAME,
        VALUE or BASE, explained at the top of this file.

        `(A, B)`, `A | B` and `list[A]` may stand where a file only names classes (NAME), and `list[A]` where it
        derives a class (BASE): each class in them is noted.
        """
        if isinstance(node, (ast.Tuple, ast.BinOp)) and kind == NAME:
            for part in ast.iter_child_nodes(node):
                self.note_use(part, kind)
        elif isinstance(node, ast.Subscript) and kind in (NAME, BASE):  # list[date], Generic[T]
            self.note_use(node.value, kind)
            self.note_use(node.slice, NAME)
        elif paths := self.imported_paths(node):
            self.note_uses(paths, kind)
        elif isinstance(node, ast.expr):  # not None, and not the operator of `A | B`
            self.visit(node)

    def note_uses(self, paths, kind):
        """Note that imported objects are used. paths: their names, with dots. kind: CALL, NAME, VALUE ..."""
        self.uses.update((path, kind) for path in paths)
        self.gets_unnamed_classes |= not CLASS_PASSING_NAMES.isdisjoint(paths)

    def visit_Name(self, node):
        """Note a name that stands alone, such as `os` in `print(os)`: its object is used as a VALUE."""
        if node.id in POWERFUL_BUILTINS or (is_dunder(node.id) and node.id not in SCRIPT_VARIABLES):
            self.always_forks = True
        if isinstance(node.ctx, ast.Load):
            self.note_uses(self.imported_paths(node), VALUE)

    def visit_Attribute(self, node):
        """Note an attribute that is read or set, such as `os.environ` or `order.total`.

        `type(x).__name__` and `x.__class__.__name__` lead to a text alone, and are harmless.
        """
        if paths := self.imported_paths(node):
            self.note_uses(paths, VALUE if isinstance(node.ctx, ast.Load) else SET)
            return
        names_a_class = node.attr in ("__name__", "__qualname__")
        if names_a_class and is_type(node.value):
            [argument] = node.value.args
            self.visit(argument)
            return
        if names_a_class and isinstance(node.value, ast.Attribute) and node.value.attr == "__class__":
            self.visit(node.value.value)
            return
        self.check_attribute(node)
        if not isinstance(node.ctx, ast.Load) and node.attr not in SETTABLE_ATTRIBUTES:
            self.note_change(node)
        self.visit(node.value)

    def check_attribute(self, node):
        """Note an attribute that leads to shared state (always_forks), or a private one.

        A private attribute of a library object may hold shared state. A script may therefore use only those that
        its own classes define. The same rule holds for changed attributes, so a private one is noted as changed.
        """
        if changes_shared_state(node.attr):
            self.always_forks = True
        elif is_dunder(node.attr):
            self.always_forks |= node.attr not in HARMLESS_DUNDERS
        elif node.attr.startswith("_"):
            self.note_change(node)

    def note_change(self, node):
        """Note that an attribute is changed, or that the object in it may be."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self.own_names):
            self.changed_attributes.add(node.attr)

    def note_table_change(self, node):
        """Note that the table in an expression is changed."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if paths := self.imported_paths(node):
            self.note_uses(paths, CHANGE)
        elif isinstance(node, ast.Attribute):
            self.note_change(node)

    def visit_Subscript(self, node):
        """Note which table `table[key] = value` and `del table[key]` change.

        An imported table is not visited: visit() would also note a use as a VALUE.
        """
        if not isinstance(node.ctx, ast.Load):
            self.note_table_change(node.value)
            if self.imported_paths(node.value):
                self.visit(node.slice)
                return
        self.generic_visit(node)

    def visit_Call(self, node):
        """Note a call: the function as CALL, and its arguments as VALUE.

        Some built-in functions only call an argument (map: CALL), or compare it with classes (isinstance: NAME).
        """
        function = node.func
        self.note_use(function, CALL)
        if (
            isinstance(function, ast.Attribute)
            and function.attr in CONTENT_CHANGING_METHODS
            and not self.imported_paths(function)
        ):
            self.note_table_change(function.value)
        name = function.id if isinstance(function, ast.Name) else ""
        self.check_descriptors(node, name == "open", self.imported_paths(function))
        if name == "getattr" and len(node.args) > 1:
            _object, attribute_name, *_ = node.args
            self.check_getattr_name(attribute_name)
        kind = CALL if name in CALLING_BUILTINS else NAME if name in CLASS_TESTING_BUILTINS else VALUE
        # A name of the file hides the built-in function
        if name in self.import_paths or name in self.own_names:
            kind = VALUE
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.note_use(part, kind)

    def check_descriptors(self, node, is_open, paths):
        """Note (always_forks) that a call gives a function the number of a descriptor that may be the engine's.

        node: the call. is_open: it calls open(). paths: the imported names that the function may have.
        """
        numbers = node.args[:1] if is_open or not DESCRIPTOR_FUNCTIONS.isdisjoint(paths) else []
        for keyword in node.keywords if is_open or paths else ():
            if keyword.arg in DESCRIPTOR_ARGUMENTS:
                numbers.append(keyword.value)
            elif keyword.arg == "pass_fds" and isinstance(keyword.value, (ast.List, ast.Tuple)):
                numbers += keyword.value.elts
        self.always_forks |= any(map(self.is_descriptor, numbers))

    def is_descriptor(self, node):
        """Return whether an expression is the number of a descriptor that a script does not find open."""
        if isinstance(node, ast.Name):
            return node.id in self.number_names
        return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > LAST_OF_SCRIPT

    def check_getattr_name(self, node):
        """Note (always_forks) that getattr() looks for a name that is not known, or leads to shared state."""
        name = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(name, str) or name.startswith("_") or changes_shared_state(name):
            self.always_forks = True

    def visit_Compare(self, node):
        """Visit a comparison. `type(x) == Order` uses x alone: the class that type() returns is only compared."""
        for part in (node.left, *node.comparators):
            self.visit(part.args[0] if is_type(part) else part)

    # Where an imported thing is only named

    def visit_ExceptHandler(self, node):
        self.note_use(node.type, NAME)
        self.visit_all(node.body)

    def visit_Raise(self, node):
        self.note_use(node.exc, NAME)
        self.note_use(node.cause, NAME)

    def visit_arg(self, node):
        self.note_use(node.annotation, NAME)

    def visit_AnnAssign(self, node):
        self.note_use(node.annotation, NAME)
        self.visit(node.target)
        self.note_use(node.value, VALUE)

    def visit_FunctionDef(self, node):
        self.visit(node.args)
        self.note_use(node.returns, NAME)
        self.visit_decorated(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        for part in (*node.bases, *(keyword.value for keyword in node.keywords)):
            self.note_use(part, BASE)
        self.visit_decorated(node)

    def visit_decorated(self, node):
        for part in node.decorator_list:
            self.note_use(part, CALL)
        self.visit_all(node.body)

    def visit_all(self, nodes):
        for part in nodes:
            self.visit(part)


def changes_shared_state(name):
    """Return whether this is the name of a function or attribute that may change state which all scripts share."""
    return name in SHARED_STATE_NAMES or name.lstrip("_").startswith(REGISTER_PREFIXES)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def is_name(node, name):
    return isinstance(node, ast.Name) and node.id == name


def is_type(node):
    """Return whether a node is a call of type() with one argument."""
    return (
        isinstance(node, ast.Call)
        and is_name(node.func, "type")
        and len(node.args) == 1
        and not node.keywords
    )
