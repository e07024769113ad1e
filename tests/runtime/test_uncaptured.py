"""What cannot be captured or compiled runs slowly, is told, and decodes the same text."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from unittest import mock
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.strategies.chain import ChainPolicy
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models import trial
from spectune.runtime.models.capturing import _Uncollected, capturing
from spectune.runtime.models.graphed import UNCAPTURED, CudaRecorder, GraphedModel
from spectune.runtime.models.kernels import jitted
from spectune.runtime.models.kernels.jitted import NO_COMPILER, compiles_for, has_triton, runs_triton
from spectune.runtime.models.layout import chain_sight, lay_out
from spectune.runtime.models.lean import LeanModel

from ..pretended.cuda import pretended_gpu
from ..pretended.device import PLACE
from ..pretended.traffic import DeviceMistakeError
from ..support.decoded_runs import CAPACITY, random_requests, run
from ..support.repeated import Repeating, Repetition
from ..support.tiny_models import perturbed, tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
GPU = torch.device("cuda", 0)


class Refusing(Repeating):
    """A recorder of a device that captures nothing at first, or ever."""

    def __init__(self, error: RuntimeError, times: float = math.inf) -> None:
        super().__init__()
        self.error, self.times, self.asked = error, times, 0

    def record(self, run: Callable[[], Tensor]) -> tuple[Repetition, Tensor]:
        self.asked += 1
        if self.asked > self.times:
            return super().record(run)
        run()  # warm-ups are launched before a capture fails
        raise self.error


def texts(target: GraphedModel | LeanModel, drafter: GraphedModel | LeanModel) -> list[tuple[int, ...]]:
    model = ModelDrafter(drafter, slots=2, capacity=CAPACITY, on_device=True)
    schedule = always(StepConfig(policy=ChainPolicy(length=3), drafter="it"))
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


@pytest.mark.parametrize(("times", "asked"), [(math.inf, 3), (2, 6)])
@pytest.mark.filterwarnings(f"ignore:{UNCAPTURED}")
def test_a_model_of_which_nothing_is_captured_is_not_tried_at_every_new_shape(times: float, asked: int) -> None:
    """Every attempt takes some forwards. What is captured after one or two failures is tried on."""
    refusing = Refusing(RuntimeError("not permitted"), times=times)
    model = GraphedModel(LeanModel(LLAMA), refusing)
    found = [model.record(partial(torch.full, (1,), number))[1].item() for number in range(6)]
    assert found == list(range(6)) and refusing.asked == asked


@pytest.mark.parametrize("words", ["CUDA out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_shape_whose_capture_finds_no_memory_is_captured_once_there_is_more(words: str) -> None:
    """Memory that is short is no reason to run slowly ever after: the decoder verifies less, and asks anew."""
    own, requests = LeanModel(LLAMA), random_requests(2, tokens=6)
    short = Refusing(RuntimeError(words), times=1)
    target = GraphedModel(own, short)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of work that runs as it comes
        first, again = run(target, requests, may_fail=True), run(target, requests)
    assert words in first.rounds[0].faults[0].reason and short.recorded
    assert first.outputs == again.outputs == run(own, requests).outputs


def test_work_that_fails_as_it_comes_is_not_told_as_one_that_cannot_be_captured() -> None:
    def fail() -> Tensor:
        raise RuntimeError("expected m1 and m2 to have the same dtype")

    model = GraphedModel(LeanModel(LLAMA), Repeating())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="the same dtype"):
            model.record(fail)


def spoilt(x: Tensor) -> Tensor:
    return x + int(x[0])  # whose number the host waits for


def test_behind_a_capture_that_failed_others_succeed_on_the_stream_there_was() -> None:
    with pretended_gpu():
        x, recorder, before = torch.ones(2, device="cuda"), CudaRecorder(PLACE), torch.cuda.current_stream()
        for _ in range(2):
            with pytest.raises(DeviceMistakeError, match="a capture makes memory on the host"):  # not torch's
                recorder.record(lambda: spoilt(x))
            assert torch.cuda.current_stream() is before
        graph, found = recorder.record(lambda: x + 1)
        graph.replay()
        assert found.tolist() == [2.0, 2.0]


def test_a_pool_of_memory_is_let_go_of_by_a_capture_that_failed() -> None:
    with pretended_gpu():
        x, stream, pool = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        with pytest.raises(DeviceMistakeError), capturing(torch.cuda.CUDAGraph(), stream, pool):
            spoilt(x)
        with capturing(torch.cuda.CUDAGraph(), stream, pool):
            x.add_(1)


@pytest.mark.filterwarnings(f"ignore:{UNCAPTURED}")
def test_what_runs_as_it_comes_keeps_no_cache() -> None:
    refusing = Refusing(RuntimeError("not permitted"))
    model = GraphedModel(LeanModel(LLAMA), refusing)
    cache = model.new_cache(1, 16)
    step = lay_out(
        np.array([[1, 2]]), np.arange(2), [0], chain_sight(2), dtype=model.dtype, device=model.device,
        seen_in=lambda needed: 16,
    )  # fmt: skip
    model.forward(step, cache)
    refusing.error.__traceback__ = None  # whose frames hold everything
    gone = ref(cache)
    del cache, step
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_behind_a_capture_that_failed_random_numbers_are_drawn_and_older_graphs_replayed() -> None:
    x, recorder = torch.ones(2, device="cuda"), CudaRecorder(torch.device("cuda", 0))
    older, found = recorder.record(lambda: x + 1)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: spoilt(x))
    assert bool(torch.empty(4, device="cuda").normal_().isfinite().all())
    newer, other = recorder.record(lambda: x + 2)
    older.replay()
    newer.replay()
    assert (found.tolist(), other.tolist()) == ([2.0, 2.0], [3.0, 3.0])


@pytest.mark.parametrize("error", [RuntimeError("CompilationError: at 7:4"), RuntimeError("CUDA out of memory")])
def test_where_a_kernel_does_not_run_for_a_model_s_shapes_torch_s_are_taken(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise error

    monkeypatch.setattr(trial, "is_supported", lambda *_: True)
    monkeypatch.setattr(trial, "attend_tree", refuse)
    trial._run.cache_clear()
    model = tiny_llama(layers=1, seed=3)
    with mock.patch.object(torch.cuda, "device"):  # the model is on a CPU
        if "memory" in str(error):
            with pytest.raises(RuntimeError, match="out of memory"):
                LeanModel(model)
        else:
            with pytest.warns(
                RuntimeWarning, match=r"torch's are taken, which are slower \(CompilationError: at 7:4\)"
            ):
                assert not LeanModel(model).reads_trees
    trial._run.cache_clear()


def test_a_kernel_that_runs_for_a_token_alone_is_not_taken_for_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend_few(qkv: Tensor, *_: object, **__: object) -> None:
        if len(qkv) > 16:
            raise RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376")

    for name, stand_in in {
        "is_supported": lambda *_: True,
        "attend_tree": attend_few,
    }.items():
        monkeypatch.setattr(trial, name, stand_in)
    trial._run.cache_clear()
    with mock.patch.object(torch.cuda, "device"), pytest.warns(RuntimeWarning, match="out of resource"):
        assert not LeanModel(tiny_llama(layers=1, seed=3)).reads_trees
    trial._run.cache_clear()


@pytest.fixture(params=[True, False])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_no_garbage_is_collected_in_a_capture_and_it_is_again_behind_one_that_fails(collects: bool) -> None:
    with pretended_gpu():
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        with capturing(torch.cuda.CUDAGraph(), stream, pool):
            assert not gc.isenabled()
        assert gc.isenabled() == collects
        with pytest.raises(ValueError, match="spoilt"), capturing(torch.cuda.CUDAGraph(), stream, pool):
            raise ValueError("spoilt")
        assert gc.isenabled() == collects


def test_none_is_while_another_thread_still_captures(collects: bool) -> None:
    """Two captures on two threads overlap: the first to end leaves the other alone."""
    uncollected, first, second = _Uncollected(), ExitStack(), ExitStack()
    first.enter_context(uncollected)
    second.enter_context(uncollected)
    first.close()
    assert not gc.isenabled()
    second.close()
    assert gc.isenabled() == collects


@contextmanager
def refusing_triton(error: Exception) -> Iterator[None]:
    """Have what is compiled first fail on a GPU."""

    def refuse(*_: object) -> None:
        raise error

    compiles_for.cache_clear()
    with (
        mock.patch.object(jitted, "_write_one", {(1,): refuse}),
        mock.patch.object(torch, "zeros", return_value=torch.zeros(1)),
        mock.patch.object(torch.cuda, "device", nullcontext),
    ):
        yield
    compiles_for.cache_clear()


@pytest.mark.skipif(not has_triton(), reason="needs triton")
def test_short_memory_does_not_pass_for_a_triton_that_cannot_compile() -> None:
    error = RuntimeError("Triton Error [CUDA]: out of memory")
    with refusing_triton(error):
        for _ in range(2):  # it is not kept
            with pytest.raises(RuntimeError, match="out of memory"):
                runs_triton(GPU)


@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore"),
        FileNotFoundError("gcc"),
        AssertionError("libcuda.so cannot found!\nmore"),
    ],
)
def test_where_triton_cannot_compile_its_kernels_are_not_taken_and_that_is_told(error: Exception) -> None:
    with refusing_triton(error):
        with pytest.warns(RuntimeWarning, match=NO_COMPILER):
            assert not runs_triton(GPU)
        assert not runs_triton(GPU)  # kept, and told once
