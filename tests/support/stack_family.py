"""A target with three drafters of falling skill, stacks of them, and what a stack does token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache

from transformers import PreTrainedModel

from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.runtime.batch.step_config import Schedule, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel

from .decoded_runs import CAPACITY
from .tiny_models import perturbed, plain_logits, tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
WEIGHTS: dict[str, PreTrainedModel] = {
    "medium": perturbed(LLAMA, 0.03, seed=1),
    "small": perturbed(LLAMA, 0.06, seed=2),
    "tiny": perturbed(LLAMA, 0.1, seed=3),
}
TARGET = LeanModel(LLAMA)
MODELS: dict[str, CausalModel] = {name: LeanModel(weights) for name, weights in WEIGHTS.items()}
STACKS = {
    "2 models": StackPolicy(drafters=("medium",), lengths=(3,)),
    "2 models over lookup": StackPolicy(drafters=("medium", "lookup"), lengths=(4, 3), max_ngram=2),
    "3 models": StackPolicy(drafters=("medium", "small"), lengths=(4, 2)),
    "3 models over lookup": StackPolicy(drafters=("medium", "small", "lookup"), lengths=(5, 3, 2), max_ngram=2),
    "4 models": StackPolicy(drafters=("medium", "small", "tiny"), lengths=(6, 3, 2)),
}


def with_siblings(name: str, siblings: int) -> StackPolicy:
    """Return one of the stacks with so many siblings beside its chain."""
    return replace(STACKS[name], siblings=siblings)


def stacked(
    policy: StackPolicy, slots: int, models: Mapping[str, CausalModel] = MODELS
) -> tuple[Schedule, dict[str, Drafter]]:
    """Return the schedule that always drafts with a stack, and its drafter by name."""
    drafter: Drafter = stack_drafter(policy, models, slots=slots, capacity=CAPACITY)
    return always(StepConfig(policy=policy, drafter=stack_name(policy))), {stack_name(policy): drafter}


@cache
def next_token(name: str, text: tuple[int, ...]) -> int:
    """Return what a drafter says behind a text, by transformers and without a cache."""
    return int(plain_logits(WEIGHTS[name], text)[-1].argmax())


def greedy_chain(name: str, text: tuple[int, ...], length: int) -> list[int]:
    """Return a drafter's own most likely tokens behind a text."""
    for _ in range(length):
        text += (next_token(name, text),)
    return list(text[len(text) - length :])


def copied(text: tuple[int, ...], length: int, max_ngram: int) -> list[int]:
    """Return what followed the last place of the text's longest recurring suffix of up to `max_ngram` tokens."""
    for ngram in range(min(max_ngram, len(text) - 1), 0, -1):
        suffix = text[-ngram:]
        places = [end for end in range(ngram, len(text)) if text[end - ngram : end] == suffix]
        if places:
            return list(text[places[-1] : places[-1] + length])
    return []


Note = Callable[[int], None]


def played(policy: StackPolicy, texts: Many[tuple[int, ...]], note: Note, level: int = 0) -> list[list[int]]:
    """Return what a level hands up behind every text of a batch, token by token; `note` is told who runs a forward."""
    length = policy.lengths[level]
    name = policy.drafters[level]
    if name == "lookup":
        return [copied(text, length, policy.max_ngram) for text in texts]
    if level + 1 == len(policy.drafters):
        for _ in range(length):
            note(level)
        return [greedy_chain(name, text, length) for text in texts]
    made: list[list[int]] = [[] for _ in texts]
    while open_rows := [row for row in range(len(texts)) if len(made[row]) < length]:
        behind = [(*texts[row], *made[row]) for row in open_rows]
        drafts = played(policy, behind, note, level + 1)
        note(level)
        for row, text, draft in zip(open_rows, behind, drafts, strict=True):
            said = [next_token(name, (*text, *draft[:place])) for place in range(len(draft) + 1)]
            right = 0
            while right < len(draft) and draft[right] == said[right]:
                right += 1
            made[row] += said[: right + 1]
    return made
