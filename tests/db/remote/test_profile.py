"""A whole job against a service: a stopped profile goes on there, and what it measured is what is read."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.db.url import TOKEN_VARIABLE
from spectune.profiler.latency import Interrupted
from spectune.tuning.latency_profile import LatencyProfile, LatencyRequest, profile_latency
from spectune.tuning.request import Models

from ...support.coarse_design import BUDGET_S, timed_coarsely
from ...support.served_store import served_store
from ...support.tiny_family import save_model

__all__ = ["timed_coarsely"]


def profiled(request: LatencyRequest, url: str, stop_after: int | None = None) -> LatencyProfile:
    """Profile, or be stopped behind so many timed calls: how many a budget holds depends on the machine's pace."""
    visits = count(1)

    def progress(what: str, share: float) -> None:
        if what == "timing forwards" and next(visits) == stop_after:
            raise KeyboardInterrupt

    with open_store(url) as store:
        return profile_latency(request, store, lock_wait_s=60.0, progress=progress)


def test_a_profile_needs_no_more_than_the_service_s_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    save_model(tmp_path / "target", layers=1, seed=1)
    request = LatencyRequest(
        models=Models(target=tmp_path / "target"),
        contexts=(8, 24),
        roles=("verify",),
        dtype="float32",
        batches=(1,),
        most_tokens=4,
        budget_s=BUDGET_S,
        held_out=2,
    )
    with served_store(tmp_path) as served:
        with pytest.raises(Interrupted):
            profiled(request, served.url, stop_after=6)
        before = {visit.ms for visit in served.behind.journal(1).visits()}
        done = profiled(request, served.url)
        assert done.is_resumed and before
        assert before <= {ms for cell in done.surfaces[0].measurements for ms in cell.repeats_ms}
        with open_store(served.url) as store:
            assert store.surfaces() == served.behind.surfaces() == list(done.surfaces)
            assert store.find_model(done.identities.target.key) == done.identities.target
