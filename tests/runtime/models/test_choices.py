"""The fastest of several ways is taken where it is clearly faster, and stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from spectune.errors import DeviceError
from spectune.runtime.models.choices import LEAST_GAIN, REPEATS, USUAL, Choices, GraphTimer, Work, choices_of
from spectune.runtime.models.kernels.jitted import has_triton

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RIGHT = torch.tensor([1.0, -2.0, 3.0])


@dataclass
class Told:
    """A timer that tells given times, round after round, and counts."""

    times: list[list[float]]
    capturing: bool = False
    asked: list[int] = field(default_factory=list)  # works timed at once

    def is_capturing(self) -> bool:
        return self.capturing

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        assert not self.capturing
        self.asked.append(len(works))
        between()
        return self.times[len(self.asked) - 1][: len(works)]


@dataclass
class Found:
    """Ways that find given numbers, or fail."""

    results: list[Tensor | Exception]

    def __len__(self) -> int:
        return len(self.results)

    def result(self, way: int) -> Tensor:
        found = self.results[way]
        if isinstance(found, Exception):
            raise found
        return found

    def cycle(self, way: int) -> Callable[[], Tensor]:
        return lambda: self.result(way)

    def between(self) -> None:
        return


def alike(count: int = 3) -> Found:
    return Found([RIGHT] * count)


def test_the_fastest_way_is_taken() -> None:
    assert Choices(Told([[5.0, 4.0, 3.0]])).way("work", alike) == 2
    assert Choices(Told([[5.0, 3.0, 4.0]])).way("work", alike) == 1


@pytest.mark.parametrize("gain", [-0.5, 0.0, 0.9 * LEAST_GAIN])
def test_a_way_that_is_hardly_faster_is_not_taken(gain: float) -> None:
    assert Choices(Told([[5.0, 5.0 * (1 - gain), 9.0]])).way("work", alike) == USUAL


def test_a_way_that_is_just_clearly_faster_is_taken() -> None:
    assert Choices(Told([[5.0, 5.0 * (1 - 1.1 * LEAST_GAIN), 9.0]])).way("work", alike) == 1


def test_what_was_chosen_stays_whatever_would_be_measured_later() -> None:
    timer = Told([[5.0, 4.0, 3.0], [3.0, 4.0, 5.0]])
    choices = Choices(timer)
    assert [choices.way("work", alike) for _ in range(3)] == [2, 2, 2]
    assert timer.asked == [3]


def test_other_work_is_measured_by_itself() -> None:
    timer = Told([[5.0, 4.0, 3.0], [3.0, 4.0, 5.0]])
    choices = Choices(timer)
    assert [choices.way(work, alike) for work in ("one", "other", "one")] == [2, USUAL, 2]
    assert timer.asked == [3, 3]


def test_nothing_is_timed_while_work_is_captured_and_a_graph_s_way_stays() -> None:
    timer = Told([[5.0, 4.0, 3.0]], capturing=True)
    choices = Choices(timer)
    assert choices.way("work", fail) == USUAL
    timer.capturing = False
    assert choices.way("work", fail) == USUAL
    assert timer.asked == []


def fail() -> Found:
    raise AssertionError("no way may be tried")


def test_without_a_timer_nothing_is_tried() -> None:
    assert Choices(None).way("work", fail) == USUAL


def test_on_a_cpu_there_is_no_timer() -> None:
    assert choices_of(torch.device("cpu")).timer is None


def test_models_on_one_device_share_its_choices() -> None:
    assert choices_of(torch.device("cpu")) is choices_of(torch.device("cpu"))


@pytest.mark.parametrize(
    "wrong",
    [
        RuntimeError("Triton Error [CUDA]: out of resource"),
        RIGHT + torch.tensor([0.0, 0.1, 0.0]),
        torch.full_like(RIGHT, torch.nan),
    ],
)
def test_a_way_that_fails_or_finds_something_else_is_not_taken(wrong: Tensor | Exception) -> None:
    timer = Told([[5.0, 4.0]])
    assert Choices(timer).way("work", lambda: Found([RIGHT, wrong, RIGHT])) == 2
    assert timer.asked == [2]


def test_where_no_other_way_is_left_nothing_is_timed() -> None:
    timer = Told([])
    assert Choices(timer).way("work", lambda: Found([RIGHT, RuntimeError("too large")])) == USUAL
    assert timer.asked == []


class Untimed(Told):
    """A timer that can capture nothing."""

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def test_where_nothing_can_be_timed_the_usual_way_is_taken() -> None:
    assert Choices(Untimed([])).way("work", alike) == USUAL


def test_other_last_bits_are_the_same_numbers() -> None:
    rounded = (RIGHT * (1 + 2**-9)).bfloat16()
    assert Choices(Told([[5.0, 3.0]])).way("work", lambda: Found([RIGHT.bfloat16(), rounded])) == 1


def test_errors_of_the_usual_way_are_the_caller_s() -> None:
    with pytest.raises(DeviceError):
        Choices(Told([])).way("work", lambda: Found([DeviceError("gone"), RIGHT]))


@pytest.mark.skipif(not has_triton(), reason="needs triton")
def test_what_triton_cannot_compile_is_a_way_that_fails() -> None:
    from triton.runtime.errors import OutOfResources  # heavy, and not everywhere

    too_large = OutOfResources(300_000, 232_448, "shared memory")
    assert Choices(Told([[5.0, 3.0]])).way("work", lambda: Found([RIGHT, too_large, RIGHT])) == 2


@needs_gpu
def test_more_work_takes_longer_on_a_gpu_and_nothing_waits() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    small, large = torch.randn(256, 256, device=device), torch.randn(4096, 4096, device=device)
    works: list[Work] = [lambda: large @ large, lambda: small @ small]
    torch.cuda.set_sync_debug_mode("error")
    try:
        large_ms, small_ms = GraphTimer(device).times_ms(works, lambda: small.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert 0.0 < small_ms < large_ms and REPEATS > 1
