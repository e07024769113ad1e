"""Verifying from an exit's states changes no output, reads no token twice, and falls back where it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from spectune.planner.lockstep import replay_results
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import Schedule, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import ExitDrafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.anatomy import LayerWeights
from spectune.runtime.models.exit import ExitModel
from spectune.runtime.models.forward import CausalModel, ForwardInput, LeftStates
from spectune.runtime.models.kv_cache import FeatureCache, KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.places import Place
from spectune.runtime.models.tapped import TappedModel

from ..support.decoded_runs import CAPACITY, PADDED, Run, in_slots, random_requests, run
from ..support.fresh_states import worst_difference
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_models import perturbed, tiny_llama
from .test_exit import recorded, texts, trace_of
from .test_law import PROMPT, TEMPERATURE, TOKENS, VOCABULARY, Crowd, exact_law, p_value

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=4, seed=0)
TARGET = LeanModel(LLAMA)
EXIT = tiny_exit(TARGET, exit_weights(32), 2)
CHAINS = [ChainPolicy(length=length) for length in (1, 3, 6)]
CHAIN = CHAINS[1]


def resumed(chain: ChainPolicy = CHAIN, **setup: tuple[int, ...]) -> Schedule:
    return always(StepConfig(policy=ResumedPolicy(draft=chain), drafter="it", **setup))


def exit_drafter(model: ExitModel = EXIT, *, slots: int = 3, on_device: bool | None = None) -> ExitDrafter:
    return ExitDrafter(model, slots=slots, capacity=CAPACITY, on_device=on_device)


def decoded(drafter: Drafter, target: CausalModel = TARGET, *, may_fail: bool = False) -> Run:
    return run(target, random_requests(7, tokens=14), resumed(), {"it": drafter}, may_fail=may_fail)


@cache
def plain(temperature: float = 0.0) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=14, temperature=temperature), slots=1).outputs


def counts(done: StepOutput) -> tuple[object, ...]:
    return done.sequences, done.kept, done.widths, done.verify_tokens, done.uncached


@pytest.mark.thinned
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_verifying_from_an_exit_changes_no_output(chain: ChainPolicy, temperature: float, on_device: bool) -> None:
    """T1 and T2 over a ragged batch that sequences join and leave; T8."""
    requests = random_requests(7, tokens=14, temperature=temperature)
    found = run(TARGET, requests, resumed(chain), {"it": exit_drafter(on_device=on_device)})
    assert found.outputs == plain(temperature)
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)
    assert any(kept > 1 for done in found.rounds for kept in done.kept)


def test_in_float32_the_output_is_the_target_s_own() -> None:
    source = tiny_llama(layers=4, seed=0).float()
    target = LeanModel(source)
    weights = {name: weight.float() for name, weight in exit_weights(32).items()}
    requests = random_requests(12, tokens=14)
    found = run(target, requests, resumed(), {"it": exit_drafter(tiny_exit(target, weights, 2))})
    assert found.outputs == run(target, requests, slots=1).outputs


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_rounds_are_those_of_the_chain_verified_whole(chain: ChainPolicy) -> None:
    requests = random_requests(7, tokens=14, temperature=0.8)
    whole = always(StepConfig(policy=chain, drafter="it"))
    one, other = (run(TARGET, requests, way, {"it": exit_drafter()}) for way in (resumed(chain), whole))
    assert [counts(done) for done in one.rounds] == [counts(done) for done in other.rounds]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_after_every_round_the_cache_is_a_fresh_prefill(layers: int) -> None:
    """T5, and padding of a verification that the exit's states do not reach."""
    seen: list[tuple[int, Tensor]] = []
    requests = random_requests(7, tokens=12, temperature=0.8)
    done = run(
        TARGET,
        requests,
        resumed(run_tokens=PADDED),
        {"it": exit_drafter(tiny_exit(TARGET, exit_weights(32), layers))},
        watch=lambda decoder: seen.extend(
            (sequence.index, decoder._cache.states[:, slot, : sequence.context].clone())
            for slot, sequence in in_slots(decoder)
        ),
    )
    asked = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert {each.verify_tokens for each in done.rounds} == {5} and len(seen) > 20
    assert worst_difference(LLAMA, asked, seen) < 1e-9


def test_texts_that_stop_inside_a_chain_end_where_the_target_ends_them() -> None:
    """T7."""
    stop = frozenset({plain()[2][5]})
    requests = [Request(prompt=(n % 24,), max_new_tokens=1 + 3 * n, stop=stop, seed=n) for n in range(5)]
    found = run(TARGET, requests, resumed(), {"it": exit_drafter()})
    assert found.outputs == run(TARGET, requests, slots=1).outputs


