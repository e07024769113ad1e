"""A server's counters from its Prometheus page: drafts, accepted tokens, tokens and answers.

A round is one forward of the target behind an answer's first token; it yields one token more than it accepts. An
answer's first token comes from prefill, so that

    rounds = generated tokens - accepted tokens - answers

Acceptance is unconditional: the share of all rounds in which the first k drafted tokens were accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean

from ..errors import MeasurementError

VALUE = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|Inf|NaN)"
SAMPLE = re.compile(rf"([A-Za-z_:][\w:]*)(?:\{{(.*)\}})?\s+({VALUE})(?:\s+-?[\d.]+)?")  # name, labels, value, timestamp
MODEL = "model_name"  # the label that names whose counter it is
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = dict[str, str]
Series = tuple[str, tuple[tuple[str, str], ...]]  # a name without `_total`, and labels
CounterPage = Mapping[Series, float]


def page_of(text: str) -> CounterPage:
    """Return the samples of a Prometheus page; those that it has twice, as of two servers, are added."""
    found: dict[Series, float] = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip())
        if match is not None:
            series = match[1].removesuffix("_total"), tuple(sorted(LABEL.findall(match[2] or "")))
            found[series] = found.get(series, 0.0) + float(match[3])
    return found


def samples_of(page: CounterPage, name: str, model: str = "") -> list[tuple[Labels, float]]:
    """Return labels and values of a counter; of one model where it is named and labels name theirs."""
    own = [(dict(labels), value) for (known, labels), value in page.items() if known == name]
    return [one for one in own if not model or one[0].get(MODEL, model) == model]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterNames:
    """An engine's names of its counters; of those of `answers` the first that a page has counts, () where none does.

    `prompted` and `cached` are prompt tokens, all and those in the prefix cache. `running` is a gauge of the sequences
    in the running batch. `has_model`: whether counters name the model that they are of.

    Of a server that counts no accepted tokens these are gauges: tokens of a round, its own among them; the share of
    drafted tokens that is accepted; and tokens that a round verifies.
    """

    drafts: str
    drafted: str
    accepted: str
    by_position: str
    generated: str
    prompted: str
    cached: str
    running: str
    answers: tuple[str, ...] = ()
    has_model: bool = False
    tokens_per_round: str = ""
    accepted_share: str = ""
    verified: str = ""

    @classmethod
    def with_prefix(
        cls, prefix: str, *, generated: str, running: str, answers: tuple[str, ...] = (), has_model: bool = False
    ) -> CounterNames:
        """Return names as vLLM has them, and llama.cpp since pull request 26389, behind a prefix."""
        start = f"{prefix}spec_decode_num_"
        return cls(
            drafts=f"{start}drafts",
            drafted=f"{start}draft_tokens",
            accepted=f"{start}accepted_tokens",
            by_position=f"{start}accepted_tokens_per_pos",
            generated=f"{prefix}{generated}",
            prompted=f"{prefix}prefix_cache_queries",
            cached=f"{prefix}prefix_cache_hits",
            running=f"{prefix}{running}",
            answers=tuple(prefix + name for name in answers),
            has_model=has_model,
        )

    @property
    def counters(self) -> tuple[str, ...]:
        """All names but those of gauges."""
        drafting = (self.drafts, self.drafted, self.accepted, self.by_position)
        return tuple(filter(None, (*drafting, self.generated, self.prompted, self.cached, *self.answers)))

    @property
    def gauges(self) -> tuple[str, ...]:
        """Names whose values are of a moment."""
        return tuple(filter(None, (self.running, self.tokens_per_round, self.accepted_share, self.verified)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A server's counts, since its start or between two pages.

    `drafts` are rounds that drafted; `drafted` and `accepted` tokens; `by_position` tokens accepted at the first,
    second, ... drafted place. `generated`, `answers`, and tokens of prompts, `prompted` and of them `cached`, are None
    where the page has none.
    """

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()
    generated: float | None = None
    answers: float | None = None
    prompted: float | None = None
    cached: float | None = None

    def plus(self, other: Counts) -> Counts:
        """Return the sum of two spans' counts."""
        return Counts(
            drafts=self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            by_position=tuple(map(sum, zip_longest(self.by_position, other.by_position, fillvalue=0.0))),
            generated=_sum_of(self.generated, other.generated),
            answers=_sum_of(self.answers, other.answers),
            prompted=_sum_of(self.prompted, other.prompted),
            cached=_sum_of(self.cached, other.cached),
        )

    def rounds(self, generated: float, answers: float) -> float:
        """Return the rounds of answers, at least the drafts: tokens accepted behind an answer's end count, too."""
        return max(generated - answers - self.accepted, self.drafts)

    def acceptance(self, rounds: float) -> tuple[float, ...]:
        """Return unconditional acceptance by position, of all rounds."""
        return tuple(count / rounds for count in self.by_position) if rounds else ()


