"""What the sampling settings do to logits, alike for the target and its drafters.

The order and the meaning are transformers': the repetition penalty on the raw logits, then, where the temperature is
above 0, temperature, top-k, top-p and min-p. A node of a draft tree is penalised for the committed text and for its
own path from the root, which is the text plain decoding would have there: so drawing behind a node is drawing at that
place, whatever was drafted beside it.

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

from .layout import Bools, Ints
from .models.bits import bits
from .models.kernels.host_masks import mask_rows
from .models.kernels.nucleus import is_supported, nucleus_of
from .noise import gumbel
from .requests import Request, Sampling, Sequence
from .transfer import sent

NOTHING = -1  # stands where a list of tokens is shorter than its neighbours
MOST_KEPT = 1 << 20  # by top-k, where more are asked for: more than any vocabulary has, and a float has it exactly
NEVER = -1e30  # a drafter's score of a token that is never drawn: finite, so that scores of whole paths stay numbers

Step = Callable[[Tensor, Tensor], Tensor]  # (scores of some rows, their settings (rows, 1, 1)) -> scores


def processed(logits: Tensor, samplings: Many[Sampling], seen: Many[Tensor] = ()) -> Tensor:
    """Return the scores whose softmax is the sampled distribution, and whose arg-max is the greedy token.

    Rows that ask for nothing keep their logits; where no row asks, the logits themselves are returned.

    Args:
        logits: (batch, n, vocabulary); not changed.
        samplings: (batch,).
        seen: token ids (batch, 1 or n, any) in the text before each node, as `seen_tokens` gives them; only rows with
            a repetition penalty need any. An id outside the vocabulary is no token.

    Returns:
        (batch, n, vocabulary), -inf where a token is never drawn; float64 logits stay so, others become float32.
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
    """Return the tokens before each node as `processed` takes them; none where no request penalises them.

    Args:
        sequences: (batch,).
        paths: (batch, n, any) tokens between the committed text and each node, the node included; NOTHING where there
            are fewer. None: every node stands right behind the committed text.
        device: of the logits.
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
    """Return each node's own path for `seen_tokens`, or None where no request penalises it.

    Args:
        sequences: (batch,).
        tokens: (batch, n), of the nodes.
        sees: (batch, n, n), True where a node sees itself or an ancestor.
    """
    if not any(s.request.penalises for s in sequences):
        return None
    return np.where(sees, tokens[:, None, :], NOTHING)


def draft_scores(logits: Tensor, sequences: Many[Sequence], paths: Ints | Tensor | None) -> Tensor:
    """Return a drafter's scores, float32, the best of which it would draw where the target draws with its noise.

    Args:
        logits: (batch, n, vocabulary), the drafter's, behind nodes of one depth of its trees.
        sequences: (batch,).
        paths: (batch, n, depth) tokens of each node's path; as for `seen_tokens`.

    Returns:
        (batch, n, vocabulary), NEVER where a token is never drawn. At temperature 0 and without a penalty these are
        the logits. Sampled rows hold the noise of the target's own draw at that place, so that their log-softmax says
        how sure the drafter is of that draw, and no longer how likely a token is before the noise is known.
    """
    requests = [s.request for s in sequences]
    scores = processed(logits.float(), requests, seen_tokens(sequences, paths, logits.device))
    if any(r.temperature > 0 for r in requests):
        depth = 0 if paths is None else paths.shape[2]
        places = np.array([[len(s.tokens) + depth] for s in sequences], dtype=np.int64)
        scores = with_noise(scores, requests, sent(places, logits.device))
    return scores.clamp(min=NEVER) if any(r.masks for r in requests) else scores


def with_noise(scores: Tensor, requests: Many[Request], places: Tensor) -> Tensor:
    """Return scores with the noise of the target's own draws added to sampled rows.

    Args:
        scores: (batch, n, vocabulary), processed; not changed.
        requests: (batch,), whose seeds key the noise.
        places: (batch, n or 1) int64, place in the text of the token that is drawn behind each node.
    """
    rows = [row for row, r in enumerate(requests) if r.temperature > 0]
    seeds = sent(np.array([[requests[row].seed] for row in rows], dtype=np.int64), scores.device)
    own = places if len(rows) == len(places) else places[sent(np.array(rows, dtype=np.int64), scores.device)]
    return on_rows(scores, rows, lambda some: _added(gumbel(seeds, own, some.shape[-1]), some))


def _added(noise: Tensor, scores: Tensor) -> Tensor:
    """Return the sum; in the memory of the noise, which nobody else has, where that is as large."""
    is_alike = noise.shape == scores.shape and noise.dtype == scores.dtype
    return noise.add_(scores) if is_alike else scores + noise


def on_rows(scores: Tensor, rows: Many[int], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the scores with some rows changed; the argument itself where there are none.

    Args:
        scores: (batch, n, vocabulary); not changed.
        rows: increasing.
        change: from (rows, n, vocabulary) to the same shape.
    """
    if not rows:
        return scores
    if len(rows) == len(scores):
        return change(scores)
    places = sent(np.array(rows, dtype=np.int64), scores.device)
    return scores.index_copy(0, places, change(scores[places]))


