"""Groups of cells solved in several processes: the same outcomes in the same order, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from spectune.errors import PlanError
from spectune.planner.pricing.cells import Cell
from spectune.tuning.spread import FEWEST_CELL_POSITIONS, Group, Spread, cores_available, jobs_that_pay
from spectune.tuning.steps import silent


@pytest.fixture(autouse=True)
def _tests_are_found_by_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned process takes over this one's path, and looks for what it is to run in `tests`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


GROUPS = [(Cell(batch=batch, context=10), Cell(batch=batch, context=20)) for batch in (4, 3, 2, 1)]


def batch_of(group: Group) -> int:
    """Work that takes longest for the first group."""
    time.sleep(0.05 * group[0].batch)
    return group[0].batch


def process_of(_group: Group) -> int:
    time.sleep(0.2)  # so that the other process gets its share
    return os.getpid()


def refuses(group: Group) -> int:
    raise PlanError(f"no price at batch {group[0].batch}; profile it")


def fails_in_its_own_way(_group: Group) -> int:
    raise UnpicklableError(threading.Lock())


def is_killed(_group: Group) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


class UnpicklableError(Exception):
    pass


def spread(jobs: int) -> Spread:
    return Spread(jobs=jobs, progress=silent)


@pytest.mark.parametrize("jobs", [1, 2])
def test_outcomes_come_in_the_order_of_their_groups(jobs: int) -> None:
    assert list(spread(jobs)(batch_of, GROUPS)) == [4, 3, 2, 1]


def test_one_job_is_this_process() -> None:
    assert set(spread(1)(process_of, GROUPS)) == {os.getpid()}


def test_two_jobs_are_two_other_processes_that_are_gone_afterwards() -> None:
    seen = set(spread(2)(process_of, GROUPS))
    assert len(seen) == 2 and os.getpid() not in seen
    assert not [pid for pid in seen if Path(f"/proc/{pid}").exists()]


def test_every_finished_group_is_told() -> None:
    told: list[str] = []
    counted = Spread(jobs=2, progress=lambda what, share: told.append(f"{what} {share}"))
    list(counted(batch_of, GROUPS))
    assert told == [f"solved {done} of 4 parts of the plan {done / 4}" for done in (1, 2, 3, 4)]


def test_no_group_is_no_work() -> None:
    assert list(spread(4)(batch_of, [])) == []


def test_there_are_never_more_processes_than_groups() -> None:
    assert len(set(spread(16)(process_of, GROUPS))) <= len(GROUPS)
    assert set(spread(16)(process_of, GROUPS[:1])) == {os.getpid()}


def test_a_small_problem_is_solved_by_one_process_a_large_one_by_every_core() -> None:
    assert jobs_that_pay(1, FEWEST_CELL_POSITIONS - 1) == 1
    assert jobs_that_pay(2, FEWEST_CELL_POSITIONS // 2) == cores_available()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_refusal_comes_back_as_it_was_raised(jobs: int) -> None:
    with pytest.raises(PlanError, match=re.escape("no price at batch 4; profile it")):
        list(spread(jobs)(refuses, GROUPS))


def test_a_refusal_from_another_process_brings_its_traceback() -> None:
    with pytest.raises(PlanError) as refusal:
        list(spread(2)(refuses, GROUPS))
    assert "in refuses" in refusal.value.__notes__[0]


def test_an_exception_that_cannot_travel_is_told_all_the_same() -> None:
    with pytest.raises(RuntimeError) as failure:
        list(spread(2)(fails_in_its_own_way, GROUPS))
    assert "in fails_in_its_own_way" in failure.value.__notes__[0]


def test_a_killed_process_ends_the_work_in_one_line() -> None:
    with pytest.raises(PlanError, match=r"was ended \(exit code -9\).* --jobs"):
        list(spread(2)(is_killed, GROUPS))


def test_less_than_one_process_is_refused() -> None:
    with pytest.raises(PlanError, match="in at least 1 process, got 0"):
        spread(0)


def test_ctrl_c_leaves_no_process_and_no_other_traceback_behind(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib, signal, time
            from spectune.planner.pricing.cost import Cell
            from spectune.tuning.spread import Spread

            def sleep(group):
                pathlib.Path(f"started {os.getpid()}").touch()
                time.sleep(100)

            if __name__ == "__main__":
                signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
                groups = [(Cell(batch=1, context=place),) for place in (1, 2, 3)]
                list(Spread(jobs=2, progress=print)(sleep, groups))
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, "sleeper.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while len(list(tmp_path.glob("started *"))) < 2:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of the group hear it
        assert process.stderr is not None
        words = process.stderr.read()
    children = [file.name.split()[1] for file in tmp_path.glob("started *")]
    assert words.count("Traceback") == words.count("KeyboardInterrupt\n") == 1
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
