"""Who should draft in an engine, and how many tokens, if any, at each concurrency: priced in the engine's regime.

Candidates are chains of every drafter at every length up to the longest measured, copies behind n-grams, and plain
decoding. Tokens of a round come from walks over recorded texts (`walk.py`), its cost from a few measured settings
(`costs.py`); at concurrency c the speed is c t / T. An untimed length must beat the timed ones by more than its price's
error. Ties within noise go to the simpler way: plain decoding, then the text, then the shorter draft. The optimism of
choosing on these texts is taken off the promise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...profiler.records.acceptance import AcceptanceTrace
from ..plans.plan import Alternative, PlanCell
from ..plans.prediction import SDS_OF_90_PERCENT, ErrorParts, Prediction
from ..pricing.pace import APART
from ..records.recording import Text, recording_of, rows_of
from ..strategies.base import results_of
from ..strategies.chain import ChainPolicy
from ..strategies.lookup import LENGTHS as LOOKUP_LENGTHS
from ..strategies.lookup import LookupPolicy, lookup_results
from ..strategies.naming import LOOKUP, name_of
from ..strategies.plain import PlainPolicy, plain_results
from .costs import PLAIN, EngineRoundCosts, RoundCost, RoundSample, RoundShape, fit_costs
from .mapped_ngrams import mapped_walk, whole_ngram_results
from .walk import RESAMPLINGS, Walk, acceptance_error, walk

TIE = 0.005  # relative difference below which two ways are equal
Way = tuple[PlainPolicy | ChainPolicy | LookupPolicy, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSetting:
    """A setting whose rounds were timed at one concurrency; `error` is the relative standard error of `ms`."""

    way: Way
    ms: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineInputs:
    """What an engine's plan is computed from."""

    traces: Mapping[str, AcceptanceTrace]  # of each drafter, by name; prefix-exact
    texts: tuple[Text, ...]  # in which n-grams are looked up
    timed: Mapping[int, Sequence[TimedSetting]]  # by concurrency, the timed settings, plain decoding among them
    context: int  # middle of the texts, in tokens
    drift: float  # relative, of the machine between profile and use
    whole_ngrams: bool = False  # whether n-grams are looked up as llama.cpp does (`whole_ngrams.py`)
    pads_ngrams: bool = False  # whether a short copy costs the full length, as in OpenVINO GenAI

    def __post_init__(self) -> None:
        for name, trace in self.traces.items():
            if not trace.prefix_exact:
                raise PlanError(f"the drafts of {name} hang on more than the text; an engine's chains need a new trace")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """A way of decoding at one concurrency, priced; `is_timed` where its own length was, by it or by its like."""

    way: Way
    walk: Walk
    cost: RoundCost
    concurrency: int
    is_timed: bool = True

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together."""
        return 1000.0 * self.concurrency * self.walk.tokens_per_round / self.cost.ms

    @property
    def simplicity(self) -> tuple[int, int]:
        """Less is simpler: no drafter, the text, a model; then a shorter draft."""
        policy = self.way[0]
        return (0, 0) if isinstance(policy, PlainPolicy) else (1 + isinstance(policy, ChainPolicy), policy.length)


def source_of(way: Way) -> str:
    """Return what determines a way's cost: the drafter's name, the size of n-gram, or nothing."""
    policy, drafter = way
    if isinstance(policy, LookupPolicy):
        which = "" if policy.occurrence == "last" else f"-{policy.occurrence}"
        return f"{LOOKUP}:{policy.min_ngram}-{policy.max_ngram}{which}"
    return PLAIN if drafter is None else drafter


def is_mapped(policy: PlainPolicy | ChainPolicy | LookupPolicy) -> bool:
    """Whether it searches in what an engine remembers of earlier texts, too: it drafts seldom and much."""
    return isinstance(policy, LookupPolicy) and policy.occurrence == "mapped"


def plan_cells(inputs: EngineInputs, *, seed: int = 0, walks: Mapping[Way, Walk] | None = None) -> tuple[PlanCell, ...]:
    """Return the best way at every concurrency that was timed.

    `seed` is of the resampling; `walks` are those of `walks_of`, where known. PlanError: plain decoding was not timed
    at one concurrency, or a timed drafter has no trace.
    """
    walks = walks_of(inputs) if walks is None else walks
    return tuple(_cell(sure_of(offers_at(inputs, walks, c)), inputs, seed) for c in sorted(inputs.timed))


def walks_of(inputs: EngineInputs) -> dict[Way, Walk]:
    """Return what every candidate does on the texts, whatever the concurrency."""
    rows = rows_of(inputs.texts)
    found: dict[Way, Walk] = {(PlainPolicy(), None): walk(plain_results(rows), rows)}
    timed = [timed.way for settings in inputs.timed.values() for timed in settings]
    for name, trace in inputs.traces.items():
        recording = recording_of(trace)
        longest = max((_length(policy) for policy, drafter in timed if drafter == name), default=0)
        for length in range(1, longest + 1):
            chain = ChainPolicy(length=length)
            found[chain, name] = walk(results_of(chain, recording), recording.rows)
    searches = {(p.max_ngram, p.min_ngram, p.occurrence) for p, _ in timed if isinstance(p, LookupPolicy)}
    longest = max((p.length for p, _ in timed if isinstance(p, LookupPolicy)), default=0)
    lengths = sorted({p.length for p, _ in timed if isinstance(p, LookupPolicy)} | _grid(longest))
    for most, least, which in sorted(searches):
        if which == "mapped":
            found |= _mapped(inputs.texts, most, lengths)
            continue
        looked_up = lookup_results(inputs.texts, most, least, lengths, which)
        if inputs.whole_ngrams:
            looked_up = whole_ngram_results(inputs.texts, most, lengths)
        for policy, results in looked_up:
            walked = walk(results, rows)
            if walked.drafted.any():  # else it is plain decoding by another name
                found[policy, LOOKUP] = walked
    return found


def _mapped(texts: Sequence[Text], ngram: int, lengths: Sequence[int]) -> dict[Way, Walk]:
    walked = {length: mapped_walk(texts, ngram, length) for length in lengths}
    return {
        (LookupPolicy(length=length, max_ngram=ngram, min_ngram=ngram, occurrence="mapped"), LOOKUP): one
        for length, one in walked.items()
        if one.drafted.any()
    }


def _grid(longest: int) -> set[int]:
    return {length for length in LOOKUP_LENGTHS if length <= longest}


def offers_at(inputs: EngineInputs, walks: Mapping[Way, Walk], concurrency: int) -> list[Offer]:
    """Return all candidates of one concurrency, priced; plain decoding first."""
    costs, timed = costs_at(inputs, walks, concurrency), {one.way for one in inputs.timed[concurrency]}
    return [
        Offer(
            way=way,
            walk=walks[way],
            cost=costs.at(shape_of(inputs, way, walks[way])),
            concurrency=concurrency,
            is_timed=way in timed,
        )
        for way in walks
        if _is_priced(way, costs)
    ]


def sure_of(offers: Sequence[Offer]) -> list[Offer]:
    """Return what may be chosen: what was timed, and what beats all of that by more than its own error."""
    best = max((offer.tokens_per_s for offer in offers if offer.is_timed), default=0.0)
    return [offer for offer in offers if offer.is_timed or offer.tokens_per_s * (1.0 - offer.cost.error) > best]


def costs_at(inputs: EngineInputs, walks: Mapping[Way, Walk], concurrency: int) -> EngineRoundCosts:
    """Return the costs of rounds at one concurrency; a search that found nothing on the texts adds no sample.

    PlanError: a drafter was timed and has no trace, or plain decoding was not timed.
    """
    samples = []
    for timed in inputs.timed[concurrency]:
        policy, drafter = timed.way
        if timed.way in walks:
            shape = shape_of(inputs, timed.way, walks[timed.way])
            samples.append(RoundSample(shape=shape, ms=timed.ms, error=timed.error))
        elif not isinstance(policy, LookupPolicy):
            raise PlanError(f"{name_of(policy.code, drafter)} was timed and has no trace; record its drafter")
    return fit_costs(samples)


def best_of(offers: Sequence[Offer]) -> Offer:
    """Return the fastest way; of those within a tie of it, the simplest."""
    fastest = max(offer.tokens_per_s for offer in offers)
    near = [offer for offer in offers if offer.tokens_per_s >= (1.0 - TIE) * fastest]
    return min(near, key=lambda offer: (offer.simplicity, -offer.tokens_per_s))


def shape_of(inputs: EngineInputs, way: Way, found: Walk) -> RoundShape:
    """Return what a way's rounds look like on average, given what it does on the texts."""
    policy, _ = way
    if inputs.pads_ngrams and isinstance(policy, LookupPolicy):
        length = policy.length
        return RoundShape(source=source_of(way), is_model=False, length=length, share=1.0, drafted=float(length))
    return found.shape(source_of(way), isinstance(policy, ChainPolicy), _length(policy))


