"""Features of other people: the exercises of docs/write-a-feature.md, the setting `mount`, entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import web
from support.exercises import of_the_docs
from support.memory import MemoryStream
from support.server import ROOT, Start, run_command

from ewe.config.feature_table import FEATURES, feature, mounted, unmet_needs
from ewe.config.settings import Config
from ewe.features.declaration import PARTS_OF_MOUNTED, Feature, NeededDirectory, UnknownFeature, make
from ewe.features.mounted import FUNCTIONS
from ewe.http.messages import Request, Response
from ewe.server.preflight import notes_of_features
from ewe.sites import make_site
from ewe.sites.explain import explain
from ewe.streams.blocking import run


@pytest.mark.parametrize("model", ["fork", "thread", "pool", "asyncio"])
def test_the_exercises_of_the_docs(start: Start, tmp_path: Path, model: str) -> None:
    mounts: list[str] = []
    for name in ("Stopwatch", "Hello", "Words", "Countdown", "Door"):
        (tmp_path / f"my_{name.lower()}.py").write_text(of_the_docs("write-a-feature.md", name))
        path = "/" if name == "Stopwatch" else f"/{name.lower()}"
        mounts += ["--mount", f"{path}=my_{name.lower()}:{name}"]
    with (tmp_path / "my_hello.py").open("a") as module:
        module.write(of_the_docs("write-a-feature.md", "FEATURE", 'Feature("hello"'))
    mounts += ["--mount", "/declared=my_hello:FEATURE", "--greeting", "Ahoi"]
    server = start(model, *mounts)
    (server.root / "door").mkdir()
    (server.root / "door" / "index.html").write_text("inside\n")
    with web.Client(base_url=server.url) as client:
        refused = client.get("/door/index.html")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="ewe"')
        assert client.get("/%64oor/index.html", auth=("ada", "")).status_code == 401
        assert client.get("/door/index.html", auth=("ada", "engine")).text == "inside\n"
        assert client.get("/hello?name=Ada").text == "Hello, Ada!\n"
        assert client.get("/hello").text == "Hello, stranger!\n"
        assert client.get("/declared").text == "Ahoi, stranger!\n"
        for path in ("/hello", "/", "/cgi-bin/hello.sh"):  # the middleware holds all of them
            assert client.get(path).headers["server-timing"].startswith("total;dur=")
        assert client.head("/hello").headers["content-length"] == "17"
        refused = client.post("/hello")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert client.get("/hello/there").status_code == 404
        assert client.get("/hellos").status_code == 404
        assert client.post("/words", content=b"one  two\nthree " * 10_000).text == "30000\n"
        assert client.post("/words", content=iter([b"one tw", b"o three"])).text == "3\n"
        answer = client.get("/countdown")
        assert answer.text.split() == [str(number) for number in range(10, 0, -1)]
        assert answer.headers["transfer-encoding"] == "chunked"
        assert "welcome" in client.get("/").text  # ewe answers paths that no mounted feature answers
    assert server.stop() == 0, server.log()


def test_a_middleware_of_the_docs_sees_every_response(start: Start, tmp_path: Path) -> None:
    (tmp_path / "my_id.py").write_text(of_the_docs("write-a-feature.md", "RequestId"))
    server = start("asyncio", "--mount", "/=my_id:RequestId")
    with web.Client(base_url=server.url) as client:
        found = [
            client.get("/"),
            client.get("/none"),
            client.get("/.hidden"),
            client.get("/", headers={"X-Evil": "1"}),
        ]
    assert [each.status_code for each in found] == [200, 404, 404, 403]
    assert len({each.headers["x-request-id"] for each in found}) == 4


# The two rows of the table, then the server.
HEALTH = """
import sys
from ewe.config import feature_table as table
table.SETTINGS += ("my_health",)
table.FEATURES += (("my_health", ("health",)),)
from ewe.__main__ import main
sys.exit(main())
"""


@pytest.mark.starts_processes
def test_a_feature_of_ewe_itself(tmp_path: Path) -> None:
    (tmp_path / "my_health.py").write_text(of_the_docs("write-a-feature.md", "Health"))

    def ewe(*arguments: str) -> str:
        command = [sys.executable, "-c", HEALTH, *arguments]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert "--health PATH" in ewe("--help", "programs")
    assert "answer    ok   (health)" in ewe("--health", "/up", "--explain", "http://x/up")
    assert "(health)" not in ewe("--health", "/up", "--explain", "http://x/")


MIDDLEWARES = """
from ewe.features.base import Middleware
from ewe.http.messages import Response

