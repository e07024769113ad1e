"""Loads of a server in a store: none is lost before another ran, and none is kept in part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.db.store import Store
from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.bundle import Failure, Trial
from spectune.engines.counters import Counts
from spectune.engines.load import SamplingParams
from spectune.engines.server_engine import Start
from spectune.engines.table import SERVERS
from spectune.errors import MeasurementError
from spectune.planner.engines.served import PLAIN
from spectune.tuning.engines.server_profile import ServerProfile, newest_bundle
from spectune.tuning.engines.tuned_server import ServerJob

COMMAND = ("llama-server", "-m", "model.gguf")
JOB = ServerJob(
    engine=SERVERS["llama.cpp"],
    command=COMMAND,
    prompts=(),
    sampling=SamplingParams(),
    concurrencies=(1, 2),
    requests=2,
    longest=4,
)
START = Start.of(PLAIN, {1: 0, 2: 0})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def trial(concurrency: int, tokens: int = 10) -> Trial:
    answers = tuple(RequestResult(prompt=number, ttft_ms=5.0, e2e_ms=50.0, tokens=tokens) for number in range(2))
    load = LoadResult(concurrency=concurrency, answers=answers, wall_s=0.1, client_share=0.0)
    return Trial(start=START, concurrency=concurrency, load=load, counts=Counts())


def saved(store: Store, *trials: Trial, fresh: bool = False) -> ServerProfile:
    kept = ServerProfile(JOB, store, fresh=fresh)
    kept.save(replace(kept.bundle, trials=trials))
    return kept


@pytest.mark.parametrize("fresh", [False, True])
def test_a_profile_that_is_repeated_stays_until_a_load_of_the_next_one_ran(store: Store, fresh: bool) -> None:
    saved(store, trial(1), trial(2)).end()
    again = ServerProfile(JOB, store, fresh=fresh)
    assert not again.bundle.trials
    again.save(replace(again.bundle, failures=(Failure(start=START, reason="the port is busy"),)))
    assert newest_bundle("llama.cpp", COMMAND, store).trials == (trial(1), trial(2))
    again.save(replace(again.bundle, trials=(trial(1, tokens=20),)))
    assert newest_bundle("llama.cpp", COMMAND, store).trials == (trial(1, tokens=20),)
    assert ServerProfile(JOB, store).bundle.trials == (trial(1, tokens=20),)  # which goes on where it was interrupted


def test_a_load_without_rounds_is_kept_in_no_part(store: Store) -> None:
    """Its own error comes again: not that another process writes the same profile."""
    kept = ServerProfile(JOB, store)
    wrong = replace(kept.bundle, trials=(trial(1, tokens=1),))
    for _ in range(2):
        with pytest.raises(MeasurementError, match="all answers have one token"):
            kept.save(wrong)
    kept.save(replace(wrong, trials=(trial(1),)))
    assert newest_bundle("llama.cpp", COMMAND, store).trials == (trial(1),)
