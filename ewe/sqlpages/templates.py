"""Templates: the HTML of a page from SQL, by jinja2 in a sandbox.

Text is escaped wherever it is inserted (autoescape), and NULL is shown as nothing. A name that the page does not
declare is an error, with its line.

The sandbox keeps a template from Python: no attribute that begins with an underscore, no change of what it gets.
That does not bound its time. A budget does: loops, calls and comparisons look at the clock. A template that takes
longer than SECONDS, or makes more than MAX_BYTES, ends with an error. One operation that makes a huge text
(`"x" * 10 ** 9`) is refused, and so is one that grows a text step by step. A list counts with all that it holds
(weighed()), and so does each long text, each slice, and what a block or macro has written (written()).

Between two looks at the clock stands a call of Python, which nothing can end. A call whose time is the product of
two sizes is therefore bounded by the smaller one: the length of the text that rfind() or strip() seeks
(MAX_SOUGHT), the digits of a number (MAX_BITS), the keys to sort by. To compile a template takes about 10 µs for
each character, and nothing can end it halfway: what bounds it is the length of the source. A template's author
still uses the server's processor, as the author of a CGI program does.

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
from jinja2.runtime import BlockReference, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, htmlsafe_json_dumps
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from ewe.sqlpages.declarations import PageError

# jinja2 loads these when it first needs them: once root is given up, Python's directories may not be readable
codecs.lookup("unicode-escape")

MAX_SOURCE = 32_768  # characters of a template: compiled in a third of a second at most
SECONDS = 2.0  # that a template may take
MAX_BYTES = 8 << 20  # characters that a page may have
MAX_REPEATED = 1 << 20  # of the result of one operation
MAX_ITEMS = 1 << 22  # what one list may hold, with all that its parts hold, and each text by its length
MAX_HELD = 1 << 24  # of all lists and long texts that a page makes
SHORT = 4096  # characters of a text that does not count
MAX_SOUGHT = 256  # characters of a text that is sought in another one
MAX_BITS = 4096  # of a number
PARTIAL = re.compile(r"(?:[A-Za-z0-9-][A-Za-z0-9_-]*/)*_[A-Za-z0-9_-]+\.sql\.html")
# Filters that make a text or a list of any length out of a little, and what needs a look at its arguments as well
ENDLESS = (
    "center", "indent", "format", "wordwrap", "slice", "batch", "random", "pprint", "sum", "join", "replace",
    "forceescape", "urlize",
)  # fmt: skip
NAMESPACE = "a namespace is not shown"
# Methods of a text that make none that is longer
METHODS = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper",
})  # fmt: skip
TEXTS = str | bytes | bytearray | memoryview  # a BLOB of a database is bytes
CONTAINERS = list, tuple, dict, set, frozenset
OPAQUE = Namespace, TemplateModule  # what they hold is nowhere weighed
# Filters that look at all items in one call
AT_ONCE = frozenset({"sort", "groupby", "unique", "min", "max"})
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

# The page of a file that has declarations only
PLAIN = """{% extends "ewe" %}
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


class TooMuch(Exception):
    """A template that takes too long or makes too much; the text is one line."""


