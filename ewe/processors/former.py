"""Former names of the contract between ewe and a model: a model that was written for them goes on working.

A class that defines a name under its former or its present name gets the other one as well. The methods of a class
therefore find each other under both names, and so does super(). The log has one line for each former name that the
code of a model uses.

A model with a further limit once overrode has_room(). It now overrides limit_reached(), which says the reason, too.
A class that defines one of the two gets the other one from it.

A processor was once made from a site, and made the conversations itself. Model(site, config) goes on working.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from ewe import logger

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.conversations import Conversations

FORMER = {
    "ceiling": "connection_limit",
    "hold": "run",
    "holds_idle": "idle_occupies_worker",
    "idle_holds": "occupied_by_idle",
    "meet": "stream_of",
    "next": "next_connection",
    "words": "description",
}
# The names that a model calls and need not define; not `next`, which in code may also be the built-in function
CALLED = {"hold", "meet"}


def keep_former_names(model: type) -> None:
    """Give each name that a class defines under both names; log the former names that the class uses."""
    own = dict(vars(model))
    for former, name in FORMER.items():
        if name in own:
            setattr(model, former, own[name])
        elif former in own:
            setattr(model, name, own[former])
    pair_limits(model)
    functions = [each for each in own.values() if isinstance(each, FunctionType)]
    used = CALLED.intersection(name for each in functions for name in each.__code__.co_names)
    for former in sorted(FORMER.keys() & own.keys() | used):
        logger.errors.warning(f"the model {model.__name__}: {former} is now called {FORMER[former]}")


def pair_limits(model: type) -> None:
    """Give a class that defines one of has_room() and limit_reached() the other one; log a former has_room()."""
    own = vars(model)
    if "limit_reached" in own:
        limit_reached = own["limit_reached"]
        model.has_room = lambda self: not limit_reached(self)  # type: ignore[attr-defined]
    elif "has_room" in own:
        has_room = own["has_room"]
        model.limit_reached = lambda self: "" if has_room(self) else "connections"  # type: ignore[attr-defined]
        logger.errors.warning(
            f"the model {model.__name__}: has_room is now called limit_reached, and returns a setting's name, or an"
            " empty string if there is room"
        )


def conversations_of(given: Any, config: Config) -> Conversations:
    """Return the conversations that a processor was given, or those of the site that it was given instead."""
    if hasattr(given, "of"):
        conversations: Conversations = given
        return conversations
    from ewe.conversations import Conversations

    return Conversations(given, config)
