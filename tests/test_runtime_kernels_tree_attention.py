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
from torch import Tensor

from spectune.runtime.models.kernels.jitted import has_triton, power_of_two
from spectune.runtime.models.kernels.tree_attention import (
    LEAST_LINES,
    MOST_LINES,
    MOST_SPLITS,
    WARPS,
    WORD,
    _attend,
    attend_tree,
    columns_of,
    is_supported,
    lines_of,
    splits_of,
    stages_of,
)

from .interpreted import HAS_GPU, launch

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
    """Random trees over random texts."""

    count: int  # nodes of a tree
    heads: tuple[int, int]  # of queries, of keys
    size: int
    starts: tuple[int, ...]
    capacity: int = 150
    dtype: torch.dtype = torch.float32
    seed: int = 0
    window: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.size**-0.5, "kv_heads": self.heads[1], "window": self.window}

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a view into fused projections, one into a cache, starts and bits."""
        made = torch.Generator().manual_seed(self.seed)
        (heads, kv_heads), batch = self.heads, len(self.starts)
        qkv = torch.randn(batch * self.count, (heads + 2 * kv_heads) * self.size, generator=made).to(self.dtype)
        cache = torch.randn(batch + 2, self.capacity, 2 * kv_heads * self.size, generator=made).to(self.dtype)
        query = qkv.view(batch, self.count, -1, self.size)[:, :, :heads]
        bits = torch.tensor([[words_of(line, self.count) for line in lines] for lines in self.lines()])
        return query, cache[1 : batch + 1], torch.tensor(self.starts), bits

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
        """Return (batch, n, capacity): which columns each node sees."""
        seen = torch.zeros(len(self.starts), self.count, self.capacity, dtype=torch.bool)
        for row, (start, paths) in enumerate(zip(self.starts, self.lines(), strict=True)):
            for node, path in enumerate(paths):
                seen[row, node, :start] = True
                seen[row, node, [start + other for other in path]] = True
        return seen if self.window is None else windowed(seen, self.window)

    def mixed(self) -> Tensor:
        """Return what attention is, in float64."""
        (heads, kv_heads), (query, states, _, _) = self.heads, self.tensors()
        key, value = states.double().view(len(self.starts), self.capacity, 2, kv_heads, self.size).unbind(2)
        of_head = torch.arange(heads) // (heads // kv_heads)
        scores = torch.einsum("bnhd,bkhd->bnhk", query.double(), key[:, :, of_head]) * self.options["scale"]
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


@needs_triton
@pytest.mark.parametrize("splits", [1, 3, 8, None])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_nodes_mix_what_they_see_however_the_keys_are_split(
    splits: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case(count=5, heads=(6, 2), size=64, starts=(0, 145, 70), dtype=dtype)
    out = attended(case, splits)
    assert out.dtype == dtype and out.is_contiguous()
    assert distance(out, case) < tolerance


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
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_a_tree_of_two_words_is_mixed_alike(dtype: torch.dtype, tolerance: float) -> None:
    case = Case(count=70, heads=(4, 2), size=64, starts=(80,), dtype=dtype, seed=1)
    assert any(WORD - 1 in path for path in case.lines()[0][WORD:])  # a sign bit counts
    assert distance(attended(case, 3), case) < tolerance


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
    query, states, starts, bits = case.tensors()
    states[:, :336] = math.nan  # whole tiles; the first token in sight lies at 337
    out = launch(attend_tree, query, states, starts, bits, splits=2, **case.options)[0]
    assert out is not None and distance(out, case) < 3e-6


@needs_triton
def test_a_cache_without_room_behind_the_tree_is_read_to_its_end_alone() -> None:
    case = Case(count=3, heads=(2, 2), size=64, starts=(30, 2), capacity=33, seed=4)
    assert distance(attended(case, 2), case) < 3e-6


@needs_triton
def test_columns_out_of_sight_change_no_bit() -> None:
    case = Case(count=6, heads=(4, 2), size=64, starts=(0, 20), seed=5)
    query, states, starts, bits = case.tensors()
    before = launch(attend_tree, query, states, starts, bits, splits=2, **case.options)[0]
    states[~case.seen().any(1)] = 1e4
    after = launch(attend_tree, query, states, starts, bits, splits=2, **case.options)[0]
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
    query, states, starts, bits = (tensor.cuda() for tensor in case.tensors())
    attend_tree(query, states, starts, bits, kv_heads=2, scale=case.options["scale"])  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend_tree(query, states, starts, bits, kv_heads=2, scale=case.options["scale"])
    for latest in ((0, 1), (12, 144), (145, 70)):
        starts.copy_(torch.tensor(latest))
        graph.replay()
        assert distance(out.cpu(), replace(case, starts=latest)) < 2e-2


def test_keys_are_split_until_the_device_is_full() -> None:
    assert splits_of(8, 1000, 132) == 17
    assert splits_of(132, 1000, 132) == splits_of(500, 1000, 132) == 1


def test_there_are_no_more_splits_than_tiles_nor_than_are_combined_at_once() -> None:
    assert splits_of(1, 3, 132) == 3
    assert splits_of(1, 1000, 132) == MOST_SPLITS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padded", [16, 32, 64, 128, 256])
def test_tiles_are_what_the_matrix_unit_takes(padded: int, dtype: torch.dtype) -> None:
    tiles = [columns_of(padded, dtype), *(lines_of(rows, padded, dtype) for rows in (1, 16, 17, 100, 1000))]
    assert all(tile == power_of_two(tile) and LEAST_LINES <= tile <= MOST_LINES for tile in tiles)


@needs_triton
@pytest.mark.parametrize(("capability", "shared_kib", "is_windowed"), [(86, 99, True), (90, 227, False)])
@pytest.mark.parametrize(("size", "rows"), [(128, 32), (128, MOST_LINES), (256, MOST_LINES)])
def test_the_kernel_compiles_for_small_and_large_gpus_and_fits_into_them(
    capability: int, shared_kib: int, is_windowed: bool, size: int, rows: int
) -> None:
    compiler: Any = import_module("triton.compiler")  # untyped
    target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    lines, columns = lines_of(rows, size, torch.bfloat16), columns_of(size, torch.bfloat16)
    shape = {"lines": lines, "columns": columns, "size": size, "padded": size}
    fixed = {"groups": 4, "kv_heads": 8, "alone": False, "is_windowed": is_windowed, **shape}
    types = {
        "query": "*bf16",
        "states": "*bf16",
        "starts": "*i64",
        "bits": "*i64",
        "parts": "*fp32",
        "weights": "*fp32",
    }
    strides = ("query_batch", "query_node", "query_head", "states_batch", "stride")
    types |= dict.fromkeys((*strides, "count", "words", "capacity", "window", "splits"), "i32") | {"factor": "fp32"}
    aligned = {"query", "states", "parts", "weights", *strides}
    even = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if name in aligned}
    source = compiler.ASTSource(_attend.made(), {**types, **dict.fromkeys(fixed, "constexpr")}, fixed, even)
    options = {"num_warps": WARPS, "num_stages": stages_of(lines, torch.bfloat16, shared_kib)}
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
