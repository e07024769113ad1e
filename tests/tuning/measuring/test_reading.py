"""Reading prompts against the clock: of every kind of drafter, kept with the profile and found by the plan."""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from functools import partial
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.errors import RequestError
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.role import READ
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.inputs import inputs_from_store, inputs_of, readings_of
from spectune.tuning.latency_profile import LatencyRequest
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.reading import REPEATS, measure_reading
from spectune.tuning.profile import profile
from spectune.tuning.request import Identities, PlanRequest, ProfileRequest

from ...support.coarse_design import timed_coarsely
from ...support.synthetic import model
from ...support.tiny_blocks import block_weights, tiny_block
from ...support.tiny_exits import exit_weights, tiny_exit
from ...support.tiny_family import quick_request
from ...support.tiny_heads import head_weights, tiny_head
from ...support.tiny_models import perturbed, tiny_llama
from ...support.tiny_recycling import tiny_recycling

__all__ = ["timed_coarsely"]

LLAMA = tiny_llama(layers=3, seed=3)
TARGET = LeanModel(LLAMA)
DRAFTERS: dict[str, CausalModel] = {
    "model": LeanModel(perturbed(LLAMA, 0.2)),
    "head": tiny_head("eagle", LLAMA, head_weights("eagle", LLAMA)),
    "block": tiny_block("medusa", LLAMA, block_weights("medusa", LLAMA)),
    "exit": tiny_exit(TARGET, exit_weights(TARGET.hidden), 2),
    "recycling": tiny_recycling(LLAMA),
}
KEYS: dict[str, ModelIdentity] = {name: model(name) for name in DRAFTERS}
timed = partial(measure_reading, device=detect("cpu"), dtype="float64", budget_s=5.0)


def identities(names: Many[str]) -> Identities:
    return Identities(target=model("large"), drafters={name: KEYS[name] for name in names})


def test_all_kinds_of_drafters_are_timed_in_the_order_of_the_family() -> None:
    found = timed(Family(target=TARGET, drafters=DRAFTERS), identities(list(DRAFTERS)), (20, 60))
    assert [surface.model for surface in found] == [model("large").key, *(each.key for each in KEYS.values())]
    for surface in found:
        assert surface.role == READ and surface.dtype == "float64"
        cells = [(cell.batch, cell.context_tokens, cell.tokens, len(cell.repeats_ms)) for cell in surface.measurements]
        assert cells == [(1, 0, 20, REPEATS), (1, 0, 60, REPEATS)]


def test_what_a_drafter_reads_is_the_prompt_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    reading = ModelDrafter.read_along

    def noted(self: ModelDrafter, slot: int, tokens: Many[int], held: int) -> None:
        read.append(len(tokens) - held)
        reading(self, slot, tokens, held)

    monkeypatch.setattr(ModelDrafter, "read_along", noted)
    timed(Family(target=TARGET, drafters={"model": DRAFTERS["model"]}), identities(["model"]), (20, 60))
    assert read == [20] * (REPEATS + 1) + [60] * (REPEATS + 1)


def test_what_would_take_too_long_is_not_read_and_all_read_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(self: ModelDrafter, slot: int, tokens: Many[int], held: int) -> None:
        time.sleep(0.001 * len(tokens))

    monkeypatch.setattr(ModelDrafter, "read_along", slowly)
    family = Family(target=TARGET, drafters={"model": DRAFTERS["model"]})
    target, drafter = timed(family, identities(["model"]), (10, 20, 80), budget_s=6 * 0.05)
    assert [cell.tokens for cell in drafter.measurements] == [10, 20]
    assert [cell.tokens for cell in target.measurements] == [10, 20, 80]
    assert 1 <= len(drafter.measurements[1].repeats_ms) <= REPEATS
    _, drafter = timed(family, identities(["model"]), (10, 20), budget_s=1e-9)
    assert [(cell.tokens, len(cell.repeats_ms)) for cell in drafter.measurements] == [(10, 1)]


def test_a_length_that_memory_does_not_hold_is_a_failure_and_no_longer_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: ModelDrafter, slot: int, tokens: Many[int], held: int) -> None:
        if len(tokens) > 20:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(ModelDrafter, "read_along", fails)
    family = Family(target=TARGET, drafters={"model": DRAFTERS["model"]})
    _, drafter = timed(family, identities(["model"]), (20, 40, 60))
    assert [(cell.tokens, cell.failure) for cell in drafter.measurements] == [
        (20, None),
        (40, "RuntimeError: out of memory"),
    ]


def test_a_cache_that_memory_does_not_hold_costs_its_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("spectune.tuning.measuring.reading.model_drafter", fails)
    family = Family(target=TARGET, drafters={"model": DRAFTERS["model"]})
    target, drafter = timed(family, identities(["model"]), (20, 40))
    assert [cell.tokens for cell in target.measurements] == [20, 40]
    assert [cell.failure for cell in drafter.measurements] == ["RuntimeError: out of memory"]
    assert set(readings_of([target, drafter])) == {model("large").key}


def test_positions_that_a_model_has_not_are_not_read() -> None:
    short = LeanModel(perturbed(LLAMA, 0.2))
    short.longest_context = 50
    _, drafter = timed(Family(target=TARGET, drafters={"model": short}), identities(["model"]), (20, 60))
    assert [cell.tokens for cell in drafter.measurements] == [20]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> ProfileRequest:
    return quick_request(tmp_path_factory.mktemp("family"))


def test_a_profile_keeps_it_and_a_plan_from_the_store_finds_it(asked: ProfileRequest, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        made = profile(asked, store, lock_wait_s=60.0, progress=lambda *_: None)
        wanted = PlanRequest(target=made.identities.target, device=made.device, dtype="float32", trials=2)
        found, fresh = inputs_from_store(wanted, store).readings, inputs_of(made).readings
    keys = {made.identities.target.key, made.identities.drafters["small"].key}
    assert set(found) == set(fresh) == keys
    assert {surface.role for surface in made.readings} == {READ}
    assert made.readings[0].role not in {surface.role for surface in made.surfaces}
    for key in keys:
        assert found[key].measurements == tuple(sorted(fresh[key].measurements, key=lambda cell: cell.tokens))
        assert [cell.tokens for cell in found[key].measurements] == sorted(made.verify.contexts(1))


def test_a_stopped_profile_does_not_read_again_and_keeps_nothing_of_the_lengths_before(
    asked: ProfileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def behind_it(what: str, _: float) -> None:
        if what == "timing whole rounds":
            raise KeyboardInterrupt

    with open_store(str(tmp_path / "store.db")) as store:
        with pytest.raises(KeyboardInterrupt):
            profile(asked, store, lock_wait_s=60.0, progress=behind_it)
        key = SurfaceKey(
            device=detect("cpu").fingerprint, model=identify(asked.models.target).key, role=READ, regime="eager",
            dtype="float32", attention="sdpa",
        )  # fmt: skip
        store.add_measurements(key, [Measurement(batch=1, context_tokens=0, tokens=999, repeats_ms=(1.0,))])
        monkeypatch.setattr("spectune.tuning.profile.measure_reading", stop)
        made = profile(asked, store, lock_wait_s=60.0, progress=lambda *_: None)
        kept = {surface.model: surface.measurements for surface in store.surfaces(role=READ)}
    assert made.is_resumed and kept == {surface.model: surface.measurements for surface in made.readings}


def test_it_is_no_role_to_be_timed_alone(asked: ProfileRequest) -> None:
    with pytest.raises(RequestError, match="read is timed by a profile of prompts"):
        LatencyRequest(models=asked.models, contexts=(8,), roles=("verify", READ))