def _length(policy: PlainPolicy | ChainPolicy | LookupPolicy) -> int:
    return 0 if isinstance(policy, PlainPolicy) else policy.length


def _is_priced(way: Way, costs: EngineRoundCosts) -> bool:
    policy, _ = way
    scales = costs.scales.get(source_of(way))
    if isinstance(policy, ChainPolicy):
        return scales is not None and policy.length <= max(scales)
    return isinstance(policy, PlainPolicy) or costs.has_text


def _cell(offers: Sequence[Offer], inputs: EngineInputs, seed: int) -> PlanCell:
    chosen, plain = best_of(offers), offers[0]
    final = [offer is chosen for offer in offers].index(True)
    optimism = 0.0 if chosen is plain else _optimism(offers, final, seed)  # no luck speaks for plain decoding
    others = sorted((o for o in offers if o is not chosen), key=lambda offer: -offer.tokens_per_s)
    apart = {source_of(offer.way): offer for offer in reversed(others) if source_of(offer.way) != source_of(chosen.way)}
    rivals = sorted(map(_alternative, apart.values()), key=lambda one: -one.tokens_per_s)
    policy, drafter = chosen.way
    return PlanCell(
        batch=chosen.concurrency,
        context=inputs.context,
        policy=policy,
        drafter=drafter,
        run_tokens=tuple(range(policy.max_verify_tokens + 1)),
        prediction=_prediction(chosen, plain, inputs, optimism, seed),
        plain=_prediction(plain, plain, inputs, 0.0, seed),
        runner_up=rivals[0] if rivals else None,
        alternatives=tuple(rivals),
    )


