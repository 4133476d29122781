"""What one file of Python source does with the things that it imports, for python_isolation.py.

A Reader walks the syntax tree of a file, and runs nothing of it. It notes three kinds of facts:

    import json, os                  imports: json, os
    print(json.dumps(os.environ))    uses: ("json.dumps", CALL), ("os.environ", VALUE)
    order.total = 3                  changes: total         (of an object that is not known to be the file's own)
    class Order: total = 0           defines: total

It follows names and attributes, and nothing else. A thing of the library may get another name: as an item of a
list, a parameter, or a class that Python itself passes. The Reader cannot say what happens to it then. It notes
such a use as a VALUE, or the whole file as `strong`, and python_isolation.py gives the script a separate process.
A fact that is noted without need costs a fork. One that is missing may cost a wrong page.
"""

import ast

import python_code

__builtins__ = vars(python_code)["__builtins__"]

# How a script uses an imported thing
CALL, NAME, VALUE, BASE, SET, CHANGE = "call", "name", "value", "base", "set", "change"

# Built-in functions that run unknown code, or find what they return or change by its name
BUILTINS = {
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
    "globals", "locals", "setattr", "type", "vars",
}  # fmt: skip
# Attributes of any object that lead to what all scripts share, or change it
STRONG_NAMES = {
    "BOOLEAN_STATES", "ag_frame", "cr_frame", "enable_callback_tracebacks", "f_back", "f_builtins",
    "f_globals", "f_locals", "gi_frame", "header_factory", "map_to_type", "mro", "parser", "policy", "tb_frame",
}  # fmt: skip
REGISTERS = "register", "unregister"
DUNDERS = {  # attributes of any object that lead nowhere
    "__call__", "__contains__", "__doc__", "__enter__", "__eq__", "__exit__", "__getitem__", "__hash__", "__init__",
    "__iter__", "__len__", "__name__", "__new__", "__next__", "__post_init__", "__qualname__", "__repr__",
    "__str__",
}  # fmt: skip
VARIABLES = {
    "__annotations__",
    "__debug__",
    "__doc__",
    "__file__",
    "__name__",
    "__package__",
}  # of each script
MUTATORS = {
    "__delitem__", "__setitem__", "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
# Attributes of objects of the library that are made for one script
SETTABLE = {"isolation_level", "row_factory", "text_factory"}
# Methods that Python calls with classes: an exception's, the bases of a class, or one that isinstance() asks of
GIVEN_CLASSES = {"__aexit__", "__exit__", "__mro_entries__", "__subclasscheck__", "__subclasshook__"}
# Names of the library that give such classes, or have a function called with them
CLASSES = {"contextlib.ExitStack", "sys.exc_info", "sys.excepthook"}
# Built-in functions that call a function, and give nobody else that function
CALLERS = {"filter", "map", "max", "min", "sorted"}
TESTS = {"isinstance", "issubclass"}
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class Reader(ast.NodeVisitor):
    """Reads the source of one file.

    strong: does the file need a separate process, with any imports?
    imports: (level, module, names) of each import.
    uses: (what was imported, with dots, and how it is used) of each use.
    changes: the attributes that it changes, or that are private, of other objects than `self`.
    defines: the attributes that its own classes define.
    sees_classes: may it get hold of a class of the library that it does not name?
    """

    def __init__(self, source):
        """Read source. Raises what parsing raises."""
        tree = ast.parse(source)
        self.strong = False
        self.imports = []
        self.bound = {}  # name -> all that it was imported as, with dots
        self.uses = set()
        self.changes = set()
        self.defines = set()
        self.sees_classes = False
        self.own = set()  # `self` of its methods, and names of its functions and classes
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.note_import(node)
            elif isinstance(node, ast.ImportFrom):
                self.note_import_from(node)
            elif isinstance(node, ast.ClassDef):
                self.note_class(node)
            elif isinstance(node, FUNCTIONS):
                self.own.add(node.name)
        self.own -= self.bound.keys()
        self.visit(tree)

    # Before the uses: which names are imported ones, which are the file's own

    def note_import(self, node):
        for alias in node.names:
            self.imports.append((0, alias.name, ()))
            name = alias.asname or alias.name.partition(".")[0]
            self.bound.setdefault(name, set()).add(alias.name if alias.asname else name)

    def note_import_from(self, node):
        names = [alias.name for alias in node.names]
        self.imports.append((node.level, node.module or "", names))
        for alias in node.names:
            path = f"{node.module}.{alias.name}" if not node.level else "." + alias.name
            self.bound.setdefault(alias.asname or alias.name, set()).add(path)
            if alias.name == "*" or is_strong(alias.name):
                self.strong = True

    def note_class(self, node):
        self.own.add(node.name)
        self.sees_classes |= any("abc.ABCMeta" in self.imported(base) for base in node.bases)
        for each in node.body:
            if isinstance(each, FUNCTIONS):
                self.defines.add(each.name)
                self.sees_classes |= each.name in GIVEN_CLASSES
                static = any(
                    isinstance(by, ast.Name) and by.id == "staticmethod" for by in each.decorator_list
                )
                if each.args.args and not static:
                    self.note_method(each, each.args.args[0].arg)
            else:
                for name in ast.walk(each):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        self.defines.add(name.id)
                    elif isinstance(name, (ast.Import, ast.ImportFrom)):
                        self.strong = True  # a module becomes an attribute

    def note_method(self, method, itself):
        self.own.add(itself)
        for each in ast.walk(method):
            if (
                isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and is_name(each.value, itself)
            ):
                self.defines.add(each.attr)

    # The uses

    def imported(self, node):
        """Return all that was imported that an expression may be, with dots ("os.environ")."""
        if isinstance(node, ast.Name):
            return self.bound.get(node.id, ())
        if isinstance(node, ast.Attribute):
            return [f"{base}.{node.attr}" for base in self.imported(node.value)]
        return ()

    def use(self, node, how):
        """Note how an expression is used, if it was imported; visit it otherwise."""
        if isinstance(node, (ast.Tuple, ast.BinOp)) and how == NAME:
            for each in ast.iter_child_nodes(node):
                self.use(each, how)
        elif isinstance(node, ast.Subscript) and how in (NAME, BASE):  # list[date], Generic[T]
            self.use(node.value, how)
            self.use(node.slice, NAME)
        elif paths := self.imported(node):
            self.note_uses(paths, how)
        elif isinstance(node, ast.expr):
            self.visit(node)

    def note_uses(self, paths, how):
        self.uses.update((path, how) for path in paths)
        self.sees_classes |= not CLASSES.isdisjoint(paths)

    def visit_Name(self, node):
        if node.id in BUILTINS or (is_dunder(node.id) and node.id not in VARIABLES):
            self.strong = True
        if isinstance(node.ctx, ast.Load):
            self.note_uses(self.imported(node), VALUE)

    def visit_Attribute(self, node):
        if paths := self.imported(node):
            self.note_uses(paths, VALUE if isinstance(node.ctx, ast.Load) else SET)
            return
        names_a_class = node.attr in ("__name__", "__qualname__")
        if names_a_class and is_type(node.value):
            self.visit(node.value.args[0])
            return
        if names_a_class and isinstance(node.value, ast.Attribute) and node.value.attr == "__class__":
            self.visit(node.value.value)
            return
        self.check_attribute(node)
        if not isinstance(node.ctx, ast.Load) and node.attr not in SETTABLE:
            self.change(node)
        self.visit(node.value)

    def check_attribute(self, node):
        if is_strong(node.attr):
            self.strong = True
        elif is_dunder(node.attr):
            self.strong |= node.attr not in DUNDERS
        elif node.attr.startswith("_"):
            self.change(node)

    def change(self, node):
        """Note that an attribute is changed, or that what it holds may be."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self.own):
            self.changes.add(node.attr)

    def change_table(self, node):
        """Note that what an expression holds is changed."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if paths := self.imported(node):
            self.note_uses(paths, CHANGE)
        elif isinstance(node, ast.Attribute):
            self.change(node)

    def visit_Subscript(self, node):
        if not isinstance(node.ctx, ast.Load):
            self.change_table(node.value)
            if self.imported(node.value):
                self.visit(node.slice)
                return
        self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        self.use(function, CALL)
        if isinstance(function, ast.Attribute) and function.attr in MUTATORS and not self.imported(function):
            self.change_table(function.value)
        name = function.id if isinstance(function, ast.Name) else ""
        if name == "getattr" and len(node.args) > 1:
            self.check_name(node.args[1])
        how = CALL if name in CALLERS else NAME if name in TESTS else VALUE
        if name in self.bound or name in self.own:
            how = VALUE
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.use(each, how)

    def check_name(self, node):
        """Check the name that getattr() looks for."""
        name = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(name, str) or name.startswith("_") or is_strong(name):
            self.strong = True

    def visit_Compare(self, node):
        for each in (node.left, *node.comparators):
            self.visit(each.args[0] if is_type(each) else each)

    # Where an imported thing is only named

    def visit_ExceptHandler(self, node):
        self.use(node.type, NAME)
        self.visit_all(node.body)

    def visit_Raise(self, node):
        self.use(node.exc, NAME)
        self.use(node.cause, NAME)

    def visit_arg(self, node):
        self.use(node.annotation, NAME)

    def visit_AnnAssign(self, node):
        self.use(node.annotation, NAME)
        self.visit(node.target)
        self.use(node.value, VALUE)

    def visit_FunctionDef(self, node):
        self.visit(node.args)
        self.use(node.returns, NAME)
        self.visit_decorated(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        for each in (*node.bases, *(keyword.value for keyword in node.keywords)):
            self.use(each, BASE)
        self.visit_decorated(node)

    def visit_decorated(self, node):
        for each in node.decorator_list:
            self.use(each, CALL)
        self.visit_all(node.body)

    def visit_all(self, nodes):
        for each in nodes:
            self.visit(each)


def is_strong(name):
    """Is this the name of a function or attribute that changes what all share?"""
    return name in STRONG_NAMES or name.lstrip("_").startswith(REGISTERS)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def is_name(node, name):
    return isinstance(node, ast.Name) and node.id == name


def is_type(node):
    """Is this a call of type() with one argument?"""
    return (
        isinstance(node, ast.Call)
        and is_name(node.func, "type")
        and len(node.args) == 1
        and not node.keywords
    )
