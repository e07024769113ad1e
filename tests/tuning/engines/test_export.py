"""Plans for an engine as its settings: one line for all concurrencies, priced on the engine's own records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spectune.db import Store, open_store
from spectune.engines.export import Exported
from spectune.errors import NoPlanError, RequestError
from spectune.planner.engines.choice import Offer
from spectune.planner.engines.costs import RoundCost
from spectune.planner.engines.walk import Walk
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.tuning.engines import export
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine
from spectune.tuning.export import ExportRequest, export_from_store, newest_plan_for, notes_on
from spectune.tuning.request import Models

from ...support.engine_policies import cell_with
from ...support.engine_profiles import profiled, saved_models, speed
from ...support.priced_cells import plan_with


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))  # another test may hold the device
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return saved_models(tmp_path_factory.mktemp("models"))


def planned(models: Models, store: Store) -> Plan:
    request = EnginePlanRequest(engine="llama.cpp", target=identify(models.target), device=detect("cpu"))
    return plan_engine(request, store)[1]


def over_both(length: int) -> float:
    return math.sqrt(speed(length, 1) * speed(length, 4))


def length_in(found: Exported) -> int:
    return int(found.flags[found.flags.index("--spec-draft-n-max") + 1])


def exported(plan: Plan, store: Store, engine: str = "llama.cpp") -> Exported:
    return export_from_store(plan, ExportRequest(engine=engine), store)


def lengths(plan: Plan) -> list[int]:
    assert all(isinstance(cell.policy, ChainPolicy) for cell in plan.cells)
    return [cell.policy.length for cell in plan.cells if isinstance(cell.policy, ChainPolicy)]


def test_the_one_line_of_a_server_is_the_best_over_all_concurrencies_tried_one_by_one(
    models: Models, store: Store
) -> None:
    profiled(models, store)
    plan = planned(models, store)
    found = exported(plan, store)
    best = max(range(1, 9), key=over_both)
    assert best not in lengths(plan)
    assert over_both(length_in(found)) >= 0.99 * over_both(best)
    assert over_both(length_in(found)) > 1.01 * max(over_both(length) for length in lengths(plan))


def test_what_each_concurrency_loses_by_the_one_line_is_told(models: Models, store: Store) -> None:
    profiled(models, store)
    plan = planned(models, store)
    found = exported(plan, store)
    assert found.basis == "re-solved" and len(found.dropped) == 2
    for cell, dropped in zip(plan.cells, found.dropped, strict=True):
        own = cell.prediction.tokens_per_s / (1.0 - cell.prediction.errors.optimism)
        assert dropped.wanted_tokens_per_s == pytest.approx(own)
        kept = speed(length_in(found), cell.batch) / speed(lengths(plan)[plan.cells.index(cell)], cell.batch)
        assert dropped.loss is not None and dropped.loss > 0.0
        assert dropped.loss == pytest.approx(1.0 - kept, abs=0.1)  # lengths between those that were timed
    assert any("engine:llama.cpp-b11549" in note for note in found.notes)


def test_copies_of_a_length_that_nobody_timed_are_no_line_unless_they_surely_pay() -> None:
    def offer(length: int, concurrency: int, ms: float, *, is_timed: bool, model: bool = False) -> Offer:
        policy = ChainPolicy(length=length) if model else LookupPolicy(length=length)
        cost = RoundCost(draft_ms=0.0, rest_ms=ms, error=0.05)
        walk = Walk(tokens=np.array([90.0]), rounds=np.array([30.0]), drafts=np.array([30.0]), drafted=np.array([60.0]))
        who = "small" if model else "lookup"
        return Offer(way=(policy, who), walk=walk, cost=cost, concurrency=concurrency, is_timed=is_timed)

    offers = [
        [
            offer(4, concurrency, 10.0, is_timed=True),
            offer(5, concurrency, 9.8, is_timed=False),
            offer(6, concurrency, 9.0, is_timed=False),
            offer(7, concurrency, 9.8, is_timed=concurrency == 4),
            *(offer(length, concurrency, 12.0, is_timed=length in (2, 8), model=True) for length in (1, 2, 3, 8, 9)),
        ]
        for concurrency in (1, 4)
    ]
    found = {(who, policy.max_verify_tokens - 1) for policy, who in export._sure_over_all(offers)}
    assert found == {("lookup", 4), ("lookup", 6), ("small", 2), ("small", 3), ("small", 8)}


def test_a_plan_of_one_concurrency_is_exported_as_planned(models: Models, store: Store) -> None:
    profiled(models, store, 1)
    found = exported(planned(models, store), store)
    assert (found.basis, found.kept, found.dropped) == ("as planned", 1.0, ())
    assert found.flags[found.flags.index("--parallel") + 1] == "1"


def test_without_the_engine_s_records_the_plan_s_alternatives_are_chosen_from(
    models: Models, store: Store, tmp_path: Path
) -> None:
    profiled(models, store)
    plan = planned(models, store)
    with open_store(str(tmp_path / "empty.db")) as empty:
        found = exported(plan, empty)
    assert found.basis == "alternatives"
    assert any("holds no rounds of llama.cpp" in note for note in found.notes)


def test_records_of_other_concurrencies_are_not_used(models: Models, store: Store) -> None:
    profiled(models, store)
    plan = planned(models, store)
    elsewhere = replace(plan, cells=tuple(replace(cell, batch=2 * cell.batch) for cell in plan.cells))
    assert exported(elsewhere, store).basis == "alternatives"


def test_another_engine_chooses_among_the_plan_s_own_alternatives(models: Models, store: Store) -> None:
    profiled(models, store)
    found = exported(planned(models, store), store, "vllm")
    assert found.notes[0].startswith("the plan was made for llama.cpp")


def kept(store: Store, *, device: str, workload: str = "default") -> int:
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    return store.add_plan(
        plan_to_json(plan), device=device, device_kind="k", target="t", workload=workload, temperature=0.0
    )


def test_the_newest_plan_for_an_engine_is_its_own_or_our_decoder_s(store: Store) -> None:
    ours = kept(store, device="d")
    llama = kept(store, device="engine:d", workload="default (llama.cpp)")
    assert newest_plan_for("llama.cpp", store) == llama
    assert newest_plan_for("vllm", store) == ours
    newer = kept(store, device="d")
    assert newest_plan_for("llama.cpp", store) == newest_plan_for("vllm", store) == newer


def test_a_retired_plan_is_not_exported_unless_it_is_named(store: Store) -> None:
    older, newer = kept(store, device="d"), kept(store, device="d")
    store.retire_plan(newer, "ada", "slower than it said")
    assert newest_plan_for("vllm", store) == older
    store.retire_plan(older, "ada", "")
    with pytest.raises(RequestError, match="are retired or are for other engines than vllm"):
        newest_plan_for("vllm", store)


def test_a_plan_that_was_rolled_back_to_is_the_one_that_counts(store: Store) -> None:
    older, newer = kept(store, device="d"), kept(store, device="d")
    assert newest_plan_for("vllm", store) == newer
    store.promote_plan(older, "ada", "rolled back")
    assert newest_plan_for("vllm", store) == older


def test_a_what_if_is_exported_only_where_there_is_nothing_else_and_says_so(store: Store) -> None:
    guess = kept(store, device="what-if:d")
    assert newest_plan_for("vllm", store) == guess
    assert notes_on(guess, store) == (
        f"plan {guess} is a what-if: no measurements of its device stand behind it; name another with --plan",
    )
    measured = kept(store, device="d")
    kept(store, device="what-if:d")
    assert newest_plan_for("vllm", store) == measured and notes_on(measured, store) == ()


def test_plans_for_other_engines_alone_are_refused(store: Store) -> None:
    with pytest.raises(NoPlanError):
        newest_plan_for("vllm", store)
    kept(store, device="engine:d", workload="default (llama.cpp)")
    with pytest.raises(RequestError, match="are for other engines than vllm; name one with --plan"):
        newest_plan_for("vllm", store)