def test_rounds_of_other_kinds_may_come_between() -> None:
    tree = Eagle2Policy(verify_tokens=7, depth=2, top_k=3)
    kinds: list[TreePolicy] = [ResumedPolicy(draft=CHAINS[2]), PlainPolicy(), tree, CHAIN]
    turns = iter(range(10**6))

    def schedule(batch: int, context: int) -> StepConfig:
        policy = kinds[next(turns) % len(kinds)]
        return StepConfig(policy=policy, drafter=None if isinstance(policy, PlainPolicy) else "it")

    found = run(TARGET, random_requests(7, tokens=14), schedule, {"it": HybridDrafter(exit_drafter())})
    assert found.outputs == plain()


def test_sampled_texts_follow_the_target_s_law() -> None:
    """T2 by counting."""
    llama = tiny_llama(layers=2, seed=5, vocabulary=VOCABULARY, hidden=16)
    target = LeanModel(llama)
    model, found, slots = tiny_exit(target, exit_weights(16), 1), Counter[tuple[int, ...]](), 1000
    for start in range(0, 12_000, slots):
        drafter = ExitDrafter(model, slots=slots, capacity=24)
        crowd = Crowd(target, {"it": drafter}, resumed(ChainPolicy(length=2)), slots=slots, capacity=24)
        sequences = crowd.start(drafter, range(start, start + slots))
        while crowd.running:
            assert not crowd.step().faults
        found.update(tuple(sequence.emitted) for sequence in sequences)
    assert (TOKENS, TEMPERATURE, len(PROMPT)) == (3, 1.3, 3)
    assert p_value(found, exact_law(llama)) > 1e-3


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_exit_s_layers_read_every_node_once(is_resumed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 3: the exit reads 3 nodes, the verification the last one; verified whole, all 4 again."""
    rows, through = Counter[int](), LeanModel.through

    def counted(
        self: LeanModel, layer: LayerWeights, hidden: Tensor, attending: Tensor | None, states: Tensor, place: Place
    ) -> Tensor:
        rows[next(n for n, own in enumerate(TARGET._layers) if own is layer)] += len(hidden)
        return through(self, layer, hidden, attending, states, place)

    requests = [Request(prompt=(7,), max_new_tokens=14, seed=n) for n in range(3)]
    schedule = resumed() if is_resumed else always(StepConfig(policy=CHAIN, drafter="it"))
    monkeypatch.setattr(LeanModel, "through", counted)
    found = run(TARGET, requests, schedule, {"it": exit_drafter()})
    verified = sum(len(done.sequences) for done in found.rounds)
    prompts = len(requests)
    lower, upper = (4 if is_resumed else 3 + 4) * verified + prompts, 4 * verified + prompts
    assert [rows[layer] for layer in range(4)] == [lower, lower, upper, upper]


class Corrupting(ExitDrafter):
    """Leaves another state of one node than its layers have."""

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        left = super().left(sequences, draft, fed)
        assert left is not None
        left.states[:, 1] = left.states[:, 1].roll(1, dims=-1)
        return left


def test_other_states_would_change_outputs() -> None:
    """The control: what is kept is what is verified."""
    assert decoded(Corrupting(EXIT, slots=3, capacity=CAPACITY)).outputs != plain()


class Forgetful(ExitDrafter):
    """Leaves the states of the first chain behind every text."""

    first: Tensor | None = None

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        left = super().left(sequences, draft, fed)
        assert left is not None
        if self.first is None:
            self.first = left.states.clone()
        return replace(left, states=self.first)


def test_states_of_another_text_would_change_outputs() -> None:
    assert decoded(Forgetful(EXIT, slots=3, capacity=CAPACITY)).outputs != plain()


def test_a_replay_counts_the_rounds_that_decoding_runs() -> None:
    policy = ResumedPolicy(draft=ChainPolicy(length=5))
    recording = recording_of(trace_of(recorded(0.0), 0.0))
    replay = replay_results(results_of(policy.draft, recording), recording.rows, 1)
    asked = [request for request, _ in texts(0.0)]
    live = run(TARGET, asked, resumed(policy.draft), {"it": exit_drafter(slots=1)}, slots=1)
    assert replay.kept[:, 0].tolist() == [done.kept[0] for done in live.rounds]
    assert [tuple(w for w in row if w) for row in replay.widths.tolist()] == [done.widths for done in live.rounds]


def faults_of(found: Run) -> set[str]:
    return {fault.reason for done in found.rounds for fault in done.faults}


def test_a_drafter_that_is_no_exit_is_verified_whole_and_said() -> None:
    model = LeanModel(perturbed(LLAMA, 0.05))
    for drafter in (
        ModelDrafter(model, slots=3, capacity=CAPACITY),
        HybridDrafter(ModelDrafter(model, slots=3, capacity=CAPACITY)),
    ):
        found = decoded(drafter, may_fail=True)
        assert found.outputs == plain() and any(kept > 1 for done in found.rounds for kept in done.kept)
        assert faults_of(found) == {
            "chain of 3 by it, verified from the exit is verified by all layers: ModelError: the drafter is no exit of "
            "its target; draft with one"
        }


@pytest.mark.parametrize("after", [(), (3,), (1, 4)])
def test_an_exit_of_another_target_of_the_same_shape_is_verified_whole_and_said(after: tuple[int, ...]) -> None:
    stranger = LeanModel(tiny_llama(layers=4, seed=1))
    target = TappedModel(TARGET, after) if after else TARGET
    found = decoded(exit_drafter(tiny_exit(stranger, exit_weights(32), 2)), target, may_fail=True)
    assert found.outputs == plain()
    assert faults_of(found) == {
        "chain of 3 by it, verified from the exit is verified by all layers: ModelError: the 2 layers of the exit are "
        "not this target's first; draft with an exit of this target"
    }


def test_a_target_that_cannot_go_on_reads_by_all_its_layers() -> None:
    class Closed:
        """A model that shows its forward alone."""

        regime, attention, gallery = "eager", "sdpa", None
        dtype, device, vocabulary = TARGET.dtype, TARGET.device, TARGET.vocabulary
        longest_context, new_cache, forward = TARGET.longest_context, TARGET.new_cache, TARGET.forward

    found = decoded(exit_drafter(), Closed(), may_fail=True)
    assert found.outputs == plain()
    (reason,) = faults_of(found)
    assert "a target that runs as eager reads by all its layers" in reason


@pytest.mark.parametrize("after", [(3,), (2, 4), (0, 1, 3)])
def test_states_that_are_kept_for_others_are_those_of_the_whole_verification(after: tuple[int, ...]) -> None:
    """As of a head or a classifier that decodes beside the exit; the exit writes those of its own layers."""
    target, seen = TappedModel(TARGET, after), list[Tensor]()
    requests = random_requests(4, tokens=12)
    for way in (resumed(), always(StepConfig(policy=CHAIN, drafter="it"))):
        found = run(
            target,
            requests,
            way,
            {"it": exit_drafter()},
            watch=lambda decoder: seen.extend(kept_features(decoder)),
        )
        assert found.outputs == run(TARGET, requests, slots=1).outputs
    half = len(seen) // 2
    assert half > 4 and max(float((a - b).abs().max()) for a, b in zip(seen[:half], seen[half:], strict=True)) < 1e-9


def kept_features(decoder: Engine) -> list[Tensor]:
    kept = decoder._cache
    assert isinstance(kept, FeatureCache)
    return [kept.features[slot, : sequence.context].clone() for slot, sequence in in_slots(decoder)]


class Failing(ExitDrafter):
    """Cannot read the last node of a chain."""

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        raise RuntimeError("broken")


def test_an_exit_that_fails_at_the_last_node_costs_its_states_alone() -> None:
    found = decoded(Failing(EXIT, slots=3, capacity=CAPACITY), may_fail=True)
    assert found.outputs == plain() and any(kept > 1 for done in found.rounds for kept in done.kept)
    (reason,) = faults_of(found)
    assert reason.endswith("is verified by all layers: RuntimeError: broken")


class Full(LeanModel):
    """Has no memory for a resumed verification."""

    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        raise torch.OutOfMemoryError("no room")


def test_where_memory_runs_out_the_root_alone_is_verified() -> None:
    target = Full(LLAMA)
    found = decoded(exit_drafter(tiny_exit(target, exit_weights(32), 2)), target, may_fail=True)
    assert found.outputs == plain()
    assert {done.verify_tokens for done in found.rounds} == {1} and len(faults_of(found)) == 1


class Unasked(ExitDrafter):
    """Drafts as if nobody wanted states."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        return super().draft(sequences, CHAIN)


def test_states_that_were_not_kept_are_refused() -> None:
    found = decoded(Unasked(EXIT, slots=3, capacity=CAPACITY), may_fail=True)
    assert found.outputs == plain()
    assert found.rounds and all(len(done.faults) == 1 for done in found.rounds)
    assert all("states of 0 nodes were stored, and the draft has" in reason for reason in faults_of(found))
