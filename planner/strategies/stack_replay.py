"""Decode the recorded texts again by a stack of drafters, round by round, as the runtime does.

Each model was recorded along the target's text, so it is known how far it follows the text from any position. A level
hands up a chain that follows the text for some tokens and then may leave it. How many follow is exact: the level below
ends on the text after an exact number of tokens, or leaves it first and is corrected there, or lasts until the level
itself leaves it. So the tokens that a round emits replay exactly.

Where a level has left the text no trace has the tokens of the level below. Their acceptance is tossed, with the chance
that the two agree along the text. These tosses decide how many forwards the lower levels run and how many tokens are
verified in vain; the forwards they touch are marked as modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...errors import PlanError
from ...profiler.records.acceptance import PairwiseAcceptance
from ..lockstep import Replay, Step, replay_stepped
from ..records.draft import Bools, Ints
from ..records.recording import Recording
from .chain import right_run
from .lookup import lookup_results
from .stack import StackPolicy

OFF = -1  # off the recorded text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackReplay:
    """Every round of a replay.

    Attributes:
        replay: contexts, catch_up, texts and kept are exact; widths (of all models, in tokens per sequence) and nodes
            are modelled where `is_modelled`.
        levels: (rounds, forwards), the model of each forward, 0 being next to the target; -1 = did not run.
        is_modelled: (rounds, forwards + 1), whether a toss came before a forward; the last column is the target's own.
    """

    replay: Replay
    levels: Ints
    is_modelled: Bools

    def modelled_share(self, level: int) -> float:
        """Return the share of a level's forwards that a toss came before."""
        ran = self.levels == level
        return float(self.is_modelled[:, :-1][ran].mean()) if ran.any() else 0.0


def replay_stack(
    policy: StackPolicy,
    recordings: Mapping[str, Recording],
    batch: int,
    *,
    agreement: Sequence[float],
    generator: np.random.Generator,
) -> StackReplay:
    """Return the rounds of a stack whose models were recorded along the same texts.

    Of the recordings, by model, only the first one's children are read: its best and the siblings. `agreement` comes
    from `agreement_of`; `generator` tosses. PlanError if a recording is missing, is of other texts, or has no ranks for
    chains or too few children, or if texts are fewer than slots.
    """
    first = _require_recorded(policy, recordings)
    first.require_children(1 + policy.siblings)
    if len(agreement) != len(policy.drafters) - 1 or not all(0.0 <= chance <= 1.0 for chance in agreement):
        raise PlanError(f"a {policy.label} needs a chance for each level but the lowest, got {list(agreement)}")
    rounds = _StackRounds(policy, recordings, agreement, generator)
    replay = replay_stepped(first.rows, batch, rounds.advance)
    levels = np.full(replay.widths.shape, -1, dtype=np.int64)
    is_modelled = np.zeros((replay.rounds, replay.widths.shape[1] + 1), dtype=np.bool_)
    for row, (ran, is_tossed) in enumerate(rounds.told):
        levels[row, : len(ran)] = [one.level for one in ran]
        is_modelled[row, : len(ran)] = [one.is_modelled for one in ran]
        is_modelled[row, -1] = is_tossed
    return StackReplay(replay=replay, levels=levels, is_modelled=is_modelled)


def agreement_of(
    policy: StackPolicy, recordings: Mapping[str, Recording], pairwise: PairwiseAcceptance | None = None
) -> tuple[float, ...]:
    """Return, per level but the lowest, how often it agrees with the level below along the text.

    For two models this is the share of equal first choices, so `pairwise` is needed. For a lookup it is how often its
    first token is the text's and the model's first choice: agreement on another token is not recorded. PlanError if a
    recording or a model's agreement is missing.
    """
    _require_recorded(policy, recordings)
    chances = [
        _agreement(pairwise, upper, lower) for upper, lower in zip(policy.models, policy.models[1:], strict=False)
    ]
    if policy.has_lookup:
        recording = recordings[policy.models[-1]]
        found, right = _found(policy, recording)
        is_said = (right > 0) & (right_run(recording.next_rank) > 0)
        chances.append(float(is_said[found > 0].mean()) if (found > 0).any() else 0.0)
    return tuple(chances)


