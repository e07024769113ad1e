"""A target without drafters: its trace holds what lookup proposes, and its plan chooses between lookup and plain."""

from __future__ import annotations

import math
from pathlib import Path

from spectune.db import open_store
from spectune.planner.records.recording import texts_of
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.text import TextPolicy
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.acceptance import MISS
from spectune.runtime.batch.sequence import Request
from spectune.tuning.inputs import inputs_from_store, inputs_of
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import profile
from spectune.tuning.recording.lookup_trace import lookup_trace
from spectune.tuning.request import Models, PlanRequest, ProfileRequest

from ...support.coarse_design import BUDGET_S, timed_coarsely
from ...support.tiny_family import save_model

__all__ = ["timed_coarsely"]


def test_a_position_hits_where_the_same_token_followed_before() -> None:
    request = Request(prompt=(5, 6), max_new_tokens=6, stop=frozenset())
    trace = lookup_trace(request, (7, 5, 6, 7, 5, 9))
    # behind 5 6 7 nothing is known; ..5 gives 6, ..6 gives 7, ..7 gives 5, and the last ..5 gives 6, where 9 follows
    assert trace.next_rank.tolist() == [MISS, 0, 0, 0, MISS]
    assert trace.log_probs[:, 0].tolist() == [-math.inf, 0.0, 0.0, 0.0, 0.0]


def test_a_target_alone_is_profiled_and_planned(tmp_path: Path) -> None:
    save_model(tmp_path / "target", layers=1, seed=1)
    request = ProfileRequest(
        models=Models(target=tmp_path / "target"),
        prompts=[Prompt(text=f"def f{place}(x): return {place}") for place in range(3)],
        dtype="float32", batches=(1,), max_new_tokens=8, max_prompt_tokens=8, budget_s=BUDGET_S, held_out=0,
        record="quick",
    )  # fmt: skip
    with open_store(str(tmp_path / "store.db")) as store:
        done = profile(request, store, lock_wait_s=60.0, progress=lambda what, share: None)
        wanted = PlanRequest(target=done.identities.target, device=done.device, dtype="float32", trials=2)
        plan = make_plan(wanted, store)
        assert inputs_from_store(wanted, store).texts == inputs_of(done).texts
    assert [trace.drafter for trace in done.traces] == ["lookup"] and not plan.drafters
    assert len(texts_of(done.traces[0])) == 3
    assert all(isinstance(cell.policy, PlainPolicy | TextPolicy) for cell in plan.cells)
