"""The settings of Python applications (applications.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import APPLICATIONS

# fmt: off
WSGI_APPLICATIONS = Setting((), APPLICATIONS, "a WSGI application and the path below which it answers:"
                            " /wiki=module:app, or /=module:create() for what a function returns; may be repeated",
                            group="programs", key="wsgi", after="mount")
ASGI_APPLICATIONS = Setting((), APPLICATIONS, "an ASGI application (Starlette, FastAPI, ...) and the path below"
                            " which it answers: /blog=module:app; may be repeated",
                            group="programs", key="asgi", after="wsgi")
# fmt: on
SETTINGS = WSGI_APPLICATIONS, ASGI_APPLICATIONS
