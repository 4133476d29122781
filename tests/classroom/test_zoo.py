"""The proof of the grader: each mutant is caught by the check meant for it, and no check fails on a correct server.

`python tests/classroom/matrix.py` grades every mutant by every check of its lab, and prints the kill matrix.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ZOO = HERE / "zoo"
ROOT = HERE.parents[1]
FILES = (
    "mutants.py",
    "caching_mutants.py",
    "engine_mutants.py",
    "data_mutants.py",
)  # test_lab_mutants.py grades those of the others
LABS = ("serial", "fork", "thread", "pool", "event")
SMALL = (*LABS, "cgi", "scheduling")
pytestmark = [pytest.mark.starts_processes, pytest.mark.timeout(300)]


def load_zoo(file: str) -> dict[str, tuple[type, str, str, str]]:
    """Return the mutants of a file: name -> class, check, lab, a part of the explanation."""
    sys.path.insert(0, str(ZOO))
    try:
        spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), ZOO / file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return dict(module.ZOO)
    finally:
        sys.path.remove(str(ZOO))


MUTANTS = load_zoo(FILES[0])


def grade(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run ewe-grade; return its report as JSON, and what it printed."""
    report = tmp_path / "report.json"
    as_root = ["--user", "root"] if os.geteuid() == 0 else []  # another account may not enter this clone
    done = subprocess.run(
        [sys.executable, "-m", "ewe.classroom.grader.cli", *as_root, "--json", str(report), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(report.read_text()), done


def of_zoo(file: str, name: str) -> list[str]:
    return ["--command", f"{sys.executable} -S {ZOO / file} {name} {{port}} {{root}} {{workers}}"]


def failures(report: dict[str, Any]) -> str:
    return "\n\n".join(
        f"{verdict['name']}: {verdict['text']}"
        for verdict in report["verdicts"]
        if verdict["status"] != "passed"
    )


def test_the_documented_zoo_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs" / "grading.md").read_text()
    rows = [
        f"| `{name}` | {kind.__doc__} | {lab} | `{check}` |"
        for file in FILES
        for name, (kind, check, lab, _) in load_zoo(file).items()
    ]
    listed = [line for line in page.partition("## The zoo")[2].splitlines() if line.startswith("| `")]
    assert listed == rows


# These take seconds each, or differ little from their neighbours; matrix.py grades them all.
ONLY_IN_MATRIX = {
    "SharedEnvironment", "TellsPassword", "ForgetsStart", "StopsReading", "AlwaysFine", "OnlyCrLf", "TrustsOutput",
    "InputStaysOpen", "RunsAnything", "InheritsAll", "Endless", "Terminates", "WaitsForEver", "WrongStatus",
    "KeepsPipes",
    "TakesLast", "LastOfEqual", "IgnoresPolicy", "Starves", "Impatient", "CountsWorkers", "WaitsForRoom",
    "ClosesSilently", "DropsNewest", "DropsFirstOfEqual", "TellsEarly", "MixesWorkers", "SaysNothing",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in ONLY_IN_MATRIX])
def test_the_check_meant_for_a_mutant_catches_it(name: str, tmp_path: Path) -> None:
    _, check, lab, says = MUTANTS[name]
    report, done = grade(tmp_path, "--lab", lab, "--only", check, *of_zoo("mutants.py", name))
    (verdict,) = report["verdicts"]
    assert verdict["status"] == "failed", f"{check} did not catch {name}: {verdict['facts']}"
    assert any(part in verdict["text"] for part in says.split("|")), verdict["text"]
    assert verdict["score"] == 0 and done.returncode == 1
    assert f"--only {check}" in verdict["again"]


def of_ewe(lab: str) -> list[str]:
    model = {"event": "asyncio"}.get(lab, lab)
    command = f"{sys.executable} -m ewe --model {model} --parking never --threads {{workers}} --workers 1 "
    return ["--command", command + "--host 127.0.0.1 --port {port} --documentroot {root} --access-log off"]


def ewe_with_programs() -> list[str]:
    start = (
        f"EWE_PROGRAM_TIMEOUT=${{CGI_TIMEOUT:-30}}s exec {sys.executable} -m ewe --model thread --host 127.0.0.1 "
        "--port {port} --documentroot {root} --cgi-path {root}/cgi-bin --access-log off"
    )
    return ["--command", f"sh -c '{start}'"]


CORRECT = {
    "ewe, cgi": ("cgi", ewe_with_programs()),
    **{f"ewe, {lab}": (lab, of_ewe(lab)) for lab in LABS},
    **{f"small, {lab}": (lab, of_zoo("correct.py", lab)) for lab in SMALL},
    "http.server": ("thread", [str(ZOO / "http_server.py")]),
}
# The others differ little from these and from nginx; matrix.py grades them all.
QUICKLY = ("ewe, fork",)


@pytest.mark.parametrize("name", QUICKLY)
def test_no_check_fails_on_a_correct_server(name: str, tmp_path: Path) -> None:
    lab, arguments = CORRECT[name]
    report, _ = grade(tmp_path, "--lab", lab, *arguments)
    assert not failures(report), failures(report)


NGINX = """daemon off; pid {root}/../nginx.pid; error_log /dev/null; worker_processes 1;
events {{ worker_connections 512; }}
http {{
access_log off; root {root}; client_body_temp_path {root}/../b; proxy_temp_path {root}/../p;
fastcgi_temp_path {root}/../f; uwsgi_temp_path {root}/../u; scgi_temp_path {root}/../s;
server {{ listen 127.0.0.1:{port}; }}
}}
"""


def test_no_check_of_the_event_lab_fails_on_nginx(tmp_path: Path) -> None:
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "nginx is not installed"
    start = tmp_path / "start"
    start.write_text(
        f"#!{sys.executable}\nimport os, sys\nport, root = sys.argv[1:3]\n"
        f"config = root + '/../nginx.conf'\nopen(config, 'w').write({NGINX!r}.format(port=port, root=root))\n"
        f"os.execv({program!r}, ['nginx', '-c', config])\n"
    )
    start.chmod(0o755)
    report, _ = grade(tmp_path, "--lab", "event", str(start))
    assert not failures(report), failures(report)
