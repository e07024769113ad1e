"""Whole rounds as captured work: draft, verification, acceptance, and the start of the next round."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.hybrid import HybridPolicy
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..batch.stopwatch import Moment
from ..batch.transfer import Landing, host_memory
from ..growth.captured import CapturedGrowth, RecordedDraft
from ..growth.grow import roots_on_device
from ..models.forward import ForwardInput, TreeMask
from ..models.graphed import GraphedModel, Replayed
from ..models.kernels.best_tokens import best_of, is_supported
from ..models.kv_cache import KeyValueCache
from ..sampling.captured_sampler import DeviceDraws, DrawKind
from .device_acceptance import end_round, sight_of
from .device_state import DONE, DRAFTED, LAUNCHED, BatchState, Told, told_of
from .device_texts import Copies

IN_FLIGHT = 2  # rounds at once: one that is read, and the one behind it
Key = tuple[StepConfig, int, DrawKind | None]  # of rounds: how, over how many sequences, and how tokens are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A round that the device runs or has run; read it before the round after the next is launched."""

    rounds: CapturedRounds
    record: Tensor  # on the host, (batch, any), there when DONE has come
    moments: list[Moment]

    def told(self) -> Told:
        """Wait for this round only, and return its result."""
        self.moments[DONE].wait()
        return self.rounds.told(self.record, self.moments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    graph: Replayed
    record: Tensor  # on the host, written by every replay: draft, what is best behind each node, where rows end


class CapturedRounds:
    """Rounds of one setup and batch size, each launched before the host has read the last one.

    A round is two pieces of captured work, one of each model, or the target's alone. The target's piece searches texts,
    so a hybrid's model drafts in every round. Results go to two places on the host in turn, so that it reads one round
    while the next runs. Work is recorded for each number of cache positions in sight, verifications also for each
    place. `growth` is None where no model drafts, `copies` where nothing is copied, `draws` for greedy rounds.
    """

    def __init__(
        self,
        setup: StepConfig,
        batch: int,
        target: GraphedModel,
        cache: KeyValueCache,
        *,
        seen_in: Callable[[int], int],
        growth: CapturedGrowth | None,
        copies: Copies | None,
        draws: DeviceDraws | None = None,
    ) -> None:
        self.setup, self.batch = setup, batch
        self.deepest = setup.policy.bounds.depth  # tokens of a draft that one round may accept
        self.most_read = self.deepest + 1  # tokens that a drafter has to read behind a round of its own
        self.ends = Ends(self.most_read)
        self.state = BatchState(batch, self.most_read, target.device)
        self._copies, self._draws = copies, draws
        self._by_model: TreePolicy = setup.policy.model if isinstance(setup.policy, HybridPolicy) else setup.policy
        self._target, self._cache, self._seen_in, self._growth = target, cache, seen_in, growth
        self._most_fed = max(setup.padded(tokens) for tokens in range(1, setup.policy.max_verify_tokens + 1))
        self._drafted = Landing(torch.empty_like)
        self._numbers = roots_on_device(batch, target.device).numbers()  # of the draft; where nobody drafts, always
        self._widths: tuple[int, ...] = ()
        self._drafts: dict[int, RecordedDraft] = {}  # by positions in sight
        self._verifications: dict[int, list[_Verification]] = {}  # by positions in sight, one for each turn
        self._sight: tuple[Tensor | None, Tensor] | None = None  # what nodes of a rigid tree see
        self._places: dict[int, Tensor] = {}  # 0, 1, ... by how many: not made anew by every replay
        self._plain_record = F.pad(self._numbers, (0, 2))  # of a round in which nobody drafts
        self._moments = [[Moment(target.device) for _ in range(DONE + 1)] for _ in range(IN_FLIGHT)]
        self._launches = 0

    @property
    def key(self) -> Key:
        """The key that distinguishes these rounds from others."""
        return self.setup, self.batch, None if self._draws is None else self._draws.kind

    def has_room(self, context: int) -> bool:
        """Whether a round fits into every cache if no row has more than `context` tokens cached when it begins."""
        if context >= self._target.longest_context or context + self._most_fed > self._cache.capacity:
            return False
        return self._growth is None or self._sight_of(self._growth, context) is not None

    @torch.inference_mode()
    def begin(self, batch: Many[Sequence], fresh: Many[Many[int]] | None) -> bool:
        """Start the next round from the host's state; False if it cannot. The drafter has to read `fresh` tokens."""
        unread: Many[Many[int]] | None = [s.tokens[-1:] for s in batch] if fresh is None else fresh
        if self._copies is not None:
            unread = self._copies.texts.begin(batch, fresh, self.most_read)
        if unread is None:
            return False
        if self._draws is not None:
            self._draws.put([s.request for s in batch])
        self.state.put([s.context for s in batch], unread)
        return True

    @torch.inference_mode()
    def launch(self, context: int) -> Launched:
        """Launch the next round without waiting; no row has more than `context` cached tokens, and there is room."""
        draft = None if self._growth is None else self._draft(self._growth, context)
        turn = self._launches % IN_FLIGHT
        verification = self._verifications_in(self._seen_in(context + self._most_fed))[turn]
        moments = self._moments[turn]
        moments[LAUNCHED].mark()
        if draft is not None:
            draft.graph.replay()
            moments[DRAFTED].mark()
        verification.graph.replay()
        moments[DONE].mark()
        self._launches += 1
        return Launched(rounds=self, record=verification.record, moments=moments)

    def note_ahead(self, ends: Many[int]) -> None:
        """Note where a round began that was launched behind another one: tokens in the target's cache."""
        if self._copies is not None:
            self._copies.texts.note([end + 1 for end in ends])

    def told(self, record: Tensor, moments: Many[Moment]) -> Told:
        """Return the result of a round that is over."""
        return told_of(record, moments, nodes=self._nodes, widths=self._widths, drafts=self._growth is not None)

    def _sight_of(self, growth: CapturedGrowth, context: int) -> int | None:
        return growth.seen_behind(context + 1, self.most_read, self._by_model)

    def _draft(self, growth: CapturedGrowth, context: int) -> RecordedDraft:
        seen = self._sight_of(growth, context)
        assert seen is not None, "has_room was asked"
        if seen not in self._drafts:
            self._drafts[seen] = growth.record(
                lambda: self.state.reading(growth.vocabulary, seen),
                self._land,
                longest=context + 1,
                policy=self._by_model,
                seen=seen,
                draws=self._draws,
            )
            self._widths = self._drafts[seen].widths
        return self._drafts[seen]

    def _land(self, numbers: Tensor) -> Tensor:
        self._numbers = self._drafted(numbers)
        return self._numbers

    def _verifications_in(self, seen: int) -> list[_Verification]:
        if seen not in self._verifications:
            with self.state.at_rest():
                self._verifications[seen] = [self._recorded(seen) for _ in range(IN_FLIGHT)]
        return self._verifications[seen]

    def _recorded(self, seen: int) -> _Verification:
        landing = Landing(host_memory)
        graph, record = self._target.record(lambda: landing(self._verified(seen)))
        return _Verification(graph=graph, record=record)

    def _verified(self, seen: int) -> Tensor:
        if self._growth is None and self._most_fed == 1 and is_supported(self._target.device, self._target.dtype):
            return self._plainly_verified(seen)
        starts, numbers = self.state.starts, self._numbers
        if self._copies is not None:
            numbers = self._copies.drafted(self.state, None if self._growth is None else numbers, self._nodes)
        tokens, parents, depths = self._widened(numbers)
        sees, bits = self._sees(parents)
        places = self._places_of(tokens.shape[1])
        fed = torch.cat((self.state.newest, tokens[:, 1:].clamp(min=0, max=self._target.vocabulary - 1)), dim=1)
        step = ForwardInput(
            tokens=fed,
            positions=starts.unsqueeze(1) + depths,
            columns=starts.unsqueeze(1) + places,
            bias=None,
            seen=seen,
            tree=TreeMask(starts=starts, bits=bits),
        )
        logits = self._target.model.forward(step, self._cache)
        if self._draws is None:
            best = best_of(logits)
        else:
            best = self._draws.drawn(logits, starts + 1, depths, max(self.deepest, 1))  # 1: of padding
        ends = end_round(
            (tokens, parents), best, starts,
            state=self.state, cache=self._cache, reach=self.deepest, sees=sees, may_branch=self._may_branch,
        )  # fmt: skip
        return torch.cat((numbers, best, ends.unsqueeze(1)), dim=1)

    def _plainly_verified(self, seen: int) -> Tensor:
        """Do what `_verified` does for a round without draft and padding, in as few launches as possible."""
        state, places = self.state, self.state.starts.unsqueeze(1)
        step = ForwardInput(
            tokens=state.fresh,
            positions=places,
            columns=places,
            bias=None,
            seen=seen,
            tree=TreeMask(starts=state.starts, bits=state.text_bits),
        )
        logits, noise = self._target.model.forward(step, self._cache), None
        if self._draws is not None:
            logits, noise = self._draws.noisy_parts(logits, state.starts + 1, torch.zeros_like(places), 0)
        state.go_on_behind(logits[:, 0], self._plain_record, noise)
        return self._plain_record

    @property
    def _nodes(self) -> int:
        drafted = self._numbers.shape[1] // 3
        return drafted if self._copies is None else self.setup.padded(max(drafted, self._copies.by.nodes))

    @property
    def _is_copied_chain(self) -> bool:
        return self._growth is None and self._copies is not None and self._copies.are_chains

    @property
    def _may_branch(self) -> bool:
        by_text = self._copies is not None and not self._copies.are_chains
        return by_text or (self._growth is not None and not isinstance(self._by_model, ChainPolicy))

    def _widened(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        padding = (0, self.setup.padded(self._nodes) - self._nodes)
        tokens, parents, depths = numbers[:, :-1].chunk(3, dim=1)
        if padding == (0, 0):
            return tokens, parents, depths
        return F.pad(tokens, padding, value=ROOT_TOKEN), F.pad(parents, padding), F.pad(depths, padding)

    def _places_of(self, count: int) -> Tensor:
        if count not in self._places:
            self._places[count] = torch.arange(count, device=self._target.device)
        return self._places[count]

    def _sees(self, parents: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return what nodes see, cached for rigid trees and for chains: behind a chain's end is no token."""
        if self._sight is not None:
            return self._sight
        if self._is_copied_chain:
            parents = (self._places_of(parents.shape[1]) - 1).expand_as(parents)
        found = sight_of(parents, max(self.deepest, 1))  # 1: padding hangs below the root
        if self._is_copied_chain or self.setup.policy.source == "none" or self.setup.policy.is_of_one_shape:
            self._sight = found
        return found


MOST_LOST = 0.02  # of rounds that are launched behind others: about as much of a round is what each saves


class Ends:
    """Estimates how likely a sequence ends with the next round, from the tokens emitted in past rounds."""

    def __init__(self, most: int) -> None:
        self._kept = [0] * (most + 1)  # how often so many
        self._most = most

    def note(self, kept: Many[int]) -> None:
        """Count what each sequence emitted in a round."""
        for tokens in kept:
            self._kept[min(tokens, self._most)] += 1

    def are_likely(self, left: Many[int]) -> bool:
        """Whether it is too likely that a sequence ends with a round; `left` is what each may still emit."""
        none, rounds = 1.0, sum(self._kept)
        for tokens in left:
            if tokens <= self._most:
                none *= 1.0 - (sum(self._kept[max(tokens, 0) :]) + 1) / (rounds + 1)
        return none < 1.0 - MOST_LOST
