"""Labels for a pivot classifier: tokens that strict verification rejects, and whether they spoil the answer.

*Harvest.* Problems are decoded strictly with drafts of one token. A drafted token that is not the target's is a
candidate; its features come from the very code that decodes with PAD.

*Label.* From every candidate's place the target continues twice, several times each: behind the text and the candidate,
and behind the text alone. With U the share of right answers of each,

  a candidate is a pivot  iff  U(with the candidate) < alpha * U(without)

Both sides draw with the same noise, place by place, so that they do not differ by chance alone. Where the target never
gets the answer right anyway, no candidate is a pivot.

Source: Ziashahabi et al. 2025, PAD, arXiv:2511.00351. Number and temperature of rollouts and alpha are not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TrainingError
from ..planner.kernels.arrays import Floats, Floats32
from ..planner.records.pad_rule import PadRule
from ..planner.strategies.base import made
from ..planner.strategies.chain import ChainPolicy
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import PLAIN, StepConfig, always, draft_room
from ..runtime.drafters.head import model_drafter
from ..runtime.engine.engine import Engine
from ..runtime.engine.request_state import sequences_of
from ..runtime.engine.scheduler import Scheduler
from ..runtime.models.forward import CausalModel
from ..runtime.models.tapped import tapped_for
from .acceptance import DRAFTER, require_faultless

SLOTS = 64  # sequences decoded at once
NOBODY = ModelIdentity(
    name="harvest", weights_hash="0" * 64, parameters=1, config_hash="", tokenizer_hash="", location=""
)

IsRight = Callable[[int, Sequence[int]], bool]  # (problem, tokens of a whole text behind its prompt) -> right


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Rollouts on each side of a candidate; number i draws with seed + i, and at temperature 0 one suffices."""

    rollouts: int = 8
    temperature: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rollouts < 1 or not self.temperature >= 0.0:
            raise TrainingError(f"rollouts must be at least 1 and their temperature at least 0, got {self}")
        if self.temperature == 0.0 and self.rollouts > 1:
            raise TrainingError(
                f"{self.rollouts} rollouts at temperature 0 are one and the same; take 1, or a temperature above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedToken:
    """A drafted token that strict verification rejects, with the emitted tokens before it."""

    problem: int
    before: tuple[int, ...]  # emitted in front of it
    token: int


@dataclass(slots=True)
class _Notes:
    """A judge that rejects everything and stores the features it gets."""

    reads: int
    features: list[Tensor] = field(default_factory=list)

    def chances(self, features: Tensor) -> list[float]:
        self.features.append(features.cpu())
        return [1.0] * len(features)


def harvest(
    target: CausalModel, drafter: CausalModel, requests: Sequence[Request], *, reads: int, floor: float
) -> tuple[list[RejectedToken], Floats32]:
    """Return the candidates of some problems in order of appearance, and their features (candidates, hidden + 2).

    Hidden states are read after `reads` layers. Candidates below the floor, or that end a text, are left out.
    ModelError where the target does not give its hidden states.
    """
    notes = _Notes(reads)
    policy = made("lossy-pad", draft=ChainPolicy(length=1), rule=PadRule(threshold=0.0, floor=floor), classifier=NOBODY)
    setup, slots = StepConfig(policy=policy, drafter=DRAFTER), min(SLOTS, len(requests))
    capacity = max(len(request.prompt) + request.max_new_tokens for request in requests) + draft_room([setup], slots)
    decoder = Engine(
        tapped_for(target, [drafter], also=(reads,)),
        {DRAFTER: model_drafter(drafter, slots=slots, capacity=capacity)},
        always(setup),
        slots=slots,
        capacity=capacity,
        allow_lossy=True,
        judges={NOBODY.name: notes},
    )
    scheduler, found = Scheduler(decoder), list[RejectedToken]()
    for request in requests:
        scheduler.add(request)
    while scheduler.schedule():
        emitted = {sequence.index: tuple(sequence.emitted) for sequence in decoder.running}
        done = decoder.step()
        require_faultless(done)
        for index, gates in zip(done.sequences, done.gates, strict=True):
            found += [RejectedToken(problem=index, before=emitted[index], token=token) for token in gates.asked]
    features: Floats32 = torch.cat(notes.features).numpy() if notes.features else np.zeros((0, 0), dtype=np.float32)
    return found, features


def utilities(
    target: CausalModel,
    requests: Sequence[Request],
    candidates: Sequence[RejectedToken],
    is_right: IsRight,
    settings: RolloutSettings,
    progress: Callable[[float], None] = lambda share: None,
) -> Floats:
    """Return (candidates, 2): the share of right rollouts with each candidate, and without."""
    asked = list(_rollouts(requests, candidates, settings))
    texts = iter(_continued(target, [request for _, request in asked if request is not None], progress))
    right = []
    for (problem, before), request in asked:
        behind = () if request is None else next(texts)
        right.append(is_right(problem, (*before, *behind)))
    shares: Floats = np.array(right, dtype=np.float64).reshape(len(candidates), 2, settings.rollouts).mean(axis=2)
    return shares


def pivots_of(shares: Floats, least_share: float) -> NDArray[np.bool_]:
    """Return (candidates,): which are pivots, by the shares of right rollouts with and without, and alpha."""
    return np.asarray(shares[:, 0] < least_share * shares[:, 1], dtype=np.bool_)


def _rollouts(
    requests: Sequence[Request], candidates: Sequence[RejectedToken], settings: RolloutSettings
) -> Iterator[tuple[tuple[int, tuple[int, ...]], Request | None]]:
    """Yield each rollout's problem and text, those with the candidate first, and its request; None: no room is left."""
    for candidate in candidates:
        own = requests[candidate.problem]
        for before in ((*candidate.before, candidate.token), candidate.before):
            room = own.max_new_tokens - len(before)
            for place in range(settings.rollouts):
                request = None
                if room > 0:
                    request = Request(
                        prompt=(*own.prompt, *before),
                        max_new_tokens=room,
                        temperature=settings.temperature,
                        seed=settings.seed + place,
                        stop=own.stop,
                    )
                yield (candidate.problem, before), request


def _continued(
    target: CausalModel, requests: Sequence[Request], progress: Callable[[float], None]
) -> list[tuple[int, ...]]:
    if not requests:
        return []
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    decoder = Engine(target, {}, always(PLAIN), slots=min(SLOTS, len(requests)), capacity=longest + 1)
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in requests]
    while scheduler.schedule():
        progress(1 - scheduler.waiting / len(requests))
        decoder.step()
    return [tuple(sequence.emitted) for sequence in sequences_of(states)]
