"""What the buttons of the page ask for, as JSON objects: {"do": "send", "kind": "silent", "count": 5}."""

from __future__ import annotations

from typing import Any

from ewe.config.messages import ConfigError, Failure
from ewe_watch.live.director import ActionError, Director
from ewe_watch.live.scenes import SceneChooser


def execute_action(director: Director, chooser: SceneChooser, action: dict[str, Any]) -> None:
    """Do what a button asks. Raises ActionError, ConfigError, Failure.

    action: a JSON object from the page. A missing key or a value of a wrong type becomes an ActionError.
    """
    try:
        name = action["do"]
        if name == "send":
            director.send(str(action["kind"]), int(action.get("count", 0)))
        elif name == "let-go":
            director.let_go()
        elif name == "pace":
            director.slow_down(float(action["factor"]))
        elif name == "change":
            values = {str(key): str(value) for key, value in dict(action["values"]).items()}
            director.change(int(action["model"]), values)
        elif name in ("next", "play", "skip"):
            if (stage := chooser.stage) is None:
                raise ActionError("no scene is shown: choose one, or start ewe-watch --scene NAME")
            if name == "skip":
                stage.skip()
            else:
                stage.play(all_steps=name == "play")
        elif name == "scene":
            chooser.start(str(action["name"]))
        elif name == "leave":
            chooser.leave()
        else:
            raise ActionError(f"there is no action {name!r}")
    # OverflowError: int() of an infinite number
    except (KeyError, TypeError, ValueError, OverflowError) as reason:
        if isinstance(reason, (ConfigError, Failure)):  # raised by an action, with its own text
            raise
        raise ActionError(f"the action is not complete: {reason}") from None
