"""A model grown into a larger shape computes what it did, by transformers' forward and by ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from demo_models import drafter_configs, target_config
from grown import grown
from grown_shape import SHAPES, GrownShape, grown_shape
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from spectune.errors import DeviceError, ModelError
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import causal_model, load_model
from spectune.runtime.models.random import count_parameters

from ..support.tiny_models import generated, plain_logits, tiny_gpt2, with_exact_norms

SAME = GrownShape(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=30,
)
GROWTHS: dict[str, dict[str, Any]] = {
    "none": {},
    "hidden": {"hidden_size": 42},
    "hidden, even": {"hidden_size": 96},
    "intermediate": {"intermediate_size": 57},
    "layers": {"num_hidden_layers": 5},
    "query heads": {"num_attention_heads": 12},
    "key-value heads": {"num_attention_heads": 12, "num_key_value_heads": 4},
    "fewer readers": {"num_attention_heads": 8, "num_key_value_heads": 4},  # each old head's three need two new heads
    "a reader each": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "head size, twice": {"head_dim": 16},
    "head size, three times": {"head_dim": 24},
    "vocabulary": {"vocab_size": 41, "hidden_size": 30},
    "all": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": 50,
    },
}
ALL = replace(SAME, **GROWTHS["all"])
TEXTS = torch.randint(0, 30, (4, 40), generator=torch.Generator().manual_seed(3)).tolist()


def small(*, tied: bool = True, dtype: torch.dtype = torch.float64, **changes: Any) -> LlamaForCausalLM:
    """Return a random model of shape `SAME` with spread weights, uneven norms, and an eps that counts."""
    torch.manual_seed(0)
    sizes = {field.name: getattr(SAME, field.name) for field in fields(SAME)}
    config = LlamaConfig(
        **{
            **sizes,
            "max_position_embeddings": 128,
            "initializer_range": 0.3,
            "rms_norm_eps": 0.05,
            "tie_word_embeddings": tied,
            "bos_token_id": None,
            "eos_token_id": None,
            **changes,
        }
    )
    model: LlamaForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    return model


@cache
def exact_logits(tied: bool) -> tuple[Tensor, ...]:
    """Return the small model's own logits over every text, norms in float64 too."""
    model = with_exact_norms(small(tied=tied))
    return tuple(plain_logits(model, text) for text in TEXTS)


