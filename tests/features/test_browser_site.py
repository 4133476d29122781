"""The browser of databases on a server: its answers under every model, and the permission to change data."""

from __future__ import annotations

import csv
import json
import re
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from support import web
from support.daemon import Daemon
from support.fork_server import ForkServer
from support.proc import peak_memory
from support.server import MODELS, Server, Start, Starter

pytestmark = pytest.mark.starts_processes
BASE = "-/databases/"
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
MANY = 100_000
# On a busy machine, a count may take longer than a visitor would wait for
PATIENT = {
    "ewe.features.browser.asking.COUNT_S": 20.0,
    "ewe.features.browser.asking.FACET_S": 20.0,
    "ewe.features.browser.feature.SQL_TIMEOUT_S": 4.0,
}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with the tables of support.daemon, and in `log` a large one and one with large values."""
    with tempfile.TemporaryDirectory(prefix="ewe-dbd-") as name:
        Path(name).chmod(0o755)
        made = Daemon(Path(name))
        with closing(sqlite3.connect(made.directory / "log.db")) as log:
            log.executescript(
                f"""CREATE TABLE many (n INTEGER PRIMARY KEY, text TEXT);
                INSERT INTO many WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {MANY})
                    SELECT n, 'line "' || n || '", of many; ' || hex(zeroblob(100)) FROM c;
                CREATE TABLE large (n INTEGER PRIMARY KEY, data BLOB);
                INSERT INTO large VALUES (1, zeroblob(1000000)), (2, zeroblob(1000000)), (3, zeroblob(9000000));"""
            )
        made.general.append("queue-timeout = '20s'")
        try:
            made.start()
            yield made
        finally:
            made.stop(signal.SIGKILL)


def started(start: Start, daemon: Daemon, model: str = "thread", *more: str) -> Server:
    """Return a server with a browser of the daemon's databases."""
    names = [each for name in daemon.databases for each in ("--database", name)]
    more = ("--dbd", daemon.address, "--browser-edit", "shop.goods", *more)
    return start(model, *names, *more, constants=PATIENT)


@pytest.fixture(scope="module")
def browsing(
    daemon: Daemon, tmp_path_factory: pytest.TempPathFactory, fork_servers: Callable[[str], ForkServer]
) -> Iterator[Server]:
    """One server for the tests that only look."""
    directory = tmp_path_factory.mktemp("browsing")
    directory.chmod(0o755)
    starter = Starter(directory, fork_servers)
    yield started(starter, daemon)
    starter.stop()


