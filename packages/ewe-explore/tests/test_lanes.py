"""The pictures of lanes: each kind has its own pattern, and the picture, its legend and its table agree."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from ewe_explore.lanes import (
    KINDS,
    MARKS,
    PLAIN,
    DrawnLane,
    FilePart,
    LaneArea,
    LaneArrow,
    LaneMark,
    LaneMoment,
    LanePicture,
    LaneSpan,
    LaneTick,
    definitions,
    description,
    legend,
    style,
    svg_file,
)

EVIL = '<script>&"\x00</script>'


def picture(**values: object) -> LanePicture:
    """Return a picture with everything in it."""
    lanes = [
        DrawnLane(
            "first",
            [LaneSpan(5, 50, "busy", "1 s: computes")],
            [LaneMark(50, "end", "2 s: ends")],
            5,
            50,
            "l0",
        ),
        DrawnLane("second", [LaneSpan(20, 20.5, "client", EVIL)], [LaneMark(9, "send", "0 s: sends")]),
    ]
    found = LanePicture(
        "two <lanes>", 300, lanes, [LaneTick(5, "0 s")], [LaneMoment(60, "event", "stop", "3 s: stop")]
    )
    found.arrows.append(LaneArrow(30, 0, 1, "the turn"))
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_each_kind_differs_without_its_colour() -> None:
    looks = [(kind.tile, kind.solid) for kind in KINDS.values()]
    assert len(set(looks)) == len(looks)
    forced = re.search(r"forced-colors: active\) \{ :root \{(.*?)\}", style())
    assert forced is not None
    assert set(re.findall(r": (\w+);", forced[1])) == {"CanvasText", "Canvas"}
    assert [each["name"] for each in description()] == list(KINDS)


@pytest.mark.parametrize("scheme", [0, 1])
def test_a_pattern_is_seen_on_its_ground(scheme: int) -> None:
    """WCAG 2.2, 1.4.11: a contrast of 3 to 1."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for kind in KINDS.values():
        if kind.tile:
            dark, light = sorted((luminance(kind.line[scheme]), luminance(kind.soft[scheme])))
            assert (light + 0.05) / (dark + 0.05) >= 3, kind.name


def test_a_picture_is_whole_and_escapes_its_texts() -> None:
    text = picture(note=EVIL).html()
    tree = ElementTree.fromstring(
        f"<div>{definitions()}{text}{legend([('queue', EVIL), ('arrow', 'a')])}</div>"
    )
    assert "<script" not in text and "&lt;script&gt;&amp;" in text and "\x00" not in text
    classes = {name for each in tree.iter() for name in each.get("class", "").split()}
    assert {"ln-busy", "ln-client", "ln-end", "ln-send", "ln-event", "ln-arrow", "l0"} <= classes
    patterns = {each.get("id") for each in tree.iter("pattern")}
    assert {f"ln-{kind.name}" for kind in KINDS.values() if kind.tile} == patterns
    assert all(f"url(#{name})" in style() for name in patterns)
    assert all(f"ln-{shape}" in style() for shape in MARKS)


def test_an_area_and_a_low_span_stand_on_the_lower_edge_of_the_bar() -> None:
    area = LaneArea([(0, 0), (10, 5), (30, 12)], PLAIN, "a queue")
    lane = DrawnLane("low", [LaneSpan(50, 52, "busy", "", 0.5)], areas=[area])
    body = LanePicture("p", 100, [lane]).body()
    assert 'd="M0 22V22H0V17H10V10H30V22Z"><title>a queue</title>' in body
    assert 'y="15" width="2" height="7"' in body


def test_a_file_has_its_colours_and_needs_no_page() -> None:
    parts = [
        FilePart("one <heading>", picture(), ["1: " + "a long note " * 40]),
        FilePart("two", picture(lanes=[DrawnLane("a much longer name"), DrawnLane("b")])),
    ]
    text = svg_file("a & b", parts, [("queue", EVIL), ("send", "sends"), (PLAIN, "plain")] * 3)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg" and root.findtext(f"{space}title") == "a & b"
    assert "var(" not in text and "<script" not in text and "@media" not in text
    assert KINDS["queue"].line[0] in text and KINDS["queue"].soft[0] in text
    words = [each.text or "" for each in root.iter(f"{space}text")]
    assert {"one <heading>", "two", "a much longer name", "sends"} <= set(words)
    assert any(each.startswith("1: a long note") and each.endswith("…") for each in words)
    # The lanes of both begin at one x, and the legend has several lines in the width of the picture
    places = re.findall(r'<g transform="translate\(([0-9.]+) ([0-9.]+)\)"', text)
    assert len({x for x, _ in (places[1], places[3])}) == 1
    assert len({y for _, y in places[4:]}) > 1
    assert max(float(y) for _, y in places) < float(root.get("height", "0"))


def test_the_table_says_what_the_picture_shows_in_order() -> None:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td>', picture().table())
    assert [name for name, _ in rows] == ["first", "second", "second", "first", "all"]
    assert [text for _, text in rows][:2] == ["1 s: computes", "0 s: sends"]


def test_a_wide_picture_scrolls_and_can_have_the_focus() -> None:
    assert not picture().is_wide and "ln-wide" not in picture().svg()
    wide = picture(width=2000)
    assert wide.is_wide and 'class="ln-box ln-wide" tabindex="0" role="region"' in wide.svg()
    assert float(re.findall(r'width="(\d+)" height', wide.svg())[0]) == wide.left


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("ewe_explore.lanes", []),
        ("ewe_explore.pages", []),
        ("ewe_watch.cli", []),
        ("ewe_classroom.grader.cli", []),
        # Later a file of the explored program could take the place of a module that jinja2 imports
        ("ewe_explore.cli", ["ewe_explore.report", "jinja2"]),
    ],
)
def test_a_command_starts_without_what_only_few_of_its_runs_need(module: str, imported: list[str]) -> None:
    """jinja2 and the explorer take half of the start of ewe-grade and ewe-watch, which start often."""
    heavy = ["ewe_explore.report", "jinja2", "urllib.request"]
    code = f"import sys, {module}\nprint([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{imported}\n"


def test_the_interface_of_the_explorer_is_there() -> None:
    import ewe_explore

    for name in ewe_explore.__all__:
        assert getattr(ewe_explore, name).__module__.startswith("ewe_explore.")
    with pytest.raises(AttributeError, match="has no attribute 'explor'"):
        _ = ewe_explore.explor
