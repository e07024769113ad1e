"""What decoding by a policy keeps in memory: weights, and the keys and values of every token.

    memory   = weights of target and drafter + batch * capacity * (key-value bytes per token of both)
    capacity = context + what a round drafts or verifies at most + 1

Results of layers and the workspace of kernels come on top; they are small beside these while a round feeds few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import PlanError
from .cost import Cell
from .policy import TreePolicy
from .room import most_drafted

if TYPE_CHECKING:
    from .inputs import PlanInputs

LOOKUP = "lookup"  # drafts from the text itself, without weights or a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one model takes in the number format it runs in."""

    weight_bytes: int
    kv_bytes_per_token: int  # of all layers

    def __post_init__(self) -> None:
        if self.weight_bytes < 1 or self.kv_bytes_per_token < 0:
            raise PlanError(f"a footprint needs weight_bytes >= 1 and kv_bytes_per_token >= 0, got {self}")


def memory_bytes(
    cell: Cell, policy: TreePolicy, drafter: str | None, inputs: PlanInputs, run_tokens: Sequence[int] = ()
) -> int | None:
    """Return what a policy keeps in memory in a cell; None where a model's footprint is not known.

    Args:
        cell: its batch and context.
        policy: what is drafted.
        drafter: name among the inputs' drafters, "lookup", or None.
        inputs: whose footprints count.
        run_tokens: index = tokens in the tree, value = tokens fed; where a round runs padded.
    """
    keys = [inputs.target.key]
    if drafter not in (None, LOOKUP):
        keys.append(inputs.drafter(drafter).model.key)
    if any(key not in inputs.footprints for key in keys):
        return None
    used = [inputs.footprints[key] for key in keys]
    capacity = cell.context + _room(policy, cell.batch, run_tokens)
    per_token = sum(footprint.kv_bytes_per_token for footprint in used)
    return sum(footprint.weight_bytes for footprint in used) + cell.batch * capacity * per_token


def _room(policy: TreePolicy, batch: int, run_tokens: Sequence[int]) -> int:
    """Return the cache positions a round needs beyond its context, as the decoder sets them aside."""
    verified = policy.max_verify_tokens
    return max(most_drafted(policy, batch), verified, *run_tokens[: verified + 1]) + 1