@pytest.mark.parametrize("model", MODELS)
def test_under_every_model(start: Start, daemon: Daemon, model: str) -> None:
    server = started(start, daemon, model)
    url = server.url + BASE
    with web.Client() as client:
        assert client.get(url[:-1]).headers["location"] == f"/{BASE}"
        rebound = client.get(url + "log/", headers={"Host": "evil.example:4000"})
        assert rebound.status_code == 421 and "goods" not in rebound.text
        assert client.post(url + "shop/goods/insert", headers={"Host": "evil.example"}).status_code == 421
        assert client.get(url + "log").headers["location"] == f"/{BASE}log/"
        everything = client.get(url)
        assert everything.status_code == 200 and '"/-/databases/log/"' in everything.text, server.log()
        assert f"{MANY:,} rows" in client.get(url + "log/").text
        rows = client.get(url + "log/goods")
        assert "&lt;b&gt;&quot;wool&quot; &amp; ü&lt;/b&gt;" in rows.text and "2 bytes" in rows.text
        again = client.get(url + "log/goods", headers={"If-None-Match": rows.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(url + "log/goods", headers={"If-Match": '"another"'}).status_code == 412
        head = client.head(url + "log/goods")
        assert (head.headers["content-length"], head.content) == (rows.headers["content-length"], b"")
        filtered = client.get(url + "log/many?column=n&op=gt&value=99999&search=LINE")
        assert "1 row match" in filtered.text and "line &quot;100000&quot;" in filtered.text
        assert client.get(url + "log/goods/row?key=[1]").status_code == 200
        assert client.get(url + "log/goods.json").json()[0]["price"] == 2.5
        explained = client.get(url + "log/-sql?explain=1&sql=SELECT+*+FROM+many+WHERE+n+%3D+:n&:n=7")
        assert "SEARCH many USING INTEGER PRIMARY KEY" in explained.text
        missing = client.get(url + "log/nothing")
        assert missing.status_code == 404 and f'"/{BASE}log/"' in missing.text  # the way back
        refused = client.post(url + "shop/goods", content=b"")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        changed = client.post(url + "shop/goods/insert", content="v.name=" + model, headers=FORM)
        assert (changed.status_code, changed.headers["location"]) == (303, f"/{BASE}shop/goods")
        assert model in client.get(url + "shop/goods.csv").text
    assert web.get(server.url + "-/nothing").status_code == 404  # the files of the site go on beside it


def test_a_visitor_pages_through_a_large_table_by_key(browsing: Server) -> None:
    url = f"{browsing.url}{BASE}log/many?sort=text&desc=1&size=1000&column=n&op=le&value=3000"
    seen: list[str] = []
    for _ in range(4):
        text = web.get(url).text
        seen += re.findall(r"row\?key=%5B([0-9]+)%5D", text)
        found = re.search(r'<a href="([^"]+)" rel="next">', text)
        if found is None:
            break
        assert "offset" not in found[1]
        url = browsing.url.rstrip("/") + found[1].replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 3000
    texts = sorted((f'line "{n}", of' for n in range(1, 3001)), reverse=True)
    assert seen[0] == re.findall("[0-9]+", texts[0])[0]


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_an_export_is_whole_filtered_and_streamed(start: Start, daemon: Daemon, suffix: str) -> None:
    server = started(start, daemon)
    url = f"{server.url}{BASE}log/many.{suffix}?column=n&op=gt&value=10&sort=n&desc=1"
    web.get(f"{server.url}{BASE}log/many.{suffix}?column=n&op=lt&value=10")
    before = peak_memory([server.pid])
    data = web.get(url).text
    assert len(data) > 20e6
    assert peak_memory([server.pid]) - before < 8e6
    if suffix == "csv":
        rows = list(csv.reader(data.splitlines()))
        assert rows[0] == ["n", "text"] and rows[1][1].startswith('line "100000", of many')
        numbers = [int(row[0]) for row in rows[1:]]
    else:
        numbers = [row["n"] for row in json.loads(data)]
    assert numbers == list(range(MANY, 10, -1))


def test_large_values_end_a_page_early_and_never_fill_the_memory(browsing: Server) -> None:
    server = browsing
    text = web.get(f"{server.url}{BASE}log/large").text
    assert "These rows are large" in text and "1,000,000 bytes" in text
    following = re.search(r'<a href="([^"]+)" rel="next">', text)
    assert following is not None
    refused = web.get(f"{server.url}{BASE}log/large?column=n&op=eq&value=3")
    assert refused.status_code == 500 and "Download it" in refused.text
    assert len(web.get(f"{server.url}{BASE}log/large.csv?column=n&op=eq&value=3").text) > 12e6


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("log/goods?column=nope&op=eq&value=1", 400, "no column “nope”"),
        ("log/goods?after=x", 400, "begin on the first page"),
        ("log/goods?search=%ff", 400, "not UTF-8"),
        ("log/goods/row?key=7", 404, "no such row"),
        ("log/goods/row", 400, "named by its key"),
        ("log/goods/row?key=[", 400, "does not name a row"),
        ("log/goods/row?key=%5B%22%5Cud800%22%5D", 400, "does not name a row"),
        ("log/goods?column=id&op=in&value=" + "," * 5000, 400, "more than 1000 values"),
        ("log/goods/row?key=[1]&key=[2]", 400, "named by its key"),
        ("log/goods/edit?key=[1]", 404, "no forms"),
        ("log/goods.xml", 404, "only .csv and .json"),
        ("log/goods/row/more", 404, "too many parts"),
        (".csv", 404, "name of a table"),
        ("log/.json", 404, "name of a table"),
        ("%ff/%ff", 404, "no database"),
        ("log/-sql?sql=SELECT+zeroblob(900000000)", 400, "too big"),
        ("log/-sql?sql=SELECT+%00", 400, "null character"),
        ("none/", 404, "no database “none”"),
        ("log/-saved/nope", 404, "no saved query"),
        ("log/~3Cscript~3E", 404, "no table “&lt;script&gt;”"),
        ("log/-sql?sql=SELEC+1", 400, "near &quot;SELEC&quot;: syntax error"),
        ("log/-sql.csv?sql=SELEC+1", 400, "syntax error"),
        ("log/-sql?sql=DELETE+FROM+goods", 400, "not authorized"),
        ("shop/-sql?sql=DELETE+FROM+goods", 400, "not authorized"),
        ("shop/-sql?sql=SELECT+1;+DELETE+FROM+goods", 400, "one statement"),
        ("shop/-sql?sql=ATTACH+%27x.db%27+AS+x", 400, "not authorized"),
        ("log/-sql?sql=" + quote(ENDLESS), 504, "cancelled"),
    ],
)
def test_what_cannot_be_is_said_with_the_right_status(
    browsing: Server, path: str, status: int, words: str
) -> None:
    answer = web.get(f"{browsing.url}{BASE}{path}")
    assert (answer.status_code, words in answer.text) == (status, True), answer.text[-900:]
    assert "Traceback" not in browsing.log()


