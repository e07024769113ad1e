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
    """How long a search takes and what it must keep to.

    Attributes:
        seed: of the resampling of texts and of Optuna's samplers.
        trials: per cell and searched policy kind; 0 leaves it at grids and fixed points.
        bound: latency to keep where possible.
        new_tokens: of an answer, so that drafters' reading of prompts counts; None chooses by decoding alone.
        cached_share: of a prompt, not read again where requests are planned.
        max_memory_bytes: most that weights and key-value caches of a cell take.
        allow_lossy: whether ways may compete whose output is not the target's own.
        max_quality_loss: most loss of such a way, in units of its measure, at the upper end of its interval; None is no
            limit.
        tables: frozen ones that Cacheback may draft from beside the texts' own.
    """

    seed: int = 0
    trials: int = 24
    bound: LatencyBound | None = None
    new_tokens: int | None = None
    cached_share: float = 0.0
    max_memory_bytes: int | None = None
    allow_lossy: bool = False
    max_quality_loss: float | None = None
    tables: tuple[FrozenTable, ...] = ()

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
