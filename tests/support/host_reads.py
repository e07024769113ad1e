"""Finds what a GPU would have to be waited for, on a machine without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2"}
SHAPED_BY_MASKS = {"index", "index_put", "index_put_"}  # with a mask among the indices


class HostReadError(AssertionError):
    """A value was read on the host, or a shape was made to depend on one."""


class NoHostReads(TorchDispatchMode):
    """Raises HostReadError at every operation whose result the host has to wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        has_mask = name in SHAPED_BY_MASKS and any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
        if name in READS or has_mask:
            raise HostReadError(f"{func} reads values on the host")
        result = func(*args, **(kwargs or {}))
        comes_home = any(t.device.type == "cpu" for t in _tensors(result))
        if comes_home and any(t.device.type == "meta" for t in _tensors(args)):
            raise HostReadError(f"{func} brings values to the host")
        return result


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
