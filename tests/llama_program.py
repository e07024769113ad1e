"""The llama-server that tests run: a fake one of our own, or the real one where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spectune.runtime.engines.llama_build import VARIABLE

FAKE = Path(__file__).with_name("fake_llama_server.py")


def fake_program(folder: Path) -> Path:
    """Write a program that is the fake server and return it."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E -S "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return program


def use_fake(patched: pytest.MonkeyPatch, folder: Path, *, build: int = 11549, mode: str = "") -> None:
    """Let llama.cpp be the fake server of a build, which fails in the way of a mode."""
    patched.setenv(VARIABLE, str(fake_program(folder)))
    patched.setenv("FAKE_LLAMA_BUILD", str(build))
    patched.setenv("FAKE_LLAMA", mode)
