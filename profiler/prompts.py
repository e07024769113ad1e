"""The prompts of a profile, read from files (`prompt_files.py`) in the forms that `prompt_forms.py` lists."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from ..errors import RequestError
from .prompt import Message as Message  # what this module is asked for besides
from .prompt import Prompt as Prompt
from .prompt_files import Tell, entries_of
from .prompt_forms import prompt_of


def _silent(words: str) -> None:
    """Say nothing."""


def read_prompts(
    path: Path, *, sample: int | None = None, seed: int = 0, most: int | None = None, tell: Tell = _silent
) -> tuple[Prompt, ...]:
    """Return the prompts of a file or a folder, in its order.

    `sample` draws so many, as many of each workload, and holds no more in memory; without it `most` limits them.
    RequestError names a file, or the prompt in it, that is malformed. `tell` gets what is left out.
    """
    found = _prompts(path, tell)
    prompts = _all(path, found, most) if sample is None else _drawn(found, sample, seed)
    if not prompts:
        raise RequestError(f"{path} holds no prompt; write one per block or JSON line")
    if sample is not None and len(prompts) < sample:
        tell(f"{path} holds {len(prompts)} prompts, fewer than the {sample} asked for; all are taken")
    return prompts


def answers_of(prompts: Iterable[Prompt]) -> tuple[str, ...]:
    """Return the answer of every prompt; nothing where one has none."""
    answers = tuple(prompt.answer for prompt in prompts)
    return answers if all(answer.strip() for answer in answers) else ()


def by_workload(prompts: Iterable[Prompt], default: str) -> dict[str, tuple[Prompt, ...]]:
    """Return the prompts by workload (`default` where none is named), in the order in which these first come."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.workload or default, []).append(prompt)
    return {workload: tuple(own) for workload, own in found.items()}


def _prompts(path: Path, tell: Tell) -> Iterator[Prompt]:
    unasked = 0
    for entry in entries_of(path, tell):
        try:
            prompt = prompt_of(entry.value, entry.folder)
        except RequestError as error:
            raise RequestError(f"{entry.place}: {error}") from error
        if prompt is None:
            unasked += 1
        else:
            yield prompt
    if unasked:
        tell(f"{unasked} conversations of {path} are left out: nobody asks anything in them")


def _all(path: Path, prompts: Iterator[Prompt], most: int | None) -> tuple[Prompt, ...]:
    found = []
    for prompt in prompts:
        found.append(prompt)
        if most is not None and len(found) > most:
            raise RequestError(f"{path} holds more than {most:,} prompts; draw some of them, for example --sample 64")
    return tuple(found)


def _drawn(prompts: Iterator[Prompt], size: int, seed: int) -> tuple[Prompt, ...]:
    """Return so many prompts, as many of each workload as there are; within one any set is equally likely.

    Source: Vitter, Random Sampling with a Reservoir (1985), algorithm R.
    """
    drawn = random.Random(seed)
    held: dict[str, list[tuple[int, Prompt]]] = {}
    seen: Counter[str] = Counter()
    for place, prompt in enumerate(prompts):
        own = held.setdefault(prompt.workload, [])
        seen[prompt.workload] += 1
        if len(own) < size:
            own.append((place, prompt))
        elif (other := drawn.randrange(seen[prompt.workload])) < size:
            own[other] = (place, prompt)
    for own in held.values():
        drawn.shuffle(own)
    in_turns = [pair for turn in zip_longest(*held.values()) for pair in turn if pair is not None]
    return tuple(prompt for _, prompt in sorted(in_turns[:size], key=lambda pair: pair[0]))
