"""Handouts: the words of the student's language, the first test of a queue, the time of each step, the pages."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.server import ROOT

from ewe_classroom.course import cli, labs, locales
from ewe_classroom.course.handout import SUBJECTS
from ewe_classroom.course.one_text import TextError, text_for
from ewe_classroom.course.text_page import to_html

LAB_LANGUAGES = [(each.name, language) for each in labs.labs() for language in each.variants]
LANGUAGES = (*labs.LANGUAGES, labs.MODEL)
WORDS = {"get": {"python": "get()", "go": "Get"}}

# Names of one language only, besides the words of words.toml. Files of ewe's own source are no such names.
OF_PYTHON = r"(?<![\w/])\w+\.py\b|settimeout|set_wakeup_fd|\bdaemon\b|ewe-explore|\bPython\b"
OF_C = (
    r"\w\.[ch]\b|Makefile|pthread_[cm]|sigaction|signalfd|ppoll|epoll_|errno|SO_RCVTIMEO|free\(\)|-fsanitize"
)
OF_GO = r"\w\.go\b|go\.mod|goroutine|\bGo\b|syscall\.|WaitGroup|Deadline|sync\.|panics"
FOREIGN = {
    "python": f"{OF_C}|{OF_GO}",
    "model": f"{OF_C}|{OF_GO}|server\\.py|conversation\\.py",
    "c": f"{OF_PYTHON}|{OF_GO}",
    "go": f"{OF_PYTHON}|{OF_C}|fork\\(\\)",
}
SOURCE_OF_EWE = re.compile(r"`ewe/[\w/]+\.py`")
CODE = re.compile(r"`([^`\n]+)`")


def handout(directory: Path, lab: str, language: str = "python") -> str:
    """Write a handout; return its assignment."""
    assert cli.main(["new", lab, str(directory), "--language", language]) == 0
    return (directory / "README.md").read_text()


@pytest.mark.parametrize(("lab", "language"), LAB_LANGUAGES)
def test_an_assignment_speaks_one_language(tmp_path: Path, lab: str, language: str) -> None:
    text = SOURCE_OF_EWE.sub("", handout(tmp_path, lab, language))
    pictures = "".join(path.read_text() for path in tmp_path.glob("*.svg"))
    assert not re.findall(FOREIGN[language], text + pictures)
    own = {forms[language] for forms in locales.words().values() if language in forms}
    own |= {"drain()"} if language == labs.MODEL else set()  # a call of each model of ewe
    other = {form for forms in locales.words().values() for form in forms.values()} - own
    assert not other & set(CODE.findall(text))
    assert "{{" not in text and "<!--" not in text
    for name in (*labs.lab(lab).variant(language).work, *labs.lab(lab).variant(language).given):
        assert f"`{name}`" in text


@pytest.mark.parametrize(("lab", "language"), LAB_LANGUAGES)
def test_each_step_has_a_time(tmp_path: Path, lab: str, language: str) -> None:
    text = handout(tmp_path, lab, language)
    steps = labs.steps(text)
    total = sum(hours for _, hours in steps)
    assert f"{total:g} hours in {len(steps)} steps" in text
    if language == "python":
        assert total == labs.lab(lab).hours
    assert f"ewe-course measure {lab} " in text and f"ewe-course questions {lab}\n" in text


def test_the_page_of_lecturers_has_the_hours_of_the_steps() -> None:
    page = (ROOT / "packages/ewe-classroom/docs/teaching.md").read_text()
    shown = re.findall(r"^\| \d+ \| `(\w+)` \| ([\d.]+) \| ([\d.]+) h, ([\d.]+) h \|", page, re.MULTILINE)
    assert [name for name, *_ in shown] == [each.name for each in labs.labs()]
    for name, total, in_class, at_home in shown:
        text = labs.lab(name).in_language("text.md", "python")
        assert (float(in_class), float(at_home)) == labs.class_and_home(text), name
        assert (
            float(in_class) + float(at_home) == float(total) == sum(step.hours for step in labs.steps(text))
        )
    assert f"at most {labs.CLASS_HOURS} hours" in page


def test_a_handout_says_where_the_source_of_ewe_lies(tmp_path: Path) -> None:
    """Only a handout that names a file of it."""
    command = "python3 -c 'import ewe; print(ewe.__path__[0])'"
    named = set()
    for lab, language in LAB_LANGUAGES:
        text = handout(tmp_path / lab / language, lab, language)
        assert (f"\n\n    {command}\n" in text) == bool(SOURCE_OF_EWE.search(text)), (lab, language)
        named |= {name.strip("`") for name in SOURCE_OF_EWE.findall(text)}
    assert "ewe/processors/pool.py" in named and all((ROOT / name).is_file() for name in named)


def test_a_text_has_parts_and_words() -> None:
    text = "a\n<!-- go -->\n  use `{{get}}`\n<!-- python c -->\nuse `get()`\n<!-- all -->\nb\n"
    assert text_for("go", text, WORDS, LANGUAGES) == "a\n  use `Get`\nb\n"
    assert text_for("c", text, WORDS, LANGUAGES) == "a\nuse `get()`\nb\n"
    assert text_for("model", text, WORDS, LANGUAGES) == "a\nb\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n<!-- pyhton -->\n", "line 2: pyhton is no language; write python, c, go, model or all"),
        ("a\n\n{{get}}\n", "line 3: the word get has no form for c in words.toml"),
        ("{{nothing}}\n", "line 1: the word nothing has no form for c"),
    ],
)
def test_marks_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(TextError, match=re.escape(words)):
        text_for("c", text, WORDS, LANGUAGES)


def explore(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "ewe_explore", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.starts_processes
def test_the_pool_shows_the_answer_of_its_first_test(tmp_path: Path) -> None:
    """The text quotes the explorer's answer to a queue with `if` for `while`, in each locale the same."""
    text = handout(tmp_path / "new", "pool")
    why = re.compile(r"^    Why: .*(?:\n    .*)+$", re.MULTILINE)
    assert (
        len(
            {
                why.findall(each.read_text())[0]
                for each in (Path(labs.__file__).parents[1] / "labs" / "pool").glob("text*.md")
            }
        )
        == 1
    )
    assert "\n    ewe-explore test_queue.py\n" in text
    assert cli.main(["solution", "pool", str(tmp_path / "solved")]) == 0
    server = tmp_path / "solved" / "server.py"
    right, wrong = "while not self.items and not self.closed:", "if not self.items and not self.closed:"
    assert right in server.read_text()
    server.write_text(server.read_text().replace(right, wrong))
    shown = explore(tmp_path / "solved", "test_queue.py", "--scenario", "scenario_all_items", "--runs", "600")
    quoted = re.findall(r"^    (✗ .*|Why: .*(?:\n    .*)+)$", text, re.MULTILINE)
    assert len(quoted) == 2
    for each in quoted:  # without the ends of lines: they depend on the terminal's width
        assert " ".join(each.split()) in " ".join(shown.split())


