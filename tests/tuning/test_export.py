"""The export job: solved anew on the plan's own inputs, and among its alternatives where there are none."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.db.rows import Records
from spectune.engines.export import Exported
from spectune.engines.grids import FIRST_LOOKUPS, LOOKUPS
from spectune.errors import RequestError
from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import cells_at, cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price
from spectune.planner.search.restricted import prices
from spectune.planner.search.search import solve
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.tuning.engines.counters import read_counters
from spectune.tuning.engines.sps import sps_table
from spectune.tuning.export import ExportRequest, export, inputs_of_plan

from ..support.engine_policies import POLICIES, cell_with
from ..support.engine_policies import measured as measured_in_engine
from ..support.priced_cells import plan_with
from ..support.synthetic import (
    DEVICE,
    TARGET,
    Language,
    SkilledDrafter,
    every_node,
    inputs,
    model,
    record,
    surface,
    texts,
)


@cache
def measured() -> PlanInputs:
    """A target whose verify is dear at batch 3, so that other lengths pay there, and a drafter of middling skill."""
    spoken = Language(3)
    trace = record(SkilledDrafter(spoken, 0.7), texts(spoken, 6, lambda text: 16), every_node(3, 3))
    return inputs(trace, verify_ms=lambda batch, context, tokens: 10.0 + (0.1 if batch == 1 else 4.0) * tokens)


@cache
def planned() -> Plan:
    found = solve(
        measured(),
        cells_of((1, 3), (2, 40)),
        created="2026-01-01T00:00:00Z",
        spectune="0",
        options=SearchOptions(trials=0),
    )
    assert any(cell.policy.kind not in ("plain", "chain", "lookup") for cell in found.cells)
    return found


@cache
def solved(engine: str) -> Exported:
    return export(planned(), ExportRequest(engine=engine), measured())


def rate(policy: TreePolicy, drafter: str | None) -> float:
    """Return the mean logarithm of a policy's speed over the plan's cells; -inf where it cannot run in one."""
    cells = cells_of((1, 3), (2, 40))
    return sum(math.log(price(measured(), cell, policy, drafter).tokens_per_s) for cell in cells) / len(cells)


def test_one_length_for_all_is_the_best_of_all_chains_and_lookups() -> None:
    """llama.cpp: every chain length and every n-gram of one size, tried one by one."""
    found = solved("llama.cpp")
    chains = [rate(ChainPolicy(length=length), "small") for length in (1, 2, 3, 4, 5, 6, 7, 8)]
    grams = [
        rate(LookupPolicy(length=length, max_ngram=n, min_ngram=n), LOOKUP) for length in (1, 2, 4, 8) for n in (1, 2)
    ]
    best = max(*chains, *grams, rate(PlainPolicy(), None))
    own = sum(
        math.log(price(measured(), cell, one.policy, one.drafter).tokens_per_s)
        for cell, one in zip(cells_of((1, 3), (2, 40)), planned().cells, strict=True)
    )
    assert found.kept is not None
    assert math.log(found.kept) >= best - own / 4 - 0.0051


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "transformers", "llama.cpp", "openvino"])
def test_what_is_dropped_is_priced_on_both_sides(engine: str) -> None:
    found = solved(engine)
    assert found.basis == "re-solved" and found.dropped
    assert all(one.loss is not None for one in found.dropped)
    kept = math.prod(1.0 - (one.loss or 0.0) for one in found.dropped) ** (1.0 / len(planned().cells))
    assert found.kept == pytest.approx(kept)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "openvino"])
def test_what_an_engine_pads_has_the_price_of_full_rounds_and_what_was_planned_its_own(engine: str) -> None:
    cell, lookup = cells_of((1,), (40,))[0], LookupPolicy(length=4, max_ngram=2)
    plan = replace(planned(), drafters=(), cells=(cell_with(1, 40, lookup, LOOKUP, 150.0),))
    (dropped,) = export(plan, ExportRequest(engine=engine), measured()).dropped
    grid: list[tuple[TreePolicy, str | None]] = [(policy, LOOKUP) for policy in (*LOOKUPS, *FIRST_LOOKUPS)]
    full = [
        by_place[1, 40].tokens_per_s
        for (policy, _), by_place in prices(measured(), [cell], grid, is_padded=True).items()
        if by_place and dropped.gets.endswith(f", priced as {policy.code}")
    ]
    assert dropped.gets_tokens_per_s in full
    assert dropped.wanted_tokens_per_s == pytest.approx(price(measured(), cell, lookup, LOOKUP).tokens_per_s)


def test_a_batch_of_one_context_answers_for_all_of_them_as_in_the_plan() -> None:
    """Batch 1 has a cell behind 10 tokens too, batch 3 has not: its rounds there are priced where they are."""
    grows = surface("large", "verify", lambda batch, context, tokens: 1.0 + context)
    found, tree = replace(measured(), verify=grows), OptTreePolicy(nodes=4, children=3)
    cells = cells_at([(1, 2), (1, 18), (3, 2)])
    own = (cell_with(cell.batch, cell.context, tree, "small", 150.0) for cell in cells)
    dropped = export(replace(planned(), cells=tuple(own)), ExportRequest(engine="vllm"), found).dropped
    told = {(one.batch, one.context): one.wanted_tokens_per_s for one in dropped}
    for cell in cells:
        assert told[cell.batch, cell.context] == pytest.approx(price(found, cell, tree, "small").tokens_per_s)


def test_an_engine_that_follows_the_batch_keeps_at_least_as_much() -> None:
    fixed = export(planned(), ExportRequest(engine="vllm", version="0.20"), measured())
    follows = export(planned(), ExportRequest(engine="vllm", version="0.25"), measured())
    assert (follows.kept or 0.0) >= (fixed.kept or 1.0) - 0.005


def test_what_an_engine_can_follow_is_exported_as_planned_whatever_ties_with_it() -> None:
    """Every chain of 1 to 8 is a candidate here, and some are faster than those of this plan."""
    slow = [ChainPolicy(length=7), ChainPolicy(length=8)]
    cells = [
        cell_with(cell.batch, cell.context, one, "small", 150.0)
        for cell, one in zip(planned().cells, slow * 2, strict=True)
    ]
    found = export(replace(planned(), cells=tuple(cells)), ExportRequest(engine="vllm"), measured())
    assert (found.basis, found.kept, found.dropped) == ("as planned", 1.0, ())
    assert "[[1, 1, 7], [2, 4096, 8]]" in found.command


def test_without_inputs_the_plan_s_alternatives_are_chosen_from_and_it_says_so() -> None:
    found = export(planned(), ExportRequest(engine="vllm"), None, "the store is empty")
    assert found.basis == "alternatives"
    assert "not solved for anew: the store is empty" in " ".join(found.notes)


def test_solving_anew_is_no_worse_than_the_alternatives() -> None:
    """The alternatives are but the fastest of each kind, one per cell."""
    for engine in ("vllm", "llama.cpp", "sglang"):
        listed = export(planned(), ExportRequest(engine=engine), None)
        anew = solved(engine)
        if listed.kept is not None and anew.kept is not None:
            assert anew.kept >= listed.kept - 0.006


def test_a_speed_that_the_plan_does_not_tell_is_not_made_up() -> None:
    plan = plan_with(
        cell_with(1, 100, ChainPolicy(length=5), "small", 200.0),
        cell_with(4, 100, POLICIES["eagle2"], "small", 200.0, {(ChainPolicy(length=2), "small"): 120.0}),
    )
    found = export(plan, ExportRequest(engine="llama.cpp"), None)
    (dropped,) = found.dropped
    assert (dropped.gets, dropped.gets_tokens_per_s, found.kept) == ("chain of 5", None, None)


def test_the_optimism_of_a_promise_is_put_back_before_it_is_compared() -> None:
    cell = cell_with(1, 100, POLICIES["eagle2"], "small", 180.0, {(ChainPolicy(length=2), "small"): 150.0})
    errors = replace(cell.prediction.errors, optimism=0.1)
    plan = plan_with(replace(cell, prediction=replace(cell.prediction, errors=errors)))
    (dropped,) = export(plan, ExportRequest(engine="vllm"), None).dropped
    assert dropped.wanted_tokens_per_s == pytest.approx(200.0)
    assert dropped.loss == pytest.approx(0.25)


def test_a_store_that_holds_the_measurements_brings_the_inputs(tmp_path: Path) -> None:
    drafter = measured().drafters[0]
    held = Records(
        devices=(DEVICE,),
        models=(TARGET, drafter.model),
        surfaces=(measured().verify, drafter.surface),
        overheads=(measured().overhead,),
        traces=(drafter.trace,),
    )
    with open_store(str(tmp_path / "store.db")) as store:
        assert inputs_of_plan(planned(), store)[0] is None
        store.add_records(held)
        found, why_not = inputs_of_plan(planned(), store)
        assert found is not None and not why_not
        assert export(planned(), ExportRequest(engine="vllm"), found) == solved("vllm")


def test_inputs_that_lack_the_plan_s_cells_are_not_used_and_a_note_says_why() -> None:
    plan = replace(planned(), cells=tuple(replace(cell, batch=cell.batch * 5) for cell in planned().cells))
    found = export(plan, ExportRequest(engine="vllm"), measured())
    assert found.basis == "alternatives" and "batch" in found.notes[-1]


def test_inputs_of_another_target_are_refused() -> None:
    with pytest.raises(RequestError, match="the measurements are of large, the plan is for another"):
        export(replace(planned(), target=model("another")), ExportRequest(engine="vllm"), measured())


def test_an_engine_s_plan_is_not_priced_on_our_own_decoder_s_measurements() -> None:
    with pytest.raises(RequestError, match=r"the plan was measured in llama\.cpp"):
        export(measured_in_engine(planned()), ExportRequest(engine="llama.cpp"), measured())


def test_a_drafter_that_the_plan_does_not_have_is_refused() -> None:
    request = ExportRequest(engine="vllm", drafters={"large": Path("x")})
    with pytest.raises(RequestError, match="it has small, medium; name one of these"):
        export(plan_with(cell_with(1, 100, PlainPolicy(), None, 100.0)), request, None)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"sglang, vllm, tensorrt-llm, transformers, llama\.cpp, openvino"):
        ExportRequest(engine="exllama")


def test_paths_of_today_stand_in_the_command() -> None:
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    request = ExportRequest(engine="llama.cpp", target=Path("a/t.gguf"), drafters={"small": Path("b/d.gguf")})
    found = export(plan, request, None)
    assert "--model a/t.gguf" in found.command and "--spec-draft-model b/d.gguf" in found.command
    assert not any("convert" in note for note in found.notes)


def test_sglang_gets_the_target_s_costs_as_its_own_table(tmp_path: Path) -> None:
    found = solved("sglang")
    table = tmp_path / "sps.json"
    table.write_text(dict(found.files)["sps.json"])
    told = {step.tokens: step.step_ms for step in read_counters(table, "sglang-sps").steps}
    for cell in measured().verify.measurements:
        alike = [
            one.median_ms
            for one in measured().verify.measurements
            if one.batch * one.tokens == cell.batch * cell.tokens
        ]
        assert told[cell.batch * cell.tokens] == pytest.approx(statistics.median(alike))
    assert any("--speculative-dspark-sps-table-path" in note for note in found.notes)


def test_a_call_that_was_disturbed_is_left_to_its_neighbours_in_that_table() -> None:
    verify = surface("large", "verify", lambda batch, context, tokens: 90.0 + tokens, batches=(1,), contexts=(64,))
    place = len(verify.measurements) // 2
    cells = list(verify.measurements)
    cells[place] = replace(cells[place], repeats_ms=(662.0,), drift=(), disturbed=())
    told = json.loads(sps_table(replace(verify, measurements=tuple(cells))))
    steps = dict(zip(told["sample_batch_tokens"], told["sample_steps_per_sec"], strict=True))
    assert steps[cells[place].tokens] == pytest.approx(1000.0 / (90.0 + cells[place + 1].tokens), rel=0.02)
    assert min(steps.values()) > 1000.0 / 200.0


def test_a_plan_that_nobody_should_follow_unseen_says_so_where_it_is_exported() -> None:
    plan = plan_with(replace(cell_with(1, 900, ChainPolicy(length=3), "small", 200.0), priced_at=100))
    notes = export(plan, ExportRequest(engine="vllm"), None).notes
    assert [note for note in notes if note.startswith("context 900 is priced as 100")]


def test_no_other_engine_and_no_plan_without_measurements_gets_that_table() -> None:
    assert "sps.json" not in dict(solved("vllm").files)
    assert "sps.json" not in dict(export(planned(), ExportRequest(engine="sglang"), None).files)
