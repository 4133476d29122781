"""The parts of a mounted declaration that act on the whole server: settings, programs, warnings, late modules."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from support import web
from support.memory import MemoryStream
from support.proc import children
from support.server import Start, run_command, wait_until

from ewe.config import settings
from ewe.config.feature_table import mounted
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.http.messages import Request
from ewe.server.run import load_late_modules
from ewe.sites import make_site
from ewe.streams.blocking import run

GREETER = """
import os, socket
from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, TEXT, unset
from ewe.features.base import Mount
from ewe.features.declaration import Feature
from ewe.gateway.kept_programs import ForkedProcess, KeptProgram
from ewe.http.messages import Response

WORD = Setting("Hello", TEXT, "the first word", group="programs", key="greeting", after="mount")
LOUD = Setting(False, BOOL, "greet loudly", group="programs", key="greet-loudly", scope="location")
SOCKET = Setting(None, unset(TEXT), "a socket", group="programs", key="greeter-socket", scope="server")

class Greeter:
    def __init__(self, config, path):
        self.text = config[WORD] + ("!" if config[LOUD] else ".")

    async def respond(self, request, io):
        return Response(200, (), self.text.encode())

    def explain(self, request, io):
        yield f"  answer    {self.text}"
        return True

class Program(KeptProgram):
    setting = "mount"

    def __init__(self, path):
        super().__init__("greeter", 1, path)

    def completed(self, config):
        return config.replace("mount", greeter_socket=self.path)

    def start(self, output):
        return ForkedProcess(self.serve)

    def serve(self):
        while True:
            connection = self.socket.accept()[0]
            connection.sendall(str(os.getpid()).encode())
            connection.close()

class Asking:
    def __init__(self, config, path):
        self.socket = config[SOCKET]

    async def respond(self, request, io):
        return Response(200, (), await io.call(self.ask))

    def ask(self):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.socket)
            return sock.recv(100)

def programs(config):
    yield Program

def fixed(config):
    yield from ("mount", "greeter-socket")

def warnings(config, public_url):
    yield f"visitors are greeted with {config[WORD]}"

def mounts(plan):
    yield Mount("/more/", Greeter(plan.config, "/more/"))
    yield Mount("/raw", Faulty())

class Faulty:
    async def respond(self, request, io):
        return "no response"

LOADED = []

class Warm:
    name = "greeter:Warm"
    started = None

    def load(self):
        LOADED.append(os.getpid())

class Ready:
    async def respond(self, request, io):
        return Response(200, (), b"ready" if LOADED and LOADED[-1] in (os.getpid(), os.getppid()) else b"late")

def provide(plan):
    plan.server.add_application(Warm())
    return Ready()

def ready(plan):
    yield Mount("/ready", plan.provided("greeter:WARM"))

WARM = Feature("greeter", make=Greeter, provide=provide, mounts=ready)
FEATURE = Feature("greeter", settings=(WORD, LOUD), make=Greeter, start_warnings=warnings, mounts=mounts)
ASKS = Feature("cgi", settings=(SOCKET,), make=Asking, programs=programs, fixed=fixed)
"""
WRONG_SETTINGS = """
from ewe.config.setting import Setting
from ewe.config.setting_types import TEXT
from ewe.features.declaration import Feature

class Greeter:
    def __init__(self, config, path): ...
    async def respond(self, request, io): ...

FEATURE = Feature("wrong", make=Greeter, settings=SETTINGS)
"""
LATE = """
from ewe.features.declaration import Feature

class Greeter:
    def __init__(self, config, path): ...
    async def respond(self, request, io): ...

def preload():
    print("preloaded")

