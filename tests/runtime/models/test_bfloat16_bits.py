"""In bfloat16, too, a CPU's kernels give a draft the logits of plain decoding, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.runtime.models.forward import ForwardInput, LeftStates
from spectune.runtime.models.kernel_parts import stacked
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import POLICIES, drafter_for, drafting, random_requests, run
from ...support.fused_forward import tiny_lean
from ...support.torch_threads import threads_of

needs_dots = pytest.mark.skipif(not has_dots(), reason="needs a processor that multiplies bfloat16")
CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}  # whole panels, so that all weights are ours
TOKENS, PARENTS = [9, 2, 6, 5, 7, 1], [-1, 0, 0, 2, 1, 3]  # a tree of drafts
CONTEXTS = (37, 6, 21)  # of the rows of a batch, longer and shorter than a register has lanes


def in_tree(model: LeanModel, contexts: Sequence[int], *, slots: int = 8) -> Tensor:
    """Return logits (rows, nodes, vocabulary) of the tree behind texts of these lengths, all in one forward."""
    cache, count = model.new_cache(slots, 64), len(TOKENS)
    depths, sees = [0] * count, np.zeros((len(contexts), count, count), dtype=np.bool_)
    for node, parent in enumerate(PARENTS):
        depths[node] = depths[parent] + 1 if parent >= 0 else 0
        sees[:, node] = sees[:, max(parent, 0)] if parent >= 0 else False
        sees[:, node, node] = True
    for row, context in enumerate(contexts):
        model.forward(chain(model, text_of(context), 0, row), cache)
    tokens = np.array([TOKENS] * len(contexts))
    step = lay_out(tokens, np.array(depths), list(contexts), sees, dtype=model.dtype, device=CPU)
    return model.forward(step, cache)


def one_by_one(model: LeanModel, context: int, path: Sequence[int]) -> Tensor:
    """Return the logits (vocabulary,) behind a path of the tree, each token of which had a forward of its own."""
    cache = model.new_cache(1, 64)
    model.forward(chain(model, text_of(context), 0, 0), cache)
    for place, node in enumerate(path):
        logits = model.forward(chain(model, [TOKENS[node]], context + place, 0), cache)
    return logits[0, 0]


def text_of(length: int) -> list[int]:
    return [(7 * place + length) % 64 for place in range(length)]


def chain(model: LeanModel, tokens: Sequence[int], context: int, slot: int) -> ForwardInput:
    """Return a forward of one text behind what is cached."""
    count = len(tokens)
    sees = np.tri(count, dtype=np.bool_)[None]
    return lay_out(
        np.array([tokens]), np.arange(count), [context], sees, dtype=model.dtype, device=CPU, first_slot=slot
    )


def path_to(node: int) -> list[int]:
    return [node] if PARENTS[node] < 0 else [*path_to(PARENTS[node]), node]


@needs_dots
@pytest.mark.parametrize("family", ["llama", "mistral, windowed", "qwen2", "qwen3"])
def test_all_layers_in_one_call_leave_what_each_leaves_by_itself(family: str) -> None:
    """From the first layer on or a later one, in a slot that is not the first; caches likewise."""
    model = tiny_lean(family, torch.bfloat16, CPU, **SIZES, num_hidden_layers=3)
    step, caches = chain(model, text_of(9), 0, 2), [model.new_cache(4, 64) for _ in range(3)]
    *_, before, _, last = list(model.stream(step, caches[0]))
    assert torch.equal(model.through_all(step, caches[1]), last)
    assert torch.equal(model.forward(step, caches[1]), model.answer(step, last))
    assert torch.equal(caches[1].states, caches[0].states)
    caches[2].states[:1] = caches[0].states[:1]
    left = LeftStates(owner=model, layers=1, states=before.view(1, 9, -1))
    assert torch.equal(model.resume(step, caches[2], left), model.answer(step, last))
    assert torch.equal(caches[2].states, caches[0].states)


@needs_dots
def test_layers_that_are_not_alike_are_a_call_each() -> None:
    model = tiny_lean("llama", torch.bfloat16, CPU, **SIZES, num_hidden_layers=2)
    first, second = model.anatomy.layers
    assert stacked((first, second)) is not None
    assert stacked((first, replace(second, scale=2.0 * second.scale))) is None
    assert stacked((first, replace(second, sight=1))) is None
    assert stacked((first, replace(second, is_silu=False))) is None
    assert stacked((first, replace(second, mlp_norm=replace(second.mlp_norm, eps=0.5)))) is None


@needs_dots
def test_weights_that_are_known_by_their_addresses_are_not_copied() -> None:
    model = tiny_lean("llama", torch.bfloat16, CPU, **SIZES)
    with pytest.raises(TypeError, match="cannot be copied"):
        deepcopy(model)


@pytest.mark.thinned
@needs_dots
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("head", [16, 64, 80])
@pytest.mark.parametrize("family", ["llama", "mistral, windowed", "qwen2", "qwen3", "gemma", "gemma3"])
def test_a_draft_s_logits_are_those_of_plain_decoding_bit_by_bit(family: str, head: int, count: int) -> None:
    """Whatever stands beside it in its tree, and whatever other texts in the batch."""
    model = tiny_lean(family, torch.bfloat16, CPU, **SIZES, head_dim=head)
    with threads_of(count):
        together = in_tree(model, CONTEXTS)
        for row, context in enumerate(CONTEXTS):
            assert torch.equal(together[row], in_tree(model, [context])[0])
            for node in range(len(TOKENS)):
                assert torch.equal(together[row, node], one_by_one(model, context, path_to(node)))


@needs_dots
@pytest.mark.parametrize("head", [16, 64, 80])
def test_what_nobody_sees_may_be_no_number_in_bfloat16(head: int) -> None:
    model = tiny_lean("llama", torch.bfloat16, CPU, **SIZES, head_dim=head)
    expected, before = in_tree(model, CONTEXTS), LeanModel.new_cache

    def spoilt(self: LeanModel, slots: int, capacity: int) -> KeyValueCache:
        cache = before(self, slots, capacity)
        cache.states.fill_(torch.nan)
        return cache

    with mock.patch.object(LeanModel, "new_cache", spoilt):
        assert torch.equal(in_tree(model, CONTEXTS), expected)


@pytest.mark.thinned
@needs_dots
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", POLICIES)
def test_in_bfloat16_a_plan_s_texts_are_plain_decoding_s(kind: str, temperature: float) -> None:
    sizes = SIZES | {"num_hidden_layers": 2, "max_position_embeddings": 160}
    target = tiny_lean("llama", torch.bfloat16, CPU, **sizes, head_dim=64)
    drafter = tiny_lean("llama", torch.bfloat16, CPU, **sizes | {"num_hidden_layers": 1}, head_dim=16)
    requests = random_requests(7, tokens=60, temperature=temperature, vocabulary=64)
    schedule, drafters = drafting(kind, drafter_for(kind, drafter, 3))
    assert run(target, requests, schedule, drafters).outputs == run(target, requests).outputs
