"""T2 on block drafters: over random seeds the emitted tokens follow the target's own law; biased verifiers do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

import pytest

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.sequence import Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.block import BlockDrafter
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import BUSHY
from ..support.tiny_blocks import KINDS, block_weights, tiny_block
from ..support.tiny_models import tiny_llama
from .test_law import Crowd, DroppedCorrection, SecondChance, Text, exact_law, install, p_value

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=5, vocabulary=8, hidden=16)
TARGET = LeanModel(LLAMA)
BLOCKS = {kind: tiny_block(kind, LLAMA, block_weights(kind, LLAMA)) for kind in KINDS}
TREE = StaticPolicy(tree=BUSHY)
SLOTS = 1000


class Blind(BlockDrafter):
    """A drafter that does not know the noise: what it proposes tells nothing about the target's draw."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        greedy = [Sequence(replace(s.request, temperature=0.0), s.index) for s in sequences]
        for twin, sequence in zip(greedy, sequences, strict=True):
            twin.tokens = sequence.tokens
        return super().draft(greedy, policy)


def sampled(kind: Kind, first_seed: int, samples: int, made: type[BlockDrafter] = BlockDrafter) -> Counter[Text]:
    """Count the texts that `samples` consecutive seeds emit."""
    counts: Counter[Text] = Counter()
    for start in range(first_seed, first_seed + samples, SLOTS):
        drafter = made(BLOCKS[kind], slots=SLOTS, capacity=24)
        schedule = always(StepConfig(policy=TREE, drafter="it"))
        crowd = Crowd(tapped_for(TARGET, [BLOCKS[kind]]), {"it": drafter}, schedule, slots=SLOTS, capacity=24)
        sequences = crowd.start(drafter, range(start, start + SLOTS))
        while crowd.running:
            assert not crowd.step().faults
        counts.update(tuple(s.emitted) for s in sequences)
    return counts


@cache
def law() -> dict[Text, float]:
    return exact_law(LLAMA)


@pytest.mark.thinned
@pytest.mark.parametrize("first_seed", [0, 10**6, -(2**62)])
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_texts_follow_the_targets_law(kind: Kind, first_seed: int) -> None:
    assert p_value(sampled(kind, first_seed, 4000), law()) > 1e-3


@pytest.mark.parametrize(
    ("kind", "verifier"),
    [
        ("medusa", DroppedCorrection),
        ("ctc", SecondChance),
        ("specformer", DroppedCorrection),
        ("specformer", SecondChance),
    ],
)
def test_a_verifier_that_favours_drafts_is_caught(
    kind: Kind, verifier: type[SecondChance] | type[DroppedCorrection], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(verifier(), monkeypatch)
    assert p_value(sampled(kind, 0, 6000, Blind), law()) < 1e-6
