"""Bytes that torch's allocator hands out, against tensors whose sizes are plain to see."""

from __future__ import annotations

import torch

from .allocator import count_bytes

MIB = 2**20


def mib(count: int) -> torch.Tensor:
    return torch.zeros(count * MIB, dtype=torch.uint8)


def test_what_is_kept_is_left() -> None:
    counted = count_bytes(lambda: mib(3))
    assert counted.left_bytes == counted.peak_bytes == 3 * MIB


def test_what_is_let_go_counts_in_the_peak_alone() -> None:
    counted = count_bytes(lambda: mib(5).max().item())
    assert counted.left_bytes == 0
    assert 5 * MIB <= counted.peak_bytes < 5 * MIB + 4096


def test_the_peak_is_what_was_there_at_once_and_not_in_all() -> None:
    def one_after_the_other() -> None:
        for _ in range(4):
            mib(2)

    assert count_bytes(one_after_the_other).peak_bytes == 2 * MIB


def test_what_was_there_before_does_not_count() -> None:
    before = [mib(7)]

    def replace() -> None:
        before[0] = mib(1)

    assert count_bytes(replace).peak_bytes == MIB
