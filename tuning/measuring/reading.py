"""Time how long a target and its drafters take to read prompts, as the decoder has them read where a sequence joins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.role import READ
from ...profiler.records.surface import LatencySurface
from ...runtime.batch.faults import is_out_of_memory
from ...runtime.batch.reason import reason_of
from ...runtime.batch.sequence import Request
from ...runtime.batch.sequence import Sequence as Text
from ...runtime.batch.transfer import wait_for
from ...runtime.drafters.head import model_drafter
from ...runtime.engine.prefill import Prefill, read_on
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import tapped_for
from ..request import Identities
from .decoding import Family

REPEATS = 5  # of every length, behind one that nobody counts where it is short
GROWTH = 2.0  # as what reads a text twice as long takes four times as long, at most: attention's share grows so

Read = Callable[[list[int]], None]


def measure_reading(
    family: Family,
    identities: Identities,
    lengths: Sequence[int],
    *,
    device: Device,
    dtype: str,
    budget_s: float,
    seed: int = 0,
) -> tuple[LatencySurface, ...]:
    """Return the surfaces of reading a prompt: of the target, then of each drafter, in the family's order.

    They take turns at each length; all read the shortest, longer ones only within positions and share of the budget.
    """
    wanted = sorted(set(lengths))
    target, longest = family.target, wanted[-1]
    readers = [_PromptTimer(identities.target.key, target, partial(_by_target, target, longest))]
    for name, model in family.drafters.items():
        readers.append(_PromptTimer(identities.drafters[name].key, model, partial(_by_drafter, model, target, longest)))
    allowed_ms = 1000.0 * budget_s / (len(readers) * len(wanted))
    drawn = np.random.default_rng(seed)
    for tokens in wanted:
        able = [reader for reader in readers if reader.may_read(tokens, allowed_ms)]
        prompt = drawn.integers(0, target.vocabulary, tokens).tolist()
        for _ in range(1 + REPEATS):
            for reader in able:
                reader.take_turn(prompt, allowed_ms)
    return tuple(reader.surface(device, dtype) for reader in readers if reader.cells)


class _PromptTimer:
    def __init__(self, key: str, model: CausalModel, make: Callable[[], Read]) -> None:
        self._key, self._model, self._make = key, model, make
        self._read: Read | None = None
        self._timed: dict[int, list[float]] = {}  # milliseconds by tokens, the first one first
        self._failed: dict[int, str] = {}

    def may_read(self, tokens: int, allowed_ms: float) -> bool:
        if tokens > self._model.longest_context or self._failed:
            return False
        if not self._timed:
            return True
        longest = max(self._timed)
        expected_ms: float = min(self._timed[longest]) * (tokens / longest) ** GROWTH
        return expected_ms <= allowed_ms

    def take_turn(self, prompt: list[int], allowed_ms: float) -> None:
        taken = self._timed.get(len(prompt), [])
        if len(prompt) in self._failed or (taken and sum(taken) > allowed_ms):
            return
        try:
            self._read = self._read or self._make()
            start = time.perf_counter_ns()
            self._read(prompt)
            wait_for(self._model.device)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._failed[len(prompt)] = reason_of(error)
            return
        self._timed.setdefault(len(prompt), []).append((time.perf_counter_ns() - start) / 1e6)

    @property
    def cells(self) -> tuple[Measurement, ...]:
        """Every length that was tried; the first repeat counts only where it stayed the only one."""
        timed = {tokens: times[1:] or times for tokens, times in self._timed.items() if tokens not in self._failed}
        return (
            *(
                Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=tuple(times))
                for tokens, times in timed.items()
            ),
            *(
                Measurement(batch=1, context_tokens=0, tokens=tokens, failure=reason)
                for tokens, reason in self._failed.items()
            ),
        )

    def surface(self, device: Device, dtype: str) -> LatencySurface:
        return LatencySurface(
            device=device.fingerprint,
            model=self._key,
            role=READ,
            regime=self._model.regime,
            dtype=dtype,
            measurements=self.cells,
            attention=self._model.attention,
        )


def _by_target(target: CausalModel, longest: int) -> Read:
    cache = target.new_cache(1, longest)

    def read(prompt: list[int]) -> None:
        read_on(target, cache, Prefill(_text(prompt), slot=0), len(prompt))

    return read


def _by_drafter(model: CausalModel, target: CausalModel, longest: int) -> Read:
    drafter = model_drafter(model, slots=1, capacity=longest)
    drafter.attach(tapped_for(target, [model]).new_cache(1, longest))  # what lies there makes no difference

    def read(prompt: list[int]) -> None:
        drafter.read_along(0, prompt, 0)

    return read


def _text(prompt: list[int]) -> Text:
    return Text(Request(prompt=tuple(prompt), max_new_tokens=1), 0)