def since(after: CounterPage, before: CounterPage, gauges: Collection[str] = ()) -> CounterPage:
    """Return what every counter grew by; one that fell started again at 0, and `gauges` are as they are."""
    grown = (
        (series, value, 0.0 if series[0] in gauges else before.get(series, 0.0)) for series, value in after.items()
    )
    return {series: value - then if value >= then else value for series, value, then in grown}


def restart(after: CounterPage, before: CounterPage, names: CounterNames) -> str:
    """Return what shows that a server or one of its engines was restarted between two pages; "" where nothing does."""
    for series, then in before.items():
        now = after.get(series, 0.0)
        if series[0] in names.counters and now < then:
            return f"the counter {series[0]} fell from {then:g} to {now:g}; the server started again in between"
    return ""


def counts_between(after: CounterPage, before: CounterPage, names: CounterNames, model: str = "") -> Counts:
    """Return the counts between two pages; MeasurementError where the server was restarted, and as of `counts_of`."""
    if fell := restart(after, before, names):
        raise MeasurementError(f"{fell}: measure again")
    return counts_of(since(after, before, names.gauges), names, model)


def counts_of(page: CounterPage, names: CounterNames, model: str = "") -> Counts:
    """Return a page's counts, summed over one server's engines.

    `model` selects counters where the page has several models. MeasurementError where it has and none is selected, it
    has none of that model, or positions are missing.
    """
    models = {labels[MODEL] for name in names.counters for labels, _ in samples_of(page, name) if MODEL in labels}
    told = ", ".join(sorted(models))
    if not model and len(models) > 1:
        raise MeasurementError(f"counters are of several models ({told}); name one, or scrape one server")
    if model and models and model not in models:
        raise MeasurementError(f"counters are of {told}, none of {model}; name one of these models")
    counted = Counts(
        drafts=_sum(page, names.drafts, model) or 0.0,
        drafted=_sum(page, names.drafted, model) or 0.0,
        accepted=_sum(page, names.accepted, model) or 0.0,
        by_position=_positions(page, names, model),
        generated=_sum(page, names.generated, model),
        answers=next((found for name in names.answers if (found := _sum(page, name, model)) is not None), None),
        prompted=_sum(page, names.prompted, model),
        cached=_sum(page, names.cached, model),
    )
    return _by_gauges(page, names, model, counted) if names.tokens_per_round else counted


def falling(mean: float, length: int) -> tuple[float, ...]:
    """Return the acceptance by position of a chain that accepts `mean` tokens a round, where only that is known.

    It is taken to fall by one factor a, so that mean = a + a^2 + ... + a^length.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Eq. 1.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if sum(middle**place for place in range(1, length + 1)) < mean else (low, middle)
    return tuple(high**place for place in range(1, length + 1))


def _by_gauges(page: CounterPage, names: CounterNames, model: str, counted: Counts) -> Counts:
    """Return the counts of a server that counts verifications at most, or tells tokens of a round by a gauge alone.

    All its rounds verify drafts, so that the other tokens were accepted. Positions are taken to fall by one factor;
    they are empty where nothing tells the length.
    """
    lengths, shares, verified = (
        [value for _, value in samples_of(page, name, model) if value > 0.0]
        for name in (names.tokens_per_round, names.accepted_share, names.verified)
    )
    told = fmean(lengths) if lengths else 1.0
    made = (counted.generated or 0.0) - (counted.answers or 0.0)
    rounds = counted.drafts or (made / told if told > 1.0 else 0.0)
    if not rounds or made <= 0.0:
        return replace(counted, drafts=0.0)
    length = round(fmean(verified)) - 1 if verified else round((told - 1.0) / fmean(shares)) if shares else 0
    accepted = max(made - rounds, 0.0)
    if length < 1:
        return replace(counted, drafts=rounds, accepted=accepted)
    accepted = min(accepted, length * rounds)
    return replace(
        counted,
        drafts=rounds,
        drafted=length * rounds,
        accepted=accepted,
        by_position=tuple(rounds * share for share in falling(accepted / rounds, length)),
    )


def _positions(page: CounterPage, names: CounterNames, model: str) -> tuple[float, ...]:
    at: dict[int, float] = {}
    for labels, value in samples_of(page, names.by_position, model):
        at[int(labels["position"])] = at.get(int(labels["position"]), 0.0) + value
    if sorted(at) != list(range(len(at))):
        raise MeasurementError(f"{names.by_position} lacks positions, it has {sorted(at)}; read the page again")
    return tuple(at[place] for place in range(len(at)))


def _sum(page: CounterPage, name: str, model: str) -> float | None:
    found = samples_of(page, name, model)
    return sum(value for _, value in found) if found else None


def _sum_of(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
