"""What the host adds to one round of speculation, per kind of policy.

    host = a + d + (b + f_kind) * draft_forwards + c * (nodes - 1)     where a drafter runs; f of chains is 0
    host = a + e_kind + c * (nodes - 1)                                where none does; e of plain decoding is 0
    host = a + e_suffix + c * (nodes - 1)                              of a hybrid; and, where it asks its model,
           + d + g + (b + f_model) * draft_forwards

`a`, the cost of every round, and `c`, that of a drafted token, are the same for all kinds of a batch size: one code
lays out, walks and commits every tree. So is `d`: a target behind a drafter finds its weights pushed out of the caches.
So few noisy rounds of each kind tell about all; a line through two points of one kind would follow noise, and be far
off for smaller trees. A forward that grows a tree is never cheaper than a chain's, being the same forward. `b` alone
may be negative: where a draft is one call or captured graph, its forwards take less than when called alone. Samples
count by their relative error.

A hybrid asks the text in every round, and a drafter in some: `g` is the extra cost of both. Its samples are of one kind
of round each (in older profiles, means over both). What is timed drafts chains where the text has no copy; a hybrid
whose model grows trees pays what its forwards take more.

Rounds that a GPU runs ahead of the host hide the host's work: they share no coefficients with others. A kind is of one
sort; where some of its rounds ran ahead, those alone count.

A drafter that reads the target's hidden states makes the target keep these, and drafts in another way. So every timed
role of drafters, and every block drafter, has its own lines: the host's work differs by a factor of three and more.

The lines go through medians, but many rounds take their mean. So the mean distance of repeats from their sample's
median is added, the outermost pulled in, apart for plain rounds, text copies and drafters, since longer rounds scatter
more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from .host_line import CHAIN, HYBRID, PLAIN, TEXT, HostLine, hybrids_among
from .least_squares import non_negative_fit
from .role import DRAFT_ROLES, require_regime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OUTERMOST = 0.05  # share of repeats on either side
SHARED = 5  # coefficients of all kinds: of a round, a node, a drafted round, a drafter's forward, and less than that
MODEL = DRAFT_ROLES[0]  # the role of a drafter that needs nothing of its target


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadSample:
    """Rounds of one policy shape: round time minus its forwards timed alone; raw repeats are stored.

    It is the host's own work and what a forward loses by running between others. A repeat may be negative: it is the
    difference of two clocks on a machine with moods.
    """

    kind: str  # the policy's kind, e.g. "chain"
    batch: int
    draft_forwards: int  # drafter forwards per round
    nodes: int  # tokens per sequence in the verified tree, root included
    host_ms: tuple[float, ...]
    is_sampled: bool | None = None  # whether tokens were drawn at a temperature; None where it was not written down
    role: str = MODEL  # of the drafter that was there, whether or not these rounds asked it; one of `DRAFT_ROLES`
    drafter: str = ""  # ModelIdentity.key of a block drafter, which stands for no other
    is_ahead: bool = False  # whether a device ran them ahead of the host

    def __post_init__(self) -> None:
        if not self.kind or self.batch < 1 or self.draft_forwards < 0 or self.nodes < 0:
            raise MeasurementError(f"{self}: need a kind, batch >= 1, draft_forwards >= 0 and nodes >= 0")
        if self.role not in DRAFT_ROLES:
            raise MeasurementError(f"{self}: no drafter has this role; the roles are {', '.join(DRAFT_ROLES)}")
        if not self.host_ms or not all(math.isfinite(repeat) for repeat in self.host_ms):
            raise MeasurementError(f"{self}: host_ms needs at least one repeat, each finite")

    @property
    def median_ms(self) -> float:
        """Middle repeat in milliseconds."""
        return statistics.median(self.host_ms)

    @property
    def beside(self) -> str:
        """Whom the rounds tell of: drafters of a role, or one block drafter; see `beside`."""
        return beside(self.role, self.drafter) if self.drafter else self.role

    @property
    def like(self) -> tuple[int, str, bool | None, str]:
        """What rounds share with those of a newer measurement that replaces theirs."""
        return self.batch, self.kind, self.is_sampled, self.beside


def beside(role: str, drafter: str) -> str:
    """Return what rounds beside one drafter of a role are called."""
    return f"{role} {drafter}"


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
        """Return the samples of greedy or of sampled rounds.

        Drawing is host work at every node, so one says little of the other. A batch timed only the other way keeps its
        samples.
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
        """Return the host milliseconds of one round, on the line beyond samples; MeasurementError without a sample."""
        lines = self.lines(batch)
        if kind not in lines:
            known = sorted({(sample.kind, sample.batch) for sample in self.samples})
            raise MeasurementError(f"no host time for {kind!r} at batch {batch}; measured (kind, batch): {known}")
        return lines[kind].at(draft_forwards, nodes)

    def residuals(self, batch: int) -> list[float]:
        """Return how far each sample of a batch size is from its kind's line, relative to the sample.

        A sample near zero or below counts as half the usual one: it is no larger a share of a round.
        """
        left = []
        for role in self.roles(batch):
            lines = self._lines(batch, role)
            for samples in _sorts(self._of_role(batch, role)):
                least = _least_ms([sample.median_ms for sample in samples])
                for sample in samples:
                    apart = abs(lines[sample.kind].at(sample.draft_forwards, sample.nodes) - sample.median_ms)
                    left.append(apart / max(abs(sample.median_ms), least))
        return left

    def roles(self, batch: int) -> tuple[str, ...]:
        """Return beside whom rounds of a batch size were timed, the newest first; see `OverheadSample.beside`."""
        return tuple(dict.fromkeys(sample.beside for sample in self.samples if sample.batch == batch))

    def role_beside(self, batch: int, role: str, drafter: str) -> str | None:
        """Return the role whose rounds price a drafter's rounds: its own, its role's, or another's newest; or None."""
        known = self.roles(batch)
        wanted = (beside(role, drafter), role)
        own = [each for each in wanted if each in known]
        return next(iter([*own, *(each for each in known if each.startswith(beside(role, "")))]), None)

    def _of_role(self, batch: int, role: str) -> list[OverheadSample]:
        return [sample for sample in self.samples if (sample.batch, sample.beside) == (batch, role)]

    def lines(self, batch: int, role: str | None = None) -> dict[str, HostLine]:
        """Return the line of every kind sampled at a batch size.

        A `role` without timed rounds takes another's. None is models' rounds, and the last timed ones without a
        drafter.

        Source: non-negative least squares, Lawson and Hanson 1974, chapter 23.
        """
        known = self.roles(batch)
        if not known:
            return {}
        wanted = MODEL if role is None else role
        found = self._lines(batch, wanted if wanted in known else known[0])
        if role is None and known[0] != wanted:
            drafted = {sample.kind for sample in self._of_role(batch, known[0]) if sample.draft_forwards}
            newest = self._lines(batch, known[0]).items()
            found |= {kind: line for kind, line in newest if kind not in drafted and not line.drafted_ms}
        return found

    def _lines(self, batch: int, role: str) -> dict[str, HostLine]:
        lines, every = dict[str, HostLine](), self._of_role(batch, role)
        for samples in _sorts(every):
            lines |= _lines_of(samples)
        return lines | hybrids_among(lines, sorted({sample.kind for sample in every if sample.draft_forwards}))


