"""The command of a scripted OpenAI server, and prompts to send to it."""

from __future__ import annotations

import sys
from pathlib import Path

from spectune.profiler.prompt import Prompt, conversation
from spectune.profiler.prompts import Message

FAKE = Path(__file__).with_name("fake_openai_server.py")
LLAMA = (sys.executable, "-E", "-S", str(FAKE), "--llama", "1", "-m", "target")
SGLANG = (sys.executable, "-E", "-S", str(FAKE), "--dialect", "sglang", "--model-path", "target")
TENSORRT_LLM = (sys.executable, "-E", "-S", str(FAKE), "--dialect", "tensorrt-llm", "-m", "target")
VLLM = (sys.executable, "-E", "-S", str(FAKE), "-m", "target")


def texts(count: int) -> list[Prompt]:
    """Return prompts that differ."""
    return [
        Prompt(text=f"Write a function that returns the number {number}, explain its steps in short, and test it.")
        for number in range(count)
    ]


def chats(count: int) -> list[Prompt]:
    """Return conversations that differ."""
    return [conversation([Message(role="user", content=prompt.text)]) for prompt in texts(count)]
