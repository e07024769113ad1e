"""In which regime a family is profiled, planned for and decoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import spectune
from spectune.demo.story import family_folder
from spectune.errors import DeviceError, MeasurementError
from spectune.planner.plans.provenance import SurfaceSource
from spectune.profiler.records.device import Device
from spectune.runtime import load as loader
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import decoding_regime, in_regime, plain_regime
from spectune.tuning.family import family_in, load_family, require_regime, settled_regime
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.request import Models

from ..support.plans import plan_of
from ..support.synthetic import DEVICE
from ..support.tiny_models import tiny_llama

FOLDER = family_folder()
GPU = replace(DEVICE, kind="cuda")
BLOCKED = Models(target=FOLDER / "target", drafters={name: FOLDER / name for name in ("exit", "medusa", "small")})


@pytest.mark.parametrize(
    ("asked", "device", "settled"),
    [
        ("auto", DEVICE, "eager"),
        ("auto", GPU, "cuda-graph"),
        ("eager", GPU, "eager"),
    ],
)
def test_forwards_are_captured_wherever_they_can_be(asked: str, device: Device, settled: str) -> None:
    assert settled_regime(asked, device) == settled


def test_a_family_without_a_gpu_stays_eager_and_says_so() -> None:
    family = Family(target=LeanModel(tiny_llama(layers=1, seed=0)), drafters={})
    assert family_in(family, "eager") is family
    with pytest.raises(DeviceError, match="on cpu; use regime eager"):
        family_in(family, "cuda-graph")


def test_block_drafters_and_exits_run_as_they_come_beside_captured_targets() -> None:
    family = load_family(BLOCKED, dtype="float32", device="cpu")
    for name in ("exit", "medusa"):
        drafter = family.drafters[name]
        assert in_regime(drafter, "cuda-graph") is drafter
        with pytest.raises(MeasurementError, match="nor what reads hidden states"):
            in_regime(drafter, "compiled")
    with pytest.raises(DeviceError, match="need a model on a GPU"):
        family_in(family, "cuda-graph")


def test_what_cannot_be_captured_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(DeviceError, match="need models on a GPU"):
        require_regime("cuda-graph", DEVICE)
    require_regime("eager", DEVICE)
    require_regime("cuda-graph", GPU)


def test_a_plan_decodes_in_the_regime_that_priced_it_where_that_can_be() -> None:
    plan = plan_of([(1, 10)])
    assert plan.regime == "eager"  # nobody says
    source = SurfaceSource(
        model="m", role="verify", regime="cuda-graph", dtype="bfloat16", measurements=9, relative_error=None
    )
    drafted = replace(source, role="draft", regime="eager")
    captured = replace(plan, provenance=replace(plan.provenance, surfaces=(drafted, source)))
    assert captured.regime == "cuda-graph"
    assert decoding_regime(captured.regime, "cuda") == "cuda-graph"
    assert decoding_regime(captured.regime, "cpu") == "eager"
    assert decoding_regime("engine:llama.cpp-1", "cuda") == "eager"


@pytest.mark.parametrize(
    ("place", "reads_trees", "regime"), [("cuda", True, "cuda-graph"), ("cuda", False, "eager"), ("cpu", True, "eager")]
)
def test_without_a_plan_what_one_capture_serves_at_every_context_is_captured(
    place: str, reads_trees: bool, regime: str
) -> None:
    model = LeanModel(tiny_llama(layers=1, seed=0))
    model.device, model.reads_trees = torch.device(place), reads_trees
    assert plain_regime(model) == regime


def test_load_asks_the_model_for_its_regime_where_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "plain_regime", lambda model: "cuda-graph")
    with pytest.raises(DeviceError, match="CUDA graphs need a model on a GPU"):
        spectune.load(FOLDER / "target", device="cpu", plan="none")


def test_the_demos_drafters_are_there() -> None:
    assert all(Path(folder).is_dir() for folder in BLOCKED.drafters.values())
