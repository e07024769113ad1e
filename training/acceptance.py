"""How often a drafter's tokens are the target's, counted in real rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import TrainingError
from ..planner.strategies.chain import ChainPolicy
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import StepConfig, always, draft_room
from ..runtime.drafters.head import model_drafter
from ..runtime.engine.engine import Engine
from ..runtime.engine.scheduler import Scheduler
from ..runtime.engine.step_output import StepOutput
from ..runtime.models.forward import CausalModel
from ..runtime.models.tapped import tapped_for

SLOTS = 8  # sequences decoded at once
DRAFTER = "the drafter"  # its name in the rounds that try it out


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAcceptance:
    """Counts of rounds with chains of one length, without rounds cut short by the end of a text.

    `by_depth` is the chance that token k of a chain is accepted, given that those before it were, up to the last depth
    ever reached. `tokens_per_round` is per sequence, the target's own token included.
    """

    by_depth: tuple[float, ...]
    tokens_per_round: float
    rounds: int


def chain_acceptance(
    target: CausalModel, drafter: CausalModel, requests: Sequence[Request], length: int
) -> ChainAcceptance:
    """Return the acceptance of a drafter's chains along the target's texts; TrainingError where a round fails."""
    setup = StepConfig(policy=ChainPolicy(length=length), drafter=DRAFTER)
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    capacity, slots = longest + draft_room([setup]), min(SLOTS, len(requests))
    drafters = {DRAFTER: model_drafter(drafter, slots=slots, capacity=capacity)}
    decoder = Engine(tapped_for(target, [drafter]), drafters, always(setup), slots=slots, capacity=capacity)
    scheduler, kept = Scheduler(decoder), list[int]()
    for request in requests:
        scheduler.add(request)
    while scheduler.schedule():
        done = decoder.step()
        require_faultless(done)
        ended = {sequence.index for sequence in done.finished}
        kept += [count for index, count in zip(done.sequences, done.kept, strict=True) if index not in ended]
    return acceptance_of(kept, length)


def require_faultless(done: StepOutput) -> None:
    """Raise TrainingError where a round had a fault: its counts say nothing about the drafter."""
    if done.faults:
        fault = done.faults[0]
        raise TrainingError(
            f"{fault.drafter or 'the verification'} failed where drafts are tried out ({fault.reason}); mend that, and "
            "the same command resumes from there"
        )


def acceptance_of(kept: Sequence[int], length: int) -> ChainAcceptance:
    """Return the acceptance by the tokens that rounds emitted, each from 1 to length + 1."""
    reached = [sum(count > depth for count in kept) for depth in range(length + 1)]
    return ChainAcceptance(
        by_depth=tuple(below / above for above, below in pairwise(reached) if above),
        tokens_per_round=sum(kept) / max(len(kept), 1),
        rounds=len(kept),
    )
