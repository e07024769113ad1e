"""The validate job: the plan's cell against padded plain decoding, measured and kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.db import Store, open_store
from spectune.errors import DeviceError, ModelError, NoPlanError, NoRoomError, PlanError, RequestError, StoreAwayError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.plans.provenance import Provenance
from spectune.planner.plans.validation import Validation, ValidationRow
from spectune.planner.pricing.cells import cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.lock import device_lock
from spectune.profiler.prompts import Prompt
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.excess import STALL
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import always, plain_setup, setup_of
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.family import load_family
from spectune.tuning.measuring.decoding import decode_timed, names_of
from spectune.tuning.measuring.speed_probe import CALLS, SpeedProbe, draft_probes, gauged_sizes, pace_of
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest
from spectune.tuning.validate import ValidateRequest, _context_of, _draft_surfaces, validate_stored

from ..support.limited_memory import Limit, uncollected
from ..support.scripted_clock import ScriptedClock
from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, record, surface, texts
from ..support.tiny_family import save_model

PROMPTS = [Prompt(text=f"def f{place}(x): return") for place in range(4)]


@dataclass(frozen=True)
class Bench:
    """A stored plan for two tiny models."""

    folder: Path
    store: Store
    plan: Plan

    def request(self, **other: object) -> ValidateRequest:
        asked = ValidateRequest(
            target=self.folder / "target", prompts=PROMPTS, device="cpu", workload="made up", batches=(1,),
            max_new_tokens=6, rounds=1,
        )  # fmt: skip
        return replace(asked, **other)  # type: ignore[arg-type]

    def validated(self, **other: object) -> Validation:
        return validate_stored(self.request(**other), self.store, progress=lambda what, share: None)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    save_model(tmp_path / "target", layers=2, seed=1)
    save_model(tmp_path / "small", layers=1, seed=2)
    plan = planned(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_plan(
            plan_to_json(plan), device=plan.device.fingerprint, device_kind=plan.device.kind_key,
            target=plan.target.key, workload=plan.workload, temperature=plan.temperature,
        )  # fmt: skip
        yield Bench(tmp_path, store, plan)


@cache
def solved() -> Plan:
    """Solve a made-up plan."""
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.95), texts(language, 6, lambda text: 16), every_node(2, 3))
    return solve(
        inputs(trace),
        cells_of([1, 3], [10, 40]),
        created="2026-01-01T00:00:00Z",
        spectune="0.1",
        options=SearchOptions(trials=0),
    )


def planned(folder: Path) -> Plan:
    """Return the made-up plan for the models in the folder, on this device; at context 40 rounds take twice as long."""
    drafter = identify(folder / "small", "small")
    cells = tuple(
        cell
        if cell.context == 10
        else replace(cell, prediction=cell.prediction.slower(2.0), plain=cell.plain.slower(2.0))
        for cell in solved().cells
    )
    return replace(
        solved(),
        device=detect("cpu"),
        target=identify(folder / "target"),
        drafters=(("small", drafter),),
        cells=cells,
    )


def test_a_row_sets_the_promise_beside_what_was_measured(bench: Bench) -> None:
    (row,) = bench.validated().rows
    cell = bench.plan.cell(1, 10)
    profile = bench.request().as_profile((1,))
    context = _context_of(1, requests_of(profile, load_tokenizer(str(bench.folder / "target"))))
    promised = bench.plan.at_context(cell, context).prediction
    assert 10 < context < 40, "between two cells"
    assert (row.batch, row.context, row.policy, row.drafter) == (1, 10, cell.policy.code, cell.drafter)
    assert row.predicted_tokens_per_s == promised.tokens_per_s != cell.prediction.tokens_per_s
    assert row.interval == (promised.low, promised.high)
    assert row.at_context == context
    assert row.measured_tokens_per_s > 0 and row.plain_tokens_per_s > 0
    assert row.machine_speed is not None and row.machine_speed > 0
    assert row.predicted_tokens_per_round == cell.prediction.tokens_per_round


def test_a_plan_that_nobody_should_follow_unseen_is_validated_with_a_word(bench: Bench, tmp_path: Path) -> None:
    far = replace(bench.plan.cells[0], context=900, priced_at=40)
    (tmp_path / "plan.json").write_text(plan_to_json(replace(bench.plan, cells=(*bench.plan.cells, far))))
    (tmp_path / "prompts.txt").write_text("def f(x): return\n\ndef g(y):")
    asked = {"target": "target", "plan": "plan.json", "prompts": "prompts.txt"}
    words = [word for name, file in asked.items() for word in (f"--{name}", str(tmp_path / file))]
    few = ("--batch", "1", "--max-new-tokens", "4", "--rounds", "1", "--device", "cpu")
    places = {"SPECTUNE_STORE": str(tmp_path / "none.db")}
    result = CliRunner(env=places).invoke(main, ["validate", *words, *few])
    assert result.exit_code == 0, result.output
    assert "context 900 is priced as 40, the longest that was timed" in result.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_row_counts_the_tokens_that_rounds_of_the_plan_kept(bench: Bench) -> None:
    (row,) = bench.validated(rounds=2).rows
    family = load_family(
        Models(target=bench.folder / "target", drafters={"small": bench.folder / "small"}),
        dtype="float32",
        device="cpu",
    )
    asked = ProfileRequest(
        models=Models(target=bench.folder / "target"), prompts=PROMPTS, batches=(1,), max_new_tokens=6
    )
    requests = requests_of(asked, load_tokenizer(str(bench.folder / "target")))
    setup = setup_of(bench.plan.cell(1, 10))
    decoder = family.decoder(always(setup), names=names_of(setup), batch=1, capacity=200)
    assert row.tokens_per_round == pytest.approx(decode_timed(decoder, requests, 1).tokens_per_round)


def test_in_another_number_format_than_the_plans_nothing_tells_the_machines_pace(bench: Bench) -> None:
    (row,) = bench.validated(dtype="float64").rows
    assert row.machine_speed is None and row.by_rounds is None and row.tokens_per_round is not None


def test_what_was_measured_lies_beside_the_plan(bench: Bench) -> None:
    validation = bench.validated()
    assert [from_json(Validation, text) for text in bench.store.validations(1)] == [validation]


def test_without_a_wish_every_batch_of_the_plan_is_measured(bench: Bench) -> None:
    assert [row.batch for row in bench.validated(batches=()).rows] == [1, 3]


def test_the_cell_is_the_one_that_most_rounds_are_in(bench: Bench) -> None:
    (row,) = bench.validated(max_new_tokens=44).rows
    assert row.context == 40


@pytest.mark.parametrize(("batch", "context"), [(1, 10), (3, 40)])
def test_in_a_batch_the_longest_text_says_which_cell_that_is(batch: int, context: int, bench: Bench) -> None:
    """Half of the prompts are long: in a batch of three there is one of them nearly always."""
    asked = [Request(prompt=(1,) * length, max_new_tokens=4) for length in (8, 50) * 6 + (8, 8)]
    assert bench.plan.cell(batch, _context_of(batch, asked)).context == context


def test_a_batch_that_finds_no_memory_is_told_and_those_before_it_are_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Limit(monkeypatch, tokens=60)
    with pytest.raises(NoRoomError, match=r"no room for a race of batch 3 .*; free some, or leave it out with --batch"):
        bench.validated(batches=())
    (kept,) = bench.store.validations(1)
    assert [row.batch for row in from_json(Validation, kept).rows] == [1]


def test_a_device_that_is_held_is_not_validated_beside_its_profile(bench: Bench) -> None:
    with device_lock(detect("cpu"), bench.folder / "cache"), pytest.raises(DeviceError, match="is being measured by"):
        bench.validated()


def test_a_repetition_leaves_its_memory_to_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Limit(monkeypatch)
    with uncollected():
        bench.validated(rounds=2)
    assert memory.alive.count(0) == 2


def test_a_batch_without_a_cell_is_refused_with_those_that_have_one(bench: Bench) -> None:
    with pytest.raises(RequestError, match=r"no cell for batch 2, only for \[1, 3\]"):
        bench.validated(batches=(1, 2))


def test_fewer_prompts_than_sequences_are_refused(bench: Bench) -> None:
    with pytest.raises(RequestError, match="batch 3 needs as many prompts, got 2"):
        bench.validated(batches=(3,), prompts=PROMPTS[:2])


def test_a_drafter_with_other_weights_than_the_plans_is_refused(bench: Bench) -> None:
    save_model(bench.folder / "small", layers=1, seed=99)
    with pytest.raises(ModelError, match="has other weights"):
        bench.validated()


def test_a_setup_without_a_plan_is_refused(bench: Bench) -> None:
    with pytest.raises(NoPlanError, match="spectune plan"):
        bench.validated(workload="chat")


def test_a_plan_may_be_named_whatever_it_is_for_and_is_measured_as_it_was_made(bench: Bench) -> None:
    named = bench.validated(plan="1", workload="chat", temperature=0.7)
    assert named.plan_id == 1 and len(bench.store.validations(1)) == 1
    assert [row.policy for row in named.rows] == [bench.plan.cell(1, 10).policy.code]


def test_a_plan_of_a_file_or_of_another_device_is_measured_and_kept_nowhere(bench: Bench) -> None:
    elsewhere = replace(bench.plan, device=replace(bench.plan.device, name="another processor"))
    file = bench.folder / "plan.json"
    file.write_text(plan_to_json(bench.plan))
    number = bench.store.add_plan(
        plan_to_json(elsewhere), device=elsewhere.device.fingerprint, device_kind=elsewhere.device.kind_key,
        target=elsewhere.target.key, workload=elsewhere.workload, temperature=elsewhere.temperature,
    )  # fmt: skip
    for name in (str(file), str(number)):
        done = bench.validated(plan=name)
        assert done.plan_id is None and done.rows
    assert not bench.store.validations(1) and not bench.store.validations(number)


def test_a_named_plan_of_another_model_or_engine_is_refused(bench: Bench) -> None:
    for other, told in (
        ({"target": bench.plan.drafters[0][1]}, "is for the model small, not for target; plan this model"),
        (
            {"target": replace(bench.plan.target, weights_hash="f" * 64)},
            rf"is for other weights of the same name target: f{{16}}, and these are {bench.plan.target.key}; profile",
        ),
        ({"provenance": of_an_engine(bench.plan)}, "validate it with --engine llama.cpp"),
    ):
        (bench.folder / "plan.json").write_text(plan_to_json(replace(bench.plan, **other)))
        with pytest.raises(PlanError, match=told):
            bench.validated(plan=str(bench.folder / "plan.json"))
    with pytest.raises(RequestError, match=r"cannot read the plan .*nowhere.json"):
        bench.validated(plan="nowhere.json")


def test_a_drafter_that_has_moved_is_taken_from_where_it_lies_now(bench: Bench) -> None:
    (bench.folder / "small").rename(bench.folder / "moved")
    with pytest.raises(ModelError):
        bench.validated()
    assert bench.validated(drafters={"small": bench.folder / "moved"}).rows
    with pytest.raises(RequestError, match="knows no drafter called tall; it was made with small"):
        bench.validated(drafters={"tall": bench.folder / "moved"})


def of_an_engine(plan: Plan) -> Provenance:
    """Return where a plan comes from, as if an engine had been measured."""
    surfaces = tuple(replace(each, regime="engine:llama.cpp-b1") for each in plan.provenance.surfaces)
    return replace(plan.provenance, surfaces=surfaces)


def test_at_least_one_round_is_measured(bench: Bench) -> None:
    with pytest.raises(RequestError, match="rounds must be at least 1, got 0"):
        bench.request(rounds=0)


def test_a_cell_becomes_the_setup_of_its_rounds_and_of_padded_plain_decoding(bench: Bench) -> None:
    cell = replace(
        bench.plan.cells[0], policy=ChainPolicy(length=3), drafter="small", run_tokens=(0, 2, 2, 4, 4), run_ms=()
    )
    assert (setup_of(cell).policy, setup_of(cell).drafter) == (ChainPolicy(length=3), "small")
    assert [setup_of(cell).padded(tokens) for tokens in (1, 3, 4)] == [2, 4, 4]
    assert (plain_setup(cell).policy, plain_setup(cell).drafter) == (PlainPolicy(), None)
    assert plain_setup(cell).padded(1) == 2


def test_a_rows_error_and_speed_up_are_ratios_of_what_it_measured() -> None:
    row = ValidationRow(
        batch=1, context=10, policy="plain", drafter=None, predicted_tokens_per_s=90.0, interval=(80.0, 95.0),
        measured_tokens_per_s=120.0, plain_tokens_per_s=60.0,
    )  # fmt: skip
    assert row.error == pytest.approx(0.25)
    assert row.speedup == pytest.approx(2.0)


def test_texts_machine_and_rounds_together_set_measured_and_predicted_speed_apart() -> None:
    row = ValidationRow(
        batch=1, context=10, policy="plain", drafter=None, predicted_tokens_per_s=90.0, interval=(80.0, 95.0),
        measured_tokens_per_s=120.0, plain_tokens_per_s=60.0, machine_speed=0.8, predicted_tokens_per_round=2.0,
        tokens_per_round=3.0,
    )  # fmt: skip
    assert row.by_texts == 1.5
    assert row.by_rounds == pytest.approx(120.0 / 90.0 / 1.5 / 0.8)
    assert replace(row, tokens_per_round=None).by_texts is None
    assert replace(row, predicted_tokens_per_round=None).by_rounds is None
    assert replace(row, machine_speed=None).by_rounds is None


def profiled(bench: Bench, ms: float) -> PlanCell:
    """Return a cell whose forwards took so long when they were profiled, whatever their size."""
    cell = bench.plan.cell(1, 10)
    return replace(cell, run_ms=(ms,) * len(cell.run_tokens))


@pytest.mark.parametrize(
    ("profiled_ms", "mean_ms"),
    [
        (3.0, (2 + 3 + STALL * 3.5 + 4) / 4),  # each a visit, stalls cut
        (1.0, 3.5),  # all one visit, whose median a surface keeps
    ],
)
def test_a_gauge_sets_its_mean_visit_against_the_profiled_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, profiled_ms: float, mean_ms: float
) -> None:
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    family = load_family(Models(target=bench.folder / "target"), dtype="float32", device="cpu")
    gauge = SpeedProbe(profiled(bench, profiled_ms), family.target, 1, clock=ScriptedClock(2.0, 3.0, 50.0, 4.0))
    gauge.advance(1.0)
    assert gauge.speed == pytest.approx(profiled_ms / mean_ms)


@pytest.mark.parametrize(("profiled_ms", "visits", "untimed"), [(1.0, 1, 6), (2.9, 4, 2), (30.0, 4, 0)])
def test_a_gauge_visits_as_the_profiler_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, profiled_ms: float, visits: int, untimed: int
) -> None:
    family = load_family(Models(target=bench.folder / "target"), dtype="float32", device="cpu")
    gauge, calls = SpeedProbe(profiled(bench, profiled_ms), family.target, 1), [0]
    monkeypatch.setattr(gauge, "_call", lambda: calls.append(calls.pop() + 1))
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    gauge.advance(1.0)
    assert calls == [1 + visits * untimed + CALLS]


@pytest.mark.parametrize(
    ("average_ms", "sizes"), [(0.4, {1: 1.0}), (2.5, {1: 0.5, 5: 0.5}), (4.0, {5: 1.0}), (9.0, {5: 1.0})]
)
def test_the_forwards_that_tell_the_pace_take_as_long_as_the_plans_on_average(
    bench: Bench, average_ms: float, sizes: dict[int, float]
) -> None:
    cell = bench.plan.cell(1, 10)
    prediction = replace(cell.prediction, verify_ms=average_ms)
    drafting = replace(
        cell,
        policy=ChainPolicy(length=4),
        drafter="small",
        run_tokens=(0, 1, 2, 3, 4, 5),
        run_ms=(0.0, 1.0, 1.0, 2.0, 3.0, 4.0),
        prediction=prediction,
    )
    assert gauged_sizes(drafting) == pytest.approx(sizes)
    assert gauged_sizes(replace(drafting, run_ms=())) == {5: 1.0}, "an older plan knows no forwards by size"


def test_the_pace_of_two_forwards_is_that_of_their_mean(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    family = load_family(Models(target=bench.folder / "target"), dtype="float32", device="cpu")
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    gauges = []
    for profiled_ms, now_ms in ((30.0, 30.0), (60.0, 90.0)):
        clock = ScriptedClock(now_ms, now_ms, now_ms, now_ms)
        gauges.append(SpeedProbe(profiled(bench, profiled_ms), family.target, 1, clock=clock))
        gauges[-1].advance(1.0)
    assert [gauge.speed for gauge in gauges] == pytest.approx([1.0, 2 / 3])
    assert pace_of([(gauges[0], 0.75), (gauges[1], 0.25)]) == pytest.approx((22.5 + 15.0) / (22.5 + 22.5))


def test_a_drafter_s_forward_is_gauged_as_often_as_a_round_runs_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    models = Models(target=bench.folder / "target", drafters={"small": bench.folder / "small"})
    family = load_family(models, dtype="float32", device="cpu")
    cell = bench.plan.cell(1, 10)
    cell = replace(cell, prediction=replace(cell.prediction, draft_ms=6.0))
    own = surface("small", "draft", lambda batch, context, tokens: 1.0 + 0.1 * context)
    ((probe, forwards),) = draft_probes(cell, family.drafters, {"small": own})
    assert (probe.profiled_ms, forwards) == pytest.approx((2.0, 3.0))
    probe.advance(1.0)
    assert probe.speed > 0.0
    elsewhere = replace(own, regime="compiled"), replace(own, measurements=own.measurements[-1:])  # batch 3 alone
    assert [draft_probes(cell, family.drafters, {"small": each}) for each in elsewhere] == [[], []]
    assert draft_probes(cell, family.drafters, {}) == draft_probes(cell, {}, {"small": own}) == []


def test_the_surfaces_of_a_plan_s_drafters_come_from_the_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict(bench.plan.drafters)
    own = replace(surface("small", "draft", lambda batch, context, tokens: 1.0), model=names["small"].key)
    sources = tuple(
        replace(source, model=own.model) if source.role == "draft" else source
        for source in bench.plan.provenance.surfaces
    )
    plan = replace(bench.plan, provenance=replace(bench.plan.provenance, surfaces=sources))
    assert _draft_surfaces(plan, bench.store) == {}
    own = replace(own, device=plan.device.fingerprint)
    fields = {name: getattr(own, name) for name in ("device", "model", "role", "regime", "dtype", "attention")}
    bench.store.add_measurements(SurfaceKey(**fields), own.measurements)
    assert _draft_surfaces(plan, bench.store) == {"small": own}

    def away(*asked: object, **named: object) -> list[LatencySurface]:
        raise StoreAwayError("the service is away")

    monkeypatch.setattr(bench.store, "surfaces", away)
    assert _draft_surfaces(plan, bench.store) == {}


@dataclass
class SlowDraft:
    """A forward that takes twice as long as it did, and all of a round."""

    name = "draft"
    tokens_per_s, profiled_ms, mean_ms = 1.0, 1e9, 2e9

    def advance(self, share: float) -> None: ...


def test_the_pace_of_drafts_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.tuning.validate.draft_probes", lambda *asked: [(SlowDraft(), 1.0)])
    (row,) = bench.validated().rows
    assert row.machine_speed == pytest.approx(0.5, rel=1e-3)


def test_a_gauge_visits_for_about_as_long_as_others_decode(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    family = load_family(Models(target=bench.folder / "target"), dtype="float32", device="cpu")
    gauge, calls = SpeedProbe(profiled(bench, 1.0), family.target, 1), [0]
    monkeypatch.setattr(gauge, "_call", lambda: calls.append(calls.pop() + 1))
    gauge.advance(1.0)
    assert calls == [1 + 6 * (6 + 4)]  # six visits of ten calls of a millisecond


def test_a_cell_of_an_older_plan_is_gauged_by_its_plain_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(bench.plan.cell(1, 10), run_ms=())
    family = load_family(Models(target=bench.folder / "target"), dtype="float32", device="cpu")
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    gauge = SpeedProbe(cell, family.target, 3, clock=ScriptedClock(1.0, 1.0, 1.0, 1.0))
    gauge.advance(1.0)
    assert gauge.speed == pytest.approx(cell.plain.verify_ms / 1.0)


def test_answers_behind_the_target_s_last_position_are_refused(bench: Bench) -> None:
    with pytest.raises(RequestError, match=r"need \d+ positions and the model has \d+; lower --max-new-tokens"):
        bench.validated(max_new_tokens=100_000)
    assert not bench.store.validations(1)


def test_an_error_at_the_machines_pace_leaves_the_machine_out() -> None:
    row = ValidationRow(
        batch=1, context=10, policy="plain", drafter=None, predicted_tokens_per_s=100.0, interval=(90.0, 110.0),
        measured_tokens_per_s=80.0, plain_tokens_per_s=80.0, machine_speed=0.8,
    )  # fmt: skip
    assert row.error == pytest.approx(0.25) and row.error_at_pace == pytest.approx(0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"plain_tokens_per_s": 0.0},
        {"measured_tokens_per_s": -1.0},
        {"predicted_tokens_per_s": float("nan")},
        {"measured_tokens_per_s": float("inf")},
        {"plain_tokens_per_s": 1e-320},
        {"interval": (110.0, 90.0)},
        {"machine_speed": 0.0},
        {"tokens_per_round": 0.0},
        {"predicted_tokens_per_round": float("nan")},
    ],
)
def test_a_row_that_cannot_have_been_measured_is_refused(wrong: dict[str, object]) -> None:
    row = ValidationRow(
        batch=1, context=10, policy="plain", drafter=None, predicted_tokens_per_s=100.0, interval=(90.0, 110.0),
        measured_tokens_per_s=80.0, plain_tokens_per_s=80.0, machine_speed=0.8,
    )  # fmt: skip
    with pytest.raises(PlanError, match=r"got .*; "):
        replace(row, **wrong)  # type: ignore[arg-type]