def test_the_databases_words_are_for_the_log_unless_the_visitor_wrote_the_sql(
    start: Start, daemon: Daemon, browsing: Server
) -> None:
    with closing(sqlite3.connect(daemon.directory / "log.db")) as log:
        log.execute("CREATE VIEW IF NOT EXISTS broken AS SELECT gone FROM missing")
    query = (
        "--browser-query",
        "log/bad=SELECT secret FROM missing",
        "--browser-query",
        "log/good=SELECT :a + 1 AS b",
    )
    server = started(start, daemon, "thread", *query)
    for path in ("log/-saved/bad", "log/-saved/bad.csv"):
        page = web.get(server.url + BASE + path)
        assert page.status_code in (400, 500) and "no such table" not in page.text
    assert "no such table: missing" in server.wait_for_log("missing")
    assert '<td class="n">8' in web.get(server.url + BASE + "log/-saved/good?:a=7").text
    open_server = started(start, daemon, "thread", *query, "--development")
    assert "no such table: missing" in web.get(open_server.url + BASE + "log/-saved/bad").text
    # A view that cannot be read does not hide the tables
    assert web.get(server.url + BASE + "log/goods").status_code == 200
    assert web.get(server.url + BASE + "log/broken").status_code == 404


def test_a_daemon_that_is_away_is_said_with_a_time_to_try_again(start: Start, tmp_path: Path) -> None:
    server = start("thread", "--database", "log", "--dbd", f"unix:{tmp_path}/nothing.sock")
    page = web.get(server.url + BASE + "log/")
    assert (page.status_code, "retry-after" in page.headers) == (503, True)
    assert "does not answer" in page.text
    everything = web.get(server.url + BASE)
    assert everything.status_code == 200 and "does not answer" in everything.text


def test_what_is_hidden_or_off_does_not_exist(start: Start, daemon: Daemon) -> None:
    server = started(
        start, daemon, "thread", "--browser-hidden", "staff", "--no-browser-sql", "--browser", "/db/of/us"
    )
    url = server.url + "db/of/us/"
    page = web.get(url).text
    assert "/db/of/us/log/" in page and "staff" not in page
    assert web.get(url + "staff/goods").status_code == 404
    assert web.get(url + "log/-sql?sql=SELECT+1").status_code == 404
    assert "-sql" not in web.get(url + "log/").text + web.get(url + "log/goods").text
    assert web.get(server.url + BASE).status_code == 404
    off = started(start, daemon, "thread", "--browser", "")
    assert web.get(off.url + BASE).status_code == 404
    plain = start("thread")
    assert web.get(plain.url + BASE).status_code == 404


# ---------------------------------------------------------------------------------------------------------
# Forms


def goods(daemon: Daemon) -> dict[int, tuple[object, ...]]:
    """Return the rows of the table that may be changed, by id."""
    with closing(sqlite3.connect(daemon.directory / "shop.db")) as shop:
        return {row[0]: row[1:] for row in shop.execute("SELECT * FROM goods")}


