"""Which launches may begin before the kernel in front of them is done."""

from __future__ import annotations

import pytest
import torch

from spectune.runtime.models.kernels.chain import begins_early, chained


@pytest.mark.parametrize(
    ("capability", "is_early"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), True)]
)
def test_launches_begin_early_from_hopper_on(
    capability: tuple[int, int], is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    begins_early.cache_clear()
    told = chained(torch.device("cuda", 0))
    begins_early.cache_clear()
    assert told == ({"is_chained": True, "launch_pdl": True} if is_early else {"is_chained": False})


def test_on_a_cpu_where_kernels_are_interpreted_none_does() -> None:
    assert chained(torch.device("cpu")) == {"is_chained": False}
