"""One model of a stack: how much of every text it has read, and its next tokens."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ...planner.records.room import READ_TOGETHER
from ..batch.sequence import Sequence
from ..batch.transfer import fetched, sent
from ..models.forward import CausalModel
from ..models.layout import PREFILL_TOKENS, Masks, chain_sight, lay_out, seen_by
from ..sampling.filters import NOTHING, processed, seen_tokens, with_noise

NO_NUMBER = -1  # stands for a token where the logits are not numbers
Pick = list[int]  # a token of a level's own chain, then its next-best ones at that place


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """A text at one level of a stack: the committed tokens, then those that the levels above hold."""

    sequence: Sequence
    held: list[int]

    @property
    def committed(self) -> list[int]:
        """The committed tokens."""
        return self.sequence.tokens

    def __len__(self) -> int:
        return len(self.committed) + len(self.held)

    def since(self, place: int) -> list[int]:
        """Return the text from a place on."""
        return [*self.committed[place:], *self.held[max(place - len(self.committed), 0) :]]


class StackLevel:
    """A model with its own cache.

    Invariant: `_cached[slot]` tokens of the slot's text are in the cache, of which the first `_committed[slot]` were
    committed when read; the rest may be anything. Each round starts from those: committed tokens that were drafted
    before are read again, so that a draft depends on the committed text alone.
    """

    def __init__(self, model: CausalModel, note: Callable[[int], None], *, slots: int, capacity: int) -> None:
        """Allocate the cache, drafted tokens included; `note` gets the tokens per sequence of each round's forwards."""
        self.forwards = 0
        self._note = note
        self._model, self._capacity = model, capacity
        self._cache = model.new_cache(slots, capacity)
        self._masks = Masks(model.dtype, model.device, slots=slots, capacity=capacity)
        self._seen_in = seen_by(model, capacity)
        self._cached, self._committed = [0] * slots, [0] * slots

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Read committed tokens into a slot that holds the first `held` of them."""
        for start in range(held, len(tokens), PREFILL_TOKENS):
            piece = tokens[start : start + PREFILL_TOKENS]
            take = np.array([len(piece) - 1])
            self._run(np.array([piece], dtype=np.int64), [start], take=take, first_slot=slot, is_prompt=True)
        self._committed[slot] = max(held, len(tokens))
        self._cached[slot] = len(tokens)

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self._cache.move_slot(source, target, self._committed[source])
        self._committed[target] = self._committed[source]

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Copy at most `most` of the first committed tokens of a slot over another; return how many."""
        held = min(self._committed[source], most)
        if slot != source:
            self._committed[slot] = self._cached[slot] = 0
            self._cache.move_slot(source, slot, held)
        self._committed[slot] = self._cached[slot] = held
        return held

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots."""
        held = self._committed[one], self._committed[other]
        for slot in (one, other):
            self._committed[slot] = self._cached[slot] = 0
        self._cache.swap_slots(one, other, max(held))
        for slot, tokens in zip((other, one), held, strict=True):
            self._committed[slot] = self._cached[slot] = tokens

    def unread(self, slot: int, tokens: Many[int]) -> int:
        """Return how many committed tokens the next draft has to read first."""
        return len(tokens) - self._committed[slot]

    def begin(self, lengths: Many[int]) -> None:
        """Start a round: go back to the committed tokens of texts of these lengths, without the newest."""
        for slot, length in enumerate(lengths):
            self._cached[slot] = min(self._committed[slot], length - 1)

    def crop(self, slot: int, tokens: int) -> None:
        """Drop what a slot has read beyond `tokens`: the level above has replaced it."""
        self._cached[slot] = min(self._cached[slot], tokens)

    def verify(self, texts: Many[Ahead], drafts: Many[Many[int]], rows: Many[int], count: int) -> list[list[Pick]]:
        """Return, for each of `rows`, the accepted part of its draft and the model's own next token, by one forward.

        A drafted token is accepted where it is the model's own choice. `texts` and `drafts` cover all slots in use;
        rows that do not verify are fed along unchanged. Each place gets the `count` best tokens, the model's own first.
        """
        fed = self._waiting(texts, rows, max(len(drafts[row]) for row in rows))
        for row in rows:
            fed[row] += drafts[row]
        starts = self._cached[: len(fed)]
        asked = _asked(fed, drafts, rows)  # what was only read on the way has no say
        every, behind = np.arange(len(fed))[:, None], sent(asked, self._model.device)
        logits = self._forward(_padded(fed), starts)[torch.arange(len(fed), device=behind.device)[:, None], behind]
        places = np.array(starts)[:, None] + asked + 1
        own_best = _best(logits, texts, places, lambda: _paths(texts, starts, fed)[every, asked], count)
        best = torch.from_numpy(fetched(own_best))
        _require_numbers(best[rows])
        kept: list[list[Pick]] = [[] for _ in texts]
        for row in rows:
            draft = drafts[row]
            own: list[Pick] = best[row, : len(draft) + 1].tolist()
            accepted = next((n for n, token in enumerate(draft) if own[n][0] != token), len(draft))
            kept[row] = own[: accepted + 1]
            self._hold(row, texts[row], len(texts[row]) + accepted)
        return kept

    def draft(self, texts: Many[Ahead], rows: Many[int], length: int, count: int) -> list[list[Pick]]:
        """Return, for each of `rows`, the model's own next `length` tokens, each with the `count` best, own first."""
        fed = self._waiting(texts, rows, 0)
        take = np.array([len(tokens) - 1 for tokens in fed], dtype=np.int64)
        drawn: list[torch.Tensor] = []

        def noted(logits: torch.Tensor) -> None:
            own = [picks[:, :, :1] for picks in drawn]
            places = np.array([[len(text) + len(own)] for text in texts])
            drawn.append(_best(logits, texts, places, lambda: _drawn_paths(texts, own, logits.device), count))

        noted(self._forward(_padded(fed), self._cached[: len(fed)], take=take))
        for row in rows:
            self._hold(row, texts[row], len(texts[row]))
        blank = np.zeros((len(fed), 1), dtype=np.int64)
        for _ in range(length - 1):
            newest = drawn[-1][:, :, 0].clamp(min=0)
            noted(self._forward(blank, self._cached[: len(fed)], drawn=newest))
            for row in rows:
                self._cached[row] += 1
        chosen = torch.from_numpy(fetched(torch.cat(drawn, dim=1)))  # read once, behind the last forward
        _require_numbers(chosen[rows])
        picks: list[list[Pick]] = chosen.tolist()
        asking = set(rows)
        return [picks[row] if row in asking else [] for row in range(len(fed))]

    def _hold(self, row: int, text: Ahead, cached: int) -> None:
        self._cached[row] = cached
        self._committed[row] = len(text.committed)

    def _waiting(self, texts: Many[Ahead], rows: Many[int], drafted: int) -> list[list[int]]:
        """Return each asking row's unread tokens, at least one; a dummy token for the others."""
        longest = max(len(texts[row]) - self._cached[row] for row in rows)
        does_fit = max(self._cached[: len(texts)]) + longest + drafted <= self._capacity
        if longest > READ_TOGETHER or not does_fit:
            for row in rows:
                self.read_along(row, texts[row].committed[:-1], self._committed[row])
        fed = [[0] for _ in texts]
        for row in rows:
            fed[row] = texts[row].since(self._cached[row])
        return fed

    def _forward(
        self, tokens: Ints, starts: Many[int], *, take: Ints | None = None, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        self._note(tokens.shape[1])
        return self._run(tokens, starts, take=take, drawn=drawn)

    def _run(
        self,
        tokens: Ints,
        starts: Many[int],
        *,
        take: Ints | None,
        first_slot: int = 0,
        drawn: torch.Tensor | None = None,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        count = tokens.shape[1]
        self._cache.require(max(starts) + count)
        step = lay_out(
            tokens,
            np.arange(count),
            starts,
            chain_sight(count),
            take=take,
            first_slot=first_slot,
            dtype=self._model.dtype,
            device=self._model.device,
            masks=self._masks,
            seen_in=None if is_prompt else self._seen_in,
        )
        last = self._model.longest_context - 1
        if max(starts) + count > last:  # no text is longer, but a draft may be
            step = replace(step, positions=step.positions.clamp(max=last), packed=None)
        self.forwards += 1
        if drawn is not None:
            step = replace(step, tokens=drawn, packed=None)
        return self._model.forward(step, self._cache)


def _asked(fed: Many[Many[int]], drafts: Many[Many[int]], rows: Many[int]) -> Ints:
    """Return (batch, n): the fed tokens whose successors are wanted, the last before the draft first."""
    first = np.zeros(len(fed), dtype=np.int64)
    for row in rows:
        first[row] = len(fed[row]) - len(drafts[row]) - 1
    count = 1 + max(len(drafts[row]) for row in rows)
    asked: Ints = np.minimum(first[:, None] + np.arange(count), max(len(tokens) for tokens in fed) - 1)
    return asked


def _best(
    logits: torch.Tensor, texts: Many[Ahead], places: Ints, paths: Callable[[], Ints | torch.Tensor], count: int
) -> torch.Tensor:
    """Return (batch, n, count): the best next tokens, best first, NO_NUMBER where logits are not numbers.

    A request that samples adds the noise of the target's own draws. `places` (batch, n) is the place in the text behind
    each fed token; `paths` gives (batch, n, any), the tokens behind the committed ones up to each place.
    """
    sequences = [text.sequence for text in texts]
    requests, scores = [s.request for s in sequences], logits.float()
    if any(r.penalises or r.temperature > 0 for r in requests):
        penalised = seen_tokens(sequences, paths(), logits.device) if any(r.penalises for r in requests) else ()
        scores = processed(scores, requests, penalised)
        scores = with_noise(scores, requests, sent(places, logits.device))
    if count == 1 and scores.device.type == "cpu":  # numpy's arg-max is several times faster than torch's
        ids = torch.from_numpy(scores.numpy().argmax(-1)).unsqueeze(-1)
        best = scores.gather(-1, ids)
    else:
        best, ids = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return ids.masked_fill(best[..., :1].isnan(), NO_NUMBER)  # what is no number counts as the largest


def _require_numbers(ids: torch.Tensor) -> None:
    if (ids == NO_NUMBER).any():
        raise ModelError("a stack's model answers logits that are not numbers; check its weights and its dtype")


def _paths(texts: Many[Ahead], starts: Many[int], fed: Many[Many[int]]) -> Ints:
    """Return (batch, n, any): the tokens behind the committed ones up to each fed token."""
    width = max(len(tokens) for tokens in fed)
    paths = np.full((len(fed), width, max(len(text.held) for text in texts) + width), NOTHING, dtype=np.int64)
    for row, (text, start, tokens) in enumerate(zip(texts, starts, fed, strict=True)):
        behind = start - len(text.committed)  # tokens behind the committed ones that are in the cache
        tail = [*text.held[: max(behind, 0)], *tokens[max(-behind, 0) :]]
        for place in range(len(tokens)):
            seen = max(behind + place + 1, 0)
            paths[row, place, :seen] = tail[:seen]
    return paths


def _drawn_paths(texts: Many[Ahead], drawn: Many[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return (batch, 1, any): the tokens behind the committed ones up to the newest drawn one."""
    held = sent(_padded([text.held for text in texts], NOTHING), device).unsqueeze(1)
    return torch.cat([held, *drawn], dim=2)


def _padded(rows: Many[Many[int]], blank: int = 0) -> Ints:
    tokens = np.full((len(rows), max(len(row) for row in rows)), blank, dtype=np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return tokens
