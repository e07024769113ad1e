"""Profiles of a simulated engine whose concurrencies want lengths of their own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from spectune.db.store import Store
from spectune.engines.measured import EngineLoad, Sample
from spectune.profiler.prompts import Prompt
from spectune.tuning.engines.profile import EngineRequest, profile_engine
from spectune.tuning.request import Models

from .simulated_engine import SimulatedEngine

NEW_TOKENS = 64
PROMPTS = tuple(Prompt(text=f"{number} things to say about {number * 7}") for number in range(12))


def apart(concurrency: int, who: str, share: float, drafted: float) -> float:
    """Return milliseconds of a round: a drafted token takes little at 1 sequence and much at 4; copies pay nowhere."""
    token_ms = 9.0 if not who else 0.5 if concurrency == 1 else 3.5
    return 10.0 + token_ms * drafted


def engine_apart() -> SimulatedEngine:
    """Return an engine with this law, of a recorded version."""
    return SimulatedEngine(right={"small": 0.8}, curve=apart, version="b11549")


def saved_models(root: Path, drafters: Iterable[str] = ("small",)) -> Models:
    """Return a target and drafters that have an identity, and no more."""
    names = tuple(drafters)
    for place, name in enumerate(("target", *names)):
        (root / name).mkdir()
        (root / name / "config.json").write_text("{}")
        save_file({"weight": np.full(3, place, dtype=np.float32)}, root / name / "model.safetensors")
    return Models(target=root / "target", drafters={name: root / name for name in names})


def profiled(models: Models, store: Store, *concurrencies: int) -> None:
    """Keep a profile of the engine at 1 and 4 sequences, or at others."""
    request = EngineRequest(
        engine="llama.cpp",
        models=models,
        prompts=PROMPTS,
        concurrencies=concurrencies or (1, 4),
        max_new_tokens=NEW_TOKENS,
        turns=3,
    )
    profile_engine(request, engine_apart(), store, progress=lambda what, share: None)


def speed(length: int, concurrency: int) -> float:
    """Return the tokens/s of chains of a length, decoded."""
    engine = engine_apart()
    (drafter,) = engine.drafters
    prompts = engine.encode([prompt.text for prompt in PROMPTS])
    with engine.started(engine.chain(drafter, length), EngineLoad(concurrency=concurrency, capacity=512)) as running:
        groups = [prompts[at : at + concurrency] for at in range(0, len(prompts), concurrency)]
        whole = Sample(texts=tuple(text for group in groups for text in running.decode(group, NEW_TOKENS)))
    return 1000.0 * concurrency * whole.tokens_per_round / whole.round_ms
