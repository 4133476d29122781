"""Each scene shows what it says, on real servers; and a scene with a mistake is one line."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from support.needs import require
from support.server import wait_until

from ewe_watch.cli import main
from ewe_watch.live import scenes
from ewe_watch.live.choice import parse_choice
from ewe_watch.live.director import ActionError
from ewe_watch.live.guard import ModelGuard, UserScript
from ewe_watch.live.model_process import StartFailure
from ewe_watch.live.scenes import (
    LIMIT_S,
    SceneChooser,
    SceneError,
    SceneFailure,
    Stage,
    find_scene,
    longest_wait_s,
    missing_users_text,
    scene_files,
    scene_of,
)
from ewe_watch.live.serve import director_in

STEP = {"say": "A visitor comes.", "send": "visitor", "until": ["1: answered visitor = 1"]}
TABLE = {"title": "A scene", "text": "One sentence.", "models": ["-t"], "step": [STEP]}


@pytest.mark.starts_processes
@pytest.mark.parametrize("name", scene_files())
def test_a_scene_shows_what_it_says(name: str, tmp_path: Path) -> None:
    with director_in(tmp_path) as director:
        stage = Stage(director, find_scene(name))
        stage.play(all_steps=True)
        assert stage.at == len(stage.scene.steps) and not stage.failed


@pytest.mark.starts_processes
def test_the_statements_of_a_step_may_end_before_the_next_click(tmp_path: Path) -> None:
    """The visitor comes with the slow statements, as a later one would find free workers."""
    with director_in(tmp_path) as director:
        stage = Stage(director, find_scene("database-daemon"))
        stage.play(all_steps=False)
        wait_until(lambda: all(director.measure(model, "answered report") == 4 for model in (0, 1)), 60)
        stage.play(all_steps=False)
        assert stage.at == len(stage.scene.steps) and not stage.failed


@pytest.mark.starts_processes
def test_slow_motion_ends_no_statement_and_a_step_waits_longer(tmp_path: Path) -> None:
    """The daemon cancels a statement after ten seconds. A page of 5 ms takes half a second."""
    with director_in(tmp_path) as director:
        director.slow_down(100)
        stage = Stage(director, find_scene("database-daemon"))
        stage.play(all_steps=True)
        assert stage.at == len(stage.scene.steps) and not stage.failed


@pytest.mark.parametrize(("slowdown", "seconds"), [(1, LIMIT_S), (5, 5 * LIMIT_S), (1000, 300)])
def test_a_step_waits_as_long_as_slow_clients_need_but_no_longer_than_they_live(
    slowdown: float, seconds: float
) -> None:
    assert longest_wait_s(slowdown) == seconds


@pytest.fixture
def accounts() -> Iterator[list[str]]:
    """Make two accounts with homes, and remove them at the end."""
    require("root")
    base = Path(tempfile.mkdtemp(prefix="test-users-"))
    base.chmod(0o755)
    names = [f"ewe-{name}-{os.getpid()}" for name in ("carol", "dave")]
    try:
        for name in names:
            home = ["--create-home", "--home-dir", str(base / name)]
            subprocess.run(["useradd", *home, "--shell", "/usr/sbin/nologin", name], check=True)
            (base / name).chmod(0o711)
        yield names
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(base)


@pytest.mark.starts_processes
def test_two_users_have_engines_of_their_own(accounts: list[str], tmp_path: Path) -> None:
    with director_in(tmp_path, accounts) as director:
        chooser = SceneChooser(director)
        chooser.start("xswitch-engines")  # as the page chooses it
        assert chooser.stage is not None and not director.scene["lacks"]
        assert not any(scene["lacks"] for scene in director.scenes)
        chooser.stage.play(all_steps=True)
        trace = director.models[1].recording.text().decode()
        assert all(script.path.exists() for script in director.scripts)
    owners = re.findall(r" x-request \S+ \S+ \S+ (\S+) python \S+/ewe-watch\.py$", trace, re.MULTILINE)
    assert owners == accounts
    runs = dict(re.findall(r" x-engine - \S+ (\S+) (\S+) python$", trace, re.MULTILINE))
    assert set(accounts) < set(runs.values()) and len(set(runs.values())) == 3
    assert not any(script.path.exists() for script in director.scripts)


@pytest.mark.starts_processes
def test_root_writes_no_script_through_the_link_of_a_user(accounts: list[str], tmp_path: Path) -> None:
    home = Path(pwd.getpwnam(accounts[1]).pw_dir)
    system = Path(tempfile.mkdtemp(prefix="test-system-"))
    try:
        system.chmod(0o755)
        (home / "public_html").symlink_to(system)
        with pytest.raises(ActionError, match=r"public_html/cgi-bin: Permission denied \(--users\)"):
            director_in(tmp_path, accounts).__enter__()
        assert list(system.iterdir()) == [] and os.geteuid() == os.getegid() == 0
        assert not list(home.parent.rglob("ewe-watch.py"))  # the first account's script is removed again
    finally:
        shutil.rmtree(system)


def test_a_scene_that_another_page_has_just_chosen_is_not_ended_within_a_step() -> None:
    chooser: Any = object.__new__(SceneChooser)
    new_stage = SimpleNamespace(lock=Lock())

    class LockAfterTheOther:
        """The lock of a chooser: another page had it until this page gets it, and has chosen a scene."""

        def acquire(self, *, blocking: bool) -> bool:
            chooser.stage = new_stage
            return True

        def release(self) -> None:
            pass

    chooser.stage, chooser.lock = SimpleNamespace(lock=Lock()), LockAfterTheOther()
    with new_stage.lock, pytest.raises(ActionError, match="a step is being played"), chooser.alone():
        pass
    with chooser.alone():
        assert new_stage.lock.locked()
    assert not new_stage.lock.locked()


def test_a_scene_that_another_page_leaves_at_once_offers_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser: Any = object.__new__(SceneChooser)

    @contextmanager
    def alone() -> Iterator[None]:
        yield
        chooser.stage = None  # the other page has waited for the locks

    chooser.stage, chooser.director, chooser.alone = None, SimpleNamespace(models=[]), alone
    monkeypatch.setattr(scenes, "Stage", lambda director, scene: SimpleNamespace())
    chooser.start("pool-starves")
    assert chooser.stage is None


@pytest.mark.starts_processes
def test_without_accounts_a_scene_says_what_it_needs(tmp_path: Path) -> None:
    with director_in(tmp_path) as director:
        chooser = SceneChooser(director)
        chooser.start("xswitch-engines")
        lacks = director.scene["lacks"]
        assert {scene["name"]: scene["lacks"] for scene in director.scenes if scene["lacks"]} == {
            "xswitch-engines": lacks
        }
        assert "needs root and 2 accounts (--users NAME,NAME); without them it shows one" in lacks
        assert not missing_users_text(find_scene("parking"), director)


@pytest.mark.starts_processes
def test_an_account_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check-scene", "xswitch-engines", "--users", "nobody-has-this-name"]) == 1
    words = "there is no account 'nobody-has-this-name'" if os.geteuid() == 0 else "--users needs root"
    assert capsys.readouterr().err.startswith(f"ewe-watch: {words}")


def test_a_refused_account_leaves_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"

    def write(directory: Path, python: str, user: str, name: str) -> UserScript:
        if user == "second":
            raise KeyError(user)
        script.touch()
        return UserScript(script, 0, 0)  # the account that this test seems to have

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("ewe_watch.live.director.write_user_script", write)
    with (
        pytest.raises(ActionError, match="there is no account 'second'"),
        director_in(tmp_path, ["first", "second"]),
    ):
        pass
    assert not script.exists()


@pytest.mark.starts_processes
@pytest.mark.parametrize("killed", [True, False])
def test_the_guard_removes_scripts_only_after_a_kill(tmp_path: Path, killed: bool) -> None:
    script, directory = tmp_path / "script", tmp_path / "directory"
    script.touch()
    directory.mkdir()
    guard = ModelGuard(directory, [UserScript(script, os.geteuid(), os.getegid())])
    if killed:
        assert guard.process.stdin is not None
        guard.process.stdin.close()
        guard.process.wait(30)
    else:
        guard.close()
    assert (script.exists(), directory.exists()) == (not killed, not killed)


@pytest.mark.needs("root")
def test_a_script_is_removed_with_the_rights_of_its_owner(tmp_path: Path) -> None:
    """The owner has replaced the directory of the script by a link to a directory of the system."""
    other = tmp_path / "system"
    other.mkdir(mode=0o755)
    (other / "ewe-watch.py").touch()
    (tmp_path / "cgi-bin").symlink_to(other)
    nobody = pwd.getpwnam("nobody")
    UserScript(tmp_path / "cgi-bin" / "ewe-watch.py", nobody.pw_uid, nobody.pw_gid).remove()
    assert (other / "ewe-watch.py").exists() and os.geteuid() == 0


class Changing:
    """A director whose model changes: each measurement has the next number."""

    users = ()

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def measure(self, number: int, name: str) -> float:
        return float(next(self.numbers))


def test_a_failure_names_the_number_that_was_tested() -> None:
    (step,) = scene_of("changing", TABLE).steps
    (condition,) = step.until
    director = Changing()
    assert condition.why_not(director) == "'1: answered visitor = 1' (it is 0)"  # type: ignore[arg-type]
    assert condition.why_not(director) == ""  # type: ignore[arg-type]


@pytest.mark.starts_processes
def test_a_scene_that_shows_something_else_fails(tmp_path: Path) -> None:
    wrong = TABLE | {"step": [STEP | {"shows": ["1: answered visitor = 2"]}]}
    with director_in(tmp_path) as director:
        stage = Stage(director, scene_of("wrong", wrong))
        with pytest.raises(SceneFailure, match=r"step 1 does not show '1: answered visitor = 2' \(it is 1\)"):
            stage.play(all_steps=True)
        assert director.scene["failed"] == stage.failed != ""


@pytest.mark.starts_processes
def test_a_failed_step_that_is_played_again_and_passes_leaves_no_failure(tmp_path: Path) -> None:
    shows = {"say": "A visitor has come.", "shows": ["1: answered visitor = 1"]}
    with director_in(tmp_path) as director:
        stage = Stage(director, scene_of("twice", TABLE | {"step": [shows, STEP]}))
        with pytest.raises(SceneFailure):
            stage.play(all_steps=False)
        director.send("visitor", 1)
        wait_until(lambda: director.measure(0, "answered visitor") == 1, 30)
        stage.play(all_steps=False)
        assert stage.at == 1 and stage.failed == director.scene["failed"] == ""


@pytest.mark.starts_processes
def test_the_wait_of_a_step_can_be_left(tmp_path: Path) -> None:
    """The first condition never holds. Without skip() the step would fail after LIMIT_S seconds."""
    never = STEP | {"until": ["1: answered visitor = 2"]}
    with director_in(tmp_path) as director:
        stage = Stage(director, scene_of("never", TABLE | {"step": [never, STEP]}))
        with pytest.raises(ActionError, match="no step is being played"):
            stage.skip()
        player = Thread(target=stage.play, kwargs={"all_steps": False})
        player.start()
        wait_until(stage.lock.locked, 30)
        wait_until(lambda: director.measure(0, "answered visitor") == 1, 30)
        stage.skip()
        player.join(LIMIT_S / 3)
        assert not player.is_alive()
        assert (stage.at, stage.skipped, stage.failed) == (1, [0], "")
        assert director.scene["skipped"] == [0] and not director.scene["running"]


@pytest.mark.starts_processes
def test_no_model_starts_after_the_end(tmp_path: Path) -> None:
    """A button that waits for the lock of Director.close() starts its models after it: they would be left."""
    with director_in(tmp_path) as director:
        director.stopping.set()
        with pytest.raises(StartFailure, match="ewe-watch ends"):
            director.show([parse_choice("-t")])
        assert director.models == [] and director.started == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": []}, "1 to 4 models"),
        ({"models": ["t"]}, "does not begin with a model"),
        ({"models": ["-t --port 1"]}, "--port is not an option"),
        ({"step": [{"send": "visitor"}]}, "step 1: say is missing"),
        ({"step": [STEP, STEP | {"send": "army"}]}, "step 2: there is no client 'army'"),
        ({"step": [STEP | {"until": ["2: queued = 1"]}]}, "step 1: '2: queued = 1' is not a condition"),
        ({"step": [STEP | {"until": ["1: queued is 1"]}]}, "is not a condition"),
        ({"step": [STEP | {"shows": ["1: happiness = 1"]}]}, "'happiness' cannot be measured"),
        ({"step": [STEP | {"wait": 5}]}, "step 1: wait is unknown; there are at-once, count"),
        ({"step": [STEP | {"untill": []}]}, 'step 1: untill is unknown; did you mean "until"?'),
        ({"modles": ["-t"]}, 'modles is unknown; did you mean "models"?'),
        ({"language": "de"}, "language is unknown; there are models, step, text, title, users"),
    ],
)
def test_a_mistake_of_a_scene_is_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(Exception, match=r"^[^\n]*$") as error:
        scene_of("wrong", TABLE | change)
    assert words in str(error.value)


def test_a_file_that_is_no_scene(tmp_path: Path) -> None:
    head = "title = 'x'\ntext = 'y'\n"
    for text, words in [
        ("title = ", "own.toml"),
        ("title = 'x'", "models is missing"),
        ("titel = 'x'", 'own.toml: titel is unknown; did you mean "title"\\?'),
        (f"{head}models = [5]\nstep = []", "5 does not begin with a model"),
        (f"{head}models = ['-p']\nstep = ['say']", "'say' is no table: write "),
        (f"{head}models = ['-p']\n[[step]]\nsay = 'z'\ncount = inf", "own.toml: cannot convert"),
        (f"models = {'[' * 2000}", "own.toml: "),
        (None, "cannot read"),
    ]:
        path = tmp_path / "own.toml"
        if text is None:
            path = tmp_path / "absent.toml"
        else:
            path.write_text(text)
        with pytest.raises(SceneError, match=words):
            find_scene(str(path))


def test_every_scene_has_three_sentences_and_ten_exist() -> None:
    scenes = [find_scene(name) for name in scene_files()]
    assert len(scenes) >= 10
    for scene in scenes:
        assert scene.text.count(". ") + 1 in (3, 4), scene.name
        assert any(step.shows or step.until for step in scene.steps)
    assert LIMIT_S > 10 and os.sep not in "".join(scene.name for scene in scenes)
