"""A service manager: what each command tells it, and what the units in share/systemd ask of it."""

from __future__ import annotations

import configparser
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.server import ROOT

UNITS = sorted((ROOT / "share" / "systemd").glob("*.service"))


def settings_of(module: str, directory: Path) -> str:
    """Return a settings file with which a command starts in a directory."""
    if module == "ewe.database.cli":
        database = f"[databases.shop]\nsource = '{directory}/shop.db'\nwrite = true\n"
        return f"listen = ['unix:{directory}/dbd']\n{database}"
    return f"listen = ['unix:{directory}/xswitch']\nroots = ['{directory}']\n[limits]\nprocesses = 0\n"


@pytest.mark.starts_processes
@pytest.mark.parametrize("module", ["ewe.database.cli", "ewe.xswitch.cli"])
def test_a_ready_service_survives_a_reload(module: str, tmp_path: Path) -> None:
    """HUP ends a process without a handler, and systemd counts that as a clean end: the service would stay down."""
    (tmp_path / "settings.toml").write_text(settings_of(module, tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(tmp_path / "settings.toml")],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            assert manager.recv(1000) == b"READY=1"
            process.send_signal(signal.SIGHUP)
            assert manager.recv(1000).startswith(b"RELOADING=1\n")
            assert manager.recv(1000) == b"READY=1"
            process.terminate()
            assert manager.recv(1000) == b"STOPPING=1"
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_lets_requests_in_progress_end(path: Path) -> None:
    """KillMode=control-group, which systemd takes by default, sends TERM to the programs of the site at once."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the names of settings have capitals
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    command = Path(service["ExecStart"].split()[0]).name
    assert command in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
