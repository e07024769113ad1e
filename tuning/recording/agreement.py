"""How often each pair of models agrees on the next token, from one teacher-forced sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ...profiler.protocols import Parts
from ...profiler.records.acceptance import PairwiseAcceptance
from ...runtime.batch.sequence import Request
from ...runtime.models.block import RoundHead
from ...runtime.models.eagle import EagleHead
from ...runtime.models.forward import CausalModel
from ...runtime.models.kv_cache import KeyValueCache
from ...runtime.models.layout import lay_out_text
from ...runtime.sampling.filters import processed, with_noise
from ..parts import kept_or_made

PIECE_TOKENS = 128  # of a text, read at once: no model's distributions are held for more than these
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Sums over the positions of one text: (n, n) positions with the same first choice, and common probability mass."""

    same: Matrix
    common: Matrix
    positions: int


def pairwise_acceptance(
    models: Mapping[str, CausalModel],
    texts: Sequence[tuple[Request, Sequence[int]]],
    *,
    target: str = "",
    workload: str = "",
    parts: Parts | None = None,
) -> PairwiseAcceptance:
    """Return agreement and overlap of all pairs of models along the target's own texts, all of one temperature.

    Two models agree where their first choices are equal; of sampled texts these are draws with the target's noise, as
    in a stack. overlap[i][j] is the mean over positions of sum over tokens of min(p_i, p_j): the acceptance of
    speculative sampling with drafter j on target i, and the other way round. At temperature 0 the models' own
    distributions are compared. `target` is the ModelIdentity.key of the model that wrote the texts.

    `parts` get finished texts as "agreement 0", ..., sampled ones as "agreement drawn 0", ...: under the first names
    older versions stored sampled texts by their likeliest tokens.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Theorem 3.5.
    """
    kind = "agreement drawn" if texts[0][0].temperature else "agreement"
    along = [
        kept_or_made(parts, f"{kind} {place}", Agreement, partial(_along, models, *text))
        for place, text in enumerate(texts)
    ]
    positions = sum(one.positions for one in along)
    same, common = (np.sum([getattr(one, name) for one in along], axis=0) for name in ("same", "common"))
    return PairwiseAcceptance(
        models=tuple(models),
        greedy=_matrix(same / positions),
        overlap=_matrix((common / positions).clip(0.0, 1.0)),
        positions=positions,
        target=target,
        workload=workload,
        temperature=texts[0][0].temperature,
    )


def _along(models: Mapping[str, CausalModel], request: Request, continuation: Sequence[int]) -> Agreement:
    same, common = np.zeros((2, len(models), len(models)))
    prompt = request.prompt
    whole = [*prompt, *continuation[:-1]]
    readers = [_ScoreReader(model, len(prompt) + len(continuation), whole) for model in models.values()]
    for reader in readers:
        reader.skip(prompt[:-1])
    told = [*prompt[-1:], *continuation[:-1]]  # behind each of these stands one token of the continuation
    for start in range(0, len(told), PIECE_TOKENS):
        scores = [reader.scores(told[start : start + PIECE_TOKENS], request) for reader in readers]
        each = [torch.softmax(one, dim=-1) for one in scores]
        best = [_drawn(one, request, len(prompt) + start) for one in scores]
        for i in range(len(each)):
            same[i, i] += len(best[i])
            common[i, i] += len(best[i])
            for j in range(i + 1, len(each)):
                same[i, j] += int((best[i] == best[j]).sum())
                common[i, j] += float(torch.minimum(each[i], each[j]).sum(dtype=torch.float64))
    return Agreement(same=_mirrored(same), common=_mirrored(common), positions=len(continuation))


def _drawn(scores: torch.Tensor, request: Request, first: int) -> torch.Tensor:
    """Return (tokens,): the draw of a model of a stack behind each token; the first one's is at place `first`."""
    places = torch.arange(first, first + len(scores), device=scores.device)
    return with_noise(scores[None], [request], places[None])[0].argmax(-1)


class _ScoreReader:
    def __init__(self, model: CausalModel, longest: int, text: Sequence[int]) -> None:
        self._model, self._read = model, 0
        self._features = model.along(text) if isinstance(model, EagleHead | RoundHead) else None
        self._cache: KeyValueCache = model.new_cache(1, longest)

    def skip(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), PIECE_TOKENS):
            self._feed(tokens[start : start + PIECE_TOKENS], is_asked=False)

    def scores(self, tokens: Sequence[int], request: Request) -> torch.Tensor:
        """Read tokens; return (tokens, vocabulary) float32, what the request draws from behind each, before noise."""
        return processed(self._feed(tokens, is_asked=True).float(), [request])[0]

    def _feed(self, tokens: Sequence[int], *, is_asked: bool) -> torch.Tensor:
        count = len(tokens)
        step = lay_out_text(self._model, tokens, self._read, takes_last=not is_asked)
        self._read += count
        if self._features is None:
            return self._model.forward(step, self._cache)
        features = self._features[None, self._read - count : self._read]
        if isinstance(self._model, RoundHead):
            return self._model.next_logits(features, step, self._cache)[None]
        assert isinstance(self._model, EagleHead), "only these have features"
        return self._model.read(features, step, self._cache)


def _mirrored(upper: NDArray[np.float64]) -> Matrix:
    return _matrix(upper + np.triu(upper, 1).T)


def _matrix(values: NDArray[np.float64]) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())
