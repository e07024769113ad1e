"""Sessions that are warm: nothing is captured any more when requests come, and nothing of the warming is left."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import pytest

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.faults import Fault
from spectune.runtime.batch.sequence import Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.engine.warmup import WarmUp
from spectune.runtime.plan_choice import Choice

from ..support.ahead_runs import SMALL, TARGET, Captured, setup_of
from ..support.decoded_runs import CAPACITY, PADDED, Run, random_requests
from ..support.plans import plan_of
from ..support.synthetic import model
from .test_serving import DRAFTER, PROMPTS, SETTINGS, TOKENIZER, alone, ends, generator, output
from .test_serving import TARGET as SERVED

POLICY = HybridPolicy(text=SuffixPolicy(length=5, min_match=2), model=ChainPolicy(length=3))
KINDS = ("plain", "chain", "static", "eagle2", "talon", "cast", "opt-tree", "confident-chain", "lookup", "hybrid")


def setup_for(kind: str) -> StepConfig:
    if kind == "hybrid":
        return StepConfig(policy=POLICY, drafter="hybrid", run_tokens=PADDED)
    setup = setup_of(kind) if kind == "plain" else setup_of(kind, run_tokens=PADDED)
    return replace(setup, drafter="lookup") if kind == "lookup" else setup


def recordings(captured: Captured) -> int:
    return len(captured.targets.recorded) + len(captured.drafts.recorded)


def drafters_of(captured: Captured) -> dict[str, Drafter]:
    return {"lookup": LookupDrafter(), "hybrid": HybridDrafter(captured.drafter)}


def decode(decoder: Engine, temperature: float) -> Run:
    """Run six requests through a decoder that sequences join as others leave."""
    requests = random_requests(6, tokens=20, temperature=temperature)
    sequences: list[Sequence] = []
    rounds: list[StepOutput] = []
    while len(sequences) < len(requests) or decoder.running:
        while len(sequences) < len(requests) and decoder.has_room:
            sequences.append(decoder.admit(requests[len(sequences)], len(sequences)))
        if decoder.running:
            rounds.append(decoder.step())
    return Run([tuple(s.emitted) for s in sequences], rounds)


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_captured_while_requests_wait(kind: str, temperature: float) -> None:
    setup, cold, captured = setup_for(kind), Captured(), Captured()
    expected = decode(cold.decoder(always(setup), drafters_of(cold)), temperature)
    decoder = captured.decoder(always(setup), drafters_of(captured))
    run = WarmUp(decoder, longest=CAPACITY - 40, temperature=temperature)
    rounds = run.run(lambda _: (PLAIN, setup), range(1, 4), captured=True)
    assert rounds >= 9 and not decoder.running
    before = recordings(captured)
    found = decode(decoder, temperature)
    assert found.outputs == expected.outputs
    assert recordings(captured) == before and recordings(cold) > 0


@pytest.mark.parametrize("longest", [40, CAPACITY - 40])  # of shorter texts some end on the way
def test_a_hybrid_s_trees_are_verified_at_every_size(longest: int) -> None:
    setup, captured = setup_for("hybrid"), Captured()
    decoder = captured.decoder(always(setup), drafters_of(captured))
    WarmUp(decoder, longest=longest).run(lambda _: (setup,), (1, 2), captured=True)
    sizes = {setup.padded(tokens) for tokens in range(1, setup.policy.max_verify_tokens + 1)}
    (alone,) = captured.target._graphs.values()
    assert len(sizes) > 2
    for batch in (1, 2):
        inputs = [work.input for work in alone.values()]
        assert {one.step.tokens.shape[1] for one in inputs if len(one.step.tokens) == batch} == sizes


def test_only_what_is_captured_is_verified_at_every_size() -> None:
    captured = Captured()
    decoder, setup = captured.decoder(always(PLAIN), drafters_of(captured)), setup_for("talon")
    fewer = WarmUp(decoder, longest=99).run(lambda _: (setup,), [2], captured=False)
    more = WarmUp(decoder, longest=99).run(lambda _: (setup,), [2], captured=True)
    assert more - fewer == len({setup.padded(tokens) for tokens in range(1, setup.policy.max_verify_tokens + 1)})


def test_texts_without_room_for_a_round_warm_nothing() -> None:
    decoder = Captured().decoder(always(PLAIN))
    assert WarmUp(decoder, longest=2).run(lambda _: (PLAIN,), [1, 2], captured=True) == 0


def test_faults_are_told_by_the_next_round() -> None:
    captured = Captured()
    decoder = captured.decoder(always(PLAIN))
    setup = StepConfig(policy=ChainPolicy(length=3), drafter="nobody")
    WarmUp(decoder, longest=99).run(lambda _: (setup,), [1, 2], captured=False)
    decoder.admit(random_requests(1, tokens=9)[0])
    told = decoder.step().faults
    assert [fault.drafter for fault in told] == ["nobody"] and not decoder.step().faults


def test_a_warming_that_is_broken_off_leaves_the_decoder_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Captured().decoder(always(PLAIN))

    def pressed(setup: StepConfig | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "step", pressed)
    with pytest.raises(KeyboardInterrupt):
        WarmUp(decoder, longest=99).run(lambda _: (PLAIN,), [3], captured=False)
    assert not decoder.running


@pytest.mark.parametrize("kind", ["plain", "chain", "tree", "lookup"])
def test_a_warm_session_s_texts_are_those_of_a_cold_one(kind: str) -> None:
    session = generator(kind).session(slots=3, longest=64, warm=True)
    for place in range(6):
        session.submit(PROMPTS[place], SETTINGS[place])
    done = ends(list(session.events()))
    assert [output(done[place]) for place in range(6)] == [output(alone(place)) for place in range(6)]


class Busy(ModelDrafter):
    """Fails wherever more than two sequences are to be drafted for."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        if len(sequences) > 2:
            raise MemoryError("no room for three")
        return super().draft(sequences, policy)


