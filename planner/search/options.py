"""How a plan is searched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import PlanError
from ..plans.objective import LatencyBound
from ..records.frozen_table import FrozenTable

if TYPE_CHECKING:
    import optuna

Studies = Callable[[str], "optuna.Study"]  # opens or creates the study of a name; trials it holds are not run again


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How long a search takes and what it must keep to."""

    seed: int = 0  # of the resampling of texts and of Optuna's samplers
    trials: int = 24  # per cell and searched policy kind; 0 leaves it at grids and fixed points
    bound: LatencyBound | None = None  # latency to keep where possible
    new_tokens: int | None = None  # of an answer: drafters' reading of prompts counts; None: decoding alone
    cached_share: float = 0.0  # of a prompt, not read again where requests are planned
    max_memory_bytes: int | None = None  # most that weights and key-value caches of a cell take
    allow_lossy: bool = False  # whether ways may compete whose output is not the target's own
    max_quality_loss: float | None = None  # in the measure's units, at the interval's upper end; None: no limit
    tables: tuple[FrozenTable, ...] = ()  # frozen ones that Cacheback may draft from beside the texts' own

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise PlanError(f"the number of Optuna trials must be at least 0, got {self.trials}")
        if self.new_tokens is not None and self.new_tokens < 2:
            raise PlanError(
                f"answers need 2 new tokens or more to be decoded, got {self.new_tokens}; the first one comes with the "
                "prompt"
            )
        if not 0.0 <= self.cached_share < 1.0:
            raise PlanError(f"of a prompt a share of 0 to less than 1 is cached, got {self.cached_share}; give another")
        if self.cached_share and self.new_tokens is None:
            raise PlanError(
                f"a cached share, {self.cached_share}, counts where whole requests are planned for; say how long "
                "answers are, too, by --new-tokens"
            )
        if self.max_memory_bytes is not None and self.max_memory_bytes < 1:
            raise PlanError(f"memory must be a positive number of bytes, got {self.max_memory_bytes}")
        if self.max_quality_loss is not None and not self.allow_lossy:
            raise PlanError("a limit on the loss of quality means nothing where nothing lossy is allowed; allow it too")
