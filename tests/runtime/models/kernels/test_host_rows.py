"""Norms and attention of few rows on a CPU by compiled calls: the numbers that torch finds, rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

from spectune.runtime.models import attention, norm
from spectune.runtime.models.anatomy import Sight
from spectune.runtime.models.attention import attend, attend_compiled, is_compiled_attention, turned
from spectune.runtime.models.bits import bits, is_kernels
from spectune.runtime.models.kernels.host_rows import bits_of, number_of, power_of_e
from spectune.runtime.models.kernels.threads import MOST_ALONE
from spectune.runtime.models.norm import Norm
from spectune.runtime.models.places import Place, View

from ....support.torch_threads import threads_of

KINDS = [torch.bfloat16, torch.float32]
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@given(some.floats(-87.0, 0.0, width=32))
def test_powers_of_e_are_right_to_the_last_bits(exponent: float) -> None:
    assert power_of_e(np.float32(exponent)) == pytest.approx(math.exp(exponent), rel=3e-7)


def test_e_to_very_little_is_next_to_nothing() -> None:
    assert 0.0 <= power_of_e(np.float32(-1e30)) < 1e-37


@given(some.floats(-(2.0**100), 2.0**100, width=32))
def test_a_number_is_rounded_to_bfloat16_as_torch_does(number: float) -> None:
    rounded = torch.tensor([number], dtype=torch.float32).bfloat16()
    assert bits_of(np.float32(number), np.uint32(16)) == bits(rounded)[0]
    assert bits_of(np.float32(number), np.uint32(0)) == bits(torch.tensor([number], dtype=torch.float32))[0]
    assert number_of(bits(rounded)[0], np.uint32(16)) == float(rounded)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("weight_dtype", KINDS)
@pytest.mark.parametrize(("shape", "lines"), [((1, 64), 1), ((2, 3, 96), 1), ((5, 4, 32), 4)])
def test_a_norm_is_that_of_exact_numbers_rounded_once(
    dtype: torch.dtype, weight_dtype: torch.dtype, shape: tuple[int, ...], lines: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    weight = torch.randn((lines, shape[-1]) if lines > 1 else shape[-1]).to(weight_dtype)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    found = Norm(weight=weight, eps=1e-5)(x)
    assert found.dtype == dtype and found.shape == x.shape
    assert ((found.double() - exact).abs() <= ROUNDING[dtype] * exact.abs()).all()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("most", [0, 2**18])
def test_heads_are_normed_where_they_lie_and_values_behind_them_left_alone(
    dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(norm, "MOST_COMPILED", most)
    monkeypatch.setattr(norm, "can_share", lambda _: False)
    qkv, weight = torch.randn(5, 4 * 32).to(dtype), torch.randn(3, 32).to(dtype)
    lanes = qkv[:, : 3 * 32].double().view(5, 3, 32)
    exact = lanes * torch.rsqrt(lanes.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    found = qkv.clone()
    Norm(weight=weight, eps=1e-5).norm_front(found)
    assert torch.equal(found[:, 3 * 32 :], qkv[:, 3 * 32 :])
    error = (found[:, : 3 * 32].double().view(5, 3, 32) - exact).abs()
    roundings = 1 if most else 2  # torch rounds before it multiplies, too
    assert (error <= roundings * ROUNDING[dtype] * exact.abs()).all()


def test_a_traced_norm_asks_for_nothing_but_whether_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else it read would be guarded at every call of every norm, by a detour through torch."""
    own, x = Norm(weight=torch.rand(64), eps=1e-6), torch.randn(2, 64)
    expected = own(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.delattr(Norm, "_bits")
    assert torch.allclose(own(x), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", KINDS)
def test_large_norms_strided_ones_and_other_kinds_are_torch_s(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, own = torch.randn(4, 64).to(dtype), Norm(weight=torch.rand(64).to(dtype), eps=1e-6)
    small = own(x)
    monkeypatch.setattr(norm, "norm_rows", None)  # nobody may ask it
    monkeypatch.setattr(norm, "MOST_COMPILED", 255)
    monkeypatch.setattr(norm, "can_share", lambda _: False)
    assert torch.allclose(own(x).float(), small.float(), rtol=4 * ROUNDING[dtype])
    monkeypatch.setattr(norm, "MOST_COMPILED", 2**18)
    strided = torch.randn(4, 128).to(dtype)[:, :64]
    assert own(strided).shape == (4, 64)
    assert Norm(weight=torch.rand(64).double(), eps=1e-6)(x.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", KINDS)
def test_a_norm_by_several_threads_is_that_of_every_row_alone(dtype: torch.dtype) -> None:
    x, own = torch.randn(MOST_ALONE // 64 + 3, 64).to(dtype), Norm(weight=torch.rand(64).to(dtype), eps=1e-6)
    with threads_of(2):
        assert torch.equal(own(x), torch.cat([own(row) for row in x.split(1)]))


def test_what_gradients_are_wanted_of_is_no_kernel_s() -> None:
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.randn(2, 64, requires_grad=True)
        assert not is_kernels(x) and is_kernels(x.detach())
        Norm(weight=torch.ones(64), eps=1e-6)(x).sum().backward()
        assert x.grad is not None


@dataclass(frozen=True)
class Case:
    """New tokens of some rows over a cache that holds no numbers where nobody looks."""

    dtype: torch.dtype
    batch: int = 1
    count: int = 1
    kv_heads: int = 2
    groups: int = 3
    size: int = 16
    context: int = 9
    start: int = 0
    first_slot: int = 0
    has_bias: bool = True

    def parts(self) -> tuple[Any, Any, Tensor, Tensor, Place, View]:
        """Return what `attend_compiled` takes."""
        random = torch.Generator().manual_seed(7)
        heads, width = self.kv_heads * self.groups, self.kv_heads * self.size
        capacity, seen = self.context + self.count + 5, self.context + self.count
        rows = self.batch * self.count
        qkv = torch.randn(rows, (heads + 2 * self.kv_heads) * self.size, generator=random).to(self.dtype)
        states = torch.full((self.first_slot + self.batch + 1, capacity, 2 * width), torch.nan, dtype=self.dtype)
        own = slice(self.first_slot, self.first_slot + self.batch)
        lengths = [max(self.context - 2 * row, self.start) for row in range(self.batch)]
        sees = torch.zeros(self.batch, self.count, seen, dtype=torch.bool)
        places = torch.zeros(self.batch, self.count, dtype=torch.int64)
        for row, length in enumerate(lengths):
            states[self.first_slot + row, :length] = torch.randn(length, 2 * width, generator=random).to(self.dtype)
            for node in range(self.count):  # a tree: every other node hangs on the root
                places[row, node] = length + node
                sees[row, node, :length] = True
                sees[row, node, [length, length + node]] = True
        bias = torch.zeros(sees.shape, dtype=self.dtype).masked_fill_(~sees, -torch.inf)[..., self.start :]
        bias = bias.unsqueeze(2).expand(-1, -1, self.groups, -1).reshape(self.batch, 1, -1, seen - self.start)
        angles = torch.rand(self.batch, self.count, 1, self.size // 2, generator=random)
        cosine, sine = angles.cos(), angles.sin()
        turns = torch.cat([cosine, cosine, -sine, sine], dim=-1).to(self.dtype)
        numbers = torch.arange(places.numel()).view(places.shape)  # every token's line of the table
        sight = Sight(window=None, turns=turns.reshape(places.numel(), -1))
        mask = bias if self.has_bias else None
        view = View(start=self.start, bias=mask, tree=None, positions=numbers, sight=sight)
        place = Place(slots=own, columns=places, capacity=capacity, seen=seen, views=[view])
        anatomy = SimpleNamespace(heads=heads, kv_heads=self.kv_heads, size=self.size, attention_cap=None)
        layer = SimpleNamespace(scale=self.size**-0.5, head_norm=None)
        return anatomy, layer, qkv, states, place, view


def by_torch(case: Case) -> tuple[Tensor, Tensor]:
    """Return the mix in float64, by torch's attention, and the cache behind it."""
    anatomy, layer, qkv, states, place, view = case.parts()
    wide = View(
        start=view.start,
        bias=None if view.bias is None else view.bias.double(),
        tree=None,
        positions=view.positions,
        sight=Sight(window=None, turns=view.table.double()),
    )
    query, pair = turned(anatomy, layer, qkv.double(), wide)
    states = states.double().nan_to_num(0.0)
    states.view(-1, states.shape[-1]).index_copy_(0, place.rows, pair)
    seen = states[place.slots, view.start : place.seen]
    return attend(anatomy, query, seen, wide.bias, layer.scale), states


SHAPES = (
    Case(dtype=torch.float32),
    Case(dtype=torch.float32, first_slot=2),
    Case(dtype=torch.float32, groups=1, kv_heads=3),
    Case(dtype=torch.float32, start=4, size=64, context=40),
    Case(dtype=torch.float32, groups=5, size=128, context=21),
)
CASES = [
    replace(shape, dtype=dtype, batch=batch, count=count)
    for dtype in KINDS
    for batch, count in ((1, 1), (1, 7), (3, 1), (2, 5))
    for shape in SHAPES
]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_torch_s_and_what_nobody_sees_may_be_no_number(case: Case, count: int) -> None:
    expected, cached = by_torch(case)
    anatomy, layer, qkv, states, place, view = case.parts()
    with threads_of(count):
        found = attend_compiled(anatomy, layer, qkv, states, place, view)
    rounding = 4 * ROUNDING[case.dtype]
    assert found.dtype == case.dtype
    assert torch.allclose(found.double(), expected, rtol=rounding, atol=rounding)
    written = states.double().nan_to_num(0.0)
    assert torch.allclose(written, cached, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("dtype", KINDS)
def test_tokens_that_see_everything_need_no_mask(dtype: torch.dtype, size: int) -> None:
    with_mask, without = (Case(dtype=dtype, size=size, has_bias=has_bias) for has_bias in (True, False))
    found = [attend_compiled(*case.parts()) for case in (with_mask, without)]
    assert torch.equal(*found)


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_seen_and_is_no_number_leaves_no_number(dtype: torch.dtype, spoilt: float, size: int) -> None:
    """As with torch: plausible text from a model that overflows would be worse."""
    anatomy, layer, qkv, states, place, view = Case(dtype=dtype, size=size, batch=2, count=3).parts()
    states[1, 4] = spoilt  # a column that all nodes of the second sequence see
    found = attend_compiled(anatomy, layer, qkv, states, place, view)
    assert found[:3].isfinite().all() and found[3:].isnan().all()


@pytest.mark.parametrize("dtype", KINDS)
def test_heads_that_are_normed_attend_as_torch_s(dtype: torch.dtype) -> None:
    case = Case(dtype=dtype, batch=2, count=3)
    anatomy, layer, qkv, states, place, view = case.parts()
    weight = torch.rand(anatomy.heads + anatomy.kv_heads, anatomy.size).to(dtype)
    layer.head_norm = Norm(weight=weight, eps=1e-6)
    before, rounding = states.clone(), 16 * ROUNDING[dtype]
    found = attend_compiled(anatomy, layer, qkv.clone(), states, place, view)
    query, pair = turned(anatomy, layer, qkv, view)
    before.view(-1, before.shape[-1]).index_copy_(0, place.rows, pair)
    seen = before[place.slots, view.start : place.seen].nan_to_num(0.0)
    expected = attend(anatomy, query, seen, view.bias, layer.scale)
    assert torch.allclose(found.float(), expected.float(), rtol=rounding, atol=rounding)


def test_a_mask_that_rows_share_is_read_as_any_other() -> None:
    anatomy, layer, qkv, states, place, view = Case(dtype=torch.float32, batch=2, groups=1).parts()
    assert view.bias is not None
    shared = replace(view, bias=view.bias[1:].expand_as(view.bias))
    own = replace(view, bias=view.bias[1:].repeat(2, 1, 1, 1))
    found = [attend_compiled(anatomy, layer, qkv.clone(), states.clone(), place, each) for each in (shared, own)]
    assert torch.equal(*found)


def test_much_arithmetic_caps_and_other_kinds_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    anatomy, _, qkv, _, place, view = Case(dtype=torch.float32).parts()
    assert is_compiled_attention(anatomy, qkv, place, view)
    assert not is_compiled_attention(anatomy, qkv.double(), place, view)
    capped: Any = SimpleNamespace(**{**vars(anatomy), "attention_cap": 50.0})
    assert not is_compiled_attention(capped, qkv, place, view)
    monkeypatch.setattr(attention, "MOST_COMPILED", 6 * 16 * 10 - 1)
    assert not is_compiled_attention(anatomy, qkv, place, view)