FEATURE = Feature("late", make=Greeter, late=("late_greetings",), preload=preload)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the current directory, with the module `greeter`. Afterwards ewe knows its own settings only."""
    (tmp_path / "greeter.py").write_text(GREETER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("greeter", "late_greeter", "late_greetings", "wrong", "welcome"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(settings, "SETTINGS", dict(settings.SETTINGS))
    monkeypatch.setattr(settings, "KEYS", dict(settings.KEYS))
    return tmp_path


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("options", "file", "said"),
    [
        (("--mount", "/h=greeter:FEATURE"), "", "Hello."),
        (("--greeting", "Ahoi", "--mount=/h=greeter:FEATURE", "--greet-loudly"), "", "Ahoi!"),
        (("--greeting=Ahoi", "--no-greet-loudly"), 'mount = "/h=greeter:FEATURE"\n', "Ahoi."),
        ((), 'mount = "/h=greeter:FEATURE"\ngreeting = "Moin"\ngreet-loudly = true\n', "Moin!"),
        ((), '[[site]]\nmount = "/h=greeter:FEATURE"\ngreeting = "Moin"\n', "Moin."),
        (
            ("--mount", "/h=greeter:FEATURE"),
            '[[site]]\ngreeting = "Moin"\n[[site.location]]\nprefix = "/h"\ngreet-loudly = true\n',
            "Moin!",
        ),
    ],
)
def test_each_source_may_set_a_setting_of_a_mounted_feature(
    tmp_path: Path, options: tuple[str, ...], file: str, said: str
) -> None:
    (tmp_path / "htdocs").mkdir()
    (tmp_path / "greeter.py").write_text(GREETER)
    (tmp_path / "ewe.toml").write_text(file)
    done = run_command(tmp_path, *options, "--explain", "http://x/h")
    assert done.stdout.endswith(f"  answer    {said}\n"), done


def test_the_environment_may_set_a_setting_of_a_mounted_feature(here: Path) -> None:
    environ = {"EWE_MOUNT": "/h=greeter:FEATURE", "EWE_GREETING": "Servus"}
    config = Config.load(environ=environ)
    assert config.origin("greeting") == "EWE_GREETING"
    assert answer(config, "/h") == (200, b"Servus.")


def answer(config: Config, path: str) -> tuple[int, object]:
    """Return the status and the body of the site's response."""
    response = run(make_site(config).respond(Request("GET", path, (1, 1), path=path), MemoryStream([])))
    return response.status, response.body


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--greeting", "Ahoi"), "unknown option --greeting"),
        (
            ("--mount", "/h=greeter:FEATURE", "--greetin", "x"),
            'unknown option --greetin; did you mean "--greeting"?',
        ),
        (("--mount", "/h=nowhere:FEATURE", "--greeting", "x"), "feature 'nowhere:FEATURE' cannot be loaded"),
        (("--mount", "h", "--greeting", "x"), '--mount ["h"]: expected'),
    ],
)
def test_a_setting_of_a_feature_that_is_not_mounted_is_unknown(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "greeter.py").write_text(GREETER)
    done = run_command(tmp_path, *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"ewe: {said}"), done.stderr


@pytest.mark.starts_processes
def test_an_unknown_option_is_named_though_the_settings_cannot_be_read(tmp_path: Path) -> None:
    """It may also be an option of the feature that cannot be loaded: the line gives both reasons."""
    (tmp_path / "ewe.toml").write_text('mount = "/h=nowhere:FEATURE"\n')
    done = run_command(tmp_path, "--prot", "8080")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    start = (
        'ewe: unknown option --prot; did you mean "--port"?; the settings cannot be read: ewe.toml line 1: '
    )
    assert done.stderr.startswith(f"{start}feature 'nowhere:FEATURE' cannot be loaded"), done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize(("options", "imports"), [(("--prot",), True), (("--help", "--", "--prot"), False)])
def test_an_unknown_option_imports_the_features_of_the_file(
    tmp_path: Path, options: tuple[str, ...], imports: bool
) -> None:
    """A word behind -- is no option."""
    (tmp_path / "greeter.py").write_text('print("imported")\n' + GREETER)
    (tmp_path / "ewe.toml").write_text('mount = "/h=greeter:FEATURE"\n')
    assert ("imported" in run_command(tmp_path, *options).stdout) == imports


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('Setting("", TEXT, "x", group="programs", key="port")', "the name port of its setting is taken"),
        ('Setting("", TEXT, "x", group="programs", key="file")', "the name file of its setting is taken"),
        ('Setting("", TEXT, "x", group="programs", key="alias")', "the name alias of its setting is taken"),
        ('Setting("", TEXT, "x", group="programs", key="auth")', "the name auth of its setting is taken"),
        ('Setting("", TEXT, "x", group="programs", key="cgi-path")', "two settings have the name cgi-path"),
        (
            'Setting("", TEXT, "x", group="programs", key="a", names=("port",))',
            "the name port of its setting is",
        ),
        (
            'Setting("", TEXT, "x", group="programs", key="a", after="b")',
            "a: there is no setting b that it could",
        ),
        ('Setting("", TEXT, "x", group="programs")', "a setting of a feature needs its key"),
        ('"wool"', "its settings= must be a tuple of Setting"),
    ],
)
def test_a_setting_that_cannot_be_known_is_one_line(here: Path, setting: str, said: str) -> None:
    (here / "wrong.py").write_text(WRONG_SETTINGS.replace("SETTINGS)", f"({setting},))"))
    (here / "ewe.toml").write_text('mount = "/h=wrong:FEATURE"\n')
    with pytest.raises(ConfigError) as caught:
        Config.load(environ={})
    assert f"feature 'wrong:FEATURE': {said}" in str(caught.value)
    assert str(caught.value).endswith(" (mount)") and "\n" not in str(caught.value)


