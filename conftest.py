"""The parts that all tests share: fixtures that start servers, a run's directories, the choice of quick tests."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from support import needs
from support.examples import examples
from support.fork_server import ForkServer, shared_fork_server
from support.server import MODELS, VARIANTS, WAYS_TO_WAIT, Server, Start, Starter

# Compiled modules are kept, also where the environment says otherwise. Tests start Python a thousand times: each
# start would compile ewe again, and each process of pytest would rewrite the assertions of all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Quick tests start no process, and do not bear the mark `takes_time`. A test starts processes if it uses one of
# these fixtures or bears the mark `starts_processes`; a test that starts one without saying so fails.
PROCESS_FIXTURES = {"start", "start_shared", "shared_server"}
PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
NO_PROCESSES = "not starts_processes"  # what the expression of `make quick` begins with (Makefile)
processes_started: list[str] = []
# The shared fixtures that started a process, by where they are defined and their name. Only the first test of a run
# that asks for one sees the process start; all others need the mark too, or it depends on the order of the tests.
process_fixtures: dict[tuple[str, str], str] = {}

# A busy machine is no failure: hypothesis must not time an example.
hypothesis.settings.register_profile("ewe", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("ewe")
# The tests that begin a run. They need the engine of Java, which the first of them builds, or they are the longest
# ones: at the end of a run, one process of pytest would work on them alone.
BEGIN_A_RUN = (
    "tests/xswitch/test_java.py",
    "tests/xswitch/test_servlet_apis.py",
    "packages/ewe-lab/tests/",
    "tests/operations/test_hostile.py",
    "tests/gateway/test_scgi_uwsgi.py",
    "tests/streams/",
)
# A module of which no test is quick
ALL_START_PROCESSES = re.compile(r"^pytestmark = (\[[^]]*)?pytest\.mark\.starts_processes", re.MULTILINE)
# Objects that tests make until the garbage collector looks at the youngest ones, and such looks until it looks at
# older ones. With Python's own 700 objects, the collector takes a twelfth of the CPU time of the quick tests.
GC_THRESHOLD = (10_000, 10, 10)
base_directory = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a base directory that no other run touches, and watch which tests start processes.

    pytest's own base, pytest-of-USER, is shared by all runs of a user, and each run closes it to other
    accounts; under root, some tests need `nobody` to pass through. xdist's workers inherit the base.
    """
    config.addinivalue_line(
        "markers", "starts_processes: the test starts processes; `make quick` leaves it out"
    )
    config.addinivalue_line(
        "markers",
        "takes_time: the test waits or computes for half a second or more; `make quick` leaves it out",
    )
    config.pluginmanager.register(needs, "needs")
    if not hasattr(config, "workerinput") and not config.option.basetemp:
        base = Path(tempfile.mkdtemp(prefix="ewe-tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        base.chmod(0o755)
        config.stash[base_directory] = base
        config.option.basetemp = str(base / "run")
        rewrite_once(config)
    sys.addaudithook(note_process)
    gc.disable()  # until pytest_collection_finish()


def rewrite_once(config: pytest.Config) -> None:
    """In a new clone, rewrite the assertions of all tests before xdist starts its workers.

    Otherwise each worker rewrites all files by itself, at the same time as the others. Two processes rewrite half
    of the files each: all of them take 13 s of CPU time. A run of single files has less to rewrite than that.
    """
    root = Path(__file__).parent
    made = root / "tests" / "house" / "__pycache__"
    tag = f"*.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    # Path.is_dir() would raise an error for the long name of a test
    asked = [Path(each).resolve() for each in config.args if os.path.isdir(each)]
    if asked and config.getoption("dist", "no") != "no" and not any(made.glob(tag)):
        tests = [*root.glob("tests/**/test_*.py"), *root.glob("packages/*/tests/test_*.py")]
        files = sorted(path for path in tests if any(path.is_relative_to(each) for each in asked))
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
        null = subprocess.DEVNULL
        halves = [
            subprocess.Popen([*command, *files[half::2]], cwd=root, stdin=null, stdout=null)
            for half in (0, 1)
        ]
        for each in halves:
            each.wait()


def note_process(event: str, arguments: tuple[object, ...]) -> None:
    """Note the start of a process: an audit hook."""
    if event in PROCESS_EVENTS:
        processes_started.append(f"{event}{arguments!r:.80}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's directory, or tell where it is if a test failed."""
    base = config.stash.get(base_directory, None)
    if base is None:
        return
    if getattr(config, "exit_status", 0) == pytest.ExitCode.TESTS_FAILED:
        print(f"The directories of this run are kept in {base}", file=sys.stderr)
    else:
        shutil.rmtree(base, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the exit status for pytest_unconfigure."""
    session.config.exit_status = exitstatus  # type: ignore[attr-defined]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of `make quick` the modules without quick tests: a seventh of the time of each process."""
    if not config.option.markexpr.startswith(NO_PROCESSES) or not collection_path.name.startswith("test_"):
        return None
    return bool(ALL_START_PROCESSES.search(collection_path.read_text())) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes by their fixtures, and put those first that begin a run."""
    positions = {path: place for place, path in enumerate(BEGIN_A_RUN)}
    items.sort(
        key=lambda item: min((n for path, n in positions.items() if item.nodeid.startswith(path)), default=99)
    )
    for item in items:
        if PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("starts_processes")


def pytest_collection_finish() -> None:
    """Exempt the collected tests and their modules from garbage collection.

    They live until the end. Each full collection would visit their objects, and a collection in a fork of this
    process would copy their memory. A collection before this would take longer than what it frees is worth.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Remember the fixtures of a module or a session that start a process."""
    before = len(processes_started)
    result = yield
    if fixturedef.scope != "function" and len(processes_started) > before:
        process_fixtures[fixturedef.baseid, fixturedef.argname] = processes_started[before]
    return result


def process_of(item: pytest.Item) -> str | None:
    """Return a process that a test or one of its shared fixtures started, if any."""
    shared = (
        process
        for (where, name), process in process_fixtures.items()
        if item.nodeid.startswith(where) and name in getattr(item, "fixturenames", ())
    )
    return next(iter(processes_started), None) or next(shared, None)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that starts a process without saying so; its fixtures have been set up by now."""
    quick = pyfuncitem.get_closest_marker("starts_processes") is None
    result = yield
    if quick and (process := process_of(pyfuncitem)):
        pytest.fail(f"a test that starts a process needs the mark starts_processes: {process}")
    return result


def pytest_runtest_setup() -> None:
    """Forget the processes of the test before, and those that looked for what this one needs (support/needs.py)."""
    processes_started.clear()


@pytest.fixture(scope="session", autouse=True)
def passable(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let every account pass through the directories of this run: servers and engines run as others."""
    base = tmp_path_factory.getbasetemp()
    base.chmod(0o755)
    if base.name.startswith("popen-"):
        base.parent.chmod(0o755)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """pytest's directory of a test, open to every account."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[Callable[..., ForkServer]]:
    """Return the fork server of a kind of servers (fork_server.is_heavy), made when first needed."""
    made: dict[tuple[bool, bool], ForkServer] = {}

    def of_kind(heavy: bool, elsewhere: bool = False) -> ForkServer:
        key = heavy, elsewhere
        if key == (False, False):
            return shared_fork_server()
        if key not in made:
            made[key] = ForkServer(*key)
        return made[key]

    yield of_kind
    for server in made.values():
        server.close()


@pytest.fixture
def start(tmp_path: Path, fork_servers: Callable[..., ForkServer]) -> Iterator[Starter]:
    """Return a function that starts ewe: start("thread", "--grace", "1s") -> Server. See Starter.

    When the test ends every server is stopped, and must have left no process behind.
    """
    starter = Starter(tmp_path, fork_servers)
    yield starter
    starter.stop()


@pytest.fixture(scope="module", params=VARIANTS)
def shared_server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fork_servers: Callable[..., ForkServer],
) -> Iterator[Server]:
    """A server of each variant in turn, with default settings, for all tests of a file that leave it as it was.

    A test may add files, under names that no other test uses.
    """
    directory = tmp_path_factory.mktemp("shared")
    directory.chmod(0o755)
    starter = Starter(directory, fork_servers)
    server = starter(str(request.param))
    yield server
    starter.stop()
    assert "Traceback" not in server.log(), server.log()


@pytest.fixture(scope="module")
def start_shared(
    tmp_path_factory: pytest.TempPathFactory, fork_servers: Callable[..., ForkServer]
) -> Iterator[Starter]:
    """`start` for servers with options that the tests of a file share, until the last of these tests has ended."""
    directory = tmp_path_factory.mktemp("shared")
    directory.chmod(0o755)
    starter = Starter(directory, fork_servers)
    yield starter
    starter.stop()
    for server in starter.servers:
        assert "Traceback" not in server.log(), server.log()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    """Each model in turn."""
    return str(request.param)


@pytest.fixture(params=[*MODELS, "asyncio --loop asyncio"])
def model_or_loop(request: pytest.FixtureRequest) -> str:
    """Each model in turn, and asyncio's own event loop."""
    return str(request.param)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Each model in turn, and the ways in which it can be set."""
    return str(request.param)


@pytest.fixture(params=WAYS_TO_WAIT)
def way_to_wait(request: pytest.FixtureRequest) -> str:
    """One variant for each way to wait."""
    return str(request.param)


@pytest.fixture
def server(start: Start, variant: str) -> Server:
    """A server of each variant in turn, with default settings."""
    return start(variant)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The directory of a test: every account may read it, as `nobody` must where the tests run as root."""
    return tmp_path