def test_a_drafter_that_fails_while_it_warms_up_goes_on_at_other_batches() -> None:
    setups = [setup_for(kind) for kind in ("chain", "static", "eagle2", "talon")]
    busy = Busy(SMALL, slots=3, capacity=CAPACITY)
    decoder = Engine(TARGET, {"it": busy}, always(setups[0]), slots=3, capacity=CAPACITY)
    WarmUp(decoder, longest=99).run(lambda _: setups, range(1, 4), captured=False)
    decoder.admit(random_requests(1, tokens=9)[0])
    first = decoder.step()
    assert [fault.reason for fault in first.faults] == ["MemoryError: no room for three"]
    assert first.widths and not any(fault.is_last for fault in first.faults)


def planned(places: list[tuple[int, int]]) -> Choice:
    """Return the choice of a plan whose cells draft chains of 2, 3 and so on."""
    plan = plan_of(places)
    cells = tuple(
        replace(cell, policy=ChainPolicy(length=length), drafter="small", run_tokens=tuple(range(9)))
        for length, cell in enumerate(plan.cells, 2)
    )
    drafters = (("small", model("small")),)
    plan = replace(plan, cells=cells, drafters=drafters, hysteresis=1.15)
    return Choice(plan=plan, source="file", reason="a test")


@pytest.mark.parametrize(
    ("places", "batch", "context", "lengths"),
    [
        ([(1, 10), (4, 10), (4, 900)], 1, 2000, {2}),
        ([(1, 10), (4, 10), (4, 900)], 4, 2000, {3, 4}),
        ([(1, 10), (4, 10), (4, 900)], 4, 64, {3}),  # no text is as long
        ([(1, 10), (2, 10), (4, 10), (8, 10)], 3, 64, {3, 4}),  # two that became three decode as two for a while
        ([(1, 10), (2, 10), (4, 10), (8, 10)], 5, 64, {4, 5}),
    ],
)
def test_a_choice_tells_what_rounds_of_a_batch_may_be(
    places: list[tuple[int, int]], batch: int, context: int, lengths: set[int]
) -> None:
    found = planned(places).setups_at(batch, context)
    assert {one.policy.length for one in found if isinstance(one.policy, ChainPolicy)} == lengths
    assert any(one.drafter is None for one in found)


def test_without_a_plan_every_round_is_plain() -> None:
    assert Choice(plan=None, source="none", reason="a test").setups_at(3, 99) == (PLAIN,)


class Faults:
    """Keeps all faults of rounds."""

    def __init__(self) -> None:
        self.told: list[Fault] = []

    def note(self, done: StepOutput, /) -> None:
        self.told += done.faults


def test_what_a_session_s_texts_never_meet_is_no_fault_of_its_warming() -> None:
    choice = planned([(1, 10), (1, 9000)])
    assert choice.plan is not None
    near, far = choice.plan.cells
    far = replace(far, drafter="absent")
    plan = replace(choice.plan, cells=(near, far), drafters=(("small", model("small")), ("absent", model("absent"))))
    choice = replace(choice, plan=plan)
    faults = Faults()
    served = Generator(SERVED, TOKENIZER, {"small": DRAFTER}, always(choice.setup(near)), choice, faults)
    session = served.session(slots=2, longest=64, warm=True)
    session.submit("to be", SETTINGS[0])
    assert list(session.events()) and faults.told == []
