"""The image for laptops and the compose files, as far as they can be checked without Docker."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def test_each_step_is_known_and_the_account_is_not_root() -> None:
    words = [word for word, _ in STEPS]
    assert words[0] == "FROM" and set(words) <= {"FROM", "RUN", "COPY", "USER", "ENV", "WORKDIR", "CMD"}
    last_user = [text for word, text in STEPS if word == "USER"][-1]
    assert f" {last_user}" in " ".join(text for word, text in STEPS if word == "RUN") and last_user != "root"
    assert json.loads(next(text for word, text in STEPS if word == "CMD")) == ["bash"]


@pytest.mark.starts_processes
def test_each_command_is_one_for_a_shell() -> None:
    for word, text in STEPS:
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", text], check=True)


def test_the_image_installs_what_there_is_and_each_package_gets_what_it_is_built_from() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and line[0] != "#"]
    installed = re.findall(
        r"/opt/ewe(/packages/[a-z-]+)?(?:\[([^]]+)\])?[\s\"]", (ROOT / "Dockerfile").read_text()
    )
    assert {"", "/packages/ewe-classroom", "/packages/ewe-lab"} <= {place for place, _ in installed}
    for place, extras in installed:
        about = tomllib.loads((ROOT / place[1:] / "pyproject.toml").read_text())
        assert (
            set(filter(None, extras.split(","))) <= about["project"].get("optional-dependencies", {}).keys()
        )
        wheel = about["tool"]["hatch"]["build"]["targets"]["wheel"]
        needed = ["pyproject.toml", *wheel.get("packages", ()), *wheel.get("only-include", ())]
        needed += [*wheel["shared-data"], *about["project"]["license-files"]]
        needed += ["constraints.txt"] if not place else ["hatch_build.py", about["project"]["readme"]]
        for file in (Path(place[1:], each) for each in needed):
            assert (ROOT / file).exists()
            tops = [str(part) for part in (file, *file.parents)]
            assert not any(fnmatch(top, pattern) for top in tops for pattern in ignored), file


def test_the_editors_file_builds_this_image() -> None:
    table = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    place = ROOT / ".devcontainer"
    assert (place / table["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (place / table["build"]["context"]).resolve() == ROOT
    assert ["USER", table["remoteUser"]] in STEPS


COMPOSE = ROOT / "share" / "compose"


def test_the_database_is_healthy_when_other_containers_reach_it() -> None:
    """The image fills a new database at a Unix socket, then starts PostgreSQL again. Others need TCP."""
    (check,) = re.findall(r"test: (\[.*pg_isready.*\])", (COMPOSE / "state.yml").read_text())
    words = json.loads(check)
    assert words[words.index("-h") + 1] == "127.0.0.1"


def test_each_front_asks_again_for_the_addresses_of_containers() -> None:
    """A container that starts again may have another address. The front starts although one has none."""
    nginx = (COMPOSE / "xswitch-nginx.conf").read_text()
    servers = re.findall(r"^ *server (\w+):9000 (.*);", nginx, re.MULTILINE)
    assert [name for name, _ in servers] == ["one", "two"]
    assert all("resolve" in words.split() for _, words in servers)
    assert re.search(r"^ *resolver 127\.0\.0\.11\b.*;", nginx, re.MULTILINE)
    assert re.search(r"upstream xswitch \{\s+zone ", nginx)
    (version,) = re.findall(r"image: nginx:(\d+)\.(\d+)", (COMPOSE / "xswitch.yml").read_text())
    assert tuple(map(int, version)) >= (1, 28)  # `resolve`: since 1.27.3
    haproxy = (COMPOSE / "state-haproxy.cfg").read_text()
    assert re.search(r"default-server .*\bresolvers docker init-addr last,libc,none", haproxy)


@pytest.mark.parametrize("name", ["state.yml", "xswitch.yml"])
def test_one_service_builds_the_image_of_several(name: str) -> None:
    """An anchor with `build` would give each service another image, and the next `up` would restart the rest.

    Without `pull_policy`, Docker would ask a registry for an image of that name, which a stranger may have made.
    """
    anchors, services = (COMPOSE / name).read_text().split("\nservices:\n")
    assert "build:" not in anchors and services.count(" build:") == 1
    assert "\n  pull_policy: never" in anchors
