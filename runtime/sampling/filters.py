"""Sampling settings applied to logits, alike for the target and its drafters.

Order and meaning are transformers': the repetition penalty on the raw logits, then, where the temperature is above 0,
temperature, top-k, top-p and min-p. A node of a draft tree is penalised for the committed text and its own path from
the root, which is the text of plain decoding there. So a draw behind a node is that place's draw, whatever was drafted.

Source: repetition penalty: Keskar et al. 2019, arXiv:1909.05858, Sec. 4.1; top-p: Holtzman et al. 2019,
arXiv:1904.09751, Sec. 3.1; min-p: Nguyen et al. 2024, arXiv:2407.01082, Sec. 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...planner.kernels.arrays import Bools, Ints
from ..batch.sequence import Request, Sampling, Sequence
from ..batch.transfer import sent
from ..models.bits import bits
from ..models.kernels.host_masks import mask_rows
from ..models.kernels.nucleus import is_supported, nucleus_of
from .noise import gumbel

NOTHING = -1  # stands where a list of tokens is shorter than its neighbours
MOST_KEPT = 1 << 20  # by top-k, where more are asked for: more than any vocabulary has, and a float has it exactly
NEVER = -1e30  # a drafter's score of a token that is never drawn: finite, so that scores of whole paths stay numbers

Step = Callable[[Tensor, Tensor], Tensor]  # (scores of some rows, their settings (rows, 1, 1)) -> scores


def processed(logits: Tensor, samplings: Many[Sampling], seen: Many[Tensor] = ()) -> Tensor:
    """Return the scores whose softmax is the sampled distribution, and whose arg-max is the greedy token.

    Rows without settings keep their logits; if no row has any, the logits themselves are returned. The result is -inf
    where a token is never drawn; float64 stays, other types become float32.

    Args:
        logits: (batch, n, vocabulary); not changed.
        seen: token ids (batch, 1 or n, any) before each node, see `seen_tokens`, for rows with a repetition penalty;
            ids outside the vocabulary are ignored.
    """
    if not any(s.penalises or s.temperature > 0 for s in samplings):
        return logits
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if any(s.penalises for s in samplings):
        scores = _penalised(scores, [s.repetition_penalty for s in samplings], seen)
    if scores.is_cpu and scores.dtype == torch.float32:
        return _kept_here(scores, samplings)
    for values, off, step in _steps(samplings):
        rows = [row for row, s in enumerate(samplings) if s.temperature > 0 and values[row] != off]
        scores = on_rows(scores, rows, partial(_by_settings, step, [values[row] for row in rows]))
    return scores


def seen_tokens(sequences: Many[Sequence], paths: Ints | Tensor | None, device: torch.device) -> list[Tensor]:
    """Return the tokens before each node for `processed`; empty where no request penalises repetition.

    `paths` is (batch, n, any): tokens between the committed text and each node, the node included, padded with NOTHING.
    None: every node directly follows the text.
    """
    if not any(s.request.penalises for s in sequences):
        return []
    texts = [s.distinct() if s.request.penalises else () for s in sequences]
    padded = np.full((len(texts), 1, max(len(text) for text in texts)), NOTHING, dtype=np.int64)
    for row, text in enumerate(texts):
        padded[row, 0, : len(text)] = np.fromiter(text, dtype=np.int64, count=len(text))
    known = [padded] if paths is None else [padded, paths]
    return [ids.to(device) if isinstance(ids, Tensor) else sent(ids, device) for ids in known]


def tree_paths(sequences: Many[Sequence], tokens: Ints, sees: Bools) -> Ints | None:
    """Return each node's own path for `seen_tokens`, or None where no request penalises repetition."""
    if not any(s.request.penalises for s in sequences):
        return None
    return np.where(sees, tokens[:, None, :], NOTHING)


def draft_scores(logits: Tensor, sequences: Many[Sequence], paths: Ints | Tensor | None) -> Tensor:
    """Return a drafter's scores (batch, n, vocabulary), float32, whose best it draws with the target's noise.

    They are NEVER where a token is never drawn; at temperature 0 and without a penalty they are the logits. Sampled
    rows include the noise of the target's own draw at that place. So their log-softmax says how sure the drafter is of
    that draw, not how likely a token is before the noise is known. `paths` is as in `seen_tokens`.
    """
    requests = [s.request for s in sequences]
    scores = processed(logits.float(), requests, seen_tokens(sequences, paths, logits.device))
    if any(r.temperature > 0 for r in requests):
        depth = 0 if paths is None else paths.shape[2]
        places = np.array([[len(s.tokens) + depth] for s in sequences], dtype=np.int64)
        scores = with_noise(scores, requests, sent(places, logits.device))
    return scores.clamp(min=NEVER) if any(r.masks for r in requests) else scores


def with_noise(scores: Tensor, requests: Many[Request], places: Tensor) -> Tensor:
    """Return scores plus, in sampled rows, the noise of the target's own draws at `places` (batch, n or 1)."""
    rows = [row for row, r in enumerate(requests) if r.temperature > 0]
    seeds = sent(np.array([[requests[row].seed] for row in rows], dtype=np.int64), scores.device)
    own = places if len(rows) == len(places) else places[sent(np.array(rows, dtype=np.int64), scores.device)]
    return on_rows(scores, rows, lambda some: _added(gumbel(seeds, own, some.shape[-1]), some))


