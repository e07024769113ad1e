"""Profile, plan and validate on a simulated engine of a known law, against every setting tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spectune.db import Store, open_store
from spectune.engines.measured import EngineLoad, Sample
from spectune.engines.setting import Setting
from spectune.errors import MeasurementError, NoPlanError, RequestError, StoreError
from spectune.planner.engines.choice import Way
from spectune.planner.plans.plan import Plan
from spectune.planner.plans.validation import Validation
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.role import require_regime
from spectune.profiler.records.wire import from_json
from spectune.runtime.plan_choice import choose_plan
from spectune.tuning.engines.inputs import setting_of, way_of
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine
from spectune.tuning.engines.profile import EngineProfile, EngineRequest, profile_engine, who_drafts
from spectune.tuning.engines.validate import (
    EngineValidateRequest,
    EngineValidation,
    least_drafted,
    neighbour_of,
    validate_engine,
)
from spectune.tuning.engines.workload import is_timed_on, regime_on
from spectune.tuning.request import Models

from ...support.engine_profiles import saved_models
from ...support.simulated_engine import Curve, SimulatedEngine

NEW_TOKENS = 64
PROMPTS = tuple(Prompt(text=f"{number} things to say about {number * 7}") for number in range(12))
DRAFTERS = {"small": 0.6, "large": 0.9}


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
    return saved_models(tmp_path_factory.mktemp("models"), DRAFTERS)


def profiled(
    engine: SimulatedEngine, models: Models, store: Store, *concurrencies: int, workload: str = "default"
) -> EngineProfile:
    own = Models(target=models.target, drafters={name: models.drafters[name] for name in engine.right})
    request = EngineRequest(
        engine="llama.cpp",
        models=own,
        prompts=PROMPTS,
        workload=workload,
        concurrencies=concurrencies or (1, 4),
        max_new_tokens=NEW_TOKENS,
        turns=3,
    )
    return profile_engine(request, engine, store, progress=lambda what, share: None)


def asked(models: Models, *concurrencies: int, workload: str = "default") -> EnginePlanRequest:
    return EnginePlanRequest(
        engine="llama.cpp",
        target=identify(models.target),
        device=detect("cpu"),
        workload=workload,
        concurrencies=concurrencies,
    )


def planned(engine: SimulatedEngine, models: Models, store: Store) -> Plan:
    profiled(engine, models, store)
    return plan_engine(asked(models), store)[1]


def validated(engine: SimulatedEngine, models: Models, store: Store) -> EngineValidation:
    request = EngineValidateRequest(plan=asked(models), prompts=PROMPTS, max_new_tokens=NEW_TOKENS, turns=12)
    return validate_engine(request, engine, store, progress=lambda what, share: None)


def measured(engine: SimulatedEngine, setting: Setting | None, concurrency: int) -> float:
    """Return the tokens/s of a setting on all prompts."""
    prompts = engine.encode([prompt.text for prompt in PROMPTS])
    with engine.started(setting, EngineLoad(concurrency=concurrency, capacity=512)) as running:
        groups = [prompts[at : at + concurrency] for at in range(0, len(prompts), concurrency)]
        texts = tuple(text for group in groups for text in running.decode(group, NEW_TOKENS))
    whole = Sample(texts=texts)
    return 1000.0 * concurrency * whole.tokens_per_round / whole.round_ms


def sweep(engine: SimulatedEngine, concurrency: int) -> dict[Setting | None, float]:
    chains = [engine.chain(drafter, length) for drafter in engine.drafters for length in range(1, 9)]
    return {setting: measured(engine, setting, concurrency) for setting in (None, *chains, *engine.ngrams())}


@pytest.mark.parametrize("right", [{"small": 0.6, "large": 0.9}, {"small": 0.9, "large": 0.95}, {"small": 0.3}])
def test_the_plan_is_the_best_of_a_full_sweep(right: dict[str, float], models: Models, store: Store) -> None:
    engine = SimulatedEngine(right=right)
    for cell in planned(engine, models, store).cells:
        tried = sweep(engine, cell.batch)
        assert isinstance(cell.policy, ChainPolicy | PlainPolicy) or cell.drafter == "lookup"
        own = measured(engine, setting_of(engine, (cell.policy, cell.drafter)), cell.batch)  # type: ignore[arg-type]
        assert own >= 0.97 * max(tried.values())
        assert cell.prediction.tokens_per_s == pytest.approx(own, rel=0.1)
        assert cell.plain.tokens_per_s == pytest.approx(tried[None], rel=0.02)


def test_a_profile_starts_far_fewer_settings_than_a_sweep(models: Models, store: Store) -> None:
    engine = SimulatedEngine(right={"small": 0.6, "large": 0.9})
    profiled(engine, models, store, 1)
    assert len(set(engine.starts)) <= 13 < len(sweep(engine, 1))


def test_settings_of_one_concurrency_are_loaded_at_a_time(models: Models, store: Store) -> None:
    engine = SimulatedEngine(right={"small": 0.6, "large": 0.9})
    profiled(engine, models, store)
    assert engine.together == {frozenset({1}), frozenset({4}), frozenset({8})} and not engine.running


def test_what_takes_fewer_sequences_is_started_once_for_all_and_tells_the_same(models: Models, store: Store) -> None:
    several, once = (SimulatedEngine(right={"small": 0.6}, takes_fewer=fewer) for fewer in (False, True))
    told = [profiled(engine, models, store) for engine in (several, once)]
    assert len(once.starts) == len(set(once.starts)) + 1 and not once.running  # the target's own texts come first
    assert len(several.starts) > 2 * len(once.starts) - 2
    rounds = [[[(cell.batch, cell.tokens) for cell in one.measurements] for one in made.surfaces] for made in told]
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_settings_run_at_once_than_fit(most: int, models: Models, store: Store) -> None:
    engine = SimulatedEngine(right={"small": 0.6, "large": 0.9}, takes_fewer=True, most_open=most)
    free = SimulatedEngine(right={"small": 0.6, "large": 0.9}, takes_fewer=True)
    profiled(engine, models, store)
    limited = planned(engine, models, store)
    assert engine.most_running == most and not engine.running
    assert [cell.policy for cell in limited.cells] == [cell.policy for cell in planned(free, models, store).cells]


@pytest.mark.parametrize("missing", [0, 1])
def test_prompts_lose_what_the_target_has_no_positions_for(missing: int, models: Models, store: Store) -> None:
    engine = SimulatedEngine(right={"small": 0.6})
    longest = max(len(prompt) for prompt in engine.encode([prompt.text for prompt in PROMPTS]))
    planned(engine, models, store)
    engine.positions = longest + NEW_TOKENS - missing
    words = f"lose all but their last {longest - 1} tokens"
    for job in (profiled, validated):
        assert [words in note for note in job(engine, models, store).notes] == [True] * missing


def test_texts_without_room_for_any_prompt_are_refused(models: Models, store: Store) -> None:
    engine = SimulatedEngine(right={"small": 0.6})
    planned(engine, models, store)
    engine.positions = NEW_TOKENS
    for job in (profiled, validated):
        with pytest.raises(RequestError, match=f"need {NEW_TOKENS + 1} positions"):
            job(engine, models, store)


def test_searches_that_remember_are_timed_with_care_beside_those_that_do_not() -> None:
    """Each kind of search has prices of its own: two hasty timings must not decide between the two."""
    ways: list[Way] = [
        (LookupPolicy(length=8, max_ngram=2, min_ngram=2), "lookup"),
        (LookupPolicy(length=4, max_ngram=3, min_ngram=3), "lookup"),
        (ChainPolicy(length=2), "small"),
        (LookupPolicy(length=8, max_ngram=3, min_ngram=3, occurrence="mapped"), "lookup"),
        (ChainPolicy(length=3), "small"),
    ]
    plainly, _, small, mapped, _ = kinds = [who_drafts(way) for way in ways]
    assert kinds == [plainly, plainly, small, mapped, small] and len({plainly, small, mapped}) == 3


def test_drafters_that_know_nothing_and_cost_much_leave_plain_decoding(models: Models, store: Store) -> None:
    engine = SimulatedEngine(
        right={"small": 0.02}, curve=lambda c, who, share, drafted: 10.0 + 8.0 * share + 9.0 * drafted
    )
    assert [cell.policy for cell in planned(engine, models, store).cells] == [PlainPolicy(), PlainPolicy()]


def priced(large_ms: float) -> Curve:
    """Return a law in which a forward of the small drafter takes 0.5 ms."""
    forward = {"small": 0.5, "large": large_ms}
    return lambda c, who, share, drafted: 10.0 + (0.1 + forward.get(who, 0.0)) * drafted


@pytest.mark.parametrize(("large_ms", "winner"), [(0.5, "large"), (30.0, "small")])
def test_a_better_drafter_is_taken_where_it_pays(large_ms: float, winner: str, models: Models, store: Store) -> None:
    """The same acceptance at another price."""
    engine = SimulatedEngine(right={"small": 0.75, "large": 0.95}, curve=priced(large_ms))
    assert {cell.drafter for cell in planned(engine, models, store).cells} == {winner}


def test_a_validation_stands_beside_the_plan_and_is_near_its_promise(models: Models, store: Store) -> None:
    engine = SimulatedEngine(right=DRAFTERS)
    profiled(engine, models, store)
    number, plan = plan_engine(asked(models), store)
    done = validated(engine, models, store)
    (kept,) = store.validations(number)
    assert from_json(Validation, kept) == done.validation
    for cell, row, check in zip(plan.cells, done.validation.rows, done.checks, strict=True):
        assert row.error < 0.1 and row.speedup > 1.0
        assert check.drafted > check.accepted > 0
        assert row.tokens_per_round == pytest.approx(cell.prediction.tokens_per_round, rel=0.1)


def test_an_engine_that_ignores_its_setting_fails_the_validation(models: Models, store: Store) -> None:
    engine = SimulatedEngine(right=DRAFTERS)
    plan = planned(engine, models, store)
    assert all(cell.drafter is not None for cell in plan.cells)
    engine.is_deaf = True
    with pytest.raises(MeasurementError, match="drafted nothing"):
        validated(engine, models, store)


@pytest.mark.parametrize("runs", [lambda length: max(1, length // 2), lambda length: 2 * length], ids=["half", "twice"])
def test_an_engine_that_drafts_another_length_than_was_set_fails_the_validation(
    runs: Callable[[int], int], models: Models, store: Store
) -> None:
    engine = SimulatedEngine(right={"large": 0.95})
    assert all(isinstance(cell.policy, ChainPolicy) for cell in planned(engine, models, store).cells)
    engine.runs = runs
    with pytest.raises(MeasurementError, match="the length that was set has no effect"):
        validated(engine, models, store)


def chain_drafts(length: int, right: float, texts: int) -> float:
    """Return the mean draft of rounds that draft, in texts of `NEW_TOKENS` tokens."""
    rng, drafts = np.random.default_rng(0), list[int]()
    for _ in range(texts):
        at = 1
        while at < NEW_TOKENS:
            drafted = min(length, NEW_TOKENS - at - 1)
            drafts.append(drafted)
            at += 1 + int(np.cumprod(rng.random(drafted) < right).sum())
    return float(np.mean([drafted for drafted in drafts if drafted]))


@pytest.mark.thinned
@pytest.mark.parametrize("right", [0.0, 0.4, 0.8, 0.95])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_texts_that_end_cost_a_chain_less_than_half_of_what_is_let_pass(length: int, right: float) -> None:
    lacking, passes = length - chain_drafts(length, right, 400), length - least_drafted(length, NEW_TOKENS)
    assert lacking == pytest.approx(length * (length - 1) / 2 / NEW_TOKENS, rel=0.35)
    assert lacking < 0.5 * passes


def test_of_chains_longer_than_their_texts_nothing_is_asked() -> None:
    assert least_drafted(8, 9) == least_drafted(20, 8) == 0.0 < least_drafted(8, 10)


def test_another_drafter_than_the_planned_one_fails_the_validation(models: Models, store: Store) -> None:
    planned(SimulatedEngine(right={"large": 0.95}), models, store)
    with pytest.raises(MeasurementError, match="tokens per round"):
        validated(SimulatedEngine(right={"large": 0.1}), models, store)


def test_our_own_decoder_does_not_follow_an_engine_s_plan(models: Models, store: Store) -> None:
    planned(SimulatedEngine(right=DRAFTERS), models, store)
    found = choose_plan(
        "auto",
        target=identify(models.target),
        device=detect("cpu"),
        store=store.url,
        workload=None,
        temperature=0.0,
    )
    assert (found.plan, found.source) == (None, "none")


def test_what_was_not_profiled_is_refused_with_what_to_do(models: Models, store: Store) -> None:
    with pytest.raises(StoreError, match="run: spectune profile --engine"):
        plan_engine(asked(models), store)
    with pytest.raises(NoPlanError):
        validated(SimulatedEngine(right=DRAFTERS), models, store)
    profiled(SimulatedEngine(right=DRAFTERS), models, store, 1)
    with pytest.raises(RequestError, match="2 sequences at once were not profiled, 1 were"):
        plan_engine(asked(models, 2), store)


def test_a_newer_profile_counts_and_is_not_mixed_with_an_older_one(models: Models, store: Store) -> None:
    slow = SimulatedEngine(right=DRAFTERS, curve=lambda c, who, share, drafted: 100.0 + 300.0 * (share + drafted))
    assert {cell.drafter for cell in planned(slow, models, store).cells} == {None}
    assert all(cell.drafter is not None for cell in planned(SimulatedEngine(right=DRAFTERS), models, store).cells)


def test_a_drafter_of_an_earlier_profile_is_told(models: Models, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[str]:
        return [note for note in plan_engine(asked(models), store)[1].provenance.notes if "earlier profile" in note]

    profiled(SimulatedEngine(right={"small": 0.6}), models, store, 1)
    time.sleep(1.0)
    monkeypatch.setattr("spectune.tuning.engines.plan.KEPT_WITHIN_S", 0.9)
    assert not told()
    profiled(SimulatedEngine(right={"large": 0.9}), models, store, 1)
    assert [note.partition(":")[0] for note in told()] == ["small"]


def test_the_number_format_that_was_profiled_last_counts_though_it_was_begun_first(
    models: Models, store: Store
) -> None:
    for dtype in ("float32", "bfloat16", "float32"):
        profiled(SimulatedEngine(right={"small": 0.6}, dtype=dtype), models, store, 1)
    assert plan_engine(asked(models), store)[1].dtype == "float32"


def test_a_plan_goes_by_rounds_on_the_texts_of_its_workload(models: Models, store: Store) -> None:
    dear = SimulatedEngine(right={"small": 0.6}, curve=lambda c, who, share, drafted: 10.0 + 300.0 * drafted)
    request = asked(models, workload="my code")
    profiled(SimulatedEngine(right={"small": 0.6}), models, store, 1, workload="my code")
    before = plan_engine(request, store)[1]
    profiled(dear, models, store, 1, workload="chat")
    after = plan_engine(request, store)[1]
    assert after.cells == before.cells
    assert {source.regime for source in after.provenance.surfaces} == {"engine:llama.cpp-b1@my%20code"}
    assert any(source.role.startswith("round:lookup:") for source in after.provenance.surfaces)


def test_without_rounds_on_its_workload_n_grams_do_not_compete_and_a_note_says_so(models: Models, store: Store) -> None:
    done = profiled(SimulatedEngine(right={"small": 0.6}), models, store, 1, workload="code")
    store.add_trace(replace(done.traces[0], workload="chat"))  # as our own decoder recorded it
    plan = plan_engine(asked(models, workload="chat"), store)[1]
    (cell,) = plan.cells
    assert {cell.drafter, *(other.drafter for other in cell.alternatives)} == {None, "small"}
    assert "llama.cpp was not timed on those of the workload 'chat'; run: spectune profile" in plan.provenance.notes[-1]


def test_a_workload_stands_behind_a_regime_in_one_word_of_bounded_length() -> None:
    assert regime_on("engine:x-1", "default") == "engine:x-1" and is_timed_on("default", "engine:x-1")
    for name in ("code", "a @ b", "日本語" * 40):
        regime = regime_on("engine:x-1", name)
        require_regime(regime)
        assert len(regime) <= 60 and is_timed_on(name, regime)
        assert not is_timed_on("default", regime) and not is_timed_on(name, "engine:x-1")


def test_settings_and_ways_are_each_other_s_inverse() -> None:
    engine = SimulatedEngine(right=DRAFTERS)
    for setting in (*engine.ngrams(), *(engine.chain(drafter, 5) for drafter in engine.drafters)):
        way = way_of(engine, setting)
        assert way is not None and setting_of(engine, way) == setting
    assert way_of(engine, Setting(method="ngram-cache", drafter=None, knobs=(), length=1)) is None


def test_a_neighbour_is_another_setting(models: Models, store: Store) -> None:
    for cell in planned(SimulatedEngine(right=DRAFTERS), models, store).cells:
        assert neighbour_of(cell) != (cell.policy, cell.drafter)
