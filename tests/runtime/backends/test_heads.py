"""Heads draft from captured work beside a captured target: the same trees in the same rounds, ahead of the host."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
import torch

from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import HeadDrafter, model_drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.growth.layout import tree_bits
from spectune.runtime.models.eagle import parents_of
from spectune.runtime.models.eagle_shape import Form
from spectune.runtime.models.forward import ForwardInput, TreeMask
from spectune.runtime.models.graphed import GraphedModel, as_loaded
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime
from spectune.runtime.models.tapped import TappedModel, tapped_for

from ...support.ahead_runs import Watched, plainly, told
from ...support.decoded_runs import CAPACITY, POLICIES, Run, random_requests, run
from ...support.pairwise import crossed
from ...support.tiny_heads import head_weights, tiny_head
from ...support.tiny_models import tiny_llama
from .test_ahead import assert_ahead_without_waits

pytestmark = pytest.mark.lossless
LLAMA = tiny_llama(layers=3, seed=0)
TARGET = LeanModel(LLAMA)
FORMS: tuple[Form, ...] = ("eagle", "eagle3")
HEADS = {form: tiny_head(form, LLAMA, head_weights(form, LLAMA)) for form in FORMS}
AHEAD = ("chain", "static", "eagle2")  # kinds whose rounds run ahead of the host
KINDS = (*AHEAD, "talon", "opt-tree", "cast", "confident-chain")
HYBRID = HybridPolicy(text=SuffixPolicy(length=4, min_match=2), model=Eagle2Policy(verify_tokens=10, depth=2, top_k=4))


def setup_of(kind: str) -> StepConfig:
    return StepConfig(policy=HYBRID if kind == "hybrid" else POLICIES[kind], drafter="it")


class CapturedHead:
    """A head and its target, both captured, and what they recorded."""

    def __init__(self, form: Form, slots: int) -> None:
        self.targets, self.drafts, self.slots = Watched(), Watched(), slots
        head = GraphedModel(HEADS[form], self.drafts)
        self.target = tapped_for(GraphedModel(TARGET, self.targets), [head])
        self.drafter = HeadDrafter(head, slots=slots, capacity=CAPACITY, on_device=True)
        self._decoders = list[Engine]()  # whose caches lose their graphs when nobody holds them

    @property
    def others(self) -> int:
        """How many forwards the target has recorded for rounds that did not run ahead."""
        assert isinstance(self.target, GraphedModel)
        return sum(len(graphs) for graphs in self.target._graphs.values())

    def run(self, requests: Many[Request], kind: str) -> Run:
        drafters = {"it": HybridDrafter(self.drafter)}
        return run(
            self.target, requests, always(setup_of(kind)), drafters, slots=self.slots, watch=self._decoders.append
        )


def eagerly(requests: Many[Request], form: Form, kind: str, slots: int) -> Run:
    drafter = HybridDrafter(HeadDrafter(HEADS[form], slots=slots, capacity=CAPACITY, on_device=True))
    return run(tapped_for(TARGET, [HEADS[form]]), requests, always(setup_of(kind)), {"it": drafter}, slots=slots)


@crossed(form=FORMS, kind=(*KINDS, "hybrid"), slots=(1, 3), ends=("by their limits", "by stop tokens"))
def test_the_text_and_the_rounds_are_those_of_eager_forwards(form: Form, kind: str, slots: int, ends: str) -> None:
    requests = random_requests(5, tokens=10)
    if ends == "by stop tokens":
        requests = [
            replace(one, stop=frozenset(text[4:5]))
            for one, text in zip(requests, plainly(requests, TARGET), strict=True)
        ]
    captured = CapturedHead(form, slots)
    found, expected = captured.run(requests, kind), eagerly(requests, form, kind, slots)
    assert found.outputs == expected.outputs == plainly(requests, TARGET)
    seen = [(one.sequences, one.kept, one.context) for one in found.rounds]
    assert seen == [(one.sequences, one.kept, one.context) for one in expected.rounds]
    if kind in AHEAD:
        assert told(found.rounds) == told(expected.rounds)
    assert (captured.others == 0) == (kind in (*AHEAD, "hybrid"))
    assert captured.drafts.replays >= len(found.rounds)  # of a hybrid that runs ahead, in vain where the text has one


@crossed(form=FORMS, kind=(*KINDS, "hybrid"), slots=(1, 3))
def test_sampled_texts_are_drafted_alike(form: Form, kind: str, slots: int) -> None:
    requests = [replace(one, temperature=0.8, seed=place) for place, one in enumerate(random_requests(4, tokens=9))]
    captured = CapturedHead(form, slots)
    found, expected = captured.run(requests, kind), eagerly(requests, form, kind, slots)
    assert found.outputs == expected.outputs == plainly(requests, TARGET)
    if kind in AHEAD:
        assert told(found.rounds) == told(expected.rounds)
    assert (captured.others == 0) == (kind in (*AHEAD, "hybrid")) and captured.drafts.replays > 0


@pytest.mark.parametrize("kind", AHEAD)
def test_what_a_head_has_read_is_the_target_s_own(kind: str) -> None:
    """A head that drafts from what its target kept reads the same as one that reads the text at once."""
    captured, requests = CapturedHead("eagle3", 1), random_requests(1, tokens=30)
    requests = [replace(one, prompt=(3, 1, 4, 1, 5)) for one in requests]
    drafters = {"it": captured.drafter}
    decoder = Engine(captured.target, drafters, always(setup_of(kind)), slots=1, capacity=CAPACITY)
    sequence = decoder.admit(requests[0])
    while len(decoder.running):
        decoder.step()
    head = HEADS["eagle3"]
    cached = captured.drafter._cached[0]
    text = sequence.tokens[:cached]
    features, cache = head.along(text), head.new_cache(1, CAPACITY)
    count = torch.arange(len(text))[None]
    bias = torch.full((len(text), len(text)), -torch.inf, dtype=head.dtype).triu(1)[None]
    step = ForwardInput(tokens=torch.tensor([text]), positions=count, columns=count, bias=bias, seen=len(text))
    head.read(features[None], step, cache)
    kept = captured.drafter._cache.states[0, 0, 1:cached]
    assert cached > 20 and torch.allclose(kept, cache.states[0, 0, 1:cached], atol=1e-9)


def test_captured_models_are_known_for_what_they_are() -> None:
    head = GraphedModel(HEADS["eagle3"], Watched())
    target = GraphedModel(TARGET, Watched())
    tapped = tapped_for(target, [head])
    assert isinstance(tapped, GraphedModel) and isinstance(as_loaded(tapped), TappedModel)
    assert tapped._recorder is target._recorder and tapped_for(target, []) is target
    assert isinstance(model_drafter(head, slots=1, capacity=20), HeadDrafter)


@pytest.mark.parametrize("text", [1, 2, 9])
def test_parents_that_a_tree_tells_are_those_that_a_mask_tells(text: int) -> None:
    tree = TokenTree(parents=(-1, 0, 0, 1, 1, 2, 3), ranks=(0, 0, 1, 0, 1, 0, 0))
    above = np.array(tree.parents)
    sees = np.eye(len(above), dtype=bool)
    for node in range(1, len(above)):
        sees[node] |= sees[above[node]]
    starts = torch.tensor([text, text + 3])
    mask = TreeMask(starts=starts, bits=tree_bits(torch.from_numpy(sees).expand(2, -1, -1)))
    columns, seen = starts.unsqueeze(1) + torch.arange(len(above)), text + 3 + len(above)
    step = ForwardInput(tokens=columns, positions=columns, columns=columns, bias=None, seen=seen, tree=mask)
    masked = replace(step, tree=None, bias=mask.bias(seen, torch.float64))
    assert parents_of(step).tolist() == parents_of(masked).tolist()
    assert parents_of(step)[0].tolist() == [text - 1, *(text + parent for parent in tree.parents[1:])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", AHEAD)
@pytest.mark.parametrize("form", FORMS)
def test_on_a_gpu_heads_draft_ahead_and_wait_for_their_own_results_alone(form: Form, kind: str, slots: int) -> None:
    llama = tiny_llama(layers=3, seed=0, hidden=64)  # with heads that the kernels take
    weights = {name: tensor.cuda() for name, tensor in head_weights(form, llama).items()}
    llama = llama.float().cuda()
    head = in_regime(tiny_head(form, llama, weights), "cuda-graph")
    target = tapped_for(in_regime(LeanModel(llama), "cuda-graph"), [head])
    drafters = {"it": HybridDrafter(model_drafter(head, slots=slots, capacity=CAPACITY))}
    decoder = Engine(target, drafters, always(setup_of(kind)), slots=slots, capacity=CAPACITY)
    requests = [replace(one, max_new_tokens=60) for one in random_requests(slots, tokens=1)]
    assert_ahead_without_waits(decoder, requests, LeanModel(llama))
