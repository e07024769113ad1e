"""Heads draft from the target's features: what they say is what their formulas say, at every node of every tree."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest
import torch

from spectune.errors import ModelError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.head import HeadDrafter, model_drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import TappedModel, tapped_for

from ...support.decoded_runs import CAPACITY, POLICIES, random_requests, run
from ...support.tiny_heads import DRAFTED, exact_logits, head_weights, tiny_head
from ...support.tiny_models import tiny_llama, tiny_neox

LLAMA = tiny_llama(layers=3, seed=0)
TARGET = LeanModel(LLAMA)
FORMS: tuple[Form, ...] = ("eagle", "eagle3")
WEIGHTS = {form: head_weights(form, LLAMA) for form in FORMS}
HEADS = {form: tiny_head(form, LLAMA, WEIGHTS[form]) for form in FORMS}


class Watching(HeadDrafter):
    """A head's drafter that remembers what it drew behind which text."""

    def __init__(self, head: EagleHead, *, slots: int, on_device: bool | None = None) -> None:
        super().__init__(head, slots=slots, capacity=CAPACITY, on_device=on_device)
        self.drawn: list[tuple[list[int], DraftBatch, int]] = []

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        self.drawn += [(list(s.tokens), draft, row) for row, s in enumerate(sequences)]
        return draft


def decoded(form: Form, kind: str, *, on_device: bool | None = None, slots: int = 3) -> Watching:
    drafter = Watching(HEADS[form], slots=slots, on_device=on_device)
    schedule = always(StepConfig(policy=POLICIES[kind], drafter="it"))
    run(tapped_for(TARGET, [HEADS[form]]), random_requests(5, tokens=10), schedule, {"it": drafter}, slots=slots)
    return drafter


@pytest.mark.thinned
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", ["chain", "eagle2", "talon", "cast", "opt-tree", "static"])
@pytest.mark.parametrize("form", FORMS)
def test_every_node_of_every_tree_is_what_the_formulas_rank_so(form: Form, kind: str, on_device: bool) -> None:
    for text, draft, row in decoded(form, kind, on_device=on_device).drawn[::17]:
        paths: list[list[int]] = [[]]
        for node in range(1, int(draft.sizes[row])):
            paths.append([*paths[draft.parents[row, node]], int(draft.tokens[row, node])])
        for path in paths[1:]:
            said = exact_logits(form, LLAMA, WEIGHTS[form], text, path[:-1])
            siblings = {other[-1] for other in paths[1:] if other[:-1] == path[:-1]}
            assert siblings == set(said.topk(len(siblings)).indices.tolist())


@pytest.mark.parametrize("form", FORMS)
def test_a_proposal_is_a_function_of_the_committed_text_alone(form: Form) -> None:
    for text, draft, row in decoded(form, "eagle2").drawn[::11]:
        request = Request(prompt=tuple(text[:-1]), max_new_tokens=9)
        fresh = HeadDrafter(HEADS[form], slots=1, capacity=CAPACITY)
        decoder = Engine(tapped_for(TARGET, [HEADS[form]]), {"it": fresh}, always(PLAIN), slots=1, capacity=CAPACITY)
        again = fresh.draft([decoder.admit(request)], POLICIES["eagle2"])
        size = int(draft.sizes[row])
        assert again.tokens[0].tolist() == draft.tokens[row, :size].tolist()
        assert again.parents[0].tolist() == draft.parents[row, :size].tolist()


def test_a_reduced_vocabulary_drafts_nothing_else() -> None:
    ids = set((WEIGHTS["eagle3"]["d2t"] + torch.arange(DRAFTED)).tolist())
    drawn = {int(t) for _, draft, row in decoded("eagle3", "eagle2").drawn for t in draft.tokens[row, 1:]}
    assert drawn - {0} <= ids and len(drawn) > 5


def test_a_target_without_heads_is_left_as_it_is() -> None:
    assert tapped_for(TARGET, [LeanModel(LLAMA)]) is TARGET
    assert type(TARGET.new_cache(1, 8)).__name__ == "KeyValueCache"


def test_a_tapped_target_says_what_the_target_says() -> None:
    requests = random_requests(4, tokens=12)
    assert run(TappedModel(TARGET, (1, 3)), requests).outputs == run(TARGET, requests).outputs


def test_two_heads_share_one_tap() -> None:
    target = tapped_for(TARGET, list(HEADS.values()))
    for form in FORMS:
        drafter = Watching(HEADS[form], slots=3)
        schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
        run(target, random_requests(5, tokens=10), schedule, {"it": drafter})
        alone = decoded(form, "eagle2")
        assert [d.tokens.tolist() for _, d, _ in drafter.drawn] == [d.tokens.tolist() for _, d, _ in alone.drawn]


def test_a_head_without_features_is_refused() -> None:
    with pytest.raises(ModelError, match="the target keeps those after"):
        Engine(TARGET, {"it": HeadDrafter(HEADS["eagle"], slots=1, capacity=9)}, always(PLAIN), slots=1, capacity=9)


def test_a_head_behind_another_kind_of_target_is_refused() -> None:
    from spectune.runtime.models.generic import GenericModel

    with pytest.raises(ModelError, match="only the lean forward"):
        tapped_for(GenericModel(tiny_neox(layers=1, seed=0)), [HEADS["eagle"]])


def test_models_and_heads_get_their_own_drafters() -> None:
    assert type(model_drafter(HEADS["eagle"], slots=1, capacity=9)) is HeadDrafter
    assert type(model_drafter(TARGET, slots=1, capacity=9)) is ModelDrafter


def test_the_wide_tree_has_nodes_that_differ_by_their_parents_feature() -> None:
    text = [3, 1, 4, 1, 5]
    said = [exact_logits("eagle3", LLAMA, WEIGHTS["eagle3"], text, [first, 2]) for first in (6, 7)]
    assert not np.allclose(said[0][torch.isfinite(said[0])], said[1][torch.isfinite(said[1])])
    assert isinstance(POLICIES["eagle2"], Eagle2Policy)
