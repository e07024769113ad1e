"""Host time per round: a sample of every kind of policy, with its real shape, and its forwards taken off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, cycle, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from spectune.planner.strategies import REGISTRY
from spectune.planner.strategies.delegating import DelegatingPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler import clock as profiler_clock
from spectune.profiler.records.host_line import HYBRID
from spectune.profiler.records.overhead import OverheadSample
from spectune.runtime.batch import stopwatch
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import TappedModel
from spectune.tuning.measuring import in_rounds, overhead
from spectune.tuning.measuring.alone import Forwards
from spectune.tuning.measuring.decoding import Family, room_for
from spectune.tuning.measuring.in_rounds import Loss, Timed, loss_of, probes, stall_share
from spectune.tuning.measuring.overhead import (
    BLIND_TEXT_TURNS,
    BLIND_TURNS,
    IN_A_ROW,
    PLAIN_TURNS,
    STACK_TURNS,
    TEXT_TURNS,
    TURNS,
    measure_overhead,
)

from ...runtime.models.test_whole_head import head_of, target_model
from ...support.repeated import graphed
from ...support.tiny_blocks import block_weights, tiny_block
from ...support.tiny_exits import exit_weights, tiny_exit
from ...support.tiny_heads import head_weights, tiny_head
from ...support.tiny_models import tiny_lean, tiny_llama

FAMILY = Family(target=tiny_lean(layers=2, seed=1), drafters={"small": tiny_lean(layers=1, seed=2)})
REQUESTS = [Request(prompt=(1, 2, 1, 2, place), max_new_tokens=40) for place in range(4)]


TEXTUAL = {kind for kind, policy in REGISTRY.items() if policy.source == "text"}
DRAFTED = {kind for kind, one in REGISTRY.items() if one.source == "model" and not issubclass(one, DelegatingPolicy)}


class Clock:
    """A clock that moves on only when told."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.rounds = 0  # that run right now
        self.is_plain = False  # whether nothing is drafted in that

    def read(self) -> int:
        return self.now_ns


class SlowModel(LeanModel):
    """A model whose forwards take a second each, and in a round perhaps longer."""

    clock: Clock
    in_round: Iterator[int] | None = None  # ns that every forward in a round takes besides
    spares_plain = False  # whether forwards of plain rounds take no longer

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> torch.Tensor:
        self.clock.now_ns += 10**9 + (self._besides() if self.clock.rounds else 0)
        return super().forward(step, cache)

    def _besides(self) -> int:
        if self.in_round is None or (self.spares_plain and self.clock.is_plain):
            return 0
        return next(self.in_round)


@cache
def measured() -> tuple[OverheadSample, ...]:
    return tuple(measure_overhead(FAMILY, REQUESTS, batch=2, drafter="small"))


def samples(but: str | None = None) -> list[OverheadSample]:
    return [sample for sample in measured() if sample.kind != but]


def rounds_of(sample: OverheadSample) -> int:
    turns: dict[str, int] = {"plain": PLAIN_TURNS, "stack": STACK_TURNS} | dict.fromkeys(TEXTUAL, TEXT_TURNS)
    return IN_A_ROW * turns.get(sample.kind, TURNS)


def shapes(kind: str) -> list[tuple[int, int]]:
    """Return draft forwards and nodes of a kind's samples, the smallest first."""
    return sorted((sample.draft_forwards, sample.nodes) for sample in samples() if sample.kind == kind)


def test_every_kind_of_policy_has_samples_and_every_sample_its_rounds() -> None:
    assert {sample.kind for sample in samples()} == {"plain", "stack", "hybrid", *TEXTUAL, *DRAFTED}
    assert all(sample.batch == 2 and len(sample.host_ms) == rounds_of(sample) for sample in samples(but=HYBRID))


def test_a_hybrid_s_samples_share_its_rounds_and_each_is_of_one_kind_of_round() -> None:
    own = [sample for sample in samples() if sample.kind == HYBRID]
    asked = [setup.policy for setup in probes("small") if isinstance(setup.policy, HybridPolicy)]
    assert sum(len(sample.host_ms) for sample in own) == IN_A_ROW * TURNS * len(asked)
    assert {sample.draft_forwards for sample in own} <= {0, *(policy.draft_forwards for policy in asked)}