class Outer(Middleware):
    __slots__ = ("said",)

    def __init__(self, config, path):
        self.said = type(self).__name__

    async def respond(self, request, io):
        response = await self.inner.respond(request, io)
        return response.with_fields((*response.fields, ("X-Through", self.said)))

class Inner(Outer):
    pass

class Silent(Middleware):
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return None

class Elsewhere:
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return Response(200, target="/index.html")
"""


def test_middlewares_stand_in_the_order_of_their_mounts(start: Start, tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(MIDDLEWARES)
    names = (
        "/=chain:Outer",
        "/=chain:Silent",
        "/cgi-bin=chain:Inner",
        "/=chain:Inner",
        "/away=chain:Elsewhere",
    )
    server = start("thread", *(part for name in names for part in ("--mount", name)))
    with web.Client(base_url=server.url) as client:
        assert client.get("/index.html").headers.get_list("x-through") == ["Inner", "Outer"]
        assert client.get("/cgi-bin/hello.sh").headers.get_list("x-through") == ["Inner", "Inner", "Outer"]
        away = client.get("/away")  # the outermost site follows the local redirect of the innermost feature
        assert "welcome" in away.text
        assert away.headers.get_list("x-through") == ["Inner", "Outer"]


def test_explain_names_a_middleware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chain_explained.py").write_text(MIDDLEWARES)
    monkeypatch.chdir(tmp_path)
    config = Config(documentroot=str(tmp_path), mount=["/a=chain_explained:Outer"])
    assert "  decides   Outer: may answer instead, or change the answer (mount)" in list(
        explain(make_site(config), "http://x/a/b", ("", 80))
    )
    assert not any("Outer" in line for line in explain(make_site(config), "http://x/b", ("", 80)))


@pytest.mark.parametrize(
    ("mount", "answer"),
    [
        ("/=through:Through", "the next server of /app"),
        ("/app=through:Through", "the next server of /app"),
        ("/app/a/b=through:Through", "404: "),  # only one reading of the path is inside of it
        ("/app/ab=through:Through", "the next server of /app"),
        ("/=through:Rules", "404: "),
        ("/app/a=through:Rules", "404: "),
        ("/app/ab=through:Rules", "the next server of /app"),
        ("/app/a=through:Answers", "404: "),
    ],
)
def test_an_encoded_slash_passes_a_middleware_without_rules_for_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, answer: str
) -> None:
    """`Rules` may refuse /app/a/b, and would not see it in /app/a%2Fb. `Answers` may answer without a proxy."""
    rules = "\n\nclass Rules(Middleware):\n    __init__ = Through.__init__\n"
    answers = "\n\nclass Answers(Through):\n    def proxy_at(self, path):\n        return None\n"
    (tmp_path / "through.py").write_text(of_the_docs("write-a-feature.md", "Through") + rules + answers)
    monkeypatch.syspath_prepend(tmp_path)
    config = Config(documentroot=str(tmp_path), mount=[mount], proxy=["/app=http://127.0.0.1:1"])
    lines = list(explain(make_site(config), "http://x/app/a%2Fb", ("", 80)))
    assert lines[-1].startswith(f"  answer    {answer}"), lines


EXPLAINS = """
from ewe.http.status import HTTPError

class Fails:
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return None

    def explain(self, request, io):
        yield "  a line"
        return {}["wool"]

class Exits(Fails):
    def explain(self, request, io):
        raise SystemExit(0)
        yield

class Numbers(Fails):
    def explain(self, request, io):
        yield 5
        return True

class Nothing(Fails):
    def explain(self, request, io):
        return None

class Refuses(Fails):
    def explain(self, request, io):
        raise HTTPError(403, "it may not be seen")
        yield
