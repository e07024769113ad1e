"""The demo's prompts: pieces of standard-library sources that no demo model was trained on.

They lie with the models, so that every Python decodes the same text. Calibration prompts choose a plan, evaluation
prompts judge it, from other files. One calibration piece is in a training file word for word; no evaluation piece is.
`benchmarks/demo_corpus.py` cuts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from ..profiler.prompt import Message, Prompt, conversation
from ..profiler.prompts import read_prompts

QUESTION = "Complete this Python code and explain it briefly.\n\n```python\n{code}\n```"


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


def _shipped(name: str) -> tuple[Prompt, ...]:
    return read_prompts(Path(str(files("spectune.demo.models").joinpath(name))))
