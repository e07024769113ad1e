"""Jobs: each is done by exactly one worker, however many there are and whatever becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from spectune.db.jobs.jobs import LOOKED_AT, JobEndedError, Jobs, LostJobError, NoJobError
from spectune.db.sql.service_tables import JobTable
from spectune.db.sql.sql_store import SqlStore

from ...support.fresh_store import fresh_store

PLAN: dict[str, Any] = {
    "device": "device",
    "device_kind": "kind",
    "target": "target",
    "workload": "any",
    "temperature": 0.0,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def jobs(store: SqlStore) -> Jobs:
    return Jobs(store)


def make_stale(store: SqlStore) -> None:
    with store._writing() as session:
        session.execute(update(JobTable).values(heartbeat="2020-01-01T00:00:00.000000+00:00"))


def test_the_oldest_job_is_taken_first_and_by_one_worker_only(jobs: Jobs) -> None:
    first, second = jobs.add("plan", "{}", "ci"), jobs.add("plan", "{}", "ci")
    taken = [jobs.lease("one"), jobs.lease("other"), jobs.lease("third")]
    assert [job.key if job else None for job in taken] == [first.key, second.key, None]


def test_only_the_worker_that_takes_a_job_reads_all_that_it_was_asked_with(jobs: Jobs) -> None:
    asked = "x" * (LOOKED_AT + 9)
    key = jobs.add("plan", asked, "ci").key
    looked_at = (jobs.find(key), *jobs.rows(limit=9), *jobs.newest(9))
    assert {len(job.request) for job in looked_at} == {LOOKED_AT}
    taken = jobs.lease("one")
    assert taken is not None and taken.request == asked


def test_many_workers_at_once_never_take_the_same_job(jobs: Jobs) -> None:
    wanted = [jobs.add("plan", "{}", "ci").key for _ in range(12)]
    with ThreadPoolExecutor(6) as workers:
        taken = list(workers.map(lambda number: jobs.lease(f"worker-{number}"), range(18)))
    keys = [job.key for job in taken if job is not None]
    assert sorted(keys) == sorted(wanted)


def test_a_job_that_nobody_tells_about_is_taken_up_again(store: SqlStore, jobs: Jobs) -> None:
    jobs.add("plan", "{}", "ci")
    jobs.lease("gone")
    assert jobs.lease("other") is None
    make_stale(store)
    taken = jobs.lease("other")
    assert taken is not None and (taken.worker, taken.attempts) == ("other", 2)


def test_a_worker_that_lost_its_job_can_neither_tell_nor_finish(store: SqlStore, jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("slow")
    make_stale(store)
    jobs.lease("other")
    with pytest.raises(LostJobError):
        jobs.tell(key, "slow")
    with pytest.raises(LostJobError), jobs.finishing(key, "slow") as made:
        made.plan_id = store.add_plan("{}", **PLAN)
    assert store.plans() == []


def test_what_a_job_made_is_kept_with_its_end_or_not_at_all(store: SqlStore, jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("worker")
    with pytest.raises(KeyError), jobs.finishing(key, "worker") as made:
        made.plan_id = {store.add_plan("{}", **PLAN): 0}[-1]
    assert store.plans() == [] and jobs.find(key).state == "running"
    with jobs.finishing(key, "worker") as made:
        made.plan_id = store.add_plan("{}", **PLAN)
    done = jobs.find(key)
    assert (done.state, done.plan_id, done.progress) == ("done", store.plans()[0].id, 1.0)


def test_a_job_that_kills_its_workers_fails_after_three_attempts_and_says_why(store: SqlStore, jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    for number in range(3):
        assert jobs.lease(f"worker-{number}") is not None
        jobs.tell(key, f"worker-{number}", "solving part 2")
        make_stale(store)
    assert jobs.lease("the fourth") is None
    failed = jobs.find(key)
    assert failed.state == "failed" and "3 attempts" in str(failed.error) and "solving part 2" in str(failed.error)


def test_a_dead_worker_s_job_is_released_with_its_reason(jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    for _ in range(3):
        jobs.lease("worker")
        jobs.release("worker", "its process ended with exit code -9", counts=True)
    failed = jobs.find(key)
    assert failed.state == "failed" and "exit code -9" in str(failed.error)


def test_an_orderly_stop_costs_no_attempt(jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    for _ in range(5):
        jobs.lease("worker")
        assert jobs.release("worker", "the service was stopped", counts=False) == 1
    assert jobs.find(key).state == "waiting"


@pytest.mark.parametrize(("is_final", "state"), [(True, "failed"), (False, "waiting")])
def test_a_fault_ends_a_job_only_where_it_would_come_again(jobs: Jobs, is_final: bool, state: str) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("worker")
    jobs.fail(key, "worker", "no trace of this workload", is_final=is_final)
    assert jobs.find(key).state == state


def test_a_cancelled_job_is_lost_to_its_worker_and_taken_by_nobody(jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("worker")
    assert jobs.cancel(key).state == "cancelled"
    with pytest.raises(LostJobError):
        jobs.tell(key, "worker")
    assert jobs.lease("worker") is None
    assert jobs.cancel(key).state == "cancelled"


def test_a_job_that_has_ended_cannot_be_cancelled(jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("worker")
    with jobs.finishing(key, "worker"):
        pass
    with pytest.raises(JobEndedError, match="done"):
        jobs.cancel(key)
    with pytest.raises(NoJobError):
        jobs.find("nobody")


def test_progress_never_goes_back(jobs: Jobs) -> None:
    key = jobs.add("plan", "{}", "ci").key
    jobs.lease("worker")
    for share in (0.5, 0.2, 7.0):
        jobs.tell(key, "worker", "solving", share)
    assert jobs.find(key).progress == 1.0 and jobs.counts() == {"running": 1}


def test_old_jobs_that_have_ended_are_dropped_and_others_stay(store: SqlStore, jobs: Jobs) -> None:
    old, waiting, new = (jobs.add("plan", "{}", "ci").key for _ in range(3))
    for key in (old, new):
        jobs.cancel(key)
    with store._writing() as session:
        session.execute(update(JobTable).where(JobTable.key != new).values(created="2020"))
    assert jobs.drop_ended() == 1
    assert [job.key for job in jobs.rows(limit=9)] == [waiting, new]
