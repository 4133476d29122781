"""Guards in the locations of a site, under every model: the effects on clients, programs and the log."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import web
from support.server import MODELS, Server, Start, wait_until, write_program

from ewe.config.feature_table import start_warnings
from ewe.config.messages import ConfigError
from ewe.config.settings import Config
from ewe.http.dates import parse_date
from ewe.sites import make_site

# Of `htpasswd -nbB -C 4 ada secret`
ADA = "ada:$2y$04$j8ObfRVCIFTzZHGoq48Pnep3IbF9FgsHLsu51VDoZI.d5gpUdCajO\n"
SETTINGS = """\
[[site]]
headers = { set = { X-Frame-Options = "DENY" }, remove = ["X-Content-Type-Options"] }
[[site.location]]
prefix = "/cgi-bin/members"
auth = { realm = "Members", file = "htpasswd" }
[[site.location]]
prefix = "/guessed"
auth = { realm = "Members", file = "htpasswd" }
[[site.location]]
prefix = "/asked"
auth = { realm = "Members", command = ["CHECK", "an argument"] }
[[site.location]]
prefix = "/hangs"
auth = { realm = "Members", command = "CHECK", timeout = "300ms" }
[[site.location]]
prefix = "/rated"
requests-per-second = { rate = 0.01, burst = 4 }
try = ["/rated/index.txt"]
[[site.location]]
path = "/slow.bin"
limit-rate = "64k"
expires = { "application/*" = "1h" }
cache-control = "public"
[[site.location]]
prefix = "/here"
allow = "127.0.0.0/8"
methods = "GET"
[[site.location]]
prefix = "/elsewhere"
deny = ["127.0.0.1", "::1"]
"""
CHECK = """\
#!/bin/sh
read name; read password
case "$name $password" in
    "ada secret") exit 0;;
    "bob fails") exit 7;;
    "cid dies") kill -9 $$;;
    "dan hangs") exec sleep 60;;
