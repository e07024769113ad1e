"""The tokens that end a target's text: its tokenizer's end, and those of its generation settings or of a caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...errors import ModelError, RequestError
from ...profiler.gguf_file import is_gguf
from ..models.loading import first_line, load_config


def end_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end texts, for `transformers.generate` and the tokenizer; ModelError for bad settings."""
    try:
        return own_ends(tokenizer) | _ids(_configured(folder))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"cannot read which tokens end texts of {folder}: {first_line(error)}") from error


def own_ends(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return only the tokenizer's end of text; empty where it has none."""
    return _ids(tokenizer.eos_token_id)


def special_ends(
    tokenizer: PreTrainedTokenizerBase, stop: Iterable[str], ends: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Return the special tokens among stop strings, which a text without special tokens does not show.

    A stop string with one of `ends`, at which texts end anyway, needs no token of its own. RequestError where a string
    has other text beside a special token at which no text ends.
    """
    special = _special(tokenizer, len(tokenizer))
    for string in stop:
        held = [token for token in special if token in string]
        if held and string not in special and ends.isdisjoint(special[token] for token in held):
            raise RequestError(
                f"the stop string {string!r} holds the special token {held[0]!r}, without which texts are shown; "
                f"stop at {held[0]!r} alone"
            )
    return frozenset(special[string] for string in stop if string in special)


@lru_cache(maxsize=4)
def _special(tokenizer: PreTrainedTokenizerBase, size: int) -> Mapping[str, int]:
    """Return a tokenizer's special tokens; cached, since it takes long between two rounds."""
    added = tokenizer.added_tokens_decoder.items()
    return {token.content: number for number, token in added if token.special and token.content}


def _configured(folder: Path) -> Any:  # Any: None, a token or a list of them
    """Return the ends of the generation settings; without such a file, of the model's configuration."""
    if is_gguf(folder):
        return load_config(str(folder)).eos_token_id
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(str(folder)).eos_token_id
    if not (folder / "config.json").is_file():
        return None
    return getattr(load_config(str(folder)).get_text_config(), "eos_token_id", None)


def _ids(found: Any) -> frozenset[int]:  # Any: None, a token or a list of them
    if found is None:
        return frozenset()
    return frozenset(int(token) for token in (found if isinstance(found, list | tuple) else [found]))
