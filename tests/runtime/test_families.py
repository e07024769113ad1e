"""Every family against transformers itself: texts in pieces and batches, trees, whole greedy decodings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.configuration import windows_of
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.layout import ancestors, lay_out
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import BUSHY, CAPACITY, RankedDrafter, drafting, run
from ..support.tiny_models import FAMILIES, SIZES, WINDOW, generated, perturbed, plain_logits, random_model, tiny_model

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # families that only the generic forward knows
    "mixtral, windowed": ("Mixtral", {"sliding_window": WINDOW, "num_local_experts": 3}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8},
    ),
    "phi3, windowed": ("Phi3", {"sliding_window": WINDOW}),
    "starcoder2, windowed": ("Starcoder2", {"sliding_window": WINDOW}),
    "cohere2": ("Cohere2", {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "olmo3": ("Olmo3", {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt_oss": (
        "GptOss",
        {"sliding_window": WINDOW, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2},
    ),
}
WAYS = [*(("lean", name) for name in FAMILIES), *(("generic", name) for name in (*FAMILIES, *OTHERS))]
WINDOWED = ("mistral, windowed", "gemma2", "gemma3")  # of those that both forwards know, decoded by both
DECODED = [way for way in WAYS if way[0] == "lean" or way[1] in (*OTHERS, *WINDOWED)]
LENGTH = 20  # of the texts, three windows and more
TEXTS = np.random.default_rng(5).integers(0, SIZES["vocab_size"], (2, LENGTH))
CUTS = {"whole": (), "in pieces": (3, 4, 13), "token by token": tuple(range(1, LENGTH))}


@lru_cache
def original(name: str) -> PreTrainedModel:
    if name in FAMILIES:
        return tiny_model(name)
    kind, apart = OTHERS[name]
    return random_model(getattr(transformers, f"{kind}Config")(**{**SIZES, **apart}))


@lru_cache
def wrapped(way: str, name: str) -> CausalModel:
    return LeanModel(original(name)) if way == "lean" else GenericModel(original(name))


def tolerance(name: str) -> float:
    """Return what transformers' own rounding to float32 may cost: in eager attention, and in norms we left alone."""
    is_exact = name in FAMILIES and original(name).config._attn_implementation == "sdpa"
    return 1e-9 if is_exact else 2e-4


def read(model: CausalModel, texts: np.ndarray, cuts: Sequence[int]) -> Tensor:
    """Return logits (batch, n, vocabulary) of texts fed piece by piece through one cache."""
    cache, logits = model.new_cache(len(texts), LENGTH), []
    for start, end in zip([0, *cuts], [*cuts, texts.shape[1]], strict=True):
        sees = np.tri(end - start, dtype=np.bool_)[None]
        step = lay_out(
            texts[:, start:end],
            np.arange(end - start),
            [start] * len(texts),
            sees,
            dtype=model.dtype,
            device=model.device,
        )
        logits.append(model.forward(step, cache).clone())
    return torch.cat(logits, dim=1)


@pytest.mark.thinned
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(("way", "name"), WAYS)
def test_a_text_has_transformers_logits_however_it_is_read(way: str, name: str, cuts: str) -> None:
    ours = read(wrapped(way, name), TEXTS, CUTS[cuts])
    expected = torch.stack([plain_logits(original(name), text.tolist()) for text in TEXTS])
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance(name))


@pytest.mark.parametrize("name", [name for name in FAMILIES if any(windows_of(tiny_model(name).config))])
def test_the_windows_here_change_logits(name: str) -> None:
    wide = tiny_model(name, sliding_window=LENGTH)
    text = TEXTS[0].tolist()
    gap = (plain_logits(wide, text) - plain_logits(original(name), text)).abs().amax(dim=-1)
    assert float(gap[:WINDOW].max()) < 1e-5 and float(gap[WINDOW:].max()) > 1e-2


