"""Applications of Flask, Bottle and Django, as their manuals write them. Tests copy this file beside the server."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def flask_app() -> Any:
    """Return a Flask application: a page, a form, a file, an upload, a stream."""
    import flask

    app = flask.Flask("shop", root_path=str(Path.cwd()))
    app.secret_key = "for tests"

    @app.get("/")
    def index() -> str:
        return flask.render_template_string(
            "<p>Hello, {{ name }}", name=flask.request.args.get("name", "you")
        )

    @app.post("/upload")
    def upload() -> dict[str, Any]:
        file = flask.request.files["file"]
        return {"name": file.filename, "sum": hashlib.sha256(file.read()).hexdigest()}

    @app.get("/file")
    def send() -> Any:
        return flask.send_file(Path("big").resolve(), conditional=True)

    @app.get("/stream")
    def stream() -> Any:
        return flask.Response(f"{number}\n" for number in range(3))

    @app.get("/fault")
    def fault() -> str:
        raise LookupError("in the view")

    @app.get("/login")
    def login() -> Any:
        flask.session["user"] = "Ada"
        return flask.redirect(flask.url_for("who"))

    @app.get("/who")
    def who() -> str:
        return str(flask.session.get("user"))

    return app


def bottle_app() -> Any:
    """Return a Bottle application."""
    import bottle

    app = bottle.Bottle()

    @app.get("/hello/<name>")
    def hello(name: str) -> str:
        return bottle.template("<b>Hello {{name}}</b>!", name=name)

    @app.post("/upload")
    def upload() -> dict[str, Any]:
        file = bottle.request.files.get("file")
        return {"name": file.filename, "sum": hashlib.sha256(file.file.read()).hexdigest()}

    @app.get("/file")
    def send() -> Any:
        return bottle.static_file("big", root=os.getcwd(), mimetype="application/octet-stream")

    @app.get("/stream")
    def stream() -> Iterator[str]:
        for number in range(3):
            yield f"{number}\n"

    return app


def django_app() -> Any:
    """Return a Django application with the admin site, and an upload."""
    import django
    from django.conf import settings

    settings.configure(
        DEBUG=False, ALLOWED_HOSTS=["*"], SECRET_KEY="for tests", ROOT_URLCONF=__name__, USE_TZ=True,
        STATIC_URL="static/", DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["django.contrib." + name for name in (
            "admin", "auth", "contenttypes", "sessions", "messages")],
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware",
                    "django.middleware.csrf.CsrfViewMiddleware",
                    "django.contrib.auth.middleware.AuthenticationMiddleware",
                    "django.contrib.messages.middleware.MessageMiddleware"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}},
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                    "OPTIONS": {"context_processors": ["django.template.context_processors.request",
                                                       "django.contrib.auth.context_processors.auth",
                                                       "django.contrib.messages.context_processors.messages"]}}],
    )  # fmt: skip
    django.setup()
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application
    from django.db import connections
    from django.http import FileResponse, JsonResponse
    from django.urls import path
    from django.views.decorators.csrf import csrf_exempt

    with open("django.lock", "w") as lock:  # several workers begin at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path("django.db").exists():
            call_command("migrate", verbosity=0)
            User.objects.create_superuser("ada", "ada@example.org", "lovelace")
            connections.close_all()

    def upload(request: Any) -> JsonResponse:
        file = request.FILES["file"]
        return JsonResponse({"name": file.name, "sum": hashlib.sha256(file.read()).hexdigest()})

    def send(request: Any) -> FileResponse:
        return FileResponse(open("big", "rb"))

    sys.modules[__name__].urlpatterns = [  # type: ignore[attr-defined]
        path("admin/", admin.site.urls), path("upload", csrf_exempt(upload)), path("file", send),
    ]  # fmt: skip
    return get_wsgi_application()