class Environment(ImmutableSandboxedEnvironment):
    """jinja2 for pages from SQL: escaped, strict, in a sandbox, with a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "-", "/", "//", "%"})

    def __init__(self, load: Load) -> None:
        """load: returns the text of a file that a template extends or includes, and whether it is still the same.

        It raises FileNotFoundError.
        """
        super().__init__(
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=inserted,
            loader=Loader(load),
            cache_size=100,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        for name in ENDLESS:
            del self.filters[name]
        self.filters = {name: limited(each, name) for name, each in self.filters.items()}
        self.filters |= {
            "ewe_rounds": rounds,
            "ewe_concat": concatenated,
            "join": join,
            "replace": replaced,
            "sum": total,
            "tojson": limited(lambda value: htmlsafe_json_dumps(value)),
            "ewe_weighed": weighed,
            "ewe_timed": timed,
        }
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template; have each loop look at the clock, and each `~` at the length of its result."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "ewe_rounds", [], [], None, None, lineno=loop.lineno)
        Concatenations().visit(tree)
        Containers().visit(tree)
        return tree

    def concat(self, parts: Iterable[str]) -> str:
        """Return what a block or macro has written: jinja2 calls this."""
        return written(parts)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # as jinja2 names them
        spend()
        of = getattr(__obj, "__self__", None)
        if isinstance(of, TEXTS):
            if __obj.__name__ not in METHODS:
                raise SecurityError(f"the method {__obj.__name__} of texts is not offered here")
            check_sought((*args, *kwargs.values()))
        if isinstance(of, int) and __obj.__name__ == "to_bytes":
            raise SecurityError("the method to_bytes of numbers is not offered here")
        result = super().call(__context, __obj, *args, **kwargs)
        # What a macro or block has written, concat() has weighed.
        return result if isinstance(__obj, Macro | BlockReference) else weighed(result)

    def wrap_str_format(self, value: Any) -> None:
        """Leave a text's format() as it is: METHODS does not have it, since it can pad to any length."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation that makes a huge text, list or number."""
        if operator == "**" or (operator == "%" and isinstance(left, TEXTS)):
            raise SecurityError(f"the operator {operator} is not offered here")
        if operator == "*" and any(isinstance(each, list | tuple) for each in (left, right)):
            raise SecurityError("lists are not repeated here")
        if operator in "*+":
            sizes = [len(each) if isinstance(each, TEXTS | list | tuple) else 0 for each in (left, right)]
            numbers = [abs(each) if isinstance(each, int) else 1 for each in (left, right)]
            if sum(sizes) > MAX_REPEATED or (operator == "*" and max(sizes) * max(numbers) > MAX_REPEATED):
                raise SecurityError("a text that is too long")
        for each in (left, right):
            check_number(each)
        return weighed(super().call_binop(context, operator, left, right))


