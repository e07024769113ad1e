"""Token Recycling's rows are those of a dictionary filled by hand, whatever batches do; children follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from spectune.errors import ModelError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.drafters.recycling import RecyclingDrafter, recycled_children
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter import role_of
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.recycling import UNKNOWN, RecyclingHead, SuccessorCache, Successors
from spectune.runtime.models.tapped import tapped_for
from spectune.runtime.sampling.noise import gumbel

from ..support.decoded_runs import CAPACITY, POLICIES, random_requests, run
from ..support.tiny_models import tiny_llama
from ..support.tiny_recycling import SUCCESSORS, Row, laws_of, rows_behind, tiny_recycling

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
HEAD = tiny_recycling(LLAMA)
VOCABULARY = LLAMA.config.vocab_size
EVERY = np.arange(VOCABULARY)


class Listening(RecyclingDrafter):
    """Keeps what is known of every token of the vocabulary, behind which texts, at the root of every round."""

    def __init__(self, slots: int) -> None:
        super().__init__(HEAD, slots=slots, capacity=CAPACITY)
        self.heard: list[tuple[list[int], Successors]] = []

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        said = super().catch_up(sequences)
        lengths = np.array([[len(s.tokens)] for s in sequences])
        known = self.recall(np.tile(EVERY, (len(sequences), 1)), lengths)
        for row, sequence in enumerate(sequences):
            found = Successors(ids=known.ids[row], log_probs=known.log_probs[row])
            self.heard.append((list(sequence.tokens), found))
        return said


def heard_in(slots: int, policy: str = "eagle2", count: int = 7) -> list[tuple[list[int], Successors]]:
    drafter, schedule = Listening(slots), always(StepConfig(policy=POLICIES[policy], drafter="it"))
    run(tapped_for(TARGET, [HEAD]), random_requests(count, tokens=16), schedule, {"it": drafter}, slots=slots)
    return drafter.heard


def same(known: Successors, table: dict[int, Row]) -> bool:
    """Whether rows of all tokens are those of a dictionary."""
    for token in range(VOCABULARY):
        wanted = table.get(token, [(UNKNOWN, -math.inf)] * SUCCESSORS)
        if known.ids[token].tolist() != [one for one, _ in wanted]:
            return False
        if not np.allclose(known.log_probs[token].numpy(), [chance for _, chance in wanted], atol=1e-5):
            return False
    return True


@pytest.mark.parametrize("slots", [1, 3, 5])
@pytest.mark.parametrize("policy", ["chain", "eagle2"])
def test_rows_in_ragged_rounds_are_those_of_a_dictionary(policy: str, slots: int) -> None:
    """Sequences join, leave and move between slots; rows of one round differ in how much they read."""
    heard = heard_in(slots, policy)
    assert len(heard) > 25
    assert all(same(known, rows_behind(text, laws_of(LLAMA, text))) for text, known in heard)


def test_a_row_that_the_newest_place_did_not_overwrite_is_caught() -> None:
    """The control: the dictionary of the first place of each token is another one."""
    differ = 0
    for text, known in heard_in(1):
        laws, first = laws_of(LLAMA, text), {token: place for place, token in reversed(list(enumerate(text[:-1])))}
        oldest = {token: rows_behind([token, 0], laws[place:])[token] for token, place in first.items()}
        differ += not same(known, oldest)
    assert differ > 0


def test_a_row_that_another_sequence_left_in_the_slot_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of joining: who looks beyond the committed text meets what other texts left there."""
    recalled = SuccessorCache.recall

    def careless(self: SuccessorCache, tokens: torch.Tensor, lengths: torch.Tensor, longest: int) -> Successors:
        return recalled(self, tokens, torch.full_like(lengths, self.capacity), self.capacity)

    monkeypatch.setattr(SuccessorCache, "recall", careless)
    heard = heard_in(1)
    assert not all(same(known, rows_behind(text, laws_of(LLAMA, text))) for text, known in heard)


