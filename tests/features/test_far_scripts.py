"""Which scripts ewe leaves to engines on other machines: by the names of their files, by X-Switch's rules."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from ewe.config.defaults import PACKAGE_SUFFIXES
from ewe.config.settings import Config
from ewe.features.far_scripts import FarNames, FarScripts
from ewe.features.plan import Plan, ServerPlan
from ewe.xswitch import settings as xswitch_settings
from ewe.xswitch.packages import SUFFIXES

FAR = {"address": "192.0.2.7:9443"}
TABLE = {
    "engines": {
        "far": {**FAR, "extensions": [".rb"]},
        "php": FAR,
        "own": {"command": ["x"], "extensions": [".own"]},
    },
    "directories": {
        "/home/alice/public_html": "far",
        "/home/alice/public_html/cgi-bin/here": "own",
        "/srv/www/cgi-bin/shop": "far",
        "/homes/": "far",
    },
}
FILES = [
    ("/srv/www/cgi-bin/a.rb", True),
    ("/srv/www/cgi-bin/a.RB", False),
    ("/srv/www/cgi-bin/a.py", False),
    ("/srv/www/cgi-bin/a.php", True),
    ("/srv/www/cgi-bin/a.own", False),
    ("/srv/www/cgi-bin/shop", False),
    ("/srv/www/cgi-bin/shop/any", True),
    ("/srv/www/cgi-bin/shopping/any", False),
    ("/home/alice/public_html/any", True),
    ("/home/alice/public_html/cgi-bin/here/a.rb", False),
    ("/home/alice/public_html/cgi-bin/hereafter/any", True),
    ("//srv/www/cgi-bin/a.py", False),
]


@pytest.mark.parametrize(("file", "is_far"), FILES)
def test_the_rules_are_those_of_x_switch(file: str, is_far: bool) -> None:
    """X-Switch's own rules give the same answer for each of these names."""
    script = FarNames(TABLE).find("", "", file, are_programs=True)
    assert (script is not None) == is_far
    kind = xswitch_settings.from_toml(TABLE, "").kind_for(file, "")
    assert bool(kind and kind.address) == is_far


@pytest.mark.parametrize(
    ("path", "name", "path_info"),
    [
        ("/cgi-bin/a.rb/b.rb/c", "/cgi-bin/a.rb", "/b.rb/c"),
        ("/cgi-bin/a.rb/", "/cgi-bin/a.rb", "/"),
        ("/cgi-bin/shop/a/b//c", "/cgi-bin/shop/a/b//c", ""),
        ("/cgi-bin/shop/", "/cgi-bin/shop/", ""),
    ],
)
def test_the_parts_of_a_path(path: str, name: str, path_info: str) -> None:
    """An extension says where the name of the script ends; a directory does not."""
    script = FarNames(TABLE).find("/srv/www/cgi-bin", "/cgi-bin", path, are_programs=True)
    assert script is not None
    assert (script.file, script.name) == (f"/srv/www{name}", name)
    assert script.path_info == path_info


@pytest.mark.parametrize(
    ("path", "is_far"),
    [
        ("/a.rb", False),  # among documents it is one
        ("/a.php", True),
        ("/.git/a.php", False),
        ("/docs/.a.php", False),
        ("/a.php/.a", False),
    ],
)
def test_documents_and_hidden_files(path: str, is_far: bool) -> None:
    assert (FarNames(TABLE).find("/srv/www", "", path, are_programs=False) is not None) == is_far


def test_a_directory_that_is_here_may_have_an_index_here(tmp_path: Path) -> None:
    """As with files on a shared file system; without the directory, the other machine answers."""
    names = FarNames({"engines": {"far": FAR}, "directories": {str(tmp_path): "far"}})
    (tmp_path / "here").mkdir()
    assert names.find(str(tmp_path), "", "/here/", are_programs=False) is None
    assert names.find(str(tmp_path), "", "/there/", are_programs=False) is not None


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"engines": 1, "directories": []},
        {"engines": {"far": 3}, "directories": {"/srv": "far", "/www": {"far": 1}, "/x": ["far"]}},
        {"engines": {"far": {"address": "192.0.2.7:1", "extensions": 3}}},
        {"engines": {"own": {"command": ["x"], "extensions": [".rb"]}}, "directories": {"/srv": "own"}},
    ],
)
def test_a_file_without_other_machines(table: dict[str, object]) -> None:
    assert not FarNames(table).is_any_far()


class NoSwitch:
    """Stands for the connections to X-Switch, which these tests do not use."""


def far_scripts(tmp_path: Path) -> FarScripts:
    config = Config(documentroot=str(tmp_path), userdir="public_html", cgi_path="/srv/www/cgi-bin", min_uid=1)
    return FarScripts(Plan(config, ServerPlan(config)), NoSwitch(), FarNames(TABLE))  # type: ignore[arg-type]


def test_users_without_an_account_here(tmp_path: Path) -> None:
    """The table has a line for the user's directory, or for the directory of all homes."""
    scripts = far_scripts(tmp_path)
    assert scripts.root_of_user("alice") == "/home/alice/public_html"
    assert scripts.root_of_user("bob-3") == "/homes/bob-3/public_html"
    here = pwd.getpwnam("nobody")
    assert scripts.root_of_user("nobody") == os.path.join(here.pw_dir, "public_html")
    assert scripts.root_of_user("root") == "/homes/root/public_html"  # the other machine refuses it
    script, root = scripts.find("/~bob-3/cgi-bin/a.py/x")
    assert script is not None
    assert (script.file, root) == ("/homes/bob-3/public_html/cgi-bin/a.py/x", "/homes/bob-3/public_html")


@pytest.mark.parametrize(
    "path", ["/~alice", "/~al/../cgi-bin/a", "/~/cgi-bin/a.rb", "/~a b/cgi-bin/a.rb", "/index.html"]
)
def test_paths_of_no_far_user(path: str, tmp_path: Path) -> None:
    assert far_scripts(tmp_path).find(path)[0] is None


def test_the_names_of_packages_are_those_of_x_switch() -> None:
    assert PACKAGE_SUFFIXES == SUFFIXES