@pytest.mark.parametrize("drafted", [0, 1, 6, 7])
def test_few_rounds_that_ran_a_hybrid_s_drafter_are_a_sample_of_their_own(drafted: int) -> None:
    setup = next(setup for setup in probes("small") if isinstance(setup.policy, HybridPolicy))
    probe = overhead._Probe(setup, 2, is_sampled=False)
    for number in range(7):
        is_drafted = number < drafted
        done = round_of(setup, nodes=5 if is_drafted else 9, widths=(1,) * 4 * is_drafted)
        probe.keep(done, 3.0 - 2.0 * is_drafted, Forwards(verify_ms=1.0, draft_ms=0.5 * is_drafted))
    expected = {(0, 9): (3.0,) * (7 - drafted), (4, 5): (1.0,) * drafted}
    found = {(sample.draft_forwards, sample.nodes): sample.host_ms for sample in probe.samples(None)}
    assert found == {shape: host_ms for shape, host_ms in expected.items() if host_ms}


@pytest.mark.parametrize("ahead", [2, 5])
def test_rounds_that_did_not_run_as_most_of_their_policy_did_are_left_out(ahead: int) -> None:
    setup = next(setup for setup in probes("small") if setup.policy.kind == "chain")
    probe = overhead._Probe(setup, 1, is_sampled=False)
    for number in range(7):
        done = round_of(setup, nodes=2, widths=(1,), is_ahead=number < ahead)
        probe.keep(done, 1.0 if done.is_ahead else 3.0, Forwards(verify_ms=1.0, draft_ms=0.5))
    (found,) = probe.samples(None)
    assert found.is_ahead is (ahead == 5) and found.host_ms == ((1.0,) if ahead == 5 else (3.0,)) * 5


def round_of(setup: StepConfig, *, nodes: int, widths: tuple[int, ...], is_ahead: bool = False) -> StepOutput:
    told: dict[str, Any] = {"context": 9, "sequences": [0], "kept": [1], "uncached": 1, "finished": []}
    return StepOutput(setup=setup, verify_tokens=nodes, widths=widths, is_ahead=is_ahead, **told)


def test_a_family_without_drafters_is_sampled_with_what_needs_none() -> None:
    found = measure_overhead(FAMILY, REQUESTS, batch=1, drafter=None)
    assert {sample.kind for sample in found} == {"plain", *TEXTUAL}


@pytest.mark.parametrize("kind", ["plain", *sorted(DRAFTED - {"talon"})])
def test_forwards_and_nodes_are_those_of_the_policy(kind: str) -> None:
    asked = [setup.policy for setup in probes("small") if setup.policy.kind == kind]
    assert shapes(kind) == [(policy.draft_forwards, policy.max_verify_tokens) for policy in asked]


@pytest.mark.parametrize("kind", sorted(TEXTUAL))
def test_drafting_from_the_text_runs_no_drafter_and_verifies_what_it_found(kind: str) -> None:
    asked = [setup.policy for setup in probes("small") if setup.policy.kind == kind]
    for policy, (forwards, nodes) in zip(asked, shapes(kind), strict=True):
        assert forwards == 0 and 1 <= nodes <= policy.max_verify_tokens


def test_talon_runs_as_deep_and_wide_as_its_gate_lets_it() -> None:
    asked = [setup.policy for setup in probes("small") if isinstance(setup.policy, TalonPolicy)]
    for policy, (forwards, nodes) in zip(asked, shapes("talon"), strict=True):
        assert 2 <= forwards <= policy.draft_forwards and policy.top_k < nodes <= policy.nodes


@pytest.mark.parametrize("kind", sorted(DRAFTED | TEXTUAL | {"stack", "hybrid"}))
def test_kinds_that_tell_what_all_rounds_share_are_probed_at_two_shapes_and_others_at_one(kind: str) -> None:
    probed = [setup.policy.max_verify_tokens for setup in probes("small") if setup.policy.kind == kind]
    assert len(probed) == len(set(probed)) == (2 if kind in TEXTUAL | {"chain", "eagle2", "hybrid"} else 1)


