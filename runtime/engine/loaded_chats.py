"""Conversations by a tokenizer that transformers has loaded: of targets whose folder has no tokenizer.json, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...errors import ModelError
from ...profiler.prompt import Prompt
from ..models.loading import load_tokenizer
from .folder_chats import TOKENIZER_FILE, FolderChats, chats_of_folder, until
from .prompts import chat_ids
from .stop_tokens import end_tokens


def chats_of_target(folder: Path) -> FolderChats | LoadedChats | None:
    """Return how a target reads conversations, by transformers where it must; None without tokenizer or template."""
    if (folder / TOKENIZER_FILE).is_file():
        return chats_of_folder(folder)
    try:
        tokenizer = load_tokenizer(str(folder))
    except ModelError:
        return None
    return chats_of_tokenizer(folder, tokenizer)


def chats_of_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> LoadedChats | None:
    """Return how a model folder's tokenizer reads conversations; None without a chat template."""
    return LoadedChats(tokenizer, end_tokens(folder, tokenizer)) if tokenizer.chat_template else None


class LoadedChats:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> None:
        """Take the tokens that end a turn."""
        self._tokenizer, self._ends = tokenizer, ends

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Return conversations' token ids, up to the model's own turn; RequestError where the template refuses one."""
        return [chat_ids(self._tokenizer, one.messages, one.tools) for one in prompts]

    def decode(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """Return texts up to their ends, without special tokens."""
        return [str(self._tokenizer.decode(until(text, self._ends), skip_special_tokens=True)) for text in texts]
