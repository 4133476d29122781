"""The page of engines: a visitor sees, restarts and drains own engines of X-Switch (key `engines` of a location).

    auth = { realm = "Engines", ... }      who is the visitor?        REMOTE_USER = alice
    engines = true                         which engines are hers?    those that run as the account alice

feature.py   checks the request, and asks X-Switch, which checks again (ewe.xswitch.switch.control)
pages.py     the answers of X-Switch as HTML
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ewe.config.messages import ConfigError
from ewe.config.setting import Key
from ewe.config.setting_types import list_of, matching
from ewe.config.table_kinds import TableKind
from ewe.features.declaration import Feature
from ewe.features.users_settings import USERDIR

if TYPE_CHECKING:
    from ewe.features.base import Handler
    from ewe.features.plan import LocationPlan


def answer(location: LocationPlan) -> Handler:
    """Return the handler of a location with `engines`.

    Raises ConfigError without X-Switch, without a log-in, and beside users' pages.
    """
    from ewe.features.engines.feature import EnginesPage

    switch = location.plan.provided("xswitch")
    if switch is None:
        raise ConfigError(f"{location.label_of('engines')} needs an X-Switch: --xswitch, or the model -x")
    if not location.is_guarded:
        raise ConfigError(f"{location.label_of('engines')} needs auth, which says who the visitor is")
    if location.config[USERDIR] is not None:
        raise ConfigError(
            f"{location.label_of('engines')} needs a site without users' pages, whose scripts could act in a"
            ' visitor\'s browser: write a separate [[site]] with a name, and userdir = ""'
        )
    administrators = location.table.values["engines"]["administrators"]
    return EnginesPage(location.prefix, administrators, switch.connections, location.config.names)


ADMINISTRATORS = list_of(
    "NAMES", 'names of visitors, such as ["root"]', matching("NAME", "a name", r"[^\x00-\x1f\x7f:]+").read
)
KIND = TableKind(
    'true, or { administrators = ["root"] }',
    {"administrators": Key(ADMINISTRATORS, "visitors who reach the engines of all users; absent: root")},
    defaults={"administrators": ("root",)},
    short=lambda raw: {} if raw is True else raw,
)
MEANING = (
    "the page on which a visitor sees, restarts and drains the engines of X-Switch that run as the account of the"
    " same name; needs auth"
)
FEATURE = Feature(
    "engines", keys={"engines": Key(KIND, MEANING)}, answer=answer, late=("ewe.features.engines.feature",)
)
