"""A server's counters from its Prometheus page: drafts, accepted tokens, tokens and answers.

A round is one forward of the target behind an answer's first token; it yields one token more than it accepts. An
answer's first token comes from prefill, so that

    rounds = generated tokens - accepted tokens - answers

Acceptance is unconditional: the share of all rounds in which the first k drafted tokens were accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from ..errors import MeasurementError

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")  # name, labels, value, a timestamp
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = dict[str, str]


def samples_of(page: str, name: str) -> list[tuple[Labels, float]]:
    """Return labels and values of a counter, whether or not its name ends in `_total`."""
    found = []
    for line in page.splitlines():
        match = SAMPLE.fullmatch(line.strip())
        if match is not None and match[1].removesuffix("_total") == name:
            found.append((dict(LABEL.findall(match[2] or "")), float(match[3])))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterNames:
    """An engine's names of its counters; of those of `answers` the first that a page has counts, () where none does.

    `has_model`: whether counters name the model that they are of.
    """

    drafts: str
    drafted: str
    accepted: str
    by_position: str
    generated: str
    answers: tuple[str, ...] = ()
    has_model: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A server's counts, since its start or between two pages.

    `drafts` are rounds that drafted; `drafted` and `accepted` tokens; `by_position` tokens accepted at the first,
    second, ... drafted place. `generated` and `answers` are None where the page has none.
    """

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()
    generated: float | None = None
    answers: float | None = None

    def since(self, before: Counts) -> Counts:
        """Return the counts after an earlier page; MeasurementError where a counter fell: the server was restarted."""
        fallen = [name for name in ("drafts", "drafted", "accepted") if getattr(self, name) < getattr(before, name)]
        if fallen:
            raise MeasurementError(
                f"the counter of {fallen[0]} fell from {getattr(before, fallen[0]):g} to {getattr(self, fallen[0]):g}; "
                "the server started again in between: measure again"
            )
        pairs = zip_longest(self.by_position, before.by_position, fillvalue=0.0)
        return Counts(
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            by_position=tuple(now - then for now, then in pairs),
            generated=_less(self.generated, before.generated),
            answers=_less(self.answers, before.answers),
        )

    def plus(self, other: Counts) -> Counts:
        """Return the sum of two spans' counts."""
        return Counts(
            drafts=self.drafts + other.drafts,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            by_position=tuple(map(sum, zip_longest(self.by_position, other.by_position, fillvalue=0.0))),
            generated=_sum_of(self.generated, other.generated),
            answers=_sum_of(self.answers, other.answers),
        )

    def rounds(self, generated: float, answers: float) -> float:
        """Return the rounds of answers, at least the drafts: tokens accepted behind an answer's end count, too."""
        return max(generated - answers - self.accepted, self.drafts)

    def acceptance(self, rounds: float) -> tuple[float, ...]:
        """Return unconditional acceptance by position, of all rounds."""
        return tuple(count / rounds for count in self.by_position) if rounds else ()


def counts_of(page: str, names: CounterNames, model: str = "") -> Counts:
    """Return a Prometheus page's counts, summed over one server's engines; MeasurementError if positions are missing.

    `model` selects counters where the page has several models; "" takes all.
    """
    positions = positions_of(page, names, model)
    last = max((place for place, count in enumerate(positions, 1) if count), default=0)
    return Counts(
        drafts=_sum(page, names.drafts, model) or 0.0,
        drafted=_sum(page, names.drafted, model) or 0.0,
        accepted=_sum(page, names.accepted, model) or 0.0,
        by_position=positions[:last],
        generated=_sum(page, names.generated, model),
        answers=answers_of(page, names, model),
    )


def positions_of(page: str, names: CounterNames, model: str = "") -> tuple[float, ...]:
    """Return the tokens accepted at each drafted place, over a server's engines; MeasurementError if one is missing."""
    at: dict[int, float] = {}
    for labels, value in _of_model(page, names.by_position, model):
        at[int(labels["position"])] = at.get(int(labels["position"]), 0.0) + value
    if sorted(at) != list(range(len(at))):
        raise MeasurementError(f"{names.by_position} lacks positions, it has {sorted(at)}; read the page again")
    return tuple(at[place] for place in range(len(at)))


def answers_of(page: str, names: CounterNames, model: str = "") -> float | None:
    """Return the count of answers; None where the page has none."""
    return next((found for name in names.answers if (found := _sum(page, name, model)) is not None), None)


def tokens_by_length(acceptance: tuple[float, ...]) -> tuple[float, ...]:
    """Return the tokens of a round by the length of its chain, from 0 on."""
    return tuple(accumulate(acceptance, initial=1.0))


def _of_model(page: str, name: str, model: str) -> list[tuple[Labels, float]]:
    return [one for one in samples_of(page, name) if not model or one[0].get("model_name", model) == model]


def _sum(page: str, name: str, model: str) -> float | None:
    found = _of_model(page, name, model)
    return sum(value for _, value in found) if found else None


def _less(now: float | None, then: float | None) -> float | None:
    return None if now is None else now - (then or 0.0)


def _sum_of(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _named(prefix: str, generated: str, answers: tuple[str, ...], *, has_model: bool) -> CounterNames:
    start = f"{prefix}spec_decode_num_"
    return CounterNames(
        drafts=f"{start}drafts",
        drafted=f"{start}draft_tokens",
        accepted=f"{start}accepted_tokens",
        by_position=f"{start}accepted_tokens_per_pos",
        generated=f"{prefix}{generated}",
        answers=tuple(prefix + name for name in answers),
        has_model=has_model,
    )


VLLM_ANSWERS = (
    "time_to_first_token_seconds_count",
    "request_success",
    "e2e_request_latency_seconds_count",
    "request_generation_tokens_count",
    "request_prompt_tokens_count",
    "request_decode_time_seconds_count",
)
NAMES: Mapping[str, CounterNames] = {
    "vllm": _named("vllm:", "generation_tokens", VLLM_ANSWERS, has_model=True),
    "llama.cpp": _named("llamacpp:", "tokens_predicted", (), has_model=False),
}
