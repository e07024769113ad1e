"""Sampling settings do to logits what transformers' own processors do, row by row and node by node."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import RequestError
from spectune.runtime.batch.sequence import Request, Sampling, Sequence
from spectune.runtime.models.layout import ancestors
from spectune.runtime.sampling.filters import NEVER, NOTHING, draft_scores, processed, seen_tokens, tree_paths
from spectune.runtime.sampling.noise import gumbel

from ...support.sampling_oracle import own_fields, processed_by_transformers
from ...support.tiny_models import tiny_llama

VOCABULARY = 40
LLAMA = tiny_llama(layers=1, seed=0, vocabulary=VOCABULARY)
TEXT = (3, 1, 4, 1, 5, 9, 2, 6)
SETTINGS = [
    Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    for temperature, top_k, top_p, min_p, penalty in product((0.7, 1.0), (0, 5), (1.0, 0.8), (0.0, 0.1), (1.0, 1.4))
]
EACH = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.0, top_k=3),
    Sampling(temperature=1.3, top_p=0.6),
    Sampling(temperature=1.0, min_p=0.3),
    Sampling(temperature=1.0, repetition_penalty=1.5),
    Sampling(repetition_penalty=0.7),
    Sampling(),
    Sampling(temperature=0.9, top_k=1000, top_p=0.999, min_p=1e-6, repetition_penalty=1.1),
]


def label(settings: Sampling) -> str:
    return "-".join(f"{value:g}" for value in own_fields(settings).values())


def logits_of(rows: int, nodes: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    noise = torch.Generator().manual_seed(rows)
    return 3 * torch.randn(rows, nodes, VOCABULARY, generator=noise, dtype=torch.float64).to(dtype)


def judged(logits: Tensor, settings: Sampling, text: tuple[int, ...]) -> Tensor:
    """Return what transformers' `generate` makes of (rows, vocabulary) logits behind a text."""
    return processed_by_transformers(LLAMA, settings, torch.tensor([text] * len(logits)), logits)


def sequence(settings: Sampling, text: tuple[int, ...] = TEXT) -> Sequence:
    return Sequence(Request(prompt=text, max_new_tokens=9, **own_fields(settings)), 0)


def scored(logits: Tensor, sequences: list[Sequence], paths: np.ndarray | None = None) -> Tensor:
    return processed(logits, [s.request for s in sequences], seen_tokens(sequences, paths, logits.device))


@pytest.mark.parametrize("settings", [*SETTINGS, *EACH], ids=label)
def test_scores_are_what_transformers_processors_make_of_the_logits(settings: Sampling) -> None:
    logits = logits_of(50)
    ours = scored(logits, [sequence(settings) for _ in range(50)])
    assert torch.equal(ours[:, 0], judged(logits[:, 0], settings, TEXT))


@pytest.mark.parametrize("settings", [*SETTINGS, *EACH], ids=label)
def test_of_equal_logits_as_many_are_kept_as_transformers_keeps(settings: Sampling) -> None:
    """Which of them, its sort leaves open."""
    logits = logits_of(50).round()
    ours = scored(logits, [sequence(settings) for _ in range(50)])[:, 0]
    assert torch.equal(ours.sort().values, judged(logits[:, 0], settings, TEXT).sort().values)


def test_of_equal_logits_the_nucleus_keeps_the_last() -> None:
    kept = scored(torch.zeros(1, 1, 8), [sequence(Sampling(temperature=1.0, top_p=0.3))]).isfinite()
    assert kept[0, 0].nonzero().flatten().tolist() == [5, 6, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_batch_of_different_settings_is_every_row_alone(dtype: torch.dtype) -> None:
    sequences = [sequence(settings, TEXT[: 1 + row]) for row, settings in enumerate(EACH)]
    logits = logits_of(len(EACH), 6, dtype)
    rows = [scored(logits[row : row + 1], [one])[0] for row, one in enumerate(sequences)]
    together = scored(logits, sequences)
    assert all(torch.equal(together[row], alone.to(together.dtype)) for row, alone in enumerate(rows))


def test_a_batch_that_asks_for_nothing_gets_its_logits_back() -> None:
    logits = logits_of(3, 4, torch.bfloat16)
    assert scored(logits, [sequence(Sampling(top_k=4))] * 3) is logits


def test_a_row_that_asks_for_nothing_keeps_its_logits_beside_others() -> None:
    logits = logits_of(3, 4)
    settings = [EACH[-1], Sampling(), EACH[0]]
    assert torch.equal(scored(logits, [sequence(one) for one in settings])[1], logits[1])


def test_float64_stays_and_bfloat16_becomes_float32() -> None:
    kinds = (torch.float64, torch.float32, torch.bfloat16)
    found = [scored(logits_of(1, 1, kind), [sequence(EACH[-1])]).dtype for kind in kinds]
    assert found == [torch.float64, torch.float32, torch.float32]


@pytest.mark.parametrize("settings", EACH, ids=label)
def test_the_logits_are_left_alone(settings: Sampling) -> None:
    logits = logits_of(2, 3)
    scored(logits, [sequence(settings), sequence(Sampling())])
    assert torch.equal(logits, logits_of(2, 3))


def test_masks_do_nothing_to_greedy_rows() -> None:
    logits = logits_of(2, 3)
    greedy, other = Sampling(top_k=2, top_p=0.1, min_p=0.9), Sampling(temperature=0.5)
    assert torch.equal(scored(logits, [sequence(greedy), sequence(other)])[0], logits[0])


def test_a_node_is_penalised_for_the_text_and_its_own_path_and_for_nothing_beside_it() -> None:
    """Each node's scores are transformers' behind text + path, run as a plain sequence."""
    parents, tokens = np.array([[-1, 0, 0, 1, 1, 2]]), np.array([[TEXT[-1], 10, 11, 12, 10, 9]])
    settings = Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.7)
    one, logits = sequence(settings), logits_of(1, 6)
    ours = scored(logits, [one], tree_paths([one], tokens, ancestors(parents)))[0]
    for node, path in enumerate([(), (10,), (11,), (10, 12), (10, 10), (11, 9)]):
        assert torch.equal(ours[node], judged(logits[0, node : node + 1], settings, TEXT + path)[0])