@pytest.mark.starts_processes
@pytest.mark.parametrize("language", ["python", "model"])
def test_scheduling_has_its_first_test(tmp_path: Path, language: str) -> None:
    text = handout(tmp_path / "new", "scheduling", language)
    assert "\n    ewe-explore test_schedule.py\n" in text
    quoted = re.findall(r"gets `(fifo serves [^`]+)`", text)
    assert quoted and quoted[0] in explore(tmp_path / "new", "test_schedule.py", "--runs", "50")
    assert cli.main(["solution", "scheduling", str(tmp_path / "solved"), "--language", language]) == 0
    assert explore(tmp_path / "solved", "test_schedule.py", "--runs", "200").count(": no failure in") == 3


def test_a_page_stands_alone(tmp_path: Path) -> None:
    handout(tmp_path, "pool")
    page = (tmp_path / "assignment.html").read_text()
    assert '<a href="#1-the-queue-3-h">1. The queue (3 h)</a>' in page
    assert "<img" not in page and "Worker 1 takes the item before worker 2 has the lock." in page
    explorer = (tmp_path / "explorer.html").read_text()
    assert "Finding races systematically" in explorer and "<img" not in explorer
    for text in (page, explorer):
        assert all(link.startswith(("#", "https://")) for link in re.findall(r'href="([^"]*)"', text))


def test_a_link_to_another_file_is_text() -> None:
    page = to_html("# T\n\nlead\n\n[there](../x.md) [here](#t) ![no](x.png)\n", "T")
    assert '<p>there <a href="#t">here</a> </p>' in page


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "<b>Ann</b>",
        "`<i>x</i>`",
        '![a](http://x/y.png "z")',
        "<http://x> <!-- -->",
    ],
)
def test_a_name_is_no_part_of_the_page(tmp_path: Path, name: str) -> None:
    assert cli.main(["new", "pool", str(tmp_path), "--seed", name]) == 0
    page = (tmp_path / "assignment.html").read_text()
    assert not re.search(r"<script>alert|<b>|<i>x|<img|<!-- -->", page)
    assert name in (tmp_path / "README.md").read_text()


def test_a_handout_without_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "markdown":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(
        "ewe_classroom.course.handout.to_html", to_html
    )  # another test may have made the pages
    handout(tmp_path, "pool")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"README.md", "explorer.md", "server.py", "test-again.svg"} <= names
    assert not [name for name in names if name.endswith(".html")]
    said = [line for line in capsys.readouterr().out.splitlines() if "pip install" in line]
    assert len(said) == 1 and "README.md" in said[0]


def test_show_speaks_the_language(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "event", "--language", "c"]) == 0
    assert "epoll_pwait()" in capsys.readouterr().out
    assert cli.main(["show", "fork", "--language", "model"]) == 2


LOCALIZED = [
    (each.name, language, locale)
    for each in labs.labs()
    for language in each.variants
    for locale in each.locales
    if locale != locales.ENGLISH
]
DRAWN = re.compile(r"[─▶▲│└]")