def test_every_round_meets_a_full_batch_however_short_the_texts_are() -> None:
    short = [Request(prompt=(place,), max_new_tokens=1 + place) for place in range(3)]
    found = measure_overhead(FAMILY, short, batch=2, drafter="small")
    assert all(len(sample.host_ms) == rounds_of(sample) for sample in found if sample.kind != HYBRID)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Family:
    """A family by a clock of its own, every round of which takes 7 ms beyond its forwards."""
    clock = SlowModel.clock = Clock()
    for module in (overhead, in_rounds, profiler_clock, stopwatch):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter_ns=clock.read))
    step = Engine.step

    def slow_step(decoder: Engine, setup: StepConfig) -> StepOutput:
        clock.now_ns += 7_000_000
        clock.rounds += 1
        clock.is_plain = isinstance(setup.policy, PlainPolicy)
        done = step(decoder, setup)
        clock.rounds -= 1
        return done

    monkeypatch.setattr(Engine, "step", slow_step)
    target, drafter = SlowModel(tiny_llama(layers=1, seed=1)), SlowModel(tiny_llama(layers=1, seed=2))
    return Family(target=target, drafters={"small": drafter})


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that do not tell what their target's forward took."""
    monkeypatch.setattr(overhead, "tells_forwards", lambda _: False)


def test_what_forwards_take_alone_is_no_host_time_and_the_rest_of_a_round_is(slow: Family) -> None:
    for sample in measure_overhead(slow, REQUESTS, batch=2, drafter="small"):
        assert sample.host_ms == pytest.approx([7.0] * len(sample.host_ms))


def test_what_a_target_s_forward_loses_in_a_round_is_host_time(slow: Family) -> None:
    assert isinstance(slow.target, SlowModel)
    slow.target.in_round = repeat(3_000_000)
    for sample in measure_overhead(slow, REQUESTS, batch=2, drafter="small"):
        assert sample.host_ms == pytest.approx([10.0] * len(sample.host_ms))


def test_moods_of_the_target_s_forward_reach_no_sample(slow: Family) -> None:
    assert isinstance(slow.target, SlowModel)
    slow.target.in_round = cycle((0, 300_000_000, -300_000_000))
    found = measure_overhead(slow, REQUESTS, batch=2, drafter="small")
    alike = [{"plain"}, TEXTUAL, {s.kind for s in found} - {"plain"} - TEXTUAL]
    for told in ([ms for s in found if s.kind in kinds for ms in s.host_ms] for kinds in alike):
        assert max(told) - min(told) < 1e-6 and told[0] == pytest.approx(7.0, abs=60.0)


def test_what_a_drafter_s_forwards_lose_in_a_round_is_host_time_and_their_moods_are_none(slow: Family) -> None:
    """Its forwards are in sum as long as the target's: told as a difference, their moods were all that samples held."""
    drafter = slow.drafters["small"]
    assert isinstance(drafter, SlowModel)
    drafter.in_round = repeat(3_000_000)
    for sample in measure_overhead(slow, REQUESTS, batch=2, drafter="small"):
        if sample.kind not in ("talon", "stack", HYBRID):  # whose rounds differ in their forwards
            assert sample.host_ms == pytest.approx([7.0 + 3.0 * sample.draft_forwards] * len(sample.host_ms))
    drafter.in_round = cycle((0, 300_000_000, -300_000_000, 200_000_000, -200_000_000))
    for sample in measure_overhead(slow, REQUESTS, batch=2, drafter="small"):
        assert sample.host_ms == pytest.approx([7.0] * len(sample.host_ms), abs=200.0)  # of up to 9 seconds
        if sample.kind not in ("talon", "stack", HYBRID):
            assert max(sample.host_ms) - min(sample.host_ms) < 1e-6
    assert "forward" not in vars(drafter)  # it is what it was


@pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16")
def test_what_a_head_is_told_by_one_call_is_counted_as_its_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is told as a difference of two clocks, whose moods are larger than it."""
    ticks = count(step=1_000_000)  # a millisecond from each look at the clock to the next
    monkeypatch.setattr(in_rounds, "time", SimpleNamespace(perf_counter_ns=ticks.__next__))
    drafter = head_of()
    family = Family(target=target_model(), drafters={"small": drafter})
    for setup in probes("small"):
        if setup.drafter != "small" or isinstance(setup.policy, HybridPolicy | ResumedPolicy):
            continue
        decoder = family.decoder(always(setup), names=["small"], batch=1, capacity=room_for(REQUESTS, [setup], 1))
        decoder.admit(REQUESTS[0])
        with in_rounds.clocked(drafter) as spent:
            done = decoder.step(setup)
        assert done.widths and not done.faults
        assert spent.ms == (1 if setup.policy.kind in ("chain", "eagle2") else len(done.widths))


@pytest.mark.parametrize("who", ["exit", "head", "blocks"])
def test_what_runs_beside_its_target_tells_all_of_its_forwards_too(
    slow: Family, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit of a resumed round, a head that reads and a block drafter run no plain forward."""

    def slow_down(kind: type, *names: str, in_round_ns: int = 0) -> None:
        for name in names:
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, slowed(getattr(kind, name), in_round_ns))

    def slowed(forward: Callable[..., torch.Tensor], in_round_ns: int) -> Callable[..., torch.Tensor]:
        def run(model: Any, *inputs: Any) -> torch.Tensor:
            SlowModel.clock.now_ns += 10**9 + in_round_ns * (SlowModel.clock.rounds > 0)
            return forward(model, *inputs)

        return run

    llama = tiny_llama(layers=4, seed=1)
    target = SlowModel(llama)
    drafters: dict[str, Callable[[], CausalModel]] = {
        "exit": lambda: tiny_exit(target, exit_weights(target.hidden), 2),
        "head": lambda: tiny_head("eagle3", llama, head_weights("eagle3", llama)),
        "blocks": lambda: tiny_block("medusa", llama, block_weights("medusa", llama)),
    }
    drafter = drafters[who]()
    asked = ("round",) if who == "blocks" else ("forward", "forward_leaving", "read")  # a block's forward runs a round
    slow_down(type(drafter), *asked, in_round_ns=3_000_000)
    slow_down(TappedModel, "forward")
    slow_down(SlowModel, "resume")
    found = measure_overhead(Family(target=target, drafters={"own": drafter}), REQUESTS, batch=2, drafter="own")
    assert "resumed" in {sample.kind for sample in found} or who != "exit"
    for sample in found:
        if sample.kind not in ("talon", HYBRID):
            forwards = min(sample.draft_forwards, 1) if who == "blocks" else sample.draft_forwards
            assert sample.median_ms == pytest.approx(7.0 + 3.0 * forwards)


def test_long_forwards_lose_nothing_in_rounds_and_none_is_timed_alone_where_time_is_limited(slow: Family) -> None:
    """A chain of eight counted the noise of one timing eight times: a 1.5B looked twice as fast as it was."""
    assert isinstance(slow.target, SlowModel) and isinstance(slow.drafters["small"], SlowModel)
    slow.drafters["small"].in_round = cycle((0, 30_000_000, -20_000_000))
    slow.target.in_round = cycle((0, 300_000_000, -300_000_000))
    found = measure_overhead(slow, REQUESTS, batch=2, drafter="small", limit_s=1e9)
    assert all(sample.host_ms == pytest.approx([7.0] * len(sample.host_ms)) for sample in found)


def test_what_others_lose_is_no_host_time_of_plain_rounds(slow: Family) -> None:
    assert isinstance(slow.target, SlowModel)
    slow.target.in_round = repeat(3_000_000)
    slow.target.spares_plain = True
    for sample in measure_overhead(slow, REQUESTS, batch=2, drafter="small"):
        assert sample.host_ms == pytest.approx([7.0 if sample.kind == "plain" else 10.0] * len(sample.host_ms))


@pytest.mark.usefixtures("blind")
def test_where_a_round_does_not_tell_its_forward_moods_reach_the_samples_and_more_rounds_are_timed(
    slow: Family,
) -> None:
    assert isinstance(slow.target, SlowModel)
    slow.target.in_round = cycle((0, 300_000_000, -300_000_000))
    found = measure_overhead(slow, REQUESTS, batch=2, drafter="small")
    assert {round(ms) for sample in found for ms in sample.host_ms} == {-293, 7, 307}
    turns = {"plain": PLAIN_TURNS, "lookup": BLIND_TEXT_TURNS, "chain": BLIND_TURNS}
    own = [sample for sample in found if sample.kind in turns]
    assert all(len(sample.host_ms) == IN_A_ROW * turns[sample.kind] for sample in own)


@pytest.mark.parametrize(("base_ms", "share"), [(0.1, 0.0), (0.0, 0.08), (0.08, 0.05)])
def test_a_loss_is_found_among_forwards_that_scatter_by_a_share_of_what_they_take(base_ms: float, share: float) -> None:
    draws = np.random.default_rng(0)
    alone = np.repeat([1.2, 3.0, 12.0], 200)
    inside = (alone + base_ms + share * alone) * draws.normal(1.0, 0.04, len(alone))
    inside[7:12] = 30.0  # stalls
    verified = list(zip(inside.tolist(), alone.tolist(), strict=True))
    found = loss_of(verified, "growing")
    for alone_ms in (1.2, 3.0, 12.0):
        assert found.of(alone_ms) == pytest.approx(base_ms + share * alone_ms, abs=0.012 * alone_ms)
    if not share:
        assert loss_of(verified, "constant").of(12.0) == pytest.approx(base_ms, abs=0.012)


