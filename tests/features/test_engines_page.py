"""The page of engines (key `engines` of a location): who sees and ends which engines, and forged forms."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from passlib.hash import sha256_crypt
from support import web
from support.accounts import User, two_users
from support.page_structure import Structure
from support.server import MODELS, Server, Start, wait_until
from support.xswitch_client import HEAD, XSwitch, xswitch

from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.features import engines
from ewe.features.engines import pages
from ewe.features.engines.feature import ACTIONS, TOKEN_S, EnginesPage, action_done
from ewe.http.messages import Request
from ewe.streams.blocking import run

SETTINGS = """\
[[site]]
names = ["engines.localhost", "127.0.0.1"]
userdir = ""
[[site.location]]
prefix = "/-/engines"
engines = { administrators = ["ada"] }
auth = { realm = "Engines", file = "htpasswd" }
"""
PASSWORD = "secret"
HOSTILE = "<b>&\"'\x1b[31m\u202e.py"  # the name of a script
WAITS = f"""import os, time, sys
stop = os.environ["QUERY_STRING"]
while stop and not os.path.exists(stop): time.sleep(0.01)
print("<i>a line of " + os.environ["USER"], file=sys.stderr)
print("{HEAD}\\n", os.getpid())
"""
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


# Without processes


def page() -> EnginesPage:
    return EnginesPage("/e", ["root"], None, ())  # type: ignore[arg-type]


def test_a_token_is_the_visitors_own_and_ends() -> None:
    here = page()
    token = here.token(b"alice")
    assert here.is_token(token, b"alice")
    assert (
        not here.is_token(token, b"bob")
        and not here.is_token(token, b"alice ")
        and not here.is_token("", b"")
    )
    assert not page().is_token(token, b"alice")  # the key of another server
    at, _, digest = token.partition(".")
    for forged in (
        f"{int(at, 16) + 1:x}.{digest}",
        f"{at}.",
        f"{at}.{digest}0",
        "\xe9",
        f" {token}",
        "." + digest,
    ):
        assert not here.is_token(forged, b"alice")
    now = int(time.time())
    for seconds, valid in ((TOKEN_S - 60, True), (TOKEN_S + 1, False), (-60, False)):
        assert here.is_token(here.signed(f"{now - seconds:x}", b"alice"), b"alice") is valid


def test_the_prefix_may_have_any_letters() -> None:
    """The field Location can only have those of Latin-1, and the paths of URLs only those of ASCII."""
    here = EnginesPage("/日本", ["root"], None, ())  # type: ignore[arg-type]
    response = run(here.respond(Request("GET", "/", (1, 1), path="/日本"), None))  # type: ignore[arg-type]
    assert response is not None and response.encoded()
    assert response.get("location") == "/%E6%97%A5%E6%9C%AC/"


def test_a_location_without_a_log_in_or_beside_users_pages_is_refused() -> None:
    table = SimpleNamespace(values={"engines": {"administrators": ("root",)}})
    for provided, guarded, cause in (
        (None, True, "needs an X-Switch"), (object(), False, "needs auth"),
        (object(), True, "needs a site without"),
    ):  # fmt: skip
        location: Any = SimpleNamespace(
            label_of=lambda key: f"ewe.toml line 3: {key}", table=table, is_guarded=guarded,
            plan=SimpleNamespace(provided=lambda name, found=provided: found),
            config=Config(userdir="public_html"),
        )  # fmt: skip
        with pytest.raises(ConfigError, match=f"ewe.toml line 3: engines {cause}"):
            engines.answer(location)


def test_what_a_form_has_done_comes_from_numbers_alone() -> None:
    numbers = {"ended": "1", "ending": "0", "unknown": "2"}
    assert action_done({"did": "drain", **numbers}) == ("drain", 1, 0, 2)
    for wrong in (
        {"did": "<b>"},
        {"ended": "x"},
        {"ended": "\u0661"},
        {"ending": "12345"},
        {"unknown": ""},
        {"did": ""},
    ):
        assert action_done({"did": "drain", **numbers, **wrong}) is None


def test_every_text_of_a_user_is_escaped() -> None:
    name = "<script>\"'&"
    evil = f"{name}\udc80\x1b\n"
    engine = {
        "user": name, "language": evil, "pid": 7, "state": "busy", "ends": "restarted", "requests": 1, "age": 1,
        "private": 1, "shared": 1, "script": evil,
    }  # fmt: skip
    found = {
        "engines": [engine], "limits": {name: {"engines": 2, "memory": None, "private": True}},
        "waiting": {name: 3}, "kept": evil, "uptime": 1, "connections": 1, "counters": {evil: 1},
    }  # fmt: skip
    for everybody, user in ((True, ""), (True, name), (False, "")):
        view = pages.EnginesView("/e/", evil, everybody, "token", user)
        text = pages.engines_page(view, found, pages.ActionDone("restart", 1, 2, 3)) + pages.log_page(
            view, [[0.0, name, evil]]
        )
        assert not [each for each in ("<script", "\x1b", "\udc80") if each in text]
        assert "<dt>memory<dd>none</div><div><dt>private file system<dd>yes</div>" in text
    assert not Structure(pages.engines_page(view, found, None)).faults


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [("processes", 1 << 20, "1048576"), ("cpu", 2_500_000, "2500000 s"), ("time-limit", 0.25, "0.25 s")],
)
def test_a_limit_is_shown_with_all_its_digits(key: str, value: float, shown: str) -> None:
    assert pages.limit(key, value) == shown


# With accounts


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with two_users() as made:
        yield made


@pytest.fixture(scope="module")
def behind(users: tuple[User, User]) -> Iterator[XSwitch]:
    directory = tempfile.mkdtemp(prefix="test-engines-")
    with xswitch("time-limit = '20s'\n", listen=f"unix:{directory}/x.sock") as running:
        yield running
    shutil.rmtree(directory)


def with_page(tmp_path: Path, users: tuple[User, User]) -> str:
    """Write the settings of a server with the page; return the file."""
    names = [users[0].name, users[1].name, "ada", "stranger"]
    stored = sha256_crypt.using(rounds=1000).hash(PASSWORD)
    (tmp_path / "htpasswd").write_text("".join(f"{name}:{stored}\n" for name in names))
    (tmp_path / "ewe.toml").write_text(SETTINGS)
    return str(tmp_path / "ewe.toml")


@pytest.fixture
def server(behind: XSwitch, users: tuple[User, User], start: Start, tmp_path: Path) -> Server:
    return start("thread", "--config", with_page(tmp_path, users), "--xswitch", behind.address)


def visitor(server: Server, name: str) -> web.Client:
    return web.Client(base_url=server.url + "-/engines/", auth=(name, PASSWORD))


def token_in(text: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found, text
    return found[1]


def engine_of(behind: XSwitch, user: User) -> int:
    """Return the pid of a user's idle engine, the only one."""
    reply = behind.ask(user.write("waits.py", WAITS), QUERY_STRING="")
    assert reply.status == 200, behind.log()
    return int(reply.text)