"""


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Fails", "its explain() fails: KeyError: 'wool', in {} line 13"),
        ("Exits", "its explain() fails: SystemExit: 0, in {} line 17"),
        ("Numbers", "its explain() yields int, and not text"),
        ("Nothing", "its explain() fails: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_fault_of_explain_is_one_line(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "explains.py").write_text(EXPLAINS)
    (tmp_path / "htdocs").mkdir()
    done = run_command(tmp_path, "--mount", f"/a=explains:{name}", "--explain", "http://x/a")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    expected = f"ewe: feature 'explains:{name}': {said.replace('{}', str(tmp_path / 'explains.py'))}"
    assert done.stderr.startswith(expected) and done.stderr.endswith(" (mount)\n"), done.stderr


def test_explain_shows_the_refusal_of_a_mounted_feature(here: Path) -> None:
    (here / "refuses.py").write_text(EXPLAINS)
    config = Config(documentroot=str(here), mount=["/a=refuses:Refuses"])
    assert (
        list(explain(make_site(config), "http://x/a", ("", 80)))[-1] == "  answer    403: it may not be seen"
    )


DECLARED = """
from ewe.features.base import ProtectedSource
from ewe.features.declaration import Feature, NeededDirectory

class Hello:
    def __init__(self, config, path):
        pass

    async def respond(self, request, io):
        return None

def protected(plan, root):
    yield ProtectedSource(extension=".secret")
    yield ProtectedSource(directory=root + "/private")

def needs(config):
    if config.development:
        yield "the package\\n hello is missing"

def notes(config):
    yield "few are greeted"

def fails(*arguments):
    return [{}["wool"]]

def executables(plan, root):
    yield ProtectedSource(executables=root)

