"""Products of weights in few bits by kernels of ours: what the numbers of a GGUF file's blocks give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor

from spectune.errors import ModelError
from spectune.profiler.identity import identify
from spectune.runtime.models import loading
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.formats import packed_bytes
from spectune.runtime.models.gguf_weights import packed_blocks, packed_weights
from spectune.runtime.models.kernels.packed_dots import MOST_ROWS
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_config, load_model
from spectune.runtime.models.packed import PackedProduct, has_packed_products
from spectune.tuning.parts import footprints_of

from ...support.fused_forward import logits_of, step_of
from ...support.tiny_gguf import write_tiny_gguf
from ...support.tiny_models import tiny_model
from ...support.torch_threads import threads_of

needs_bytes = pytest.mark.skipif(not has_packed_products(), reason="needs a processor that multiplies bytes")
SCALES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}  # bytes of a block
LENGTH, OUTS = 512, 48
ROUNDING = 2.0**-8  # of bfloat16, relative
FINEST = 16  # numbers of the smallest group


def blocks_of(format: str, seed: int = 0) -> NDArray[np.uint8]:
    """Return random blocks (OUTS, bytes) with scales that are small numbers."""
    drawn = np.random.default_rng(seed)
    size, count = GGML_QUANT_SIZES[GGMLQuantizationType[format]]
    blocks = drawn.integers(0, 256, (OUTS * LENGTH // size, count)).astype(np.uint8)
    for first in SCALES[format]:
        blocks[:, first : first + 2] = drawn.uniform(0.001, 0.01, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(OUTS, -1)


def weight_of(blocks: NDArray[np.uint8], format: str) -> Tensor:
    return torch.from_numpy(dequantize(blocks, GGMLQuantizationType[format])).double()


def drawn(rows: int, columns: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


def whole_of(rows: int) -> Tensor:
    """Return whole numbers (rows, LENGTH) that become bytes without a rounding: each group has the greatest byte."""
    x = torch.randint(-127, 128, (rows, LENGTH), generator=torch.Generator().manual_seed(2))
    x[:, ::FINEST] = 127
    return x.bfloat16()


@pytest.mark.thinned
@needs_bytes
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("format", SCALES)
def test_it_is_the_product_rounded_once_where_bytes_are_exact(format: str, count: int) -> None:
    blocks = blocks_of(format)
    weight = weight_of(blocks, format)
    bias, residual = drawn(1, OUTS, seed=3)[0], drawn(MOST_ROWS + 3, OUTS, seed=4)
    for rows in (1, 2, MOST_ROWS, MOST_ROWS + 3):
        x = whole_of(rows)
        exact = x.double() @ weight.T
        scale = x.double().abs() @ weight.abs().T  # of what is added up
        with threads_of(count):
            plain = PackedProduct([packed_blocks(blocks, format)])(x)
            added = PackedProduct([packed_blocks(blocks, format)], bias)(x, residual[:rows])
        beside = exact + bias.double() + residual[:rows].double()
        for found, wanted in ((plain, exact), (added, beside)):
            assert ((found.double() - wanted).abs() <= ROUNDING * wanted.abs() + 2.0**-11 * scale).all()


@needs_bytes
@pytest.mark.parametrize("format", SCALES)
def test_numbers_are_rounded_by_no_more_than_half_a_byte_of_their_group(format: str) -> None:
    blocks, x = blocks_of(format), drawn(5)
    weight = weight_of(blocks, format)
    half_steps = x.double().abs().view(5, -1, 32).amax(-1, keepdim=True).expand(-1, -1, 32).reshape(5, -1) / 254
    exact = x.double() @ weight.T
    allowed = half_steps @ weight.abs().T + ROUNDING * exact.abs() + 2.0**-11 * (x.double().abs() @ weight.abs().T)
    error = (PackedProduct([packed_blocks(blocks, format)])(x).double() - exact).abs()
    assert (error <= allowed).all()
    assert error.mean() < allowed.mean() / 8  # errors have both signs


@pytest.mark.thinned
@needs_bytes
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("format", SCALES)
def test_a_row_is_the_same_alone_and_among_others(format: str, count: int) -> None:
    product, x = PackedProduct([packed_blocks(blocks_of(format), format)]), drawn(70)
    with threads_of(count):
        alone = torch.cat([product(row[None]) for row in x])
        for rows in (*range(2, 34), 70):
            assert torch.equal(product(x[:rows]), alone[:rows])


@needs_bytes
def test_weights_of_several_formats_stand_below_each_other() -> None:
    formats, x = ("Q4_K", "Q4_K", "Q6_K", "Q4_1"), drawn(3)
    weights = [packed_blocks(blocks_of(format, seed), format) for seed, format in enumerate(formats)]
    bias, residual = drawn(1, OUTS * len(formats), seed=5)[0], drawn(3, OUTS * len(formats), seed=6)
    found = PackedProduct(weights, bias)(x, residual).split(OUTS, dim=1)
    for place, weight in enumerate(weights):
        part = slice(place * OUTS, (place + 1) * OUTS)
        assert torch.equal(found[place], PackedProduct([weight], bias[part])(x, residual[:, part]))


@needs_bytes
def test_other_formats_are_rounded_to_eight_bits() -> None:
    size, count = GGML_QUANT_SIZES[GGMLQuantizationType.Q5_K]
    blocks = np.random.default_rng(7).integers(0, 256, (OUTS * LENGTH // size, count)).astype(np.uint8)
    blocks[:, :4] = np.array([0.01, 0.01], np.float16).view(np.uint8)
    x, weight = whole_of(4), weight_of(blocks.reshape(OUTS, -1), "Q5_K")
    exact = x.double() @ weight.T
    half_step = weight.abs().amax() / 254
    found = PackedProduct([packed_blocks(blocks.reshape(OUTS, -1), "Q5_K")])(x).double()
    assert (
        (found - exact).abs() <= 2 * ROUNDING * exact.abs() + half_step * x.double().abs().sum(1, keepdim=True)
    ).all()


@needs_bytes
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_row_and_no_other(wrong: float) -> None:
    product, x = PackedProduct([packed_blocks(blocks_of("Q4_K"), "Q4_K")]), drawn(3)
    before = product(x)
    x[1, 40] = wrong
    after = product(x)
    assert torch.equal(after[::2], before[::2])
    assert not after[1].isfinite().any()


@needs_bytes
def test_nothing_gives_nothing_and_small_numbers_stay() -> None:
    product = PackedProduct([packed_blocks(blocks_of("Q6_K"), "Q6_K")])
    assert not product(torch.zeros(2, LENGTH, dtype=torch.bfloat16)).any()
    x = drawn(2)
    assert torch.equal(product(x * 2.0**-40), product(x) * 2.0**-40)


@needs_bytes
def test_what_does_not_fit_is_said() -> None:
    product = PackedProduct([packed_blocks(blocks_of("Q4_0"), "Q4_0")])
    for x in (drawn(1, LENGTH + 32), drawn(1).float()):
        with pytest.raises(ModelError, match="do not fit together"):
            product(x)


def test_scales_beyond_float16_are_refused() -> None:
    blocks = blocks_of("Q4_K")
    blocks.reshape(-1, 144)[:, :2] = np.array([60000], np.float16).view(np.uint8)
    with pytest.raises(ModelError, match="beyond what float16 holds"):
        packed_blocks(blocks, "Q4_K")


def file_of(folder: Path, format: str, family: str = "llama", vocabulary: int = 64) -> Path:
    model = tiny_model(family, hidden_size=64, intermediate_size=96, vocab_size=vocabulary)
    return write_tiny_gguf(model, folder / "tiny.gguf", family=family, format=format)


@pytest.mark.thinned
@needs_bytes
@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize(("family", "vocabulary"), [("llama", 64), ("llama", 50), ("qwen2", 64), ("qwen3", 64)])
def test_a_model_says_what_its_dequantised_weights_say(
    family: str, vocabulary: int, format: str, tmp_path: Path
) -> None:
    """No kernel is for a head of 50 rows, which stays in bfloat16."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    file = str(file_of(tmp_path, format, family, vocabulary))
    found, wanted = (load_model(file, dtype=dtype) for dtype in (format.lower(), "bfloat16"))
    assert isinstance(found, LeanModel)
    assert isinstance(wanted, LeanModel)
    said, meant = (
        logits_of(model, ids, step_of(model, ids, by_tree=False, context=6)).float() for model in (found, wanted)
    )
    assert (said - meant).norm() <= 0.15 * meant.norm()  # errors of a product grow from layer to layer
    for own, other in zip(found.anatomy.layers, wanted.anatomy.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            products = [getattr(layer, name) for layer in (own, other)]
            x = drawn(4, products[0].shape[1])
            said, meant = (product(x).float() for product in products)
            assert (said - meant).norm() <= 0.02 * meant.norm()
    assert torch.equal(found.anatomy.embedding, wanted.anatomy.embedding)
    assert (found._stacked is None) == (wanted._stacked is None)
    assert vocabulary != 64 or found._stacked is not None


@needs_bytes
def test_a_format_that_is_not_the_file_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is q4_0, not q4_k_m"):
        load_model(str(file_of(tmp_path, "Q4_0")), dtype="q4_k_m")
    with pytest.raises(ModelError, match="no GGUF file"):
        load_model(str(tmp_path), dtype="q4_0")


@needs_bytes
def test_a_drafter_keeps_the_packed_format_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    target = load_model(str(file_of(tmp_path, "Q4_0")), dtype="q4_0")
    file = file_of(tmp_path / "small", "Q8_0")
    found, alone = load_drafter(str(file), target, dtype="q4_0"), load_model(str(file), dtype="q8_0")
    assert isinstance(found, LeanModel) and isinstance(alone, LeanModel)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    said, meant = (logits_of(each, ids, step_of(each, ids, by_tree=False, context=6)) for each in (found, alone))
    assert torch.equal(said, meant)


@needs_bytes
def test_a_drafter_in_no_gguf_file_is_still_refused_beside_packed_weights(tmp_path: Path) -> None:
    target = load_model(str(file_of(tmp_path, "Q4_0")), dtype="q4_0")
    tiny_model("llama").save_pretrained(tmp_path / "folder")
    with pytest.raises(ModelError, match="no GGUF file"):
        load_drafter(str(tmp_path / "folder"), target, dtype="q4_0")


@pytest.mark.thinned
@pytest.mark.parametrize("format", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
@pytest.mark.parametrize(("vocabulary", "is_tied"), [(64, False), (50, False), (64, True)])
def test_the_memory_of_packed_weights_is_what_they_take(
    format: str, vocabulary: int, is_tied: bool, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": vocabulary, "tie_word_embeddings": is_tied}
    model = tiny_model("llama", **sizes)
    file = write_tiny_gguf(model, tmp_path / "tiny.gguf", family="llama", format=format)
    config = load_config(str(file))
    names = loading.linears_of(config)
    held = {name: weight.panels.nbytes + weight.scales.nbytes for name, weight in packed_weights(file, config, names)}
    tied = held.pop("lm_head.weight") if is_tied else 0
    others = sum(2 * weight.numel() for name, weight in model.named_parameters() if name not in names)
    found = packed_bytes(file)
    assert (found.weights, found.tied_head) == (others + sum(held.values()), tied)
    assert found.weights < 0.8 * 2 * model.num_parameters()


def test_a_plan_counts_packed_weights_at_what_they_take(tmp_path: Path) -> None:
    file = file_of(tmp_path, "Q8_0")
    target, found = identify(file), packed_bytes(file)
    (footprint,) = footprints_of(target, (), "q8_0").values()
    assert footprint.weight_bytes == found.weights
    (whole,) = footprints_of(target, (), "bfloat16").values()
    assert footprint.weight_bytes < whole.weight_bytes


def test_a_processor_without_the_instruction_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_packed_products", lambda: False)
    with pytest.raises(ModelError, match="VNNI and BF16"):
        load_model(str(file_of(tmp_path, "Q4_0")), dtype="q4_0")
