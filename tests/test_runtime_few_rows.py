"""Products of few rows: the turned product is the same product, and is taken only where it was seen to pay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spectune.runtime.models import few_rows, projection
from spectune.runtime.models.few_rows import (
    LEAST_DOUBLED_ELEMENTS,
    LEAST_ELEMENTS,
    MOST_ROWS,
    multiplies_by_mkl_on_amd,
    turned_product,
    turned_rows,
)
from spectune.runtime.models.projection import Projection


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 33])
def test_the_turned_product_is_the_product(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 24, generator=generator, dtype=torch.float64)
    weight = torch.randn(40, 24, generator=generator, dtype=torch.float64)
    found = turned_product(x, weight)
    torch.testing.assert_close(found, torch.einsum("ri,oi->ro", x, weight))
    assert found.is_contiguous()


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_projection_gives_the_same_either_way(has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = torch.randn(40, 24), torch.randn(40) if has_bias else None
    straight = Projection(weight, bias)
    monkeypatch.setattr(projection, "turned_rows", lambda _: range(1, 5))
    calls: list[int] = []

    def counted(x: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return turned_product(x, of)

    monkeypatch.setattr(projection, "turned_product", counted)
    turned = Projection(weight, bias)
    for rows in (1, 4, 5):
        x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
        torch.testing.assert_close(turned(x), straight(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(turned.added_to(residual, x), residual + straight(x), rtol=1e-5, atol=1e-5)
    assert calls == [1, 1, 4, 4]


def test_large_float32_weights_are_turned_on_amd_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    small, middle, large = (
        torch.zeros(n // 2, 2) for n in (LEAST_ELEMENTS - 2, LEAST_ELEMENTS, LEAST_DOUBLED_ELEMENTS)
    )
    monkeypatch.setattr(few_rows, "multiplies_by_mkl_on_amd", lambda: True)
    assert not turned_rows(small)
    assert turned_rows(middle) == range(2, MOST_ROWS + 1)
    assert turned_rows(large) == range(1, MOST_ROWS + 1)
    assert not turned_rows(large.bfloat16()) and not turned_rows(large.double())
    monkeypatch.setattr(few_rows, "multiplies_by_mkl_on_amd", lambda: False)
    assert not turned_rows(large)


@pytest.mark.parametrize(
    ("vendor", "has_mkl", "expected"), [("AMD", True, True), ("AMD", False, False), ("i", True, False)]
)
def test_the_processor_and_the_library_are_asked(
    vendor: str, has_mkl: bool, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: Authentic{vendor}\n")
    monkeypatch.setattr(few_rows, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    multiplies_by_mkl_on_amd.cache_clear()
    found = multiplies_by_mkl_on_amd()
    multiplies_by_mkl_on_amd.cache_clear()
    assert found is expected
