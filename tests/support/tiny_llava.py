"""A tiny random Llava, images for it, and what transformers itself says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.runtime.batch.images import Image
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.vision import Lens

from .tiny_models import with_exact_norms

SIDE, PATCH = 8, 4
SIZE = (SIDE // PATCH) ** 2  # tokens of an image
VOCABULARY, PLACEHOLDER = 24, 23


def tiny_llava(
    *, layers: int = 4, seed: int = 0, vocabulary: int = VOCABULARY, hidden: int = 32, side: int = SIDE, width: int = 16
) -> LlavaForConditionalGeneration:
    """Return a random Llava in float64 with spread weights, whose placeholder is its last token.

    Args:
        layers: of the language model.
        seed: of the weights.
        vocabulary: of the language model.
        hidden: of the language model.
        side: pixels of an image.
        width: of the vision tower.
    """
    torch.manual_seed(seed)
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    vision = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=side,
        patch_size=PATCH,
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=vocabulary - 1,
        image_seq_length=(side // PATCH) ** 2,
        vision_feature_layer=-1,
    )
    made: Any = LlavaForConditionalGeneration(config)  # Any: its `eval` is typed for the module class
    model: LlavaForConditionalGeneration = made.eval().double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "vision" in name or "projector" in name:
                weight.copy_(0.7 * torch.randn_like(weight))
    return with_exact_norms(model)


def random_image(seed: int, side: int = SIDE) -> Image:
    """Return an image of noise."""
    return Image(np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8))


def with_images(prompt: Sequence[int], images: Sequence[Image]) -> tuple[int, ...]:
    """Return a prompt in which each placeholder became the ids of the next image."""
    found: list[int] = []
    place = 0
    for token in prompt:
        if token == PLACEHOLDER:
            found += range(IMAGE_IDS + place * SIZE, IMAGE_IDS + (place + 1) * SIZE)
            place += 1
        else:
            found.append(token)
    assert place == len(images)
    return tuple(found)


def seeing_requests(count: int, *, tokens: int, temperature: float = 0.0, **more: Any) -> list[Request]:
    """Return requests of which the first of three has one image, the second two and the third none."""
    rng = np.random.default_rng(count)
    found = []
    for index in range(count):
        shown = (1, 2, 0)[index % 3]
        prompt = rng.integers(0, PLACEHOLDER, 2 + index % 7).tolist()
        for _ in range(shown):
            prompt.insert(int(rng.integers(len(prompt))), PLACEHOLDER)
        images = tuple(random_image(int(seed)) for seed in rng.integers(0, 5, shown))
        found.append(
            Request(
                prompt=with_images(prompt, images),
                images=images,
                max_new_tokens=tokens + index % 4,
                temperature=temperature,
                seed=index,
                **more,
            )
        )
    return found


def said_by_transformers(model: LlavaForConditionalGeneration, request: Request) -> tuple[int, ...]:
    """Continue a request by transformers' own greedy `generate`, from pixels."""
    ids = torch.tensor([[PLACEHOLDER if token >= IMAGE_IDS else token for token in request.prompt]])
    given: dict[str, Any] = {}
    if request.images:
        lens = Lens(side=SIDE, shortest=SIDE)
        given["pixel_values"] = torch.stack([lens.pixels(image) for image in request.images]).to(model.dtype)
    out = cast(Any, model).generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **given,
    )
    return tuple(out[0, ids.shape[1] :].tolist())
