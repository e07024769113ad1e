"""The demo's text: Python's own standard library, which every machine has.

A hash of a file's path holds it out, so the split is the same for every Python version, and no prompt comes from a
training file. `python benchmarks/demo_corpus.py texts.jsonl` writes the training texts for `spectune train`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.profiler.prompt import Prompt

HELD_OUT_SHARE = 0.05

# Generated tables and deliberately broken sources: long, repetitive, nobody writes them.
LEFT_OUT = ("encodings", "pydoc_data", "site-packages", "lib2to3/tests/data", "__pycache__")
LONGEST_FILE_BYTES = 400_000
VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
CALIBRATION, EVALUATION = 24, 64  # prompts of each kind
PROMPT_TOKENS = (40, 64)  # shortest and longest


def training_texts() -> list[str]:
    """Return the sources the demo models are trained on, in path order."""
    return [text for path, text in _sources() if not is_held_out(path)]


def held_out_texts() -> list[str]:
    """Return the sources no demo model has seen, in path order."""
    return [text for path, text in _sources() if is_held_out(path)]


def texts_without(prompts: Sequence[str]) -> list[str]:
    """Return the training sources without any of the prompts, in path order."""
    return [text for text in training_texts() if text.strip() and not any(prompt in text for prompt in prompts)]


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """Write texts to a .jsonl file, one a line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def shipped_prompts() -> list[str]:
    """Return all pieces that plans of the demo family are chosen on or judged by."""
    return [one.text for one in (*calibration_prompts(), *evaluation_prompts())]


def is_held_out(relative_path: str) -> bool:
    """Return whether a source, named relative to the library, is for evaluation."""
    digest = hashlib.sha256(relative_path.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def _sources() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if any(part in name for part in LEFT_OUT) or path.stat().st_size > LONGEST_FILE_BYTES:
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # test data in another encoding


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of `VOCABULARY` entries trained on texts; every byte has an entry, so any text fits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


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


if __name__ == "__main__":
    write_texts(Path(sys.argv[1]), texts_without(shipped_prompts()))
