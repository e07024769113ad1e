"""What a policy would have kept at every position of the recorded texts.

Only policies whose tree depends on the committed text alone have such results; CAST with several
sequences has none and is replayed round by round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .beam import CandidateLayer, best_candidates, first_layer, next_layer
from .draft import Bools, Ints, Scores
from .growth import grow
from .lookup import find_continuation
from .policy import ChainPolicy, Eagle2Policy, LookupPolicy, StaticPolicy
from .recorded import RecordedScorer, Recording, Rows, Text
from .tree import TokenTree

CHUNK = 2048  # rows grown at once, so that the arrays of one layer stay in the processor's cache

RankPolicy = ChainPolicy | StaticPolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionResults:
    """One policy at every row of a numbering of positions.

    Attributes:
        accepted: (rows,), nodes of the verified tree on the target's own path.
        sizes: (rows,), nodes of the verified tree, root included.
        censored: (rows,), the trace lacks an expansion that could change the result.
        widths: (rows, forwards), nodes of every drafter forward, 0 = did not run; (1, forwards) where it is the same
            at all positions.
    """

    accepted: Ints
    sizes: Ints
    censored: Bools
    widths: Ints


def plain_results(rows: Rows) -> PositionResults:
    """Return the results of drafting nothing."""
    return _of_one_size(np.zeros(len(rows.left), dtype=np.int64), 1, ())


def rank_results(policy: RankPolicy, recording: Recording) -> PositionResults:
    """Return the results of a chain or a static tree.

    With a prefix-exact trace the node on the target's path at depth d below position t is the root
    at t + d, so next_rank alone decides; otherwise the tree is grown on the recorded expansions.
    """
    if not recording.is_prefix_exact:
        return _grown_results(policy, recording)
    if isinstance(policy, ChainPolicy):
        accepted = np.minimum(_right_run(recording.next_rank), policy.length)
        return _of_one_size(accepted, policy.length + 1, (1,) * policy.length)
    widths = tuple(len(inner) for inner in policy.tree.inner_by_depth())
    return _of_one_size(_tree_hits(policy.tree, recording.next_rank), policy.tree.size, widths)


def lookup_results(
    texts: Sequence[Text], max_ngram: int, min_ngram: int, lengths: Sequence[int]
) -> Iterator[tuple[LookupPolicy, PositionResults]]:
    """Yield every length's results; the text is searched once, a shorter draft is a longer one's beginning."""
    found, matching = _found(texts, max_ngram, min_ngram, max(lengths))
    for length in lengths:
        sizes = 1 + np.minimum(found, length)
        nothing = np.zeros(len(sizes), dtype=np.bool_)
        policy = LookupPolicy(length=length, max_ngram=max_ngram, min_ngram=min_ngram)
        accepted, widths = np.minimum(matching, length), _same_everywhere(())
        yield policy, PositionResults(accepted=accepted, sizes=sizes, censored=nothing, widths=widths)


def eagle2_results(
    recording: Recording, top_k: int, depths: Iterable[int], verify_tokens: Sequence[int]
) -> Iterator[tuple[Eagle2Policy, PositionResults]]:
    """Yield the results of every depth and size of one width, all from one beam.

    A shallower beam is the beginning of a deeper one, and a smaller tree the beginning of the
    ranking of a larger one. Sizes beyond the number of candidates are clipped as `grow` does.
    """
    wanted = sorted(set(depths))
    rows = np.arange(len(recording.rows.left))
    chunks = [
        _beam_rankings(recording, rows[at : at + CHUNK], top_k, wanted, max(verify_tokens) - 1)
        for at in range(0, len(rows), CHUNK)
    ]
    for place, depth in enumerate(wanted):
        hits = np.concatenate([chunk[place].hits for chunk in chunks])
        lost = np.concatenate([chunk[place].lost for chunk in chunks])
        for size in verify_tokens:
            drafts = min(size - 1, hits.shape[1])
            results = PositionResults(
                accepted=hits[:, :drafts].sum(axis=1),
                sizes=np.full(len(rows), drafts + 1, dtype=np.int64),
                censored=np.logical_or.reduce(lost[:, :drafts], axis=1),
                widths=_same_everywhere((1,) + (top_k,) * depth),
            )
            yield Eagle2Policy(verify_tokens=size, depth=depth, top_k=top_k), results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ranking:
    """The best candidates of all layers so far, best first: (rows, candidates) each.

    `newest` is a candidate's index in the layer added last, -1 for older ones. `lost` marks
    candidates that were expanded but not recorded: their children score no better than they do and
    come later, so a tree that leaves such a candidate out is exact without them.
    """

    scores: Scores
    hits: Bools
    newest: Ints
    lost: Bools

    def with_layer(self, layer: CandidateLayer, most: int) -> _Ranking:
        """Return the best `most` after one more layer; ties stay with the older candidate."""
        places = np.broadcast_to(np.arange(layer.scores.shape[1]), layer.scores.shape)
        scores = np.concatenate([self.scores, layer.scores], axis=1)
        order = best_candidates(scores, most)

        def ranked(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            return np.take_along_axis(np.concatenate([old, new], axis=1), order, axis=1)

        return _Ranking(
            scores=np.take_along_axis(scores, order, axis=1),
            hits=ranked(self.hits, layer.tokens > 0),
            newest=ranked(np.full(self.newest.shape, -1), places),
            lost=ranked(self.lost, np.zeros(places.shape, dtype=np.bool_)),
        )

    def after_expanding(self, frontier: Ints, absent: Bools, candidates: int) -> _Ranking:
        """Return the ranking with the expanded candidates of the newest layer marked where absent."""
        gone = np.zeros((len(frontier), candidates + 1), dtype=np.bool_)  # the last column answers for -1
        np.put_along_axis(gone, frontier, absent, axis=1)
        return replace(self, lost=self.lost | np.take_along_axis(gone, self.newest, axis=1))


def _beam_rankings(recording: Recording, rows: Ints, top_k: int, depths: Sequence[int], most: int) -> list[_Ranking]:
    """Return the ranking after each of the depths, in order; the layers are EAGLE-2's own."""
    scorer = RecordedScorer(recording, rows)
    layer = first_layer(scorer, top_k)
    nothing = np.zeros((len(rows), 0), dtype=np.bool_)
    start = _Ranking(scores=nothing.astype(np.float32), hits=nothing, newest=nothing.astype(np.int64), lost=nothing)
    rankings = [start.with_layer(layer, most)]
    for _ in range(depths[-1]):
        frontier = best_candidates(layer.scores, top_k)
        below = next_layer(scorer, layer, frontier, top_k)
        ranking = rankings[-1].after_expanding(frontier, scorer.absent, layer.scores.shape[1])
        rankings.append(ranking.with_layer(below, most))
        layer = below
    return [rankings[depth] for depth in depths]