@pytest.mark.starts_processes
def test_a_setting_with_the_name_of_an_option_is_one_line(tmp_path: Path) -> None:
    setting = '(Setting("", TEXT, "x", group="programs", key="config"),))'
    (tmp_path / "wrong.py").write_text(WRONG_SETTINGS.replace("SETTINGS)", setting))
    done = run_command(tmp_path, "--mount", "/h=wrong:FEATURE")
    said = "ewe: the setting config of a feature has the name of an option (mount)\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_the_settings_of_a_feature_stay_known(here: Path) -> None:
    """A HUP may remove the feature, while its programs and the requests in progress go on."""
    environ = {"EWE_MOUNT": "/h=greeter:FEATURE", "EWE_GREETING": "Servus"}
    Config.load(environ=environ)
    assert getattr(Config.load(environ={}), "greeting") == "Hello"  # noqa: B009  mypy knows no such attribute
    assert getattr(Config.load(environ=environ), "greeting") == "Servus"  # noqa: B009


def test_a_feature_under_another_name_declares_its_settings_again(here: Path) -> None:
    """A HUP may find the module renamed. Settings whose names are not needed stay known."""
    (here / "welcome.py").write_text(GREETER.replace("greet-loudly", "shout"))
    Config.load(environ={"EWE_MOUNT": "/h=greeter:FEATURE"})
    config = Config.load(environ={"EWE_MOUNT": "/h=welcome:FEATURE", "EWE_GREETING": "Servus"})
    assert answer(config, "/h") == (200, b"Servus.")
    assert {"greeting", "greet-loudly", "shout"} <= settings.KEYS.keys()
    assert settings.KEYS["greeting"] is sys.modules["welcome"].WORD
    again = Config.load(environ={"EWE_MOUNT": "/h=greeter:FEATURE", "EWE_GREETING": "Servus"})
    assert answer(again, "/h") == (200, b"Servus.")


def test_features_may_share_a_setting(here: Path) -> None:
    (here / "greeter.py").write_text(
        GREETER + 'BRIEF = Feature("brief", settings=(WORD, WORD), make=Greeter)\n'
    )
    mounts = "/h=greeter:FEATURE,/b=greeter:BRIEF"
    config = Config.load(environ={"EWE_MOUNT": mounts, "EWE_GREETING": "Servus"})
    assert answer(config, "/h") == answer(config, "/b") == (200, b"Servus.")


def test_mounted_features_with_two_settings_of_one_name_are_refused(here: Path) -> None:
    (here / "welcome.py").write_text(GREETER)
    with pytest.raises(
        ConfigError, match="'welcome:FEATURE': two settings have the name greet-loudly, greeting"
    ):
        Config.load([("mount", ["/h=greeter:FEATURE", "/w=welcome:FEATURE"])], environ={})


