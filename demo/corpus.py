"""The demo's text: Python's own standard library, which every machine has.

A hash of a file's path holds it out, so the split is the same for every Python version, and no prompt comes from a
training file. `python -m spectune.demo.corpus texts.jsonl` writes the training texts for `spectune train`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ..profiler.prompts import read_prompts

HELD_OUT_SHARE = 0.05

# Generated tables and deliberately broken sources: long, repetitive, nobody writes them.
LEFT_OUT = ("encodings", "pydoc_data", "site-packages", "lib2to3/tests/data", "__pycache__")
LONGEST_FILE_BYTES = 400_000


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
    models = Path(__file__).parent / "models"
    return [one.text for name in ("calibration", "evaluation") for one in read_prompts(models / f"{name}.jsonl")]


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


if __name__ == "__main__":
    write_texts(Path(sys.argv[1]), texts_without(shipped_prompts()))


VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"


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
