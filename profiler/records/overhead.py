"""What the host adds to one round of speculation, per kind of policy.

    host = a + d + (b + f_kind) * draft_forwards + c * (nodes - 1)     where a drafter runs; f of chains is 0
    host = a + e_kind + c * (nodes - 1)                                where none does; e of plain decoding is 0
    host = a + e_suffix + (b + f_hybrid + f_model) * draft_forwards + c * (nodes - 1)     of a hybrid

`a`, what every round costs, and `c`, what a drafted token does, are the same for all kinds of a batch size: a tree is
laid out, walked and taken over by the same code whoever drafted it. So is `d`: a target that follows a drafter finds
its weights pushed out of the caches, whichever policy the drafter ran for. Few noisy rounds of each kind then tell
about all of them; a line through two points of one kind alone would follow their noise, and be far off for trees
smaller than both. Nor is a forward that grows a tree ever cheaper than a chain's, `b`: both run the same forward, and
choose one node or more. Samples count by their relative error.

A hybrid asks the text in every round, and a drafter in some: where it asks none its round is one of the text's, and `f`
holds all that a drafter adds. Its samples are of one kind of round each; older profiles hold means over both. Where no
sample of it ran a drafter, `b + f` is what a chain's rounds were longer by, per forward. What is timed drafts chains
where the text has no copy; a hybrid whose model grows trees pays for its forwards what these take more.

The lines go through medians, but many rounds take their mean: the mean distance of repeats from their sample's median
is therefore added, the outermost ones pulled in; of plain rounds, of those that copy text and of those that run a
drafter each their own, since longer rounds scatter more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from .role import require_regime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OUTERMOST = 0.05  # share of repeats on either side
PLAIN = "plain"  # the kind whose rounds are the common part of all others
HYBRID, TEXT, CHAIN = "hybrid", "suffix", "chain"  # the kind that drafts in two ways, and kinds that these are like
SHARED = 4  # coefficients of all kinds: of a round, a node, a drafted round and a drafter's forward
HYBRID_OF = "hybrid of {}"  # a hybrid whose model drafts in another kind than chains


class HostLine(NamedTuple):
    """Milliseconds of a round of one kind: of itself, per drafter forward, per node, the root being one.

    No round is below 0; `round_ms`, which is one without a root, may be by what a node costs.
    """

    round_ms: float
    forward_ms: float
    node_ms: float

    @overload
    def at(self, draft_forwards: int, nodes: int) -> float: ...

    @overload
    def at(self, draft_forwards: Ints, nodes: Ints) -> Floats: ...

    def at(self, draft_forwards: Any, nodes: Any) -> Any:  # as the overloads say
        """Return the host milliseconds of a round of that shape, or of each of (rounds,) such."""
        return self.round_ms + self.forward_ms * draft_forwards + self.node_ms * nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadSample:
    """Rounds of one policy shape: round time minus its forwards timed alone; raw repeats are kept.

    It is the host's own work and what a forward loses by running between others. A repeat may be negative: it is the
    difference of two clocks on a machine with moods.
    """

    kind: str  # the policy's kind, e.g. "chain"
    batch: int
    draft_forwards: int  # drafter forwards per round
    nodes: int  # tokens per sequence in the verified tree, root included
    host_ms: tuple[float, ...]
    is_sampled: bool | None = None  # whether tokens were drawn at a temperature; None where it was not written down

    def __post_init__(self) -> None:
        if not self.kind or self.batch < 1 or self.draft_forwards < 0 or self.nodes < 0:
            raise MeasurementError(f"{self}: need a kind, batch >= 1, draft_forwards >= 0 and nodes >= 0")
        if not self.host_ms or not all(math.isfinite(repeat) for repeat in self.host_ms):
            raise MeasurementError(f"{self}: host_ms needs at least one repeat, each finite")

    @property
    def median_ms(self) -> float:
        """Middle repeat in milliseconds."""
        return statistics.median(self.host_ms)

    @property
    def like(self) -> tuple[int, str, bool | None]:
        """What rounds have in common with others that a newer measurement of stands for."""
        return self.batch, self.kind, self.is_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOverhead:
    """Host time of rounds on one device, fitted per batch size over all kinds together."""

    device: str  # Device.fingerprint
    target: str  # ModelIdentity.key
    dtype: str
    samples: tuple[OverheadSample, ...]
    regime: str = ""  # of the target's forwards in these rounds; see role.py; "" where it is not known

    def __post_init__(self) -> None:
        if not (self.device and self.target and self.dtype and self.samples):
            raise MeasurementError("a round overhead needs device, target, dtype and at least one sample")
        if self.regime:
            require_regime(self.regime)

    @property
    def timed_batches(self) -> tuple[int, ...]:
        """Batch sizes whose plain rounds were timed, smallest first: without those nothing can be priced at one."""
        return tuple(sorted({sample.batch for sample in self.samples if sample.kind == PLAIN}))

    def at_temperature(self, temperature: float) -> RoundOverhead:
        """Return what rounds of a temperature take: greedy ones, or sampled ones.

        Drawing at a temperature is work for the host at every node, so one says little about the other. Of a batch that
        was timed in the other way alone all samples stay.
        """
        wanted = temperature > 0.0
        kept = []
        for batch in dict.fromkeys(sample.batch for sample in self.samples):
            own = [sample for sample in self.samples if sample.batch == batch]
            ways = {sample.is_sampled for sample in own}
            way = next((way for way in (wanted, None) if way in ways), not wanted)
            kept += [sample for sample in own if sample.is_sampled is way]
        return self if len(kept) == len(self.samples) else replace(self, samples=tuple(kept))

    def host_ms(self, kind: str, batch: int, draft_forwards: int, nodes: int) -> float:
        """Return the host milliseconds of one round, never negative; beyond the samples they follow the line.

        Raises:
            MeasurementError: no sample of this kind at this batch.
        """
        lines = self.lines(batch)
        if kind not in lines:
            known = sorted({(sample.kind, sample.batch) for sample in self.samples})
            raise MeasurementError(f"no host time for {kind!r} at batch {batch}; measured (kind, batch): {known}")
        return lines[kind].at(draft_forwards, nodes)

    def residuals(self, batch: int) -> list[float]:
        """Return how far each sample of a batch size is from its kind's line, relative to the sample."""
        lines = self.lines(batch)
        samples = [sample for sample in self.samples if sample.batch == batch and sample.median_ms > 0.0]
        found = [(lines[s.kind].at(s.draft_forwards, s.nodes), s.median_ms) for s in samples]
        return [abs(fitted / told - 1.0) for fitted, told in found]

    def lines(self, batch: int) -> dict[str, HostLine]:
        """Return the line of every kind sampled at a batch size.

        Source: non-negative least squares, Lawson and Hanson 1974, chapter 23.
        """
        samples = [sample for sample in self.samples if sample.batch == batch]
        if not samples:
            return {}
        kinds = sorted({sample.kind for sample in samples})
        drafts = {kind: any(s.draft_forwards for s in samples if s.kind == kind) for kind in kinds}
        rows = np.array([_row(sample, kinds, drafts) for sample in samples])
        values = np.array([sample.median_ms for sample in samples])
        least = float(np.median(values)) / 2.0
        weights = 1.0 / np.maximum(values, least if least > 0.0 else 1.0)
        found = non_negative_fit(rows * weights[:, None], values * weights)
        shared_ms, node_ms, drafted_ms, each_ms = (float(one) for one in found[:SHARED])
        own = dict(zip(kinds, found[SHARED:].tolist(), strict=True))
        apart = {kind: drafted_ms if drafts[kind] else own_ms for kind, own_ms in own.items()}
        apart[HYBRID] = apart.get(TEXT, 0.0)
        forward_ms = {kind: each_ms + own_ms if drafts[kind] else 0.0 for kind, own_ms in own.items()}
        if not drafts.get(HYBRID) and drafts.get(CHAIN):
            mean_forwards = statistics.mean(s.draft_forwards for s in samples if s.kind == CHAIN)
            forward_ms[HYBRID] = forward_ms[CHAIN] + drafted_ms / mean_forwards
        like = {kind: PLAIN if kind == PLAIN else drafts[kind] for kind in kinds}
        excess_ms = {group: _excess_ms([s for s in samples if like[s.kind] == group]) for group in set(like.values())}
        lines = {
            kind: HostLine(
                round_ms=shared_ms - node_ms + apart[kind] + excess_ms[like[kind]],
                forward_ms=forward_ms[kind],
                node_ms=node_ms,
            )
            for kind in kinds
        }
        if HYBRID in lines:
            of_chains, grown = lines[HYBRID], [kind for kind in kinds if drafts[kind] and kind not in (CHAIN, HYBRID)]
            lines |= {
                HYBRID_OF.format(kind): of_chains._replace(forward_ms=of_chains.forward_ms + own[kind])
                for kind in grown
            }
        return lines