def test_the_newest_token_s_own_row_is_not_known_yet() -> None:
    text = [3, 1, 4, 5, 9]
    known = read_at_once(text).recall(torch.tensor([text]), torch.tensor([[len(text)]]), len(text))
    assert (known.ids[0, :-1] != UNKNOWN).all() and (known.ids[0, -1] == UNKNOWN).all()


def test_one_reading_answers_behind_every_prefix() -> None:
    """So a recording reads a text once: what is known at a place never depends on what stands behind it."""
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 1, 4]
    cache, laws = read_at_once(text), laws_of(LLAMA, text)
    for length in range(1, len(text) + 1):
        known = cache.recall(torch.from_numpy(EVERY)[None], torch.tensor([[length]]), length)
        assert same(Successors(ids=known.ids[0], log_probs=known.log_probs[0]), rows_behind(text[:length], laws))


def read_at_once(text: list[int]) -> SuccessorCache:
    cache, count = HEAD.new_cache(1, len(text) + 3), len(text)
    step = lay_out(
        np.array([text]), np.arange(count), [0], np.tri(count, dtype=np.bool_)[None],
        dtype=HEAD.dtype, device=HEAD.device,
    )  # fmt: skip
    HEAD.keep(HEAD.along(text)[None], step, cache)
    return cache


def written(ids: Many[int], columns: Many[int], said: Many[int], cache: SuccessorCache) -> None:
    best = Successors(ids=torch.tensor(said)[:, None], log_probs=-torch.ones(len(said), 1))
    cache.write(torch.tensor(columns), torch.tensor(ids), best)


def test_a_slot_that_moves_takes_its_rows_along_and_leaves_the_others() -> None:
    cache = SuccessorCache(slots=2, capacity=4, successors=1, device=torch.device("cpu"))
    written([7, 8, 7], [0, 1, 2], [0, 11, 12], cache)
    written([7, 9], [4, 5], [0, 21], cache)
    asked, lengths = torch.tensor([[7, 8, 9]] * 2), torch.tensor([[3], [2]])
    assert cache.recall(asked, lengths, 3).ids.tolist() == [[[11], [12], [UNKNOWN]], [[21], [UNKNOWN], [UNKNOWN]]]
    cache.move_slot(1, 0, 2)
    assert cache.recall(asked[:1], lengths[1:], 2).ids.tolist() == [[[21], [UNKNOWN], [UNKNOWN]]]


def test_padding_behind_a_short_row_is_never_looked_up() -> None:
    cache = SuccessorCache(slots=1, capacity=5, successors=1, device=torch.device("cpu"))
    written([7, 7, 0, 0], [0, 1, 2, 3], [0, 11, 99, 99], cache)
    assert cache.recall(torch.tensor([[7, 0]]), torch.tensor([[2]]), 2).ids.tolist() == [[[11], [UNKNOWN]]]
    written([7, 5], [1, 2], [11, 12], cache)
    assert cache.recall(torch.tensor([[7, 0]]), torch.tensor([[3]]), 3).ids.tolist() == [[[12], [UNKNOWN]]]


class Told(RecyclingHead):
    """Successors of logits that are given."""

    def __init__(self, successors: int) -> None:
        self.successors = successors
        told: Any = SimpleNamespace(final_norm=lambda logits: logits, logits=lambda logits: logits)
        self._target = told


def test_of_equal_successors_the_lower_id_comes_first() -> None:
    best = Told(3).best(torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.5], [1.0, 0.0, 0.0, 1.0, 1.0]]))
    assert best.ids.tolist() == [[1, 3, 4], [0, 3, 4]]
    law = torch.tensor([0.0, 2.0, 1.0, 2.0, 1.5]).log_softmax(0)
    torch.testing.assert_close(best.log_probs[0], law[[1, 3, 4]])


def test_more_successors_than_tokens_are_all_of_them() -> None:
    assert tiny_recycling(LLAMA, 1000).successors == VOCABULARY