FEATURE = Feature("hello", make=Hello, protected=protected, needs=needs, notes=notes)
FAILS = Feature("hello", make=Hello, PART=fails)
EXECUTABLES = Feature("hello", make=Hello, protected=executables)
"""
MOUNTED = 'documentroot = "."\ncgi-path = "none"\n'


def settings_with(directory: Path, tables: str, fails: str = "needs") -> Config:
    """Write the module `declared`, and return a configuration with these tables. fails: the part of FAILS."""
    (directory / "declared.py").write_text(DECLARED.replace("PART", fails))
    (directory / "ewe.toml").write_text(MOUNTED + tables)
    return Config.load(environ={}, file=str(directory / "ewe.toml"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the current directory, in which each test has its own module `declared`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "declared", raising=False)
    return tmp_path


TABLES = ["", "[[site]]\n"]
MOUNT = 'mount = "/hello=declared:FEATURE"\n'


@pytest.mark.parametrize("table", TABLES)
def test_a_mounted_declaration_protects_its_sources(here: Path, table: str) -> None:
    (here / "private").mkdir()
    for name in ("a.secret", "private/b.txt", "c.txt"):
        (here / name).touch()
    site = make_site(settings_with(here, table + MOUNT))
    found = [
        list(explain(site, f"http://x/{name}", ("", 80)))[-1]
        for name in ("a.secret", "private/b.txt", "c.txt")
    ]
    assert ["the file " in line for line in found] == [False, False, True], found
    [*_, line] = explain(site, "http://x/private/", ("", 80))
    assert line == f"  answer    403: {here}/private is a protected directory: nothing in it is sent"


@pytest.mark.parametrize("table", TABLES)
def test_a_mounted_declaration_has_needs_and_notes(here: Path, table: str) -> None:
    config = settings_with(here, table + MOUNT)
    make_site(config)
    assert list(unmet_needs(config)) == []
    assert [line for line in notes_of_features(config) if "(mount)" in line] == [
        "feature 'declared:FEATURE': few are greeted (mount)"
    ]
    line = f"{here}/ewe.toml line {3 + bool(table)}"
    assert list(unmet_needs(settings_with(here, f"{table}{MOUNT}development = true\n"))) == [
        f"{line}: feature 'declared:FEATURE': the package hello is missing (mount)"
    ]


@pytest.mark.parametrize("part", [*FUNCTIONS, "preload"])
def test_a_mounted_declaration_that_fails_is_one_line(here: Path, part: str) -> None:
    config = settings_with(here, 'mount = "/=declared:FAILS"\n', part)
    [declared] = mounted(config)
    with pytest.raises(UnknownFeature) as caught:
        getattr(declared, part)(*(() if part == "preload" else (config, "")))
    name = "late= or preload" if part == "preload" else part
    said = str(caught.value)
    line = f"{here}/ewe.toml line 3: "
    assert said.startswith(f"{line}feature 'declared:FAILS': its {name}= fails: KeyError: 'wool', in ")
    assert said.endswith(" (mount)") and "\n" not in said


@pytest.mark.parametrize("part", [part for part, expected in FUNCTIONS.items() if expected])
@pytest.mark.parametrize("yielded", [None, [5], [None]])
def test_a_mounted_declaration_that_yields_something_else_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, part: str, yielded: object
) -> None:
    config = settings_with(here, MOUNT)
    parts: dict[str, Any] = {part: lambda *arguments: yielded}
    declared = Feature("x", make=lambda config, path: pytest.fail("no handler is made"), **parts)
    monkeypatch.setattr("declared.FEATURE", declared)
    [found] = mounted(config)
    with pytest.raises(UnknownFeature, match=rf"'declared:FEATURE': its {part}= must yield .* \(mount\)$"):
        getattr(found, part)(config, "")


@pytest.mark.parametrize(
    ("part", "yielded", "found"),
    [
        ("fixed", "cgi-path", "cgi_path"),
        ("fixed", "cgi_path", "cgi_path"),
        ("fixed", "threads", "poolthreads"),
        ("directories", NeededDirectory("x", "no x", "cgi_path"), NeededDirectory("x", "no x", "cgi-path")),
    ],
)
def test_a_mounted_declaration_may_name_a_setting_by_each_of_its_names(
    here: Path, monkeypatch: pytest.MonkeyPatch, part: str, yielded: object, found: object
) -> None:
    parts: dict[str, Any] = {part: lambda config: [yielded]}
    config = settings_with(here, MOUNT)
    monkeypatch.setattr(
        "declared.FEATURE", Feature("x", make=lambda config, path: pytest.fail("no handler is made"), **parts)
    )
    [declared] = mounted(config)
    assert getattr(declared, part)(config) == [found]


@pytest.mark.starts_processes
@pytest.mark.parametrize("option", ["--check-config", "--no-indexes"])
@pytest.mark.parametrize(
    ("part", "yielded", "said"),
    [
        ("fixed", '"cgi-pat"', 'names an unknown setting "cgi-pat"; did you mean "cgi-path"?'),
        ("directories", 'NeededDirectory("x", "", "wool")', 'names an unknown setting "wool"'),
    ],
)
def test_a_start_with_a_declaration_of_an_unknown_setting_says_one_line(
    here: Path, option: str, part: str, yielded: str, said: str
) -> None:
    settings_with(here, "", part)
    module = here / "declared.py"
    module.write_text(module.read_text().replace('{}["wool"]', yielded))
    (here / "ewe.toml").write_text('documentroot = "."\nmount = "/=declared:FAILS"\nport = 0\n')
    done = run_command(here, option)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"feature 'declared:FAILS': its {part}= {said}" in done.stderr


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "part",
    ["needs", "programs", "directories", "start_warnings", "protected", "provide", "mounts", "measures"],
)
def test_a_start_with_a_declaration_that_fails_says_one_line(here: Path, part: str) -> None:
    settings_with(here, "", part)
    (here / "ewe.toml").write_text(
        'documentroot = "."\nmount = "/=declared:FAILS"\nport = 0\nstatus = "/status"\n'
    )
    done = run_command(here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"feature 'declared:FAILS': its {part}= fails: KeyError: 'wool', in " in done.stderr


def test_a_fault_of_a_feature_names_the_feature(here: Path) -> None:
    """tomllib and json raise a ValueError that names neither the file nor its reader."""
    (here / "robots.py").write_text(
        "import tomllib\nclass Robots:\n"
        "    def __init__(self, config, path): tomllib.loads('disallow = [')\n"
        "    async def respond(self, request, io): ...\n"
    )
    (here / "ewe.toml").write_text('mount = "/robots.txt=robots:Robots"\n')
    with pytest.raises(UnknownFeature, match=r"line 1: feature 'robots:Robots': Invalid value .*\(mount\)"):
        make_site(Config.load(environ={}, file=str(here / "ewe.toml")))


def test_the_module_of_a_registered_feature_is_protected(here: Path) -> None:
    """A package that is installed from its source directory may be in the document root."""
    about = here / "hello-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: hello\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ewe.features]\ngreeting = declared:FEATURE\n")
    site = make_site(settings_with(here, MOUNT.replace("declared:FEATURE", "greeting")))
    assert "the file " not in list(explain(site, "http://x/declared.py", ("", 80)))[-1]


def test_only_cgi_protects_executables(here: Path) -> None:
    """ewe protects those of one directory: a second one would take the place of CGI's."""
    config = settings_with(here, 'mount = "/=declared:EXECUTABLES"\n')
    with pytest.raises(UnknownFeature, match="must yield a ProtectedSource without executables"):
        make_site(config)