DEEP = TokenTree(
    parents=(-1, 0, 0, 1, 1, 3, 5, 6, 7, 8, 9, 2, 11, 12), ranks=(0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
)  # one branch is longer than the window
PROMPTS = (tuple(range(1, 14)), (3, 8))  # beyond the window, and within
NODES = np.random.default_rng(6).integers(0, SIZES["vocab_size"], (2, DEEP.size))


def fill(model: CausalModel) -> Any:
    """Return a cache that holds the prompts."""
    cache = model.new_cache(2, 40)
    for slot, prompt in enumerate(PROMPTS):
        count = len(prompt)
        sees = np.tri(count, dtype=np.bool_)[None]
        step = lay_out(
            np.array([prompt]),
            np.arange(count),
            [0],
            sees,
            dtype=model.dtype,
            device=model.device,
            first_slot=slot,
        )
        model.forward(step, cache)
    return cache


def tree_logits(model: CausalModel) -> Tensor:
    """Return logits (2, nodes, vocabulary) of both trees, each behind its own prompt, in one forward."""
    contexts, sees = [len(prompt) for prompt in PROMPTS], ancestors(np.array([DEEP.parents] * 2))
    step = lay_out(NODES, np.array(DEEP.depths), contexts, sees, dtype=model.dtype, device=model.device)
    return model.forward(step, fill(model))


def layer_logits(model: CausalModel) -> Tensor:
    """Return the same, fed one depth after the other as drafters do, nodes in the order of their depth."""
    contexts, sees = [len(prompt) for prompt in PROMPTS], ancestors(np.array([DEEP.parents] * 2))
    order = np.argsort(DEEP.depths, kind="stable")
    cache, written, logits = fill(model), 0, torch.empty(2, DEEP.size, model.vocabulary, dtype=model.dtype)
    for depth in range(max(DEEP.depths) + 1):
        layer = order[np.array(DEEP.depths)[order] == depth]
        among = order[: written + len(layer)]
        step = lay_out(
            NODES[:, layer],
            np.full(len(layer), depth),
            contexts,
            sees[:, layer[:, None], among[None, :]],
            written=written,
            dtype=model.dtype,
            device=model.device,
        )
        logits[:, layer] = model.forward(step, cache)
        written += len(layer)
    return logits


@lru_cache
def path_logits(name: str) -> Tensor:
    """Return the same logits by running every root-to-node path as a text of its own through transformers."""
    rows = []
    for prompt, tokens in zip(PROMPTS, NODES.tolist(), strict=True):
        paths: list[list[int]] = []
        for token, parent in zip(tokens, DEEP.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prompt), token])
        rows.append(torch.stack([plain_logits(original(name), path)[-1] for path in paths]))
    return torch.stack(rows)


@pytest.mark.lossless
@pytest.mark.parametrize(("way", "name"), WAYS)
def test_every_tree_node_has_the_logits_of_its_path(way: str, name: str) -> None:
    torch.testing.assert_close(tree_logits(wrapped(way, name)), path_logits(name), rtol=0, atol=tolerance(name))


@pytest.mark.lossless
@pytest.mark.parametrize(("way", "name"), WAYS)
def test_a_tree_read_layer_by_layer_has_the_logits_of_its_paths(way: str, name: str) -> None:
    torch.testing.assert_close(layer_logits(wrapped(way, name)), path_logits(name), rtol=0, atol=tolerance(name))


TOKENS = 24


@lru_cache
def continued(name: str) -> tuple[list[Request], list[tuple[int, ...]]]:
    """Return requests of three prompt lengths, and what transformers continues them with."""
    rng, requests, expected = np.random.default_rng(7), [], []
    for length in (2, WINDOW, 11):
        prompts = rng.integers(0, SIZES["vocab_size"], (2, length))
        requests += [Request(prompt=tuple(row), max_new_tokens=TOKENS) for row in prompts.tolist()]
        expected += generated(original(name), prompts, TOKENS)
    return requests, expected


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize(("way", "name"), DECODED)
def test_garbage_trees_decode_to_what_transformers_generates(way: str, name: str) -> None:
    requests, expected = continued(name)
    rng = np.random.default_rng(3)
    garbage = RankedDrafter(lambda s, depth: rng.permutation(SIZES["vocab_size"]).tolist())
    schedule, drafters = drafting("static", garbage)
    assert run(wrapped(way, name), requests, schedule, drafters).outputs == expected


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize(("way", "name"), DECODED)
def test_chains_longer_than_a_window_decode_to_what_transformers_generates(way: str, name: str) -> None:
    requests, expected = continued(name)
    wrap = LeanModel if way == "lean" else GenericModel
    drafter = ModelDrafter(wrap(perturbed(original(name), 0.03)), slots=3, capacity=CAPACITY)
    schedule = always(StepConfig(policy=ChainPolicy(length=WINDOW + 2), drafter="it"))
    done = run(wrapped(way, name), requests, schedule, {"it": drafter})
    assert done.outputs == expected
    assert max(kept for one in done.rounds for kept in one.kept) > 2  # some drafts were right


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize("policy", [ChainPolicy(length=WINDOW + 1), StaticPolicy(tree=BUSHY)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_drafts_for_itself_is_always_right(name: str, policy: TreePolicy) -> None:
    model, (requests, expected) = wrapped("lean", name), continued(name)
    drafter = ModelDrafter(model, slots=3, capacity=CAPACITY)
    done = run(model, requests, always(StepConfig(policy=policy, drafter="it")), {"it": drafter})
    per_round = policy.draft_forwards + 1
    assert done.outputs == expected
    assert {kept for one in done.rounds for kept in one.kept} == {per_round, (TOKENS - 1) % per_round}


@pytest.mark.parametrize("name", FAMILIES)
def test_random_texts_here_do_not_repeat_one_token(name: str) -> None:
    assert np.mean([len(set(text)) for text in continued(name)[1]]) > 4  # the identities above compare real texts
