"""What cannot be captured or compiled runs slowly, is told, and decodes the same text."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.planner.policies import ChainPolicy
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.capturing import capturing
from spectune.runtime.models.graphed import UNCAPTURED, GraphedModel, Replayed
from spectune.runtime.models.kernels import jitted
from spectune.runtime.models.kernels.jitted import NO_COMPILER, compiles_for, has_triton, runs_triton
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.setup import RoundSetup, always

from .decoded_runs import CAPACITY, random_requests, run
from .tiny_models import perturbed, tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
GPU = torch.device("cuda", 0)


class Refusing:
    """A recorder of a device that captures nothing."""

    def __init__(self, error: RuntimeError) -> None:
        self.error, self.asked = error, 0

    def record(self, run: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        run()  # warm-ups are launched before a capture fails
        self.asked += 1
        raise self.error


def texts(target: GraphedModel | LeanModel, drafter: GraphedModel | LeanModel) -> list[tuple[int, ...]]:
    model = ModelDrafter(drafter, slots=2, capacity=CAPACITY, on_device=True)
    schedule = always(RoundSetup(policy=ChainPolicy(length=3), drafter="it"))
    return run(target, random_requests(4, tokens=12), schedule, {"it": model}, slots=2).outputs


@pytest.mark.lossless
@pytest.mark.filterwarnings(f"ignore:{UNCAPTURED}")
def test_forwards_that_cannot_be_captured_decode_the_same_text() -> None:
    own, other = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.06))
    refusing = Refusing(RuntimeError("operation not permitted when stream is capturing\nand more"))
    assert texts(GraphedModel(own, refusing), GraphedModel(other, refusing)) == texts(own, other)
    assert refusing.asked > 0


def test_that_nothing_can_be_captured_is_told_with_the_reason() -> None:
    refusing = Refusing(RuntimeError("not permitted\nand more"))
    with pytest.warns(RuntimeWarning, match=r"cannot be captured.*--regime eager \(not permitted\)$"):
        texts(GraphedModel(LeanModel(LLAMA), refusing), LeanModel(LLAMA))


def test_a_capture_that_finds_no_memory_is_tried_again() -> None:
    """Memory that is short is no reason to run slowly ever after: the decoder verifies less, and asks anew."""
    short = Refusing(torch.OutOfMemoryError("CUDA out of memory"))
    requests = random_requests(2, tokens=6)
    with pytest.raises(Exception, match="memory"):
        run(GraphedModel(LeanModel(LLAMA), short), requests)
    assert short.asked > 0


@contextmanager
def fake_capture(*args: object, **options: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_in_a_capture_and_it_is_again_behind_one_that_fails(collects: bool) -> None:
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with mock.patch.object(torch.cuda, "graph", fake_capture):
            with capturing(None, None):
                assert not gc.isenabled()
            assert gc.isenabled() == collects
            with pytest.raises(ValueError, match="spoilt"), capturing(None, None):
                raise ValueError("spoilt")
            assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore"),
        FileNotFoundError("gcc"),
    ],
)
def test_where_triton_cannot_compile_its_kernels_are_not_taken_and_that_is_told(error: Exception) -> None:
    def refuse(*_: object) -> None:
        raise error

    compiles_for.cache_clear()
    with (
        mock.patch.object(jitted, "_write_one", {(1,): refuse}),
        mock.patch.object(torch, "zeros", return_value=torch.zeros(1)),
        mock.patch.object(torch.cuda, "device", fake_capture),
        pytest.warns(RuntimeWarning, match=NO_COMPILER),
    ):
        assert not runs_triton(GPU)
    assert not runs_triton(GPU)  # kept, and told once
    compiles_for.cache_clear()