def test_every_row_of_a_batch_of_chains_has_its_own_path() -> None:
    """The chains see alike, in one array; their tokens, texts and penalties are their own."""
    tokens = np.array([[TEXT[-1], 10, 11], [TEXT[-1], 11, 10], [TEXT[-1], 9, 9]])
    sees, logits = ancestors(np.array([[-1, 0, 1]] * 3)), logits_of(3, 3)
    settings = [Sampling(repetition_penalty=1.7), Sampling(), Sampling(temperature=0.8, repetition_penalty=0.6)]
    sequences = [sequence(each) for each in settings]
    paths = tree_paths(sequences, tokens, sees)
    assert sees.shape == (1, 3, 3) and paths is not None and paths.shape == (3, 3, 3)
    ours = scored(logits, sequences, paths)
    for row, node in product((0, 2), range(3)):
        path = tuple(tokens[row, 1 : node + 1].tolist())
        assert torch.equal(ours[row, node], judged(logits[row, node : node + 1], settings[row], TEXT + path)[0])
    assert torch.equal(ours[1], logits[1])


def test_paths_are_made_only_where_a_request_penalises_repetition() -> None:
    tokens, sees = np.array([[7, 8]]), np.tri(2, dtype=np.bool_)[None]
    assert tree_paths([sequence(Sampling(temperature=1.0))], tokens, sees) is None
    paths = tree_paths([sequence(EACH[4])], tokens, sees)
    assert paths is not None and paths.tolist() == [[[7, NOTHING], [7, 8]]]


def test_tokens_beyond_the_head_are_no_tokens() -> None:
    logits, settings = logits_of(1), Sampling(repetition_penalty=2.0)
    ours = scored(logits, [sequence(settings, (3, VOCABULARY, VOCABULARY + 7))])
    assert torch.equal(ours, scored(logits, [sequence(settings, (3,))]))


def test_emitted_tokens_are_penalised_as_soon_as_they_are_committed() -> None:
    settings, logits = Sampling(repetition_penalty=2.0), logits_of(1)
    one = sequence(settings)
    scored(logits, [one])
    one.commit([20, 21])
    assert torch.equal(scored(logits, [one])[0], judged(logits[0], settings, (*TEXT, 20, 21)))


@pytest.mark.parametrize("settings", [s for s in SETTINGS if s.masks], ids=label)
def test_a_drafter_s_scores_are_the_target_s_with_finite_numbers_for_what_is_masked(settings: Sampling) -> None:
    logits, paths = logits_of(4, 3), np.arange(24).reshape(4, 3, 2)
    sequences = [sequence(settings) for _ in range(4)]
    ours, target = draft_scores(logits, sequences, paths), scored(logits, sequences, paths)
    seed, place = sequences[0].request.seed, len(sequences[0].tokens) + 2
    noise = gumbel(torch.tensor([[seed]]), torch.tensor([[place]]), VOCABULARY)
    assert torch.equal(torch.where(target.isinf(), NEVER, target + noise), ours)
    assert torch.log_softmax(ours, -1).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_with_a_temperature_alone_a_drafter_s_scores_are_quotients_and_noise_to_the_last_bit(
    dtype: torch.dtype,
) -> None:
    logits = logits_of(3, 4, dtype)
    sequences = [sequence(Sampling(temperature=temperature)) for temperature in (0.8, 0.0, 1.0)]
    divisors = torch.tensor([0.8, 1.0, 1.0], dtype=torch.float32).view(-1, 1, 1)
    seeds, places = (torch.tensor([[n] for n in ns]) for ns in ([s.request.seed for s in sequences], [len(TEXT)] * 3))
    noise = gumbel(seeds, places, VOCABULARY) * torch.tensor([1.0, 0.0, 1.0]).view(-1, 1, 1)
    assert torch.equal(draft_scores(logits, sequences, None), logits.float() / divisors + noise)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.5}, r"temperature must be 0, or in \[0\.0001, 100\), got -0\.5"),
        ({"temperature": 1e-40}, r"temperature must be 0, or in \[0\.0001, 100\), got 1e-40"),
        ({"top_k": -1}, "top_k must be a whole number of at least 0, got -1"),
        ({"top_k": 2.5}, "whole number of at least 0, got 2.5"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0\.0"),
        ({"top_p": float("nan")}, "got nan"),
        ({"min_p": 1.1}, r"min_p must be in \[0, 1\], got 1\.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be in"),
        ({"repetition_penalty": float("inf")}, "got inf"),
    ],
)
def test_an_impossible_setting_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sampling(**fields)  # type: ignore[arg-type]
