"""CUDA graphs without CUDA: what was recorded is run again in place of a replay, on the memory it was recorded on."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.graphed import GraphedModel


class Repetition:
    """Work that writes its result where the first run left it."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self.run, self.found, self.replays = run, run().clone(), 0

    def replay(self) -> None:
        self.replays += 1
        self.found.copy_(self.run())


class Repeating:
    """A recorder that keeps all it has recorded."""

    def __init__(self) -> None:
        self.recorded: list[Repetition] = []

    def record(self, run: Callable[[], Tensor]) -> tuple[Repetition, Tensor]:
        self.recorded.append(Repetition(run))
        return self.recorded[-1], self.recorded[-1].found


def graphed(model: CausalModel) -> tuple[GraphedModel, Repeating]:
    """Return a model in the regime of CUDA graphs, wherever it is, and what it has recorded."""
    recorder = Repeating()
    return GraphedModel(model, recorder), recorder
