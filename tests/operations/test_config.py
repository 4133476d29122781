"""Settings: their notations, their sources, and the messages about wrong ones."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewe.config.count_range import CountRange
from ewe.config.feature_table import SETTINGS as MODULES
from ewe.config.feature_table import module_names as features
from ewe.config.messages import ConfigError
from ewe.config.setting import Setting, in_documented_order
from ewe.config.setting_types import BOOL, COUNT, WAIT, duration, parse_address, size
from ewe.config.settings import KEYS, SETTINGS, Config
from ewe.features.cgi_settings import CGI_PATH
from ewe.features.fastcgi_settings import FASTCGI_QUEUE_TIMEOUT
from ewe.processors.pool_threads import threads_of

ROOT = Path(__file__).resolve().parents[2]
NOWHERE: Mapping[str, str] = {}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(*options: tuple[str, object], file: str | None = None, **environ: str) -> Config:
    return Config.load(options, environ, file)


def complaint(*options: tuple[str, object], file: str | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*options, file=file, **environ)
    return str(caught.value)


# The definitions.


def test_the_parameters_of_2006_are_there_under_their_own_names() -> None:
    table = (
        "concurrency port poolthreads indexes persistent loglevel logfile defaultindex documentroot cgi-path"
    )
    assert set(table.split()) <= KEYS.keys()
    config = Config()
    assert (config.port, config.indexes, config.persistent) == (4000, True, True)
    assert config.poolthreads == CountRange(5, 50) and threads_of(Config(parking="never")) == 5
    assert (config.defaultindex, config.documentroot, config[CGI_PATH]) == (
        ("index.html",),
        "htdocs",
        "cgi-bin",
    )
    assert Config(concurrency="none").concurrency == "serial"


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_default_is_a_value_of_its_own_kind_and_reads_back_as_shown(setting: Setting[Any]) -> None:
    assert setting.kind.read(setting.default) == setting.default
    if setting.default != ():
        assert setting.kind.read(setting.show(setting.default)) == setting.default


@pytest.mark.parametrize("name", [name for name in MODULES if name not in features()])
def test_a_file_beside_a_feature_that_declares_settings_imports_nothing_but_config(name: str) -> None:
    """The command imports it before it knows which features a site has."""
    nodes = ast.walk(ast.parse(Path(ROOT, *name.split(".")).with_suffix(".py").read_text()))
    modules = {
        imported
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for imported in (
            [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        )
    }
    assert {each for each in modules if each and not each.startswith("ewe.config.")} <= {"__future__"}


def test_a_declared_setting_is_one_like_the_others() -> None:
    declared = import_module("ewe.features.database_settings")
    assert [key for key in KEYS if key.startswith("browser")] == [
        "browser", "browser-hidden", "browser-sql", "browser-query", "browser-edit",
    ]  # fmt: skip
    for setting in declared.SETTINGS:
        assert SETTINGS[setting.name] is setting
    config = load(EWE_BROWSER_SQL="no")
    assert (config[declared.BROWSER_SQL], config.origin("browser-sql")) == (False, "EWE_BROWSER_SQL")
    assert Config()[declared.BROWSER_SQL] is True
    assert config.replace("a test", browser_sql=True)[declared.BROWSER_SQL] is True
    assert complaint(EWE_BROWSER_SQL="perhaps") == 'EWE_BROWSER_SQL "perhaps": expected true or false'
    assert (
        complaint(("browser-sq", "no"))
        == 'command line: unknown key "browser-sq"; did you mean "browser-sql"?'
    )


def test_where_a_declared_setting_stands_in_lists() -> None:
    def declare(key: str, group: str, after: str = "") -> Setting[bool]:
        return Setting(False, BOOL, "", group=group, key=key, after=after)

    own = [declare("gate", "fold"), declare("fence", "fold"), declare("crook", "shepherd")]
    declared = [declare("latch", "fold", "gate"), declare("roof", "fold"), declare("tail", "dog")]
    assert [each.key for each in in_documented_order(own, declared)] == [
        "gate",
        "latch",
        "fence",
        "roof",
        "crook",
        "tail",
    ]
    with pytest.raises(ValueError, match="latch: there is no setting door that it could follow"):
        in_documented_order(own, [declare("latch", "fold", "door")])
    with pytest.raises(ValueError, match="a setting of a feature needs its key"):
        in_documented_order(own, [declare("", "fold")])
    with pytest.raises(ValueError, match="two settings have the name fence"):
        in_documented_order(own, [declare("fence", "fold")])


def test_the_scope_of_a_setting() -> None:
    assert (Config.port.scope, Config.access_log.scope, Config.env.scope) == ("server", "site", "location")


def test_names_of_a_setting_derive_from_its_attribute() -> None:
    assert (Config.pid_file.key, Config.pid_file.variable) == ("pid-file", "EWE_PID_FILE")
    assert KEYS["threads"] is Config.poolthreads
    assert KEYS["model"] is Config.concurrency
    assert len(KEYS) == sum(len(setting.keys) for setting in SETTINGS.values()), "two settings share a name"


def test_values_are_python_values() -> None:
    config = Config(port="8080", max_head="64k", grace="500ms", indexes="no", workers="default", threads=3)
    assert (config.port, config.max_head, config.grace, config.indexes) == (8080, 65536, 0.5, False)
    assert config.workers is None
    assert config.poolthreads == 3
    assert config.origin("port") == "caller"
    assert config.origin("host") == "default"


def test_a_path_may_be_a_path_object(tmp_path: Path) -> None:
    assert Config(documentroot=tmp_path).documentroot == str(tmp_path)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'^caller: unknown key "prot"; did you mean "port"\?$'):
        Config(prot=1)


def test_replace_makes_another() -> None:
    config = Config(port=1)
    other = config.replace("sample site", documentroot="/x")
    assert (other.port, other.documentroot, other.origin("documentroot")) == (1, "/x", "sample site")
    assert (config.documentroot, config.origin("documentroot")) == ("htdocs", "default")


# The kinds.


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        *(("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), ("1d", 86400)),
        *((" 2 S ", 2), ("1.5h", 5400), ("0.1", 0.1), (30, 30), (0.25, 0.25), (0, 0), ("24d", 24 * 86400)),
    ],
)
def test_times(raw: object, seconds: float) -> None:
    assert duration(0).read(raw) == seconds


@pytest.mark.parametrize(
    "raw",
    [
        *("", "s", "-1", "1 2", "5x", "1e3", "٣", "25d", ".5", "5.", "9" * 400),
        *(24 * 86400 + 1, -1, 1e300, float("inf"), float("nan"), True, None, [1]),
    ],
)
def test_no_times(raw: object) -> None:
    with pytest.raises(ValueError):
        duration(0).read(raw)


def test_a_wait_has_an_end_but_not_at_once() -> None:
    assert WAIT.read("1ms") == 0.001
    for raw in ("0", 0, "0.4ms"):
        with pytest.raises(ValueError):
            WAIT.read(raw)


@given(st.integers(0, 24 * 86_400_000))
def test_a_time_reads_back_as_shown(milliseconds: int) -> None:
    kind = duration(0)
    seconds = kind.read(f"{milliseconds}ms")
    assert seconds == milliseconds / 1000
    assert kind.read(kind.show(seconds)) == seconds
    assert kind.read(seconds) == seconds


@pytest.mark.parametrize(
    ("raw", "count"), [("64k", 65536), ("2M", 2 << 20), ("1g", 1 << 30), ("0", 0), (512, 512), (" 7 ", 7)]
)
def test_sizes(raw: object, count: int) -> None:
    assert size(0).read(raw) == count


@pytest.mark.parametrize("raw", ["", "k", "1.5k", "-1", -1, "1t", "1kb", 1.0, True, "9999999999g", 1 << 63])
def test_no_sizes(raw: object) -> None:
    with pytest.raises(ValueError):
        size(0).read(raw)


@given(st.integers(0, (1 << 63) - 1))
def test_a_size_reads_back_as_shown(count: int) -> None:
    kind = size(0)
    assert kind.read(kind.show(count)) == count
    assert kind.read(count) == count


@pytest.mark.parametrize("raw", ["0", "-1", "", "1.0", "1_000", "٣", 0, 1.0, True, None, 1 << 31])
def test_no_counts(raw: object) -> None:
    with pytest.raises(ValueError):
        COUNT.read(raw)


def test_switches() -> None:
    for yes in ("true", "Yes", "ON", "1", 1, True):
        assert Config(indexes=yes).indexes is True
    for no in ("false", "no", "off", "0", 0, False):
        assert Config(indexes=no).indexes is False
    for neither in ("", "maybe", 2, 1.0, None, [1]):
        with pytest.raises(ConfigError, match="expected true or false"):
            Config(indexes=neither)


def test_levels_may_be_numbers_as_in_2006() -> None:
    levels = [Config(loglevel=raw).loglevel for raw in (0, "1", "info", 3)]
    assert levels == ["error", "warning", "info", "debug"]
    for raw in (4, -1, True, "loud"):
        with pytest.raises(ConfigError, match="error, warning, info or debug"):
            Config(loglevel=raw)


def test_the_name_of_a_model_is_not_judged_here() -> None:
    assert Config(model="its_package.its_module:Rope").concurrency == "its_package.its_module:Rope"
    assert Config(model="event").concurrency == "asyncio"
    for raw in ("", ":", "mine:", ":Rope", ".mine:Rope", "a b", None):
        with pytest.raises(ConfigError, match="expected the name of a model, or module:Class"):
            Config(model=raw)


@pytest.mark.parametrize("raw", ["", "a\nb", "a\0b", 2006, None, ["a"]])
def test_no_paths(raw: object) -> None:
    with pytest.raises(ConfigError, match="expected a path"):
        Config(documentroot=raw)


def test_a_host_may_stand_in_brackets() -> None:
    assert Config(host="[::1]").host == "::1"
    for host in ("::1", "::ffff:127.0.0.1", "fe80::1%eth0", "fe80::1%br-lan.1"):
        assert Config(host=host).host == host
        assert parse_address(f"[{host}]:80") == ("tcp", host, 80)
    for raw in ("", "a b", "http://x", "[::1"):
        with pytest.raises(ConfigError, match="expected a host name or address"):
            Config(host=raw)


@pytest.mark.parametrize(
    "raw",
    ["localhost:8080", "127.0.0.1:80", "unix:x", "*:80", ":80", "[localhost:80]", "fe80::1%", "a::b%lo:80"],
)
def test_a_host_has_no_port(raw: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a host name or address \(without a port, which is the setting"
    ):
        Config(host=raw)


def test_default_indexes_are_in_their_directory() -> None:
    both = ("index.html", "index.php")
    assert Config(defaultindex="index.html,index.php").defaultindex == both
    assert load(("defaultindex", ["index.html", "index.php"])).defaultindex == both  # a flag that is repeated
    assert load(("defaultindex", ["index.html, index.php"])).defaultindex == both
    Path("ewe.toml").write_text('defaultindex = ["index.html", "index.php"]')
    assert load().defaultindex == both
    for raw in ("../secret", "index.html,../secret", "", "a,,b", ["a", 1]):
        with pytest.raises(ConfigError, match="expected the name of a file"):
            Config(defaultindex=raw)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4000", ("tcp", "127.0.0.1", 4000)),
        ("localhost:0", ("tcp", "localhost", 0)),
        ("[::1]:80", ("tcp", "::1", 80)),
        ("[fe80::1%eth0]:80", ("tcp", "fe80::1%eth0", 80)),
        ("unix:/run/ewe.sock", ("unix", "/run/ewe.sock", 0)),
        ("fd://3", ("fd", "", 3)),
    ],
)
def test_addresses(text: str, address: tuple[str, str, int]) -> None:
    assert parse_address(text) == address
    assert Config(bind=text).bind == (text,)


@pytest.mark.parametrize(
    "text",
    ["4000", ":4000", "localhost", "a:65536", "::1:80", "unix:", "fd://", "fd://x", "http://a:1", "a b:1"],
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Config(bind=text)


def test_several_addresses() -> None:
    both = ("a:1", "unix:/x")
    assert load(EWE_BIND="a:1, unix:/x").bind == both
    assert load(("bind", ["a:1", "unix:/x"])).bind == both
    Path("ewe.toml").write_text('bind = ["a:1", "unix:/x"]')
    assert load().bind == both


# The sources.


def test_toml_has_numbers_and_booleans_of_its_own() -> None:
    Path("ewe.toml").write_text("idle = 1.5\nindexes = false\ncache = 1_024\ngrace = 3\n")
    config = load()
    assert (config.idle, config.indexes, config.cache, config.grace) == (1.5, False, 1024, 3.0)


def test_the_stronger_source_wins_and_is_named() -> None:
    assert load().origin("port") == "default"
    Path("ewe.toml").write_text("# ours\n\nport = 1\n")
    config = load()
    assert (config.port, config.origin("port"), config.file) == (1, "ewe.toml line 3", "ewe.toml")
    config = load(PORT="2")
    assert (config.port, config.origin("port")) == (2, "PORT")
    config = load(PORT="2", EWE_PORT="3")
    assert (config.port, config.origin("port")) == (3, "EWE_PORT")
    config = load(("port", "4"), PORT="2", EWE_PORT="3")
    assert (config.port, config.origin("port")) == (4, "command line")


def test_what_platforms_set_is_honoured() -> None:
    config = load(WEB_CONCURRENCY="3", PORT="")
    assert (config.workers, config.port) == (3, 4000)
    assert load(WEB_CONCURRENCY="3", EWE_WORKERS="2").workers == 2
    assert load(PORT="tcp://10.0.0.1:80", EWE_PORT="1").port == 1


def test_a_synonym_is_the_same_setting_everywhere() -> None:
    assert load(("threads", "7")).poolthreads == 7
    assert load(EWE_LOG_LEVEL="debug").loglevel == "debug"
    Path("ewe.toml").write_text('model = "fork"')
    config = load()
    assert (config.concurrency, config.origin("model")) == ("fork", "ewe.toml line 1")


def test_a_former_name_works_and_is_reported() -> None:
    Path("ewe.toml").write_text(
        """\
