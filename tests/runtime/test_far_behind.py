"""Drafters whose turn comes late: far behind, they read one sequence after the other and then draw what they would."""

from __future__ import annotations

import pytest

from spectune.planner.records.room import READ_TOGETHER
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.models.lean import LeanModel

from ..support.tiny_models import perturbed, tiny_llama, with_places

LLAMA = tiny_llama(layers=2, seed=3)
MODELS = {"near": LeanModel(perturbed(LLAMA, 0.2)), "far": LeanModel(perturbed(LLAMA, 0.4, seed=1))}
STACK = StackPolicy(drafters=("near", "far"), lengths=(3, 2))
CAPACITY = 96


def drafter(policy: TreePolicy) -> Drafter:
    if isinstance(policy, StackPolicy):
        return stack_drafter(policy, MODELS, slots=2, capacity=CAPACITY)
    return ModelDrafter(MODELS["near"], slots=2, capacity=CAPACITY)


@pytest.mark.parametrize("policy", [ChainPolicy(length=3), STACK])
@pytest.mark.parametrize("behind", [1, READ_TOGETHER, READ_TOGETHER + 1, 60])
def test_what_is_drawn_does_not_hang_on_how_far_behind_the_drafter_was(policy: TreePolicy, behind: int) -> None:
    texts = [[(7 * place + row) % 24 for place in range(70 + row)] for row in range(2)]
    drawn = []
    for left in (behind, 1):
        asked = [Request(prompt=tuple(text[:-left]), max_new_tokens=80) for text in texts]
        sequences = [Sequence(request=request, index=place) for place, request in enumerate(asked)]
        late = drafter(policy)
        for slot, (sequence, text) in enumerate(zip(sequences, texts, strict=True)):
            late.admit(slot, sequence)
            sequence.tokens.extend(text[-left:])
        drawn.append(late.draft(sequences, policy).tokens.tolist())
    assert drawn[0] == drawn[1]


def test_a_text_beyond_a_drafter_s_last_position_is_read_together_with_the_others() -> None:
    short = with_places(perturbed(LLAMA, 0.2), 40)
    late = ModelDrafter(short, slots=2, capacity=CAPACITY)
    sequences = [
        Sequence(request=Request(prompt=(place, 1) * half, max_new_tokens=80), index=place)
        for place, half in enumerate((25, 6))
    ]
    for slot, sequence in enumerate(sequences):
        late.admit(slot, sequence)
        sequence.tokens.extend((2, 3))
    before = late.forwards
    late.draft(sequences, ChainPolicy(length=3))
    assert late.forwards - before == 3