def test_a_hup_reads_the_settings_of_a_mounted_feature(
    start: Start, tmp_path: Path, way_to_wait: str
) -> None:
    for module in ("greeter", "welcome"):
        (tmp_path / f"{module}.py").write_text(GREETER)
    file = tmp_path / "mine.toml"
    file.write_text("")
    server = start(way_to_wait, "--config", str(file))
    assert web.get(server.url + "h").status_code == 404
    for module, word in (
        ("greeter", "Moin"),
        ("greeter", "Ahoi"),
        ("welcome", "Servus"),
        ("greeter", "Moin"),
    ):
        file.write_text(f'mount = "/h={module}:FEATURE"\ngreeting = "{word}"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda word=word: web.get(server.url + "h").text == f"{word}.", 20, server.log)
    assert server.stop() == 0, server.log()


def test_start_warnings_and_mounts_of_a_mounted_feature(start: Start, tmp_path: Path) -> None:
    """A handler of `mounts` is checked as that of `make`: what it returns cannot break the framing."""
    (tmp_path / "greeter.py").write_text(GREETER)
    server = start("thread", "--mount", "/h=greeter:FEATURE")
    server.wait_for_log("warning: feature 'greeter:FEATURE': visitors are greeted with Hello (mount)")
    assert web.get(server.url + "more").text == web.get(server.url + "more/there").text == "Hello."
    assert web.get(server.url + "mores").status_code == 404
    assert web.get(server.url + "raw").status_code == 500
    server.wait_for_log("respond() of greeter:FEATURE has returned str; it must return a Response or None")


def test_each_worker_loads_an_application_of_a_mounted_feature_before_its_first_request(
    start: Start, tmp_path: Path, model: str
) -> None:
    """The object of `provide` has the name of the declaration. A child of the fork model has its parent's."""
    (tmp_path / "greeter.py").write_text(GREETER)
    server = start(model, "--mount", "/w=greeter:WARM")
    assert [web.get(server.url + "ready").text for _ in range(8)] == ["ready"] * 8
    assert server.stop() == 0, server.log()


@pytest.mark.parametrize("table", ["", "[[site]]\n"])
def test_a_program_of_a_mounted_feature_runs_before_the_first_request(
    start: Start, tmp_path: Path, way_to_wait: str, table: str
) -> None:
    """The name of this declaration is that of a feature of ewe, which it must not replace."""
    (tmp_path / "greeter.py").write_text(GREETER)
    (tmp_path / "cgi-bin" / "hello.sh").write_text("#!/bin/sh\necho\necho from cgi\n")
    (tmp_path / "cgi-bin" / "hello.sh").chmod(0o755)
    file = tmp_path / "mine.toml"
    file.write_text(f'{table}mount = "/asks=greeter:ASKS"\n')
    server = start(way_to_wait, "--config", str(file))
    first = int(web.get(server.url + "asks").text)
    assert web.get(server.url + "cgi-bin/hello.sh").text == "from cgi\n"
    [manager] = [each for each in children(server.pid) if first in children(each)]
    server.process.send_signal(signal.SIGHUP)  # as a program of fastcgi-start, it is replaced
    wait_until(lambda: web.get(server.url + "asks").text not in ("", str(first)), 20, server.log)
    wait_until(lambda: first not in children(manager), 20, server.log)
    assert server.stop() == 0, server.log()


def test_a_hup_that_mounts_or_removes_a_feature_with_fixed_settings(start: Start, tmp_path: Path) -> None:
    """Only one of the two configurations knows the settings of the feature."""
    (tmp_path / "greeter.py").write_text(GREETER)
    file = tmp_path / "mine.toml"
    mount = 'mount = "/asks=greeter:ASKS"\n'
    for first, second, status in (("", mount, 404), (mount, "", 200)):
        file.write_text(first)
        server = start("thread", "--config", str(file))
        file.write_text(second)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("mount: a change needs a restart")
        server.wait_for_log("the configuration was read again")
        assert web.get(server.url + "asks").status_code == status
        assert server.stop() == 0, server.log()


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            'super().__init__("greeter", 1, path)',
            '{}["wool"]',
            "its maker in programs= fails: KeyError: 'wool', in ",
        ),
        ("yield Program", "yield str", "its maker in programs= must return a KeptProgram, not str"),
        (
            "return config.replace(",
            'return {}["wool"].replace(',
            "the program greeter: its completed() fails: KeyError: 'wool', in ",
        ),
    ],
)
def test_a_fault_of_a_program_of_a_mounted_feature_is_one_line(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    (tmp_path / "htdocs").mkdir()
    assert before in GREETER
    (tmp_path / "greeter.py").write_text(GREETER.replace(before, after))
    done = run_command(tmp_path, "--mount", "/asks=greeter:ASKS", "--port", "0")
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr and done.stderr.endswith(" (mount)\n")


def test_a_server_that_gives_up_root_loads_the_late_parts_before(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "late_greeter.py").write_text(LATE)
    (here / "late_greetings.py").write_text("")
    for name in ("late_modules", "module_names"):
        monkeypatch.setattr(f"ewe.server.run.{name}", lambda: ())
    monkeypatch.setattr("ewe.server.run.OPTIONAL_MODULES", ())
    load_late_modules(Config(mount=["/h=late_greeter:FEATURE"]))
    assert "late_greetings" in sys.modules and "preloaded\n" in capsys.readouterr().out
    (here / "late_greetings.py").unlink()
    del sys.modules["late_greetings"]
    [declared] = mounted(Config(mount=["/h=late_greeter:FEATURE"]))
    with pytest.raises(
        ConfigError, match=r"its late= or preload= fails: ModuleNotFoundError: .*late_greetings"
    ):
        declared.preload()
