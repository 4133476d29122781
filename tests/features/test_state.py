"""The samples of state (samples/state, docs/programs.md): the kept state, forgery by a visitor, and restarts."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from support import web
from support.server import MODELS, ROOT, Server, Start, accepts, wait_until

pytestmark = pytest.mark.starts_processes
SAMPLES = ROOT / "samples" / "state"
IN_EWE = {"none": "none", "url": "url", "signed": "signed", "server": "server_side", "daemon": "in_daemon"}
KEPT = ("url", "signed", "server", "daemon", "affinity")
SESSIONS = ("server", "daemon", "affinity")


class Shop:
    """The samples in a directory, with a daemon and two processes for session affinity, behind servers of ewe."""

    def __init__(self, directory: Path, start: Start) -> None:
        self.directory = directory
        self.start_ewe = start
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for path in SAMPLES.iterdir():
            if path.is_file():
                shutil.copy(path, directory)
        (directory / "sessions").mkdir()
        with closing(sqlite3.connect(directory / "state.db")) as database:
            database.executescript((SAMPLES / "schema.sql").read_text())
        self.run("daemon", "-m", "ewe.database.cli", "--config", "dbd.toml", "--log", "daemon.log")
        for name in ("a", "b"):
            self.run(name, "affinity.py", f"{name}.sock")
        self.wait_for("a", "b", "state")

    def wait_for(self, *names: str) -> None:
        """Wait until these sockets accept connections."""
        wait_until(lambda: all(accepts(self.directory / f"{name}.sock") for name in names), 30)

    def run(self, name: str, *arguments: str) -> None:
        command = [sys.executable, *arguments]
        self.processes[name] = subprocess.Popen(command, cwd=self.directory, env={"PYTHONPATH": str(ROOT)})

    def server(self, model: str, *more: str) -> Server:
        options = [each for path, module in IN_EWE.items() for each in ("--wsgi", f"/{path}={module}:app")]
        for name in ("a", "b"):
            options += ["--scgi", f"/affinity=unix:{self.directory}/{name}.sock"]
        return self.start_ewe(model, *options, "--fastcgi-affinity", "at", *more)

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait(30)


def browser() -> web.Client:
    """Return a visitor's browser that keeps no connection: under the serial model it would hold the server."""
    return web.Client(headers={"Connection": "close"})


@pytest.fixture
def shop(start: Start, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, start)
    yield made
    made.stop()


def add(client: web.Client, url: str, goods: str) -> str:
    """Press a button of the page, and return the address of the next page."""
    page = client.get(url)
    action = re.search(r'action="([^"]*)"', page.text)
    assert action is not None, page.text
    target = page.url.join(action[1].replace("&amp;", "&") or str(page.url))
    sent = client.post(str(target), data={"add": goods})
    return str(sent.url.join(sent.headers["location"])) if sent.status_code == 303 else str(sent.url)


