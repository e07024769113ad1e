"""T1, T2, T4 with every sampling setting: texts and their law are the target's own, whatever is drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.kernels.arrays import Ints
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.backends import base as backend_module
from spectune.runtime.batch.sequence import Request, Sampling, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.prefill import Prefill, read_on
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.sampler import scored

from ..support.decoded_runs import BUSHY, POLICIES, RankedDrafter, drafter_for, drafting, random_requests, run
from ..support.sampling_oracle import own_fields, processed_by_transformers
from ..support.tiny_models import perturbed, tiny_llama
from .test_law import PROMPT, SLOTS, TOKENS, VOCABULARY, Text, p_value

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.06))
SETTINGS = {
    "top-k": Sampling(temperature=1.0, top_k=4),
    "top-p": Sampling(temperature=1.2, top_p=0.7),
    "min-p": Sampling(temperature=1.2, min_p=0.2),
    "penalty": Sampling(temperature=0.8, repetition_penalty=1.6),
    "all": Sampling(temperature=1.5, top_k=9, top_p=0.95, min_p=0.02, repetition_penalty=1.3),
    "greedy penalty": Sampling(repetition_penalty=1.6),
    "greedy reward": Sampling(repetition_penalty=0.8),
}

PAIRS = [
    *product(("chain", "static", "lookup"), SETTINGS),
    *(
        (kind, name)
        for kind in POLICIES
        if kind not in ("chain", "static", "lookup")
        for name in ("all", "greedy penalty")
    ),
]


def requests_with(settings: Sampling, count: int = 9) -> list[Request]:
    return [replace(request, **own_fields(settings)) for request in random_requests(count, tokens=20)]


@lru_cache
def plain(name: str) -> list[Text]:
    """Decode one sequence at a time, one token at a time."""
    return run(TARGET, requests_with(SETTINGS[name]), slots=1).outputs


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_output_is_that_of_plain_decoding_whatever_is_drafted(kind: str, name: str) -> None:
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3))
    done = run(TARGET, requests_with(SETTINGS[name]), schedule, drafters)
    assert done.outputs == plain(name)
    assert not any(one.faults for one in done.rounds)


@pytest.mark.parametrize("kind", POLICIES)
def test_requests_of_every_setting_share_a_batch(kind: str) -> None:
    mixed = [requests_with(SETTINGS[name])[place] for place, name in enumerate(SETTINGS)]
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 4))
    outputs = run(TARGET, mixed, schedule, drafters, slots=4).outputs
    assert outputs == [plain(name)[place] for place, name in enumerate(SETTINGS)]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_changes_some_text(name: str) -> None:
    bare = Sampling(temperature=SETTINGS[name].temperature)
    assert run(TARGET, requests_with(bare), slots=1).outputs != plain(name)


def test_a_bushy_tree_of_repeated_tokens_is_penalised_path_by_path() -> None:
    """Every layer offers tokens of the layers above, so that siblings would be penalised for each other's paths."""
    schedule, drafters = drafting(
        "static", RankedDrafter(lambda s, depth: [s.tokens[-1], *(t for t in range(24) if t != s.tokens[-1])])
    )
    for name in ("penalty", "greedy penalty", "greedy reward"):
        assert run(TARGET, requests_with(SETTINGS[name]), schedule, drafters).outputs == plain(name)


@lru_cache
def generated(penalty: float) -> tuple[list[Request], list[Text]]:
    """Return requests and what transformers' own greedy `generate` continues them with."""
    rng, requests, expected = np.random.default_rng(7), [], []
    for length in range(1, 9):
        prompts = rng.integers(0, 24, (3, length))
        requests += [Request(prompt=tuple(p), max_new_tokens=40, repetition_penalty=penalty) for p in prompts.tolist()]
        ids = torch.from_numpy(prompts)
        generate: Any = LLAMA.generate  # Any: transformers types the self of its mixin as a protocol, in some versions
        out = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected += [tuple(row) for row in out[:, length:].tolist()]
    return requests, expected


