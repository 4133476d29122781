"""What `ewe-watch` does with models, servers and scenes of its command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ewe.config.command import DONE, FAILED, UsageError
from ewe.config.messages import one_line
from ewe_watch.live.choice import MOST_MODELS, ModelChoice
from ewe_watch.live.director import Choice, Director
from ewe_watch.live.foreign import foreign_choice
from ewe_watch.live.scenes import SceneFailure, Stage, WatchScene, find_scene, missing_users_text, scene_files
from ewe_watch.live.serve import open_director, serve

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")  # the variables of a graphical session


def run_live(models: list[ModelChoice], options: argparse.Namespace) -> int:
    """Execute the command; return its exit status. Raises UsageError, SceneError, Failure."""
    if options.files or options.output or options.perfetto or options.svg or options.json:
        raise UsageError("a trace and a model are two commands: name either files or models")
    is_scene = options.check_scene or (options.scene and options.scene != "list")
    if is_scene and (models or options.command):
        raise UsageError("a scene names its models itself")
    users = [each for each in options.users.split(",") if each]
    if options.check_scene:
        return check(options.check_scene, users)
    if options.scene == "list":
        for name in scene_files():
            print(f"{name:16} {find_scene(name).title}")
        return DONE
    if options.scene:
        scene = find_scene(options.scene)
        with open_director(users) as director:
            warn_of_missing_users(scene, director)
            return serve(director, scene, browser=shows_browser(options.open))
    shown: list[Choice] = [*map(foreign_choice, options.command), *models]
    if len(shown) > MOST_MODELS:
        raise UsageError(f"a page shows {MOST_MODELS} models at most, and here are {len(shown)}")
    with open_director(users) as director:
        director.show(shown)
        return serve(director, browser=shows_browser(options.open))


def shows_browser(wanted: bool | None) -> bool:
    """Return whether ewe-watch shows its page in a browser of this computer.

    wanted: True for --open, False for --no-open. None: it does so at a terminal of a graphical session, but not
    through SSH, since the user then sits at another computer, and not for root: no browser should have its rights.
    """
    if wanted is not None:
        return wanted
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in DISPLAYS)
    return graphical and os.geteuid() != 0 and "SSH_CONNECTION" not in os.environ and sys.stderr.isatty()


def warn_of_missing_users(scene: WatchScene, director: Director) -> None:
    """Print a line to standard error if a scene needs more accounts than --users names."""
    if lacks := missing_users_text(scene, director):
        print(f"ewe-watch: {lacks}", file=sys.stderr)


def check(name: str, users: Sequence[str]) -> int:
    """Play a scene, or all of them, without a page; return the exit status: FAILED if one does not show its text.

    Raises SceneError.
    """
    scenes = [find_scene(each) for each in (scene_files() if name == "all" else [name])]
    status = DONE
    for scene in scenes:
        with open_director(users) as director:
            try:
                warn_of_missing_users(scene, director)
                stage = Stage(director, scene)
                stage.play(all_steps=True)
                print(f"{scene.name}: shows what it says, in {len(scene.steps)} steps")
            except SceneFailure as reason:
                print(f"ewe-watch: {one_line(str(reason))}", file=sys.stderr)
                status = FAILED
    return status