esac
[ "$name" = spy ] && { env; cat /proc/$$/cmdline; } >spied.new && mv spied.new spied
exit 1
"""
CGI = "#!/bin/sh\necho Content-Type: text/plain\necho\nenv\n"


@pytest.fixture(params=[*MODELS, "thread --workers 2"])
def server(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> Server:
    (tmp_path / "htpasswd").write_text(ADA)
    check = write_program(tmp_path / "check", CHECK.replace("spied", str(tmp_path / "spied")))
    (tmp_path / "ewe.toml").write_text(SETTINGS.replace("CHECK", str(check)))
    server = start(request.param, "--config", str(tmp_path / "ewe.toml"))
    write_program(server.cgi / "members", CGI)
    for name in ("guessed", "asked", "rated/index.txt", "here", "elsewhere"):
        (server.root / name).parent.mkdir(exist_ok=True)
        (server.root / name).write_text(name)
    (server.root / "slow.bin").write_bytes(os.urandom(40 * 1024))
    return server


def test_what_guards_do(server: Server, tmp_path: Path) -> None:
    # Without keep-alive: a connection would hold the serial model, and several processes are to see the requests.
    with web.Client(base_url=server.url, headers={"Connection": "close"}) as client:
        members(server, client)
        guesses(client)
        asks_a_program(client, tmp_path)
        rates(client)
        limits_and_dates(server, client)
        assert client.get("/here").text == "here" and client.get("/elsewhere").status_code == 403
        refused = client.post("/here")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        # Every response of the site has its fields: also a refusal, and a 404.
        assert refused.headers["x-frame-options"] == client.get("/none").headers["x-frame-options"] == "DENY"
        assert "x-content-type-options" not in client.get("/here").headers
    wait_until(lambda: " - ada [" in server.access_file.read_text(), 20)
    lines = server.access_file.read_text()
    assert " - - [" in lines and " - eve [" in lines and "secret" not in lines + server.log()
    assert "Traceback" not in server.log()


def test_a_command_that_closes_its_output_has_its_timeout(start: Start, tmp_path: Path) -> None:
    """Many scripts begin by closing it, or by sending it elsewhere. Their exit status is the answer."""
    check = write_program(
        tmp_path / "check",
        "#!/bin/sh\nread name; read password\nexec >&- 2>&-\n"
        '[ "$name" = dan ] && exec sleep 60\nsleep 1; [ "$password" = secret ]\n',
    )
    locations = "".join(
        f'[[site.location]]\nprefix = "{prefix}"\n'
        f'auth = {{ realm = "x", command = "{check}", timeout = "{timeout}" }}\n'
        for prefix, timeout in (("/hangs", "600ms"), ("/", "60s"))
    )
    (tmp_path / "ewe.toml").write_text("[[site]]\n" + locations)
    constants = {"ewe.gateway.programs.EXIT_TIMEOUT_S": 0.3}
    server = start("pool", "--config", str(tmp_path / "ewe.toml"), constants=constants)
    statuses = {
        (path, name): web.get(server.url + path, auth=(name, password)).status_code
        for path, name, password in (("", "ada", "secret"), ("", "eve", "wrong"), ("hangs", "dan", "secret"))
    }
    assert statuses == {("", "ada"): 200, ("", "eve"): 401, ("hangs", "dan"): 504}


def members(server: Server, client: web.Client) -> None:
    """A log-in, the variables of the program, and the responses to wrong passwords."""
    asked = client.get("/cgi-bin/members")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"] == 'Basic realm="Members", charset="UTF-8"'
    for _ in range(2):
        told = client.get("/cgi-bin/members", auth=("ada", "secret")).text.splitlines()
        assert {"REMOTE_USER=ada", "AUTH_TYPE=Basic"} <= set(told)
        assert not any("AUTHORIZATION" in line or "secret" in line for line in told)
    for name, password in (("ada", "Secret"), ("eve", "secret"), ("ada", ""), ("ada", "x" * 5000)):
        assert client.get("/cgi-bin/members", auth=(name, password)).status_code == 401
    for value in ("Basic", "Basic !!!!", "Digest username=ada", "Basic " + "A" * 12000):
        assert client.get("/cgi-bin/members", headers={"Authorization": value}).status_code == 401
    assert client.get("/", headers={"Authorization": "Basic !"}).status_code == 200


def guesses(client: web.Client) -> None:
    """Ten, for all processes together, and one more for each five seconds that the requests take."""
    began = time.monotonic()
    statuses = [client.get("/guessed", auth=("ada", f"guess {number}")).status_code for number in range(14)]
    most = 10 + (time.monotonic() - began) // 5
    assert statuses[:10] == [401] * 10 and statuses.count(401) <= most
    assert set(statuses[10:]) <= {401, 429} and statuses[-1] == 429
    refused = client.get("/guessed", auth=("ada", "secret"))
    assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 5


def asks_a_program(client: web.Client, tmp_path: Path) -> None:
    """Its exit status decides."""
    assert client.get("/asked", auth=("ada", "secret")).text == "asked"
    for name, password, status in (("ada", "no", 401), ("bob", "fails", 500), ("cid", "dies", 502)):
        assert client.get("/asked", auth=(name, password)).status_code == status
    assert client.get("/asked", auth=("spy", "hidden?")).status_code == 401
    spied = (tmp_path / "spied").read_text()
    assert "REMOTE_ADDR=127.0.0.1\n" in spied and "an argument" in spied and "hidden?" not in spied
    began = time.monotonic()
    assert client.get("/hangs", auth=("dan", "hangs")).status_code == 504
    assert time.monotonic() - began < 20


def rates(client: web.Client) -> None:
    """Four requests, wherever they arrive; `try` leads through the location twice, which counts once."""
    statuses = [client.get("/rated/any").status_code for _ in range(6)]
    assert statuses == [200] * 4 + [429] * 2
    # 100 s, less what these requests took
    assert 40 <= int(client.get("/rated/").headers["retry-after"]) <= 100


def limits_and_dates(server: Server, client: web.Client) -> None:
    """A slow response is whole, and holds up nobody where one process serves several clients."""
    path = "/slow.bin"
    with ThreadPoolExecutor(1) as another:
        began = time.monotonic()
        slow = another.submit(web.get, server.url + "slow.bin")
        client.get("/index.html")
        answer = slow.result()
        assert time.monotonic() - began >= (40 - 16) / 64 * 0.9
    assert answer.content == (server.root / "slow.bin").read_bytes()
    assert answer.headers["content-length"] == str(40 * 1024)
    assert answer.headers["cache-control"] == "public, max-age=3600" and "expires" in answer.headers
    again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.headers["cache-control"]) == (304, "public, max-age=3600")
    part = client.get(path, headers={"Range": "bytes=20000-20009"})
    assert part.status_code == 206 and part.content == answer.content[20000:20010]
    assert client.head(path).headers["content-length"] == str(40 * 1024)


def test_a_changed_file_has_the_fields_of_filters(server: Server) -> None:
    """ewe keeps a file's response with the fields of filters only as long as the file's own response."""
    versions: dict[str, bytes] = {}

    def look(client: web.Client) -> bytes:
        found = client.get("/slow.bin")
        assert versions.setdefault(found.headers["etag"], found.content) == found.content
        assert found.headers["content-length"] == str(len(found.content))
        assert found.headers["x-frame-options"] == "DENY"
        assert found.headers["cache-control"] == "public, max-age=3600"
        date, until = (parse_date(found.headers[name]) for name in ("date", "expires"))
        # The second may change between the two.
        assert date is not None and until is not None and 3599 <= until - date <= 3600
        return found.content

    with web.Client(base_url=server.url, headers={"Connection": "close"}) as client:
        for content in (b"first", b"the second"):
            (server.root / "new").write_bytes(content)
            os.replace(server.root / "new", server.root / "slow.bin")
            wait_until(lambda content=content: look(client) == content, 20)
            for _ in range(4):
                look(client)
    assert set(versions.values()) == {b"first", b"the second"}


@pytest.mark.parametrize(
    "lines, words",
    [
        (
            'auth = { realm = "x", file = "BAD" }',
            "line 4: auth = BAD line 2: its password is hashed with DES",
        ),
        ('allow = ["10.0.0.0/8", "10.0.0.1/8"]', '(not "10.0.0.1/8"; the network is 10.0.0.0/8)'),
        ('headers = { set = { Date = "now" } }', 'line 4: headers.set: "Date": expected the name of a field'),
        ('headers = { set = { Date = "now" } }', "(ewe itself writes Date, and no setting changes it)"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, lines: str, words: str) -> None:
    lines, words = (each.replace("BAD", str(tmp_path / "bad")) for each in (lines, words))
    (tmp_path / "bad").write_text("# old\nada:RKG0Q6ZHNayco\n")
    (tmp_path / "ewe.toml").write_text(f'[[site]]\n[[site.location]]\nprefix = "/x"\n{lines}\n')
    with pytest.raises(ConfigError) as refused:
        make_site(Config.load(file=str(tmp_path / "ewe.toml"), environ={}))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_passwords_without_tls(start: Start, tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(ADA)
    (tmp_path / "ewe.toml").write_text('[[site]]\nauth = { realm = "x", file = "htpasswd" }\n')
    server = start(
        "thread", "--config", str(tmp_path / "ewe.toml"), "--bind", "127.0.0.1:0", "--bind", "0.0.0.0:0"
    )
    server.wait_for_log("ewe.toml line 2: auth asks for passwords without TLS at http://")


def test_tables_in_one_line_have_their_own_guards(start: Start, tmp_path: Path) -> None:
    """The lines of their keys are not known, and both tables have one place in messages."""
    (tmp_path / "ewe.toml").write_text(
        'site = [{ location = [{ prefix = "/open", status = 200, deny = "192.0.2.1" },'
        ' { prefix = "/closed", status = 200, deny = "127.0.0.1" }] }]\n'
    )
    server = start("thread", "--config", str(tmp_path / "ewe.toml"))
    assert web.get(server.url + "open").status_code == 200
    assert web.get(server.url + "closed").status_code == 403


def test_warnings_about_tables_in_one_line(tmp_path: Path) -> None:
    """The lines of their keys are not known."""
    (tmp_path / "htpasswd").write_text(ADA)
    (tmp_path / "ewe.toml").write_text(
        'site = [{ location = [{ prefix = "/in", auth = { realm = "x", file = "htpasswd" } },'
        ' { prefix = "/dav", webdav = true }] }]\n'
    )
    options = [("cgi-path", str(tmp_path / "no programs"))]
    auth, webdav = start_warnings(
        Config.load(options, file=str(tmp_path / "ewe.toml"), environ={}), "http://192.0.2.1/"
    )
    assert "ewe.toml: auth asks for passwords without TLS at http://192.0.2.1/" in auth
    assert "everybody may write and delete files below /dav" in webdav
