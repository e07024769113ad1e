"""The demo's prompts: pieces of standard-library sources that no demo model was trained on.

They lie with the models, so that every Python decodes the same text. Calibration prompts choose a plan, evaluation
prompts judge it, from other files. One calibration piece is in a training file word for word; no evaluation piece is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..profiler.prompt import Message, Prompt, conversation
from ..profiler.prompts import read_prompts
from .corpus import held_out_texts, training_texts

CALIBRATION, EVALUATION = 24, 64  # prompts of each kind
QUESTION = "Complete this Python code and explain it briefly.\n\n```python\n{code}\n```"
PROMPT_TOKENS = (40, 64)  # shortest and longest


def calibration_prompts() -> tuple[Prompt, ...]:
    """Return the prompts a plan may be chosen on."""
    return _shipped("calibration.jsonl")


def evaluation_prompts() -> tuple[Prompt, ...]:
    """Return the prompts a plan is judged on."""
    return _shipped("evaluation.jsonl")


def as_chats(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return each piece of code as a question about it, for a model's chat template."""
    turns = (Message(role="user", content=QUESTION.format(code=prompt.text)) for prompt in prompts)
    return tuple(conversation([turn]) for turn in turns)


def further_calibration_prompts(count: int, tokenizer: PreTrainedTokenizerBase, seed: int = 8) -> tuple[Prompt, ...]:
    """Return more prompts to choose a plan on, none of which is in a training text.

    They come from this Python's own held-out sources without an evaluation prompt.
    """
    judged, training = [prompt.text for prompt in evaluation_prompts()], training_texts()
    pool = cycle([text for text in _long_enough() if not any(one in text for one in judged)])
    rng = np.random.default_rng(seed)
    pieces = (_piece(text, tokenizer, rng) for text in pool)
    unread = (piece for piece in pieces if not any(piece in text for text in training))
    return tuple(Prompt(text=piece) for piece in islice(unread, count))


def write_prompts(folder: Path, tokenizer: PreTrainedTokenizerBase, seed: int = 7) -> None:
    """Cut both sets out of the held-out sources; every other file belongs to the evaluation."""
    rng = np.random.default_rng(seed)
    texts = _long_enough()
    for name, count, pool in (
        ("calibration.jsonl", CALIBRATION, texts[0::2]),
        ("evaluation.jsonl", EVALUATION, texts[1::2]),
    ):
        lines = [json.dumps({"prompt": _piece(pool[place % len(pool)], tokenizer, rng)}) for place in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _long_enough() -> list[str]:
    return [text for text in held_out_texts() if text.count("\n") > 40]


def _piece(text: str, tokenizer: PreTrainedTokenizerBase, rng: np.random.Generator) -> str:
    lines = text.splitlines(keepends=True)
    start = int(rng.integers(0, len(lines) - 30))
    ids = tokenizer("".join(lines[start : start + 60]))["input_ids"]
    return str(tokenizer.decode(ids[: int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))]))


def _shipped(name: str) -> tuple[Prompt, ...]:
    return read_prompts(Path(str(files("spectune.demo.models").joinpath(name))))