def _added(noise: Tensor, scores: Tensor) -> Tensor:
    is_alike = noise.shape == scores.shape and noise.dtype == scores.dtype
    return noise.add_(scores) if is_alike else scores + noise


def on_rows(scores: Tensor, rows: Many[int], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return scores (batch, n, vocabulary) with some increasing rows changed; the argument itself without any."""
    if not rows:
        return scores
    if len(rows) == len(scores):
        return change(scores)
    places = sent(np.array(rows, dtype=np.int64), scores.device)
    return scores.index_copy(0, places, change(scores[places]))


def tempered(scores: Tensor, temperatures: Tensor) -> Tensor:
    """Return scores (rows, n, vocabulary) over temperatures (rows, 1, 1) > 0; these shapes hold below, too."""
    return scores / temperatures


def with_top_k(scores: Tensor, counts: Tensor, most: int) -> Tensor:
    """Mask all but the k best and ties with the last of them; counts (rows, 1, 1) are from 1 to `most`."""
    best = scores.topk(min(most, scores.shape[-1]), dim=-1).values
    last = (counts.long().clamp(max=best.shape[-1]) - 1).expand(-1, scores.shape[1], 1)
    return scores.masked_fill(scores < best.gather(-1, last), -math.inf)


def with_top_p(scores: Tensor, left_out: Tensor) -> Tensor:
    """Mask all but the fewest best tokens that hold probability 1 - `left_out`; of equal ones the last stay."""
    if is_supported(scores.device, scores.dtype):
        return nucleus_of(scores, left_out)
    ordered = _ascending(scores)
    is_kept = ordered.softmax(-1).cumsum(-1) > left_out
    is_kept[..., -1] = True
    least = ordered.gather(-1, is_kept.int().argmax(-1, keepdim=True))
    room = (is_kept & (ordered == least)).sum(-1, keepdim=True)  # how many of those that equal the least are kept
    is_least = scores == least
    from_the_right = is_least.flip(-1).cumsum(-1).flip(-1)
    return scores.masked_fill((scores < least) | (is_least & (from_the_right > room)), -math.inf)


def with_min_p(scores: Tensor, shares: Tensor) -> Tensor:
    """Mask tokens with less than that share of the best one's probability."""
    probabilities = scores.softmax(-1)
    least = probabilities.amax(-1, keepdim=True) * shares
    return scores.masked_fill(probabilities < least, -math.inf)


def masks_of(sampling: Sampling) -> tuple[float, float, float]:
    """Return the temperature, what top-p leaves out, and min-p; all 0 for greedy."""
    return (sampling.temperature, 1 - sampling.top_p, sampling.min_p) if sampling.temperature > 0 else (0.0, 0.0, 0.0)


def kept_by_top_k(sampling: Sampling) -> int:
    """Return how many scores top-k keeps; 0 for all."""
    return min(sampling.top_k, MOST_KEPT) if sampling.temperature > 0 else 0


def _steps(samplings: Many[Sampling]) -> list[tuple[Many[float], float, Step]]:
    """Return the steps in order: each row's setting, the setting without effect, and the function."""
    counts = [kept_by_top_k(s) for s in samplings]
    return [
        ([s.temperature for s in samplings], 1.0, tempered),
        (counts, 0, partial(with_top_k, most=max(counts, default=0))),
        ([1 - s.top_p for s in samplings], 0.0, with_top_p),
        ([s.min_p for s in samplings], 0.0, with_min_p),
    ]


def _kept_here(scores: Tensor, samplings: Many[Sampling]) -> Tensor:
    temperatures, left_out, min_p = np.array([masks_of(s) for s in samplings], dtype=np.float32).T.copy()
    counts = np.array([kept_by_top_k(s) for s in samplings], dtype=np.int64)
    if not temperatures.any():
        return scores
    temperatures[temperatures == 0.0] = 1.0
    kept = tempered(scores, torch.from_numpy(temperatures).view(-1, 1, 1)).contiguous()
    if counts.any() or left_out.any() or min_p.any():
        mask_rows(bits(kept), kept.numpy(), counts, left_out, min_p)
    return kept


def _by_settings(step: Step, values: Many[float], scores: Tensor) -> Tensor:
    return step(scores, _column(values, scores))


def _penalised(scores: Tensor, penalties: Many[float], seen: Many[Tensor]) -> Tensor:
    """Divide the positive and multiply the negative scores of seen tokens; a token seen twice counts once."""
    vocabulary, penalty = scores.shape[-1], _column(penalties, scores)
    wide = F.pad(scores, (0, 1))  # the last column takes what is no token
    changed = wide.clone()
    for ids in seen:
        is_token = (ids >= 0) & (ids < vocabulary)
        places = torch.where(is_token, ids, vocabulary).expand(-1, scores.shape[1], -1)
        found = wide.gather(-1, places)
        changed.scatter_(-1, places, torch.where(found < 0, found * penalty, found / penalty))
    return changed[..., :vocabulary]


def _ascending(scores: Tensor) -> Tensor:
    if scores.device.type == "cpu":
        return torch.from_numpy(np.sort(scores.numpy(), axis=-1))
    return scores.sort(dim=-1).values


def _column(values: Many[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype).view(-1, 1, 1).to(like.device, non_blocking=True)
