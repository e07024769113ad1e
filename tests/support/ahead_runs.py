"""Decoding from captured work on the CPU, watched: what is launched, and what the host knew of the text by then."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from torch import Tensor

from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, Schedule, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.graphed import GraphedModel
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel

from .decoded_runs import CAPACITY, POLICIES, Run, run
from .repeated import Repeating, Repetition
from .tiny_models import perturbed, tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
SKETCH = perturbed(LLAMA, 0.06)
TARGET, SMALL = LeanModel(LLAMA), LeanModel(SKETCH)
LEAN_TREES = {  # no larger than a chain as deep, and yet they may branch
    "eagle2 of 3": Eagle2Policy(verify_tokens=3, depth=1, top_k=2),
    "eagle2 of 5": Eagle2Policy(verify_tokens=5, depth=3, top_k=3),
}
KINDS = ("plain", "chain", "static", "eagle2", *LEAN_TREES)


class Noting(Repetition):
    """Recorded work that says so before it runs again."""

    def __init__(self, run: Callable[[], Tensor], note: Callable[[], None]) -> None:
        super().__init__(run)
        self.note = note

    def replay(self) -> None:
        self.note()
        super().replay()


class Watched(Repeating):
    """A recorder whose work tells each of its replays; it may be made to fail."""

    def __init__(self, note: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.note = note
        self.fails: Callable[[int], bool] = lambda recordings: False  # asked before every recording

    def record(self, run: Callable[[], Tensor]) -> tuple[Noting, Tensor]:
        if self.fails(len(self.recorded)):
            raise MemoryError("no room for another recording")
        self.recorded.append(noting := Noting(run, self.note))
        return noting, noting.found

    @property
    def replays(self) -> int:
        """How often recorded work ran again."""
        return sum(work.replays for work in self.recorded)


@dataclass
class Captured:
    """A target and its drafter, both captured, and what they recorded."""

    slots: int = 3
    capacity: int = CAPACITY
    target_model: CausalModel = TARGET
    drafter_model: CausalModel = SMALL
    targets: Watched = field(default_factory=Watched)
    drafts: Watched = field(default_factory=Watched)
    caches: list[KeyValueCache] = field(
        default_factory=list
    )  # of the target, which lose their graphs when nobody holds them

    def __post_init__(self) -> None:
        self.target = GraphedModel(self.target_model, self.targets)
        model = GraphedModel(self.drafter_model, self.drafts)
        self.drafter = ModelDrafter(model, slots=self.slots, capacity=self.capacity, on_device=True)

    @property
    def others(self) -> int:
        """How many forwards the target has recorded for rounds that did not run ahead."""
        return sum(len(graphs) for graphs in self.target._graphs.values())

    def decoder(self, schedule: Schedule, more: Mapping[str, Drafter] | None = None) -> Engine:
        drafters = {"it": self.drafter, **(more or {})}
        decoder = Engine(self.target, drafters, schedule, slots=self.slots, capacity=self.capacity)
        self.caches.append(decoder._cache)
        return decoder

    def run(
        self,
        requests: Many[Request],
        schedule: Schedule,
        more: Mapping[str, Drafter] | None = None,
        *,
        watch: Callable[[Engine], None] = lambda decoder: None,
        may_fail: bool = False,
    ) -> Run:
        drafters = {"it": self.drafter, **(more or {})}

        def watched(decoder: Engine) -> None:
            if decoder._cache not in self.caches:
                self.caches.append(decoder._cache)
            watch(decoder)

        return run(
            self.target,
            requests,
            schedule,
            drafters,
            slots=self.slots,
            capacity=self.capacity,
            watch=watched,
            may_fail=may_fail,
        )


def setup_of(kind: str, **more: tuple[int, ...]) -> StepConfig:
    """Return how rounds of a kind run."""
    return PLAIN if kind == "plain" else StepConfig(policy=(LEAN_TREES | POLICIES)[kind], drafter="it", **more)


def eagerly(
    requests: Many[Request],
    schedule: Schedule,
    more: Mapping[str, Drafter] | None = None,
    *,
    slots: int = 3,
    capacity: int = CAPACITY,
    target: CausalModel = TARGET,
    model: CausalModel = SMALL,
) -> Run:
    """Return what forwards do that run as they come, with trees that grow as tensors."""
    drafter = ModelDrafter(model, slots=slots, capacity=capacity, on_device=True)
    return run(target, requests, schedule, {"it": drafter, **(more or {})}, slots=slots, capacity=capacity)


def told(rounds: Many[StepOutput]) -> list[tuple[object, ...]]:
    """Return what rounds did, but for their times."""
    return [(one.sequences, one.kept, one.verify_tokens, one.widths, one.uncached, one.context) for one in rounds]


def plainly(requests: Many[Request], target: CausalModel = TARGET) -> list[tuple[int, ...]]:
    """Return the target's own texts, decoded once for all tests that ask for them."""
    return list(_texts(cast(Hashable, target), tuple(requests)))


@lru_cache
def _texts(target: Any, requests: tuple[Request, ...]) -> list[tuple[int, ...]]:  # Any: a hashable model
    return run(target, requests, always(PLAIN)).outputs