def lean_logits(model: CausalModel, text: list[int]) -> Tensor:
    """Return our forward's logits (n, vocabulary) over a text."""
    count = len(text)
    visible = np.tri(count, dtype=np.bool_)[None]
    step = lay_out(np.array([text]), np.arange(count), [0], visible, dtype=model.dtype, device=model.device)
    return model.forward(step, model.new_cache(1, count))[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("growth", GROWTHS)
def test_every_growth_keeps_the_logits_in_float64(growth: str, tied: bool) -> None:
    model = with_exact_norms(grown(small(tied=tied), replace(SAME, **GROWTHS[growth])))
    for text, expected in zip(TEXTS, exact_logits(tied), strict=True):
        torch.testing.assert_close(plain_logits(model, text)[:, :30], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("growth", GROWTHS)
def test_every_growth_keeps_the_logits_in_float32(growth: str) -> None:
    model = small(dtype=torch.float32)
    larger = grown(model, replace(SAME, **GROWTHS[growth]))
    for text in TEXTS:
        expected = plain_logits(model, text)
        tolerance = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(plain_logits(larger, text)[:, :30], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_lean_forward_of_a_grown_model_keeps_the_logits(growth: str) -> None:
    model = LeanModel(grown(small(), replace(SAME, **GROWTHS[growth])))
    for text, expected in zip(TEXTS, exact_logits(True), strict=True):
        torch.testing.assert_close(lean_logits(model, text)[:, :30], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_grown_model_has_the_shape_that_was_asked_for(growth: str) -> None:
    shape = replace(SAME, **GROWTHS[growth])
    model: Any = grown(small(), shape)
    attention, mlp = model.model.layers[-1].self_attn, model.model.layers[-1].mlp
    width, pairs = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    assert len(model.model.layers) == shape.num_hidden_layers
    assert attention.q_proj.weight.shape == attention.o_proj.weight.T.shape == (width, shape.hidden_size)
    assert attention.k_proj.weight.shape == attention.v_proj.weight.shape == (pairs, shape.hidden_size)
    assert mlp.gate_proj.weight.shape == mlp.down_proj.weight.T.shape == (shape.intermediate_size, shape.hidden_size)
    assert model.lm_head.weight.shape == (shape.vocab_size, shape.hidden_size)


def test_greedy_texts_stay_the_small_models() -> None:
    prompts = np.array(TEXTS)[:, :9]
    model = small()
    texts = generated(model, prompts, 40)
    assert generated(grown(model, ALL), prompts, 40) == texts
    assert len({token for text in texts for token in text}) > 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_new_ids_are_never_drawn_at_any_temperature(dtype: str) -> None:
    model = grown(small(tied=False), ALL, dtype=dtype)
    for text in TEXTS:
        logits = plain_logits(model, text)
        assert bool(logits.isfinite().all())
        assert float((logits / 1000).softmax(-1)[:, 30:].max()) == 0.0
        assert bool((logits.argmax(-1) < 30).all())


def test_old_ids_are_drawn_as_often_beside_new_ones() -> None:
    model = with_exact_norms(grown(small(), ALL))
    chances = plain_logits(model, TEXTS[0]).softmax(-1)[:, :30]
    torch.testing.assert_close(chances, exact_logits(True)[0].softmax(-1), rtol=0, atol=1e-10)


def norms_as_they_were(model: LlamaForCausalLM) -> None:
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.mul_((64 / 24) ** 0.5)


def eps_as_it_was(model: LlamaForCausalLM) -> None:
    norms: list[Any] = [module for module in model.modules() if hasattr(module, "variance_epsilon")]
    for norm in norms:
        norm.variance_epsilon = 0.05


def queries_as_they_were(model: LlamaForCausalLM) -> None:
    for name, weight in model.named_parameters():
        if "q_proj" in name:
            weight.div_(2**0.5)


def heads_that_are_not_spread(model: LlamaForCausalLM) -> None:
    """Put the numbers of a head where a turn by other angles meets them, in queries and keys alike."""
    for name, weight in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            pairs = weight.view(-1, 2, 4, 2, weight.shape[1])  # (heads, halves, old pairs, factor, hidden)
            pairs.copy_(pairs.transpose(2, 3).reshape(pairs.shape))


def layers_that_add(model: LlamaForCausalLM) -> None:
    for name, weight in model.named_parameters():
        if name == "model.layers.3.mlp.down_proj.weight":
            weight.normal_(std=0.3)


@pytest.mark.parametrize(
    "undo",
    [norms_as_they_were, eps_as_it_was, queries_as_they_were, heads_that_are_not_spread, layers_that_add],
)
def test_without_any_one_of_its_compensations_the_logits_change(undo: Callable[[LlamaForCausalLM], None]) -> None:
    model = grown(small(), replace(ALL, vocab_size=None))
    with torch.no_grad():
        undo(model)
    found = plain_logits(with_exact_norms(model), TEXTS[0])
    assert float((found - exact_logits(True)[0]).abs().max()) > 1e-2


@pytest.mark.parametrize("turning", ["linear", "llama3"])
def test_scaled_angles_grow_with_the_head(turning: str) -> None:
    angles: dict[str, Any] = {"rope_type": turning, "factor": 4.0, "rope_theta": 10000.0}
    if turning == "llama3":
        angles |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = with_exact_norms(small(rope_parameters=angles))
    larger = with_exact_norms(grown(model, ALL))
    found = plain_logits(larger, TEXTS[0])[:, :30]
    torch.testing.assert_close(found, plain_logits(model, TEXTS[0]), rtol=0, atol=1e-10)


def test_even_shapes_lose_nothing_in_bfloat16_weights() -> None:
    even = replace(SAME, hidden_size=96, head_dim=32, intermediate_size=64)
    small_one = small(dtype=torch.bfloat16)
    halves = [with_exact_norms(model.double()) for model in (small_one, grown(small_one, even))]
    found, expected = (plain_logits(model, TEXTS[0]) for model in reversed(halves))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_the_model_that_grows_is_left_as_it_is() -> None:
    model = small()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    grown(model, ALL)
    assert model.config.hidden_size == 24 and model.config.vocab_size == 30
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_equal_seeds_make_equal_models_and_others_do_not() -> None:
    first, again, other = (grown(small(), ALL, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_growing_leaves_the_random_generator_alone() -> None:
    model = small()
    before = torch.random.get_rng_state()
    grown(model, ALL, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_new_weights_are_random_where_nothing_hears_them() -> None:
    model: Any = grown(small(), ALL)
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj):
            assert bool((linear.weight != 0).all())
    assert 0.018 < model.model.layers[3].mlp.gate_proj.weight.std().item() < 0.022


def test_the_dtype_is_what_was_asked_for() -> None:
    model = grown(small(), ALL, dtype="bfloat16")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert causal_model(model, "grown").dtype == torch.bfloat16


def test_a_grown_model_survives_its_folder(tmp_path: Path) -> None:
    model = grown(small(tied=True), ALL)
    model.save_pretrained(tmp_path)
    read = load_model(str(tmp_path), dtype="float64")
    assert read.vocabulary == 50
    torch.testing.assert_close(lean_logits(read, TEXTS[0])[:, :30], exact_logits(True)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SHAPES)
def test_every_named_shape_holds_the_demos_models_it_is_for(name: str) -> None:
    shape = grown_shape(name)
    held = [*drafter_configs().values(), *([target_config()] if shape.hidden_size > 1024 else [])]
    with torch.device("meta"):
        for config in held:
            model = grown(LlamaForCausalLM(config), shape)
            assert model.config.hidden_size == shape.hidden_size


def test_the_largest_named_shape_has_as_many_parameters_as_its_name_says(tmp_path: Path) -> None:
    shape = replace(grown_shape("8b"), vocab_size=128256)
    with torch.device("meta"):
        model = grown(LlamaForCausalLM(target_config()), shape, dtype="bfloat16")
    model.config.save_pretrained(tmp_path)
    assert f"{count_parameters(tmp_path / 'config.json') / 1e9:.1f}" == "8.0"


def test_no_shape_of_an_unknown_name() -> None:
    with pytest.raises(ModelError, match="no shape is named '9b'; choose one of 8b, "):
        grown_shape("9b")


@pytest.mark.parametrize("field", [field.name for field in fields(SAME)])
def test_no_size_shrinks(field: str) -> None:
    model = small(**{field: 2 * getattr(SAME, field)})
    if field == "num_key_value_heads":
        model = small(num_key_value_heads=3)
    with pytest.raises(ModelError, match=f"{field} cannot shrink from .* give at least"):
        grown(model, SAME)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 12}, "heads of size 8 cannot be turned as ones of size 12; give a multiple"),
        ({"num_key_value_heads": 3}, "2 heads to a key-value head, where the model has 3, need 4 key-value heads and"),
        ({"vocab_size": 31}, "needs a hidden_size above 24"),
    ],
)
def test_a_shape_without_room_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        grown(small(), replace(SAME, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "with biases cannot be grown"),
        ({"mlp_bias": True}, "with biases cannot be grown"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0; leave vocab_size out"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            "heads turned by dynamic angles cannot grow; keep head_dim at 8",
        ),
    ],
)
def test_a_model_that_cannot_be_grown_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        grown(small(**changes), ALL)


def test_another_family_is_refused() -> None:
    other: Any = tiny_gpt2(seed=0, positions=8)
    with pytest.raises(ModelError, match="a GPT2LMHeadModel cannot be grown; give a LlamaForCausalLM"):
        grown(other, ALL)


def test_half_precision_is_too_narrow_for_a_larger_vocabulary_alone() -> None:
    with pytest.raises(ModelError, match=r"wider numbers than torch\.float16; use bfloat16"):
        grown(small(), ALL, dtype="float16")
    assert grown(small(), replace(ALL, vocab_size=None), dtype="float16").dtype == torch.float16


def test_shapes_that_no_model_has_are_refused() -> None:
    with pytest.raises(ModelError, match="has a size below 1"):
        replace(SAME, intermediate_size=0)
    with pytest.raises(ModelError, match="5 heads cannot share 2 key-value heads evenly; give a multiple"):
        replace(SAME, num_attention_heads=5)
    with pytest.raises(ModelError, match="a hidden_size of 25 is no multiple of 6 heads; give one"):
        replace(SAME, hidden_size=25)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(DeviceError, match=f"on {device}: .*choose another device or a smaller shape"):
        grown(small(), ALL, device=device)
