"""Text of growing token lists: whole characters only, up to a stop string, alike in whatever chunks tokens come."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from spectune.runtime.engine.detokenizer import REPLACEMENT as UNFINISHED
from spectune.runtime.engine.detokenizer import WINDOW, Detokenizer

from ..support.fallback_tokenizer import fallback_tokenizer
from ..support.tiny_family import byte_tokenizer

TOKENIZER = byte_tokenizer("to be or not to be, that is the question")
POEM = "to be or not 🦊 to be — that is the größte question, 你好 or not to be"
PROMPT = TOKENIZER("to be")["input_ids"]


def as_bytes(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def pieces(tokens: list[int], sizes: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], Detokenizer]:
    """Return what a transcript shows as tokens come in chunks of these sizes; all the rest is the last chunk."""
    transcript = Detokenizer(TOKENIZER, len(PROMPT), stop)
    counts = [count for count in accumulate(sizes) if count < len(tokens)]
    shown = [transcript.read([*PROMPT, *tokens[:count]]) for count in counts]
    return [*shown, transcript.finish([*PROMPT, *tokens])], transcript


def ones(tokens: list[int]) -> list[int]:
    return [1] * len(tokens)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 200])
def test_pieces_together_are_the_whole_text(size: int) -> None:
    tokens = TOKENIZER(POEM * 3)["input_ids"]
    shown, transcript = pieces(tokens, [size] * len(tokens))
    assert "".join(shown) == transcript.text == POEM * 3


def test_no_piece_ends_inside_a_character() -> None:
    tokens = TOKENIZER(POEM)["input_ids"]
    shown, _ = pieces(tokens, ones(tokens))
    assert len(tokens) > len(POEM) / 2 and not any(UNFINISHED in piece for piece in shown)
    assert sum(bool(piece) for piece in shown) > len(tokens) / 2  # most tokens show something at once


def test_a_text_that_ends_inside_a_character_shows_that_at_its_end() -> None:
    tokens = TOKENIZER("to 🦊")["input_ids"][:-1]
    shown, transcript = pieces(tokens, ones(tokens))
    assert transcript.text == TOKENIZER.decode(tokens) == "to " + UNFINISHED
    assert shown[-1] == UNFINISHED


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_come_out_as_the_tokenizer_reads_them_whatever_the_chunks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, len(TOKENIZER), 400).tolist()
    shown, transcript = pieces(tokens, rng.integers(1, 9, 400).tolist())
    assert "".join(shown) == transcript.text == TOKENIZER.decode(tokens, skip_special_tokens=True)


def test_special_tokens_show_nothing() -> None:
    end = TOKENIZER.eos_token_id
    tokens = [*TOKENIZER("to be")["input_ids"], end]
    assert pieces(tokens, ones(tokens))[0][-1] == "" and pieces(tokens, [])[1].text == "to be"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 50])
def test_a_tokenizer_that_unsays_characters_is_waited_for(size: int) -> None:
    tokens = [1, 2, *as_bytes("你好🦊"), 1, *as_bytes("é"), 2]
    transcript = Detokenizer(fallback_tokenizer(), 0)
    shown = [transcript.read(tokens[:count]) for count in range(size, len(tokens), size)]
    shown.append(transcript.finish(tokens))
    assert "".join(shown) == transcript.text == "to be你好🦊 toé be"


def test_a_space_that_a_tokenizer_leaves_out_at_the_beginning_is_kept_where_the_window_begins() -> None:
    tokenizer, tokens = fallback_tokenizer(), [1, 2] * WINDOW
    transcript = Detokenizer(tokenizer, 0)
    shown = [transcript.read(tokens[:count]) for count in range(1, len(tokens) + 1)]
    assert "".join(shown) == tokenizer.decode(tokens) == " ".join(["to be"] * WINDOW)


def test_a_space_that_a_tokenizer_leaves_out_at_the_beginning_is_kept_behind_a_prompt() -> None:
    prompt, tokens = [1, 2, 1, 2, 1, 2], [1, 2]
    transcript = Detokenizer(fallback_tokenizer(), len(prompt), stop=(" be",))
    assert transcript.read([*prompt, tokens[0]]) == " to"
    transcript.finish([*prompt, *tokens])
    assert (transcript.text, transcript.end) == (" to", len(prompt) + 2)


@pytest.mark.parametrize("prompt", [[], [1], [1, *as_bytes("é")]])
def test_a_prompt_that_is_short_or_ends_in_bytes_is_not_shown(prompt: list[int]) -> None:
    transcript = Detokenizer(fallback_tokenizer(), len(prompt))
    shown = transcript.read([*prompt, 1]) + transcript.finish([*prompt, 1, 2])
    assert shown == transcript.text == (" to be" if prompt else "to be")


def test_a_character_that_a_prompt_begins_and_a_text_ends_is_shown_whole() -> None:
    bytes_of = as_bytes("é")
    transcript = Detokenizer(fallback_tokenizer(), 2)
    assert transcript.finish([1, *bytes_of, 2]) == "é be"


@pytest.mark.parametrize("tokenizer", [TOKENIZER, fallback_tokenizer()])
def test_a_sign_for_lost_bytes_that_ends_a_prompt_is_not_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = tokenizer("to \ufffd")["input_ids"]
    tokens = [*prompt, *tokenizer("xy")["input_ids"]]
    transcript = Detokenizer(tokenizer, len(prompt))
    shown = transcript.read(tokens[:-1]) + transcript.finish(tokens)
    assert shown == transcript.text == "xy"


class CountingTokenizer:
    """Counts the tokens it is asked to decode."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, tokens: list[int], **options: bool) -> str:
        self.decoded += len(tokens)
        return str(TOKENIZER.decode(tokens, **options))