def test_a_row_is_inserted_changed_and_deleted(browsing: Server, daemon: Daemon) -> None:
    url = f"{browsing.url}{BASE}shop/goods/"
    name = "two\r\nlines & 'quotes'"
    sent = web.post(
        url + "insert", content=urlencode({"v.id": "70", "v.name": name, "v.price": ""}), headers=FORM
    )
    assert (sent.status_code, sent.headers["location"]) == (303, f"/{BASE}shop/goods")
    assert goods(daemon)[70] == ("two\nlines & 'quotes'", None, None)
    form = web.get(url + "edit?key=[70]").text
    assert (
        "two\nlines &amp; &#x27;quotes&#x27;</textarea>" in form
        and 'name="null.price" value="1" checked' in form
    )
    with closing(sqlite3.connect(daemon.directory / "shop.db")) as shop, shop:
        shop.execute("UPDATE goods SET image = x'01' WHERE id = 70")
    fields = {"v.id": "71", "v.name": name, "v.price": "4.5", "null.price": "1"}
    changed = web.post(url + "edit?key=[70]", content=urlencode(fields), headers=FORM)
    assert (changed.status_code, changed.headers["location"]) == (303, f"/{BASE}shop/goods/row?key=%5B71%5D")
    assert goods(daemon)[71] == ("two\nlines & 'quotes'", 4.5, b"\x01")
    nulled = web.post(
        url + "edit?key=[71]", content=urlencode({"v.name": "x", "null.name": "1"}), headers=FORM
    )
    assert nulled.status_code == 303 and goods(daemon)[71] == (None, 4.5, b"\x01")
    assert "Delete this row?" in web.get(url + "delete?key=[71]").text and 71 in goods(daemon)
    deleted = web.post(url + "delete?key=[71]", content="", headers=FORM)
    assert deleted.status_code == 303 and 71 not in goods(daemon)
    assert web.post(url + "delete?key=[71]", content="", headers=FORM).status_code == 404


def test_a_form_with_other_line_ends_changes_no_text(browsing: Server, daemon: Daemon) -> None:
    """A browser sends each line end as CRLF. Only the column that the visitor has changed is written."""
    with closing(sqlite3.connect(daemon.directory / "shop.db")) as shop, shop:
        shop.execute("INSERT INTO goods (id, name) VALUES (80, 'a' || char(13) || 'b')")
    url = f"{browsing.url}{BASE}shop/goods/edit?key=[80]"
    assert '<textarea name="v.name"' in web.get(url).text  # a field of one line would drop the line end
    fields = {"v.id": "80", "v.name": "a\r\nb", "v.price": "3"}
    assert web.post(url, content=urlencode(fields), headers=FORM).status_code == 303
    assert goods(daemon)[80][:2] == ("a\rb", 3.0)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:4000"}, 403),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json"}, 415),
        ({}, 409),
        ({"Sec-Fetch-Site": "same-origin"}, 409),
        ({"Host": "LocalHost:4000", "Origin": "http://localhost:4000"}, 409),
    ],
)
def test_a_form_of_another_site_changes_nothing(
    browsing: Server, daemon: Daemon, fields: dict[str, str], status: int
) -> None:
    """The form repeats an id, so that the database refuses what ewe lets pass: 409."""
    before = goods(daemon)
    url = f"{browsing.url}{BASE}shop/goods/insert"
    answer = web.post(url, content="v.id=1&v.name=evil", headers=FORM | fields)
    assert answer.status_code == status, answer.text
    assert goods(daemon) == before
    if status == 409:
        assert (
            "refuses this change" in answer.text
            and "UNIQUE" not in answer.text
            and 'value="evil"' in answer.text
        )


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("shop/goods/insert", "v.id=x%00", 400),
        ("shop/goods/insert", b"v.id=\xff", 400),
        ("shop/goods/insert", "v.name=" + "x" * (1 << 20), 413),
        ("shop/goods/edit?key=[1]", "null.id=1&v.id=abc", 409),
        ("log/goods/insert", "v.name=x", 404),
        ("shop/goods/insert.csv", "v.name=x", 405),
        ("shop/goods/row?key=[1]", "v.name=x", 405),
    ],
)
def test_a_form_that_cannot_be_changes_nothing(
    browsing: Server, daemon: Daemon, path: str, content: str | bytes, status: int
) -> None:
    before = goods(daemon)
    assert web.post(f"{browsing.url}{BASE}{path}", content=content, headers=FORM).status_code == status
    assert goods(daemon) == before


def test_a_form_for_a_database_that_only_reads_is_refused_by_the_daemon(start: Start, daemon: Daemon) -> None:
    server = started(start, daemon, "thread", "--browser-edit", "log.goods")
    answer = web.post(f"{server.url}{BASE}log/goods/insert", content="v.name=x", headers=FORM)
    assert answer.status_code == 409 and "refuses this change" in answer.text
