"""A tiny target and drafter as folders, with a byte-level tokenizer trained on the spot."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .tiny_models import tiny_llama

END = "<end>"


def byte_tokenizer(text: str, *, most: int = 300) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer whose merges come from one text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=most, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def save_model(folder: Path, *, layers: int, seed: int, text: str = "def main(): return 1") -> Path:
    """Write a random model and its tokenizer into a folder and return it."""
    tokenizer = byte_tokenizer(text)
    model = tiny_llama(layers=layers, seed=seed, vocabulary=len(tokenizer)).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