def _agreement(pairwise: PairwiseAcceptance | None, upper: str, lower: str) -> float:
    if pairwise is None or not {upper, lower} <= {*pairwise.models}:
        known = "none" if pairwise is None else ", ".join(pairwise.models)
        raise PlanError(f"how often {upper} and {lower} agree was not recorded, only of {known}; record them too")
    return pairwise.greedy[pairwise.models.index(upper)][pairwise.models.index(lower)]


def _require_recorded(policy: StackPolicy, recordings: Mapping[str, Recording]) -> Recording:
    missing = [name for name in policy.models if name not in recordings]
    if missing:
        raise PlanError(f"a {policy.label} needs recordings of {', '.join(missing)}; record these drafters")
    used = [recordings[name] for name in policy.models]
    if any(recording.texts != used[0].texts for recording in used):
        raise PlanError(f"the models of a {policy.label} were recorded along different texts; record them together")
    if not all(recording.is_prefix_exact for recording in used):
        raise PlanError(f"a {policy.label} replays drafters whose proposal is a function of the text; it is not here")
    return used[0]


def _found(policy: StackPolicy, recording: Recording) -> tuple[Ints, Ints]:
    """Return (rows,) tokens the lookup copies and (rows,) how many of them are the text's."""
    ((_, results),) = lookup_results(recording.texts, policy.max_ngram, policy.min_ngram, [policy.lengths[-1]])
    return results.sizes - 1, results.accepted


class _Chain(NamedTuple):
    """What a level hands up: tokens, and how many of the first ones are the text's."""

    tokens: int
    right: int

    @property
    def is_whole(self) -> bool:
        return self.right == self.tokens


class _Place(NamedTuple):
    """Where a level continues: a row of the texts' numbering or OFF, and tokens behind the committed ones."""

    row: int
    ahead: int

    def behind(self, chain: _Chain) -> _Place:
        is_on = self.row != OFF and chain.is_whole
        return _Place(self.row + chain.tokens if is_on else OFF, self.ahead + chain.tokens)


class _Ran(NamedTuple):
    level: int
    width: int
    is_modelled: bool