def basket(text: str) -> str:
    """Return what a page says is in the basket."""
    found = re.search("<p>(.*)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("model", MODELS)
def test_each_keeps_a_basket_for_each_visitor(shop: Shop, model: str) -> None:
    server = shop.server(model)
    for name in KEPT:
        with browser() as one, browser() as other:
            url = first = f"{server.url}{name}"
            for goods in ("wool", "wool", "bell"):
                url = add(one, url, goods)
            assert basket(one.get(url).text) == "1 × bell, 2 × wool", name
            assert basket(other.get(first).text) == "It is empty.", name
            assert basket(other.get(add(other, first, "feta")).text) == "1 × feta", name
            assert basket(one.get(url).text) == "1 × bell, 2 × wool", name
    with browser() as visitor:
        assert basket(visitor.post(f"{server.url}none", data={"add": "wool"}).text) == "1 × wool"
        assert basket(visitor.get(f"{server.url}none").text) == "It is empty."


def test_what_a_restart_and_a_second_server_leave(shop: Shop) -> None:
    """ewe restarted, or another ewe: all go on. The processes of the affinity restarted: its baskets are lost."""
    server = shop.server("prefork", "--workers", "3")
    addresses, clients = {}, {name: browser() for name in KEPT}
    try:
        for name, client in clients.items():
            addresses[name] = add(client, server.url + name, "wool").removeprefix(server.url)
        server.stop()
        other = shop.server("thread")
        for name, client in clients.items():
            assert basket(client.get(other.url + addresses[name]).text) == "1 × wool", name
        for name in ("a", "b"):
            shop.processes[name].kill()
            shop.processes[name].wait(30)
            (shop.directory / f"{name}.sock").unlink()
            shop.run(name, "affinity.py", f"{name}.sock")
        shop.wait_for("a", "b")
        lost = clients["affinity"]
        wait_until(lambda: lost.get(other.url + "affinity").status_code == 200, 30)
        assert basket(lost.get(other.url + "affinity").text) == "It is empty."
    finally:
        for client in clients.values():
            client.close()


def test_affinity_leads_a_visitor_to_the_same_process(shop: Shop) -> None:
    server = shop.server("thread")
    with browser() as visitor:
        url = add(visitor, server.url + "affinity", "wool")
        assert visitor.cookies["at"] in ("1", "2")
        for _ in range(4):
            assert basket(visitor.get(url).text) == "1 × wool"
        session, at = visitor.cookies["session"], visitor.cookies["at"]
    for place, said in ((at, "1 × wool"), ({"1": "2", "2": "1"}[at], "It is empty.")):
        assert basket(web.get(url, headers={"Cookie": f"session={session}; at={place}"}).text) == said


def forged(value: str) -> str:
    """Return another basket with the signature of this one."""
    return (
        urlsafe_b64encode(json.dumps({"wool": 999}).encode()).decode().rstrip("=")
        + "."
        + value.partition(".")[2]
    )


@pytest.mark.parametrize(
    "forge",
    [
        forged,
        lambda value: value[:-1] + "x",
        lambda value: value.partition(".")[0],
        lambda _: "é.é",
        lambda _: "",
    ],
)
def test_a_signed_cookie_cannot_be_written_by_the_visitor(shop: Shop, forge: Callable[[str], str]) -> None:
    server = shop.server("thread")
    with browser() as visitor:
        add(visitor, server.url + "signed", "wool")
        value = visitor.cookies["basket"]
    assert basket(web.get(server.url + "signed", headers={"Cookie": f"basket={value}"}).text) == "1 × wool"
    answer = web.get(server.url + "signed", headers={"Cookie": f"basket={forge(value)}".encode()})
    assert (answer.status_code, basket(answer.text)) == (200, "It is empty.")
    assert "Traceback" not in server.log()


def test_a_url_can_be_written_but_holds_only_baskets(shop: Shop) -> None:
    server = shop.server("thread")
    for query, said in (
        ("wool=999", "999 × wool"),
        ("wool=-1&feta=x&bell=%C2%B2&gold=1", "It is empty."),
        ("wool=99999&wool=<script>", "It is empty."),
    ):
        assert basket(web.get(f"{server.url}url?{query}").text) == said


@pytest.mark.parametrize("name", SESSIONS)
def test_a_number_that_the_visitor_made_up_is_never_taken(shop: Shop, name: str) -> None:
    """Otherwise an attacker could give a visitor a number, and read the basket later (session fixation)."""
    server = shop.server("thread")
    for number in ("0" * 32, "../basket.key", "made-up"):
        with browser() as visitor:
            visitor.cookies["session"] = number
            sent = visitor.post(server.url + name, data={"add": "wool"})
            assert (
                re.match("session=[0-9a-f]{32};", sent.headers["set-cookie"])
                and number not in sent.headers["set-cookie"]
            )
        assert (
            basket(web.get(server.url + name, headers={"Cookie": f"session={number}"}).text) == "It is empty."
        )


@pytest.mark.parametrize("name", ["server", "daemon"])
def test_two_requests_at_once_are_both_counted(shop: Shop, name: str) -> None:
    server = shop.server("prefork", "--workers", "4")
    with browser() as visitor:
        add(visitor, server.url + name, "wool")
        cookies = {"Cookie": f"session={visitor.cookies['session']}"}

    def ten() -> None:
        for _ in range(10):
            web.post(server.url + name, data={"add": "wool"}, headers=cookies)

    threads = [Thread(target=ten) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert basket(web.get(server.url + name, headers=cookies).text) == "41 × wool"
