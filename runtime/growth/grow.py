"""Growing a policy's tree on a device: node for node what the planner draws from equal scores.

A decision that depends on scores is a mask, so every forward is as wide as any sequence could need. There are as many
as any could need unless the host learns in time that all have stopped; the draft has the widths that ran. Sums behind
thresholds are added in the planner's order on a CPU. A GPU's scan may round their last bit differently, which matters
only where a gain and its threshold agree to 16 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import cast

import torch

from ...errors import PlanError
from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies.base import Strategy
from ...planner.strategies.delegating import DelegatingPolicy
from .draft import DeviceDraft, DeviceScorer


def grow_on_device(policy: Strategy, scorer: DeviceScorer, batch: int) -> DeviceDraft:
    """Return the trees that `policy` drafts for a batch of sequences; nothing is read from the device.

    The module here with the strategy's name grows them. `scorer` is fresh in every round; plain decoding needs none.
    PlanError if no single model drafts, or the scorer serves another batch.
    """
    draft = _grown(policy, scorer, batch)
    if len(draft.tokens) != batch:
        raise PlanError(f"the scorer serves {len(draft.tokens)} sequences, expected {batch}; pass the scorer's batch")
    return draft


def _grown(policy: Strategy, scorer: DeviceScorer, batch: int) -> DeviceDraft:
    if isinstance(policy, DelegatingPolicy):
        return _grown(policy.draft, scorer, batch)
    if policy.source == "none":
        return roots_on_device(batch, scorer.device)
    if policy.source != "model":
        raise PlanError(f"a {policy.label} is not drafted by one scorer; ask the runtime's drafter")
    grow = cast(Callable[[Strategy, DeviceScorer], DeviceDraft], _module_of(type(policy).__module__).grow)
    return grow(policy, scorer)


def kept_for(policy: Strategy, device: torch.device) -> object:
    """Return a policy's memory on a device, which captured growing reads at every replay."""
    if policy.source != "model" or isinstance(policy, DelegatingPolicy):
        return None
    memory = cast(
        Callable[[Strategy, torch.device], object] | None, getattr(_module_of(type(policy).__module__), "memory", None)
    )
    return None if memory is None else memory(policy, device)


@cache
def _module_of(strategy: str) -> ModuleType:
    """Return the module here with the strategy's name; PlanError where there is none."""
    name = strategy.rpartition(".")[2]
    if find_spec(f".{name}", __package__) is None:
        raise PlanError(f"{name} does not grow on a GPU; write runtime/growth/{name}.py, or decode on a CPU")
    return import_module(f".{name}", __package__)


def roots_on_device(batch: int, device: torch.device) -> DeviceDraft:
    """Return trees of the root alone."""
    one = torch.ones(batch, dtype=torch.int64, device=device)
    root = one.unsqueeze(1)
    return DeviceDraft(tokens=root * ROOT_TOKEN, parents=-root, depths=root * 0, sizes=one, widths=())
