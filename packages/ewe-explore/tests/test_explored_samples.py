"""The samples: the explorer finds the fault of each broken one, and none in the correct ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.examples import examples

from ewe_explore.harness import Model
from ewe_explore.program import ExploredProgram, scenarios
from ewe_explore.report import Exploration, explore, replay
from ewe_explore.scheduler import SAMPLES_DIRECTORY

ROOT = Path(__file__).resolve().parents[3]

# A broken sample; the runs that a search takes at most, under each seed; the failure; the reason; its switches.
BROKEN = [
    ("count", 40, "assertion", "A lost update", 1),
    ("forks", 40, "deadlock", "Plato holds fork 1, and waits for fork 2", 1),
    ("forks_three", 400, "deadlock", "Arendt holds fork 3, and waits for fork 1", 2),
    ("lost_wakeup", 40, "deadlock", "A lost wake-up", 1),
    ("closed_twice", 60, "exception", "A test that is no longer true", 1),
    ("buffer_if", 200, "exception", "`while`, not `if`", 1),
    ("buffer_one_condition", 700, "deadlock", "every notify woke another thread", 2),
    (
        "close_wakes_none",
        60,
        "deadlock",
        "main writes self.closed = True [line 28] and does not notify changed",
        1,
    ),
    ("close_wakes_one", 60, "deadlock", "notify() wakes one thread", 1),
    (
        "cleared_late",
        60,
        "deadlock",
        "A lost set(): main sets news [line 16] before reader clears it [line 20]",
        2,
    ),
    ("pool_empty", 60, "deadlock", "no other thread puts an item into it any more", 1),
    ("busy_wait", 1, "steps", "A thread that waits must block", 0),
    ("model_broken", 400, "exception", "A test that is no longer true", 1),
]
CORRECT = [
    "count_locked",
    "forks_ordered",
    "mailbox",
    "cleared_first",
    "buffer",
    "closed_once",
    "pool",
    "echo",
    "model",
]
SEEDS = (1, 20, 4711)[: examples(3)]


def program(name: str, early: bool = False) -> ExploredProgram:
    path = Path(SAMPLES_DIRECTORY, name + ".py")
    return ExploredProgram(path, "scenario") if scenarios(path) else Model(path, "Mine", early=early)


def found(name: str, seed: int, runs: int) -> Exploration:
    result = explore(program(name), seed=seed, runs=runs)
    assert result.failure is not None, result.text()
    return result


def test_every_sample_is_in_a_list() -> None:
    named = {row[0] for row in BROKEN} | set(CORRECT)
    assert {path.stem for path in Path(SAMPLES_DIRECTORY).glob("*.py")} == named
    for name in named:
        first = ast.get_docstring(ast.parse(Path(SAMPLES_DIRECTORY, name + ".py").read_text())) or ""
        assert first.startswith("Correct: " if name in CORRECT else "Broken: ")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "runs", "kind", "why", "switches"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_sample_fails(name: str, runs: int, kind: str, why: str, switches: int, seed: int) -> None:
    result = found(name, seed, runs)
    assert result.failure is not None and result.story is not None
    assert result.failure.problem.kind == kind
    assert why in " ".join(result.story.why)
    assert len(result.failure.schedule) == switches
    assert result.failure.complete, "it was not shown that no smaller schedule fails"


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_sample_passes(name: str) -> None:
    result = explore(program(name), seed=5, runs=150)
    assert result.failure is None, result.text()
    assert result.runs == 150 or result.exhaustive


@pytest.mark.parametrize("early", [False, True])
def test_a_correct_model_passes_with_a_stop(early: bool) -> None:
    result = explore(program("model", early=early), seed=1, runs=150)
    assert result.failure is None, result.text()


@pytest.mark.parametrize("model", ["thread:Thread", "pool:Pool"])
@pytest.mark.parametrize("early", [False, True])
def test_the_models_of_ewe_pass(model: str, early: bool) -> None:
    file, _, name = model.partition(":")
    result = explore(Model(ROOT / "ewe" / "processors" / f"{file}.py", name, early=early), seed=1, runs=60)
    assert result.failure is None, result.text()


@pytest.mark.parametrize("name", ["count", "lost_wakeup", "forks", "closed_twice"])
def test_a_replay_is_the_same_each_time(name: str) -> None:
    result = found(name, 1, 60)
    assert result.failure is not None
    again = program(name)
    texts = {replay(again, result.failure.schedule).text() for _ in range(100)}
    assert len(texts) == 1
    pages = {replay(again, result.failure.schedule).html() for _ in range(3)}
    assert len(pages) == 1


@pytest.mark.starts_processes
def test_another_process_replays_the_same() -> None:
    result = found("lost_wakeup", 3, 60)
    command = result.command().split()
    assert command[0] == "ewe-explore"
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "ewe_explore", *command[1:]],
            capture_output=True, text=True, timeout=60, check=False,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    (output,) = outputs
    assert "A lost wake-up" in output and result.command() in output


@pytest.mark.parametrize("name", ["forks_three", "buffer_if"])
def test_the_same_seed_is_the_same_search(name: str) -> None:
    first, second, other = (found(name, seed, 400) for seed in (1, 1, 2))
    assert first.runs == second.runs and first.text() == second.text()
    assert (other.runs, other.story) != (first.runs, first.story)