@pytest.mark.parametrize("policy", [ChainPolicy(length=4), Eagle2Policy(verify_tokens=9, depth=3, top_k=3)])
def test_a_round_runs_one_forward_whatever_the_depth(policy: ChainPolicy | Eagle2Policy) -> None:
    drafter = model_drafter(HEAD, slots=1, capacity=CAPACITY)
    assert isinstance(drafter, RecyclingDrafter) and role_of(HEAD) == "block"
    schedule = always(StepConfig(policy=policy, drafter="it"))
    decoder = Engine(tapped_for(TARGET, [HEAD]), {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
    decoder.admit(random_requests(1, tokens=12)[0])
    before = drafter.forwards
    done = decoder.step()
    assert not done.faults and len(done.widths) > 2 and drafter.forwards == before + 1


def known_as(*rows: Row) -> Successors:
    return Successors(
        ids=torch.tensor([[[one for one, _ in row] for row in rows]]),
        log_probs=torch.tensor([[[math.log(chance) if chance else -math.inf for _, chance in row] for row in rows]]),
    )


GREEDY, PLACE = Request(prompt=(1,), max_new_tokens=9), torch.tensor([[4]])
ROW: Row = [(5, 0.5), (2, 0.25), (0, 0.05)]
NOTHING: Row = [(UNKNOWN, 0.0)] * 3


def test_successors_are_children_with_their_own_chances() -> None:
    found = recycled_children(known_as(ROW, ROW), 2, [GREEDY], PLACE, 9)
    assert found.tokens.tolist() == [[[5, 2], [5, 2]]]
    np.testing.assert_allclose(np.exp(found.log_probs), [[[0.5, 0.25]] * 2], rtol=1e-5)


def test_behind_the_successors_the_lowest_other_ids_share_what_is_left() -> None:
    found = recycled_children(known_as(ROW, NOTHING), 7, [GREEDY], PLACE, 9)
    assert found.tokens.tolist() == [[[5, 2, 0, 1, 3, 4, 6], [0, 1, 2, 3, 4, 5, 6]]]
    np.testing.assert_allclose(np.exp(found.log_probs[0, 0, 3:]), 0.2 / 6, rtol=1e-3)
    np.testing.assert_allclose(np.exp(found.log_probs[0, 1]), 1 / 9, rtol=1e-3)
    assert (np.diff(found.log_probs) < 0).all() and (found.log_probs <= 0).all()


@pytest.mark.parametrize("count", [1, 3, 6, 9, 40])
def test_children_are_different_tokens_of_the_vocabulary_in_descending_order(count: int) -> None:
    rng = np.random.default_rng(count)
    rows = [list(zip(rng.permutation(9)[:3].tolist(), (0.6, 0.2, 0.1), strict=True)) for _ in range(5)]
    requests = [Request(prompt=(1,), max_new_tokens=9, temperature=0.7, top_k=2, seed=count)]
    for asked in ([GREEDY], requests):
        found = recycled_children(known_as(*rows, NOTHING), count, asked, PLACE, 9)
        assert found.tokens.shape == (1, 6, min(count, 9)) and found.log_probs.dtype == np.float32
        assert all(len(set(row)) == len(row) and min(row) >= 0 and max(row) < 9 for row in found.tokens[0].tolist())
        assert (np.diff(found.log_probs) <= 0).all() and np.isfinite(found.log_probs).all()


def test_sampled_successors_carry_the_noise_of_the_target_s_own_draws() -> None:
    """Where the successors are the whole vocabulary, the best child is what the target would draw from their law."""
    chances = torch.tensor([0.4, 0.3, 0.2, 0.1])
    whole: Row = list(zip(range(4), chances.tolist(), strict=True))
    drawn = []
    for seed in range(50):
        request = Request(prompt=(1,), max_new_tokens=9, temperature=0.8, seed=seed)
        scores = chances.log() / 0.8 + gumbel(torch.tensor([seed]), torch.tensor([4]), 4)[0]
        found = recycled_children(known_as(whole), 4, [request], PLACE, 4)
        assert found.tokens[0, 0].tolist() == scores.argsort(descending=True).tolist()
        np.testing.assert_allclose(found.log_probs[0, 0], scores.log_softmax(0).sort(descending=True)[0], atol=1e-5)
        drawn.append(int(scores.argmax()))
    assert len(set(drawn)) == 4


def test_in_a_mixed_batch_every_request_has_its_own_settings() -> None:
    sampled = Request(prompt=(1,), max_new_tokens=9, temperature=0.8, seed=3)
    penalised = Request(prompt=(1,), max_new_tokens=9, repetition_penalty=3.0)
    asked = [GREEDY, sampled, penalised]
    row = known_as(ROW)
    three = Successors(ids=row.ids.expand(3, -1, -1), log_probs=row.log_probs.expand(3, -1, -1))
    places, seen = torch.tensor([[4], [5], [6]]), [torch.tensor([[[-1]], [[-1]], [[5]]])]
    together = recycled_children(three, 5, asked, places, 9, seen)
    for place, request in enumerate(asked):
        own = [seen[0][place : place + 1]] if request.penalises else []
        alone = recycled_children(row, 5, [request], places[place : place + 1], 9, own)
        np.testing.assert_array_equal(together.tokens[place], alone.tokens[0])
        np.testing.assert_allclose(together.log_probs[place], alone.log_probs[0], rtol=1e-5)
    assert together.tokens[2, 0, 0] == 2 and together.tokens[0, 0, 0] == 5  # 0.5 cubed is less than 0.25


def test_what_a_top_k_forbids_is_no_more_likely_than_what_is_not_known() -> None:
    request = Request(prompt=(1,), max_new_tokens=9, temperature=0.5, top_k=1, seed=1)
    found = recycled_children(known_as(ROW), 3, [request], PLACE, 9)
    assert found.tokens[0, 0].tolist() == [5, 0, 1]


def test_states_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ModelError, match="are not numbers"):
        recycled_children(known_as([(1, math.nan), (2, 0.5)]), 2, [GREEDY], PLACE, 9)


def test_the_next_token_s_law_is_the_row_and_the_rest_spread_evenly() -> None:
    text = [3, 1, 4, 1, 5, 9, 3]
    features, count = HEAD.along(text)[None], len(text)
    step = lay_out(
        np.array([text]), np.arange(count), [0], np.tri(count, dtype=np.bool_)[None],
        dtype=HEAD.dtype, device=HEAD.device,
    )  # fmt: skip
    laws = HEAD.next_logits(features, step, HEAD.new_cache(1, count)).softmax(-1).double()
    assert laws.shape == (count, VOCABULARY)
    row = dict(rows_behind(text, laws_of(LLAMA, text))[3])
    rest = (1 - sum(map(math.exp, row.values()))) / (VOCABULARY - len(row))
    expected = [math.exp(row[token]) if token in row else rest for token in range(VOCABULARY)]
    np.testing.assert_allclose(laws[-1], expected, atol=1e-5)
    np.testing.assert_allclose(laws[0], 1 / VOCABULARY)


def test_a_penalty_and_a_mask_change_no_output() -> None:
    asked = [
        Request(prompt=(1, 2, 3), max_new_tokens=14, repetition_penalty=1.8, temperature=0.7, seed=3),
        Request(prompt=(4, 2), max_new_tokens=14, temperature=1.1, top_p=0.8, seed=5),
        Request(prompt=(4, 2), max_new_tokens=14, repetition_penalty=1.4),
    ]
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    drafters = {"it": RecyclingDrafter(HEAD, slots=3, capacity=CAPACITY)}
    drafted = run(tapped_for(TARGET, [HEAD]), asked, schedule, drafters, slots=3)
    assert drafted.outputs == run(TARGET, asked, slots=1).outputs
