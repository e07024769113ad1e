"""The ruler: what counts, how much room a run needs, and what a run emits."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import LlamaForCausalLM

from spectune.errors import RequestError
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.decoding import LOOKUP, DecodingRun, Family, TimedRound, counted, decode_timed, room_for

from ...support.decoded_runs import POLICIES, random_requests
from ...support.tiny_models import perturbed, tiny_llama

TARGET = tiny_llama(layers=2, seed=1)
FAMILY = Family(target=LeanModel(TARGET), drafters={"small": LeanModel(perturbed(TARGET, 0.02))})


def timed(ms: float, *kept: int, sequences: tuple[int, ...] = ()) -> TimedRound:
    done = StepOutput(
        setup=PLAIN,
        context=9,
        sequences=list(sequences or range(len(kept))),
        kept=list(kept),
        verify_tokens=1,
        widths=(),
        uncached=0,
        finished=[],
    )
    return TimedRound(ms=ms, round=done)


@cache
def own_texts(tokens: int) -> list[tuple[int, ...]]:
    return [own_text(TARGET, request) for request in random_requests(5, tokens=tokens)]


def own_text(model: LlamaForCausalLM, request: Request) -> tuple[int, ...]:
    """Ask transformers for the greedy continuation, token by token and without a cache."""
    tokens = list(request.prompt)
    for _ in range(request.max_new_tokens):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] in request.stop:
            break
    return tuple(tokens[len(request.prompt) :])


def test_speed_is_all_texts_tokens_over_their_shares_of_the_rounds() -> None:
    """The third sequence is one that is decoded again: its share of the last two rounds is nobody's."""
    rounds = (
        timed(2.0, 1, 3),
        timed(3.0, 2, 4),
        timed(50.0, 1, 9, sequences=(0, 2)),
        timed(7.0, 2, 2, sequences=(0, 2)),
    )
    run = DecodingRun(batch=2, rounds=rounds, texts=((5,) * 7, (5,) * 8))
    assert run.tokens_per_s == pytest.approx(1000.0 * 13 / (2.0 + 3.0 + 25.0 + 3.5))
    assert run.tokens_per_round == pytest.approx(13 / 6)


def test_texts_that_decode_slowly_count_as_long_as_they_take() -> None:
    """One text keeps 4 tokens a round and one keeps 1; of an endless stream of both, half of the tokens are of each."""
    fast = [timed(1.0, 4, 1, sequences=(0, 1)) for _ in range(3)]
    slow = [timed(1.0, 1, 4, sequences=(1, 2 + place // 3)) for place in range(9)]
    run = DecodingRun(batch=2, rounds=(*fast, *slow), texts=((5,) * 13, (5,) * 13))
    assert run.tokens_per_s == pytest.approx(2000.0 * 24 / (3 + 12))


def test_every_slot_is_busy_until_all_texts_are_decoded_and_only_these_are_told() -> None:
    requests = random_requests(5, tokens=9)
    decoder = FAMILY.decoder(always(PLAIN), names=(), batch=3, capacity=room_for(requests, [PLAIN]))
    run = decode_timed(decoder, requests, 3, keeps_full=True)
    assert list(run.texts) == own_texts(9)
    assert all(len(r.round.kept) == 3 for r in run.rounds)
    assert {index for r in run.rounds for index in r.round.sequences} > set(range(5))
    assert sum(sum(counted(r.round, 5)) for r in run.rounds) == sum(len(text) - 1 for text in run.texts)


def test_every_round_of_a_text_began_where_the_one_before_ended() -> None:
    rounds = (timed(1.0, 1, 3), timed(1.0, 2, 4), timed(1.0, 1, 5, sequences=(2, 1)))
    run = DecodingRun(batch=2, rounds=rounds, texts=((9,) * 4, (9,) * 13, (9,) * 2))
    assert run.visited() == [[0, 1], [0, 3, 7], [0]]


def test_a_run_of_fewer_texts_than_slots_has_no_speed() -> None:
    run = DecodingRun(batch=3, rounds=(timed(2.0, 1, 3, 1),), texts=((5, 5), (5,) * 4))  # the third is decoded again
    with pytest.raises(RequestError, match="2 texts in 1 rounds tell no speed of a batch of 3"):
        run.tokens_per_s  # noqa: B018


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["plain", *POLICIES])
def test_every_setup_emits_the_targets_own_text_within_its_room(kind: str, batch: int) -> None:
    drafter = LOOKUP if kind == "lookup" else "small"
    setup = PLAIN if kind == "plain" else StepConfig(policy=POLICIES[kind], drafter=drafter)
    requests = random_requests(5, tokens=9)
    names = [setup.drafter] if setup.drafter else []
    decoder = FAMILY.decoder(always(setup), names=names, batch=batch, capacity=room_for(requests, [setup], batch))
    run = decode_timed(decoder, requests, batch)
    assert list(run.texts) == own_texts(9)


def test_every_token_but_each_sequences_first_belongs_to_a_timed_round() -> None:
    requests = random_requests(5, tokens=9)
    decoder = FAMILY.decoder(always(PLAIN), names=(), batch=2, capacity=room_for(requests, [PLAIN]))
    run = decode_timed(decoder, requests, 2)
    assert sum(sum(r.round.kept) for r in run.rounds) == sum(len(text) - 1 for text in run.texts)
    assert all(r.ms > 0.0 for r in run.rounds)


def test_a_drafter_the_family_has_not_is_named_with_those_it_has() -> None:
    with pytest.raises(RequestError, match="no drafter called 'huge'; this family has small, lookup"):
        FAMILY.decoder(always(PLAIN), names=["huge"], batch=1, capacity=32)
