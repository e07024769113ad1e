"""T5 and T9 on block drafters: after every round all caches are what a fresh reading leaves; a run repeats itself."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.kernels.arrays import Ints
from spectune.runtime.batch.faults import Fault
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.block import BlockDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.kv_cache import FeatureCache
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import CAPACITY, POLICIES, RecordingDrafter, Run, in_slots, random_requests, run
from ..support.fresh_states import worst_difference
from ..support.tiny_blocks import KINDS, block_weights, tiny_block
from ..support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
BLOCKS = {kind: tiny_block(kind, LLAMA, block_weights(kind, LLAMA)) for kind in KINDS}
REQUESTS = random_requests(7, tokens=12, temperature=0.8)
Seen = list[tuple[int, Tensor]]  # request, and (layers, tokens, width) or (tokens, width)

every_kind = pytest.mark.parametrize("kind", KINDS)
every_policy = pytest.mark.parametrize("policy", ["chain", "eagle2"])


class Watched:
    """A run, with what its caches held of every sequence after every round."""

    def __init__(self, kind: Kind, policy: str) -> None:
        """Run it."""
        block = BlockDrafter(BLOCKS[kind], slots=3, capacity=CAPACITY)
        recorder = RecordingDrafter(block)
        self.states: Seen = []
        self.features: Seen = []
        self.own: Seen = []

        def watch(decoder: Engine) -> None:
            kept = decoder._cache
            assert isinstance(kept, FeatureCache)
            for slot, sequence in in_slots(decoder):
                self.states.append((sequence.index, kept.states[:, slot, : sequence.context].clone()))
                self.features.append((sequence.index, kept.features[slot, : sequence.context].clone()))
                own = block._cache.states[:, slot, : block._cached[slot]]
                self.own.append((sequence.index, own.clone()))

        schedule = always(StepConfig(policy=POLICIES[policy], drafter="it"))
        self.run: Run = run(tapped_for(TARGET, [BLOCKS[kind]]), REQUESTS, schedule, {"it": recorder}, watch=watch)
        self.drafts = recorder.rounds
        self.texts = [(*asked.prompt, *text) for asked, text in zip(REQUESTS, self.run.outputs, strict=True)]


@cache
def watched(kind: Kind, policy: str) -> Watched:
    return Watched(kind, policy)


def worst(fresh: Many[Tensor], seen: Seen, first: int = 0) -> float:
    """Return the largest difference from a fresh reading, (..., tokens, width) each, at the tokens from `first` on."""
    differences = (states - fresh[index][..., : states.shape[-2], :] for index, states in seen)
    return max(float(each[..., first:, :].abs().max()) for each in differences if each[..., first:, :].numel())


def fresh_features(kind: Kind, texts: Many[Many[int]]) -> list[Tensor]:
    """Return transformers' hidden states that a drafter reads, (tokens, width); they are final-normed behind all."""
    found = []
    for text in texts:
        with torch.no_grad():
            hidden = LLAMA(torch.tensor([list(text)]), output_hidden_states=True).hidden_states
        found.append(torch.cat([hidden[count][0] for count in BLOCKS[kind].reads], dim=-1))
    return found


def final_normed(seen: Seen) -> Seen:
    """Return features whose last part, that behind all layers, is final-normed."""
    with torch.no_grad():
        return [(at, torch.cat((each[:, :-32], LLAMA.model.norm(each[:, -32:])), dim=-1)) for at, each in seen]


def fresh_own(kind: Kind, text: Many[int]) -> Tensor:
    """Return what a drafter keeps of a text that it reads at once."""
    model, count = BLOCKS[kind], len(text)
    sees = np.tri(count, dtype=np.bool_)[None]
    step = lay_out(np.array([text]), np.arange(count), [0], sees, dtype=model.dtype, device=model.device)
    kept = model.new_cache(1, count)
    model.keep(model.along(text)[None], step, kept)
    return kept.states[:, 0, :count]


@every_policy
@every_kind
def test_after_every_round_the_targets_cache_is_a_fresh_prefill(kind: Kind, policy: str) -> None:
    done = watched(kind, policy)
    assert len(done.states) > 20 and worst_difference(LLAMA, done.texts, done.states) < 1e-9
    assert worst(fresh_features(kind, done.texts), final_normed(done.features)) < 1e-9


@every_policy
@pytest.mark.parametrize("kind", ["ctc", "specformer"])  # Medusa keeps nothing of a text
def test_after_every_round_the_drafters_cache_is_a_fresh_reading(kind: Kind, policy: str) -> None:
    """But for the first token, which has no state before it and is never seen."""
    done = watched(kind, policy)
    fresh = [fresh_own(kind, text) for text in done.texts]
    assert worst(fresh, done.own, first=1) < 1e-9


@every_kind
def test_features_that_stay_where_a_tree_left_them_are_caught(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: keys and values of accepted nodes are moved together, their features are not."""
    right, moved = watched(kind, "eagle2"), FeatureCache._move

    def forgetful(self: FeatureCache, moves: Ints) -> None:
        before = self.features.clone()
        moved(self, moves)
        self.features.copy_(before)

    monkeypatch.setattr(FeatureCache, "_move", forgetful)
    done = Watched(kind, "eagle2")
    assert done.run.outputs == right.run.outputs  # lossless even so
    assert worst(fresh_features(kind, done.texts), final_normed(done.features)) > 1e-3


@every_policy
@every_kind
def test_the_same_run_again_is_the_same_in_every_round(kind: Kind, policy: str) -> None:
    first, second = watched(kind, policy), Watched(kind, policy)
    assert first.run.outputs == second.run.outputs and first.drafts == second.drafts
    assert [done.kept for done in first.run.rounds] == [done.kept for done in second.run.rounds]
    assert first.run.target_forwards == second.run.target_forwards == len(first.run.rounds)


@every_kind
def test_a_row_that_is_padded_behind_a_nearly_full_text_costs_nobody_a_draft(kind: Kind) -> None:
    """One sequence lags by 20 tokens of plain rounds when a prompt joins that leaves little room."""
    drafting: list[bool] = []
    blocks = StepConfig(policy=POLICIES["chain"], drafter="it")
    decoder = Engine(
        tapped_for(TARGET, [BLOCKS[kind]]),
        {"it": BlockDrafter(BLOCKS[kind], slots=2, capacity=44)},
        lambda batch, context: blocks if drafting else PLAIN,
        slots=2,
        capacity=44,
    )
    sequences = [decoder.admit(Request(prompt=(1, 2), max_new_tokens=30))]
    for _ in range(20):
        decoder.step()
    sequences.append(decoder.admit(Request(prompt=tuple(range(18)) * 2, max_new_tokens=4), 1))
    drafting.append(True)
    faults: list[Fault] = []
    while decoder.running:
        faults += decoder.step().faults
    assert not faults
    assert [tuple(one.emitted) for one in sequences] == run(TARGET, [one.request for one in sequences]).outputs
