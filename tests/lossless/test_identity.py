"""T1, T3, T9: whatever is drafted, the output is the target's own, token for token."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTNeoXForCausalLM, LlamaForCausalLM

from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import (
    PADDED,
    POLICIES,
    RankedDrafter,
    RecordingDrafter,
    Run,
    drafter_for,
    drafting,
    random_requests,
    run,
)
from ..support.pairwise import crossed
from ..support.tiny_models import perturbed, tiny_llama, tiny_neox

pytestmark = pytest.mark.lossless

LLAMA, NEOX = tiny_llama(layers=2, seed=0), tiny_neox(layers=2, seed=0)
TARGETS: dict[str, CausalModel] = {"llama": LeanModel(LLAMA), "neox": GenericModel(NEOX)}
DRAFTERS: dict[str, CausalModel] = {
    "llama": LeanModel(perturbed(LLAMA, 0.06)),
    "neox": GenericModel(perturbed(NEOX, 0.1)),
}
DRAFTER = DRAFTERS["llama"]
VOCABULARY = 24
TREES = [kind for kind in POLICIES if kind != "lookup"]
ALWAYS = ("cast",)  # decodes 200 prompts in every run, as plain decoding and copying do; `pytest -m slow` takes all


def generated(model: LlamaForCausalLM | GPTNeoXForCausalLM, prompts: np.ndarray, tokens: int) -> list[tuple[int, ...]]:
    """Continue prompts of one length by transformers' own greedy `generate`."""
    ids = torch.from_numpy(prompts)
    generate: Any = model.generate  # Any: transformers types the self of its mixin as a protocol, in some versions
    out = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [tuple(row) for row in out[:, ids.shape[1] :].tolist()]


@lru_cache
def many_prompts(family: str, tokens: int, rows: int) -> tuple[list[Request], list[tuple[int, ...]]]:
    """Return requests of ten prompt lengths, `rows` of each, and what transformers continues them with."""
    rng, requests, expected = np.random.default_rng(7), [], []
    for length in range(1, 11):
        prompts = rng.integers(0, VOCABULARY, (rows, length))
        requests += [Request(prompt=tuple(row), max_new_tokens=tokens) for row in prompts.tolist()]
        expected += generated(LLAMA if family == "llama" else NEOX, prompts, tokens)
    return requests, expected


@lru_cache
def many_prompts_plainly() -> Run:
    return run(TARGETS["llama"], many_prompts("llama", 64, 20)[0], slots=8)


@lru_cache
def plain(family: str, temperature: float, count: int = 9, tokens: int = 12) -> list[tuple[int, ...]]:
    """Decode one sequence at a time, one token at a time."""
    return run(TARGETS[family], random_requests(count, tokens=tokens, temperature=temperature), slots=1).outputs


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ALWAYS else pytest.mark.slow) for kind in POLICIES]
)
def test_200_prompts_decode_to_what_transformers_generates(kind: str) -> None:
    requests, expected = many_prompts("llama", 64, 20)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 8))
    assert run(TARGETS["llama"], requests, schedule, drafters, slots=8).outputs == expected


def test_plain_decoding_is_what_transformers_generates() -> None:
    assert many_prompts_plainly().outputs == many_prompts("llama", 64, 20)[1]


@pytest.mark.parametrize("kind", POLICIES)
def test_a_generic_family_decodes_to_what_transformers_generates(kind: str) -> None:
    requests, expected = many_prompts("neox", 24, 3)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTERS["neox"], 8))
    assert run(TARGETS["neox"], requests, schedule, drafters, slots=8).outputs == expected


@pytest.mark.parametrize("family", TARGETS)
def test_the_drafters_here_are_sometimes_right_and_sometimes_wrong(family: str) -> None:
    schedule, drafters = drafting("chain", drafter_for("chain", DRAFTERS[family], 3))
    done = run(TARGETS[family], random_requests(9, tokens=12), schedule, drafters)
    assert {kept for one in done.rounds for kept in one.kept} == {1, 2, 3, 4}


@pytest.mark.parametrize("kind", ["confident-chain", "talon", "lookup"])
def test_trees_of_one_batch_differ_in_size(kind: str) -> None:
    drafter = RecordingDrafter(drafter_for(kind, DRAFTER, 3))
    schedule, drafters = drafting(kind, drafter)
    run(TARGETS["llama"], random_requests(9, tokens=12), schedule, drafters)
    assert sum(len({len(paths) for _, _, paths in drafts}) > 1 for drafts in drafter.rounds) > 5


def test_random_targets_do_not_repeat_one_token() -> None:
    _, expected = many_prompts("llama", 64, 20)
    assert np.mean([len(set(output)) for output in expected]) > 4  # the identities above compare real texts


