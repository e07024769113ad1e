"""Sessions that are warm: nothing is captured any more when requests come, and nothing of the warming is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.planner.policies import ChainPolicy, HybridPolicy, SuffixPolicy
from spectune.runtime.choice import Choice
from spectune.runtime.decoder import Decoder, Round
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.protocol import Drafter
from spectune.runtime.requests import Sequence
from spectune.runtime.setup import PLAIN, RoundSetup, always
from spectune.runtime.warming import WarmUp

from .ahead_runs import Captured, setup_of
from .decoded_runs import CAPACITY, PADDED, Run, random_requests
from .plans import plan_of
from .synthetic import model
from .test_runtime_serving import PROMPTS, SETTINGS, alone, ends, generator, output

POLICY = HybridPolicy(text=SuffixPolicy(length=5, min_match=2), model=ChainPolicy(length=3))
KINDS = ("plain", "chain", "static", "eagle2", "talon", "cast", "opt-tree", "confident-chain", "lookup", "hybrid")


def setup_for(kind: str) -> RoundSetup:
    if kind == "hybrid":
        return RoundSetup(policy=POLICY, drafter="hybrid", run_tokens=PADDED)
    setup = setup_of(kind) if kind == "plain" else setup_of(kind, run_tokens=PADDED)
    return replace(setup, drafter="lookup") if kind == "lookup" else setup


def recordings(captured: Captured) -> int:
    return len(captured.targets.recorded) + len(captured.drafts.recorded)


def drafters_of(captured: Captured) -> dict[str, Drafter]:
    return {"lookup": LookupDrafter(), "hybrid": HybridDrafter(captured.drafter)}


def decode(decoder: Decoder, temperature: float) -> Run:
    """Run six requests through a decoder that sequences join as others leave."""
    requests = random_requests(6, tokens=20, temperature=temperature)
    sequences: list[Sequence] = []
    rounds: list[Round] = []
    while len(sequences) < len(requests) or decoder.running:
        while len(sequences) < len(requests) and decoder.has_room:
            sequences.append(decoder.admit(requests[len(sequences)], len(sequences)))
        if decoder.running:
            rounds.append(decoder.step())
    return Run([tuple(s.emitted) for s in sequences], rounds)


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
    setup = RoundSetup(policy=ChainPolicy(length=3), drafter="nobody")
    WarmUp(decoder, longest=99).run(lambda _: (setup,), [1, 2], captured=False)
    decoder.admit(random_requests(1, tokens=9)[0])
    told = decoder.step().faults
    assert [fault.drafter for fault in told] == ["nobody"] and not decoder.step().faults


def test_a_warming_that_is_broken_off_leaves_the_decoder_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Captured().decoder(always(PLAIN))

    def pressed(setup: RoundSetup | None = None) -> None:
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


def test_a_choice_tells_what_rounds_of_a_batch_may_be() -> None:
    plan = plan_of([(1, 10), (4, 10), (4, 90)])
    cells = tuple(
        replace(cell, policy=ChainPolicy(length=length), drafter="small", run_tokens=tuple(range(6)))
        for cell, length in zip(plan.cells, (2, 3, 4), strict=True)
    )
    choice = Choice(
        plan=replace(plan, cells=cells, drafters=(("small", model("small")),)), source="file", reason="a test"
    )

    def lengths(batch: int) -> set[int]:
        return {one.policy.length for one in choice.setups_at(batch) if isinstance(one.policy, ChainPolicy)}

    assert [lengths(batch) for batch in (1, 4, 9)] == [{2}, {3, 4}, {3, 4}]
    assert all(any(one.drafter is None for one in choice.setups_at(batch)) for batch in (1, 4))
    assert Choice(plan=None, source="none", reason="a test").setups_at(3) == (PLAIN,)