@pytest.mark.parametrize("penalty", [1.3, pytest.param(2.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", POLICIES)
def test_greedy_with_a_penalty_is_what_transformers_generates(kind: str, penalty: float) -> None:
    requests, expected = generated(penalty)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 8))
    assert run(TARGET, requests, schedule, drafters, slots=8).outputs == expected


@pytest.mark.parametrize("penalty", [0.8, 1.0, 1.6])
@pytest.mark.parametrize("kind", ["chain", "static"])
def test_a_greedy_drafter_that_is_the_target_is_always_right(kind: str, penalty: float) -> None:
    """T4: only if both are penalised alike, at every node."""
    requests = requests_with(Sampling(repetition_penalty=penalty))
    schedule, drafters = drafting(kind, ModelDrafter(TARGET, slots=3, capacity=160))
    done = run(TARGET, requests, schedule, drafters)
    rounds: dict[int, list[int]] = {index: [] for index in range(len(requests))}
    for one in done.rounds:
        for index, kept in zip(one.sequences, one.kept, strict=True):
            rounds[index].append(kept)
    assert {kept for own in rounds.values() for kept in own[:-1]} == {4}  # both are three deep


LAW = Sampling(temperature=1.4, top_k=6, top_p=0.9, min_p=0.06, repetition_penalty=2.0)
TOY = tiny_llama(layers=1, seed=5, vocabulary=VOCABULARY, hidden=16)
TOY_TARGET, TOY_DRAFTER = LeanModel(TOY), LeanModel(perturbed(TOY, 0.3))
TREES: dict[str, TreePolicy] = {"chain": ChainPolicy(length=2), "tree": StaticPolicy(tree=BUSHY)}


class Crowd(Engine):
    """A decoder whose whole batch starts behind one shared prompt, so that many seeds share its forwards."""

    def start(self, drafter: ModelDrafter, seeds: Many[int]) -> list[Sequence]:
        prompt = Sequence(Request(prompt=PROMPT[:-1], max_new_tokens=1), 0)
        read_on(self._target, self._cache, Prefill(prompt, slot=0), len(PROMPT))
        self._cache.spread(len(seeds), len(PROMPT) - 1)
        drafter.read_prefixes(PROMPT[:-1], [len(PROMPT) - 1] * len(seeds))
        requests = [Request(prompt=PROMPT, max_new_tokens=TOKENS, seed=seed, **own_fields(LAW)) for seed in seeds]
        for index, request in enumerate(requests):
            self._slots._batch.join(Sequence(request, index))
        return list(self.running)


def sampled(policy: TreePolicy, first_seed: int, samples: int) -> Counter[Text]:
    """Count the texts that `samples` consecutive seeds emit."""
    counts: Counter[Text] = Counter()
    for start in range(first_seed, first_seed + samples, SLOTS):
        drafter = ModelDrafter(TOY_DRAFTER, slots=SLOTS, capacity=24)
        schedule = always(StepConfig(policy=policy, drafter="it"))
        crowd = Crowd(TOY_TARGET, {"it": drafter}, schedule, slots=SLOTS, capacity=24)
        sequences = crowd.start(drafter, range(start, start + SLOTS))
        while crowd.running:
            crowd.step()
        counts.update(tuple(s.emitted) for s in sequences)
    return counts


def exact_law(settings: Sampling) -> dict[Text, float]:
    """Return the probability of every text: the product of the conditionals of transformers' processors."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(TOKENS):
        ids = torch.tensor([PROMPT + text for text in law])
        with torch.no_grad():
            scores = processed_by_transformers(TOY, settings, ids, TOY(ids).logits[:, -1])
        rows = zip(law.items(), torch.softmax(scores, dim=-1).tolist(), strict=True)
        law = {(*text, token): p * share for (text, p), row in rows for token, share in enumerate(row) if share}
    return law


@pytest.mark.parametrize("samples", [20_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "first_seed"), [("tree", -(2**62)), ("chain", 0)])
def test_sampled_texts_follow_the_law_of_transformers_processors(kind: str, first_seed: int, samples: int) -> None:
    counts, law = sampled(TREES[kind], first_seed, samples), exact_law(LAW)
    assert set(counts) <= set(law)  # what is masked never comes
    assert p_value(counts, law) > 1e-3


def test_the_law_masks_some_texts_and_is_spread_over_many() -> None:
    law = exact_law(LAW)
    assert len(law) < VOCABULARY**TOKENS / 2 and sum(share * 20_000 >= 5 for share in law.values()) > 30


@pytest.mark.parametrize("off", [{"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"repetition_penalty": 1.0}, {"top_p": 1.0}])
def test_the_law_of_other_settings_is_told_apart(off: dict[str, float]) -> None:
    other = replace(LAW, **off)  # type: ignore[arg-type]  # mypy takes the values for any field
    assert p_value(sampled(TREES["tree"], 0, 10_000), exact_law(other)) < 1e-6


@pytest.mark.parametrize("kind", TREES)
def test_a_verifier_that_penalises_the_committed_text_alone_is_caught(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_paths(logits: Tensor, sequences: Many[Sequence], paths: Ints | None) -> Tensor:
        return scored(logits, sequences)

    monkeypatch.setattr(backend_module, "scored", without_paths)
    assert p_value(sampled(TREES[kind], 0, 10_000), exact_law(LAW)) < 1e-6
