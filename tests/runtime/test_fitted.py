"""Drafters whose tables of tokens are padded otherwise than their target's: Qwen2.5's are, from size to size."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import pytest
from transformers import LlamaForCausalLM

from spectune.errors import ModelError
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.vocabulary import FittedModel, require_one_vocabulary

from ..support.decoded_runs import drafter_for, drafting, random_requests, run
from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_llama

TOKENS = 24  # of the target's table
TARGET = tiny_llama(layers=2, seed=1, vocabulary=TOKENS)
MODELS = ("chain", "confident-chain", "static", "eagle2", "talon", "opt-tree", "cast")


def like_target(rows: int) -> LlamaForCausalLM:
    """Return the target with a table of so many rows: cut, or padded with tokens that it would love to say."""
    made = tiny_llama(layers=2, seed=2, vocabulary=rows)
    own, shared = made.state_dict(), min(rows, TOKENS)
    for name, weight in TARGET.state_dict().items():
        if own[name].shape == weight.shape:
            own[name].copy_(weight)
        else:
            own[name].fill_(3.0)
            own[name][:shared] = weight[:shared]
    return made


def decoded(kind: str, rows: int, temperature: float) -> tuple[list[tuple[int, ...]], int]:
    """Return the texts by a drafter with so many rows, and the rounds they took."""
    drafter = drafter_for(kind, FittedModel(LeanModel(like_target(rows)), TOKENS), 3)
    done = run(LeanModel(TARGET), random_requests(4, tokens=20, temperature=temperature), *drafting(kind, drafter))
    return done.outputs, len(done.rounds)


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_a_table_of_another_size_changes_neither_text_nor_rounds(name: str, temperature: float) -> None:
    expected = decoded(name, TOKENS, temperature)
    assert decoded(name, TOKENS + 7, temperature) == expected


@pytest.mark.thinned
@pytest.mark.lossless
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_that_a_smaller_table_lacks_are_read_and_never_drafted(name: str, temperature: float) -> None:
    texts, rounds = decoded(name, TOKENS - 6, temperature)
    expected, fewest = decoded(name, TOKENS, temperature)
    assert texts == expected and rounds >= fewest
    assert max(max(text) for text in texts) >= TOKENS - 6  # the target did say some


def padded(folder: Path, target: Path, rows: int) -> Path:
    """Return a folder with the target's tokenizer and a model whose table has so many rows."""
    tiny_llama(layers=1, seed=3, vocabulary=rows).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        copyfile(target / file, folder / file)
    return folder


@pytest.mark.parametrize("more", [-3, 0, 16])
def test_a_drafter_with_the_targets_tokenizer_may_pad_its_table_as_it_likes(more: int, tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    rows = load_model(str(target), dtype="float32").vocabulary
    wider = padded(tmp_path / "wider", target, rows + 16)
    drafter = padded(tmp_path / "drafter", target, rows + 16 + more)
    require_one_vocabulary(str(wider), str(drafter))
    loaded = load_drafter(str(drafter), load_model(str(wider), dtype="float32"), dtype="float32")
    assert loaded.vocabulary == rows + 16 and isinstance(loaded, FittedModel) == (more != 0)


def test_a_table_without_a_row_for_every_token_is_refused(tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    with pytest.raises(ModelError, match="must know all of its target's tokens"):
        require_one_vocabulary(str(target), str(padded(tmp_path / "drafter", target, 40)))


def test_a_head_must_have_its_targets_table(tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    other = padded(tmp_path / "other", target, load_model(str(target), dtype="float32").vocabulary + 8)
    with pytest.raises(ModelError, match="has a vocabulary of"):
        require_one_vocabulary(str(target), str(other), may_be_padded=False)
