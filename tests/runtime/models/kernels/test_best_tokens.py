"""The best token of every row of logits, and what a plain round leaves behind it."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from torch import Tensor

from spectune.runtime.models.kernels import best_tokens
from spectune.runtime.models.kernels.best_tokens import CHUNK, WARPS, Noise, best_of, go_on_behind
from spectune.runtime.models.kernels.jitted import has_triton

from ....support.compiled_kernels import CAPABILITIES, compiled_for
from ....support.interpreted import launch

pytestmark = pytest.mark.skipif(not has_triton(), reason="needs triton")


def best_by_kernels(logits: Tensor) -> Tensor:
    """Return what the kernels find, where they run."""
    with mock.patch.object(best_tokens, "runs_triton", return_value=True):  # in the process that runs them
        return best_of(logits)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("width", [1, 7, CHUNK, CHUNK + 1, 5 * CHUNK - 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_greatest_of_every_row_is_found(width: int, dtype: torch.dtype) -> None:
    logits = drawn(2, 3, width, dtype=dtype)
    best = launch(best_by_kernels, logits)[0]
    assert best is not None and best.dtype == torch.int64 and torch.equal(best, logits.argmax(-1))


@pytest.mark.parametrize("place", [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 4])
def test_the_first_of_equal_ones_is_the_best(place: int) -> None:
    logits = drawn(1, 4 * CHUNK)
    logits[0, place:] = 9.0
    best = launch(best_by_kernels, logits)[0]
    assert best is not None and best.tolist() == [place]


def test_what_is_no_number_is_greater_than_any_and_nothing_is_the_first_place() -> None:
    logits = drawn(3, 2 * CHUNK + 5)
    logits[0, CHUNK + 3] = math.nan
    logits[1] = -math.inf
    logits[2, :-1] = -math.inf
    best = launch(best_by_kernels, logits)[0]
    assert best is not None and best.tolist() == [CHUNK + 3, 0, 2 * CHUNK + 4] == logits.argmax(-1).tolist()


def test_where_no_kernel_runs_torch_finds_it() -> None:
    logits = drawn(2, 9, dtype=torch.float64)
    assert torch.equal(best_of(logits), logits.argmax(-1))


@pytest.mark.parametrize("is_live", [True, False])
def test_a_plain_round_goes_on_behind_its_best_tokens(is_live: bool) -> None:
    logits, state = drawn(3, CHUNK + 9), torch.tensor([10, 20, 30, 7, 7, 7, 1, 2, 3])
    record = torch.arange(18).view(3, 6)
    _, _, after, _, told = launch(go_on_behind, logits, state, torch.tensor(is_live), record)
    best = logits.argmax(-1)
    assert after is not None and told is not None
    expected = torch.cat((torch.tensor([11, 21, 31, 1, 1, 1]), best)) if is_live else state
    assert torch.equal(after, expected)
    assert torch.equal(told[:, :4], record[:, :4])
    assert torch.equal(told[:, 4:], torch.stack((best, torch.tensor([11, 21, 31])), dim=1))


@pytest.mark.parametrize("width", [7, CHUNK + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_with_noise_behind_every_node_is_found(width: int, dtype: torch.dtype) -> None:
    logits, lines = 3 * drawn(2, 4, width, dtype=dtype), drawn(2, 3, width)
    logits[0, 1, 5], logits[1, 2] = -math.inf, -math.inf
    logits[1, 2, 3] = 0.0
    temperatures = torch.tensor([0.7, 1.0], dtype=torch.float64)
    depths = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2]])
    best = launch(noisy_best_by_kernels, logits, temperatures, lines, depths)[0]
    rows = torch.arange(2).unsqueeze(1)
    expected = (logits.float() / temperatures.float().view(2, 1, 1) + lines[rows, depths]).argmax(-1)
    assert best is not None and best.tolist() == expected.tolist() and best[1, 2] == 3
    assert best.tolist() != logits.argmax(-1).tolist()


def noisy_best_by_kernels(logits: Tensor, temperatures: Tensor, lines: Tensor, depths: Tensor) -> Tensor:
    with mock.patch.object(best_tokens, "runs_triton", return_value=True):  # in the process that runs them
        return best_of(logits, Noise(temperatures=temperatures, lines=lines, depths=depths))


def test_a_plain_round_goes_on_behind_what_is_drawn() -> None:
    logits, state = drawn(2, CHUNK + 9), torch.tensor([10, 20, 7, 7, 1, 2])
    lines, record = 5 * drawn(2, 1, CHUNK + 9), torch.zeros((2, 3), dtype=torch.int64)
    _, _, _, told, _ = launch(go_on_with_noise, logits, state, record, lines)
    best = (logits / 0.5 + lines[:, 0]).argmax(-1)
    assert told is not None and told[:, 1].tolist() == best.tolist() != logits.argmax(-1).tolist()


def go_on_with_noise(logits: Tensor, state: Tensor, record: Tensor, lines: Tensor) -> None:
    noise = Noise(
        temperatures=torch.full((2,), 0.5, dtype=torch.float64, device=logits.device),
        lines=lines,
        depths=torch.zeros((2, 1), dtype=torch.int64, device=logits.device),
    )
    go_on_behind(logits, state, torch.tensor(True, device=logits.device), record, noise)


@pytest.mark.thinned
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["_best_of_chunk", "_noisy_best_of_chunk", "_best_of_all", "_go_on"])
def test_they_compile(name: str, capability: int) -> None:
    kinds = {"logits": "*bf16", "temperatures": "*fp64", "lines": "*fp32", "greatest": "*fp32", "is_live": "*i1"}
    pointers = {**kinds, **dict.fromkeys(("depths", "places", "state", "record", "out"), "*i64")}
    of_chunks = name.endswith("chunk")
    fixed, warps = ({"chunk": CHUNK}, WARPS) if of_chunks else ({"padded": 64}, 1)
    compiled_for(capability, getattr(best_tokens, name), pointers, fixed, warps)
