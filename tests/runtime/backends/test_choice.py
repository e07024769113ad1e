"""Which backend runs a target's rounds."""

from __future__ import annotations

from typing import Any

from spectune.runtime.backends.choice import choose
from spectune.runtime.models.lean import LeanModel

from ...pretended.cuda import pretended_gpu
from ...pretended.device import PLACE
from ...support.repeated import graphed
from ...support.tiny_models import tiny_llama


def test_a_target_whose_forwards_are_captured_runs_on_graphs_wherever_it_is() -> None:
    assert choose(graphed(LeanModel(tiny_llama(layers=1, seed=0)))[0]).name == "cuda_graph"


def test_others_run_by_their_device() -> None:
    model: Any = tiny_llama(layers=1, seed=0)  # torch types no model's `to`
    assert choose(LeanModel(model)).name == "cpu"
    with pretended_gpu():
        assert choose(LeanModel(model.to(PLACE))).name == "torch"
