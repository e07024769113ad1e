"""Train the demo family from nothing: tokenizer, target, then drafters distilled on the target.

`python benchmarks/demo_models.py FOLDER` takes about 1.5 hours on 2 cores; a stage whose result is in the folder is not
run again.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from demo_corpus import VOCABULARY, held_out_texts, train_tokenizer, training_texts, write_prompts
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, always
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models.loading import load_model
from spectune.training.run_folder import claim
from spectune.training.trainer import TrainingSettings, train

MAKER = "benchmarks/demo_models.py"
TARGET_SETTINGS = TrainingSettings(steps=1300, batch=8, sequence_tokens=512, matrix_lr=2e-3, other_lr=2e-3)
DISTILLATION = TrainingSettings(steps=400, batch=8, sequence_tokens=512, matrix_lr=3e-3, other_lr=3e-3)
OWN_TEXTS, OWN_TOKENS, OWN_PROMPT = 1536, 224, 32  # the target's own continuations of corpus prompts
OWN_SHARE_SAMPLED = 0.5  # of them at temperature 0.8, the others greedy
Tokens = NDArray[np.uint16]


def prepare_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the family's tokenizer, trained and saved in folder unless it is there."""
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(training_texts()).save_pretrained(folder)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tokens:
    """Return all texts as one array of token ids, end-of-text after each."""
    batches = tokenizer.backend_tokenizer.encode_batch(texts)
    ids = [np.asarray([*e.ids, tokenizer.eos_token_id], dtype=np.uint16) for e in batches]
    return np.concatenate(ids)


def train_target(folder: Path, training: Tokens, held_out: Tokens) -> None:
    """Train the target on the corpus and save it in folder as bf16 safetensors."""
    torch.manual_seed(TARGET_SETTINGS.seed)
    model = LlamaForCausalLM(target_config())
    losses = train(model, lambda batch: next_token_loss(model, batch), training, TARGET_SETTINGS)
    _report("target", losses, lambda: held_out_loss(model, held_out), lambda: _save(model, folder / "partial"))
    _save(model, folder)


def next_token_loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy of each token given the ones before it, in nats."""
    logits = model(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, held_out: Tokens, windows: int = 24, width: int = 512) -> float:
    """Return the mean loss in nats over evenly spread windows of held-out text."""
    starts = np.linspace(0, len(held_out) - width - 1, windows).astype(int)
    batch = torch.from_numpy(np.stack([held_out[s : s + width + 1] for s in starts]).astype(np.int64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return float(torch.stack([next_token_loss(model, part) for part in torch.split(batch, 8)]).mean())


@torch.no_grad()
def own_texts(target: Path, corpus: Tokens, seed: int = 0) -> Tokens:
    """Return the target's own continuations of random corpus prompts, prompts included."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(corpus) - OWN_PROMPT, OWN_TEXTS)
    requests = [
        Request(
            prompt=tuple(corpus[start : start + OWN_PROMPT].tolist()),
            max_new_tokens=OWN_TOKENS,
            temperature=0.8 if index < OWN_SHARE_SAMPLED * OWN_TEXTS else 0.0,
            seed=index,
        )
        for index, start in enumerate(starts)
    ]
    slots = 96
    model = load_model(str(target), dtype="bfloat16")
    decoder = Engine(model, {}, always(PLAIN), slots=slots, capacity=OWN_PROMPT + OWN_TOKENS + 1)
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in requests[::-1]]  # the sampled ones last
    while scheduler.schedule():
        decoder.step()
    return np.concatenate([np.asarray([*s.tokens, 0], dtype=np.uint16) for s in sequences_of(states)])


