"""float32 products with weights in bfloat16: the same numbers, and only where bfloat16 holds every weight."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.runtime.models import projection
from spectune.runtime.models.kernels.few_rows import COLUMNS, PAIRED_ROWS, widened
from spectune.runtime.models.projection import LEAST_ELEMENTS, MOST_ROWS, FewRows, Projection, few_rows_of


def drawn(*size: int, seed: int) -> Tensor:
    """Return numbers at random that bfloat16 holds, in float32."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def as_kernel(weight: Tensor) -> FewRows:
    """Return a weight as our kernel reads it, however small it is."""
    return FewRows(weight.bfloat16())


@pytest.fixture(params=[1, 2], ids=["alone", "shared"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Let torch have so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "rows", [1, 2, 3, 4, 7, PAIRED_ROWS - 1, PAIRED_ROWS, PAIRED_ROWS + 3, MOST_ROWS, MOST_ROWS + 1]
)
@pytest.mark.parametrize("columns", [2, COLUMNS, COLUMNS + 2, 3 * COLUMNS])
def test_it_is_the_product(rows: int, columns: int, threads: int) -> None:
    """In double precision float32's own products are exact, so that only the order of sums may tell."""
    x, weight = torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows)), drawn(columns, 50, seed=1)
    found = as_kernel(weight)(x)
    assert found.is_contiguous() and found.dtype == torch.float32
    right = torch.einsum("ri,oi->ro", x.double(), weight.double())
    assert torch.allclose(found.double(), right, rtol=0, atol=2e-5)


@pytest.mark.parametrize("number", [0.0, -0.0, 1.5, -3.25, 3e38, 1e-40, float("inf")])
def test_upper_halves_are_widened_bit_for_bit(number: float) -> None:
    exact = torch.tensor(number).bfloat16().float().item()
    half = struct.unpack("<I", struct.pack("<f", exact))[0] >> 16
    assert struct.pack("<f", widened(np.uint16(half))) == struct.pack("<f", exact)


@pytest.mark.parametrize("rows", [5, PAIRED_ROWS])
def test_infinities_and_nan_come_through(rows: int) -> None:
    """Reordering sums must not let the compiler take them for absent: a drafter that fails is to be noticed."""
    x = torch.ones(rows, 8)
    x[1, 3], x[2, 0] = float("inf"), float("nan")
    found = as_kernel(torch.ones(4, 8))(x)
    assert found[1].isinf().all() and found[2].isnan().all()
    assert (found[[0, 3, 4]] == 8).all()


def test_rows_that_do_not_lie_together_are_read_rightly() -> None:
    whole, weight = drawn(4, 20, seed=5), drawn(6, 10, seed=6)
    torch.testing.assert_close(as_kernel(weight)(whole[:, ::2]), whole[:, ::2] @ weight.T, rtol=1e-5, atol=1e-5)


def test_many_rows_are_widened_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "WIDENED_ELEMENTS", 64)
    x, weight = drawn(MOST_ROWS + 3, 30, seed=7), drawn(14, 30, seed=8)
    torch.testing.assert_close(as_kernel(weight)(x), x @ weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_projection_gives_the_same_either_way(has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = drawn(40, 24, seed=10), drawn(40, seed=11) if has_bias else None
    monkeypatch.setattr(projection, "few_rows_of", lambda _: None)
    by_library = Projection(weight, bias)
    monkeypatch.setattr(projection, "few_rows_of", as_kernel)
    by_kernel = Projection(weight, bias)
    for rows in (1, 4, MOST_ROWS + 1):
        x, residual = drawn(rows, 24, seed=rows), drawn(rows, 40, seed=12)
        before = residual.clone()
        torch.testing.assert_close(by_kernel(x), by_library(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(by_kernel.added_to(residual, x), residual + by_library(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(residual, before)


def test_it_takes_weights_that_bfloat16_holds_and_no_others() -> None:
    large = drawn(LEAST_ELEMENTS // 16, 16, seed=13)
    assert few_rows_of(large) is not None
    for other in (large[:-2], large.bfloat16(), large.double(), torch.cat([large, large[:1]])):
        assert few_rows_of(other) is None  # too small, of other formats; columns come in pairs
    large[3, 3] += 1e-3
    assert few_rows_of(large) is None
