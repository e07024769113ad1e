"""Whole texts decoded from captured work with our kernels in it, as on a GPU: Triton's interpreter runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models import choices
from spectune.runtime.models.drafter import BlindModel
from spectune.runtime.models.forward import TREE_ATTENTION, CausalModel
from spectune.runtime.models.kernels import row_products
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.regime import in_regime
from spectune.runtime.models.tapped import tapped_for
from spectune.runtime.models.vocabulary import FittedModel

from ....pretended.cuda import pretended_gpu
from ....pretended.device import PLACE
from ....support.fused_forward import WIDE_TILES
from ....support.interpreted import HAS_GPU, launch
from ....support.tiny_heads import head_weights, tiny_head
from ....support.tiny_models import perturbed, tiny_llama

pytestmark = [
    pytest.mark.lossless,
    pytest.mark.skipif(not has_triton() or HAS_GPU, reason="needs Triton and no GPU, where these kernels really run"),
]
WAYS: dict[str, TreePolicy] = {
    "plain": PlainPolicy(),
    "chain": ChainPolicy(length=3),
    "eagle2": Eagle2Policy(verify_tokens=5, depth=2, top_k=2),
    "hybrid": HybridPolicy(
        text=SuffixPolicy(length=3, min_match=4), model=Eagle2Policy(verify_tokens=5, depth=2, top_k=2)
    ),
    "head": Eagle2Policy(verify_tokens=5, depth=2, top_k=2),
    "trees of the text": HybridPolicy(
        text=SuffixTreePolicy(nodes=4, factor=2, offset=1, least_score=0.4), model=ChainPolicy(length=2)
    ),
}
FEW_ROWS = ("chain", 0.0)  # rounds are captured whole, and their forwards have few rows: these products are measured
TOKENS = 4
LOOPING = [(1, 2, 1, 2, 1), (4, 5, 6, 4, 5), (9, 9)]
LLAMA = tiny_llama(layers=2, seed=0, hidden=64)
SKETCH = perturbed(LLAMA, 0.06)
ROWS = {"narrower": 19, "wider": 32}  # of a drafter's table of tokens; its target's has 24


def texts(device: torch.device, way: str, temperature: float, made_to_fit: str = "") -> Tensor:
    """Return (3, TOKENS + 1): what is emitted behind three prompts in two slots, and in how many rounds."""
    regime = "cuda-graph" if device.type == "cuda" else "eager"
    models = LeanModel(moved(LLAMA, device)), drafting(device, made_to_fit)
    target, drafter = (in_regime(model, regime) for model in models)
    if way == "head":
        drafter = in_regime(head_on(device), regime)
        target = tapped_for(target, [drafter])
    assert regime == "eager" or target.attention == drafter.attention == TREE_ATTENTION
    setup = StepConfig(policy=WAYS[way], drafter=None if way == "plain" else "it")
    drafters = {"it": HybridDrafter(model_drafter(drafter, slots=2, capacity=32))}
    decoder = Engine(target, drafters, always(setup), slots=2, capacity=32)
    prompts = LOOPING if way == "trees of the text" else [(1, 2, 3), (4, 5, 6, 7, 8), (9,)]
    scheduler = Scheduler(decoder)
    states = [
        scheduler.add(Request(prompt=prompt, max_new_tokens=TOKENS, temperature=temperature, seed=7))
        for prompt in prompts
    ]
    rounds = 0
    while scheduler.schedule():
        done = decoder.step()
        rounds += 1
        assert not done.faults, done.faults
    return torch.tensor([[*sequence.emitted, rounds] for sequence in sequences_of(states)])


def head_on(device: torch.device) -> CausalModel:
    weights = {name: tensor.to(device) for name, tensor in head_weights("eagle3", LLAMA).items()}
    return tiny_head("eagle3", moved(LLAMA, device), weights, reads=(0, 1, 2))


def drafting(device: torch.device, made_to_fit: str) -> CausalModel:
    """Return a drafter that fits its target, or is made to: it is told no images, or has a table of other rows."""
    sketch = deepcopy(SKETCH)
    if made_to_fit in ROWS:
        sketch.resize_token_embeddings(ROWS[made_to_fit], mean_resizing=False)
    model = LeanModel(moved(sketch, device))
    if made_to_fit in ROWS:
        return FittedModel(model, LLAMA.config.vocab_size)
    return BlindModel(model, placeholder=0) if made_to_fit else model


def moved(model: torch.nn.Module, device: torch.device) -> Any:
    return deepcopy(model).float().to(device)


def texts_by_kernels(way: str, temperature: float) -> Tensor:
    """Return the same by kernels that are chosen and captured here; where rows are few and none is, an error."""
    with kernels():
        found = texts(PLACE, way, temperature)
        chosen = set(choices.choices_of(PLACE).kept.values())
        assert chosen - {choices.USUAL} or (way, temperature) != FEW_ROWS, "every product was done the usual way"
        return found


def texts_by_one_made_to_fit(made_to_fit: str) -> Tensor:
    """Return the same by a drafter that is made to fit its target."""
    with kernels():
        return texts(PLACE, "eagle2", 0.0, made_to_fit)


@contextmanager
def kernels() -> Iterator[None]:
    """Have a pretended GPU for which a product is measured, and of all products the last way that works is taken.

    How long an interpreter takes says nothing of which is the fastest.
    """
    measured = choices.GraphTimer.times_ms

    def last_first(timer: choices.GraphTimer, works: Sequence[choices.Work], between: choices.Work) -> list[float]:
        if not choices.choices_of(PLACE).kept:
            assert len(measured(timer, works, between)) == len(works)
        return [float(len(works) - place) for place in range(len(works))]

    with (
        pretended_gpu(processors=2, has_kernels=True),
        mock.patch.object(choices, "REPEATS", 1),
        mock.patch.object(row_products, "TILES", WIDE_TILES),
        mock.patch.object(choices.GraphTimer, "times_ms", last_first),
    ):
        yield


REST = (
    ("plain", 0.0),
    ("plain", 0.8),
    ("chain", 0.8),
    ("eagle2", 0.0),
    ("hybrid", 0.0),
    ("hybrid", 0.8),
    ("head", 0.0),
    ("head", 0.8),
    ("trees of the text", 0.0),
)


@pytest.mark.parametrize(
    ("way", "temperature"),
    [
        ("eagle2", 0.8),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (FEW_ROWS, *REST)),
    ],
)
def test_texts_by_captured_kernels_are_those_of_the_host(way: str, temperature: float) -> None:
    (found,) = launch(texts_by_kernels, way=way, temperature=temperature)
    expected = texts(torch.device("cpu"), way, temperature)
    assert found is not None and found.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("made_to_fit", ["blind", *ROWS])
def test_a_drafter_that_is_made_to_fit_its_target_reads_trees_in_captured_work_too(made_to_fit: str) -> None:
    (found,) = launch(texts_by_one_made_to_fit, made_to_fit=made_to_fit)
    expected = texts(torch.device("cpu"), "eagle2", 0.0, made_to_fit)
    assert found is not None and found.tolist() == expected.tolist()
