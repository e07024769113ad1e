"""A tiny target and drafter as folders, with a byte-level tokenizer trained on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from spectune.profiler.prompts import Prompt
from spectune.tuning.request import Models, ProfileRequest

from .coarse_design import BUDGET_S
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


def beginning_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that writes a first token before every text, as Llama's, Mistral's and Gemma's do."""
    tokenizer = byte_tokenizer(text)
    tokenizer.bos_token = END
    inside = tokenizer.backend_tokenizer
    inside.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, tokenizer.bos_token_id)])
    return PreTrainedTokenizerFast(tokenizer_object=inside, bos_token=END, eos_token=END)


def save_model(folder: Path, *, layers: int, seed: int, text: str = "def main(): return 1", hidden: int = 32) -> Path:
    """Write a random model and its tokenizer into a folder and return it."""
    tokenizer = byte_tokenizer(text)
    model = tiny_llama(layers=layers, seed=seed, vocabulary=len(tokenizer), hidden=hidden).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_vocabulary(folder: Path, template: str) -> Path:
    """Write a saved model's tokenizer as GPT-2's vocabulary and merges instead, with a chat template."""
    file = folder / "tokenizer.json"
    Tokenizer.from_file(str(file)).model.save(str(folder))
    file.unlink()
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def quick_request(folder: Path) -> ProfileRequest:
    """Write a target and a drafter into a folder and return how to profile them in a few seconds."""
    save_model(folder / "target", layers=2, seed=1)
    save_model(folder / "small", layers=1, seed=2)
    return ProfileRequest(
        models=Models(target=folder / "target", drafters={"small": folder / "small"}),
        prompts=[Prompt(text=f"def f{place}(x): return {place}") for place in range(3)],
        dtype="float32",
        batches=(1,),
        max_new_tokens=8,
        max_prompt_tokens=8,
        budget_s=BUDGET_S,
        held_out=4,
        record="quick",
    )