def tempered(scores: Tensor, temperatures: Tensor) -> Tensor:
    """Return scores over a temperature above 0.

    Args:
        scores: (rows, n, vocabulary); not changed, here and below.
        temperatures: (rows, 1, 1) of the scores' kind, as the settings below.
    """
    return scores / temperatures


def with_top_k(scores: Tensor, counts: Tensor, most: int) -> Tensor:
    """Keep the k best, and what equals the last of them.

    Args:
        scores: (rows, n, vocabulary).
        counts: (rows, 1, 1), whole numbers from 1 on.
        most: no count is greater.
    """
    best = scores.topk(min(most, scores.shape[-1]), dim=-1).values
    last = (counts.long().clamp(max=best.shape[-1]) - 1).expand(-1, scores.shape[1], 1)
    return scores.masked_fill(scores < best.gather(-1, last), -math.inf)


def with_top_p(scores: Tensor, left_out: Tensor) -> Tensor:
    """Keep the fewest best tokens that hold the probability, 1 less what is left out; of equal ones the last.

    Where no kernel runs, values are sorted. That is enough, and on a CPU numpy does it many times faster than torch
    sorts values with their places.
    """
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
    """Keep tokens with at least that share of the best one's probability."""
    probabilities = scores.softmax(-1)
    least = probabilities.amax(-1, keepdim=True) * shares
    return scores.masked_fill(probabilities < least, -math.inf)


def masks_of(sampling: Sampling) -> tuple[float, float, float]:
    """Return the temperature, what top-p leaves out, and min-p: all 0 where the best token is drawn."""
    return (sampling.temperature, 1 - sampling.top_p, sampling.min_p) if sampling.temperature > 0 else (0.0, 0.0, 0.0)


def kept_by_top_k(sampling: Sampling) -> int:
    """Return how many scores stay by top-k; 0 where all do."""
    return min(sampling.top_k, MOST_KEPT) if sampling.temperature > 0 else 0


def _steps(samplings: Many[Sampling]) -> list[tuple[Many[float], float, Step]]:
    """Return what is done to sampled rows, in order: each row's setting, the setting that does nothing, and how."""
    counts = [kept_by_top_k(s) for s in samplings]
    return [
        ([s.temperature for s in samplings], 1.0, tempered),
        (counts, 0, partial(with_top_k, most=max(counts, default=0))),
        ([1 - s.top_p for s in samplings], 0.0, with_top_p),
        ([s.min_p for s in samplings], 0.0, with_min_p),
    ]


def _kept_here(scores: Tensor, samplings: Many[Sampling]) -> Tensor:
    """Do all of these by compiled loops."""
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
    """Return one number per row, (rows, 1, 1), with the dtype and on the device of the scores."""
    return torch.tensor(values, dtype=like.dtype).view(-1, 1, 1).to(like.device, non_blocking=True)