@pytest.mark.parametrize("part", [
    "wrap", "files", "middleware", "server_middleware", "keys", "gateway", "answer", "process", "answered_by",
    "declares",
])  # fmt: skip
def test_a_mounted_declaration_with_another_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """It would be ignored: ewe asks only the features of its table for such parts."""
    parts: dict[str, Any] = {part: ("wool",)}
    declared = Feature("x", make=lambda config, path: pytest.fail("it is refused before"), **parts)
    monkeypatch.setattr("ewe.features.mounted.FEATURE", declared)
    with pytest.raises(UnknownFeature) as caught:
        make("ewe.features.mounted:FEATURE", Config(), "/")
    possible = ", ".join(f"{each}=" for each in PARTS_OF_MOUNTED)
    assert f" has {part}=; a mounted feature can have only {possible} (mount)" in str(caught.value)


def test_a_mounted_feature_may_have_every_other_part() -> None:
    """Those that are functions get a Part, so that the server never meets an exception of another package."""
    refused = {
        *("name", "wrap", "files", "middleware", "server_middleware", "keys", "gateway", "answer", "process"),
        *("answered_by", "declares"),
    }
    assert {*Feature._fields} - refused == {*PARTS_OF_MOUNTED}
    others = {"make", "settings", "shares_mounts", "imports_later", "late", "preload"}
    assert {*PARTS_OF_MOUNTED} - others == {*FUNCTIONS}


def test_a_make_that_returns_no_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_of_nothing.py").write_text(
        "from ewe.features.declaration import Feature\n\nFEATURE = Feature('x', make=lambda config, path: 5)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownFeature, match="an object without respond"):
        make("made_of_nothing:FEATURE", Config(), "/")


def test_a_body_of_text_is_refused() -> None:
    with pytest.raises(TypeError, match="is str; it must be bytes"):
        Response(200, (), "text")  # type: ignore[arg-type]


def test_a_feature_of_another_package(start: Start, tmp_path: Path) -> None:
    package = tmp_path / "packages"
    about = package / "hello-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "hello.py").write_text(of_the_docs("write-a-feature.md", "Hello"))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ewe.features]\nhello = hello:Hello\n")
    server = start("thread", "--mount", "/=hello", env={"PYTHONPATH": f"{ROOT}:{package}"})
    assert web.get(server.url).text == "Hello, stranger!\n"
    assert "welcome" in web.get(server.url + "index.html").text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonsense", "is unknown"),
        ("no_such_module:Hello", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("ewe.site:Nothing", "cannot be loaded"),
        ("ewe.site:Site.nothing", "cannot be loaded"),
        ("ewe.http.limits:RequestLimits", "is not a class with a method respond()"),
        ("ewe.features.cgi.programs:CGI", "cannot be made from (config, path)"),
        ("ewe.features.cgi:FEATURE", "has no make=, which makes the handler for a path"),
        ("functools:partial", "is not a class with a method respond()"),
    ],
)
def test_a_feature_that_is_none(name: str, reason: str) -> None:
    with pytest.raises(UnknownFeature) as caught:
        make(name, Config(), "/")
    assert reason in str(caught.value) and str(caught.value).endswith("(mount)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mount", ["hello", "/hello", "hello=a:B", "/hello=", "/hello=a:", "/a b=c:D"])