def test_what_a_run_of_forwards_loses_may_fall_with_their_number() -> None:
    """The first finds its weights gone, the others find them, and alone each is timed as a mean of both."""
    draws = np.random.default_rng(1)
    alone = np.repeat([0.4, 0.8, 3.2], 26)
    inside = (alone + 0.2 - 0.1 * alone) * draws.normal(1.0, 0.05, len(alone))
    found = loss_of(list(zip(inside.tolist(), alone.tolist(), strict=True)), "line")
    assert [found.of(ms) for ms in (0.4, 3.2)] == pytest.approx([0.16, -0.12], abs=0.05)


def test_one_long_stall_among_few_rounds_is_no_loss_of_theirs() -> None:
    pairs = [(1.9, 1.7), (2.0, 1.8), (9.0, 1.8), (1.8, 1.6), (1.9, 5.3)]
    assert loss_of(pairs, "constant").of(1.7) == pytest.approx(0.2)


def test_stalls_are_told_by_rounds_of_all_kinds_together_and_meet_all_alike() -> None:
    draws = np.random.default_rng(2)

    def rounds(base_ms: float, alone_ms: float, count: int) -> list[Timed]:
        stalled = 1.0 + 0.3 * (draws.random(count) < 0.2)  # one in five takes 30 % longer: 6 % on average
        return [(float((alone_ms + base_ms) * stall * draws.normal(1.0, 0.01)), alone_ms) for stall in stalled]

    kinds = [rounds(0.1, 3.0, 200), rounds(0.5, 4.0, 200)]
    lost = [loss_of(timed, "constant") for timed in kinds]
    assert [loss.base_ms for loss in lost] == pytest.approx([0.1, 0.5], abs=0.03)
    stalls = stall_share([(one, loss) for timed, loss in zip(kinds, lost, strict=True) for one in timed])
    assert stalls == pytest.approx(0.06, abs=0.012)
    assert lost[1].stalling(0.06).of(4.0) == pytest.approx(4.5 * 1.06 - 4.0, abs=0.03)
    assert Loss(base_ms=0.0).stalling(0.06).of(2.0) == pytest.approx(0.12)


def test_texts_that_end_at_once_are_sampled_all_the_same() -> None:
    ending = [Request(prompt=(place,), max_new_tokens=40, stop=frozenset(range(24))) for place in range(2)]
    found = measure_overhead(FAMILY, ending, batch=2, drafter="small")
    whole = [sample for sample in found if sample.kind != HYBRID]
    assert all(sample.batch == 2 and len(sample.host_ms) == rounds_of(sample) for sample in whole)


def test_a_family_whose_rounds_run_ahead_of_the_host_is_sampled_like_any_other() -> None:
    target, target_work = graphed(FAMILY.target)
    small, _ = graphed(FAMILY.drafters["small"])
    found = measure_overhead(Family(target=target, drafters={"small": small}), REQUESTS, batch=2, drafter="small")
    assert {sample.kind for sample in found} == {sample.kind for sample in samples()} and target_work.recorded


@pytest.mark.parametrize(
    ("captures", "taken"),
    [([0, 0, 0], [0, 1, 2]), ([2, 0, 1, 0, 0], [1, 3, 4]), ([1] * 6, [3, 4, 5]), ([1, 0, 1, 1, 1, 1], [1, 4, 5])],
)
def test_a_round_that_captured_something_new_is_no_measure_of_others_where_others_come(
    captures: list[int], taken: list[int]
) -> None:
    running = object.__new__(overhead._RunningEngine)
    done = round_of(PLAIN, nodes=1, widths=())
    settling = [overhead._Step(done=done, ms=1e6, draft_ms=0.0, captured=0)]
    timed = [overhead._Step(done=done, ms=float(place), draft_ms=0.0, captured=n) for place, n in enumerate(captures)]
    steps = iter([*settling, *timed])
    running.step = lambda setup: next(steps)  # type: ignore[method-assign]
    assert [step.ms for step in running.settled_steps(PLAIN, 1)] == taken
