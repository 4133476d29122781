"""Patterns of locations: one that could stop the server is refused; others are matched with short paths only."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.memory import MemoryStream

from ewe.config.messages import ConfigError
from ewe.config.patterns import MAX_MATCHED, MAX_MATCHED_CUBIC, is_explosive, longest_text
from ewe.config.settings import Config
from ewe.config.site_tables import LocationTable
from ewe.http.messages import Request
from ewe.http.status import HTTPError
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.sites.match import Match
from ewe.streams.blocking import run

EXPLOSIVE = (
    r"^/(a+)+$", r"^/(a*)*$", r"^/(a|a)*$", r"^/(a|b|ab)*$", r"^/(\w+\s?)*$", r"^/(.*/)*x$", r"^/([\w-]+-?)*$",
    r"^/(x+x+)+y", r"^/(?:(?:ab)+c?)+$", r"^/(x(a*)?)*$", r"(?=(a+)+b)x", r"(?:a?){30}a{30}", r"^/(a{1,10}){1,10}$",
    r"^/([a-z]+|[0-9]+)*$", r"(.|\n)*x", r"^/(a+){30}!$", r"^/(a|aa){30}!$",
    "^/([\u0400-\u04ff]+)+$", "^/([^\\x00-\u017f]+)+$", r"^/(?:[^ab]|A)+$", "(?a)^/(?:\\W+|\u00e9)+$",
    r"^/(a*)(?:\1a?)*$", r"^/(a)(?:\1|a)*$", r"^/((b)(?:\2|b)*)$", "^/" + "a?" * 30 + "a" * 30 + "$",
    "^/" + r"(?:\w|\d)?" * 30 + "!$", "^/(?:" + "(?:a{0,4}){4}" * 5 + ")!$",
    r"^/(?>(a+)+b)", r"^/(?:(a+)+b)*+x", r"^/(?:(?=a){0,9}){30}x", r"^/((?=/\w)*?|^){30}x$",
)  # fmt: skip
TOO_MANY_LOOPS = (
    r"^/(.*)-(.*)-(.*)-(.*)$", r"^/(.*)/(.*)/(.*)/(.*)\.html$", r"(.*)/(.*)/(.*)x$", r"^/.*a.*b.*c.*d$",
    r"^/(a*){4}!$", r"^/\w*\d*\w*[a-z0-9]*!$", r"^/(a.*)?(b.*)?(c.*)?(d.*)?x$",
    r"^/(?:\d{1,3}){1,4}\d*\d{1,4}\d*x$", r"(?m)^/(.*)-(.*)-(.*)x$",
    r"(?m:^/(.*)-(.*)-(.*)x$)", r"^/(.*)-(.*)-(.*)\1x$",
    r"^/(.*/)?([^/]*/)*([^?]*/)?(\w*/)*x$", r"^/(?!.*a.*b)(.*)/(.*)x$", r"^/(?>.*a.*b.*c.*d)",
)  # fmt: skip
HARMLESS = (
    "^/(?:[\u0430-\u044f]+/)*$", r"(?i)^/(?:[^/a]+a)*$", r"(?a)^/(?:\w+\W)*$", r"^/(\w+)/\1\.html$", r"(?m)\.php$",
    r"^/(?:\d?\d?\d?\d?-)?x$", r"^/(?:19|20)\d\d/(?:0[1-9]|1[0-2])/",
    r"^(/.*)?/(index|default)\.(php|html?|aspx?)$",
    r"^/([_0-9a-zA-Z-]+/)?(wp-(content|admin|includes).*)", r"^/(.?.+?)/page/?([0-9]{1,})/?$",
    r"\.(engine|inc|.*sql|tpl(\.php)?)(~|\.sw[op]|\.bak)?$|^(/?)(\..*|Entries.*|composer\.(json|lock))$",
    r"^/w/images/thumb/([0-9a-f]/[0-9a-f][0-9a-f]/([^/]+))/(?:page\d+-)?([0-9]+)px-.*$", r"(^|/)\.(?!well-known)",
    r"^/user/(\d+)$", r"\.php$", r"^/(.*)/(.*)/(.*)\.php$", r"^/~(\w+)/slides/(.*)$", r"^/(\w+/)+$", r"^/[\w-]*$",
    r"^/([^/]+/)*[^/]+$", r"^/([^/]*/)*x$", r"(\d{1,3}\.){3}\d{1,3}", r"(?>a+)+b", r"(?:a++)+b", r"^(/[^/]+)+/?$",
    r"^/(?:jpg|jpeg|png)$", r"(\w+\.)*\w+@(\w+\.)+\w+", r"(?P<y>\d{4})/(?P=y)", r"^/(%[0-9a-f]{2}|[^%])*$",
    r"^/(?:a{1000}){1000}", r"^/([^/]*)/([^/]*)/([^/]*)/([^/]*)/([^/]*)$", r"^/([^-]*)-([^-]*)-([^-]*)-([^-]*)$",
    r"^/(\d+)/(\d+)/(\d+)/(\d+)/(\w+)-(\w+)\.html$", r"/([^/]+)/([^/]+)/([^/]+)/([^/]+)$", r"^/(\w+)-(.*)/(.*)x$",
    r"^/(?:[^/]+/){5}x$", r"^/(?!.*\.php$)(.*)$", r"^/(?:en|de)?/?(?:index|start)?(?:\.html)?$",
    r"^(?:/[^/]+){5,}$", "(x)(?(1)a|b)",
)  # fmt: skip


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_explosive_patterns(pattern: str) -> None:
    assert is_explosive(pattern)


@pytest.mark.parametrize("pattern", TOO_MANY_LOOPS)
def test_a_text_passes_at_most_three_loops_in_several_ways(pattern: str) -> None:
    """With a fourth loop a path of 1,024 characters takes minutes."""
    assert is_explosive(pattern)


@pytest.mark.parametrize("pattern", HARMLESS)
def test_harmless_patterns(pattern: str) -> None:
    assert not is_explosive(pattern)


PARTS = some.recursive(
    some.sampled_from(("a", "b", "[ab]", "[^a]", ".")),
    lambda inner: some.one_of(
        some.tuples(inner, some.sampled_from(("*", "+", "?", "{2}", "{0,3}", "*?"))).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
        some.lists(inner, min_size=2, max_size=3).map("".join),
        some.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
    ),
    max_leaves=6,
)


@given(PARTS, some.text("ab", min_size=1, max_size=3))
def test_what_is_taken_needs_little_time(part: str, unit: str) -> None:
    """No pattern that passes takes exponential time: for 40 characters that would be hours."""
    pattern = f"^(?:{part})$"
    if is_explosive(pattern):
        return
    began = time.process_time()
    re.search(pattern, unit * (40 // len(unit)) + "!", re.DOTALL)
    assert time.process_time() - began < 5


def test_an_explosive_pattern_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "ewe.toml"
    file.write_text("[[site]]\n[[site.location]]\npattern = '^/(.*/)*x$'\nstatus = 404\n")
    with pytest.raises(ConfigError) as refused:
        Config.load(environ={}, file=str(file))
    said = str(refused.value)
    assert "line 3: pattern =" in said and "could stop the server" in said and "\n" not in said


def test_a_pattern_that_takes_long_is_matched_with_shorter_paths() -> None:
    """Three loops take cubic time, and bounded repetitions between two loops take many times the square."""
    for pattern in (
        r"^/(.*?)/(.*?)/(.*?)x$",
        r"^/(.*)(\d{1,3}){1,3}(.*)x$",
    ):
        location = Match(LocationTable("ewe.toml line 1", {}, match_key="pattern", match_value=pattern))
        longest = longest_text(pattern)
        assert longest < MAX_MATCHED
        path = "/1/1/" + "1" * (longest - 6) + "x"
        assert location.covers(path)
        with pytest.raises(HTTPError) as refused:
            location.covers(path + "1")
        assert refused.value.status == 414
    assert longest_text(r"^/(.*)/(.*)/(.*)\.php$") <= MAX_MATCHED_CUBIC
    assert all(longest_text(each) == MAX_MATCHED for each in (r"\.php$", r"^/(.*)/(.*)$", r"^/([^/]*/)*x$"))


def test_a_long_path_is_not_matched(tmp_path: Path) -> None:
    """A long path is refused: a path that misses a location would also miss the location's guard."""
    file = tmp_path / "ewe.toml"
    file.write_text(
        f"documentroot = '{tmp_path}'\n[[site]]\n[[site.location]]\nprefix = '/short'\nstatus = 404\n"
        "[[site.location]]\npattern = '/secret$'\nstatus = 403\n"
    )
    site = make_site(Config.load(environ={}, file=str(file)))

    def status(path: str) -> int:
        request = Request("GET", path, (1, 1), path=path)
        try:
            return run(site.respond(request, MemoryStream([]))).status
        except HTTPError as refused:
            return refused.status

    end = "/secret"
    assert status("/" + "a" * (MAX_MATCHED - 1 - len(end)) + end) == 403
    assert status("/" + "a" * (MAX_MATCHED - len(end)) + end) == 414
    assert status("/short/" + "a" * 2000) == 404
    lines = [*explain(site, "http://x/" + "a" * 2000, ("127.0.0.1", 80))]
    assert "414" in lines[-1]