def test_a_mount_that_is_none(mount: str) -> None:
    with pytest.raises(ValueError, match="expected a path, = and the name of a feature"):
        Config(mount=[mount])


def test_a_site_asks_its_features_in_the_order_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "cgi-bin").mkdir()
    config = Config(
        documentroot=str(tmp_path), cgi_path=str(tmp_path / "cgi-bin"), userdir="public_html",
        fastcgi=[".php=unix:/nowhere", "/app=127.0.0.1:9000"], xswitch="unix:/nowhere", xswitch_status=True,
        wsgi=["/wiki=wsgiref.simple_server:demo_app"],
        asgi=["/blog=json:loads"],
        database=["log=access.db"], proxy=["/next=http://127.0.0.1:1"], markdown=True,
    )  # fmt: skip
    plan = make_site(config).plan
    assert plan is not None
    names = [feature(module).name for module, _ in FEATURES]
    asked = [name for name, mounts in plan.mounts_of.items() if mounts]
    assert asked == [name for name in names if name in asked]
    without = set(names) - set(asked)
    assert without == {"trace", "status", "mount", "databases", "content-cache", "homes", "far-scripts"}


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_slash_at_the_end_of_a_mount_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    """An application mounted at /wiki/ answers for the same paths as one mounted at /wiki."""
    (tmp_path / "slashed.py").write_text(
        "from ewe.http.messages import Response\n\n\nclass Hello:\n    def __init__(self, config, path): ...\n"
        "    async def respond(self, request, io):\n        return Response(200, (), b'hello')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = Config(
        documentroot=str(tmp_path), database=["log=access.db"], browser=f"/rows{slash}",
        mount=[f"/hello{slash}=slashed:Hello"], wsgi=[f"/wiki{slash}=wsgiref.simple_server:demo_app"],
    )  # fmt: skip
    site = make_site(config)
    paths = ("/hello", "/hello/there", "/hellos", "/wiki", "/wiki/", "/wikis", "/rows", "/rowss")
    found = [
        run(site.respond(Request("GET", path, (1, 1), path=path), MemoryStream([]))).status for path in paths
    ]
    assert found == [200, 200, 404, 200, 200, 404, 308, 404]


def test_an_application_at_the_root_leaves_the_others_their_paths(tmp_path: Path) -> None:
    demo = "wsgiref.simple_server:demo_app"
    config = Config(
        documentroot=str(tmp_path), wsgi=[f"/={demo}", f"/a/long/one={demo}"], asgi=["/api=json:loads"]
    )
    plan = make_site(config).plan
    assert plan is not None
    paths = [mount.path for mount in plan.mounts if type(mount.handler).__name__ in ("WSGI", "ASGI")]
    assert paths == ["/a/long/one", "/api", "/"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Broken(\n", "cannot be loaded: SyntaxError: "),
        ("1 / 0\n", "cannot be loaded: ZeroDivisionError: division by zero, in {} line 1"),
        ("TABLE = {}\nTABLE['key']\n", "cannot be loaded: KeyError: 'key', in {} line 2"),
        ("import sys\nsys.exit('done')\n", "cannot be loaded: ImportError: SystemExit: done, in {} line 2"),
        (
            "class Broken:\n    def __init__(self, *_): self.a = {}['b']\n    async def respond(self): ...\n",
            "cannot be made from (config, path): KeyError: 'b', in {} line 2",
        ),
        (
            "class Broken:\n    def __init__(self, *_): exit(3)\n    async def respond(self): ...\n",
            "cannot be made from (config, path): SystemExit: 3",
        ),
    ],
)
def test_a_feature_whose_source_has_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    (tmp_path / "faulty.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "faulty", raising=False)
    with pytest.raises(UnknownFeature) as caught:
        make("faulty:Broken", Config(), "/")
    message = str(caught.value)
    assert said.replace("{}", str(tmp_path / "faulty.py")) in message and message.endswith("(mount)")
    assert "\n" not in message
