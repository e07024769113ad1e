"""Products of few rows, turned round where that is faster: (W x^T)^T instead of x W^T, the same sums.

MKL, which multiplies PyTorch's float32 matrices on x86, keeps its kernels for few rows to Intel's processors. On AMD's
it takes up to twice as long for x W^T of two to a few dozen rows, which is what verification and batches consist of.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ...profiler.cpu import CPUINFO

MOST_ROWS = 32  # more gain nothing
LEAST_ELEMENTS = 2**17  # of a weight: below, a call costs more than its product
LEAST_DOUBLED_ELEMENTS = 2**19  # from here on even a single row is faster as two


def turned_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T by the turned product; a single row is doubled, since one column is no matrix product.

    Args:
        x: (rows, in).
        weight: (out, in).
    """
    columns = x.repeat(2, 1) if len(x) == 1 else x
    return torch.mm(weight, columns.t()).t()[: len(x)].contiguous()


def turned_rows(weight: Tensor) -> range:
    """Return for how many rows the turned product is the faster one; none for most weights.

    Args:
        weight: (out, in).
    """
    is_slow = weight.device.type == "cpu" and weight.dtype == torch.float32 and multiplies_by_mkl_on_amd()
    if not is_slow or weight.numel() < LEAST_ELEMENTS:
        return range(0)
    return range(1 if weight.numel() >= LEAST_DOUBLED_ELEMENTS else 2, MOST_ROWS + 1)


@lru_cache(maxsize=1)
def multiplies_by_mkl_on_amd() -> bool:
    """Return whether this process multiplies float32 matrices by MKL on a processor of AMD's."""
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and CPUINFO.exists() and "AuthenticAMD" in CPUINFO.read_text()
