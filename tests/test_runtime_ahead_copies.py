"""Rounds that copy out of the text run ahead of the host: the device finds what the host would, and the text is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.growth.room import most_drafted
from spectune.planner.policies import (
    ChainPolicy,
    Eagle2Policy,
    HybridPolicy,
    LookupPolicy,
    StaticPolicy,
    SuffixPolicy,
    TextPolicy,
)
from spectune.planner.growth.tree import TokenTree
from spectune.planner.text.state import TextState
from spectune.runtime import requests as text_module
from spectune.runtime.ahead.state import BatchState
from spectune.runtime.ahead.texts import TextsAhead, copied_as_tensors, copying_of
from spectune.runtime.decoder import Decoder
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.growth.draft import batch_of
from spectune.runtime.kernels.texts import agree_with_end
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.kernels.text_copies import HeldTexts, bits_of_parents, copy_behind
from spectune.runtime.growth.layout import tree_bits
from spectune.runtime.ahead.acceptance import ancestors_of
from spectune.runtime.requests import Request
from spectune.runtime.setup import RoundSetup, always

from .ahead_runs import Captured, plainly
from .decoded_runs import CAPACITY, Run, random_requests, run
from .ahead_runs import SMALL, TARGET
from .interpreted import launch
from .pairwise import crossed

CPU = torch.device("cpu")
SUFFIX = SuffixPolicy(length=5, min_match=2, factor=1, offset=1, occurrence="last")
TEXTS: dict[str, SuffixPolicy | LookupPolicy] = {
    "suffix": SUFFIX,
    "first suffix": replace(SUFFIX, occurrence="first", min_match=1, length=7, factor=4),
    "lookup": LookupPolicy(length=4, max_ngram=3, min_ngram=1),
    "first lookup": LookupPolicy(length=6, max_ngram=2, min_ngram=2, occurrence="first"),
}
MODELS = {
    "chain": ChainPolicy(length=2),
    "static": StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))),
    "eagle2": Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
}
KINDS = (*TEXTS, *MODELS)


def setup_of(kind: str, **more: tuple[int, ...]) -> RoundSetup:
    """Return how rounds copy: alone, or else a model drafts."""
    policy = TEXTS[kind] if kind in TEXTS else HybridPolicy(text=SUFFIX, model=MODELS[kind])
    return RoundSetup(policy=policy, drafter="text" if kind in TEXTS else "hybrid", **more)


def captured_run(requests: Sequence[Request], kind: str, slots: int, **more: Callable[[Decoder], None]) -> tuple[Run, Captured]:
    captured = Captured(slots=slots)
    drafters = {"text": LookupDrafter(), "hybrid": HybridDrafter(captured.drafter)}
    return captured.run(requests, always(setup_of(kind)), drafters, **more), captured


def eager_run(requests: Sequence[Request], kind: str, slots: int) -> Run:
    model = ModelDrafter(SMALL, slots=slots, capacity=CAPACITY, on_device=True)
    drafters = {"text": LookupDrafter(), "hybrid": HybridDrafter(model)}
    return run(TARGET, requests, always(setup_of(kind)), drafters, slots=slots, capacity=CAPACITY)


def told(done: Run) -> list[tuple[object, ...]]:
    """Return what rounds did; their forwards are those of the largest tree that might be."""
    return [(one.sequences, one.kept, one.context) for one in done.rounds]


def looping(requests: Sequence[Request]) -> list[Request]:
    """Return requests whose prompts go round in circles, so that there is something to copy."""
    return [replace(one, prompt=tuple(one.prompt[:4]) * 3) for one in requests]


@pytest.mark.lossless
@crossed(kind=KINDS, slots=(1, 3), ends=("by their limits", "by stop tokens"), loops=(False, True))
def test_the_text_and_the_rounds_are_those_of_a_host_that_searches(kind: str, slots: int, ends: str, loops: bool) -> None:
    requests = random_requests(7, tokens=30)
    requests = looping(requests) if loops else list(requests)
    if ends == "by stop tokens":
        stops = [text[11:12] for text in plainly(requests)]
        requests = [replace(one, stop=frozenset(stop)) for one, stop in zip(requests, stops, strict=True)]
    found, captured = captured_run(requests, kind, slots)
    expected = eager_run(requests, kind, slots)
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found) == told(expected)
    assert captured.others == 0 and not any(one.faults for one in found.rounds)
    assert max(max(one.kept) for one in found.rounds) > 1
