"""The database report as a servlet of X-Switch's JVM."""

from __future__ import annotations

import hashlib
import sqlite3

import pytest
from lab_bench import quick_lab
from support import needs
from support.java_site import UNREACHABLE, build_once

from ewe.database.access_log import REPORT, sample, write_rows
from ewe.database.layouts import fragments
from ewe_lab.bench.processes import LabError
from ewe_lab.load.http_clients import run_clients
from ewe_lab.stacks import servlets


@pytest.mark.starts_processes
@pytest.mark.timeout(300)
@pytest.mark.needs("Maven", "Java")
def test_the_servlets_report_is_the_daemons() -> None:
    build_once()
    if not servlets.BUILT_APPLICATION.exists():
        try:
            servlets.build()
        except LabError as reason:
            if not UNREACHABLE.search(str(reason)):
                raise
            needs.lacks("the driver of SQLite for Java", str(reason))
    with quick_lab() as lab:
        place = lab.directory / "access.db"
        write_rows(str(place), sample(500), new=True)
        with sqlite3.connect(place) as connection:
            found = connection.execute(REPORT)
            body = b"".join(fragments("TABLE", [each[0] for each in found.description], found))
        connection.close()
        place.chmod(0o644)
        with servlets.serve_report(lab, servlets.TYPE_2, str(place)) as (server, path):
            digest = hashlib.sha256(body).hexdigest()
            took = run_clients(server.url.rstrip("/") + path, 1, 3, digest)
    assert took.errors == {}
    assert {name: len(times) for name, times in took.timings.items()} == dict.fromkeys(
        ("con", "ret", "con_wall", "ret_wall"), 3
    )
    assert min(took.timings["ret"]) > 0


def test_without_the_build_servlets_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servlets, "BUILT_APPLICATION", servlets.SOURCE_DIRECTORY / "none")
    assert servlets.why_missing() == servlets.NOT_BUILT
    with (
        quick_lab() as lab,
        pytest.raises(LabError, match="make java"),
        servlets.serve_report(lab, servlets.TYPE_2, "x"),
    ):
        pass
