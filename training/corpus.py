"""The text of files in a target's tokens, as prompts for the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..errors import TrainingError
from ..profiler.prompt_files import is_data
from ..profiler.prompts import read_prompts
from ..runtime.engine.prompts import beginning, encode_prompt, last_tokens

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text to cut into pieces, and conversations, which can only be continued at their end."""

    begins: tuple[int, ...] = ()  # tokens before every text that the target reads
    tokens: Ids  # all texts, concatenated, each with the tokenizer's end
    conversations: tuple[tuple[int, ...], ...] = ()  # in the target's own template, up to where its turn begins

    @property
    def whole(self) -> Ids:
        """All tokens, concatenated."""
        said = [np.array(each, dtype=np.int64) for each in self.conversations]
        return np.concatenate([self.tokens, *said])

    def ended(self, most: int, tokenizer: PreTrainedTokenizerBase) -> Corpus:
        """Return it with only the last tokens of every conversation, after its begin-of-text."""
        return replace(self, conversations=tuple(last_tokens(each, most, tokenizer) for each in self.conversations))


def read_corpus(path: Path, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Return a file's corpus: entries of a data file are texts or conversations; any other file is one text.

    TrainingError where the file cannot be read as UTF-8 text; RequestError where an entry of a data file is malformed,
    or a conversation is refused by the target's template.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompts = read_prompts(path) if is_data(path) else ()
    has_template = bool(tokenizer.chat_template)
    talks = [prompt for prompt in prompts if prompt.messages and has_template]
    texts = [prompt.text for prompt in prompts if not (prompt.messages and has_template)] if prompts else [_text(path)]
    each: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return Corpus(
        begins=beginning(tokenizer),
        tokens=np.array([token for ids in each for token in (*ids, *end)], dtype=np.int64),
        conversations=tuple(encode_prompt(prompt, tokenizer) for prompt in talks),
    )


def parted(files: Sequence[Corpus], share: float) -> tuple[Corpus, Corpus]:
    """Split files into all but a share, and that share: each text's end, and at least one of several conversations."""
    ends = [len(file.tokens) - math.ceil(share * len(file.tokens)) for file in files]
    talks = [talk for file in files for talk in file.conversations]
    every = min(round(1 / share), len(talks)) if len(talks) > 1 else 2
    kept = [number % every == every - 1 for number in range(len(talks))]

    def of(texts: Sequence[Ids], *, is_kept: bool) -> Corpus:
        own = tuple(talk for talk, keeps in zip(talks, kept, strict=True) if keeps == is_kept)
        return Corpus(begins=files[0].begins, tokens=np.concatenate(texts), conversations=own)

    both = list(zip(files, ends, strict=True))
    return (
        of([file.tokens[:end] for file, end in both], is_kept=False),
        of([file.tokens[end:] for file, end in both], is_kept=True),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"cannot read {path} as UTF-8 text ({error}); leave it out or give a text file") from error
