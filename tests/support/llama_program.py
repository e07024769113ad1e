"""The llama-server that tests run: a fake one of our own, or the real one where it is installed."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spectune.engines.llama_cpp import model_format
from spectune.engines.llama_cpp.build import VARIABLE

FAKE = Path(__file__).with_name("fake_llama_server.py")


def fake_program(folder: Path) -> Path:
    """Write a program that is the fake server and return it."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E -S "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return program


def say_ascii(folder: Path) -> Path:
    """Let a model of `save_model` say ASCII alone, and return its folder.

    Random tokens are no UTF-8, and llama-server of b9993 answers an error instead of such a text.
    """
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    head = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
    for token in range(head.shape[0]):
        text = str(tokenizer.decode([token]))
        if not (text.isascii() and text.isprintable()) or token in tokenizer.all_special_ids:
            head.data[token] = 0.0
    model.get_output_embeddings().weight = head
    if model.config.tie_word_embeddings:
        model.get_input_embeddings().weight = head
    model.save_pretrained(folder)
    return folder


def use_fake(patched: pytest.MonkeyPatch, folder: Path, *, build: int = 11549, mode: str = "") -> None:
    """Let llama.cpp be the fake server of a build, which fails in the way of a mode."""
    patched.setenv(VARIABLE, str(fake_program(folder)))
    patched.setenv("FAKE_LLAMA_BUILD", str(build))
    patched.setenv("FAKE_LLAMA", mode)


def convert_here(patched: pytest.MonkeyPatch) -> None:
    """Let folders be converted in this process, which has PyTorch: one of their own takes seconds to import it."""
    patched.setattr(model_format, "ProcessPoolExecutor", lambda count, _: ThreadPoolExecutor(count))
