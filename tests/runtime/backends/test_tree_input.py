"""The trees of a round laid out by one compiled call, against the layout of any tokens with any sight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spectune.planner.kernels.arrays import Ints
from spectune.planner.records.draft import DraftBatch
from spectune.runtime.backends.tree_input import TreeInput
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, always
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.layout import Masks, ancestors, lay_out, widened
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.acceptance import accepted, accepted_of

from ...support.tiny_models import tiny_llama

CAPACITY = 64
CPU = torch.device("cpu")


def grown(sizes: list[int], columns: int, draws: np.random.Generator, *, chains: bool = False) -> DraftBatch:
    """Return trees of these sizes in so many columns, padded as drafters pad them."""
    shape = (len(sizes), columns)
    tokens, parents = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    depths = np.ones(shape, dtype=np.int64)
    for row, size in enumerate(sizes):
        parents[row, 0], depths[row, 0] = -1, 0
        for node in range(1, size):
            parents[row, node] = node - 1 if chains else draws.integers(0, node)
            depths[row, node] = depths[row, parents[row, node]] + 1
            tokens[row, node] = draws.integers(0, 24)
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=np.array(sizes), widths=())


def running(contexts: list[int]) -> list[Sequence]:
    prompts = [tuple(range(context + 1)) for context in contexts]  # the last token of each is the root
    return [Sequence(Request(prompt=prompt, max_new_tokens=4), row) for row, prompt in enumerate(prompts)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize(
    ("contexts", "sizes", "columns", "fed"),
    [
        ([5], [7], 7, 7),
        ([5], [7], 9, 8),  # the drafter's padding is cut, the target's own is added
        ([0], [3], 3, 4),
        ([9, 9], [4, 4], 4, 4),
        ([9, 2, 30], [1, 6, 3], 6, 6),
        ([9, 2, 30], [1, 6, 3], 8, 8),
        ([3, 12], [1, 1], 1, 2),
    ],
)
def test_what_one_call_lays_out_is_what_many_do(
    contexts: list[int], sizes: list[int], columns: int, fed: int, chains: bool, dtype: torch.dtype
) -> None:
    draft, batch = grown(sizes, columns, np.random.default_rng(3), chains=chains), running(contexts)
    masks = Masks(dtype, CPU, slots=4, capacity=CAPACITY)
    masks.mask([7] * 4, np.ones((1, 8, 8), dtype=np.bool_), CAPACITY)  # what lay there before must not show
    found = TreeInput(batch, draft, fed).laid_out(masks)
    nodes = max(sizes)
    tokens, parents, depths = (widened(part, nodes, fed) for part in (draft.tokens, draft.parents, draft.depths))
    tokens[:, 0] = contexts
    tokens = np.maximum(tokens, 0)
    expected = lay_out(tokens, depths, contexts, ancestors(parents), dtype=dtype, device=CPU)
    assert found.seen == expected.seen and found.take is None and found.first_slot == 0
    for name in ("tokens", "positions", "columns"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.bias is not None and expected.bias is not None and found.bias.dtype == dtype
    assert torch.equal(found.bias, expected.bias)


@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize(
    ("contexts", "sizes", "columns", "fed"),
    [
        ([5], [1], 1, 1),
        ([5], [7], 9, 8),
        ([9, 2, 30], [1, 6, 3], 8, 8),
        ([4, 0], [64, 2], 64, 64),
        ([4, 0], [70, 66], 70, 72),  # two words of bits, of which one has its sign set
    ],
)
def test_what_a_captured_forward_reads_is_packed_by_one_call_as_it_is_by_many(
    contexts: list[int], sizes: list[int], columns: int, fed: int, chains: bool
) -> None:
    draft, batch = grown(sizes, columns, np.random.default_rng(4), chains=chains), running(contexts)
    masks = Masks(torch.bfloat16, CPU)
    other = grown([fed] * len(sizes), fed, np.random.default_rng(5))
    TreeInput(running([60] * len(sizes)), other, fed).laid_out(masks, lambda positions: CAPACITY)  # must not show
    found = TreeInput(batch, draft, fed).laid_out(masks, lambda positions: CAPACITY)
    nodes = max(sizes)
    tokens, parents, depths = (widened(part, nodes, fed) for part in (draft.tokens, draft.parents, draft.depths))
    tokens[:, 0], parents[:, 0] = contexts, -1
    expected = lay_out(
        np.maximum(tokens, 0),
        depths,
        contexts,
        ancestors(parents),
        dtype=torch.bfloat16,
        device=CPU,
        seen_in=lambda positions: CAPACITY,
    )
    assert found.packed is not None and expected.packed is not None
    assert found.signature == expected.signature and torch.equal(found.packed, expected.packed)


def test_one_call_walks_down_all_trees_as_the_walk_does() -> None:
    longest = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        draft = grown([int(size) for size in random.integers(1, 12, 4)], 12, random)
        np.copyto(draft.tokens, random.integers(0, 3, draft.tokens.shape), where=draft.tokens >= 0)
        draws = random.integers(0, 3, (4, 14))
        found = accepted_of(draws, draft).paths
        assert found == accepted(running([3] * 4), draft, draws.tolist()).paths
        longest = max(longest, *(len(path.nodes) for path in found))
    assert longest > 3


@pytest.mark.parametrize(("contexts", "is_masked"), [([6], False), ([6, 6], False), ([6, 4], True)])
def test_roots_alone_are_masked_only_where_texts_differ_in_length(contexts: list[int], is_masked: bool) -> None:
    draft = grown([1] * len(contexts), 1, np.random.default_rng(0))
    masks = Masks(torch.float32, CPU, slots=2, capacity=CAPACITY)
    found = TreeInput(running(contexts), draft, 1).laid_out(masks)
    assert (found.bias is not None) == is_masked
    assert found.tokens.tolist() == [[context] for context in contexts]


def of_kind(numbers: Ints, kind: str) -> Any:  # Any: of no type that is promised
    """Return numbers as a drafter may hand them over: of another type, every second of a longer line, or read-only."""
    if kind == "strided":
        return np.repeat(numbers, 2, axis=1)[:, ::2]
    copy = numbers.astype(np.float64 if kind == "float" else np.int32 if kind == "int32" else np.int64)
    copy.flags.writeable = kind != "read-only"
    return copy


@pytest.mark.parametrize("kind", ["float", "int32", "strided", "read-only"])
def test_the_numbers_of_a_tree_may_lie_anyhow(kind: str) -> None:
    draft, masks = grown([5], 5, np.random.default_rng(1)), Masks(torch.float32, CPU)
    other = DraftBatch(
        tokens=of_kind(draft.tokens, kind),
        parents=of_kind(draft.parents, kind),
        depths=of_kind(draft.depths, kind),
        sizes=draft.sizes,
        widths=(),
    )
    batch = running([4])
    expected = TreeInput(batch, draft, 5).laid_out(masks)
    kept = [part.clone() for part in (expected.tokens, expected.positions, expected.bias) if part is not None]
    found = TreeInput(batch, other, 5).laid_out(masks)
    assert found.bias is not None
    assert all(torch.equal(*pair) for pair in zip((found.tokens, found.positions, found.bias), kept, strict=True))


def test_a_decoder_loads_its_kernels_before_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[torch.dtype] = []
    monkeypatch.setattr("spectune.runtime.backends.base.prepare", lambda dtype, device: prepared.append(dtype))
    model = LeanModel(tiny_llama(layers=1, seed=0))
    Engine(model, {}, always(PLAIN), slots=1, capacity=8)
    assert prepared == [model.dtype]


def test_paths_are_told_only_where_somebody_penalises() -> None:
    draft, batch = grown([4], 4, np.random.default_rng(2)), running([5])
    assert TreeInput(batch, draft, 4).paths is None
    penalising = Sequence(Request(prompt=(1, 2), max_new_tokens=3, repetition_penalty=1.2), 0)
    paths = TreeInput([penalising], draft, 4).paths
    assert paths is not None and paths[0, 0].tolist()[0] == 2 and paths.shape == (1, 4, 4)