def limited(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Return a filter that takes no text longer than MAX_REPEATED, and returns no list that is too large.

    A filter that yields its items one by one, such as map, looks at the clock at each.
    """
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            value = args[place]
            if isinstance(value, TEXTS) and len(value) > MAX_REPEATED:
                raise SecurityError("a text that is too long")
            check_shown(value)
            if name not in ("default", "d"):
                others = (*args[place + 1 :], *kwargs.values())
                check_sought(others)
                if name in AT_ONCE:
                    value = value if isinstance(value, (str, *CONTAINERS)) else list(value)
                    args = (*args[:place], value, *args[place + 1 :])
                    check_keys(len(value), others)
        spend()
        result = function(*args, **kwargs)
        return rounds(result) if isinstance(result, Generator) else weighed(result)

    return checked


def check_sought(arguments: Iterable[Any]) -> None:
    """Raise SecurityError for a long text: rfind() and strip() take the product of both lengths."""
    for each in arguments:
        if isinstance(each, TEXTS) and len(each) > MAX_SOUGHT:
            raise SecurityError(f"an argument of more than {MAX_SOUGHT} characters")


def check_keys(count: int, arguments: Iterable[Any]) -> None:
    """Raise SecurityError for too many keys: an item has one for each part of "a.b,c.d"."""
    parts = sum(each.count(".") + each.count(",") for each in arguments if isinstance(each, str))
    if count * parts > MAX_REPEATED:
        raise SecurityError("too many keys to sort by")


def check_number(value: Any) -> None:
    """Raise SecurityError for a number that takes long to divide."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError("a number that is too large")


def check_shown(value: Any) -> None:
    """Raise SecurityError for what is nowhere weighed, and cannot be made a text therefore."""
    if isinstance(value, OPAQUE):
        raise SecurityError(
            "an imported file is not shown" if isinstance(value, TemplateModule) else NAMESPACE
        )


def timed(value: Any) -> Any:
    """Return a value, such as that of a comparison of two long lists, and look at the clock."""
    spend()
    return value


def written(parts: Iterable[str]) -> str:
    """Return the texts in a row that a block or macro has written. Raises TooMuch."""
    parts = parts if isinstance(parts, list) else list(parts)
    length = sum(map(len, parts))
    spend()
    if length > MAX_BYTES:
        raise TooMuch(f"a part of the page is longer than {MAX_BYTES} characters")
    if length > SHORT:
        hold(length)
    return "".join(parts)


def weighed(value: Any) -> Any:
    """Return a value; refuse a list, tuple, dictionary or text that is too large. Raises SecurityError, TooMuch.

    A list whose parts are one list, and so on, is small in memory and endless as a text. What counts is therefore
    its size as a text. Everything that makes a list in a template calls this, so none is too large to be walked.
    """
    if isinstance(value, TEXTS) and len(value) > SHORT:
        hold(len(value))
    if not isinstance(value, CONTAINERS):
        check_number(value)
        return value
    spend()
    count, waiting = 0, [value]
    while waiting:
        for each in parts_of(waiting.pop()):
            count += 1
            if isinstance(each, TEXTS):
                count += len(each)
            elif isinstance(each, CONTAINERS):
                waiting.append(each)
            elif isinstance(each, OPAQUE):
                raise SecurityError("a list holds no namespace and no imported file here")
            if count > MAX_ITEMS:
                raise SecurityError("a list that is too large")
    hold(count)
    return value


def hold(count: int) -> None:
    """Count the items and characters of a list or text that a page has made. Raises TooMuch."""
    budget.held = getattr(budget, "held", 0) + count
    if budget.held > MAX_HELD:
        raise TooMuch(f"the lists and texts of the page hold more than {MAX_HELD} items and characters")


def parts_of(container: Any) -> Iterable[Any]:
    """Return what a container holds."""
    return chain.from_iterable(container.items()) if isinstance(container, Mapping) else container


def inserted(value: Any) -> Any:
    """Return what is inserted for a value, nothing for NULL. Raises TooMuch if the page gets too long.

    A namespace is refused: its parts may be namespaces, which are nowhere weighed.
    """
    if value is None:
        return ""
    check_shown(value)
    if not isinstance(value, str | int | float) and not hasattr(value, "__html__"):
        spend()
        value = str(value)
    if isinstance(value, str):
        budget.size = getattr(budget, "size", 0) + len(value)
        if budget.size > MAX_BYTES:
            raise TooMuch(f"the page is longer than {MAX_BYTES} characters")
    return value


def concatenated(parts: list[Any]) -> str:
    """Return what a ~ b ~ c is: texts in a row, escaped if one of them is HTML."""
    for part in parts:
        check_shown(part)
    texts = ["" if part is None else part if isinstance(part, str) else str(part) for part in parts]
    length = sum(map(len, texts))
    if length > MAX_REPEATED:
        raise SecurityError("a text that is too long")
    if length > SHORT:
        hold(length)
    return Markup("").join(texts) if any(isinstance(each, Markup) for each in texts) else "".join(texts)


def join(values: Iterable[Any], separator: str = "") -> str:
    """Return the values in a row: jinja2's filter with a limit."""
    parts = [part for each in values for part in (separator, each)][1:]
    return concatenated(parts)


def replaced(value: Any, old: str, new: str) -> str:
    """Return a text with another in place of each `old`: jinja2's filter with a limit."""
    check_shown(value)
    text: str = value if isinstance(value, str) else str(value)
    if not old or len(text) + text.count(old) * len(new) > MAX_REPEATED:
        raise SecurityError("a text that is too long")
    made: str = weighed(text.replace(old, new))
    return made


def total(values: Iterable[Any], start: float = 0) -> Any:
    """Return the sum of numbers; NULL counts as nothing."""
    return sum((each if isinstance(each, int) else float(each) for each in values if each is not None), start)


class Concatenations(NodeTransformer):
    """Replaces a ~ b by a filter, which looks at the length."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List([self.visit(each) for each in node.nodes], lineno=node.lineno)
        return nodes.Filter(parts, "ewe_concat", [], [], None, None, lineno=node.lineno)


class Containers(NodeTransformer):
    """Weighs each list, tuple, dictionary and slice that a template writes; has comparisons look at the clock."""

    def weigh(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node  # the names of {% for a, b in ... %}
        return nodes.Filter(node, "ewe_weighed", [], [], None, None, lineno=node.lineno)

    visit_List = visit_Tuple = visit_Dict = weigh

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Slice):
            return self.weigh(node)
        return self.generic_visit(node)

    def compare(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "ewe_timed", [], [], None, None, lineno=node.lineno)

    visit_Compare = visit_Test = compare


class Loader(jinja2.BaseLoader):
    """Finds the layout `ewe`, and files that begin with an underscore."""

    def __init__(self, load: Load) -> None:
        self.load_file = load

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        if template == "ewe":
            return LAYOUT, None, lambda: True
        if PARTIAL.fullmatch(template):
            try:
                text, is_same = self.load_file(template)
            except FileNotFoundError:
                pass
            else:
                spend()
                check_length(text, template)
                return text, template, is_same
        raise jinja2.TemplateNotFound(template)


def check_length(source: str, name: str = "") -> None:
    """Raise TemplateSyntaxError for a source that takes too long to compile."""
    if len(source) > MAX_SOURCE:
        line = source.count("\n", 0, MAX_SOURCE) + 1
        raise jinja2.TemplateSyntaxError(f"longer than {MAX_SOURCE} characters", line, name or None)


# When the template that this thread renders now must be at its end. A template never pauses, so there is one.
budget = threading.local()


def spend() -> None:
    """Look at the clock. Raises TooMuch."""
    if time.monotonic() > getattr(budget, "ends", 0.0):
        raise TooMuch(f"the template takes longer than {SECONDS:g} s")


def rounds(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a loop, and look at the clock at each. Raises TooMuch."""
    for item in items:
        spend()
        yield item


class Template:
    """A compiled template. Line numbers in its errors are those of the file."""

    def __init__(self, environment: Environment, text: str | None, offset: int) -> None:
        """text: None for the plain page. offset: lines of the file before the template. Raises PageError."""
        self.offset = offset
        try:
            check_length(text or "")
            self.template = environment.from_string(PLAIN if text is None else text)
        except jinja2.TemplateSyntaxError as error:
            raise PageError(error.lineno + offset, f"template: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError, ValueError, OverflowError) as error:
            raise PageError(offset + 1, f"template: {type(error).__name__}: {error}") from None

    def render(self, variables: Mapping[str, object]) -> str:
        """Return the page. Raises PageError for all that goes wrong in a template."""
        template = self.template
        budget.ends = time.monotonic() + SECONDS
        budget.size = 0
        budget.held = 0
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.root_render_func(template.new_context(dict(variables))):
                size += len(piece)
                if size > MAX_BYTES:
                    raise TooMuch(f"the page is longer than {MAX_BYTES} characters")
                pieces.append(piece)
        except Exception as error:
            raise self.failed(error) from None
        return "".join(pieces)

    def failed(self, error: Exception) -> PageError:
        """Return the error with the line of the template at which it happened."""
        if isinstance(error, jinja2.TemplateSyntaxError):
            where = f"{error.name}, line {error.lineno}: " if error.name else ""
            return PageError(0, f"template: {where}{error.message}")
        line, where = line_of(error.__traceback__, self.template)
        kind = (
            ""
            if isinstance(error, TooMuch | jinja2.UndefinedError | SecurityError)
            else f"{type(error).__name__}: "
        )
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        return PageError(line + self.offset if line and not where else 0, f"template: {where}{kind}{text}")


def line_of(trace: TracebackType | None, page: jinja2.Template) -> tuple[int, str]:
    """Return the last line of the page's own template in a traceback, and where else it was, "" if in the page."""
    line, where = 0, ""
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, jinja2.Template):
            found = template.get_corresponding_lineno(trace.tb_lineno)
            if template is page or template.root_render_func is page.root_render_func:
                line, where = found, ""
            elif template.name != "ewe":
                where = f"{template.name}, line {found}: "
        trace = trace.tb_next
    return line, where
