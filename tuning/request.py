"""What is to be profiled or planned, with everything checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import RequestError
from ..planner.inputs import NAMING, is_free
from ..planner.lossy.run import LossyRun
from ..planner.plans.objective import LatencyBound
from ..planner.records.frozen_table import FrozenTable
from ..planner.search.options import SearchOptions
from ..planner.strategies.offers import Level as Level
from ..profiler.prompts import Prompt
from ..profiler.records.device import AUTO_DTYPE, Device
from ..profiler.records.model import ModelIdentity

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A target, its drafters by name, and where they lie."""

    target: Path
    drafters: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.drafters:
            if not is_free(name):
                raise RequestError(f"a drafter cannot be called {name!r}: {NAMING}; give it another name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Who the models are."""

    target: ModelIdentity
    drafters: Mapping[str, ModelIdentity]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """One profile: a device, a family, a workload, and how long it may take."""

    models: Models
    prompts: Sequence[Prompt]
    workload: str = "default"
    temperature: float = 0.0
    more_temperatures: tuple[float, ...] = ()  # recorded besides
    device: str = "auto"
    dtype: str = AUTO_DTYPE  # or a name of PyTorch's
    regime: str = "auto"  # how forwards are timed, and decoding runs by the plan; see `family.settled_regime`
    batches: tuple[int, ...] = (1, 8)
    contexts: tuple[int, ...] = ()  # empty: where the prompts begin and end
    max_new_tokens: int = 128  # recorded per prompt
    max_prompt_tokens: int | None = None  # longer prompts are cut at the front; None: see `prompt_room`
    budget_s: float | None = None  # for timing forwards; None: what suits the models
    held_out: int = 30  # random shapes timed only to judge the surfaces
    record: Level | Literal["auto"] = "auto"  # which trees are recorded; auto: as there is time for
    seed: int = 0

    def __post_init__(self) -> None:
        require_printed(self.workload, *self.models.drafters, *(prompt.workload for prompt in self.prompts))
        if len(self.prompts) < 2:
            raise RequestError(f"a profile needs at least 2 prompts, got {len(self.prompts)}; add some")
        if not self.batches or min(self.batches) < 1:
            raise RequestError(f"batch sizes must be at least 1, got {list(self.batches)}")
        if max(self.batches) > len(self.prompts):
            raise RequestError(
                f"batch {max(self.batches)} needs as many prompts, got {len(self.prompts)}; "
                "add prompts or lower --batch"
            )
        if (
            min((*self.contexts, 1 if self.max_prompt_tokens is None else self.max_prompt_tokens)) < 1
            or self.max_new_tokens < 2
        ):
            raise RequestError("contexts and prompt tokens must be at least 1, and new tokens at least 2")
        if self.budget_s is not None and not self.budget_s > 0:
            raise RequestError(f"the budget must be positive seconds, got {self.budget_s}")
        if self.temperature in self.more_temperatures or len(set(self.more_temperatures)) < len(self.more_temperatures):
            raise RequestError(f"every temperature is recorded once, got {self.temperature}, {self.more_temperatures}")
        if self.held_out < 0:
            raise RequestError(f"held-out shapes must be 0 or more, got {self.held_out}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which plan is wanted; empty batches or contexts mean all that were measured."""

    target: ModelIdentity
    device: Device
    dtype: str = AUTO_DTYPE  # the device's native one, which is what the field then holds
    workload: str = "default"
    temperature: float = 0.0
    batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    regime: str = ""  # of the surfaces; the target's newest measured one where empty
    seed: int = 0
    trials: int = SearchOptions().trials
    bound: LatencyBound | None = None
    new_tokens: int | None = None  # of an answer; see `SearchOptions`
    cached_share: float = 0.0  # of a prompt; likewise
    max_memory_bytes: int | None = None
    allow_lossy: bool = False
    max_quality_loss: float | None = None  # see `SearchOptions`
    lossy: tuple[LossyRun, ...] = ()  # runs of lossy ways; nothing else lossy competes
    tables: tuple[FrozenTable, ...] = ()  # that Cacheback may draft from beside the text's own

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.device.dtype_for(self.dtype))
        if self.lossy and not self.allow_lossy:
            raise RequestError("lossy runs were given, and lossy decoding was not allowed; pass --allow-lossy too")
        _ = self.options  # refuses what cannot be searched for, before anything is read

    @property
    def options(self) -> SearchOptions:
        """How the plan is searched for."""
        return SearchOptions(
            seed=self.seed,
            trials=self.trials,
            bound=self.bound,
            new_tokens=self.new_tokens,
            cached_share=self.cached_share,
            max_memory_bytes=self.max_memory_bytes,
            allow_lossy=self.allow_lossy,
            max_quality_loss=self.max_quality_loss,
            tables=self.tables,
        )


def require_printed(*names: str) -> None:
    """Raise RequestError for a name with a control character: a service takes none in a path, where names go."""
    for name in names:
        if CONTROL.search(name):
            raise RequestError(f"{name!r} has a control character in it; give a name without one")