def train_drafters(folder: Path, training: Tokens) -> None:
    """Distil every drafter on the target's own texts and the corpus, and save each in its folder."""
    target = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    own = own_texts(folder / "target", training)
    _say(f"{len(own):,} tokens of the target's own")
    rng = np.random.default_rng(1)
    pieces = np.array_split(training, len(training) // 4096)
    corpus = np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
    needed = DISTILLATION.steps * DISTILLATION.batch * DISTILLATION.sequence_tokens
    mixed = np.concatenate([own, corpus[: max(needed - 2 * len(own), len(own))], own])
    torch.manual_seed(1)
    drafters = {name: LlamaForCausalLM(config) for name, config in drafter_configs().items()}
    losses = distil(drafters, target, mixed, DISTILLATION)

    def save() -> None:
        for name, drafter in drafters.items():
            _save(drafter, folder / name)

    _report("drafters", losses, None, lambda: None)
    save()


def _save(model: LlamaForCausalLM, folder: Path) -> None:
    copy.deepcopy(model).bfloat16().save_pretrained(folder)


def _report(name: str, losses: Iterable[float], held_out: Callable[[], float] | None, save: Callable[[], None]) -> None:
    start = time.monotonic()
    for step, loss in enumerate(losses):
        if step % 20 == 0:
            _say(f"{name} step {step:5d}  loss {loss:.3f}  {time.monotonic() - start:.0f} s")
        if step and step % 200 == 0:
            if held_out is not None:
                _say(f"{name} step {step:5d}  held-out loss {held_out():.3f}")
            save()
    final = "" if held_out is None else f"  held-out loss {held_out():.3f}"
    _say(f"{name} done{final}  {time.monotonic() - start:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(folder: Path) -> None:
    """Train what of the family is not in the folder; raise TrainingError where that holds anything else."""
    claim(folder, MAKER)
    tokenizer = prepare_tokenizer(folder / "tokenizer")
    training, held_out = encode(tokenizer, training_texts()), encode(tokenizer, held_out_texts())
    _say(f"{len(training):,} training tokens, {len(held_out):,} held out")
    if not (folder / "target" / "model.safetensors").exists():
        train_target(folder / "target", training, held_out)
    if not all((folder / name / "model.safetensors").exists() for name in drafter_configs()):
        train_drafters(folder, training)
    for name in ("target", *drafter_configs()):
        tokenizer.save_pretrained(folder / name)
    write_prompts(folder, tokenizer)


def target_config() -> LlamaConfig:
    """Return the target's shape: 8 layers x 384, 14.2 M parameters."""
    return _llama(layers=8, hidden=384, intermediate=1024, heads=6, key_value_heads=2)


def drafter_configs() -> dict[str, LlamaConfig]:
    """Return each drafter's shape by name: one and two layers of 256."""
    return {
        "small": _llama(layers=1, hidden=256, intermediate=704, heads=4, key_value_heads=2),
        "medium": _llama(layers=2, hidden=256, intermediate=704, heads=4, key_value_heads=2),
    }


def _llama(*, layers: int, hidden: int, intermediate: int, heads: int, key_value_heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=hidden // heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def distil(
    drafters: Mapping[str, PreTrainedModel],
    target: PreTrainedModel,
    tokens: NDArray[np.uint16],
    settings: TrainingSettings,
) -> Iterator[float]:
    """Train drafters with the target's vocabulary in place, with one target forward a step; yield each summed loss."""
    family = torch.nn.ModuleDict(dict(drafters))
    return train(family, lambda batch: _divergence(drafters, target, batch[:, :-1]), tokens, settings)


def _divergence(drafters: Mapping[str, PreTrainedModel], target: PreTrainedModel, batch: Tensor) -> Tensor:
    """Return the sum over drafters of the mean KL(target || drafter), in nats per token."""
    with torch.no_grad():
        labels = target(input_ids=batch).logits.float().log_softmax(-1).flatten(0, 1)
    losses = []
    for drafter in drafters.values():
        guess = drafter(input_ids=batch).logits.float().log_softmax(-1).flatten(0, 1)
        losses.append(torch.nn.functional.kl_div(guess, labels, log_target=True, reduction="batchmean"))
    return torch.stack(losses).sum()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