def pids_of(behind: XSwitch, user: User) -> list[int]:
    return [each["pid"] for each in behind.engines() if each["user"] == user.name]


def test_a_user_sees_and_ends_own_engines_alone(
    server: Server, behind: XSwitch, users: tuple[User, User]
) -> None:
    alice, bob = users
    mine, his = (engine_of(behind, user) for user in users)
    assert web.get(server.url + "-/engines/").status_code == 401
    with visitor(server, alice.name) as client:
        shown = client.get("").text
        assert str(mine) in shown and str(his) not in shown and bob.name not in shown
        assert not Structure(shown).faults and "administrator" not in shown
        token = token_in(shown)
        messages = client.get("log").text
        assert f"&lt;i&gt;a line of {alice.name}" in messages and bob.name not in messages
        assert client.get("", params={"user": bob.name}).status_code == 403
        assert client.get("log", params={"user": bob.name}).status_code == 403
        for fields, status in (
            ({"pid": his}, 303), ({"pid": his, "user": bob.name}, 403), ({"user": bob.name}, 403),
            ({"user": "root"}, 403), ({"user": "*"}, 403), ({}, 400), ({"pid": "0", "user": alice.name}, 400),
            ({"pid": f"{mine} {his}"}, 400), ({"pid": f"{mine}\n"}, 400), ({"pid": "٣"}, 400),
        ):  # fmt: skip
            for name in ACTIONS:
                answer = client.post(name, data={"token": token, **fields}, follow_redirects=False)
                assert answer.status_code == status, (fields, answer.text)
        unknown = "?did=drain&ended=0&ending=0&unknown=1"
        assert "does not run any more, or is not yours" in client.get(unknown).text
        assert pids_of(behind, bob) == [his] and pids_of(behind, alice) == [mine]
        done = client.post(
            "drain", data={"token": token, "pid": mine, "user": alice.name}, follow_redirects=True
        )
        assert "1 engine ended." in done.text and pids_of(behind, alice) == []
    with visitor(server, "stranger") as client:
        shown = client.get("").text
        assert alice.name not in shown and "0 engines" in shown


