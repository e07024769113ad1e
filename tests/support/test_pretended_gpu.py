"""The pretended GPU forbids what a real one does, so that what runs on it is fit to run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.runtime.batch.transfer import fetched, fetched_together, sent
from spectune.runtime.models.graphed import CudaRecorder

from ..pretended.cuda import MS_PER_OPERATION, pretended_gpu
from ..pretended.device import PLACE, PretendedGpu
from ..pretended.traffic import DeviceMistakeError

POISON = torch.iinfo(torch.int64).min


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as pretended:
        yield pretended


def counting(count: int) -> Tensor:
    return torch.arange(count, device="cuda")


def test_it_computes_what_the_host_computes(gpu: PretendedGpu) -> None:
    x = torch.randn(3, 4, device="cuda")
    y = x.clone()
    y[1:, 2] = 7
    assert x.device == y.device == PLACE and x.is_cuda
    expected = x.cpu()
    expected[1:, 2] = 7
    assert torch.equal(y.cpu(), expected)
    assert y.argmax(-1).tolist() == expected.argmax(-1).tolist()
    assert torch.equal((y @ x.T).softmax(-1).cpu(), (expected @ x.cpu().T).softmax(-1))


MIXED: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x + torch.ones(4, dtype=torch.int64),
    "into it": lambda x: x.add_(torch.ones(4, dtype=torch.int64)),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("way", MIXED)
def test_operands_on_two_devices_are_refused(gpu: PretendedGpu, way: str) -> None:
    with pytest.raises(DeviceMistakeError):
        MIXED[way](counting(4))


WAITS: dict[str, Callable[[Tensor], object]] = {
    "list": lambda x: x.tolist(),
    "number": lambda x: int(x[1]),
    "truth": lambda x: bool((x > 1).any()),
    "copy to the host": lambda x: x.cpu(),
    "copy from the host": lambda x: torch.ones(3).to("cuda"),
    "fresh numbers": lambda x: torch.tensor([1, 2], device="cuda"),
    "places by truth": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(),
    "places of the host": lambda x: x[torch.tensor([0, 1])],
    "places in a list": lambda x: x[[0, 1]],
    "into places in a list": lambda x: x.__setitem__([0, 1], 2),
    "as often as told": lambda x: x.repeat_interleave(x),
}
NO_WAITS: dict[str, Callable[[Tensor], object]] = {
    "places of its own": lambda x: x[x],
    "as often as is known": lambda x: x.repeat_interleave(2),
    "numbers of a kind": lambda x: torch.full((3,), 2.0, device="cuda"),
    "in its own time": lambda x: (x.to("cpu", non_blocking=True), sent(np.arange(3), PLACE)),
    "by an event": lambda x: (fetched(x), fetched_together(x, x + 1)),
}


@pytest.mark.parametrize("way", WAITS)
def test_waiting_unasked_is_counted_and_forbidden_where_it_shall_be(gpu: PretendedGpu, way: str) -> None:
    x = counting(4)
    WAITS[way](x)
    assert gpu.waits
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(DeviceMistakeError, match="the host waits for the device"):
        WAITS[way](x)


@pytest.mark.parametrize("way", NO_WAITS)
def test_what_does_not_wait_or_waits_on_purpose_is_allowed(gpu: PretendedGpu, way: str) -> None:
    torch.cuda.set_sync_debug_mode("error")
    NO_WAITS[way](counting(4))
    assert not gpu.waits


def test_numbers_are_poison_on_the_host_until_they_are_waited_for(gpu: PretendedGpu) -> None:
    early, late = torch.cuda.Event(), torch.cuda.Event()
    first = counting(3).to("cpu", non_blocking=True)
    early.record()
    second = (counting(3) + 1).to("cpu", non_blocking=True)
    late.record()
    assert first.tolist() == second.tolist() == [POISON] * 3 and not early.query()
    early.synchronize()
    assert first.tolist() == [0, 1, 2] and second.tolist() == [POISON] * 3
    late.synchronize()
    assert second.tolist() == [1, 2, 3]


def test_changing_pinned_memory_on_its_way_is_found_out(gpu: PretendedGpu) -> None:
    here = torch.arange(3).pin_memory()
    there = here.to("cuda", non_blocking=True)
    here[0] = 5
    with pytest.raises(DeviceMistakeError, match="the host changed memory"):
        there.tolist()


def recorded(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    work, found = CudaRecorder(PLACE).record(run)
    return work.replay, found


def test_a_capture_changes_nothing_and_its_result_is_there_after_a_replay(gpu: PretendedGpu) -> None:
    sums, x = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")

    def run() -> Tensor:
        sums.add_(x)
        return sums * 2

    replay, found = recorded(run)  # which warms up twice
    assert sums.tolist() == [2.0] * 3 and found.isnan().all()
    x.fill_(5.0)
    replay()
    assert sums.tolist() == [7.0] * 3 and found.tolist() == [14.0] * 3


def test_a_replay_repeats_the_plain_numbers_of_its_capture(gpu: PretendedGpu) -> None:
    steps, x = [1], torch.zeros(2, device="cuda")
    replay, found = recorded(lambda: x + len(steps))
    steps.append(2)
    replay()
    assert found.tolist() == [1.0, 1.0]  # what runs the code again would say 2


def test_a_replay_takes_as_long_as_what_it_repeats(gpu: PretendedGpu) -> None:
    start, end, x = torch.cuda.Event(), torch.cuda.Event(), counting(3)
    replay, _ = recorded(lambda: x * 2 + 1)
    start.record()
    replay()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(2 * MS_PER_OPERATION)


def test_a_replay_reads_and_writes_the_hosts_pinned_memory(gpu: PretendedGpu) -> None:
    asked, told = (torch.zeros(2, dtype=torch.int64, pin_memory=True) for _ in range(2))
    there = torch.zeros(2, dtype=torch.int64, device="cuda")

    def run() -> Tensor:
        there.copy_(asked, non_blocking=True)
        return told.copy_(there + 1, non_blocking=True)

    replay, _ = recorded(run)
    torch.cuda.synchronize()
    asked.fill_(6)
    replay()
    assert told.tolist() == [POISON] * 2
    torch.cuda.synchronize()
    assert told.tolist() == [7, 7]


UNCAPTURED: dict[str, Callable[[Tensor], Tensor]] = {
    "wait": lambda x: x + int(x[0]),
    "memory of the host": lambda x: x.to("cpu", non_blocking=True),
    "memory that is not pinned": lambda x: x + torch.ones(4, dtype=torch.int64).to("cuda", non_blocking=True),
}


@pytest.mark.parametrize("way", UNCAPTURED)
def test_what_no_graph_holds_is_refused_in_a_capture(gpu: PretendedGpu, way: str) -> None:
    x = counting(4)
    with pytest.raises(DeviceMistakeError), gpu.capturing(torch.cuda.CUDAGraph().capture):  # type: ignore[attr-defined]
        UNCAPTURED[way](x)


def test_outside_nothing_of_it_is_left() -> None:
    with pretended_gpu():
        x = counting(2)
    with pytest.raises(DeviceMistakeError, match="nobody has entered"):
        x + 1
    assert not torch.is_inference_mode_enabled()
    assert torch.cuda.Event.__module__.startswith("torch")
