"""X-Switch's settings as text: the generated page, and --print-config."""

from __future__ import annotations

from pathlib import Path

import pytest

from ewe.xswitch.cli import main
from ewe.xswitch.settings import DEFAULTS, ENGINE, GENERAL, Settings, load
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


def test_the_page_is_up_to_date() -> None:
    text = "\n".join(page()) + "\n"
    assert (ROOT / "docs" / "xswitch-settings.md").read_text() == text, "make docs writes it again"


def test_every_setting_is_described() -> None:
    """The tables of a file are no settings; `name` and `program` cannot be set."""
    fields = {name.replace("_", "-") for name in vars(DEFAULTS)}
    assert fields - GENERAL.keys() == {"limits", "engines", "directories"}
    kind = next(iter(DEFAULTS.engines.values()))
    assert {name.replace("_", "-") for name in vars(kind)} - ENGINE.keys() == {"name", "program"}


@pytest.mark.parametrize("text", ["", FILE])
def test_what_is_printed_has_the_same_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "xswitch.toml"
    file.write_text(text)
    assert main(["--print-config", "--config", str(file)]) == 0
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert load(str(again)) == load(str(file))


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
    assert lines["patience"].split() == ['"10s"', "#", "default"]


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