def test_an_administrator_ends_the_engines_of_all(
    server: Server, behind: XSwitch, users: tuple[User, User]
) -> None:
    alice, bob = users
    before = {user.name: engine_of(behind, user) for user in users}
    with visitor(server, "ada") as client:
        shown = client.get("").text
        assert all(str(pid) in shown for pid in before.values()) and "Engines of all users" in shown
        only = client.get("", params={"user": bob.name}).text
        assert str(before[bob.name]) in only and str(before[alice.name]) not in only
        fields = {"token": token_in(only), "user": bob.name, "shown-user": bob.name}
        done = client.post("restart", data=fields, follow_redirects=True)
        assert "1 engine restarted." in done.text and f"user={bob.name}" in str(done.url)
        assert f"a line of {bob.name}" in client.get("log").text
    wait_until(lambda: pids_of(behind, bob) not in ([], [before[bob.name]]), 20, behind.log)
    assert pids_of(behind, alice) == [before[alice.name]]
    behind.wait_for_log(f"restart of {bob.name}'s python engine {before[bob.name]}: ada (by root)")


@pytest.mark.parametrize(
    ("fields", "method", "status"),
    [
        ({}, "POST", 303),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "SERVER"}, "POST", 303),
        ({"Origin": "SERVER"}, "POST", 303),
        ({"Sec-Fetch-Site": "cross-site"}, "POST", 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "SERVER"}, "POST", 403),
        ({"Origin": "http://elsewhere.example"}, "POST", 403),
        ({"Origin": "null"}, "POST", 403),
        ({"Content-Type": "text/plain"}, "POST", 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "POST", 415),
        ({"Host": "evil.example"}, "POST", 421),
        ({"Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "same-origin"}, "POST", 303),
        ({"Sec-Fetch-Dest": "empty", "Sec-Fetch-Site": "same-origin"}, "POST", 403),
        ({"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Site": "same-origin"}, "POST", 403),
        ({}, "GET", 405),
        ({}, "PUT", 405),
    ],
)
def test_a_forged_form_ends_nothing(
    server: Server,
    behind: XSwitch,
    users: tuple[User, User],
    fields: dict[str, str],
    method: str,
    status: int,
) -> None:
    """With the right token, so that each other check is seen alone."""
    alice, _ = users
    pid = engine_of(behind, alice)
    with visitor(server, alice.name) as client:
        token = token_in(client.get("").text)
        own = {name: value.replace("SERVER", server.url.rstrip("/")) for name, value in fields.items()}
        content = f"token={token}&pid={pid}"
        query = "" if method == "POST" else "?" + content
        answer = client.request(method, "drain" + query, content=content, headers=FORM | own)
        assert answer.status_code == status, answer.text
    assert pids_of(behind, alice) == ([] if status == 303 else [pid])


