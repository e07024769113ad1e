"""T2: over random seeds the emitted tokens follow the target's own law; biased verifiers do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from transformers import LlamaForCausalLM

from spectune.planner.kernels.arrays import Ints
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.runtime.backends import base as backend_module
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.prefill import Prefill, read_on
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling import acceptance as acceptance_module
from spectune.runtime.sampling import sampler as draws_module
from spectune.runtime.sampling.acceptance import Acceptance, accept
from spectune.runtime.sampling.noise import gumbel

from ..support.decoded_runs import BUSHY
from ..support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless

VOCABULARY, TOKENS, TEMPERATURE = 8, 3, 1.3
PROMPT = (3, 1, 4)
SLOTS = 1000
LLAMA = tiny_llama(layers=1, seed=5, vocabulary=VOCABULARY, hidden=16)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.3))
TREES: dict[str, TreePolicy] = {
    "chain": ChainPolicy(length=2),
    "tree": StaticPolicy(tree=BUSHY),
}
RAGGED: dict[str, TreePolicy] = {  # trees of one batch differ
    "confident chain": ConfidentChainPolicy(length=2, confidence=0.3),
    "talon": TalonPolicy(nodes=6, gate=0.5, top_k=2, children=4, max_depth=2),
    "opt-tree": OptTreePolicy(nodes=4, least_gain=0.6, max_depth=2, children=3),
}

Text = tuple[int, ...]


class Crowd(Engine):
    """A decoder whose whole batch starts behind one shared prompt, so that many seeds share its forwards."""

    def start(self, drafter: ModelDrafter, seeds: Many[int]) -> list[Sequence]:
        prompt = Sequence(Request(prompt=PROMPT[:-1], max_new_tokens=1), 0)
        read_on(self._target, self._cache, Prefill(prompt, slot=0), len(PROMPT))
        self._cache.spread(len(seeds), len(PROMPT) - 1)
        drafter.read_prefixes(PROMPT[:-1], [len(PROMPT) - 1] * len(seeds))
        requests = [Request(prompt=PROMPT, max_new_tokens=TOKENS, temperature=TEMPERATURE, seed=seed) for seed in seeds]
        for index, request in enumerate(requests):
            self._slots._batch.join(Sequence(request, index))
        return list(self.running)


class Blind(ModelDrafter):
    """A drafter that does not know the noise: what it proposes tells nothing about the target's draw."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        greedy = [Sequence(replace(s.request, temperature=0.0), s.index) for s in sequences]
        for twin, sequence in zip(greedy, sequences, strict=True):
            twin.tokens = sequence.tokens
        return super().draft(greedy, policy)


def sampled(
    policy: TreePolicy, first_seed: int, samples: int, kind: type[ModelDrafter] = ModelDrafter
) -> Counter[Text]:
    """Count the texts that `samples` consecutive seeds emit."""
    counts: Counter[Text] = Counter()
    for start in range(first_seed, first_seed + samples, SLOTS):
        drafter = kind(DRAFTER, slots=SLOTS, capacity=24)
        schedule = always(StepConfig(policy=policy, drafter="it"))
        crowd = Crowd(TARGET, {"it": drafter}, schedule, slots=SLOTS, capacity=24)
        sequences = crowd.start(drafter, range(start, start + SLOTS))
        while crowd.running:
            crowd.step()
        counts.update(tuple(s.emitted) for s in sequences)
    return counts


def exact_law(model: LlamaForCausalLM = LLAMA) -> dict[Text, float]:
    """Return the probability of every text: the product of the target's conditionals, by transformers."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(TOKENS):
        texts = list(law)
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + text for text in texts])).logits[:, -1]
        conditionals = torch.softmax(logits / TEMPERATURE, dim=-1).tolist()
        rows = zip(texts, conditionals, strict=True)
        law = {(*text, token): law[text] * share for text, row in rows for token, share in enumerate(row)}
    return law


def p_value(counts: Counter[Text], law: dict[Text, float]) -> float:
    """Return Pearson's chi-square p; texts expected fewer than five times share one bin."""
    samples = counts.total()
    common = [text for text, share in law.items() if share * samples >= 5]
    seen = np.array([*(counts[text] for text in common), 0.0])
    expected = np.array([*(law[text] * samples for text in common), 0.0])
    seen[-1], expected[-1] = samples - seen.sum(), samples - expected.sum()
    if expected[-1] < 5:
        seen, expected = np.append(seen[:-2], seen[-2:].sum()), np.append(expected[:-2], expected[-2:].sum())
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1))


@pytest.mark.parametrize("kind", RAGGED)
def test_trees_that_follow_the_drafters_confidence_leave_the_law_alone(kind: str) -> None:
    assert p_value(sampled(RAGGED[kind], 0, 12_000), exact_law()) > 1e-3


