"""Decodes byte-fallback tokens one character at a time.

`tokenizers` decodes a run of byte tokens all or nothing: one invalid byte spoils the bytes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import cast

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def decoded(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """Return the text without special tokens; each byte that belongs to no character becomes one U+FFFD.

    Source: SentencePiece, `SentencePieceProcessor::Decode` reads byte pieces like this.
    """
    text = tokenizer.decode(
        _readable(tokens, _byte_tokens(tokenizer)),
        skip_special_tokens=True,
        clean_up_tokenization_spaces=False,  # it changes text that was shown already
    )
    return str(text)


@lru_cache(maxsize=8)
def _byte_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, int]:
    """Return the byte of each byte token; empty where the tokenizer has no byte fallback."""
    if not hasattr(tokenizer, "convert_tokens_to_ids"):
        return {}
    ids = cast("list[int | None]", tokenizer.convert_tokens_to_ids(PIECES))
    found = {token: byte for byte, token in enumerate(ids) if token is not None}
    is_complete = len(found) == len(PIECES) and tokenizer.convert_ids_to_tokens(list(found)) == PIECES
    return found if is_complete and tokenizer.decode(list(found)[ord("A")]) == "A" else {}


def _readable(tokens: Sequence[int], bytes_of: dict[int, int]) -> list[int]:
    if bytes_of.keys().isdisjoint(tokens):
        return list(tokens)
    tokens_of, found = list(bytes_of), list[int]()  # byte 0 is the first
    for is_bytes, run in groupby(tokens, bytes_of.__contains__):
        if is_bytes:
            found += [tokens_of[byte] for byte in _characters(bytes(bytes_of[token] for token in run)).encode()]
        else:
            found += run
    return found


def _characters(run: bytes) -> str:
    found = ""
    while run:
        try:
            return found + run.decode()
        except UnicodeDecodeError as error:
            found += run[: error.start].decode() + REPLACEMENT * (error.end - error.start)
            run = run[error.end :]
    return found
