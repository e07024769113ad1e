"""Forwards timed outside their round: a drafter's finds the caches as the target leaves them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler import clock as profiler_clock
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.alone import Alone
from spectune.tuning.measuring.decoding import Family

from ...support.limited_memory import Limit
from ...support.tiny_exits import exit_weights, tiny_exit
from ...support.tiny_models import tiny_llama

SETUP = StepConfig(policy=ChainPolicy(length=3), drafter="small")
WARM_S, COLD_S = 1, 3


class Device:
    """A clock that forwards move on, and the model that ran last."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.last: LeanModel | None = None

    def read(self) -> int:
        return self.now_ns


class Pushing(LeanModel):
    """A model whose forwards take longer behind another model's, which has pushed its weights out of the caches."""

    device_of_all: Device

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        here = self.device_of_all
        here.now_ns += (WARM_S if here.last is self else COLD_S) * 10**9
        here.last = self
        return super().forward(step, cache)


def round_of(widths: tuple[int, ...], levels: tuple[int, ...] = ()) -> StepOutput:
    return StepOutput(
        setup=SETUP,
        context=9,
        sequences=[0, 1],
        kept=[1, 1],
        verify_tokens=4,
        widths=widths,
        uncached=2,
        finished=[],
        levels=levels,
    )


@pytest.mark.parametrize(
    ("rounds", "drafted"),
    [
        ([round_of((2, 1, 1))], [3]),  # the same shape twice
        ([round_of((2, 4, 3))], [3]),  # three shapes
        ([round_of((2, 4)), round_of(()), round_of((2, 3))], [2, 0, 2]),
        ([round_of((2, 3), levels=(0, 0))], [2]),  # a stack's
    ],
)
def test_every_shape_of_a_drafter_is_timed_behind_the_target(
    rounds: list[StepOutput], drafted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Pushing.device_of_all = Device()
    monkeypatch.setattr(profiler_clock, "time", SimpleNamespace(perf_counter_ns=device.read))
    target, drafter = Pushing(tiny_llama(layers=1, seed=1)), Pushing(tiny_llama(layers=1, seed=2))
    alone = Alone(Family(target=target, drafters={"small": drafter}), "small", 2, 30)
    (plain,) = alone.forwards([round_of(())])
    found = alone.forwards(rounds)
    assert (plain.verify_ms, plain.draft_ms) == (1000.0 * WARM_S, 0.0)
    assert [own.verify_ms for own in found] == [1000.0 * COLD_S] * len(rounds)
    assert [own.draft_ms for own in found] == pytest.approx([1000.0 * COLD_S * forwards for forwards in drafted])


def test_forwards_of_one_model_share_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    target = LeanModel(tiny_llama(layers=3, seed=1))
    exits = tiny_exit(target, exit_weights(target.hidden), 2)
    family = Family(target=target, drafters={"small": LeanModel(tiny_llama(layers=1, seed=2)), "exit": exits})
    memory = Limit(monkeypatch)
    for drafter in family.drafters:
        Alone(family, drafter, 2, 30)
    assert memory.made == [60] * 4  # of the target and of the drafter


def test_rounds_behind_a_models_last_position_are_timed_at_its_end() -> None:
    """Texts may be longer than a drafter's positions, and a target's rounds end where its own do."""
    target, drafter = LeanModel(tiny_llama(layers=1, seed=1)), LeanModel(tiny_llama(layers=1, seed=2))
    last = target.longest_context - 1
    alone = Alone(Family(target=target, drafters={"small": drafter}), "small", 2, 2 * last)
    far = [replace(round_of((2, 3)), context=context) for context in (last - 1, last + 40)]
    assert all(found.verify_ms > 0.0 and found.draft_ms > 0.0 for found in alone.forwards(far))