@pytest.mark.parametrize("text", ["to be ", "é", "\x00"])
def test_the_work_grows_with_the_text_and_not_with_its_square(text: str) -> None:
    tokens = [token for token in TOKENIZER(text)["input_ids"] for _ in range(4000 // len(TOKENIZER(text)["input_ids"]))]
    counting = CountingTokenizer()
    transcript = Detokenizer(counting, 0)  # type: ignore[arg-type]
    for count in range(1, len(tokens) + 1):
        transcript.read(tokens[:count])
    assert counting.decoded < 200 * len(tokens)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("not",), "to be or "),
        (("r no",), "to be o"),  # spans tokens
        (("question", "that"), "to be or not 🦊 to be — "),
        (("🦊",), "to be or not "),
        (("to be",), ""),
        (("or not 🦊 to be?", "🦊 to"), "to be or not "),  # the longer one never comes
        (("or not", "not"), "to be "),  # both are complete at once: the longer one
        (("be or not 🦊", "or"), "to be "),  # the one that is complete first
        (("NOT",), POEM),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 300])
def test_a_text_ends_before_the_stop_string_that_is_complete_first(stop: tuple[str, ...], text: str, size: int) -> None:
    tokens = TOKENIZER(POEM)["input_ids"]
    shown, transcript = pieces(tokens, [size] * len(tokens), stop)
    assert "".join(shown) == transcript.text == text


def test_nothing_is_shown_that_may_become_a_stop_string() -> None:
    tokens = TOKENIZER("to be or not to be to")["input_ids"]
    stop = ("not to be that", "to be to")
    transcript = Detokenizer(TOKENIZER, 0, stop)
    for count in range(1, len(tokens) + 1):
        transcript.read(tokens[:count])
        assert "to be or not ".startswith(transcript.text)
    assert transcript.text == "to be or not "


def test_what_was_held_back_is_shown_at_the_end() -> None:
    tokens = TOKENIZER("to be or no")["input_ids"]
    shown, transcript = pieces(tokens, ones(tokens), ("not",))
    assert "".join(shown) == transcript.text == "to be or no" and shown[-1].endswith("no")


@pytest.mark.parametrize("stop", ["not", "r n", "🦊", "that is", "好"])
def test_the_token_that_completes_a_stop_string_is_found_whatever_the_chunks(stop: str) -> None:
    tokens = TOKENIZER(POEM)["input_ids"]
    ends = {pieces(tokens, [size] * len(tokens), (stop,))[1].end for size in (1, 2, 3, 8, 300)}
    (end,) = ends
    assert end is not None
    whole = [TOKENIZER.decode(tokens[: end - len(PROMPT) - cut]) for cut in (0, 1)]
    assert [stop in text for text in whole] == [True, False]
