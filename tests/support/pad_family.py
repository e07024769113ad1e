"""A target, a drafter that mostly agrees, and problems of which the target gets half right, as folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from spectune.profiler.identity import identify
from spectune.profiler.records.model import ModelIdentity
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.loading import load_model, load_tokenizer
from spectune.runtime.models.pivots import PivotNet, PivotShape
from spectune.training.own_text import own_texts
from spectune.training.pad_labels import RolloutSettings
from spectune.training.pad_request import Exercise, PadRequest, save_pivots
from spectune.training.trainer import TrainingSettings

from .tiny_family import save_model
from .tiny_models import perturbed

HIDDEN, TOKENS = 32, 12
PROMPTS = tuple(f"def f{place}(x): return" for place in range(8))


@dataclass(frozen=True)
class PadFamily:
    """Folders of a target and of what goes with it."""

    folder: Path
    exercises: tuple[Exercise, ...]

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def drafter(self) -> Path:
        return self.folder / "small"

    def request(self, **changes: Any) -> PadRequest:
        """Return what trains a classifier in a second: one greedy rollout a side."""
        made = PadRequest(
            target=self.target,
            drafter=self.drafter,
            exercises=self.exercises,
            files=("problems.jsonl",),
            rollouts=RolloutSettings(rollouts=1, temperature=0.0),
            settings=TrainingSettings(
                steps=40, batch=8, sequence_tokens=1, warmup_steps=1, matrix_lr=2e-2, other_lr=2e-2
            ),
            max_new_tokens=TOKENS,
            width=16,
            floor=0.0,
            held_out=0.5,
        )
        return replace(made, **changes)

    def save_untrained(self, name: str = "pivots", *, reads: int = 1, seed: int = 0) -> ModelIdentity:
        """Write a classifier that has learned nothing but is decided, and return who it is."""
        torch.manual_seed(seed)
        net = PivotNet(HIDDEN, 16)
        with torch.no_grad():
            net.last.weight.mul_(12.0)
        shape = PivotShape(
            reads=reads, hidden=HIDDEN, width=16, target=identify(self.target).weights_hash, threshold=0.5, floor=0.0
        )
        (self.folder / name).mkdir(exist_ok=True)
        save_pivots(self.folder / name, net, shape)
        return identify(self.folder / name, name)


def pad_family(folder: Path, prompts: Sequence[str] = PROMPTS) -> PadFamily:
    """Return a family in a folder; every other problem's answer is what the target's own text ends with."""
    save_model(folder / "target", layers=2, seed=0)
    save_model(folder / "small", layers=2, seed=0)
    near = perturbed(LlamaForCausalLM.from_pretrained(folder / "target"), 0.1, seed=1)
    near.save_pretrained(folder / "small")
    tokenizer = load_tokenizer(str(folder / "target"))
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    target = load_model(str(folder / "target"), dtype="float32")
    exercises = []
    for place, prompt in enumerate(ids):
        text = own_texts(target, [Request(prompt=prompt, max_new_tokens=TOKENS)])[0, len(prompt) :]
        words = str(tokenizer.decode(text.tolist(), skip_special_tokens=True)).split()
        answer = words[-1] if words and place % 2 else "nothing of the kind"
        exercises.append(Exercise(prompt=prompt, answer=answer))
    return PadFamily(folder, tuple(exercises))