def joined(times: Sequence[RoundOverhead]) -> RoundOverhead:
    """Return host times of all batches and kinds, greedy or sampled, of each those of the newest record that has any.

    Args:
        times: of one target on one device, newest first; of another regime than the newest none are taken.
    """
    newest, *others = times
    samples = list(newest.samples)
    for older in (each for each in others if each.regime == newest.regime):
        known = {sample.like for sample in samples}
        samples += [sample for sample in older.samples if sample.like not in known]
    return replace(newest, samples=tuple(samples))


def _row(sample: OverheadSample, kinds: list[str], drafts: dict[str, bool]) -> list[float]:
    """Return what a sample holds of each coefficient: the `SHARED` ones, in the order of `lines`, then one per kind."""
    is_drafted, is_hybrid = drafts[sample.kind], sample.kind == HYBRID
    forwards = float(sample.draft_forwards) if is_drafted or is_hybrid else 0.0
    own = {sample.kind: forwards if is_drafted or is_hybrid else float(sample.kind != PLAIN)}
    own[CHAIN] = 0.0
    if is_hybrid:
        own[TEXT] = 1.0
    shared = [1.0, float(max(sample.nodes - 1, 0)), float(is_drafted and not is_hybrid), forwards]
    return [*shared, *(own.get(kind, 0.0) for kind in kinds)]


def _excess_ms(samples: list[OverheadSample]) -> float:
    """Return by how much a mean round is longer than a median one, at least 0; the outermost repeats are pulled in."""
    apart = np.concatenate([np.array(sample.host_ms) - sample.median_ms for sample in samples])
    low, high = np.quantile(apart, [OUTERMOST, 1.0 - OUTERMOST])
    return max(float(np.clip(apart, low, high).mean()), 0.0)


def non_negative_fit(rows: Floats, values: Floats) -> Floats:
    """Return the coefficients (columns,) of at least 0 by which rows come nearest to the values.

    Source: Lawson and Hanson 1974, chapter 23.
    """
    from scipy.optimize import nnls

    found: Floats = nnls(rows, values)[0]
    return found