@pytest.mark.parametrize(
    ("first_seed", "samples"),
    [(0, 20_000), *(pytest.param(seed, 40_000, marks=pytest.mark.slow) for seed in (0, 10**6, -(2**62)))],
)
@pytest.mark.parametrize("kind", TREES)
def test_sampled_texts_follow_the_targets_law(kind: str, first_seed: int, samples: int) -> None:
    assert p_value(sampled(TREES[kind], first_seed, samples), exact_law()) > 1e-3


def test_the_law_is_spread_over_many_texts() -> None:
    assert sum(share * 20_000 >= 5 for share in exact_law().values()) > 100


def noise_of_the_seed_only(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Give every position of a text the same noise."""
    return ORIGINAL_GUMBEL(seeds, torch.zeros_like(positions), vocabulary)


ORIGINAL_GUMBEL, ORIGINAL_DRAW = gumbel, draws_module.draw


class SecondChance:
    """A verifier that redraws with fresh noise when the first draw was not drafted."""

    def draw(
        self, logits: Tensor, sequences: Many[Sequence], depths: Ints, paths: Ints | None
    ) -> list[list[tuple[int, int]]]:
        first, second = (ORIGINAL_DRAW(logits, _reseeded(sequences, again), depths, paths) for again in (0, 1))
        return [list(zip(*rows, strict=True)) for rows in zip(first, second, strict=True)]

    def accept(self, tokens: Many[int], parents: Many[int], size: int, draws: Many[tuple[int, int]]) -> Acceptance:
        drafted = {(parents[child], tokens[child]) for child in range(1, size)}
        chosen = [b if (node, a) not in drafted and (node, b) in drafted else a for node, (a, b) in enumerate(draws)]
        return accept(tokens, parents, size, chosen)


class FreshNoise:
    """A verifier that draws with other noise in every round: no bias, the noise is still independent."""

    def __init__(self) -> None:
        self.round = 0

    def draw(self, logits: Tensor, sequences: Many[Sequence], depths: Ints, paths: Ints | None) -> list[list[int]]:
        self.round += 1
        return ORIGINAL_DRAW(logits, _reseeded(sequences, self.round), depths, paths)

    def accept(self, tokens: Many[int], parents: Many[int], size: int, draws: Many[int]) -> Acceptance:
        return accept(tokens, parents, size, draws)


class DroppedCorrection(FreshNoise):
    """The same, but it throws away the target's token where the drafts end, and draws it anew next round."""

    def accept(self, tokens: Many[int], parents: Many[int], size: int, draws: Many[int]) -> Acceptance:
        path = accept(tokens, parents, size, draws)
        is_rejection = path.nodes[-1] in parents[1:size]
        if is_rejection and len(path.drawn) > 1:
            return Acceptance(nodes=path.nodes, drawn=path.drawn[:-1])
        return path


def _reseeded(sequences: Many[Sequence], times: int) -> list[Sequence]:
    """Return the sequences as other seeds would see them."""
    others = [Sequence(replace(s.request, seed=s.request.seed + times * 10**9), s.index) for s in sequences]
    for other, sequence in zip(others, sequences, strict=True):
        other.tokens = sequence.tokens
    return others


@pytest.mark.parametrize("kind", TREES)
def test_one_noise_for_all_positions_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_module, "gumbel", noise_of_the_seed_only)
    assert p_value(sampled(TREES[kind], 0, 5000), exact_law()) < 1e-6


@pytest.mark.parametrize("verifier", [SecondChance, DroppedCorrection])
@pytest.mark.parametrize("kind", TREES)
def test_a_verifier_that_favours_drafts_is_caught(
    kind: str, verifier: Callable[[], SecondChance | FreshNoise], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(verifier(), monkeypatch)
    assert p_value(sampled(TREES[kind], 0, 5000, Blind), exact_law()) < 1e-6


@pytest.mark.parametrize("verifier", [SecondChance, DroppedCorrection])
def test_in_trees_that_differ_a_verifier_that_favours_drafts_is_caught(
    verifier: Callable[[], SecondChance | FreshNoise], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(verifier(), monkeypatch)
    assert p_value(sampled(RAGGED["talon"], 0, 5000, Blind), exact_law()) < 1e-6


@pytest.mark.parametrize("kind", TREES)
def test_other_noise_in_every_round_is_no_bias(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FreshNoise(), monkeypatch)
    assert p_value(sampled(TREES[kind], 0, 5000), exact_law()) > 1e-3


def install(verifier: SecondChance | FreshNoise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify by it: what the decoder draws trees from is handed on unscored, since a verifier scores itself."""

    def drawn_from(told: tuple[Tensor, Ints | None], sequences: Many[Sequence], depths: Ints) -> object:
        return verifier.draw(told[0], sequences, depths, told[1])

    monkeypatch.setattr(backend_module, "scored", lambda logits, _, paths: (logits, paths))
    monkeypatch.setattr(backend_module, "drawn_from", drawn_from)
    monkeypatch.setattr(acceptance_module, "accept", verifier.accept)
