"""X-Switch's settings as text: the generated page, and --print-config."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ewe.config.messages import ConfigError
from ewe.xswitch.cli import main
from ewe.xswitch.settings import DEFAULTS, ENGINE_KEYS, GENERAL_KEYS, Settings, from_toml, load
from ewe.xswitch.settings_page import page

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
user = "daemon"
idle = "2m"
socket-mode = "0660"
[limits]
memory = "512m"
[engines.ruby]
command = ["ruby", "/ruby.rb"]
extensions = [".rb"]
environment = { A = "1" }
[engines.python]
isolation = "fork"
[directories]
"/home/alice/old" = "cgi"
"""
FAR = """\
listen = ["tls:[::1]:9443", "unix:/run/x.sock"]
tls-cert = "/etc/xswitch/own.pem"
[engines.far]
address = "192.0.2.7:9443"
extensions = [".rb"]
[engines.python]
address = "[2001:db8::7]:9443"
connections = 5
[directories]
"/home/alice" = "far"
"""
USERS = """\
[groups.students]
engines = 2
time-limit = "5s"
[users."alice.b"]
requests = 3
cpu = 60
cpu-share = 50
memory = "200m"
processes = 0
"""


def test_the_page_is_up_to_date() -> None:
    text = "\n".join(page()) + "\n"
    assert (ROOT / "docs" / "xswitch-settings.md").read_text() == text, "make docs writes it again"


def test_every_setting_is_described() -> None:
    """The tables of a file are no settings; `name` and `program` cannot be set."""
    fields = {name.replace("_", "-") for name in vars(DEFAULTS)}
    assert fields - GENERAL_KEYS.keys() == {
        "limits",
        "engines",
        "directories",
        "users",
        "groups",
        "renamed",
        "certificates",
    }
    kind = next(iter(DEFAULTS.engines.values()))
    assert {name.replace("_", "-") for name in vars(kind)} - ENGINE_KEYS.keys() == {"name", "program"}


@pytest.mark.parametrize("text", ["", FILE, USERS, FAR])
def test_what_is_printed_has_the_same_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "xswitch.toml"
    file.write_text(text)
    assert main(["--print-config", "--config", str(file)]) == 0
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert load(str(again)) == load(str(file))


@pytest.mark.parametrize("path", ["//home/alice/x.py", "//x.py", "/x.py", "x.py", "/home/alice/x.py"])
def test_the_directories_above_any_path_have_an_end(path: str) -> None:
    kind = DEFAULTS.kind_for(path, "")
    assert kind is not None and kind.name == "python"


def test_directories_without_effect_are_doubted() -> None:
    table = {"directories": {"cgi-bin": "cgi", "/": "cgi", "/srv/": "cgi"}}
    settings = from_toml(table, "x")
    doubts = [line for line in settings.warnings() if line.startswith("[directories]")]
    advice = "it has no effect: name a directory below / by its absolute path"
    assert doubts == [f"[directories] cgi-bin: {advice}", f"[directories] /: {advice}"]
    kind = settings.kind_for("/srv/a/x.py", "")
    assert kind is not None and kind.name == "cgi"


def test_former_names_of_settings_work(tmp_path: Path) -> None:
    file = tmp_path / "xswitch.toml"
    file.write_text('warm = false\n[engines.python]\nwarm = ["json"]\n')
    settings = load(str(file))
    assert not settings.preload and settings.engines["python"].preload == ("json",)
    assert settings.warnings()[:2] == [
        f"{file}: warm is now called preload",
        f"{file}: engines.python: warm is now called preload",
    ]


def test_print_config_names_where_each_value_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "xswitch.toml"
    file.write_text(FILE)
    options = ["--listen", "unix:/x", "--root", "/srv", "--default", "status=true"]
    assert main(["--print-config", "--config", str(file), *options]) == 0
    lines = {
        key: rest for key, _, rest in (line.partition(" = ") for line in capsys.readouterr().out.split("\n"))
    }
    assert lines["listen"].split() == ['["unix:/x"]', "#", "command", "line"]
    assert lines["roots"].split() == ['["/srv"]', "#", "command", "line"]
    assert lines["status"].split() == ["true", "#", "--default"]
    assert lines["idle"].split() == ['"2m"', "#", str(file)]
    assert lines["memory"].split() == ['"512m"', "#", str(file)]
    assert lines["queue-timeout"].split() == ['"10s"', "#", "default"]


def test_a_log_that_exists_needs_no_writable_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    log.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path == str(log))
    assert main(["--check-config", "--log", str(log)]) == 0
    assert main(["--check-config", "--log", str(tmp_path / "other.log")]) == 2


def test_defaults() -> None:
    assert load(None) == Settings()


@pytest.mark.parametrize(
    "data",
    [b"idle = ", b"\xff", b"idle = 1" + b"0" * 5000, b"idle = " + b"[" * 5000],
    ids=["syntax", "encoding", "number", "nesting"],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    file = tmp_path / "xswitch.toml"
    file.write_bytes(data)
    assert main(["--check-config", "--config", str(file)]) != 0
    said = capsys.readouterr().err
    assert str(file) in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "table",
    [
        {key: "/a\0b"} for key in ("trace", "cgroup", "user-logs", "user", "script-user", "socket-group", "userdir")
    ] + [
        {"roots": ["/a\0b"]}, {"directories": {"/a\0b": "python"}}, {"engines": {"x": {"command": ["a\0b"]}}},
        {"engines": {"python": {"environment": {"A": "a\0b"}}}},
    ],
)  # fmt: skip
def test_a_text_with_nul_is_refused_in_a_line(table: dict[str, object]) -> None:
    """The kernel takes no such path, argument or variable, and Python raises ValueError for it."""
    with pytest.raises(ConfigError) as caught:
        from_toml(table, "x.toml")
    assert str(caught.value).startswith(f"x.toml: {next(iter(table))}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"address": "engines.example.org:9443"}, "expected the numeric address and port of an X-Switch"),
        ({"address": "192.0.2.7"}, "expected the numeric address and port"),
        ({"address": "192.0.2.7:0"}, "expected the numeric address and port"),
        ({"address": "unix:/run/x.sock"}, "expected the numeric address and port"),
        ({"address": "192.0.2.7:9443", "command": ["ruby"]}, "command is set where the engines are"),
        (
            {"address": "192.0.2.7:9443", "interpreters": ["ruby"]},
            "interpreters is set where the engines are",
        ),
    ],
)
def test_a_wrong_table_of_far_engines_is_refused_in_a_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_toml({"engines": {"far": table}}, "x.toml")
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("address", ["tls:unix:/run/x.sock", "tls:", "tls:192.0.2.7", "tls:fd://3"])
def test_a_wrong_tls_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected a list of"):
        from_toml({"listen": [address]}, "x.toml")
