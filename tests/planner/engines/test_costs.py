"""Rounds that follow a known law are priced as it says, from a few of them."""

from __future__ import annotations

import pytest

from spectune.errors import PlanError
from spectune.planner.engines.costs import PLAIN, RoundSample, RoundShape, fit_costs

FORWARD = {"small": 0.4, "large": 1.7}


def shape(source: str, length: int, drafted: float | None = None, share: float = 1.0) -> RoundShape:
    is_model = source in FORWARD
    return RoundShape(
        source=source,
        is_model=is_model,
        length=length,
        share=share if length else 0.0,
        drafted=float(length) if drafted is None else drafted,
    )


def law(one: RoundShape) -> float:
    return 5.0 + 0.9 * one.share + (0.25 + FORWARD.get(one.source, 0.0)) * one.drafted


def sample(one: RoundShape, ms: float | None = None, error: float = 0.01) -> RoundSample:
    return RoundSample(shape=one, ms=law(one) if ms is None else ms, error=error)


MEASURED = [
    sample(shape(PLAIN, 0)),
    *(sample(shape(source, length)) for source in FORWARD for length in (2, 8)),
    sample(shape("lookup:2-2", 4, drafted=1.1, share=0.4)),
    sample(shape("lookup:3-3", 16, drafted=3.0, share=0.3)),
]


def stepped(*ms: float) -> list[RoundSample]:
    """Return plain decoding, and one drafter at lengths 2, 4 and 8 that takes so long."""
    drafted = [sample(shape("small", length), value) for length, value in zip((2, 4, 8), ms, strict=True)]
    return [*MEASURED[:1], *drafted]


@pytest.mark.parametrize("source", FORWARD)
@pytest.mark.parametrize("length", range(1, 9))
def test_a_law_comes_back_at_lengths_that_were_not_measured(source: str, length: int) -> None:
    cost = fit_costs(MEASURED).at(shape(source, length))
    assert cost.ms == pytest.approx(law(shape(source, length)), rel=1e-6)
    assert cost.draft_ms == pytest.approx(FORWARD[source] * length, rel=1e-5)


def test_a_search_that_was_not_measured_costs_what_others_tell() -> None:
    unseen = shape("lookup:4-4", 8, drafted=2.5, share=0.35)
    assert fit_costs(MEASURED).at(unseen).ms == pytest.approx(law(unseen), rel=1e-6)


def test_what_was_measured_is_what_is_said_however_far_from_the_line() -> None:
    steps = [
        *MEASURED[:1],
        sample(shape("small", 2), 9.0),
        sample(shape("small", 4), 9.2),
        sample(shape("small", 8), 30.0),
    ]
    costs = fit_costs(steps)
    for length, ms in ((0, 5.0), (2, 9.0), (4, 9.2), (8, 30.0)):
        source = "small" if length else PLAIN
        assert costs.at(shape(source, length)).ms == pytest.approx(ms, rel=1e-9)


def test_between_two_measured_lengths_the_price_lies_between_and_is_less_certain() -> None:
    steps = [
        *MEASURED[:1],
        sample(shape("small", 2), 9.0),
        sample(shape("small", 4), 11.0),
        sample(shape("small", 8), 25.0),
    ]
    costs = fit_costs(steps)
    assert 11.0 < costs.at(shape("small", 6)).ms < 25.0
    assert costs.at(shape("small", 6)).error > costs.at(shape("small", 8)).error == 0.01


def test_no_part_of_a_round_costs_less_than_nothing() -> None:
    noisy = [sample(shape(PLAIN, 0), 6.0), sample(shape("small", 2), 5.5), sample(shape("small", 8), 9.0)]
    costs = fit_costs(noisy)
    assert min(costs.plain_ms, costs.drafting_ms, *costs.token_ms, *costs.forward_ms.values()) >= 0.0


def test_plain_decoding_has_to_be_among_the_samples() -> None:
    with pytest.raises(PlanError, match="plain decoding was not measured"):
        fit_costs(MEASURED[1:])


def test_a_setting_stands_once() -> None:
    with pytest.raises(PlanError, match="twice"):
        fit_costs([*MEASURED, MEASURED[2]])


@pytest.mark.parametrize(
    ("asked", "reason"), [(shape("small", 9), "longer than the 8"), (shape("other", 2), "no round of other")]
)
def test_nothing_is_guessed_beyond_what_was_measured(asked: RoundShape, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        fit_costs(MEASURED).at(
            RoundShape(source=asked.source, is_model=True, length=asked.length, share=1.0, drafted=1.0)
        )


def test_without_any_search_none_is_priced() -> None:
    with pytest.raises(PlanError, match="no round of lookup"):
        fit_costs(MEASURED[:5]).at(shape("lookup:2-2", 4, drafted=1.0, share=0.5))


def bent(one: RoundShape) -> float:
    """The first two tokens of a draft are nearly free, as where a forward waits for memory."""
    together = one.drafted / one.share if one.share else 0.0
    verifying = 0.1 * min(together, 2.0) + 0.7 * max(together - 2.0, 0.0)
    return 3.0 + one.share * verifying + FORWARD.get(one.source, 0.0) * one.drafted


def test_a_search_that_drafts_often_and_little_does_not_pay_for_one_that_drafts_seldom_and_much() -> None:
    often, seldom = shape("lookup:1-1", 4, drafted=2.6, share=0.8), shape("lookup:2-2", 16, drafted=2.7, share=0.3)
    known = [
        shape(PLAIN, 0),
        *(shape(source, length) for source in FORWARD for length in (2, 8)),
        shape("lookup:3-3", 4, drafted=1.2, share=0.5),
        shape("lookup:3-3", 8, drafted=1.6, share=0.35),
        shape("lookup:3-3", 16, drafted=2.2, share=0.2),
    ]
    costs = fit_costs([sample(one, bent(one), 0.0) for one in known])
    for asked in (often, seldom):
        assert costs.at(asked).ms == pytest.approx(bent(asked), rel=0.05)
    assert costs.at(seldom).ms > 1.1 * costs.at(often).ms


def test_a_hasty_timing_moves_the_line_little() -> None:
    unlucky = sample(shape("lookup:2-2", 8, drafted=2.0, share=0.5), 30.0, error=1.0)
    asked = shape("lookup:4-4", 8, drafted=2.5, share=0.35)
    assert fit_costs([*MEASURED, unlucky]).at(asked).ms == pytest.approx(law(asked), rel=0.05)
    sure = sample(unlucky.shape, 30.0, error=0.0)
    assert fit_costs([*MEASURED, sure]).at(asked).ms > 1.1 * law(asked)
