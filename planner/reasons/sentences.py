"""Why a cell decodes as it does, in sentences: one fact a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..plans.objective import LatencyBound
from ..plans.outlook import Neighbour, Outlook, Scenario, Step
from ..plans.plan import PlanCell
from ..plans.prediction import SDS_OF_90_PERCENT, ErrorParts
from ..strategies.naming import name_by, name_of
from .duration import milliseconds
from .facts import CellFacts, PublishedFacts, cell_facts, decoded_speed, replayed_speed

TOLD = 0.01  # a relative difference below this is no reason for anything
BUSY = 0.5  # relative, to either side: what timings or pace leave open on a machine that is not the profile's own
OPTIMISM_TOLD = 0.001
MIB, GIB = 2.0**20, 2.0**30
PARTS = {"verify": "verification", "draft": "drafting", "host": "the host's share", "acceptance": "accepted drafts"}
STEPS: dict[Step, str] = {"drafter": "another drafter", "kind": "another kind"}  # the others are called as they are


def cell_lines(cell: PlanCell, bound: LatencyBound | None, memory_bytes: int) -> Iterator[str]:
    """Yield what explains a cell: a heading, then indented lines; `memory_bytes` of the device are 0 where unknown."""
    facts = cell_facts(cell)
    far = "" if cell.priced_at is None else f" (beyond what was measured, priced as context {cell.priced_at})"
    yield f"batch {cell.batch}, context {cell.context}{far}: {_choice(facts)}"
    lines = [
        *_settings(facts),
        *_promise(cell),
        *_requests(cell),
        *_round(cell, facts),
        *_limit(facts),
        *_better_than(cell, facts),
        *_break_even(facts),
    ]
    if cell.outlook is not None:
        lines += [*_drafter(cell, cell.outlook), *_scenarios(cell.outlook, cell)]
    lines += [*published_lines(facts), *_stack(cell), *_memory(cell, memory_bytes), *_kept(cell, facts, bound)]
    yield from (f"  {line}" for line in lines)


def published_lines(facts: CellFacts) -> Iterator[str]:
    """Yield a heading and a line for every published default, the fastest first, those without a price last."""
    if facts.published:
        yield "published defaults, as shares of the plan's speed:"
    for same in _alike(facts.published):
        yield f"  {_published(same)}"


def _choice(facts: CellFacts) -> str:
    return "plain decoding; do not speculate" if facts.drafter is None else facts.label


def _settings(facts: CellFacts) -> Iterator[str]:
    if name_of(facts.settings, facts.drafter) != name_by(facts.settings, facts.drafter) and facts.drafter is not None:
        yield f"settings: {facts.settings}"


def _other(code: str, drafter: str | None, cell: PlanCell) -> str:
    """Return another way's label, and all its settings where the label is the plan's own."""
    label = name_of(code, drafter)
    return f"{label}, {code}" if label == name_of(cell.policy.code, cell.drafter) else label


def _promise(cell: PlanCell) -> Iterator[str]:
    promise = cell.prediction
    if cell.quality is not None:
        yield f"LOSSY, the output is not the target's own: {cell.quality.label}"
    yield f"{promise.tokens_per_s:,.1f} tokens/s, 90 % between {promise.low:,.1f} and {promise.high:,.1f}"
    yield f"  {_open(promise.errors)}"
    if SDS_OF_90_PERCENT * max(promise.errors.surfaces, promise.errors.drift) > BUSY:
        yield "  that says little: the machine had other work while this was timed; profile again where it has none"
    if promise.errors.optimism >= OPTIMISM_TOLD:
        off = f"{promise.errors.optimism:.1%} is taken off, since they chose it; nothing off what it is compared with"
        yield f"  the recorded texts replay at {decoded_speed(cell):,.1f}: {off}"
    if cell.drafter is not None:
        interval = f"{promise.speedup_low:.2f} to {promise.speedup_high:.2f}"
        yield f"{promise.speedup_over_plain:.2f} times plain decoding, 90 % {interval}"


def _open(errors: ErrorParts) -> str:
    """Say by how much each error alone leaves a speed open."""
    parts = {"the texts": errors.acceptance, "the timings": errors.surfaces, "the machine's pace": errors.drift}
    return ", ".join(f"{name} {SDS_OF_90_PERCENT * error:.0%}" for name, error in parts.items()) + " to either side"


def _requests(cell: PlanCell) -> Iterator[str]:
    reading = cell.reading
    if reading is None:
        return
    if reading.new_tokens is not None and reading.target_ms is not None:
        own = reading.of_requests(cell.prediction.tokens_per_s, reading.new_tokens)
        plain = reading.of_requests(cell.plain.tokens_per_s, reading.new_tokens, is_drafted=False)
        cached = f", {reading.cached_tokens:,} of them before," if reading.cached_tokens else ""
        what = f"{reading.prompt_tokens:,} tokens read{cached} and {reading.new_tokens:,} new ones"
        yield f"requests of {what}: {own:,.1f} new tokens/s, {own / plain:.2f} times plain decoding"
    if reading.drafter_ms and reading.pays_from is not None:
        cached = f" behind {reading.cached_tokens:,} of them" if reading.cached_tokens else ""
        took = milliseconds(reading.drafter_ms)
        read = f"what drafts reads a prompt of {reading.prompt_tokens:,} tokens{cached} in {took}"
        yield f"{read}, which pays for answers of {math.ceil(reading.pays_from):,} new tokens or more"


def _round(cell: PlanCell, facts: CellFacts) -> Iterator[str]:
    promise = cell.prediction
    yield f"a round yields {promise.tokens_per_round:.2f} tokens per sequence in {milliseconds(promise.round_ms)}:"
    fed = f", fed as {facts.fed_tokens}" if facts.fed_tokens > facts.verify_tokens else ""
    most = "" if _is_fixed(cell) else "up to "
    tokens = f"{most}{_count(facts.verify_tokens, 'token')}"
    unread = ", 1 by all layers, the others by those behind the exit" if cell.policy.kind == "resumed" else ""
    share = f"{facts.share_verify:.0%}"
    yield f"  verify {milliseconds(promise.verify_ms)} ({share}): {tokens} of each sequence{fed}{unread}"
    if cell.drafter is not None:
        forwards = cell.policy.draft_forwards
        shape = f"{most}{_count(forwards, 'forward')} of {'up to ' * (facts.width > 1)}{_count(facts.width, 'node')}"
        work = shape if forwards else "no forward, the text itself is searched"
        yield f"  draft {milliseconds(promise.draft_ms)} ({facts.share_draft:.0%}): {work}"
    yield f"  host {milliseconds(promise.host_ms)} ({facts.share_host:.0%})"


def _is_fixed(cell: PlanCell) -> bool:
    return (
        cell.policy.kind == "plain"
        or cell.policy.kind == "chain"
        or cell.policy.kind == "resumed"
        or cell.policy.kind == "static"
        or cell.policy.kind == "eagle2"
    )


def _limit(facts: CellFacts) -> Iterator[str]:
    if facts.drafter is None:
        return
    if facts.limited_by == "acceptance":
        depth = _count(facts.depth, "draft")
        yield f"limited by acceptance: {facts.accepted:.2f} of up to {depth} on a path are accepted, under half"
    else:
        yield f"limited by {PARTS[facts.limited_by]}: the largest part of a round"


def _better_than(cell: PlanCell, facts: CellFacts) -> Iterator[str]:
    if cell.runner_up is not None and facts.lead_over_runner_up is not None:
        rival, ahead = cell.runner_up, _distance(facts.lead_over_runner_up)
        is_alike = (rival.policy.kind, rival.drafter) == (cell.policy.kind, cell.drafter)
        who = "runner-up" if is_alike else "runner-up of another kind or drafter"
        yield f"{who}: {_other(rival.label, rival.drafter, cell)}, {ahead}"
    if cell.outlook is not None and cell.outlook.neighbours:
        yield "the fastest with something else changed:"
        yield from (f"  {_neighbour(steps, other, cell)}" for steps, other in _merged(cell.outlook.neighbours))
    elif cell.alternatives[1:]:
        yield "the fastest of every other kind and drafter:"
        for other in cell.alternatives[1:]:
            behind = _distance(replayed_speed(cell) / other.tokens_per_s - 1.0)
            yield f"  {_other(other.label, other.drafter, cell)}, {behind}"


def _merged(neighbours: Sequence[Neighbour]) -> Iterator[tuple[str, Neighbour]]:
    """Yield every policy once, with all ways in which it differs; the nearest shapes first."""
    found: dict[tuple[str, str | None], list[Neighbour]] = {}
    for other in sorted(neighbours, key=lambda other: other.step in STEPS):
        found.setdefault((other.label, other.drafter), []).append(other)
    for same in found.values():
        yield " and ".join(STEPS.get(other.step, other.step) for other in same), same[0]


def _neighbour(steps: str, other: Neighbour, cell: PlanCell) -> str:
    promise = cell.prediction
    behind = _distance(replayed_speed(cell) / other.tokens_per_s - 1.0)
    yields = f"{other.tokens_per_round:.2f} tokens in {other.round_ms:.2f} ms"
    changes = {
        "draft": other.draft_ms - promise.draft_ms,
        "verify": other.verify_ms - promise.verify_ms,
        "host": other.host_ms - promise.host_ms,
    }
    part = max(changes, key=lambda part: abs(changes[part]))
    name = _other(other.label, other.drafter, cell)
    return f"{steps}: {name}, {behind}; {yields}, {part} {changes[part]:+.2f} ms"


def _break_even(facts: CellFacts) -> Iterator[str]:
    if facts.break_even_accepted is None:
        return
    yield f"{facts.accepted:.2f} drafts are accepted a round; plain decoding is faster below {_needed(facts)}"
    if facts.break_even is not None and facts.acceptance is not None:
        yield f"that is {facts.acceptance:.2f} of its drafts one by one; plain decoding is faster below " + (
            f"{facts.break_even:.2f}"
        )


def _needed(facts: CellFacts) -> str:
    needed, accepted = facts.break_even_accepted or 0.0, facts.accepted
    share = f" ({1.0 - needed / accepted:.0%} fewer)" if accepted > needed else ""
    return f"{needed:.2f}{share}"


def _drafter(cell: PlanCell, outlook: Outlook) -> Iterator[str]:
    if outlook.worth_per_percent > 0.0:
        yield f"1% more accepted drafts would be worth {outlook.worth_per_percent:.2%} of speed"
    if outlook.perfect_tokens_per_s is not None:
        speed, chain = outlook.perfect_tokens_per_s, f"a chain of {outlook.perfect_length}"
        times = f"{speed / cell.prediction.tokens_per_s:.1f} times this"
        yield f"always right at this cost, a drafter would reach {speed:,.1f} tokens/s, {times}, with {chain}"
    if outlook.needed is not None:
        name = name_of(outlook.needed.label, outlook.needed.drafter)
        if outlook.needed.factor > 1.0:
            yield f"speculation would pay if {name} had {outlook.needed.factor:.2f} times its accepted drafts"
        else:
            yield f"{name} is as fast on the recorded texts, but choosing it there flatters it"
    elif outlook.break_even is None:
        yield "no policy that was priced would pay even if all its drafts were accepted"


def _scenarios(outlook: Outlook, cell: PlanCell) -> Iterator[str]:
    told = [scenario for scenario in outlook.scenarios if scenario.loss > TOLD]
    for scenario in sorted(told, key=lambda scenario: -scenario.loss):
        yield _scenario(scenario, cell)
    if outlook.scenarios and not told:
        yield f"it stays within {TOLD:.0%} of the fastest if verification, drafting, host or acceptance is 10% off"


def _scenario(scenario: Scenario, cell: PlanCell) -> str:
    change = f"{abs(scenario.factor - 1.0):.0%} {'more' if scenario.factor > 1.0 else 'less'}"
    if scenario.change == "acceptance":
        condition = f"with {change.replace('less', 'fewer')} accepted drafts"
    else:
        condition = f"if {PARTS[scenario.change]} cost {change}"
    fastest = _other(scenario.label, scenario.drafter, cell)
    return f"{condition}, {fastest} would be fastest and the plan {scenario.loss:.1%} behind"


def _alike(published: Sequence[PublishedFacts]) -> Iterator[list[PublishedFacts]]:
    """Yield groups of defaults that are one policy under several names, the fastest first."""
    found: dict[tuple[str | None, float | None, str], list[PublishedFacts]] = {}
    for each in sorted(published, key=lambda each: -(each.ratio or 0.0)):
        found.setdefault((each.drafter, each.ratio, each.reason), []).append(each)
    yield from found.values()


def _published(same: Sequence[PublishedFacts]) -> str:
    first = same[0]
    name = name_by(", ".join(each.name for each in same), first.drafter)
    if first.ratio is None or first.speedup is None:
        return f"{name}: not priced, {first.reason}"
    slower = ", slower than plain decoding" if first.speedup < 1.0 else ""
    return f"{first.ratio:.2f} {name}{slower}"


def _stack(cell: PlanCell) -> Iterator[str]:
    stack = cell.stack
    if stack is None or len(stack.models) < 2:
        return
    levels = ", then ".join(
        f"{model} gathers {_count(tokens, 'token')}"
        for model, tokens in zip(stack.models, stack.thresholds, strict=True)
    )
    yield f"a stack of drafters, modelled, not replayed, not chosen: {stack.tokens_per_s:,.1f} tokens/s"
    yield f"  {levels}; the best single drafter by the same model: {stack.best_single_tokens_per_s:,.1f} tokens/s"


def _memory(cell: PlanCell, memory_bytes: int) -> Iterator[str]:
    if cell.memory_bytes is not None:
        most = f" of {memory_bytes / GIB:,.1f} GiB" if memory_bytes else ""
        yield f"at its peak decoding takes {_memory_of(cell.memory_bytes)}{most} of memory"


def _memory_of(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def _kept(cell: PlanCell, facts: CellFacts, bound: LatencyBound | None) -> Iterator[str]:
    if bound is not None:
        kept = "keeps" if cell.keeps_bound else "does not keep, and no policy does,"
        yield f"{kept} {bound}; a sequence waits {facts.ms_per_token:.1f} ms per token on average"


def _distance(lead: float) -> str:
    """Return how far another policy is behind one that is faster by so much, relative to the other."""
    if lead >= 0.0:
        return f"{lead / (1.0 + lead):.1%} slower"
    return f"{-lead / (1.0 + lead):.1%} faster, within noise, and less simple"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
