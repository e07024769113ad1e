"""Train a small Llava on coloured shapes: `python benchmarks/shapes_models.py -o FOLDER`.

It takes minutes on one CPU core; one seed gives the same weights on the same machine. Existing models are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from shapes import ALPHABET, PROMPT, SIDE, Scene, scenes, shapes_tokenizer
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from spectune.errors import TrainingError
from spectune.runtime.batch.images import Image
from spectune.runtime.models.vision import Lens
from spectune.training.run_folder import claim
from spectune.training.trainer import TrainingSettings, train

MAKER = "spectune.training.shapes_models"
PATCH = 8
IMAGE_TOKENS = (SIDE // PATCH) ** 2
LENS = Lens(side=SIDE, shortest=SIDE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
PICTURES = 6000  # to train on
PROMPTS, PROFILE, EXAM = 240, 24, 60  # pictures to be captioned: for drafters, for plans, and of the held-out part
SETTINGS = TrainingSettings(steps=1000, batch=16, sequence_tokens=1, matrix_lr=4e-3, other_lr=3e-3, seed=0)
IGNORED = -100  # stands where no token is to be said


@dataclass(frozen=True, slots=True, kw_only=True)
class Captioned:
    """Pictures and their captions, padded to the longest.

    `pixels` is (pictures, 3, side, side); `ids` (pictures, columns), prompt with placeholders, caption and end;
    `wanted` (pictures, columns), the token behind each place, IGNORED in the prompt and behind the end.
    """

    pixels: Tensor
    ids: Tensor
    wanted: Tensor


def config_of() -> LlavaConfig:
    """Return the shape of the model: eight layers for text, behind a tower of two for images."""
    text = LlamaConfig(
        vocab_size=2 + len(ALPHABET),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    vision = CLIPVisionConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
    )
    return LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=1 + len(ALPHABET),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
    )


def captioned(count: int, seed: int = 0) -> Captioned:
    """Return so many pictures of the training part with captions."""
    rng, tokenizer = np.random.default_rng(seed), shapes_tokenizer()
    begun = _expanded(tokenizer(PROMPT)["input_ids"])
    pictures: list[Image] = []
    texts: list[list[int]] = []
    for _, scene in zip(range(count), scenes(seed, is_held_out=False), strict=False):
        pictures.append(scene.draw(rng))
        texts.append([*tokenizer(scene.caption(rng))["input_ids"], 0])
    columns = len(begun) + max(map(len, texts)) - 1
    ids, wanted = np.zeros((count, columns), dtype=np.int64), np.full((count, columns), IGNORED)
    for row, text in enumerate(texts):
        whole = [*begun, *text]
        ids[row, : len(whole) - 1] = whole[:-1]
        wanted[row, len(begun) - 1 : len(whole) - 1] = text
    pixels = torch.stack([LENS.pixels(picture) for picture in pictures])
    return Captioned(pixels=pixels, ids=torch.from_numpy(ids), wanted=torch.from_numpy(wanted))


def train_model(folder: Path, settings: TrainingSettings = SETTINGS, pictures: int = PICTURES) -> list[float]:
    """Train the model, save it in float32 with tokenizer and preprocessing; return its losses."""
    data = captioned(pictures, settings.seed)
    torch.manual_seed(settings.seed)
    model = LlavaForConditionalGeneration(config_of())

    def loss(picked: Tensor) -> Tensor:
        rows = picked[:, 0]
        logits = model(input_ids=data.ids[rows], pixel_values=data.pixels[rows]).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), data.wanted[rows].flatten(), ignore_index=IGNORED)

    start, losses = time.monotonic(), []
    places: NDArray[np.int64] = np.arange(pictures)
    for step, value in enumerate(train(model, loss, places, settings)):
        losses.append(value)
        if step % 50 == 0:
            print(f"step {step:5d}  loss {value:.4f}  {time.monotonic() - start:.0f} s", file=sys.stderr)
    model.save_pretrained(folder)
    shapes_tokenizer().save_pretrained(folder)
    said = {"size": {"shortest_edge": SIDE}, "image_mean": LENS.mean, "image_std": LENS.std}
    (folder / "preprocessor_config.json").write_text(json.dumps(said, indent=1) + "\n")
    return losses


def save_prompts(path: Path, shown: Sequence[Scene], seed: int) -> None:
    """Draw scenes, and write prompts for their captions: one line each, and the picture's file."""
    rng, lines = np.random.default_rng(seed), []
    (path.parent / path.stem).mkdir(parents=True, exist_ok=True)
    for place, scene in enumerate(shown):
        picture = f"{path.stem}/{place:04d}.npy"
        np.save(path.parent / picture, scene.draw(rng).pixels)
        lines.append({"prompt": PROMPT, "image": picture, "answer": scene.answer})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def prepare(folder: Path, settings: TrainingSettings = SETTINGS) -> None:
    """Train the model unless it exists; write prompts for drafters, profile for plans, exam of unseen scenes."""
    if not (folder / "target" / "model.safetensors").exists():
        train_model(folder / "target", settings)
    parts = (("prompts", PROMPTS, False), ("profile", PROFILE, False), ("exam", EXAM, True))
    for seed, (name, count, is_held_out) in enumerate(parts, start=settings.seed + 1):
        shown = [scene for _, scene in zip(range(count), scenes(seed, is_held_out=is_held_out), strict=False)]
        save_prompts(folder / f"{name}.jsonl", shown, seed)


def main() -> None:
    """Read the folder from the command line."""
    parser = argparse.ArgumentParser(description="Train a small vision-language model on coloured shapes.")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--steps", default=SETTINGS.steps, type=int, metavar="N")
    asked = parser.parse_args()
    folder: Path = asked.output
    try:
        claim(folder, MAKER)
    except TrainingError as error:
        parser.error(str(error))
    prepare(folder, replace(SETTINGS, steps=asked.steps))
    print(f"target, prompts.jsonl, profile.jsonl and exam.jsonl are in {folder}")


def _expanded(ids: Sequence[int]) -> list[int]:
    mark = 1 + len(ALPHABET)
    return [one for token in ids for one in ([mark] * IMAGE_TOKENS if token == mark else [token])]


if __name__ == "__main__":
    main()
