"""Train a small target and a smaller drafter on arithmetic: `python benchmarks/arithmetic_models.py -o FOLDER`.

It takes minutes on two CPU cores; one seed gives the same weights on the same machine. Existing models are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from arithmetic import ALPHABET, arithmetic_tokenizer, exam, training_tokens
from transformers import LlamaConfig, LlamaForCausalLM

from spectune.errors import TrainingError
from spectune.training.run_folder import claim
from spectune.training.trainer import TrainingSettings, train

MAKER = "spectune.training.arithmetic_models"
PROBLEMS = 30_000  # solved ones to train on
EXAM, PRACTICE = 400, 600  # problems kept from that: to be asked, and to learn pivots from
SETTINGS = {
    "target": TrainingSettings(steps=900, batch=16, sequence_tokens=64, matrix_lr=4e-3, other_lr=4e-3, seed=0),
    "small": TrainingSettings(steps=500, batch=16, sequence_tokens=64, matrix_lr=4e-3, other_lr=4e-3, seed=1),
}
SHAPES = {"target": (64, 4), "small": (32, 1)}  # hidden size and layers


def config_of(name: str) -> LlamaConfig:
    """Return the shape of the target or the drafter."""
    hidden, layers = SHAPES[name]
    return LlamaConfig(
        vocab_size=1 + len(ALPHABET),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def train_model(name: str, folder: Path, steps: int | None = None) -> list[float]:
    """Train one of the two, save it in float32 with its tokenizer, and return its losses."""
    own = SETTINGS[name]
    settings = TrainingSettings(
        steps=steps or own.steps,
        batch=own.batch,
        sequence_tokens=own.sequence_tokens,
        matrix_lr=own.matrix_lr,
        other_lr=own.other_lr,
        seed=own.seed,
    )
    torch.manual_seed(settings.seed)
    model = LlamaForCausalLM(config_of(name))

    def loss(batch: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    start, losses = time.monotonic(), []
    for step, value in enumerate(train(model, loss, training_tokens(PROBLEMS, settings.seed), settings)):
        losses.append(value)
        if step % 50 == 0:
            print(f"{name} step {step:5d}  loss {value:.4f}  {time.monotonic() - start:.0f} s", file=sys.stderr)
    model.save_pretrained(folder)
    arithmetic_tokenizer().save_pretrained(folder)
    return losses


def prepare(folder: Path) -> None:
    """Train missing models; write `prompts.jsonl`, the exam, and `practice.jsonl`, both of held-out problems."""
    for name in SHAPES:
        if not (folder / name / "model.safetensors").exists():
            train_model(name, folder / name)
    asked = [json.dumps({"prompt": problem.prompt, "answer": problem.answer}) for problem in exam(EXAM + PRACTICE)]
    for name, lines in (("prompts", asked[:EXAM]), ("practice", asked[EXAM:])):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Read the folder from the command line."""
    parser = argparse.ArgumentParser(description="Train a target and a drafter on two-digit arithmetic.")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args().output
    try:
        claim(folder, MAKER)
    except TrainingError as error:
        parser.error(str(error))
    prepare(folder)
    print(f"target, small, prompts.jsonl and practice.jsonl are in {folder}")


if __name__ == "__main__":
    main()
