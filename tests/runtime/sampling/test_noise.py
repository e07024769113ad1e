"""Drafters that draw with the target's own noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.host_pass import DraftPass
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.noise import gumbel
from spectune.tuning.recording.text_pass import TextPass

from ...support.decoded_runs import CAPACITY, run
from ...support.tiny_models import perturbed, tiny_llama

LLAMA = tiny_llama(layers=2, seed=3)
TARGET, DRAFTER = LeanModel(LLAMA), LeanModel(perturbed(LLAMA, 0.2))
REQUESTS = [Request(prompt=(n + 1, 7, n), max_new_tokens=17, temperature=1.1, seed=n) for n in range(4)]


def drafting(policy: TreePolicy, model: LeanModel) -> tuple[StepConfig, dict[str, Drafter]]:
    return StepConfig(policy=policy, drafter="it"), {"it": ModelDrafter(model, slots=3, capacity=CAPACITY)}


@pytest.mark.lossless
def test_the_target_as_its_own_drafter_guesses_every_sampled_token() -> None:
    setup, drafters = drafting(ChainPolicy(length=3), TARGET)
    found = run(TARGET, REQUESTS, always(setup), drafters)
    assert found.outputs == run(TARGET, REQUESTS).outputs
    assert found.target_forwards == len(found.rounds)
    kept = [count for done in found.rounds for count in done.kept]
    assert kept.count(4) == 4 * 4 and sum(kept) == 4 * 16  # the first token of each comes with the prompt


@pytest.mark.lossless
def test_a_stack_on_top_of_which_stands_the_target_guesses_every_sampled_token() -> None:
    policy = StackPolicy(drafters=("same", "near"), lengths=(3, 2))
    drafter = stack_drafter(policy, {"same": TARGET, "near": DRAFTER}, slots=3, capacity=CAPACITY)
    found = run(TARGET, REQUESTS, always(StepConfig(policy=policy, drafter="same+near")), {"same+near": drafter})
    assert found.outputs == run(TARGET, REQUESTS).outputs
    for done in found.rounds:
        assert all(
            count == done.verify_tokens or sequence in [s.index for s in done.finished] or count >= 4
            for count, sequence in zip(done.kept, done.sequences, strict=True)
        )


def test_shared_noise_matches_at_least_as_often_as_its_theorem_says() -> None:
    p, q = (torch.from_numpy(np.random.default_rng(n).dirichlet(np.ones(6))).log() for n in (1, 2))
    noise = gumbel(torch.arange(20_000)[:, None], torch.tensor([[5]]), 6)[:, 0].double()
    same = float(((p + noise).argmax(-1) == (q + noise).argmax(-1)).double().mean())
    distance = float((p.exp() - q.exp()).abs().sum()) / 2
    assert same >= (1 - distance) / (1 + distance) - 0.01
    assert same > float(p.exp()[q.argmax()]) + 0.05  # what the drafter's most likely token would reach


def test_what_is_recorded_of_a_sampled_text_is_what_the_runtime_drafts_there() -> None:
    request, emitted = REQUESTS[1], list(run(TARGET, REQUESTS[1:2]).outputs[0])
    recorded = TextPass(DRAFTER, longest=40, children=4).read([*request.prompt, *emitted[:-1]], request)
    for at in range(len(emitted) - 1):
        sequence = Sequence(request, 0)
        sequence.tokens += emitted[: at + 1]
        drafter = ModelDrafter(DRAFTER, slots=1, capacity=CAPACITY)
        drafter.admit(0, sequence)
        drafted = DraftPass(drafter, [sequence]).root(4)
        assert drafted.tokens[0, 0].tolist() == recorded.tokens[0, at].tolist()
        assert drafted.log_probs[0, 0] == pytest.approx(recorded.log_probs[0, at], abs=1e-5)  # of float32 scores


def test_greedy_rows_hold_no_noise() -> None:
    sampled, greedy = Sequence(REQUESTS[0], 0), Sequence(Request(prompt=(1, 7, 0), max_new_tokens=9), 1)
    drafter = ModelDrafter(DRAFTER, slots=2, capacity=CAPACITY)
    for slot, sequence in enumerate((sampled, greedy)):
        drafter.admit(slot, sequence)
    both = drafter.draft([sampled, greedy], ChainPolicy(length=3))
    alone = ModelDrafter(DRAFTER, slots=1, capacity=CAPACITY)
    alone.admit(0, greedy)
    assert both.tokens[1].tolist() == alone.draft([greedy], ChainPolicy(length=3)).tokens[0].tolist()
