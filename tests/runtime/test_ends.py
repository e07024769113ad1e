"""Tokens that end a text: the tokenizer's own, and those that the model's settings name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spectune
from spectune.errors import ModelError, RequestError
from spectune.runtime.engine.prompts import request_of
from spectune.runtime.engine.settings import GenerationSettings
from spectune.runtime.engine.stop_tokens import end_tokens, special_ends
from spectune.runtime.models.loading import load_tokenizer

from ..support.tiny_family import END, byte_tokenizer, save_model


def saved(folder: Path, settings: str | None, ends: int | list[int] | None = None) -> Path:
    """Return a model's folder with such generation settings; without any where None."""
    save_model(folder, layers=1, seed=0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if settings is not None:
        (folder / "generation_config.json").write_text(settings)
    return folder


@pytest.mark.parametrize(
    ("settings", "ends", "expected"),
    [
        (None, None, set()),
        (None, 5, {5}),
        (None, [5, 7], {5, 7}),
        ('{"eos_token_id": 6}', 5, {6}),
        ('{"eos_token_id": [6, 9]}', 5, {6, 9}),
        ('{"max_length": 20}', 5, set()),
    ],
)
def test_a_text_ends_where_transformers_ends_it_and_at_the_tokenizer_s_own_end(
    tmp_path: Path, settings: str | None, ends: int | list[int] | None, expected: set[int]
) -> None:
    folder = saved(tmp_path / "target", settings, ends)
    tokenizer = load_tokenizer(str(folder))
    assert end_tokens(folder, tokenizer) == expected | {tokenizer.eos_token_id}


@pytest.mark.parametrize("settings", ["{", '{"eos_token_id": "</s>"}', '{"eos_token_id": {"a": 1}}'])
def test_generation_settings_that_cannot_be_read_are_named(tmp_path: Path, settings: str) -> None:
    folder = saved(tmp_path / "target", settings)
    with pytest.raises(ModelError, match="cannot read which tokens end texts of"):
        end_tokens(folder, load_tokenizer(str(folder)))


def test_a_loaded_target_stops_at_an_end_that_its_settings_alone_name(tmp_path: Path) -> None:
    folder, cache = saved(tmp_path / "target", None), tmp_path / "none.db"
    whole = spectune.load(folder, store=f"sqlite:///{cache}").generate("def main", max_new_tokens=24)
    last = whole.tokens[9]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [last]}))
    done = spectune.load(folder, store=f"sqlite:///{cache}").generate("def main", max_new_tokens=24)
    assert done.finish_reason == "stop" and done.tokens == whole.tokens[: whole.tokens.index(last) + 1]


def test_stop_strings_that_are_special_tokens_are_found_by_their_number() -> None:
    tokenizer = byte_tokenizer("to be")
    tokenizer.add_tokens(["<said>"])  # a word that is shown
    assert special_ends(tokenizer, ["to", END, "<said>", "<"]) == {tokenizer.eos_token_id}


def test_a_stop_string_of_which_a_text_shows_a_part_alone_is_refused() -> None:
    with pytest.raises(RequestError, match=f"'{END}\\\\n' holds the special token '{END}'.*stop at '{END}' alone"):
        special_ends(byte_tokenizer("to be"), ["to", f"{END}\n"])


def test_a_stop_string_behind_an_end_of_texts_is_harmless() -> None:
    tokenizer = byte_tokenizer("to be")
    asked = GenerationSettings(max_new_tokens=4, stop=(f"{END}\n", "User:"))
    assert request_of(tokenizer, "to", asked).stop == {tokenizer.eos_token_id}


def test_special_tokens_are_those_of_the_tokenizer_as_it_is_now() -> None:
    tokenizer = byte_tokenizer("to be")
    assert special_ends(tokenizer, ["<turn>"]) == frozenset()
    tokenizer.add_tokens(["<turn>"], special_tokens=True)
    assert special_ends(tokenizer, ["<turn>"]) == {tokenizer.convert_tokens_to_ids("<turn>")}
