"""What all tests share: the fixtures that start servers, the directories of a run, and which tests are quick."""

from __future__ import annotations

import os
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
from support.fork_server import ForkServer
from support.server import MODELS, VARIANTS, WAYS_TO_WAIT, Server, Start, Starter

# Compiled modules are kept, also where the environment says otherwise. Tests start Python a thousand times: each
# start would compile ewe again, and each process of pytest would rewrite the assertions of all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Quick tests start no process. A test starts processes if it uses one of these fixtures or bears the mark
# `starts_processes`; a test that starts one without saying so fails, so that `make quick` stays quick.
PROCESS_FIXTURES = {"start", "shared_server"}
PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
processes_started: list[str] = []

# A busy machine is no failure: hypothesis must not time an example.
hypothesis.settings.register_profile("ewe", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("ewe")
# The tests that begin a run. They need the engine of Java, which the first of them builds, or they are the longest
# ones: at the end of a run, one process of pytest would work on them alone.
BEGIN_A_RUN = (
    "tests/xswitch/test_java.py",
    "packages/ewe-lab/tests/",
    "tests/operations/test_hostile.py",
    "tests/streams/",
)
base_directory = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a base directory that no other run touches, and watch which tests start processes.

    pytest's own base, pytest-of-USER, is shared by all runs of a user, and each run closes it to other
    accounts; under root, some tests need `nobody` to pass through. xdist's workers inherit the base.
    """
    config.addinivalue_line(
        "markers", "starts_processes: the test starts processes; `make quick` leaves it out"
    )
    config.pluginmanager.register(needs, "needs")
    if not hasattr(config, "workerinput") and not config.option.basetemp:
        base = Path(tempfile.mkdtemp(prefix="ewe-tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        base.chmod(0o755)
        config.stash[base_directory] = base
        config.option.basetemp = str(base / "run")
        rewrite_once(config)
    sys.addaudithook(note_process)


def rewrite_once(config: pytest.Config) -> None:
    """In a new clone, rewrite the assertions of all tests before xdist starts its workers.

    Otherwise each worker rewrites all files by itself, at the same time as the others.
    """
    made = Path(__file__).parent / "tests" / "house" / "__pycache__"
    tag = f"*.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    if config.getoption("dist", "no") != "no" and not any(made.glob(tag)):
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
        null = subprocess.DEVNULL
        subprocess.run(command, cwd=config.rootpath, stdin=null, stdout=null, check=False)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes by their fixtures, and put those first that begin a run."""
    places = {path: place for place, path in enumerate(BEGIN_A_RUN)}
    items.sort(
        key=lambda item: min((n for path, n in places.items() if item.nodeid.startswith(path)), default=99)
    )
    for item in items:
        if PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("starts_processes")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that starts a process without saying so; its fixtures have been set up by now."""
    quick = pyfuncitem.get_closest_marker("starts_processes") is None
    result = yield
    if quick and processes_started:
        pytest.fail(f"a test that starts a process needs the mark starts_processes: {processes_started[0]}")
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
    """What starts servers fast: a fork server for asyncio and one for the other models, made when first needed."""
    made: dict[tuple[bool, bool], ForkServer] = {}

    def of_model(model: str, elsewhere: bool = False) -> ForkServer:
        key = model.startswith(("asyncio", "xswitch")), elsewhere
        if key not in made:
            made[key] = ForkServer(*key)
        return made[key]

    yield of_model
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