def shape(lab: labs.Lab, language: str, locale: str) -> dict[str, list[Any]]:
    """Return the parts of a text that each locale has alike: times, lists, commands, names in code."""
    text = lab.in_language("text.md", language, locale)
    lines = text.splitlines()
    phrases = {
        form[language]
        for word, form in locales.words(locale).items()
        if language in form and form != locales.table("words.toml").get(word)
    }
    phrases.add(locales.words()["close-queue"].get(language, ""))
    return {
        "sections": re.findall(r"^## (\d\.|).*\((.*)\)$", text, re.MULTILINE),
        "lists": [line.partition(" ")[0] for line in lines if re.match(r"[-\d]\.? ", line)],
        "blocks": [line for line in lines if line.startswith("    ") and not is_drawn(line, lines)],
        "code": sorted(
            name
            for name in CODE.findall("\n".join(line for line in lines if not line.startswith("    ")))
            if name not in phrases
        ),
        "pictures": re.findall(r"\]\((.*?\.svg)\)", text),
        "links": re.findall(r"`([\w-]+\.html)`", text),
    }


def is_drawn(line: str, lines: list[str]) -> bool:
    """Return whether a line belongs to a drawing: its words are those of the locale."""
    at = lines.index(line)
    return any(DRAWN.search(each) for each in lines[max(at - 1, 0) : at + 2] if each.startswith("    "))


@pytest.mark.parametrize(("lab", "language", "locale"), LOCALIZED)
def test_each_locale_has_the_same_sections_commands_and_names(lab: str, language: str, locale: str) -> None:
    english = shape(labs.lab(lab), language, locales.ENGLISH)
    other = shape(labs.lab(lab), language, locale)
    for part in english:
        assert other[part] == english[part], part


@pytest.mark.parametrize(("lab", "language", "locale"), LOCALIZED)
def test_a_handout_in_another_locale(tmp_path: Path, lab: str, language: str, locale: str) -> None:
    """The handout has the same checks and points, and says which texts are in English."""
    arguments = [lab, str(tmp_path / locale), "--language", language, "--locale", locale, "--seed", "Ada"]
    assert cli.main(["new", *arguments]) == 0
    text = (tmp_path / locale / "README.md").read_text()
    english = handout(tmp_path / "en", lab, language)
    checks = re.compile(r"^\| `([\w-]+)` \| (\d+) \|", re.MULTILINE)
    assert checks.findall(text) == checks.findall(english) != []
    assert {"de": "sind auf Englisch", "es": "están en inglés"}[locale] in text
    assert f'<html lang="{locale}">' in (tmp_path / locale / "assignment.html").read_text()
    pictures = " ".join(path.read_text() for path in (tmp_path / locale).glob("*.svg"))
    assert not re.search(r"\b(your work|Points|Begin)\b|\{\{|<!--", text)
    assert not re.search(r"\b(the queue|worker|the lock)\b|\{\{", pictures)


def test_only_labs_with_a_text_have_a_locale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for name, *_ in LOCALIZED} == {"serial", "fork", "thread", "pool", "event"}
    assert cli.main(["new", "cgi", str(tmp_path / "cgi"), "--locale", "de"]) == 2
    assert "the lab cgi has no text in de; it has en" in capsys.readouterr().err
    assert not (tmp_path / "cgi").exists()


def test_each_lab_but_caching_names_its_scenes(tmp_path: Path) -> None:
    """The table of teaching.md has the same scenes, and each scene of ewe-watch belongs to a lab."""
    table = (ROOT / "packages/ewe-classroom/docs/teaching.md").read_text()
    rows = {
        row[1]: re.findall(r"ewe-watch --scene ([\w-]+)", row[2])
        for row in re.finditer(r"^\| `(\w+)` \| (`ewe-watch .*) \|$", table, re.MULTILINE)
    }
    assert rows == {each.name: list(each.scenes) for each in labs.labs() if each.scenes}
    known = {path.stem for path in (ROOT / "packages/ewe-watch").rglob("scenes/*.toml")}
    assert {name for names in rows.values() for name in names} == known
    assert {each.name for each in labs.labs()} - rows.keys() == {"caching"}
    text = handout(tmp_path, "pool", "c")
    assert ".*\n\n**See it first.**" in text
    assert "\n\n    ewe-watch --scene pool-starves\n    ewe-watch --scene parking\n\nWith" in text


def test_the_frame_has_each_piece_in_each_locale() -> None:
    fields = re.compile(r"\{\w+")
    for piece, forms in locales.table("frame.toml").items():
        assert set(forms) == set(locales.LOCALES), piece
        for locale in locales.LOCALES[1:]:
            english = set(fields.findall(forms["en"])) - {"{subject"}  # a translated lab is about a server
            assert set(fields.findall(forms[locale])) == english, piece
    picture = labs.lab("pool").read("test-again.svg")
    titles = {each.title for each in labs.labs()}
    for phrase, forms in locales.table("phrases.toml").items():
        assert set(forms) == set(locales.LOCALES[1:])
        assert phrase in titles | {*SUBJECTS.values(), "More"} or f">{phrase}<" in picture, phrase
