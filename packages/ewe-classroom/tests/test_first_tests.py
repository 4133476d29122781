"""The first test of each lab: it fails on the starter and says why, and it passes on the solution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT

from ewe_classroom.course import cli, labs, locales
from ewe_classroom.course.handout import assignment

LAB_LANGUAGES = [(each.name, language) for each in labs.labs() for language in each.variants]
NO_RESPONSE = "The client has sent a request, and gets no response."
WAITS = "One client has sent half a request, and the second client waits for it."
SAYS = {
    ("serial", "python"): "2. The second client gets it, too.",
    ("serial", "model"): "2. The second client gets it, too.",
    ("serial", "c"): "2. The second client gets it, too.",
    ("serial", "go"): "TestStep2NextClient",
    ("fork", "python"): "a process still has a copy of it.",
    ("fork", "c"): "a process still has a copy of it.",
    ("fork", "go"): WAITS,
    **{("thread", language): WAITS for language in ("python", "c", "go", "model")},
    ("pool", "python"): "worker 1 and worker 2 go round in a loop",
    ("pool", "model"): "another client had no answer in that time",
    ("pool", "c"): "put() did not wait while it was full.",
    ("pool", "go"): "Put did not wait while it was full.",
    ("event", "python"): WAITS,
    ("event", "c"): WAITS,
    ("event", "go"): NO_RESPONSE,
    ("cgi", "python"): "SCRIPT_NAME, PATH_INFO, QUERY_STRING and HTTP_X_COLOUR should be",
    ("scheduling", "python"): "fifo serves ['a', 'c', 'b'], and not ['b', 'c', 'a']",
    ("scheduling", "model"): "fifo serves ['a', 'c', 'b'], and not ['b', 'c', 'a']",
    ("engine", "python"): "The script prints 'ann', and should print 'no cookie'.",
    ("caching", "python"): "This is not true: The file has changed",
    ("measure", "python"): "none may be missing",
}
NEEDED = {"c": ["gcc"], "go": ["Go", "gcc"]}  # the detector of races of Go needs a C compiler
MARKED = [
    pytest.param(lab, language, marks=[pytest.mark.needs(*NEEDED[language])] if language in NEEDED else [])
    for lab, language in LAB_LANGUAGES
]


def first_test(directory: Path, lab: str, language: str) -> subprocess.CompletedProcess[str]:
    """Run the first test of a lab, by the command that the handout shows."""
    words = labs.lab(lab).variant(language).first_test.split()
    if words[0] == "ewe-explore":
        words = [sys.executable, "-m", "ewe_explore", *words[1:], "--runs", "60"]
    elif words[0] == "python3":
        words[0] = sys.executable
    return subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *sys.path]))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(("lab", "language"), LAB_LANGUAGES)
def test_the_first_step_names_the_first_test(tmp_path: Path, lab: str, language: str) -> None:
    variant = labs.lab(lab).variant(language)
    for locale in labs.lab(lab).locales:
        directory = tmp_path / locale
        assert cli.main(["new", lab, str(directory), "--language", language, "--locale", locale]) == 0
        text = (directory / "README.md").read_text()
        step = text.partition("\n## 1. ")[2].partition("\n## ")[0]
        assert variant.first_test and f"\n\n    {variant.first_test}\n\n" in step
        assert locales.shared_text("first", locale).strip().partition("\n")[0] in step
        for name in variant.tests:
            assert (directory / name).is_file() and f"- `{name}`: " in text


@pytest.mark.parametrize(("lab", "language"), LAB_LANGUAGES)
def test_new_names_the_first_test_before_the_grader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lab: str, language: str
) -> None:
    variant = labs.lab(lab).variant(language)
    assert cli.main(["new", lab, str(tmp_path / "my work"), "--language", language, "--seed", "Ada"]) == 0
    first, then = capsys.readouterr().out.splitlines()[-2:]
    assert first == f"Next, the first test: cd '{tmp_path}/my work' && {variant.first_test}"
    assert then.endswith(f" ewe-grade --lab {lab} --seed Ada {variant.grade}")
    assert f" {variant.build} && " in then if variant.build else "&&" not in then


@pytest.mark.parametrize(("lab", "language"), LAB_LANGUAGES)
def test_the_first_step_says_why_go_needs_a_minute(lab: str, language: str) -> None:
    """And that the race detector needs a C compiler."""
    found = labs.lab(lab)
    for locale in found.locales:
        step = assignment(found, found.variant(language), locale=locale).partition("\n## 2. ")[0]
        assert ("`go test`" in step) == (language == "go")
        assert ("\n`-race`" in step) == ("-race" in found.variant(language).first_test)


@pytest.mark.starts_processes
@pytest.mark.needs("gcc")
def test_the_first_test_of_the_pool_shows_an_access_without_a_lock(tmp_path: Path) -> None:
    """Step 2 in C: the command of the handout builds the test with ThreadSanitizer."""
    assert cli.main(["solution", "pool", str(tmp_path), "--language", "c"]) == 0
    text = assignment(labs.lab("pool"), labs.lab("pool").variant("c"))
    (command,) = re.findall("^    (make clean check .*)$", text, re.MULTILINE)
    source = (tmp_path / "server.c").read_text()
    count, unlock = "    queue.count++;\n", "    pthread_mutex_unlock(&queue.lock);\n"
    for text, races in (
        (source, False),
        (source.replace(count, "").replace(unlock, unlock + count, 1), True),
    ):
        (tmp_path / "server.c").write_text(text)
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert ("WARNING: ThreadSanitizer: data race" in done.stdout) == races, done.stdout
        assert bool(done.returncode) == races, done.stdout


@pytest.mark.starts_processes
def test_the_first_test_of_the_engine_says_that_the_engine_has_ended(tmp_path: Path) -> None:
    assert cli.main(["solution", "engine", str(tmp_path)]) == 0
    source = (tmp_path / "engine.py").read_text()
    assert "traceback.print_exc()" in source
    (tmp_path / "engine.py").write_text(source.replace("traceback.print_exc()", "os._exit(7)"))
    done = first_test(tmp_path, "engine", "python")
    assert "fails.py: the engine has ended without an end mark" in done.stdout and done.returncode == 1


@pytest.mark.starts_processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("lab", "language"), MARKED)
def test_the_first_test_fails_on_the_starter_alone(tmp_path: Path, lab: str, language: str) -> None:
    assert cli.main(["new", lab, str(tmp_path / "new"), "--language", language]) == 0
    begun = first_test(tmp_path / "new", lab, language)
    assert begun.returncode, begun.stdout
    # Without the ends of lines: those of ewe-explore depend on the terminal's width.
    assert SAYS[lab, language] in " ".join(begun.stdout.split())
    assert cli.main(["solution", lab, str(tmp_path / "solved"), "--language", language]) == 0
    solved = first_test(tmp_path / "solved", lab, language)
    assert solved.returncode == 0, solved.stdout
