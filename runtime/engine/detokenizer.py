"""The text of a growing list of tokens: piece by piece, never half a character, and up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import cast

from transformers import PreTrainedTokenizerBase

WINDOW = 64  # tokens decoded again with every new piece, about
LEADING = 4  # tokens of the prompt that are decoded too: some tokenizers drop a blank that a text begins with


class Detokenizer:
    """The text of one request as far as it may be shown.

    It does not depend on how many tokens come at once, so not on drafts. `text` is what has been shown; `end` the
    number of tokens up to and with the one that completed a stop string, else None.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, first: int, stop: Sequence[str] = ()) -> None:
        """Begin behind the first `first` tokens, which are the prompt; the text ends before any of `stop`."""
        self.text = ""
        self.end: int | None = None
        self._words = _Words(tokenizer, first)
        self._stop = stop
        self._held = ""  # behind the shown text: may become a stop string

    def read(self, tokens: Sequence[int]) -> str:
        """Return the final text that the newest of all tokens, prompt included, add."""
        return self._show(self._words.read(tokens), tokens)

    def finish(self, tokens: Sequence[int]) -> str:
        """Return the rest of the text when no more tokens follow."""
        piece = self.read(tokens) + self._show(self._words.rest(tokens), tokens)
        left, self._held = self._held, ""
        self.text += left
        return piece + left

    def _show(self, new: str, tokens: Sequence[int]) -> str:
        if self.end is not None:
            return ""
        self._held += new
        begin, end = _first_stop(self._held, self._stop)
        if end:
            self.end = self._words.tokens_before(len(self._held) - end, tokens)
            piece, self._held = self._held[:begin], ""
        else:
            ready = len(self._held) - _possible_stop(self._held, self._stop)
            piece, self._held = self._held[:ready], self._held[ready:]
        self.text += piece
        return piece


class _Words:
    """Turns tokens into whole characters; every token is decoded a bounded number of times.

    A window of the newest tokens is decoded again with every piece, because a token's text depends on those before it.
    The window begins with the end of the prompt, later behind a whole character.

    Invariant: `_text` is the text of tokens[_start:_read], and `_told` what of it was returned or is the prompt's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, first: int) -> None:
        self._tokenizer = tokenizer
        self._start, self._anchor, self._read = max(first - LEADING, 0), first, first
        self._text = self._told = ""
        self._has_begun = False

    def read(self, tokens: Sequence[int]) -> str:
        if not self._has_begun:
            self._has_begun = True
            self._text = self._decode(tokens[self._start : self._read])
            self._told = self._text  # with bytes at its end that are no character: the prompt's too
        if self._read - self._start > WINDOW:
            self._move_up(tokens)
        if not self._text.endswith(REPLACEMENT):
            self._anchor = self._read
        elif len(tokens) - self._read < (self._read - self._start) // WINDOW:
            return ""  # bytes that are no characters for so long: looked at again when there are more of them
        self._text, self._read = self._decode(tokens[self._start :]), len(tokens)
        return self._tell(_whole(self._text))

    def rest(self, tokens: Sequence[int]) -> str:
        return self._tell(self._decode(tokens[self._start :]))

    def tokens_before(self, surplus: int, tokens: Sequence[int]) -> int:
        """Return the fewest tokens that show everything returned so far but its last `surplus` characters."""
        needed = len(self._told) - surplus
        for count in range(self._anchor, len(tokens)):
            if len(_whole(self._decode(tokens[self._start : count]))) >= needed:
                return count
        return len(tokens)

    def _tell(self, text: str) -> str:
        if self._told.startswith(text):
            return ""  # nothing new; or the tokenizer unsays a character until the next one's bytes are complete
        agreed = len(self._told) if text.startswith(self._told) else _agreed(text, self._told)
        self._told = text
        return text[agreed:]

    def _move_up(self, tokens: Sequence[int]) -> None:
        """Move the window's start to the anchor, if its text stays the same."""
        if not self._start < self._anchor < self._read:
            return
        tail = self._decode(tokens[self._anchor : self._read])
        held = len(self._text) - len(self._told)
        if self._text.startswith(self._told) and self._text.endswith(tail) and held <= len(tail):
            self._start, self._text, self._told = self._anchor, tail, tail[: len(tail) - held]

    def _decode(self, tokens: Sequence[int]) -> str:
        return decoded(self._tokenizer, tokens)


def _agreed(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _whole(text: str) -> str:
    """Return a text without bytes at its end that are no character yet."""
    return text.rstrip(REPLACEMENT)


def _first_stop(text: str, stop: Sequence[str]) -> tuple[int, int]:
    """Return begin and end of the first complete stop string, of several the longest; else (0, 0)."""
    found = [(place + len(string), place) for string in stop if (place := text.find(string)) >= 0]
    end, begin = min(found, default=(0, 0))
    return begin, end


def _possible_stop(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of a text may start a stop string, none of which it contains."""
    most = [(string, range(1, min(len(string) - 1, len(text)) + 1)) for string in stop]
    return max((length for string, some in most for length in some if text.endswith(string[:length])), default=0)


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
