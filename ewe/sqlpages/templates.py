"""Templates: the HTML of a page from SQL, by jinja2 in a sandbox.

Text is escaped wherever it is inserted (autoescape), and NULL is shown as an empty text. A name that the page does
not declare is an error, with its line.

**The problem.** Users of the machine write templates, and ewe runs them in its own process. A template must not
reach ewe's objects, and must not take all time or memory.

**The sandbox** of jinja2 isolates a template from Python: it allows no attribute that begins with an underscore,
and no change of the objects that the template gets. It limits neither time nor memory.

**The budget** limits time and memory. ewe adds checks to the template before it is compiled (Environment._parse()),
and to each call and operator (call(), call_binop()):

- Loops, calls and comparisons check the clock. After RENDER_TIMEOUT_S the template ends with an error.
- One operation that makes a huge text (`"x" * 10 ** 9`) is refused.
- A text or list may also grow step by step. check_size() therefore adds up the sizes of all lists, long texts and
  slices that a page makes; the size of a list includes all its parts. join_output() adds the output of each block
  and macro.
- The page has at most MAX_PAGE_CHARS.

**Calls that cannot be ended.** Between two checks of the clock there is a call of Python. The time of some calls is
the product of two sizes. The smaller size is therefore limited: the length of the text that rfind() or strip()
searches for (MAX_SEARCH_TEXT_CHARS), the digits of a number (MAX_NUMBER_BITS), the keys to sort by. Compiling a
template takes about 10 µs for each character, so the length of its source is limited (MAX_SOURCE_CHARS).

A template's author still uses the server's processor, as the author of a CGI program does.

A template may extend `ewe`, the layout below, or a file beside it that begins with an underscore:
{% extends "_layout.sql.html" %}. No client can fetch such a file.
"""

from __future__ import annotations

import codecs
import functools
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import Any

import jinja2
import jinja2.debug
from jinja2 import nodes
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError
from jinja2.filters import do_round
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace, htmlsafe_json_dumps
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from ewe.sqlpages.declarations import PageError

# jinja2 loads these at their first use: once root is dropped, Python's directories may not be readable
codecs.lookup("unicode-escape")

MAX_SOURCE_CHARS = 32_768  # of a template: compiled in a third of a second at most
# Characters of the files that pages of one directory extend or include, in memory: 20 MB when compiled
MAX_LOADED_CHARS = 512 * 1024
RENDER_TIMEOUT_S = 2.0  # seconds that a template may take
MAX_PAGE_CHARS = 8 << 20  # characters that a page may have
MAX_RESULT_CHARS = 1 << 20  # of a text that one operation makes or reads
MAX_ITEMS = 1 << 22  # items of one list, with all items of its parts; a text counts by its length
MAX_COUNTED = 1 << 24  # items and characters of all lists and long texts that a page makes
MAX_UNCOUNTED_CHARS = 4096  # of a text that is too short to count
MAX_SEARCH_TEXT_CHARS = 256  # of a text that is searched for in another one
MAX_NUMBER_BITS = 4096  # bits of a number
MAX_SORTED_ITEMS = 1 << 18  # items of a list that one call sorts
MAX_DIGITS = 400  # digits to which a number is rounded; a float has no more
INCLUDABLE_FILE = re.compile(r"(?:[A-Za-z0-9-][A-Za-z0-9_-]*/)*_[A-Za-z0-9_-]+\.sql\.html")
# Filters that can make a long text or list from a short one, and filters whose arguments need a check, too
REMOVED_FILTERS = (
    "center", "indent", "format", "wordwrap", "slice", "batch", "random", "pprint", "sum", "join", "replace",
    "forceescape", "urlize",
)  # fmt: skip
# Methods of a text that a template may call: their results are not longer than the text
SAFE_TEXT_METHODS = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper",
})  # fmt: skip
TEXTS = str | bytes | bytearray | memoryview  # a BLOB of a database is bytes
VIEWS: tuple[type, ...] = type({}.keys()), type({}.values()), type({}.items())
CONTAINERS: tuple[type, ...] = list, tuple, dict, set, frozenset, Cycler, *VIEWS
UNCOUNTED_TYPES = Namespace, TemplateModule  # the sizes of their contents are not counted
NOT_IN_LISTS = *UNCOUNTED_TYPES, LoopContext
# Filters that process all items in one call, and filters that may yield none of many items
ALL_ITEMS_FILTERS = frozenset({"sort", "dictsort", "groupby", "unique", "min", "max"})
SELECTING_FILTERS = frozenset({"select", "reject", "selectattr", "rejectattr"})
# Returns the text of a file that a template extends or includes, and a test whether it is unchanged
Load = Callable[[str], tuple[str, Callable[[], bool]]]

STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf5; --panel: #f1f2e9; --ink: #1f2a24; --quiet: #55605a;
  --line: #d3d8cb; --accent: #1d6b45; --s0: #1d6b45; --s1: #d55e00; --s2: #0072b2; --s3: #b0568e; --s4: #6a5acd;
  --s5: #8c6d00; --s6: #2c8fbf; --s7: #a02c2c; --s8: #4d6b2c; --s9: #5c5c66 }
@media (prefers-color-scheme: dark) { :root { --paper: #151a18; --panel: #1f2623; --ink: #e5e9e4;
  --quiet: #a5b0a9; --line: #3a443f; --accent: #86d3a8; --s0: #86d3a8; --s1: #f0934a; --s2: #56b4e9; --s3: #e08fc4;
  --s4: #a99cf5; --s5: #e3c04a; --s6: #9bd8f5; --s7: #f08080; --s8: #a9cf7c; --s9: #b9bcc4 } }
* { box-sizing: border-box }
html { font: 1.0625rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem } h2 { font-size: 1.2rem; margin: 2rem 0 .6rem }
h1, h2, p { overflow-wrap: anywhere } td { overflow-wrap: break-word }
a { color: var(--accent); text-underline-offset: .15em }
.scroll { overflow-x: auto; margin: 1rem 0 .5rem }
table { border-spacing: 0; min-width: 100% }
th { text-align: left; border-bottom: 2px solid var(--line); white-space: nowrap; font-weight: 600;
  color: var(--quiet) }
th, td { padding: .35rem .8rem .35rem 0; vertical-align: baseline }
th a { color: inherit; text-decoration: none } th a:hover { text-decoration: underline }
th[aria-sort] { color: var(--ink) } th[aria-sort] a::after { content: " ▲"; font-size: .7em }
th[aria-sort=descending] a::after { content: " ▼" }
td { border-bottom: 1px solid var(--line) } tbody tr:hover td { background: var(--panel) }
.number { text-align: right } td.number { white-space: nowrap; font-variant-numeric: tabular-nums }
.pages, .empty, .export, small, time, figcaption { color: var(--quiet); font-size: .92rem }
form { margin: 1rem 0 } form p { margin: .5rem 0 }
form.search { display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: end }
label { display: inline-grid; gap: .15rem; font-size: .92rem; color: var(--quiet) }
input, textarea, select, button { font: inherit; color: inherit; background: var(--paper);
  border: 1px solid var(--quiet); border-radius: .3rem; padding: .35rem .55rem; max-width: 100% }
input[type=checkbox] { justify-self: start; width: 1.2rem; height: 1.2rem }
textarea { width: 100%; min-height: 7rem }
button { background: var(--accent); border-color: var(--accent); color: var(--paper); cursor: pointer;
  padding: .35rem 1rem }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px }
.chart { margin: 1.2rem 0; max-width: 40rem } .chart svg { display: block; width: 100%; height: auto }
svg text { fill: var(--ink); font-family: system-ui, sans-serif } svg text.dim { fill: var(--quiet) }
svg text.title { font-weight: 600 } svg .grid { stroke: var(--line) } svg .axis { stroke: var(--quiet) }
svg path.line { stroke-width: 2; fill: none } svg .mark { stroke: var(--paper); stroke-width: .6 }
""" + "\n".join(
    f"svg rect.s{n}, svg path.mark.s{n} {{ fill: var(--s{n}) }} svg path.line.s{n} {{ stroke: var(--s{n}) }}"
    for n in range(10)
)

LAYOUT = """<!DOCTYPE html>
<html lang="{% block lang %}en{% endblock %}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{% block title %}{{ page.title }}{% endblock %}</title>
<style>{{ page.style }}{% block style %}{% endblock %}</style>
{% block head %}{% endblock %}
{% block body %}<main>
{% block content %}{% endblock %}
</main>{% endblock %}
</html>
"""

# The page of a file that has only declarations
DEFAULT_TEMPLATE = """{% extends "ewe" %}
{% block content %}
<h1>{{ page.title }}</h1>
{% if page.parameters %}<form class="search">
{% for each in page.parameters %}<label>{{ each.name|replace("_", " ")|capitalize }}
{% if each.input == "checkbox" %}<input type="hidden" name="{{ each.name }}" value="0">
<input type="checkbox" name="{{ each.name }}" value="1"{{ " checked" if each.value == "1" }}>
{% else %}<input type="{{ each.input }}" name="{{ each.name }}" value="{{ each.value }}"
{{- " step=any" if each.input == "number" }}{{ " required" if each.required }}>
{% endif %}</label>
{% endfor %}<button>Show</button>
</form>{% endif %}
{% for name, result in results.items() %}{% if result.asked %}
{% if results|length > 1 %}<h2>{{ name|replace("_", " ")|capitalize }}</h2>{% endif %}
{{ result.table() }}
<p class="export">As <a href="{{ result.csv }}">CSV</a> or <a href="{{ result.json }}">JSON</a></p>
{% endif %}{% endfor %}
{% endblock %}
"""


class BudgetExceeded(Exception):
    """A template that takes too long or makes too much; the text is one line."""


class Environment(ImmutableSandboxedEnvironment):
    """jinja2 for pages from SQL: escaped, strict, in a sandbox, with a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "-", "/", "//", "%"})

    def __init__(self, load: Load) -> None:
        """load: see Load. It raises FileNotFoundError."""
        super().__init__(
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=text_to_insert,
            loader=TemplateLoader(load),
            cache_size=100,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters = {name: with_limits(function, name) for name, function in self.filters.items()}
        # Those that begin with ewe_ are called by the nodes that _parse() adds to a template
        self.filters |= {
            "ewe_check_each_round": check_each_round,
            "ewe_concat": concatenate,
            "join": join,
            "replace": replace_in_text,
            "round": with_limits(rounded),
            "sum": sum_of_numbers,
            "tojson": with_limits(lambda value: htmlsafe_json_dumps(value)),
            "ewe_check_size": check_size,
            "ewe_check_clock_after": check_clock_after,
        }
        del self.globals["lipsum"]  # makes texts of any length

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template, and add the checks of the budget as filters: jinja2 calls this.

        Loops and comparisons check the clock, `~` checks the length of its result, and a list or slice its size.
        """
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(
                loop.iter, "ewe_check_each_round", [], [], None, None, lineno=loop.lineno
            )
        Concatenations().visit(tree)
        Containers().visit(tree)
        return tree

    def concat(self, parts: Iterable[str]) -> str:
        """Return the output of a block or macro: jinja2 calls this."""
        return join_output(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may get an attribute of an object: jinja2 calls this.

        A method that can make a long text is not safe, even as a value: ewe's own code could call the value.
        """
        if isinstance(obj, TEXTS) and attr not in SAFE_TEXT_METHODS:
            return False
        if isinstance(obj, int) and attr == "to_bytes":
            return False
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return obj[argument]: jinja2 calls this. Raises SecurityError, since an error would show the argument."""
        check_can_be_shown(argument)
        return super().getitem(obj, argument)

    # The names are jinja2's. The underscores keep them apart from the names of the keyword arguments in `kwargs`.
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call __obj, a function or method, for a template, and return its result; jinja2 calls this.

        Raises SecurityError, BudgetExceeded, and the exceptions of the function.
        """
        check_clock()
        arguments = (*args, *kwargs.values())
        if isinstance(getattr(__obj, "__self__", None), TEXTS):  # a method of a text, such as find()
            check_search_texts(arguments)
        if isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            # The macro gets them in a tuple and a dictionary, and size_of() must have checked each container
            size_of(arguments)
        result = super().call(__context, __obj, *args, **kwargs)
        # concat() has already counted the output of a macro or block.
        return result if isinstance(__obj, Macro | BlockReference) else check_size(result)

    def wrap_str_format(self, value: Any) -> None:
        """Do nothing: is_safe_attribute() refuses the method format(), because it can pad to any length."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Calculate a + b and the like: jinja2 calls this for intercepted_binops. Return the result.

        Raises SecurityError for an operation that makes a huge text, list or number.
        """
        if operator == "**" or (operator == "%" and isinstance(left, TEXTS)):
            raise SecurityError(f"a template may not use the operator {operator}")
        operands = (left, right)
        if operator == "*" and any(isinstance(operand, list | tuple) for operand in operands):
            raise SecurityError("a template may not repeat a list by *")
        if operator in "*+":
            sizes = [len(operand) if isinstance(operand, TEXTS | list | tuple) else 0 for operand in operands]
            numbers = [abs(operand) if isinstance(operand, int) else 1 for operand in operands]
            # The length of a text plus a text, or of a text times a number
            if sum(sizes) > MAX_RESULT_CHARS or (
                operator == "*" and max(sizes) * max(numbers) > MAX_RESULT_CHARS
            ):
                raise SecurityError(f"a text of more than {MAX_RESULT_CHARS} characters")
        for operand in operands:
            check_number(operand)
        return check_size(super().call_binop(context, operator, left, right))


def with_limits(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Wrap a filter: check its value and arguments (checked_filter_value), the time, and the size of its result.

    A filter that yields its items one by one, such as map, checks the time at each item. name: of the filter; a
    few names (default, sort ...) have separate rules.
    """
    # jinja2 gives some filters its own context as the first argument, before the value
    value_index = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        """Call the filter with a checked value, and check its result."""
        if len(args) > value_index:
            before, value, arguments = args[:value_index], args[value_index], args[value_index + 1 :]
            args = (*before, checked_filter_value(name, value, (*arguments, *kwargs.values())), *arguments)
        check_clock()
        result = function(*args, **kwargs)
        return check_each_round(result) if isinstance(result, Generator) else check_size(result)

    return checked


def checked_filter_value(name: str, value: Any, arguments: Iterable[Any]) -> Any:
    """Check the value and the arguments of a filter; return the value. Raises SecurityError.

    The value of a filter that needs all items at once (sort) is returned as a list. name: of the filter. arguments:
    all arguments except the value.
    """
    if isinstance(value, TEXTS) and len(value) > MAX_RESULT_CHARS:
        raise SecurityError(f"a text of more than {MAX_RESULT_CHARS} characters")
    check_can_be_shown(value)
    # The argument of default() may be long: it takes the value's place, and is not searched for
    if name in ("default", "d"):
        return value
    for argument in arguments:
        check_can_be_shown(argument)  # map(x) shows x in an error if there is no filter x
    check_search_texts(arguments)
    if name in SELECTING_FILTERS:
        # They may skip many items, and yield none: check the clock at each item
        return check_each_round(value) if value else value
    if name not in ALL_ITEMS_FILTERS:
        return value
    # The items must be counted before they are sorted, and their parts before they are compared
    items: Any = value if isinstance(value, (str, *CONTAINERS)) else check_size(list(value))
    check_sort_keys(len(items), arguments)
    return items


def check_search_texts(arguments: Iterable[Any]) -> None:
    """Raise SecurityError for a long text: the time of rfind() and strip() is the product of both lengths."""
    for argument in arguments:
        if isinstance(argument, TEXTS) and len(argument) > MAX_SEARCH_TEXT_CHARS:
            raise SecurityError(f"an argument of more than {MAX_SEARCH_TEXT_CHARS} characters")


def check_sort_keys(count: int, arguments: Iterable[Any]) -> None:
    """Raise SecurityError for too many items, or keys: an item has a key for each part of "a.b,c.d".

    count: of the items. A list among the arguments, such as a default, may become the key of each item.
    """
    if count > MAX_SORTED_ITEMS:
        raise SecurityError(f"more than {MAX_SORTED_ITEMS} items to sort")
    texts = [argument for argument in arguments if isinstance(argument, str)]
    part_count = sum(text.count(".") + text.count(",") for text in texts)
    part_count += sum(size_of(argument) for argument in arguments if isinstance(argument, CONTAINERS))
    if count * part_count > MAX_RESULT_CHARS:
        raise SecurityError("too many keys to sort by")


def check_number(value: Any) -> None:
    """Raise SecurityError for a number whose division takes long."""
    if isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
        raise SecurityError("a number that is too large")


def check_can_be_shown(value: Any) -> None:
    """Raise SecurityError if a value is a namespace or an imported file.

    The sizes of their contents are not counted, so they must not become texts. A namespace may hold another one
    twice, and so on: str() of forty of them would not end, and no check of the clock stands within it.
    """
    if isinstance(value, UNCOUNTED_TYPES):
        kind = "an imported file" if isinstance(value, TemplateModule) else "a namespace"
        raise SecurityError(f"{kind} cannot be shown")


def check_clock_after(value: Any) -> Any:
    """Check the clock, and return the value. The value may have taken long: a comparison of two long lists."""
    check_clock()
    return value


def join_output(parts: Iterable[str]) -> str:
    """Join the texts that a block or macro has written. Raises BudgetExceeded."""
    parts = parts if isinstance(parts, list) else list(parts)
    length = sum(map(len, parts))
    check_clock()
    if length > MAX_PAGE_CHARS:
        raise BudgetExceeded(f"a part of the page is longer than {MAX_PAGE_CHARS} characters")
    if length > MAX_UNCOUNTED_CHARS:
        count_towards_page(length)
    return "".join(parts)


def check_size(value: Any) -> Any:
    """Return a value as it is, and count its size. Raises SecurityError, BudgetExceeded if it is too large."""
    if isinstance(value, TEXTS) and len(value) > MAX_UNCOUNTED_CHARS:
        count_towards_page(len(value))
    if isinstance(value, CONTAINERS):
        count_towards_page(size_of(value))
    else:
        check_number(value)
    return value


def size_of(container: Any) -> int:
    """Return the number of all items and characters in a container. Raises SecurityError above MAX_ITEMS.

    A list of references to one list, which again refers to one list, and so on, is small in memory and endless as a
    text. Its size as a text therefore counts. Every operation that gives a template a list, a tuple, a dictionary
    or a view calls this function, so no list is too large to be walked.
    """
    check_clock()
    count, containers = 0, [container]  # containers: those whose parts are still to be counted
    while containers:
        for part in parts_of(containers.pop()):
            count += 1
            if isinstance(part, TEXTS):
                count += len(part)
            elif isinstance(part, int):
                count += part.bit_length() // 64  # a long number counts as more than one item
            elif isinstance(part, CONTAINERS):
                containers.append(part)
            elif isinstance(part, Macro):
                count += len(part.name or "")
            elif isinstance(part, NOT_IN_LISTS):
                raise SecurityError("a list may not contain a namespace, an imported file or a loop")
            if count > MAX_ITEMS:
                raise SecurityError("a list that is too large")
    return count


def count_towards_page(count: int) -> None:
    """Count the items and characters of a list or text that a page has made. Raises BudgetExceeded."""
    budget.counted += count
    if budget.counted > MAX_COUNTED:
        raise BudgetExceeded(
            f"the lists and texts of the page hold more than {MAX_COUNTED} items and characters"
        )


def parts_of(container: Any) -> Iterable[Any]:
    """Return the parts of a container; of a dictionary, its keys and its values."""
    if isinstance(container, Cycler):
        return container.items
    return chain.from_iterable(container.items()) if isinstance(container, Mapping) else container


def text_to_insert(value: Any) -> Any:
    """Return the text or number to insert for a value, "" for NULL. jinja2 calls this (finalize).

    Raises BudgetExceeded if the page gets too long; SecurityError for a namespace.
    """
    if value is None:
        return ""
    check_can_be_shown(value)
    if not isinstance(value, str | int | float) and not hasattr(value, "__html__"):
        check_clock()
        value = str(value)
    if isinstance(value, str):
        budget.output_chars += len(value)
        if budget.output_chars > MAX_PAGE_CHARS:
            raise BudgetExceeded(f"the page is longer than {MAX_PAGE_CHARS} characters")
    return value


def concatenate(parts: list[Any]) -> str:
    """Return the result of a ~ b ~ c: the joined texts, escaped if one of them is HTML.

    Raises SecurityError if a part may not be shown, or if the result is too long; BudgetExceeded if the page has
    made too many long texts.
    """
    texts, length = [], 0
    for part in parts:
        check_can_be_shown(part)
        texts.append("" if part is None else part if isinstance(part, str) else str(part))
        length += len(texts[-1])
        if length > MAX_RESULT_CHARS:
            raise SecurityError(f"a text of more than {MAX_RESULT_CHARS} characters")
    if length > MAX_UNCOUNTED_CHARS:
        count_towards_page(length)
    return Markup("").join(texts) if any(isinstance(text, Markup) for text in texts) else "".join(texts)


def join(values: Iterable[Any], separator: str = "") -> str:
    """Return the values as one text, with `separator` between them: jinja2's filter with the limits of `~`."""
    parts = [part for value in check_each_round(values) for part in (separator, value)]
    return concatenate(parts[1:])  # without the separator before the first value


def replace_in_text(value: Any, old: str, new: str) -> str:
    """Replace each `old` in a text: jinja2's filter with a limit. Raises SecurityError if `old` is empty, too."""
    check_can_be_shown(value)
    text: str = value if isinstance(value, str) else str(value)
    if not old:
        raise SecurityError("replace() needs a text to replace, and it is empty")
    if len(text) + text.count(old) * len(new) > MAX_RESULT_CHARS:
        raise SecurityError(f"a text of more than {MAX_RESULT_CHARS} characters")
    result: str = check_size(text.replace(old, new))
    return result


def rounded(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    """Round a number: jinja2's filter with a limit. For 100 million digits, Python would compute a power of ten."""
    if isinstance(precision, int) and abs(precision) > MAX_DIGITS:
        raise SecurityError(f"round() to more than {MAX_DIGITS} digits")
    return do_round(value, precision, method)


def sum_of_numbers(values: Iterable[Any], start: float = 0) -> Any:
    """Return `start` plus the sum of the numbers; skip NULL."""
    values = check_each_round(values)
    numbers = (value if isinstance(value, int) else float(value) for value in values if value is not None)
    return sum(numbers, start)


class Concatenations(NodeTransformer):
    """Replaces a ~ b by a filter that checks the length."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Return the filter ewe_concat, concatenate(), over the parts of a ~ b."""
        parts = nodes.List([self.visit(part) for part in node.nodes], lineno=node.lineno)
        return nodes.Filter(parts, "ewe_concat", [], [], None, None, lineno=node.lineno)


class Containers(NodeTransformer):
    """Adds check_size() to each list, tuple, dictionary and slice, and check_clock_after() to each comparison."""

    def add_size_check(self, node: nodes.Expr) -> nodes.Node:
        """Return a node that passes the value of `node` through check_size(), the filter ewe_check_size."""
        self.generic_visit(node)
        # A tuple that is assigned to, such as a, b in {% for a, b in ... %}, has no value to check: its ctx is
        # "store"
        if getattr(node, "ctx", "load") != "load":
            return node
        return nodes.Filter(node, "ewe_check_size", [], [], None, None, lineno=node.lineno)

    visit_List = visit_Tuple = visit_Dict = add_size_check

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Return a slice with add_size_check(); any other item as it is, its parts visited."""
        if isinstance(node.arg, nodes.Slice):
            return self.add_size_check(node)
        return self.generic_visit(node)

    def add_clock_check(self, node: nodes.Expr) -> nodes.Node:
        """Return a comparison whose value passes through check_clock_after(), the filter ewe_check_clock_after."""
        self.generic_visit(node)
        return nodes.Filter(node, "ewe_check_clock_after", [], [], None, None, lineno=node.lineno)

    visit_Compare = visit_Test = add_clock_check


class TemplateLoader(jinja2.BaseLoader):
    """Finds the layout `ewe`, and files that begin with an underscore."""

    def __init__(self, load: Load) -> None:
        self.load_file = load
        self.loaded_chars = 0  # characters of the sources whose templates the environment has in memory

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        """Return the source of a template, its name, and a test whether the source is unchanged (jinja2)."""
        if template == "ewe":
            return LAYOUT, None, lambda: True
        if INCLUDABLE_FILE.fullmatch(template):
            try:
                text, is_same = self.load_file(template)
            except FileNotFoundError:
                pass
            else:
                check_clock()
                check_length(text, template)
                self.loaded_chars += len(text)
                if self.loaded_chars > MAX_LOADED_CHARS and environment.cache is not None:
                    environment.cache.clear()
                    self.loaded_chars = len(text)
                return text, template, is_same
        raise jinja2.TemplateNotFound(template)


def check_length(source: str, name: str = "") -> None:
    """Raise TemplateSyntaxError for a source that takes too long to compile. name: of its file; "": it has none."""
    if len(source) > MAX_SOURCE_CHARS:
        line = source.count("\n", 0, MAX_SOURCE_CHARS) + 1
        raise jinja2.TemplateSyntaxError(f"longer than {MAX_SOURCE_CHARS} characters", line, name or None)


class RenderBudget(threading.local):
    """The budget of the template that this thread renders now. A template never pauses, so a thread has only one.

    deadline: on time.monotonic(). output_chars: inserted so far. counted: see MAX_COUNTED, so far.
    """

    deadline = 0.0
    output_chars = 0
    counted = 0


budget = RenderBudget()


def check_clock() -> None:
    """Raise BudgetExceeded if the template that this thread renders has taken longer than RENDER_TIMEOUT_S."""
    if time.monotonic() > budget.deadline:
        raise BudgetExceeded(f"the template takes longer than {RENDER_TIMEOUT_S:g} s")


def check_each_round(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a loop; at each, raise BudgetExceeded if the time is over."""
    for item in items:
        check_clock()
        yield item


class PageTemplate:
    """A compiled template. Line numbers in its errors are those of the file."""

    def __init__(self, environment: Environment, text: str | None, offset: int) -> None:
        """text: None for DEFAULT_TEMPLATE. offset: lines of the file before the template. Raises PageError."""
        self.offset = offset
        try:
            check_length(text or "")
            self.template = environment.from_string(DEFAULT_TEMPLATE if text is None else text)
        except jinja2.TemplateSyntaxError as error:
            raise PageError(error.lineno + offset, f"template: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError, ValueError, OverflowError) as error:
            raise PageError(offset + 1, f"template: {type(error).__name__}: {error}") from None

    def render(self, variables: Mapping[str, object]) -> str:
        """Return the page. Raises PageError for every error in a template."""
        template = self.template
        budget.deadline = time.monotonic() + RENDER_TIMEOUT_S
        budget.output_chars = budget.counted = 0
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.root_render_func(template.new_context(dict(variables))):
                size += len(piece)
                if size > MAX_PAGE_CHARS:
                    raise BudgetExceeded(f"the page is longer than {MAX_PAGE_CHARS} characters")
                pieces.append(piece)
        except Exception as error:
            raise self.page_error(error) from None
        return "".join(pieces)

    def page_error(self, error: Exception) -> PageError:
        """Return an error of rendering as a PageError, with the line of the template that caused it."""
        if isinstance(error, jinja2.TemplateSyntaxError):  # in a file that the page extends or includes
            file_and_line = f"{error.name}, line {error.lineno}: " if error.name else ""
            return PageError(0, f"template: {file_and_line}{error.message}")
        line, file_and_line = line_of(error.__traceback__, self.template)
        # The texts of these classes need no name of the class
        explains_itself = isinstance(error, BudgetExceeded | jinja2.UndefinedError | SecurityError)
        kind = "" if explains_itself else f"{type(error).__name__}: "
        # str() of a KeyError is its text in quotes
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        line_in_file = line + self.offset if line and not file_and_line else 0
        return PageError(line_in_file, f"template: {file_and_line}{kind}{text}")


def line_of(traceback: TracebackType | None, page: jinja2.Template) -> tuple[int, str]:
    """Return the last line of the page's own template in a traceback, and where in another file it failed.

    The line is 0 if the traceback has none. The second value is "FILE, line N: "; "" if the page itself failed.
    """
    line, file_and_line = 0, ""
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, jinja2.Template):
            template_line = template.get_corresponding_lineno(traceback.tb_lineno)
            if template is page or template.root_render_func is page.root_render_func:
                line, file_and_line = template_line, ""
            elif template.name != "ewe":  # a file that the page extends or includes
                file_and_line = f"{template.name}, line {template_line}: "
        traceback = traceback.tb_next
    return line, file_and_line
