"""What kernels copy out of texts, found by the planner's search on the host: their reference, and their stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.texts import TextState
from spectune.runtime.models.kernels import text_trees
from spectune.runtime.models.kernels.text_runs import HeldTexts
from spectune.runtime.models.kernels.text_trees import Growing


def policy_of(growing: Growing) -> SuffixTreePolicy:
    """Return the policy that grows so."""
    return SuffixTreePolicy(
        nodes=growing.nodes,
        factor=growing.factor,
        offset=growing.offset,
        least_chance=growing.least_chance,
        min_match=growing.shortest,
        least_score=growing.least_score,
    )


def grown_by_the_host(
    growing: Growing, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
) -> Tensor:
    """Do what `text_trees.grow_behind` does, of tensors on the CPU."""
    batch = len(texts.lengths)
    starts, counts, fresh = (
        state[:batch].tolist(),
        state[batch : 2 * batch].tolist(),
        state[2 * batch :].view(batch, -1),
    )
    numbers = state.new_empty((batch, 3 * nodes + 1))
    for row, end in enumerate(start + 1 for start in starts):
        held = int(texts.lengths[row])
        new = fresh[row, counts[row] - (end - held) : counts[row]].tolist()
        text = [*texts.tokens[row, :held].tolist(), *new]
        if is_live:
            texts.tokens[row, :end], texts.lengths[row] = torch.tensor(text, dtype=torch.int32), end
        tree = TextState().draft(text, policy_of(growing))
        size = tree.shape[1]
        if size == 1 and drafted is not None:
            tree, size = drafted[row, :-1].view(3, -1).numpy(), int(drafted[row, -1])
        numbers[row] = laid_out(tree.tolist(), size, nodes)
    return numbers


def laid_out(tree: Sequence[Sequence[int]], size: int, nodes: int) -> Tensor:
    """Return a tree's numbers as kernels write them, (3 * nodes + 1,): tokens, parents, depths and the size."""
    padded = [[*part, *[padding] * (nodes - len(part))] for part, padding in zip(tree, (-1, 0, 1), strict=True)]
    return torch.tensor([*padded[0], *padded[1], *padded[2], size])


def let_the_cpu_grow_trees(patch: pytest.MonkeyPatch) -> None:
    """Let the CPU, where it stands for a GPU, have trees as if it ran the kernels."""
    is_supported, grow_behind = text_trees.is_supported, text_trees.grow_behind

    def on_either(device: torch.device) -> bool:
        return device.type == "cpu" or is_supported(device)

    def grown(
        growing: Growing, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
    ) -> Tensor:
        grow: Callable[..., Tensor] = grown_by_the_host if state.device.type == "cpu" else grow_behind
        return grow(growing, texts, state, is_live, drafted, nodes)

    patch.setattr(text_trees, "is_supported", on_either)
    patch.setattr(text_trees, "grow_behind", grown)