fastcgi-patience = "1s"
[[site]]
fastcgi-patience = "2s"
[[site.location]]
prefix = "/app"
gateway = "fastcgi://127.0.0.1:9000"
fastcgi-patience = "3s"
"""
    )
    config = load()
    assert (config[FASTCGI_QUEUE_TIMEOUT], config.each_site()[0][FASTCGI_QUEUE_TIMEOUT]) == (1, 2)
    assert config.former_name_warnings() == [
        f"ewe.toml line {line}: fastcgi-patience is now called fastcgi-queue-timeout" for line in (1, 3, 7)
    ]
    config = load(EWE_FASTCGI_PATIENCE="4s")
    assert config[FASTCGI_QUEUE_TIMEOUT] == 4
    assert "EWE_FASTCGI_PATIENCE: fastcgi-patience is now called" in "".join(config.former_name_warnings())
    assert load(("fastcgi-queue-timeout", "5s"), file=os.devnull).former_name_warnings() == []


def test_variables() -> None:
    assert load(EWE_CGI_PATH="/x", EWE_INDEXES="off", EWE_HOST="")[CGI_PATH] == "/x"
    assert complaint(EWE_PROT="1") == 'unknown variable EWE_PROT; did you mean "EWE_PORT"?'
    assert complaint(EWE_PORT="abc") == 'EWE_PORT "abc": expected a port number, 0 to 65535'
    assert "one setting" in complaint(EWE_MODEL="fork", EWE_CONCURRENCY="thread")


def test_a_service_called_ewe_may_leave_its_variables_around() -> None:
    assert load(EWE_SERVICE_HOST="10.0.0.1", EWE_PORT_80_TCP="tcp://10.0.0.1:80").port == 4000


def test_another_file_may_be_named(here: Path) -> None:
    Path("ewe.toml").write_text("port = 1")
    Path("other.toml").write_text("port = 2")
    assert load(file="other.toml").port == 2
    assert load(EWE_CONFIG="other.toml").port == 2
    assert load(file="ewe.toml", EWE_CONFIG="other.toml").port == 1
    assert complaint(file="none.toml") == "cannot read none.toml: there is no such file"
    assert complaint(file=".") == "cannot read .: Is a directory"


def test_a_project_may_hold_the_settings() -> None:
    project = (
        '[project]\nname = "x"\nport = 9\n\n[tool.ewe]\nhost = "::1"\nport = 1\n\n[tool.other]\nidle = 1\n'
    )
    Path("pyproject.toml").write_text(project)
    config = load()
    assert (config.port, config.origin("port"), config.file) == (1, "pyproject.toml line 7", "pyproject.toml")
    assert config.idle is None
    Path("ewe.toml").write_text("")
    assert (load().port, load().file) == (4000, "ewe.toml")


@pytest.mark.parametrize(
    "text",
    ["[tool]\newe = { port = 1 }", "tool.ewe.port = 1", '["tool"."ewe"]\nport = 1', "[tool]\newe.port = 1"],
)
def test_a_project_may_write_the_table_in_each_way_of_toml(text: str) -> None:
    Path("pyproject.toml").write_text(text)
    assert (load().port, load().origin("port"), load().file) == (1, "pyproject.toml", "pyproject.toml")
    Path("pyproject.toml").write_text(text.replace("= 1", "= 'x'"))
    assert complaint() == 'pyproject.toml: port = "x": expected a port number, 0 to 65535'
    Path("pyproject.toml").write_text(f"{text}\n[project]\nname = x\n")
    line = text.count("\n") + 3
    assert complaint().startswith(f"pyproject.toml line {line}: Invalid value; a text needs quotation marks")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.other]\nname = 'ewe'",
        "tool = 'ewe'",
        "[ewe]\nport = 1",
        "[ewe\nport = 1",
        "[tool]\nx = 1\n[other]\newe = 1\n[",
    ],
)
def test_a_project_that_only_names_ewe_has_no_settings(text: str) -> None:
    Path("pyproject.toml").write_text(text)
    assert load().file is None
    assert complaint(file="pyproject.toml") == "pyproject.toml: no [tool.ewe] in it"


def test_a_value_that_contains_itself_is_shown() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match=re.escape("port = [[...]]: expected a port number")):
        Config(port=loop)


def test_a_project_that_is_not_ours_is_let_alone() -> None:
    Path("pyproject.toml").write_text("[project\nthis is no TOML")
    assert load().file is None
    assert complaint(file="pyproject.toml") == "pyproject.toml: no [tool.ewe] in it"


@pytest.mark.parametrize("text", ["[[tool.ewe]]\nport = 1", "[tool]\newe = 1\n'''\n[tool.ewe]\n'''"])
def test_a_project_with_an_odd_table(text: str) -> None:
    Path("pyproject.toml").write_text(text)
    assert complaint().startswith("pyproject.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nprot = 1", 'ewe.toml line 2: unknown key "prot"; did you mean "port"?'),
        ("cgi_path = 'x'", 'ewe.toml line 1: unknown key "cgi_path"; did you mean "cgi-path"?'),
        ("qqq = 1", 'ewe.toml line 1: unknown key "qqq"'),
        ("port = 1\n[idel]\nport = 2", 'ewe.toml line 2: unknown key "idel"; did you mean "idle"?'),
        ('port = "x"', 'ewe.toml line 1: port = "x": expected a port number, 0 to 65535'),
        ("\n'port' = true", "ewe.toml line 2: port = true: expected a port number, 0 to 65535"),
        ('port = "x"\nhost = """\nport = 2"""', 'ewe.toml line 1: port = "x": expected'),
        ('"a\\nb" = 1', 'ewe.toml: unknown key "a\\nb"'),
        ("port = 1979-05-27", 'ewe.toml line 1: port = "1979-05-27": expected a port number, 0 to 65535'),
        ('parking = "a\\nb"', 'ewe.toml line 1: parking = "a\\nb": expected never, idle or always'),
        ("workers = 0", "ewe.toml line 1: workers = 0: expected auto, default, a whole number from 1"),
        ("bind = [\n'a:1', # one\n3]", "ewe.toml line 1: bind = ['a:1', 3]: expected HOST:PORT"),
        (
            "model = 'a'\nconcurrency = 'b'",
            'ewe.toml line 2: "concurrency" and "model" are one setting: keep one',
        ),
        ("port = 1\nport 2", "ewe.toml line 2: Expected '=' after a key in a key/value pair"),
        (
            "\nidle = 30s # kept",
            "ewe.toml line 2: Expected newline or end of document after a statement; a text",
        ),
        ("parking = idle", 'ewe.toml line 1: Invalid value; a text needs quotation marks: parking = "idle"'),
        ("user = /a/b", 'ewe.toml line 1: Invalid value; a text needs quotation marks: user = "/a/b"'),
        (
            "workers = 8..64",
            "ewe.toml line 1: Expected newline or end of document after a statement; a text needs quotation",
        ),
        ("port = 1\nport = 2", "ewe.toml line 2: Cannot overwrite a value"),
        ("port = 1\nhost = [", "ewe.toml line 2: "),
        ("port = " + "9" * 5000, "ewe.toml line 1: "),
        (
            "port = 0x" + "f" * 5000,
            "ewe.toml line 1: port = (a number of thousands of digits): expected a port",
        ),
        (
            "[[site]]\n[[site.location]]\nprefix = '/'\nstatus = 0x" + "f" * 5000,
            "ewe.toml line 4: status = (a number of thousands of digits): expected a status from 200 to 599",
        ),
        (
            "site = [{ names = ['a'] }, { names = ['a'] }]",
            'ewe.toml: the site of ewe.toml has name "a", too: one could never answer',
        ),
        ("bind = " + "[" * 5000, "ewe.toml line 1: "),
    ],
)
def test_what_is_said_of_a_wrong_file(text: str, message: str) -> None:
    Path("ewe.toml").write_text(text)
    assert complaint().replace('["a:1", 3]', "['a:1', 3]").startswith(message)


def test_a_file_that_is_no_text() -> None:
    Path("ewe.toml").write_bytes(b"host = '\xff'")
    assert complaint() == "ewe.toml: not UTF-8 text"


def test_a_key_in_a_wrong_place_is_not_taken_for_the_line() -> None:
    Path("ewe.toml").write_text("# port = 1\n  port   = 99999 # port = 2\n")
    assert complaint().startswith("ewe.toml line 2: ")


@given(
    st.text()
    | st.lists(st.sampled_from(["port", "=", "1", "[", "]", "\n", '"', "'''", ".", "{", "}"])).map("".join)
)
def test_any_file_is_read_or_refused_in_one_line(text: str) -> None:
    Path("any.toml").write_text(text, encoding="utf-8", newline="")
    try:
        load(file="any.toml")
    except ConfigError as error:
        assert str(error).startswith("any.toml")
        assert str(error).isprintable()


# host, port and bind.


def test_a_stronger_port_sets_a_weaker_bind_aside() -> None:
    Path("ewe.toml").write_text('bind = "unix:/x"\nport = 1')
    assert load().bind == ("unix:/x",)
    config = load(("port", "2"))
    assert (config.bind, config.port, config.origin("bind")) == ((), 2, "default")
    assert load(("host", "::")).bind == ()
    assert load(("bind", ["fd://3"]), EWE_PORT="2").bind == ("fd://3",)


# Facts on which other code relies.


@pytest.mark.starts_processes
def test_the_documentation_is_up_to_date() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "ewe.config"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "settings.md").read_text() == printed.stdout, "make docs writes it anew"


def test_the_documentation_names_every_setting() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for setting in SETTINGS.values():
        assert f"`{setting.variable}`" in text
        assert setting.help in text


@pytest.mark.starts_processes
def test_reading_no_file_loads_nothing_that_a_forked_child_would_pay_for() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from ewe.config.settings import Config\n"
        "assert Config.load([('port', '1')], {'EWE_GRACE': '2s'}).port == 1\n"
        "heavy = {'argparse', 'dataclasses', 'difflib', 'json', 'threading', 'tomllib'}\n"
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["ewe.toml", "pyproject.toml"])
def test_root_takes_no_settings_that_others_can_write(here: Path, name: str) -> None:
    file = here / name
    file.write_text("[tool.ewe]\nport = 1\n" if name == "pyproject.toml" else "port = 1\n")
    file.chmod(0o644)
    here.chmod(0o755)
    assert load().port == 1
    for change, undo, told in (
        (lambda: file.chmod(0o666), lambda: file.chmod(0o644), "it is writable by others (mode 0666)"),
        (
            lambda: here.chmod(0o1777),
            lambda: here.chmod(0o755),
            "its directory is writable by others (mode 1777)",
        ),
        (lambda: os.chown(file, 4711, 0), lambda: os.chown(file, 0, 0), "it belongs to uid 4711"),
        (lambda: os.chown(here, 4711, 0), lambda: os.chown(here, 0, 0), "its directory belongs to uid 4711"),
    ):
        change()
        with pytest.raises(
            ConfigError, match=re.escape(f"{file}: {told}: to have root use it, say --config")
        ):
            load()
        assert load(file=str(file)).port == 1
        undo()
    if name == "pyproject.toml":
        file.write_text("[project]\n")
        file.chmod(0o666)
        assert load().file is None


def test_a_fifo_in_place_of_the_settings_holds_nobody(here: Path) -> None:
    os.mkfifo(here / "ewe.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load()
