"""A SpecFormer looks at the text before it and at all of its places, at nothing else, however it is read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spectune.errors import ModelError
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.specformer import SpecFormer

from ...support.tiny_blocks import DEPTH, Weights, block_shape_of, block_weights, exact_said, said_along, tiny_block
from ...support.tiny_models import tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
FORMS = {is_published: block_weights("specformer", LLAMA, published=is_published) for is_published in (False, True)}
WEIGHTS = FORMS[False]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
HIDDEN = LLAMA.config.hidden_size

both_forms = pytest.mark.parametrize("published", FORMS)


def said(text: list[int], weights: Weights = WEIGHTS, *, published: bool = False) -> Tensor:
    """Return (tokens, places, vocabulary) where the whole text is read at once."""
    return said_along(tiny_block("specformer", LLAMA, weights, published=published), text)


def changed(name: str, part: slice, by: float = 1.0) -> Weights:
    """Return the drafter's tensors with one part of one of them raised."""
    other = WEIGHTS[name].clone()
    other[part] += by
    return {**WEIGHTS, name: other}


def rows_of_place(place: int) -> slice:
    return slice(place * HIDDEN, (place + 1) * HIDDEN)


@both_forms
def test_behind_every_token_it_says_what_the_formulas_say(published: bool) -> None:
    """Both masks against scores that are worked out one by one."""
    found = said(TEXT, FORMS[published], published=published)
    for count in range(2, len(TEXT) + 1):
        exact = exact_said("specformer", LLAMA, FORMS[published], TEXT[:count], published=published)
        torch.testing.assert_close(found[count - 1], exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", ["all", "only itself", "the first token too"])
def test_another_mask_over_the_text_says_otherwise(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before."""
    right = said(TEXT)

    def bias(self: SpecFormer, columns: Tensor, seen: int) -> Tensor:
        own, places = columns.unsqueeze(2), torch.arange(seen)
        is_open = {"all": places >= 0, "only itself": places == own, "the first token too": places <= own}[mask]
        return torch.zeros(*columns.shape, seen, dtype=self.dtype).masked_fill_(~is_open, -torch.inf)

    monkeypatch.setattr(SpecFormer, "_bias", bias)
    assert (said(TEXT) - right)[2:-1].abs().amax(dim=(1, 2)).min() > 1e-3


@both_forms
@pytest.mark.parametrize("pieces", [(1,) * 8, (3, 1, 4), (2, 6)])
def test_a_text_read_in_pieces_says_what_it_says_at_once(pieces: tuple[int, ...], published: bool) -> None:
    model = tiny_block("specformer", LLAMA, FORMS[published], published=published)
    torch.testing.assert_close(said_along(model, TEXT, pieces), said_along(model, TEXT), rtol=1e-9, atol=1e-9)


def test_later_text_changes_nothing_and_earlier_text_does() -> None:
    right = said(TEXT)
    torch.testing.assert_close(said([*TEXT[:5], 7, 7, 7])[:5], right[:5], rtol=1e-9, atol=1e-9)
    assert (said([TEXT[0], 8, *TEXT[2:]])[2:] - right[2:]).abs().amax(dim=(1, 2)).min() > 1e-3


def test_the_published_form_says_the_same_whatever_the_newest_token_is() -> None:
    """It runs before that is known; the other form reads it."""
    text, other = TEXT, [*TEXT[:-1], 11]
    blind, other_blind = (said(each, FORMS[True], published=True)[-1] for each in (text, other))
    torch.testing.assert_close(blind, other_blind, rtol=1e-9, atol=1e-9)
    assert (said(text)[-1] - said(other)[-1]).abs().max() > 1e-3


@pytest.mark.parametrize("place", range(DEPTH))
def test_every_place_depends_on_every_other(place: int) -> None:
    """By the attention between them alone: without it only the changed place says something else."""
    part = rows_of_place(place)
    moved = (said(TEXT, changed("places.bias", part)) - said(TEXT))[1:].abs().amax(dim=2)
    assert moved.min() > 1e-6
    deaf = {"draft.self_attn.o_proj.weight": torch.zeros_like(WEIGHTS["draft.self_attn.o_proj.weight"])}
    moved = (said(TEXT, changed("places.bias", part) | deaf) - said(TEXT, WEIGHTS | deaf))[1:].abs().amax(dim=(0, 2))
    assert [bool(by > 1e-6) for by in moved] == [other == place for other in range(DEPTH)]


def test_places_are_told_apart_by_their_matrices_and_biases_alone() -> None:
    """Attention between them knows no order: places that change theirs change what they say."""
    order = torch.tensor([2, 0, 3, 1])
    mixed = {
        name: WEIGHTS[name].view(DEPTH, HIDDEN, -1)[order].reshape(WEIGHTS[name].shape)
        for name in ("places.weight", "places.bias")
    }
    torch.testing.assert_close(said(TEXT, WEIGHTS | mixed), said(TEXT)[:, order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["join.weight", "places.bias", "draft.mlp.down_proj.weight"])
def test_a_drafter_that_does_not_fit_its_target_is_refused(name: str) -> None:
    shape, without = block_shape_of("specformer", LLAMA), {k: w for k, w in WEIGHTS.items() if k != name}
    with pytest.raises(ModelError, match=f"SpecFormer lacks the tensor {name}"):
        SpecFormer(without, shape, LeanModel(LLAMA))
    with pytest.raises(ModelError, match="give the drafter of this target"):
        SpecFormer(WEIGHTS, shape, LeanModel(tiny_llama(layers=2, seed=0, hidden=64)))
    with pytest.raises(ModelError, match="do not exist in a model of 1"):
        SpecFormer(WEIGHTS, shape, LeanModel(tiny_llama(layers=1, seed=0)))
