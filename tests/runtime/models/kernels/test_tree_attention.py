"""Attention of tree nodes, split over keys, against a softmax that is written out."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.runtime.models.kernels.jitted import has_triton, power_of_two
from spectune.runtime.models.kernels.tree_attention import WORD, _attend, attend_tree, is_supported
from spectune.runtime.models.kernels.tree_cuts import (
    LEAST_LINES,
    MOST_LINES,
    MOST_SPLITS,
    columns_of,
    lines_of,
    splits_of,
    warps_of,
)

from ....support.interpreted import HAS_GPU, launch
from ....support.pairwise import crossed
from ....support.slow_here import SLOW_HERE

needs_triton = pytest.mark.skipif(not has_triton(), reason="needs triton")
needs_gpu = pytest.mark.skipif(not (has_triton() and HAS_GPU), reason="needs triton and a GPU")
on_gpu = [needs_gpu]  # Triton's interpreter multiplies bfloat16 as if it were integers
KINDS = [
    pytest.param(torch.float32, 3e-6),
    pytest.param(torch.float16, 3e-3),
    pytest.param(torch.bfloat16, 3e-2, marks=on_gpu),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Random trees over random texts; the last nodes of each are new."""

    count: int  # nodes of a tree
    heads: tuple[int, int]  # of queries, of keys
    size: int
    starts: tuple[int, ...]
    capacity: int = 150
    dtype: torch.dtype = torch.float32
    seed: int = 0
    window: int | None = None
    written: int = 0  # nodes that are in the cache already
    is_normed: bool = False
    hides_first: bool = False

    @property
    def options(self) -> dict[str, Any]:
        heads, kv_heads = self.heads
        return {
            "scale": self.size**-0.5,
            "heads": heads,
            "kv_heads": kv_heads,
            "eps": 0.1,
            "window": self.window,
            "hides_first": self.hides_first,
        }

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Return projections, a view into a cache, starts, bits, columns, positions, turns and a norm's weight."""
        made = torch.Generator().manual_seed(self.seed)
        (heads, kv_heads), batch, new = self.heads, len(self.starts), self.count - self.written
        qkv = torch.randn(batch * new, (heads + 2 * kv_heads) * self.size, generator=made).to(self.dtype)
        cache = torch.randn(batch + 2, self.capacity, 2 * kv_heads * self.size, generator=made).to(self.dtype)
        paths = [lines[self.written :] for lines in self.lines()]
        bits = torch.tensor([[words_of(line, self.count) for line in lines] for lines in paths])
        starts = torch.tensor(self.starts)
        columns = starts.unsqueeze(1) + torch.arange(self.written, self.count)
        positions = starts.unsqueeze(1) + torch.tensor([[len(line) - 1 for line in lines] for lines in paths])
        angles = 9 * torch.randn(self.capacity, self.size // 2, generator=made)
        cosine, sine = angles.cos(), angles.sin()
        turns = torch.cat((cosine, cosine, -sine, sine), dim=1).to(self.dtype)
        weight = 1 + torch.randn(heads + kv_heads, self.size, generator=made) if self.is_normed else None
        return qkv, cache[1 : batch + 1], starts, bits, columns, positions, turns, weight

    def lines(self) -> list[list[set[int]]]:
        """Return, for every row and node, the nodes on its path."""
        drawn = random.Random(self.seed)
        trees: list[list[set[int]]] = []
        for _ in self.starts:
            paths: list[set[int]] = []
            for node in range(self.count):
                parent = drawn.randrange(-1, node)
                paths.append({node} | (paths[parent] if parent >= 0 else set()))
            trees.append(paths)
        return trees

    def seen(self) -> Tensor:
        """Return (batch, new nodes, capacity): which columns each sees."""
        seen = torch.zeros(len(self.starts), self.count - self.written, self.capacity, dtype=torch.bool)
        for row, (start, paths) in enumerate(zip(self.starts, self.lines(), strict=True)):
            for node, path in enumerate(paths[self.written :]):
                seen[row, node, :start] = True
                seen[row, node, [start + other for other in path]] = True
                if self.hides_first:
                    seen[row, node, 0] = start + self.written + node == 0
        return seen if self.window is None else windowed(seen, self.window)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return turned queries (batch, new nodes, heads, size) and the cache behind the launch, in float64."""
        (heads, kv_heads), (qkv, states, _, _, columns, positions, turns, weight) = self.heads, self.tensors()
        lanes = qkv.double().view(*columns.shape, -1, self.size)
        turned = lanes[:, :, : heads + kv_heads]
        if weight is not None:
            turned.copy_(F.rms_norm(turned, (self.size,), None, self.options["eps"]) * weight.double())
        cosine, sine = turns.double()[positions.clamp(max=len(turns) - 1)].unsqueeze(2).chunk(2, dim=-1)
        turned.copy_(turned * cosine + turned.roll(self.size // 2, dims=-1) * sine)
        after = states.double().clone()
        for row, places in enumerate(columns):
            after[row, places] = lanes[row, :, heads:].flatten(1)
        return lanes[:, :, :heads], after

    def mixed(self) -> Tensor:
        """Return what attention is, in float64."""
        (heads, kv_heads), (query, states) = self.heads, self.stored()
        key, value = states.view(len(self.starts), self.capacity, 2, kv_heads, self.size).unbind(2)
        of_head = torch.arange(heads) // (heads // kv_heads)
        scores = torch.einsum("bnhd,bkhd->bnhk", query, key[:, :, of_head]) * self.options["scale"]
        weights = scores.masked_fill(~self.seen().unsqueeze(2), -math.inf).softmax(-1)
        return torch.einsum("bnhk,bkhd->bnhd", weights, value[:, :, of_head]).flatten(0, 1).flatten(1)


def windowed(seen: Tensor, window: int) -> Tensor:
    """Leave to each node the last columns that it sees."""
    lines = seen.flatten(0, 1)
    for line in lines:
        line[line.nonzero()[:-window]] = False
    return lines.view_as(seen)


def words_of(path: set[int], count: int) -> list[int]:
    """Return a path's bits as signed words."""
    words = [sum(1 << node % WORD for node in path if node // WORD == word) for word in range(-(-count // WORD))]
    return [word - (1 << WORD) if word >> (WORD - 1) else word for word in words]


def attended(case: Case, splits: int | None = None) -> Tensor:
    out = launch(attend_tree, *case.tensors(), splits=splits, **case.options)[0]
    assert out is not None
    return out


def distance(out: Tensor, case: Case) -> float:
    return float((out.double() - case.mixed()).abs().max())


@pytest.mark.thinned
@needs_triton
@pytest.mark.parametrize("splits", [1, *(pytest.param(splits, marks=SLOW_HERE) for splits in (3, None)), 8])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_nodes_mix_what_they_see_however_the_keys_are_split(
    splits: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case(count=5, heads=(6, 2), size=64, starts=(0, 145, 70), dtype=dtype)
    out = attended(case, splits)
    assert out.dtype == dtype and out.is_contiguous()
    assert distance(out, case) < tolerance


@pytest.mark.thinned
@needs_triton
@pytest.mark.parametrize(("heads", "size"), [((32, 8), 64), ((4, 4), 80), ((8, 1), 128), ((4, 2), 256), ((2, 1), 24)])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_every_shape_of_heads_is_mixed_alike(
    heads: tuple[int, int], size: int, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case(count=2, heads=heads, size=size, starts=(31, 64), capacity=77, dtype=dtype, seed=1)
    assert distance(attended(case, 2), case) < tolerance


@needs_triton
@pytest.mark.parametrize("starts", [(0,), (1,), (63,), (64,), (128,), (80,)])
def test_a_single_token_sees_the_text_and_itself(starts: tuple[int, ...]) -> None:
    case = Case(count=1, heads=(4, 2), size=64, starts=starts, capacity=129, seed=2)
    assert distance(attended(case, 3), case) < 3e-6


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [KINDS[0], pytest.param(*KINDS[1].values, marks=SLOW_HERE), KINDS[2]],
)
def test_a_tree_of_two_words_is_mixed_alike(dtype: torch.dtype, tolerance: float) -> None:
    case = Case(count=70, heads=(4, 2), size=64, starts=(80,), dtype=dtype, seed=1)
    assert any(WORD - 1 in path for path in case.lines()[0][WORD:])  # a sign bit counts
    assert distance(attended(case, 3), case) < tolerance


@needs_triton
@pytest.mark.parametrize(("written", "splits"), [(0, 1), (0, 3), (2, 3)])
def test_a_first_token_that_is_hidden_is_seen_by_itself_alone(written: int, splits: int) -> None:
    case = Case(count=5, heads=(4, 2), size=16, starts=(0, 1, 90), written=written, seed=3, hides_first=True)
    assert distance(attended(case, splits), case) < 3e-6
    assert distance(attended(case, splits), replace(case, hides_first=False)) > 1e-3


@needs_triton
@pytest.mark.parametrize(("start", "splits"), [(0, 1), (63, 3), (64, 1), (200, 3)])
def test_nodes_of_a_windowed_layer_mix_the_last_that_they_see(start: int, splits: int) -> None:
    case = Case(count=5, heads=(2, 1), size=16, starts=(start,), capacity=210, window=64, seed=3)
    assert distance(attended(case, splits), case) < 3e-6


@needs_triton
def test_a_window_counts_the_nodes_of_both_words() -> None:
    case = Case(count=70, heads=(1, 1), size=16, starts=(100,), capacity=170, window=128, seed=1)
    assert any(max(path) >= WORD > min(path) for path in case.lines()[0])
    assert distance(attended(case, 1), case) < 3e-6


@needs_triton
def test_columns_that_a_window_has_left_behind_are_not_read() -> None:
    case = Case(count=2, heads=(2, 1), size=64, starts=(400,), capacity=410, window=64)
    qkv, states, *others = case.tensors()
    states[:, :336] = math.nan  # whole tiles; the first token in sight lies at 337
    out = launch(attend_tree, qkv, states, *others, splits=2, **case.options)[0]
    assert out is not None and distance(out, case) < 3e-6


@needs_triton
def test_a_cache_without_room_behind_the_tree_is_read_to_its_end_alone() -> None:
    case = Case(count=3, heads=(2, 2), size=64, starts=(30, 2), capacity=33, seed=4)
    assert distance(attended(case, 2), case) < 3e-6


@needs_triton
@crossed(
    is_normed=[False, True],
    shape=[((6, 2), 64), ((4, 4), 80), ((8, 1), 128)],
    kind=[(torch.float32, 2e-6), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)],
)
def test_keys_and_values_of_new_nodes_are_stored_where_they_belong(
    is_normed: bool, shape: tuple[tuple[int, int], int], kind: tuple[torch.dtype, float]
) -> None:
    (heads, size), (dtype, tolerance) = shape, kind
    case = Case(
        count=7, written=3, heads=heads, size=size, starts=(70, 0, 30), capacity=90, dtype=dtype, is_normed=is_normed
    )
    _, _, after, *_ = launch(attend_tree, *case.tensors(), splits=2, **case.options)
    states, columns, expected = case.tensors()[1], case.tensors()[4], case.stored()[1]
    assert after is not None
    torch.testing.assert_close(after.double(), expected, rtol=tolerance, atol=tolerance)
    for row, places in enumerate(columns):
        is_old = torch.ones(case.capacity, dtype=torch.bool)
        is_old[places] = False
        assert torch.equal(after[row, is_old], states[row, is_old])


@needs_triton
@crossed(
    is_normed=[False, True],
    nodes=[(9, 4), (30, 2), (70, 66)],  # of a tree, and those of them that are in the cache already
    kind=[(torch.float32, 3e-6), (torch.float16, 6e-3)],
)
def test_nodes_see_those_of_layers_before_them_and_of_their_own(
    is_normed: bool, nodes: tuple[int, int], kind: tuple[torch.dtype, float]
) -> None:
    (count, written), (dtype, tolerance) = nodes, kind
    case = Case(
        count=count, written=written, heads=(4, 2), size=16, starts=(40, 7), dtype=dtype, is_normed=is_normed, seed=8
    )
    for splits in (1, 3):
        assert distance(attended(case, splits), case) < tolerance


@needs_triton
def test_slots_without_a_node_may_share_a_column_that_nobody_sees() -> None:
    """As in a compact layout of two rows: the first row's second slot holds no node."""
    case = Case(count=4, written=1, heads=(4, 2), size=16, starts=(20, 33), seed=9)
    qkv, states, starts, bits, columns, positions, turns, _ = case.tensors()
    columns[0] = torch.tensor([21, 24, 24])
    bits[0] = torch.tensor([[0b11], [0b1], [0b1]])
    out = launch(attend_tree, qkv, states, starts, bits, columns, positions, turns, splits=2, **case.options)[0]
    assert out is not None and not out.isnan().any()
    single = replace(case, count=2, starts=(20,))
    alone = launch(
        attend_tree, qkv[:1], states[:1], starts[:1], bits[:1, :1].contiguous(), columns[:1, :1].contiguous(),
        positions[:1, :1], turns, splits=2, **single.options,
    )[0]  # fmt: skip
    assert alone is not None
    torch.testing.assert_close(out[:1], alone)
    torch.testing.assert_close(out[3:].double(), case.mixed()[3:], rtol=3e-6, atol=3e-6)


@needs_triton
def test_places_beyond_the_table_of_turns_are_its_last() -> None:
    case = Case(count=3, heads=(4, 2), size=16, starts=(140, 20), seed=10)
    *given, turns, _ = case.tensors()
    out = launch(attend_tree, *given, turns[:100].contiguous(), **case.options)[0]
    given[5] = given[5].clamp(max=99)
    clamped = launch(attend_tree, *given, turns, **case.options)[0]
    assert out is not None and clamped is not None and torch.equal(out, clamped)


@needs_triton
def test_columns_out_of_sight_change_no_bit() -> None:
    case = Case(count=6, heads=(4, 2), size=64, starts=(0, 20), seed=5)
    qkv, states, *others = case.tensors()
    before = launch(attend_tree, qkv, states, *others, splits=2, **case.options)[0]
    states[~case.seen().any(1)] = 1e4
    after = launch(attend_tree, qkv, states, *others, splits=2, **case.options)[0]
    assert before is not None and after is not None
    assert torch.equal(before, after)


@needs_triton
def test_the_same_inputs_give_the_same_bits() -> None:
    case = Case(count=6, heads=(4, 2), size=64, starts=(60, 20), seed=6)
    assert torch.equal(attended(case), attended(case))


@needs_gpu
@pytest.mark.parametrize(("heads", "size"), [((32, 8), 64), ((32, 8), 128), ((8, 8), 96)])
@pytest.mark.parametrize("count", [1, 8, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)])
def test_long_texts_are_mixed_alike(
    heads: tuple[int, int], size: int, count: int, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case(count=count, heads=heads, size=size, starts=(3000, 17), capacity=4001, dtype=dtype, seed=7)
    assert distance(attended(case), case) < tolerance


@needs_gpu
def test_a_captured_launch_follows_the_starts() -> None:
    case = Case(count=5, heads=(6, 2), size=64, starts=(145, 70), dtype=torch.bfloat16)
    given = [tensor.cuda() for tensor in case.tensors() if tensor is not None]  # it is not normed
    attend_tree(*given, **case.options)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend_tree(*given, **case.options)
    for latest in ((0, 1), (12, 144), (145, 70)):
        for mine, other in zip(given, replace(case, starts=latest).tensors(), strict=False):
            assert other is not None
            mine.copy_(other)
        graph.replay()
        assert distance(out.cpu(), replace(case, starts=latest)) < 2e-2


def test_keys_are_split_until_the_device_is_full() -> None:
    assert splits_of(8, 1000, 132) == 16
    assert splits_of(132, 1000, 132) == splits_of(264, 1000, 132) == 1


def test_a_few_programs_more_than_the_device_runs_at_once_are_not_begun() -> None:
    assert splits_of(32, 65, 132) == 4  # five would be two rounds of 13 tiles instead of one of 17


def test_there_are_no_more_splits_than_tiles_nor_than_are_combined_at_once() -> None:
    assert splits_of(1, 3, 132) == 3
    assert splits_of(1, 64000, 132) == MOST_SPLITS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padded", [16, 32, 64, 128, 256])
def test_tiles_are_what_the_matrix_unit_takes(padded: int, dtype: torch.dtype) -> None:
    tiles = [columns_of(padded, dtype), *(lines_of(rows, padded, dtype) for rows in (1, 16, 17, 100, 1000))]
    assert all(tile == power_of_two(tile) and LEAST_LINES <= tile <= MOST_LINES for tile in tiles)


@needs_triton
@pytest.mark.thinned
@pytest.mark.parametrize(("capability", "shared_kib", "is_windowed"), [(86, 99, True), (90, 227, False)])
@pytest.mark.parametrize(("size", "rows"), [(128, 32), (128, MOST_LINES), (256, MOST_LINES)])
def test_the_kernel_compiles_for_small_and_large_gpus_and_fits_into_them(
    capability: int, shared_kib: int, is_windowed: bool, size: int, rows: int
) -> None:
    compiler: Any = import_module("triton.compiler")  # untyped
    target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    lines, columns = lines_of(rows, size, torch.bfloat16), columns_of(size, torch.bfloat16)
    shape = {"heads": 32, "kv_heads": 8, "lines": lines, "columns": columns, "nodes": columns, "size": size}
    kind = {"alone": False, "is_windowed": is_windowed, "is_normed": is_windowed, "hides_first": not is_windowed}
    kind["is_chained"] = capability >= 90
    fixed = {**shape, "padded": size, **kind}
    halves, longs = ("qkv", "states", "turns", "norm"), ("starts", "bits", "columns_at", "positions")
    pointers = (
        dict.fromkeys(halves, "*bf16") | dict.fromkeys(longs, "*i64") | dict.fromkeys(("parts", "weights"), "*fp32")
    )
    strides = ("states_batch", "stride", "positions_batch", "positions_node")
    numbers = dict.fromkeys((*strides, "count", "words", "capacity", "window", "splits", "places"), "i32")
    given = {**pointers, "eps": "fp32", "factor": "fp32", **numbers}
    types = {name: given[name] for name in _attend.made().arg_names if name in given}
    aligned = {*halves, "parts", "weights", "states_batch", "stride"}
    even = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if name in aligned}
    source = compiler.ASTSource(_attend.made(), {**types, **dict.fromkeys(fixed, "constexpr")}, fixed, even)
    options = {"num_warps": warps_of(lines, size, columns), "num_stages": 1}
    made = compiler.compile(source, target=target, options=options)
    assert 0 < made.metadata.shared <= shared_kib * 2**10


def test_a_cpu_is_not_supported() -> None:
    assert not is_supported(torch.device("cpu"), torch.float32, 64)


def test_a_head_too_large_is_not_supported() -> None:
    assert not is_supported(torch.device("cuda"), torch.float32, 512)


def test_the_modules_are_imported_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from spectune.runtime.models.kernels import fused_rows, jitted, row_products, tree_attention\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