def test_a_form_without_the_visitors_own_token_ends_nothing(
    server: Server, behind: XSwitch, users: tuple[User, User]
) -> None:
    alice, bob = users
    pid, _ = (engine_of(behind, user) for user in users)
    with visitor(server, bob.name) as client:
        of_bob = token_in(client.get("").text)
    with visitor(server, alice.name) as client:
        for token in (None, "", of_bob, "0.0", "x" * 4000, "\0"):
            given = {"pid": pid, **({} if token is None else {"token": token})}
            assert client.post("drain", data=given).status_code == 403
        assert client.post("drain", data={"token": "x" * 5000}).status_code == 413
        assert client.post("drain", data={str(number): "" for number in range(9)}).status_code == 400
        assert client.post("drain", content=b"token=%ff", headers=FORM).status_code == 400
        assert client.get("drain").status_code == 405 and client.post("").status_code == 405
        assert client.get("other").status_code == client.get("log/").status_code == 404
    assert pids_of(behind, alice) == [pid]


def test_the_page_may_load_nothing_and_be_in_no_frame(server: Server, users: tuple[User, User]) -> None:
    with visitor(server, users[0].name) as client:
        answer = client.get("")
        policy = answer.headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        )
        assert pages.STYLE in answer.text and "style=" not in answer.text and "<script" not in answer.text
        for dest in ("empty", "iframe", "object", "serviceworker"):
            assert client.get("", headers={"Sec-Fetch-Dest": dest}).status_code == 403
        assert answer.headers["cache-control"] == "no-store" and answer.headers["x-frame-options"] == "DENY"
        assert client.get(server.url + "-/engines").headers["location"] == "/-/engines/"


@pytest.mark.parametrize("model", MODELS)
def test_under_every_model(
    behind: XSwitch, users: tuple[User, User], start: Start, tmp_path: Path, model: str
) -> None:
    """A token of one worker is one of all. A request that runs is not lost, and a hostile name is text."""
    alice, _ = users
    workers = ("--workers", "3") if model == "prefork" else ()
    server = start(model, *workers, "--config", with_page(tmp_path, users), "--xswitch", behind.address)
    stop = alice.home / "stop"
    waits = behind.asking(alice.write(HOSTILE, WAITS), QUERY_STRING=str(stop), REQUEST_METHOD="POST")
    wait_until(lambda: any(each["state"] == "busy" for each in behind.engines()), 20, behind.log)
    with visitor(server, alice.name) as client:
        shown = client.get("").text
        assert "&lt;b&gt;&amp;&quot;&#x27;\\x1b[31m" in shown and "<b>" not in shown
        for _ in range(3 if model == "prefork" else 1):
            with visitor(server, alice.name) as other:  # another worker may answer
                fields = {"token": token_in(shown), "user": alice.name}
                done = other.post("drain", data=fields, follow_redirects=True)
                assert "will be ended after the running request" in done.text, done.text
        assert "busy, then ended" in client.get("").text
        alice.write("../stop", "")
        assert waits().status == 200, behind.log()
        wait_until(lambda: not pids_of(behind, alice), 20)
        assert "0 engines" in client.get("").text
    os.unlink(stop)


def test_the_page_of_an_x_switch_of_its_own(start: Start, users: tuple[User, User], tmp_path: Path) -> None:
    """The workers of `ewe -x` are not root: ewe makes their account a manager of its X-Switch."""
    alice, _ = users
    file = with_page(tmp_path, users)
    (tmp_path / "ewe.toml").write_text(SETTINGS.replace('"127.0.0.1"', '"page.localhost"') + "[[site]]\n")
    server = start("xswitch", "--config", file)
    alice.write("cgi-bin/waits.py", WAITS)
    assert web.get(f"{server.url}~{alice.name}/cgi-bin/waits.py").status_code == 200, server.log()
    with visitor(server, alice.name) as client:
        assert client.get("").status_code == 404
        client.headers["Host"] = "engines.localhost"
        fields = {"token": token_in(client.get("").text), "user": alice.name}
        assert "1 engine ended." in client.post("drain", data=fields, follow_redirects=True).text


def test_an_x_switch_that_does_not_believe_the_server_or_has_gone(
    start: Start, users: tuple[User, User], tmp_path: Path
) -> None:
    with xswitch("") as behind:
        server = start("thread", "--config", with_page(tmp_path, users), "--xswitch", behind.address)
        with visitor(server, "ada") as client:
            assert client.get("").status_code == 403
            server.wait_for_log("engines: X-Switch refuses: over TCP X-Switch cannot tell who asks")
            behind.stop()
            assert client.get("").status_code == 503
