"""A stack of models as one drafter: each verifies the draft of the one below, down to the smallest or the text."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from functools import partial

import numpy as np

from ...errors import ModelError
from ...planner.records.draft import ROOT_TOKEN, DraftBatch
from ...planner.strategies import TreePolicy
from ...planner.strategies.naming import LOOKUP
from ...planner.strategies.stack import JOINT, StackPolicy, stack_name
from ...planner.strategies.texts import TextState
from ..batch.sequence import Sequence
from ..models.forward import CausalModel
from ..models.tapped import is_beside_target
from .base import Drafter
from .level import Ahead, Pick, StackLevel


def stack_drafter(policy: StackPolicy, models: Mapping[str, CausalModel], *, slots: int, capacity: int) -> StackDrafter:
    """Return the drafter of a stack, named `stack_name(policy)`, of any lengths; ModelError if a model is missing."""
    return named_stack(stack_name(policy), models, slots=slots, capacity=capacity)


def named_stack(name: str, models: Mapping[str, CausalModel], *, slots: int, capacity: int) -> StackDrafter:
    """Return the drafter of all stacks with one name; ModelError if a model is missing or reads the target."""
    wanted = [one for one in name.split(JOINT) if one != LOOKUP]
    missing = [one for one in wanted if one not in models]
    heads = [one for one in wanted if one in models and is_beside_target(models[one])]
    if heads:
        raise ModelError(
            f"{', '.join(heads)} reads hidden states or keys of the target, which only committed text has: it is in "
            "no stack"
        )
    if missing:
        raise ModelError(f"a stack {name} needs {', '.join(missing)}; loaded are {', '.join(models) or 'none'}")
    return StackDrafter([models[one] for one in wanted], slots=slots, capacity=capacity)


class StackDrafter(Drafter):
    """Drafts the first model's own chain; the models below only change how many forwards that takes.

    So a draft depends on the committed text alone, up to its length, and that depends on the text too. Rows of a batch
    that have enough tokens wait for the others. `forwards` counts all models, reading prompts included.

    Source: Globerson et al. 2025, arXiv:2510.19705.
    """

    def __init__(self, models: Many[CausalModel], *, slots: int, capacity: int) -> None:
        """Allocate a cache per model, the one next to the target first."""
        self.forwards = 0
        self._vocabulary = models[0].vocabulary
        self._texts: dict[int, TextState] = {}  # by slot, for a lookup at the bottom
        self._ran: list[tuple[int, int]] = []  # level and tokens fed of the running round's forwards
        self._levels = [
            StackLevel(model, partial(_note, self._ran, place), slots=slots, capacity=capacity)
            for place, model in enumerate(models)
        ]

    @property
    def level_forwards(self) -> tuple[int, ...]:
        """Forwards so far of each model, reading prompts included, the one next to the target first."""
        return tuple(level.forwards for level in self._levels)

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        """Let every model, which holds the first `held` of these tokens, read the rest."""
        if held == 0:
            self._texts[slot] = TextState()
        for level in self._levels:
            level.read_along(slot, tokens, held)
        self.forwards = sum(self.level_forwards)
        return len(tokens)

    def forget(self, slot: int) -> bool:
        """Drop a slot's text in every model."""
        self.read_along(slot, (), 0)
        return True

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self._texts[target] = self._texts[source]
        for level in self._levels:
            level.move(source, target)

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Copy the start of another slot's text in every model; return how many tokens all of them hold."""
        self._texts[slot] = TextState()
        return min(level.copy_prefix(source, slot, most) for level in self._levels)

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange two slots in every model."""
        self._texts |= {one: TextState(), other: TextState()}
        for level in self._levels:
            level.swap_prefixes(one, other)

    def uncached(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that any model has to read first."""
        return max(level.unread(slot, s.tokens) for level in self._levels for slot, s in enumerate(sequences))

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the first model's chains, each token with its siblings; ModelError for another stack size."""
        assert isinstance(policy, StackPolicy)
        if len(policy.models) != len(self._levels):
            raise ModelError(f"a {policy.label} needs {len(policy.models)} models, this one has {len(self._levels)}")
        self._ran.clear()
        for level in self._levels:
            level.begin([len(s.tokens) for s in sequences])
        texts = [Ahead(sequence=s, held=[]) for s in sequences]
        chains = self._handed_up(policy, 0, texts, list(range(len(texts))))
        self.forwards = sum(self.level_forwards)
        return comb_of(
            chains,
            min(1 + policy.siblings, self._vocabulary),
            widths=tuple(width for _, width in self._ran),
            levels=tuple(level for level, _ in self._ran),
        )

    def _handed_up(self, policy: StackPolicy, place: int, texts: Many[Ahead], rows: Many[int]) -> list[list[Pick]]:
        """Return a level's tokens behind each text: its length or more for the asking rows, none for others."""
        if place == len(self._levels):
            return self._looked_up(policy, texts, rows)
        length, count = policy.lengths[place], 1 + (policy.siblings if place == 0 else 0)
        level = self._levels[place]
        if place + 1 == len(policy.drafters):
            return level.draft(texts, rows, length, count)
        made: list[list[Pick]] = [[] for _ in texts]
        asking = list(rows)
        while asking:
            behind = [
                Ahead(sequence=text.sequence, held=text.held + tokens_of(picks))
                for text, picks in zip(texts, made, strict=True)
            ]
            drafts = [tokens_of(picks) for picks in self._handed_up(policy, place + 1, behind, asking)]
            kept = level.verify(behind, drafts, asking, count)
            for row in asking:
                made[row] += kept[row]
                for below in self._levels[place + 1 :]:
                    below.crop(row, len(behind[row]) + len(kept[row]) - 1)
            asking = [row for row in asking if len(made[row]) < length]
        return made

    def _looked_up(self, policy: StackPolicy, texts: Many[Ahead], rows: Many[int]) -> list[list[Pick]]:
        found: list[list[Pick]] = [[] for _ in texts]
        for row in rows:
            chain = self._texts[row].behind(texts[row].sequence.tokens, texts[row].held, policy.lookup)
            found[row] = [[token] for token in chain[0, 1:].tolist()]
        return found


def _note(ran: list[tuple[int, int]], level: int, width: int) -> None:
    """Record a forward; not a method, because levels that held their stack would outlive it with their caches."""
    ran.append((level, width))


def tokens_of(picks: Many[Pick]) -> list[int]:
    """Return a level's own chain, without the siblings."""
    return [pick[0] for pick in picks]


def comb_of(
    chains: Many[Many[Pick]], leaves: int, *, widths: tuple[int, ...] = (), levels: tuple[int, ...] = ()
) -> DraftBatch:
    """Return chains with siblings as trees of `leaves` tokens a depth: node 1 + leaves * d is the chain's token d."""
    places = np.arange(1 + leaves * max(len(chain) for chain in chains))
    tokens = np.full((len(chains), len(places)), ROOT_TOKEN, dtype=np.int64)
    for row, chain in enumerate(chains):
        if chain:
            tokens[row, 1 : 1 + leaves * len(chain)] = np.ravel(chain)
    sizes = np.array([1 + leaves * len(chain) for chain in chains], dtype=np.int64)
    depths = (places + leaves - 1) // leaves
    parents = np.where(depths > 1, 1 + leaves * (depths - 2), 0)
    parents[0] = -1
    is_real = places < sizes[:, None]
    return DraftBatch(
        tokens=tokens,
        parents=np.where(is_real, parents, 0),
        depths=np.where(is_real, depths, 1),
        sizes=sizes,
        widths=widths,
        levels=levels,
    )
