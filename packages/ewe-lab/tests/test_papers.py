"""Papers as files: the example of the documentation runs, and a mistake in a file is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.server import ROOT

from ewe.config.messages import ConfigError
from ewe_lab.bench.experiment import Chart, Load
from ewe_lab.experiments.catalog import CATALOG, CHECKS
from ewe_lab.experiments.papers import (
    PACKAGE_DIRECTORY,
    Code,
    Paper,
    check_code,
    paper,
    paper_of_experiment,
    papers,
)
from ewe_lab.experiments.plain import Measurement, loads_of

PAGE = ROOT / "packages/ewe-lab/docs/papers.md"
EXAMPLE = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The example of the page, as a lecturer would save it."""
    path = tmp_path / "papers" / "nine.toml"
    path.parent.mkdir()
    path.write_text(EXAMPLE, encoding="utf-8")
    return path


def lab(file: Path, *words: str) -> str:
    """Run `ewe-lab` with the paper; return its output."""
    command = [sys.executable, "-m", "ewe_lab", *words]
    environment = os.environ | {"EWE_LAB_PAPERS": str(file.parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=file.parent.parent, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The example


def test_the_example_says_what_it_measures(file: Path) -> None:
    table, figure = paper(file).experiments
    assert (table.id, table.document, table.minutes) == ("N-T1", "Nine servers", 2)
    assert table.machine == {"server": "Core 2 Duo, 2.4 GHz, 4 GB", "network": "1 Gbit/s"}
    assert table.charts == tuple(
        Chart("bars", f"Replies a second, over the pool's, {column}", columns=(column,))
        for column in ("keep-alive", "a connection each")
    )
    measurement: Measurement = table.run.given["measurement"]  # type: ignore[union-attr]
    cells = [(each.server, each.column, each.paper, each.paper_server) for each in measurement.cells()]
    assert cells == [
        ("small-pool", "keep-alive", 2100, "5 threads"),
        ("asyncio", "keep-alive", 3900, "events"),
        ("small-pool", "a connection each", None, ""),
        ("asyncio", "a connection each", 1500, "events"),
    ]
    sweep: Measurement = figure.run.given["measurement"]  # type: ignore[union-attr]
    assert [(each.x, each.paper) for each in sweep.cells()] == [(1, 900), (10, 3800), (100, 3700)]


class Quick:
    """A bench, as far as a load needs one."""

    def quick_or_full(self, quick: float, full: float) -> float:
        return quick


def test_a_column_changes_the_load_of_its_experiment(file: Path) -> None:
    table, figure = paper(file).experiments
    (kept, _), (closed, _) = table.run.given["measurement"].columns  # type: ignore[union-attr]
    expected = Load("closed", users=8, seconds=0.5, warm_up=0.2)
    assert [*loads_of(Quick(), kept)] == [expected]  # type: ignore[arg-type]
    assert [each.keep_alive for each in loads_of(Quick(), closed)] == [False]  # type: ignore[arg-type]
    ((column, _),) = figure.run.given["measurement"].columns  # type: ignore[union-attr]
    swept = [*loads_of(Quick(), column)]  # type: ignore[arg-type]
    assert [(each.users, each.path, each.length) for each in swept] == [
        (users, "/4096.html", 4096) for users in (1, 10, 100)
    ]


@pytest.mark.starts_processes
def test_the_command_knows_a_paper_of_others(file: Path) -> None:
    listed = lab(file, "list")
    assert listed.index("APPS") < listed.index("Nine servers:\n  N-F1")
    assert "document: Nine servers, table 1" in re.sub(" +", " ", lab(file, "show", "n-t1"))


@pytest.mark.starts_processes
@pytest.mark.needs("locust")
def test_the_example_runs(file: Path) -> None:
    lab(file, "run", "N-T1", "--quick", "--out", "out")
    (table,) = json.loads((file.parent.parent / "out/results.json").read_text())["tables"]
    assert len(table["cells"]) == 4 and all(cell["samples"] for cell in table["cells"])
    page = (file.parent.parent / "out/report.html").read_text()
    assert "5 threads" in page and "An event loop answers more requests" in page


# Mistakes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("claim = ", "clam = ", "N-T1: unknown key 'clam'; did you mean \"claim\"?"),
        ('varies = "server; keep-alive or none"\n', "", "N-T1: varies is missing"),
        ("minutes = 2", 'minutes = "two"', "N-T1: minutes: 'two' is not a number"),
        ('title = "A small', 'quick = 1\ntitle = "A small', "N-T1: quick: 1 is not true or false"),
        ('["small-pool", "asyncio"]', '["asynco"]', "N-T1: there is no server 'asynco'; did you mean \"asyncio\"?"),
        ("users = 8", 'users = [8, "9"]', "N-T1: load: users: '9' is not a whole number"),
        ("[1, 10, 100]", '[1, "10"]', "N-F1: columns: users: '10' is not a whole number"),
        ('["small-pool", "asyncio"]', "[5]", "N-T1: servers: 5 is not a text"),
        ("users = 8", "user = 8", "N-T1: load: unknown key 'user'; did you mean \"users\"?"),
        ("asyncio = [\"events\", 1500]", "nginx = [\"events\", 1500]", "printed.nginx: no such server is measured"),
        ('["events", 1500]', '["events", "many"]', "['many'] are not numbers"),
        ('["events", 1500]', '["events", []]', "printed.asyncio: 0 figures for 1 numbers of users"),
        ("[900, 3800, 3700]", "[900, 3800]", "N-F1: column '', printed.asyncio: 2 figures for 3 numbers of users"),
        ('{ kind = "lines"', '{ kinds = "lines"', "N-F1: charts: unknown key 'kinds'"),
        ("most = 5", "mots = 5", "tested.small-pool: unknown key 'mots'; did you mean \"most\"?"),
        ("[machine]", "[machines]", "the file: unknown key 'machines'; did you mean \"machine\"?"),
        ('errata = ["The', 'errata = ["@hits", "The', "N-T1: there is no remark 'hits'"),
        ('source = "table 1"', 'source = "table 1"\nneeds = "it"\nrun = "e_t1"', "one of columns, run and needs"),
        ('source = "table 1"', 'like = "tabel"\nsource = "table 1"', "N-T1: there is no table like.tabel"),
        ('document = "Nine servers"', 'document = "Nine', "Illegal character"),
        ('kind = "bars"', 'kind = "bar"', "charts: kind: there is no kind of chart 'bar'; did you mean \"bars\"?"),
        ('kind = "lines"', 'kind = "lines", value = "rat"', "N-F1: charts: value: there is no figure 'rat'"),
        ('columns = ["{column}"]', 'columns = ["keep"]', "N-T1: charts: columns: there is no column 'keep'"),
        ('columns = ["{column}"]', "columns = [5]", "N-T1: charts: columns: 5 is not a text"),
        ('{ name = "keep-alive"', "{ name = 5", "N-T1: columns: name: 5 is not a text"),
        ('name = "keep-alive"', 'name = "a connection each"', "N-T1: two columns 'a connection each' measure"),
        ('"small-pool", "asyncio"]', '"asyncio", "asyncio"]', "N-T1: column 'keep-alive', printed.small-pool"),
        ("columns = [{ users", 'columns = [{ value = "rat", users', "columns: value: there is no figure 'rat'"),
        ("[1, 10, 100]", "[0, 10, 100]", "N-F1: column '' has no users"),
        ("users = 8, ", "", "N-T1: column 'keep-alive' has no users"),
        ("users = 8, ", "users = [0, 8], ", "N-T1: column 'keep-alive' has no users"),
        ("users = 8, ", "users = [8, 0], ", "N-T1: column 'keep-alive' has no users"),
        ("users = 8", "users = -8", "N-T1: load: users: -8 is not a number from 0 on"),
        ('shape = "closed", users', 'shape = "close", users', "N-T1: load: there is no shape 'close'"),
        ('shape = "closed", users', 'shape = "arrivals", users', "load: a load of shape arrivals needs a rate"),
        ("seconds = [0.5, 5], w", "seconds = [0.5, 0], w", "seconds and timeout have to be more than 0"),
        ("minutes = 2", "minutes = inf", "N-T1: minutes: inf is not a number from 0 on"),
        ("2100]", "-2100]", "printed.small-pool: -2100 is not a number from 0 on"),
        ('reference = "small-pool"', 'reference = "pool"', "N-T1: reference: there is no measured or"),
        ('"5 threads"\n', '"five"\n', "paper_reference: there is no measured"),
        ('errata = ["The table calls the unit “hits”."]', "errata = [5]", "N-T1: errata: 5 is not a text"),
        ('"--poolthreads", "5"', '"--poolthreads", 5', "tested.small-pool: options: 5 is not a text"),
        ("errata =", 'link = "9mbit"\nerrata =', "N-T1: link: there is no link of '9mbit'; there are 10mbit"),
        ("errata =", "notes = [5]\nerrata =", "N-T1: notes: 5 is not a text"),
        ('server = "Core', "cores = 2\nserver = \"Core", "machine: cores: 2 is not a text"),
        ("[experiment.N-F1]", '[experiment."N/F1"]', "experiment.N/F1: write an id with letters, digits"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(file: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    file.write_text(EXAMPLE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        paper(file)
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment = 5", "experiment: 5 is not a table"),
        ("[experiment]\nN-T1 = 5", "experiment.N-T1: 5 is not a table"),
        ("order = 'first'", "order: 'first' is not a whole number"),
        ("document = 5", "document: 5 is not a text"),
        ("tested = ['nginx']", "tested: ['nginx'] is not a table"),
        ("[tested]\nnginx = 5", "tested.nginx: 5 is not a table"),
        ("contenders = 5", "contenders: 5 is not a table"),
        ("[like]\nmany = 5", "like.many: 5 is not a table"),
        ("untested = 5", "untested: 5 is not a list"),
        ("[experiment.N]\nlike = ['x']", "N: like: ['x'] is not a text"),
        ("[experiment.N]\nmachine = 5", "N: machine: 5 is not a table"),
        ("[experiment.N]\ncharts = 5", "N: charts: 5 is not a list"),
        ("[experiment.N]\nby_column = { a = ['x'] }", "N: by_column.a: ['x'] is not a list of two servers"),
        ("[experiment.N]\nrun = 5", "N: run: 5 is not a text"),
        ("[experiment.N]\nload = 5", "N: load: 5 is not a table"),
        ("[experiment.N]\ncolumns = [5]", "N: columns: 5 is not a table"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)):
        paper(file)


@pytest.mark.parametrize(
    ("key", "name", "given"),
    [
        ("run", "no.such", ""),
        ("run", "os.path:nothing", ""),
        ("run", "os.path:sep", ""),
        ("run", "ewe_lab.experiments.e_c4:run", "other = 1"),
        ("check", "nothing", ""),
        ("check", "os.path:expandvars2", ""),
        ("check", "ewe_lab.experiments.plain:run", ""),
        ("check", ".:x", ""),
        ("check", ":x", ""),
    ],
)
def test_a_function_that_cannot_be_called_is_named_before_anything_is_measured(
    file: Path, key: str, name: str, given: str
) -> None:
    """The function of a check is needed when all cells have been measured, perhaps after hours."""
    run = 'run = "e_t1"\n' if key == "check" else ""
    facts = "".join(f'{fact} = "x"\n' for fact in ("source", "title", "claim", "varies", "measures"))
    text = f'[experiment.N]\n{facts}{run}{key} = "{name}"\ngiven = {{ {given} }}\n'
    file.write_text(text, encoding="utf-8")
    found = paper(file)
    with pytest.raises(ConfigError, match=f"^N: {key}: [^\n]*$"):
        check_code(found.experiments, found.checks)


@pytest.mark.parametrize("error", ["TypeError", "ValueError", "AttributeError"])
def test_a_mistake_that_ends_the_import_keeps_its_traceback(
    file: Path, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The author needs the file and the line of the mistake."""
    name = f"own_{error.lower()}"
    module = file.parent / f"{name}.py"
    module.write_text(f'raise {error}("a mistake")\n', encoding="utf-8")
    monkeypatch.syspath_prepend(str(file.parent))
    with pytest.raises(Exception, match="a mistake") as caught:
        Code(name, "run", context="N: run").find()
    assert caught.type.__name__ == error
    assert str(caught.traceback[-1].path) == str(module)


MISTAKES = """
import os
from ewe_lab.bench.results import Cell, Sample

def measure(lab):
    yield Cell("a", value="extra.x", samples=[Sample("x", 1.0, extra={"x": 7.0})])

def fail(lab):
    yield from measure(lab)
    raise KeyError("a mistake")

def fail_without_file(lab):
    os.mkdir("out/results.json")
    yield from fail(lab)

def check(table):
    raise ZeroDivisionError("a mistake")
"""


def run_with_mistakes(file: Path, functions: str) -> subprocess.CompletedProcess[str]:
    """Run an experiment with functions of MISTAKES; its results are in the directory `out` beside the file."""
    facts = "".join(f'{fact} = "x"\n' for fact in ("source", "title", "claim", "varies", "measures"))
    file.write_text(f"[experiment.N]\nloads = false\n{facts}{functions}\n", encoding="utf-8")
    (file.parent / "my").mkdir()
    (file.parent / "my/own.py").write_text(MISTAKES, encoding="utf-8")
    paths = os.pathsep.join([str(file.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "ewe_lab", "run", "N", "--quick", "--out", "out"],
        capture_output=True, text=True, cwd=file.parent, timeout=120,
        env=os.environ | {"EWE_LAB_PAPERS": str(file.parent), "PYTHONPATH": paths},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("functions", "is_interrupted"),
    [('run = "my.own:fail"', True), ('run = "my.own:measure"\ncheck = "my.own:check"', False)],
)
@pytest.mark.starts_processes
def test_a_mistake_in_a_function_of_a_paper_loses_no_figure(
    file: Path, functions: str, is_interrupted: bool
) -> None:
    """An author sees the traceback, and the figures that were measured until then are in the file.

    A table that lacks rows says so: it gives no verdict.
    """
    done = run_with_mistakes(file, functions)
    assert done.returncode == 1 and "a mistake" in done.stderr
    (table,) = json.loads((file.parent / "out/results.json").read_text())["tables"]
    assert table["interrupted"] == is_interrupted
    assert [cell["samples"][0]["extra"] for cell in table["cells"]] == [{"x": 7.0}]


@pytest.mark.starts_processes
def test_a_file_that_cannot_be_written_hides_no_mistake(file: Path) -> None:
    done = run_with_mistakes(file, 'run = "my.own:fail_without_file"')
    *_, error, note = done.stderr.splitlines()
    assert error == "KeyError: 'a mistake'"
    assert note.startswith("results.json was not written: ")


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("nowhere", "EWE_LAB_PAPERS: nowhere is not a directory"),
        ("twice", "two papers have an experiment E-T1"),
    ],
)
def test_a_wrong_directory_is_named(
    file: Path, directory: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent.parent)
    monkeypatch.setenv("EWE_LAB_PAPERS", directory)
    Path("twice").mkdir()
    Path("twice/again.toml").write_text(EXAMPLE.replace("N-T1", "E-T1"), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^{message}$"):
        papers()


@pytest.mark.parametrize(
    ("id", "file_name"), [("SPEED", "ours.toml"), ("R-T1", "rdbms.toml"), ("T-ST1", "thesis.toml")]
)
def test_a_table_is_read_from_its_paper_alone(
    id: str, file_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def noted(file: Path) -> Paper:
        parsed.append(file.name)
        return paper(file)

    monkeypatch.setattr("ewe_lab.experiments.papers.paper", noted)
    found = paper_of_experiment(id)
    assert parsed == [file_name] and found is paper(PACKAGE_DIRECTORY / file_name)


def test_a_table_of_two_papers_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EWE_LAB_PAPERS", str(file.parent))
    assert paper_of_experiment("N-T1").document == "Nine servers"
    with pytest.raises(KeyError, match="N-T9"):
        paper_of_experiment("N-T9")
    file.with_name("again.toml").write_text(EXAMPLE, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^two papers have an experiment N-T1$"):
        paper_of_experiment("N-T1")


@pytest.mark.starts_processes
def test_a_module_of_an_experiment_reads_no_other_paper() -> None:
    """`ewe-lab speed` needs the targets of ours.toml alone."""
    code = (
        "import tomllib; read = []; load = tomllib.load\n"
        "tomllib.load = lambda source: read.append(source.name) or load(source)\n"
        "import ewe_lab.experiments.r_t1\nprint(*read, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=170)
    assert [Path(name).name for name in done.stdout.splitlines()] == ["rdbms.toml"], done.stderr


def test_without_its_link_nothing_is_measured(file: Path) -> None:
    file.write_text(
        EXAMPLE.replace("[experiment.N-F1]", '[experiment.N-F1]\nlink = "10mbit"'), encoding="utf-8"
    )
    lab = SimpleNamespace(
        site=lambda sizes: file.parent, notes=[], behind_link=lambda speed: nullcontext("no namespaces here")
    )
    cells = list(paper(file).experiments[1].run(lab))
    assert [(cell.paper, cell.failure) for cell in cells] == [
        (figure, "no namespaces here") for figure in (900, 3800, 3700)
    ]


def test_what_waits_shows_its_printed_figures(file: Path) -> None:
    file.write_text(
        EXAMPLE.replace("[experiment.N-F1]", '[experiment.N-F1]\nneeds = "a switch"'), encoding="utf-8"
    )
    found = paper(file)
    assert [each.needs for each in found.experiments] == ["", "a switch"] and found.experiments[1].run is None
    assert [cell.paper for cell in found.waiting["N-F1"]] == [900, 3800, 3700]


# The papers of the lab


def test_every_function_that_a_paper_names_is_there() -> None:
    """A catalogue imports none of them."""
    for each in CATALOG.values():
        assert callable(each.run.find()), each.id  # type: ignore[union-attr]
    check_code(CATALOG.values(), CHECKS)


@pytest.mark.starts_processes
def test_a_table_of_defaults_loads_few_modules(tmp_path: Path) -> None:
    """`ewe-lab run E-T1` needs neither the other experiments nor an event loop nor what loads servers."""
    code = (
        "import sys; from ewe_lab import cli; cli.main(sys.argv[1:]);"
        " print(*[name for name in sys.modules if name.split('.')[0] in ('ewe', 'ewe_lab', 'asyncio', 'locust')])"
    )
    for words, most in ((["list"], 30), (["run", "E-T1", "--quick", "--out", str(tmp_path)], 85)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=170
        )
        names = done.stdout.splitlines()[-1].split()
        assert len(names) < most, names
        assert not {"asyncio", "locust", "ewe.conversation", "ewe_lab.experiments.e_c2"} & {*names}