@crossed(kind=POLICIES, slots=(1, 3, 8), temperature=(0.0, 0.8), family=TARGETS)
def test_output_does_not_depend_on_policy_and_batch(kind: str, slots: int, temperature: float, family: str) -> None:
    requests = random_requests(9, tokens=12, temperature=temperature)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTERS[family], slots))
    assert run(TARGETS[family], requests, schedule, drafters, slots=slots).outputs == plain(family, temperature)


@pytest.mark.parametrize("kind", POLICIES)
def test_padding_the_verify_changes_no_output(kind: str) -> None:
    requests = random_requests(9, tokens=12, temperature=0.8)
    schedule, drafters = drafting(kind, drafter_for(kind, DRAFTER, 3), run_tokens=PADDED)
    assert run(TARGETS["llama"], requests, schedule, drafters).outputs == plain("llama", 0.8)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_greedy_and_sampled_requests_share_a_batch(temperature: float) -> None:
    mixed = [r if i % 2 else other for i, (r, other) in enumerate(zip(*both_temperatures(), strict=True))]
    schedule, drafters = drafting("eagle2", drafter_for("eagle2", DRAFTER, 3))
    outputs = run(TARGETS["llama"], mixed, schedule, drafters).outputs
    own = [i for i, request in enumerate(mixed) if request.temperature == temperature]
    assert [outputs[i] for i in own] == [plain("llama", temperature)[i] for i in own]


def both_temperatures() -> list[list[Request]]:
    return [random_requests(9, tokens=12, temperature=temperature) for temperature in (0.0, 0.8)]


RNG = np.random.default_rng(3)


def at_random(sequence: Sequence, depth: int) -> list[int]:
    ranking: list[int] = RNG.permutation(VOCABULARY).tolist()
    return ranking


def always_the_same(sequence: Sequence, depth: int) -> list[int]:
    return list(range(VOCABULARY))


def never_right(temperature: float) -> RankedDrafter:
    """Return a drafter that knows the truth and ranks it last."""
    return RankedDrafter(lambda s, depth: _truth_at(plain("llama", temperature)[s.index], s, depth, VOCABULARY - 1))


def always_right(temperature: float, rank: int = 0) -> RankedDrafter:
    """Return a drafter that knows the truth and gives it that rank."""
    return RankedDrafter(lambda s, depth: _truth_at(plain("llama", temperature)[s.index], s, depth, rank))


def _truth_at(truth: tuple[int, ...], sequence: Sequence, depth: int, rank: int) -> list[int]:
    place = len(sequence.emitted) + depth - 1
    token = truth[place] if place < len(truth) else 0
    others = [other for other in range(VOCABULARY) if other != token]
    return [*others[:rank], token, *others[rank:]]


@crossed(
    kind=[kind for kind in POLICIES if kind != "lookup"],
    garbage=("random", "constant", "wrong"),
    temperature=(0.0, 0.8),
)
def test_garbage_drafts_change_no_output(kind: str, garbage: str, temperature: float) -> None:
    drafters = {"random": RankedDrafter(at_random), "constant": RankedDrafter(always_the_same)}
    schedule, named = drafting(kind, drafters.get(garbage) or never_right(temperature))
    done = run(TARGETS["llama"], random_requests(9, tokens=12, temperature=temperature), schedule, named)
    assert done.outputs == plain("llama", temperature)


@pytest.mark.parametrize("kind", TREES)
def test_drafts_that_are_never_right_still_yield_one_token_per_forward(kind: str) -> None:
    schedule, drafters = drafting(kind, never_right(0.8))
    done = run(TARGETS["llama"], random_requests(9, tokens=12, temperature=0.8), schedule, drafters)
    assert {kept for one in done.rounds for kept in one.kept} == {1}


@pytest.mark.parametrize("kind", POLICIES)
def test_the_same_run_twice_is_the_same_in_every_round(kind: str) -> None:
    def once() -> tuple[list[tuple[int, ...]], list[list[int]], int, int]:
        drafter: Drafter = drafter_for(kind, DRAFTER, 3)
        schedule, drafters = drafting(kind, drafter)
        done = run(TARGETS["llama"], random_requests(9, tokens=12, temperature=0.8), schedule, drafters)
        return done.outputs, [one.kept for one in done.rounds], done.target_forwards, drafter.forwards

    assert once() == once()


def test_another_seed_samples_another_text() -> None:
    texts = [
        run(TARGETS["llama"], [Request(prompt=(1, 2), max_new_tokens=20, temperature=0.8, seed=seed)]).outputs[0]
        for seed in range(8)
    ]
    assert len(set(texts)) == 8


def test_a_greedy_text_does_not_depend_on_the_seed() -> None:
    texts = [
        run(TARGETS["llama"], [Request(prompt=(1, 2), max_new_tokens=20, seed=seed)]).outputs[0] for seed in range(3)
    ]
    assert len(set(texts)) == 1
