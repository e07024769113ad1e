"""T4, T5, T6: right drafts are all taken, the caches hold what a fresh prefill would, tree nodes see their path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spectune.planner.kernels.arrays import Bools, Ints
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.layout import ancestors, lay_out
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import (
    BUSHY,
    CAPACITY,
    PADDED,
    POLICIES,
    RankedDrafter,
    drafter_for,
    drafting,
    in_slots,
    random_requests,
    run,
)
from ..support.fresh_states import worst_difference
from ..support.tiny_models import perturbed, plain_logits, tiny_llama, tiny_neox

pytestmark = pytest.mark.lossless

LLAMA, NEOX = tiny_llama(layers=2, seed=0), tiny_neox(layers=2, seed=0)
SKETCH = perturbed(LLAMA, 0.06)
ORIGINALS: dict[str, PreTrainedModel] = {"llama": LLAMA, "neox": NEOX}
TARGETS: dict[str, CausalModel] = {"llama": LeanModel(LLAMA), "neox": GenericModel(NEOX)}


@pytest.mark.parametrize("policy", [ChainPolicy(length=4), StaticPolicy(tree=BUSHY)])
@pytest.mark.parametrize("family", TARGETS)
def test_the_target_as_its_own_drafter_is_always_right(family: str, policy: TreePolicy) -> None:
    per_round = policy.draft_forwards + 1
    requests = [r for r in random_requests(44, tokens=1 + 4 * per_round) if r.max_new_tokens == 1 + 4 * per_round]
    drafter = ModelDrafter(TARGETS[family], slots=3, capacity=CAPACITY)
    done = run(TARGETS[family], requests, always(StepConfig(policy=policy, drafter="it")), {"it": drafter})
    assert len(requests) == 11 and {kept for one in done.rounds for kept in one.kept} == {per_round}


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_true_token_is_found_at_any_rank_of_a_tree(rank: int, temperature: float) -> None:
    tree = TokenTree(parents=(-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3), ranks=(0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2))
    requests = [r for r in random_requests(12, tokens=13, temperature=temperature) if r.max_new_tokens == 13]
    truth = run(TARGETS["llama"], requests).outputs

    def ranking(place: int, index: int) -> list[int]:
        token = truth[index][place] if place < 13 else 0
        others = [other for other in range(24) if other != token]
        return [*others[:rank], token, *others[rank:]]

    drafter = RankedDrafter(lambda s, depth: ranking(len(s.emitted) + depth - 1, s.index))
    schedule = always(StepConfig(policy=StaticPolicy(tree=tree), drafter="it"))
    done = run(TARGETS["llama"], requests, schedule, {"it": drafter})
    assert done.outputs == truth
    assert {kept for one in done.rounds for kept in one.kept} == {3}


CACHED = [*(("llama", kind) for kind in POLICIES), ("neox", "static"), ("neox", "eagle2")]


@pytest.mark.parametrize(("family", "kind"), CACHED)
def test_after_every_round_the_targets_cache_is_a_fresh_prefill(family: str, kind: str) -> None:
    schedule, drafters = drafting(kind, drafter_for(kind, LeanModel(SKETCH), 3), run_tokens=PADDED)
    seen: list[tuple[int, Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, sequence in in_slots(decoder):
            seen.append((sequence.index, decoder._cache.states[:, slot, : sequence.context].clone()))

    requests = random_requests(7, tokens=12, temperature=0.8)
    done = run(TARGETS[family], requests, schedule, drafters, watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert len(seen) > 20 and worst_difference(ORIGINALS[family], texts, seen) < 1e-9


@pytest.mark.parametrize("kind", [kind for kind in POLICIES if kind != "lookup"])
def test_after_every_round_the_drafters_cache_is_a_fresh_prefill(kind: str) -> None:
    drafter = ModelDrafter(LeanModel(SKETCH), slots=3, capacity=CAPACITY)
    schedule, drafters = drafting(kind, drafter)
    seen: list[tuple[int, Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, sequence in in_slots(decoder):
            seen.append((sequence.index, drafter._cache.states[:, slot, : drafter._cached[slot]].clone()))

    requests = random_requests(7, tokens=12, temperature=0.8)
    done = run(TARGETS["llama"], requests, schedule, drafters, watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert len(seen) > 20 and worst_difference(SKETCH, texts, seen) < 1e-9


def alternating(batch: int, context: int) -> StepConfig:
    """Change policy and drafter with the context, as a plan may."""
    kinds = (("chain", "a"), ("eagle2", "b"), ("lookup", "text"), ("static", "a"))
    kind, drafter = kinds[context // 5 % 4]
    return StepConfig(policy=POLICIES[kind], drafter=drafter)


def test_policies_and_drafters_may_change_from_round_to_round() -> None:
    requests = random_requests(6, tokens=24, temperature=0.8)
    named = {name: ModelDrafter(LeanModel(SKETCH), slots=3, capacity=CAPACITY) for name in "ab"}
    drafters = {**named, "text": drafter_for("lookup", TARGETS["llama"], 3)}
    assert run(TARGETS["llama"], requests, alternating, drafters).outputs == run(TARGETS["llama"], requests).outputs


TREE = TokenTree(parents=(-1, 0, 0, 1, 1, 2, 3, 5), ranks=(0, 0, 1, 0, 1, 0, 0, 0))
PROMPTS = ((5, 1, 9, 9, 2, 0, 7), (3, 8))
NODES = np.array([[2, 4, 11, 7, 3, 20, 1, 6], [9, 9, 0, 9, 5, 2, 2, 17]])


def tree_logits(model: CausalModel, depths: Ints, visible: Bools) -> Tensor:
    """Return logits (2, nodes, vocabulary) of both trees, each behind its own prompt, in one forward."""
    cache = model.new_cache(2, 32)
    for slot, prompt in enumerate(PROMPTS):
        count = len(prompt)
        model.forward(
            lay_out(
                np.array([prompt]),
                np.arange(count),
                [0],
                np.tri(count, dtype=np.bool_)[None],
                dtype=model.dtype,
                device=model.device,
                first_slot=slot,
            ),
            cache,
        )
    contexts = [len(prompt) for prompt in PROMPTS]
    return model.forward(lay_out(NODES, depths, contexts, visible, dtype=model.dtype, device=model.device), cache)


def path_logits(model: PreTrainedModel) -> Tensor:
    """Return the same logits by running every root-to-node path as a text of its own."""
    rows = []
    for prompt, tokens in zip(PROMPTS, NODES.tolist(), strict=True):
        paths: list[list[int]] = []
        for token, parent in zip(tokens, TREE.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prompt), token])
        rows.append(torch.stack([plain_logits(model, path)[-1] for path in paths]))
    return torch.stack(rows)


TREE_DEPTHS = np.array(TREE.depths)
TREE_SIGHT = ancestors(np.array([TREE.parents] * 2))


@pytest.mark.parametrize("family", TARGETS)
def test_every_tree_node_has_the_logits_of_its_path(family: str) -> None:
    ours = tree_logits(TARGETS[family], TREE_DEPTHS, TREE_SIGHT)
    torch.testing.assert_close(ours, path_logits(ORIGINALS[family]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("depths", "visible"),
    [
        (np.arange(TREE.size), TREE_SIGHT),  # position = index of the node, not its depth
        (TREE_DEPTHS, np.tri(TREE.size, dtype=np.bool_)[None]),  # every node sees all before it
    ],
)
@pytest.mark.parametrize("family", TARGETS)
def test_wrong_positions_or_a_wrong_mask_show_in_the_logits(family: str, depths: Ints, visible: Bools) -> None:
    wrong = tree_logits(TARGETS[family], depths, visible)
    assert float((wrong - path_logits(ORIGINALS[family])).abs().max()) > 1e-2


@pytest.mark.filterwarnings("error::FutureWarning")
def test_transformers_own_forward_is_called_by_the_names_it_has_now() -> None:
    assert all(run(TARGETS["neox"], random_requests(2, tokens=3)).outputs)