def _sorts(samples: list[OverheadSample]) -> list[list[OverheadSample]]:
    """Return the samples whose lines have coefficients in common: of rounds that ran ahead of the host, and others."""
    ahead = {sample.kind for sample in samples if sample.is_ahead}
    sorts = [s for s in samples if s.is_ahead], [s for s in samples if s.kind not in ahead]
    return [sort for sort in sorts if sort]


def _lines_of(samples: list[OverheadSample]) -> dict[str, HostLine]:
    kinds = sorted({sample.kind for sample in samples})
    drafts = {kind: any(s.draft_forwards for s in samples if s.kind == kind) for kind in kinds}
    rows = np.array([_row(sample, kinds, drafts) for sample in samples])
    values = np.array([sample.median_ms for sample in samples])
    weights = 1.0 / np.maximum(np.abs(values), _least_ms(values.tolist()))
    found = non_negative_fit(rows * weights[:, None], values * weights)
    shared_ms, node_ms, drafted_ms, more_ms, less_ms = (float(one) for one in found[:SHARED])
    own = dict(zip(kinds, found[SHARED:].tolist(), strict=True))
    like = {kind: PLAIN if kind == PLAIN else drafts[kind] for kind in kinds}
    excess_ms = {group: _excess_ms([s for s in samples if like[s.kind] == group]) for group in set(like.values())}
    of_chains = more_ms - less_ms

    def line(kind: str) -> HostLine:
        round_ms = shared_ms - node_ms + excess_ms[like[kind]]
        if kind == HYBRID:
            asked_ms = drafted_ms + own[HYBRID]
            return HostLine(round_ms + own.get(TEXT, 0.0), of_chains, node_ms, asked_ms)
        if drafts[kind]:
            return HostLine(round_ms + drafted_ms, of_chains + own[kind], node_ms)
        return HostLine(round_ms + own[kind], 0.0, node_ms)

    return {kind: line(kind) for kind in kinds}


def joined(times: Sequence[RoundOverhead]) -> RoundOverhead:
    """Return host times of all batches and kinds, greedy or sampled, each of the newest record that has any."""
    newest, *others = times
    samples = list(newest.samples)
    for older in (each for each in others if each.regime == newest.regime):
        known = {sample.like for sample in samples}
        samples += [sample for sample in older.samples if sample.like not in known]
    return replace(newest, samples=tuple(samples))


def _row(sample: OverheadSample, kinds: list[str], drafts: dict[str, bool]) -> list[float]:
    """Return what a sample holds of each coefficient: the `SHARED` ones, in the order of `lines`, then one per kind."""
    is_hybrid = sample.kind == HYBRID
    is_drafted = sample.draft_forwards > 0 if is_hybrid else drafts[sample.kind]
    forwards = float(sample.draft_forwards) if is_drafted else 0.0
    if is_hybrid:
        own = {TEXT: 1.0, HYBRID: float(is_drafted)}
    else:
        own = {sample.kind: forwards if is_drafted else float(sample.kind != PLAIN)}
    own[CHAIN] = 0.0
    shared = [1.0, float(max(sample.nodes - 1, 0)), float(is_drafted), forwards, -forwards]
    return [*shared, *(own.get(kind, 0.0) for kind in kinds)]


def _least_ms(medians: list[float]) -> float:
    """Return the least weight of a sample where errors count by what they are a share of."""
    least = statistics.median(medians) / 2.0
    return least if least > 0.0 else 1.0


def _excess_ms(samples: list[OverheadSample]) -> float:
    """Return by how much a mean round is longer than a median one, at least 0; the outermost repeats are pulled in."""
    apart = np.concatenate([np.array(sample.host_ms) - sample.median_ms for sample in samples])
    low, high = np.quantile(apart, [OUTERMOST, 1.0 - OUTERMOST])
    return max(float(np.clip(apart, low, high).mean()), 0.0)
