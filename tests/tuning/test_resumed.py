"""Verifications from an exit's states: timed as they are decoded, kept, planned from, and run by a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import MeasurementError, RequestError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import PlanCell
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.profiler.identity import identify
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.document import SurfaceDocument, TraceDocument
from spectune.profiler.records.excess import STALL
from spectune.profiler.records.role import RESUME
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import to_json
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import ExitDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter_shapes import ExitShape, exit_config
from spectune.runtime.models.exit import ExitModel
from spectune.runtime.models.forward import ForwardInput, LeftStates
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.shapes import room_of, runner_of
from spectune.training.cards import save_weights
from spectune.tuning.documents import PlanFiles, inputs_from_files
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.latency_profile import LatencyRequest, profile_latency
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.overhead import measure_overhead
from spectune.tuning.measuring.speed_probe import SpeedProbe
from spectune.tuning.request import Models, PlanRequest

from ..planner.test_resumed import CHEAP_MS, WHOLE_MS, measured, solved
from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.scripted_clock import ScriptedClock
from ..support.synthetic import DEVICE, TARGET
from ..support.tiny_exits import WIDTH, exit_weights, tiny_exit
from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_lean

__all__ = ["timed_coarsely"]

LEAN = tiny_lean(layers=3, seed=0)
EXIT = tiny_exit(LEAN, exit_weights(32), 2)
Seen = tuple[str, tuple[int, ...], tuple[int, ...] | None, int]  # what ran, its tokens, its mask, positions in sight


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Return what runs from now on: readings of an exit without a head, and resumed verifications."""
    found: list[Seen] = []
    leave, resume = ExitModel.leave, LeanModel.resume

    def noted(name: str, step: ForwardInput) -> None:
        mask = None if step.bias is None else tuple(step.bias.shape)
        found.append((name, tuple(step.tokens.shape), mask, step.seen))

    def leaving(self: ExitModel, step: ForwardInput, cache: KeyValueCache, left: object) -> None:
        noted(f"the first {cache.layers}", step)
        leave(self, step, cache, left)  # type: ignore[arg-type]

    def resuming(self: LeanModel, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> object:
        noted(f"behind {left.layers} of {cache.layers}", step)
        return resume(self, step, cache, left)

    monkeypatch.setattr(ExitModel, "leave", leaving)
    monkeypatch.setattr(LeanModel, "resume", resuming)
    return found


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_timed_is_what_is_decoded(batch: int, seen: list[Seen]) -> None:
    runner_of(EXIT, RESUME, identity="it", slots=batch, capacity=60).prepare(batch, 11, 5)()
    timed = list(seen)
    seen.clear()
    schedule = always(StepConfig(policy=ResumedPolicy(draft=ChainPolicy(length=4)), drafter="it"))
    drafters = {"it": ExitDrafter(EXIT, slots=batch, capacity=60)}
    decoder = Engine(LEAN, drafters, schedule, slots=batch, capacity=60)
    for _ in range(batch):
        decoder.admit(Request(prompt=tuple(range(11)), max_new_tokens=20))
    assert not decoder.step().faults
    assert (
        timed
        == seen
        == [
            ("the first 2", (batch, 1), None, 16),
            ("behind 2 of 3", (batch, 5), (batch, 5, 16), 16),
        ]
    )


def test_a_runner_says_what_it_runs_and_refuses_what_does_not_fit() -> None:
    capacity = room_of(RESUME, 20, 5)
    runner = runner_of(EXIT, RESUME, identity="it", slots=2, capacity=capacity)
    assert (runner.identity, runner.role, runner.regime, runner.dtype) == ("it", RESUME, "eager", "float64")
    runner.prepare(2, 20, 5)()
    with pytest.raises(MeasurementError, match=f"exceeds 2 slots of {capacity}"):
        runner.prepare(2, 20, 6)


@pytest.mark.parametrize(("model", "regime"), [(LEAN, "eager"), (EXIT, "compiled")])
def test_what_is_no_exit_or_does_not_run_eagerly_is_not_timed_so(model: LeanModel, regime: str) -> None:
    with pytest.raises(MeasurementError, match=f"as {regime}; leave the role out"):
        runner_of(model, RESUME, regime, identity="it", slots=1, capacity=60)


def test_the_host_s_part_of_its_rounds_is_measured_where_an_exit_drafts() -> None:
    requests = [Request(prompt=(1, 2, 1, 2, place), max_new_tokens=40) for place in range(3)]
    samples = measure_overhead(Family(target=LEAN, drafters={"it": EXIT}), requests, batch=2, drafter="it")
    own = [(sample.draft_forwards, sample.nodes) for sample in samples if sample.kind == "resumed"]
    assert own == [(4, 5)] and "stack" not in {sample.kind for sample in samples}


def documents(found: PlanInputs) -> dict[str, SurfaceDocument | TraceDocument]:
    (drafter,) = found.drafters
    resume = drafter.resume
    assert resume is not None
    return {
        "verify": SurfaceDocument(surface=found.verify, device=DEVICE, model=TARGET, overhead=found.overhead),
        "self": SurfaceDocument(surface=drafter.surface, device=DEVICE, model=drafter.model),
        "resume": SurfaceDocument(surface=resume, device=DEVICE, model=drafter.model),
        "trace": TraceDocument(trace=drafter.trace, target=TARGET, drafter=drafter.model),
    }


def read(folder: Path, names: tuple[str, ...]) -> PlanInputs:
    for name, document in documents(measured()).items():
        (folder / f"{name}.json").write_text(to_json(document))
    surfaces = tuple(folder / f"{name}.json" for name in names)
    return inputs_from_files(PlanFiles(surfaces=surfaces, traces=(folder / "trace.json",)))


def test_a_plan_from_files_knows_it_where_its_surface_is_given(tmp_path: Path) -> None:
    assert read(tmp_path, ("verify", "self", "resume")) == measured()
    assert read(tmp_path, ("verify", "self")).drafters[0].resume is None
    (tmp_path / "more.json").write_text(to_json(documents(measured())["resume"]))
    with pytest.raises(RequestError, match="both resume surfaces"):
        read(tmp_path, ("verify", "self", "resume", "more"))


def test_the_gauge_of_such_a_cell_times_a_plain_round_and_knows_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.tuning.measuring.speed_probe.TURN_MS", 0.0)
    (cell,) = solved(CHEAP_MS).cells
    nodes = cell.policy.max_verify_tokens
    gauge = SpeedProbe(cell, LEAN, nodes, clock=ScriptedClock(2.0, 3.0, 50.0, 4.0))
    gauge.advance(1.0)
    assert nodes > 1 and gauge.name == "gauge of 1 tokens"
    assert gauge.speed == pytest.approx((WHOLE_MS + 0.1) / ((2 + 3 + STALL * 3.5 + 4) / 4))


def stored(folder: Path, *resumes: LatencySurface) -> LatencySurface | None:
    """Return what a plan from a store takes of these surfaces of the same exit."""
    found, (drafter,) = measured(), measured().drafters
    with open_store(str(folder / "store.db")) as store:
        store.add_device(found.device)
        for model in (found.target, drafter.model):
            store.add_model(model)
        for own in (found.verify, drafter.surface, *resumes):
            names = ("device", "model", "role", "regime", "dtype", "attention")
            key = SurfaceKey(**{name: getattr(own, name) for name in names})
            store.add_measurements(key, own.measurements)
        store.add_overhead(found.overhead)
        store.add_trace(drafter.trace)
        request = PlanRequest(target=TARGET, device=DEVICE, dtype="float32", workload=found.workload, trials=2)
        return inputs_from_store(request, store).drafters[0].resume


def of_batch(measured_at: int, batch: int, attention: str) -> LatencySurface:
    """Return what was measured at one batch size, as if at another and by another kernel."""
    resume = measured().drafters[0].resume
    assert resume is not None
    cells = tuple(replace(cell, batch=batch) for cell in resume.measurements if cell.batch == measured_at)
    return replace(resume, attention=attention, measurements=cells)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_several_surfaces_in_a_store_that_of_the_target_s_batches_is_taken(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    whole = measured().drafters[0].resume
    assert whole is not None and whole.batches == measured().verify.batches == (1, 3)
    some = (whole, of_batch(1, 1, "one"), of_batch(3, 3, "other"))
    assert stored(tmp_path, *(some[place] for place in order)) == whole


def test_a_surface_without_a_batch_of_the_target_s_is_not_taken(tmp_path: Path) -> None:
    assert stored(tmp_path, of_batch(1, 7, "")) is None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a target of three layers, an exit behind the second, and a store that knows both."""
    folder = tmp_path_factory.mktemp("resumed")
    save_model(folder / "target", layers=3, seed=0)
    (folder / "exit").mkdir()
    shape = ExitShape(layers=2, width=WIDTH, target=identify(folder / "target").weights_hash)
    hidden = int(json.loads((folder / "target" / "config.json").read_text())["hidden_size"])
    save_weights(folder / "exit", exit_weights(hidden), exit_config(shape))
    prompts = [{"prompt": f"def f{number}(x): return {number}"} for number in range(4)]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    return folder


def typed(folder: Path, *arguments: str) -> Result:
    places = {"SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_CACHE": str(folder / "run")}
    result = CliRunner(env=places).invoke(main, ["-q", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_from_a_profile_to_text(place: Path, tmp_path: Path, seen: list[Seen]) -> None:
    """The plan is bent onto the exit's states, as no tiny target is faster with them."""
    target = ("--target", str(place / "target"))
    given = (*target, "--drafter", f"self={place / 'exit'}", "--prompts", str(place / "prompts.jsonl"))
    few = ("--dtype", "float32", "--batch", "1", "--max-new-tokens", "8", "--record", "quick")
    foreseen = json.loads(typed(place, "profile", *given, *few, "--dry-run", "--json").stdout)
    assert [model["role"] for model in foreseen["models"]] == ["verify", "self", RESUME]
    facts = json.loads(typed(place, "profile", *given, *few, "--json").stdout)
    assert [surface["role"] for surface in facts["surfaces"]] == ["verify", "self", RESUME]
    out = tmp_path / "plan.json"
    typed(place, "plan", *target, "--dtype", "float32", "--trials", "2", "-o", str(out))
    plan = plan_from_json(out.read_text())
    assert all("resumed" in {cell.policy.kind, *(o.policy.kind for o in cell.alternatives)} for cell in plan.cells)
    policy = ResumedPolicy(draft=ChainPolicy(length=3))
    bent = replace(plan, cells=tuple(onto(cell, policy) for cell in plan.cells))
    out.write_text(plan_to_json(bent))
    seen.clear()
    asked = ("run", *target, "--prompt", "def main(", "--max-new-tokens", "16", "--json")
    drafted = json.loads(typed(place, *asked, "--plan", str(out)).stdout)
    plain = json.loads(typed(place, *asked, "--plan", "none", "--dtype", "float32").stdout)
    assert drafted["text"] == plain["text"]
    assert drafted["events"] == [] and drafted["rounds"] < plain["rounds"]
    assert {name for name, *_ in seen} == {"the first 2", "behind 2 of 3"}


def onto(cell: PlanCell, policy: ResumedPolicy) -> PlanCell:
    kept = tuple(other for other in cell.alternatives if other.policy.kind != "resumed")
    return replace(
        cell, policy=policy, drafter="self", run_tokens=(0, 1, 2, 3, 4), run_ms=(), shape=None, alternatives=kept
    )


def test_alone_it_is_timed_of_exits_only(place: Path, tmp_path: Path) -> None:
    models = Models(target=place / "target", drafters={"self": place / "exit"})
    asked = {"contexts": (8,), "roles": ("draft", RESUME), "dtype": "float32", "batches": (1,)}
    request = LatencyRequest(models=models, budget_s=BUDGET_S, held_out=0, **asked)  # type: ignore[arg-type]
    with open_store(str(tmp_path / "store.db")) as store:
        found = profile_latency(request, store, lock_wait_s=60.0, progress=lambda *_: None)
    assert [surface.role for surface in found.surfaces] == ["self", RESUME]
    tokens = {cell.tokens for cell in found.surfaces[1].measurements}
    assert (min(tokens), max(tokens)) == (2, 21)
    with pytest.raises(RequestError, match="resume is timed of exits, and none is among the drafters"):
        replace(request, models=Models(target=place / "target"))