def _alternative(offer: Offer) -> Alternative:
    policy, drafter = offer.way
    return Alternative(label=policy.code, policy=policy, drafter=drafter, tokens_per_s=offer.tokens_per_s)


def _optimism(offers: Sequence[Offer], final: int, seed: int) -> float:
    """Return the relative gain that choosing on these texts only seems to bring; see `flattery.py`."""
    tokens = np.array([offer.walk.tokens for offer in offers])
    ms = np.array([offer.walk.rounds * offer.cost.ms for offer in offers])
    return flattery(tokens, ms, [offer.simplicity for offer in offers], final, tie=TIE, seed=seed)


def _prediction(offer: Offer, plain: Offer, inputs: EngineInputs, optimism: float, seed: int) -> Prediction:
    errors = ErrorParts(
        acceptance=acceptance_error(offer.walk, seed), surfaces=offer.cost.error, drift=inputs.drift, optimism=optimism
    )
    rate = offer.tokens_per_s * (1.0 - optimism)
    off = errors.margin
    speedup = rate / plain.tokens_per_s
    parts = (errors.acceptance, errors.surfaces, plain.cost.error, APART * inputs.drift)
    beside = 0.0 if offer is plain else SDS_OF_90_PERCENT * math.hypot(*parts)
    return Prediction(
        tokens_per_s=rate,
        low=rate * max(0.0, 1.0 - off),
        high=rate * (1.0 + off),
        tokens_per_round=offer.walk.tokens_per_round,
        round_ms=offer.cost.ms,
        draft_ms=offer.cost.draft_ms,
        verify_ms=offer.cost.rest_ms,
        host_ms=0.0,
        speedup_over_plain=speedup,
        speedup_low=speedup * max(0.0, 1.0 - beside),
        speedup_high=speedup * (1.0 + beside),
        errors=errors,
    )


Floats = NDArray[np.float64]


def flattery(
    tokens: Floats, ms: Floats, simplicity: Sequence[tuple[int, int]], final: int, *, tie: float, seed: int
) -> float:
    """Return by how much the choice looks better on these texts than it is, relatively, at least 0.

    Texts are resampled. On them the best way looks better than on all texts, by luck of the draw, which any way shares,
    and of the choice. Only the second is counted. Held-out texts would instead charge for choices from fewer texts,
    which are worse where texts are few.

    `tokens`, `ms` are (ways, texts). Less `simplicity` goes first within a `tie`, a relative difference; `final` is the
    place of the choice on all texts.

    Source: Efron 1983, Estimating the error rate of a prediction rule; Efron and Tibshirani 1993, section 17.6.
    """
    own = tokens.sum(axis=1) / ms.sum(axis=1)
    by_simplicity = sorted(range(len(own)), key=lambda place: simplicity[place])
    texts = tokens.shape[1]
    found = []
    for drawn in np.random.default_rng(seed).integers(0, texts, size=(RESAMPLINGS, texts)):
        rates = tokens[:, drawn].sum(axis=1) / ms[:, drawn].sum(axis=1)
        near = [place for place in by_simplicity if rates[place] >= (1.0 - tie) * rates.max()]
        simplest = [place for place in near if simplicity[place] == simplicity[near[0]]]
        chosen = max(simplest, key=lambda place: rates[place])
        found.append(rates[chosen] / own[chosen] - rates[final] / own[final])
    return max(0.0, float(np.mean(found)))
