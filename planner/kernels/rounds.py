"""The rounds of a replay: walked from the results at every position, and priced."""

from __future__ import annotations

from typing import NamedTuple

from .arrays import Bools, Floats, Ints
from .compiled import compiled
from .slots import NOBODY, Numbering, Rounds, counted_text, leave, refill, slots_of


class Results(NamedTuple):
    """The arrays of `positions.PositionResults`; see there."""

    accepted: Ints
    sizes: Ints
    is_censored: Bools
    widths: Ints


class CostArrays(NamedTuple):
    """The arrays of a `cost.CostTable`: ascending contexts, and milliseconds by context and tokens."""

    knots: Floats
    ms: Floats


@compiled
def walk(numbering: Numbering, results: Results, rounds: Rounds) -> tuple[int, int]:
    """Write every round until all texts are decoded; return their number, and how many counted ones are censored."""
    batch = rounds.kept.shape[1]
    slots = slots_of(batch)
    at = censored = entered = count = decoded = 0
    while decoded < len(numbering.starts):
        entered = refill(slots, count, numbering.starts, entered)
        context = nodes = catch_up = 0
        for slot in range(batch):
            row = slots.running[slot]
            context, nodes = max(context, numbering.contexts[row]), max(nodes, results.sizes[row])
            catch_up = max(catch_up, slots.fresh[slot])
            rounds.texts[at, slot] = counted_text(slots, slot, numbering)
            rounds.kept[at, slot] = min(results.accepted[row] + 1, numbering.left[row])
            if rounds.texts[at, slot] != NOBODY:
                censored += results.is_censored[row]
            own = results.widths[row if len(results.widths) > 1 else 0]
            for forward in range(len(own)):
                widest = rounds.widths[at, forward] if slot else 0
                rounds.widths[at, forward] = max(widest, own[forward])
            slots.running[slot] = row + rounds.kept[at, slot]
        rounds.contexts[at], rounds.nodes[at], rounds.catch_up[at] = context, nodes, catch_up
        is_read = rounds.widths.shape[1] == 0 or rounds.widths[at, 0] > 0
        for slot in range(batch):
            slots.fresh[slot] = rounds.kept[at, slot] + (0 if is_read else slots.fresh[slot])
        at += 1
        count, gone = leave(slots, numbering)
        decoded += gone
    return at, censored


@compiled
def price(
    rounds: Rounds,
    span: tuple[float, float, float],
    draft: CostArrays,  # without any context where no model drafts
    reading: CostArrays,  # at the same contexts, the first forward by tokens committed since the drafter last ran
    paid: int,  # how many of a round's layers cost a drafter forward, from the first on
    verify: CostArrays,
    host: tuple[float, float, float, float],
    times: Floats,
) -> None:
    """Write the cost of every round into `times` (3, rounds): draft, verify and host milliseconds.

    Args:
        span: contexts above the first and up to the second are priced as they are, all others as the third.
        host: milliseconds of a round, of each drafter forward, of each node, and where the drafter runs.
    """
    most = rounds.widths.shape[1]
    for at in range(len(rounds.contexts)):
        context = float(rounds.contexts[at])
        if not span[0] < context <= span[1]:
            context = span[2]
        forwards, nodes = 0, rounds.nodes[at]
        times[0, at] = 0.0
        for forward in range(most):
            forwards += rounds.widths[at, forward] > 0
        if len(draft.knots) and most:
            lower, upper, share = _between(draft.knots, context)
            for forward in range(paid):
                fed, ms = rounds.widths[at, forward], draft.ms
                if forward == 0 and fed > 0:
                    fed, ms = rounds.catch_up[at], reading.ms
                low = ms[lower, fed]
                times[0, at] += low + share * (ms[upper, fed] - low)
        lower, upper, share = _between(verify.knots, context)
        times[1, at] = verify.ms[lower, nodes] + share * (verify.ms[upper, nodes] - verify.ms[lower, nodes])
        times[2, at] = host[0] + host[1] * forwards + host[2] * nodes + (host[3] if forwards else 0.0)


@compiled
def sum_by_text(rounds: Rounds, times: Floats, tokens: Ints, ms: Floats) -> None:
    """Add up tokens and time of each text (texts,), from zeros; the slots of a round share its time equally."""
    count, batch = rounds.texts.shape
    for at in range(count):
        share = (times[0, at] + times[1, at] + times[2, at]) / batch
        for slot in range(batch):
            text = rounds.texts[at, slot]
            if text == NOBODY:
                continue
            tokens[text] += rounds.kept[at, slot]
            ms[text] += share


@compiled
def _between(knots: Floats, context: float) -> tuple[int, int, float]:
    """Return the knots around a context, and its share of the way between them; constant beyond the last."""
    last = len(knots) - 1
    upper = min(1, last)
    while upper < last and knots[upper] < context:
        upper += 1
    lower = max(upper - 1, 0)
    share = (context - knots[lower]) / max(knots[upper] - knots[lower], 1.0)
    return lower, upper, min(max(share, 0.0), 1.0)