def _grown_results(policy: RankPolicy, recording: Recording) -> PositionResults:
    scorer = RecordedScorer(recording, np.arange(len(recording.rows.left)))
    draft = grow(policy, scorer, len(recording.rows.left))
    accepted = draft.tokens[:, 1:].sum(axis=1)
    widths = _same_everywhere(draft.widths)
    return PositionResults(accepted=accepted, sizes=draft.sizes, censored=scorer.censored, widths=widths)


def _right_run(next_rank: Ints) -> Ints:
    """Return (rows,): how many tokens from each row on the drafter ranks first; an end stops the run."""
    wrong = np.where(next_rank != 0, np.arange(len(next_rank)), len(next_rank))
    return np.minimum.accumulate(wrong[::-1])[::-1] - np.arange(len(next_rank))


def _tree_hits(tree: TokenTree, next_rank: Ints) -> Ints:
    """Return (rows,): depth of the target's own path in the tree from each row on."""
    ranks = max(tree.ranks) + 1
    below = np.full((tree.size + 1, ranks + 1), tree.size)  # the last node is "left the tree", the last rank a miss
    below[list(tree.parents[1:]), list(tree.ranks[1:])] = np.arange(1, tree.size)
    seen = np.minimum(next_rank, ranks)
    node, accepted = np.zeros(len(seen), dtype=np.int64), np.zeros(len(seen), dtype=np.int64)
    for depth in range(tree.depth):
        ahead = np.full(len(seen), ranks)
        ahead[: len(seen) - depth] = seen[depth:]
        node = below[node, ahead]
        accepted += node < tree.size
    return accepted


def _found(texts: Sequence[Text], max_ngram: int, min_ngram: int, length: int) -> tuple[Ints, Ints]:
    """Return (rows,) tokens the lookup finds and (rows,) how many of them the target takes."""
    found, matching = [], []
    for text in texts:
        tokens = np.array(text.prompt + text.continuation, dtype=np.int64)
        for now in range(len(text.prompt) + 1, len(tokens)):
            draft = find_continuation(tokens[:now], length, max_ngram, min_ngram)  # type: ignore[arg-type]  # an array is fine
            found.append(len(draft))
            matching.append(_matching(draft, tokens[now:]))
        found.append(0)
        matching.append(0)
    return np.array(found, dtype=np.int64), np.array(matching, dtype=np.int64)


def _matching(draft: Sequence[int], truth: Ints) -> int:
    right = 0
    for drafted, true in zip(draft, truth.tolist()[: len(draft)], strict=False):
        if drafted != true:
            break
        right += 1
    return right


def _of_one_size(accepted: Ints, size: int, widths: tuple[int, ...]) -> PositionResults:
    rows = len(accepted)
    return PositionResults(
        accepted=accepted,
        sizes=np.full(rows, size, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_),
        widths=_same_everywhere(widths),
    )


def _same_everywhere(widths: tuple[int, ...]) -> Ints:
    return np.array(widths, dtype=np.int64)[None]