class _StackRounds:
    """Runs a stack over the running sequences; `told` holds each round's forwards and whether anything was tossed."""

    def __init__(
        self,
        policy: StackPolicy,
        recordings: Mapping[str, Recording],
        agreement: Sequence[float],
        generator: np.random.Generator,
    ) -> None:
        first = recordings[policy.models[0]]
        self.told: list[tuple[list[_Ran], bool]] = []
        self._policy, self._agreement, self._generator = policy, agreement, generator
        self._rank, self._rows = first.next_rank, first.rows
        self._runs = [right_run(recordings[name].next_rank) for name in policy.models]
        self._found, self._right = _found(policy, first) if policy.has_lookup else (self._rank, self._rank)
        self._cached: list[list[int]] = []  # per model and slot: tokens in its cache, less those committed
        self._ran: list[_Ran] = []
        self._is_tossed = False

    def advance(self, at: list[int], fresh: list[int]) -> Step:
        self._cached = [[-count for count in fresh] for _ in self._runs]
        self._ran, self._is_tossed = [], False
        chains = self._handed_up(0, [_Place(row, 0) for row in at], list(range(len(at))))
        self.told.append((self._ran, self._is_tossed))
        kept = [self._kept(row, chain) for row, chain in zip(at, chains, strict=True)]
        nodes = 1 + (1 + self._policy.siblings) * max(chain.tokens for chain in chains)
        return Step(kept, nodes, tuple(one.width for one in self._ran))

    def _kept(self, row: int, chain: _Chain) -> int:
        """Return the tokens a slot emits: the chain's that are the text's, a sibling's, and the target's own."""
        is_beside = not chain.is_whole and 1 <= self._rank[row + chain.right] <= self._policy.siblings
        return int(min(chain.right + is_beside + 1, self._rows.left[row]))

    def _handed_up(self, level: int, places: Sequence[_Place], slots: Sequence[int]) -> list[_Chain]:
        """Return what a level hands up at each place; nothing to the slots that do not need it."""
        if level == len(self._runs):
            return self._looked_up(places, slots)
        length = self._policy.lengths[level]
        if level + 1 == len(self._policy.drafters):
            return self._drawn(level, length, places, slots)
        made = [_Chain(0, 0)] * len(places)
        asking = list(slots)
        while asking:
            behind = [place.behind(chain) for place, chain in zip(places, made, strict=True)]
            drafts = self._handed_up(level + 1, behind, asking)
            self._note(level, max(behind[s].ahead - self._cached[level][s] + drafts[s].tokens for s in asking))
            for slot in asking:
                kept = self._verified(level, behind[slot].row, drafts[slot])
                made[slot] = _joined(made[slot], kept)
                self._hold(level, slot, behind[slot].ahead + kept.tokens - 1)
            asking = [slot for slot in asking if made[slot].tokens < length]
        return made

    def _verified(self, level: int, row: int, draft: _Chain) -> _Chain:
        """Return what a level accepts of a draft, plus its own next token."""
        if row == OFF:
            return _Chain(self._accepted(level, draft.tokens) + 1, 0)
        run = int(self._runs[level][row])
        if run > draft.right:  # it follows the text to the draft's end, or to where the draft leaves it
            return _Chain(draft.right + 1, draft.right + 1)
        if run < draft.right or draft.is_whole:  # it leaves the text where the draft does not
            return _Chain(run + 1, run)
        return _Chain(run + self._accepted(level, draft.tokens - run) + 1, run)  # both leave it here, perhaps together

    def _accepted(self, level: int, drafted: int) -> int:
        """Toss how many of the tokens drafted off the text a level accepts."""
        self._is_tossed = True
        accepted = 0
        while accepted < drafted and self._generator.random() < self._agreement[level]:
            accepted += 1
        return accepted

    def _drawn(self, level: int, length: int, places: Sequence[_Place], slots: Sequence[int]) -> list[_Chain]:
        self._note(level, max(places[slot].ahead - self._cached[level][slot] for slot in slots))
        for _ in range(length - 1):
            self._note(level, 1)
        drawn = [_Chain(0, 0)] * len(places)
        for slot in slots:
            row, ahead = places[slot]
            self._hold(level, slot, ahead + length - 1)
            drawn[slot] = _Chain(length, 0 if row == OFF else min(int(self._runs[level][row]), length))
        return drawn

    def _looked_up(self, places: Sequence[_Place], slots: Sequence[int]) -> list[_Chain]:
        """Return what the lookup copies; off the text, as many tokens as it copies at some other place."""
        found = [_Chain(0, 0)] * len(places)
        for slot in slots:
            row = places[slot].row
            if row == OFF or self._rows.left[row] == 0:  # what was decoded beyond a text's end is not recorded either
                self._is_tossed = True
                found[slot] = _Chain(int(self._generator.choice(self._found)), 0)
            else:
                found[slot] = _Chain(int(self._found[row]), int(self._right[row]))
        return found

    def _note(self, level: int, width: int) -> None:
        self._ran.append(_Ran(level, width, self._is_tossed))

    def _hold(self, level: int, slot: int, tokens: int) -> None:
        """Set the tokens in a level's cache behind the committed ones, and cap those of the levels below."""
        self._cached[level][slot] = tokens
        for below in self._cached[level + 1 :]:
            below[slot] = min(below[slot], tokens)


def _joined(first: _Chain, then: _Chain) -> _Chain:
    return _Chain(first.tokens + then.tokens, first.right + then.right if first.is_whole else first.right)
