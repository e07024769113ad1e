"""A made-up language: a target, drafters of chosen skill, their traces, and surfaces of chosen cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface

VOCABULARY = 8
KINDS = (
    *("plain", "chain", "confident-chain", "lookup", "suffix", "suffix-tree", "cacheback", "hybrid"),
    *("static", "eagle2", "talon", "opt-tree", "cast", "stack"),
)
DEVICE = Device(kind="cpu", name="Abacus", index=0, memory_bytes=2**34, cores=2, threads=2)

Best = list[tuple[int, np.float32]]
Milliseconds = Callable[[int, int, int], float]  # (batch, context, tokens)


@dataclass(frozen=True)
class Language:
    """The target: its next token is a function of the last two, now and then of the whole text's length."""

    seed: int

    def next(self, tokens: Sequence[int]) -> int:
        source = random.Random(repr((self.seed, tuple(tokens[-2:]))))
        if source.random() < 0.2:
            source = random.Random(repr((self.seed, tuple(tokens[-2:]), len(tokens))))
        return source.randrange(VOCABULARY)

    def continued(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.next(tokens))
        return tuple(tokens[len(prompt) :])


@dataclass(frozen=True)
class SkilledDrafter:
    """Ranks the target's own token first with probability `skill`, elsewhere among the next ones."""

    language: Language
    skill: float
    seed: int = 0

    def best(self, tokens: tuple[int, ...], count: int) -> Best:
        return _ranked(self, tokens[-2:], len(tokens))[:count]


@lru_cache(maxsize=100_000)
def _ranked(drafter: SkilledDrafter, last: tuple[int, ...], length: int) -> Best:
    source = random.Random(repr((drafter.seed, last, length)))
    true = drafter.language.next((0,) * (length - len(last)) + last)
    order = [token for token in range(VOCABULARY) if token != true]
    source.shuffle(order)
    order.insert(0 if source.random() < drafter.skill else source.randrange(1, VOCABULARY), true)
    weights = sorted((source.random() ** 3 + 1e-3 for _ in order), reverse=True)
    return [(token, np.float32(np.log(weight / sum(weights)))) for token, weight in zip(order, weights, strict=True)]


def texts(
    language: Language, count: int, tokens: Callable[[int], int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return (prompt, continuation) pairs; tokens(i) long continuations."""
    source = random.Random(language.seed)
    prompts = [tuple(source.randrange(VOCABULARY) for _ in range(3 + i % 4)) for i in range(count)]
    return [(prompt, language.continued(prompt, tokens(i))) for i, prompt in enumerate(prompts)]


Nodes = list[tuple[int, ...]]  # ranks on the path from the root, () = the root


def every_node(depth: int, children: int) -> Nodes:
    """All nodes down to a depth."""
    nodes: Nodes = [()]
    for node in nodes:
        if len(node) < depth:
            nodes += [(*node, rank) for rank in range(children)]
    return nodes


def record(
    drafter: SkilledDrafter,
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    nodes: Nodes,
    *,
    children: int = 3,
    name: str = "small",
    prefix_exact: bool = True,
) -> AcceptanceTrace:
    """Record the same nodes at every position; nodes stand after their parents."""
    return AcceptanceTrace(
        target=TARGET.key,
        drafter=model(name).key,
        drafter_name=name,
        workload="made up",
        temperature=0.0,
        seed=0,
        children=children,
        prefix_exact=prefix_exact,
        prompts=tuple(_prompt_trace(drafter, prompt, text, nodes, children) for prompt, text in pairs),
    )


def _prompt_trace(
    drafter: SkilledDrafter, prompt: tuple[int, ...], text: tuple[int, ...], nodes: Nodes, children: int
) -> PromptTrace:
    place = {node: index for index, node in enumerate(nodes)}
    log_probs, hits = [], []
    for now in range(1, len(text)):
        for node in nodes:
            path = prompt + text[:now]
            for rank in node:
                path += (drafter.best(path, rank + 1)[rank][0],)
            best = drafter.best(path, children)
            log_probs.append([score for _, score in best])
            hits.append(_hit(path, [token for token, _ in best], prompt + text))
    positions = len(text) - 1
    return PromptTrace(
        prompt=prompt,
        continuation=text,
        next_rank=np.array(hits[:: len(nodes)], dtype=np.uint8),
        offsets=np.arange(positions + 1, dtype=np.int32) * len(nodes),
        parent=np.array([place[node[:-1]] if node else -1 for node in nodes] * positions, dtype=np.int16),
        rank=np.array([node[-1] if node else 0 for node in nodes] * positions, dtype=np.uint8),
        log_probs=np.array(log_probs, dtype=np.float32),
        hit_rank=np.array(hits, dtype=np.uint8),
    )


def _hit(path: tuple[int, ...], best: list[int], truth: tuple[int, ...]) -> int:
    is_on_path = len(path) < len(truth) and truth[: len(path)] == path
    return best.index(truth[len(path)]) if is_on_path and truth[len(path)] in best else MISS


def model(name: str) -> ModelIdentity:
    """Return an identity whose hash is the name's."""
    digest = (name.encode().hex() + "0" * 64)[:64]
    return ModelIdentity(
        name=name, weights_hash=digest, parameters=1000, config_hash=digest, tokenizer_hash="", location="nowhere"
    )


TARGET = model("large")


def surface(
    name: str,
    role: str,
    ms: Milliseconds,
    *,
    batches: Sequence[int] = (1, 3),
    contexts: Sequence[int] = (2, 200),
    tokens: Sequence[int] = tuple(range(1, 65)),
) -> LatencySurface:
    """Return a surface without noise."""
    cells = [
        Measurement(batch=batch, context_tokens=context, tokens=count, repeats_ms=(ms(batch, context, count),) * 3)
        for batch in batches
        for context in contexts
        for count in tokens
    ]
    key = model(name).key
    return LatencySurface(
        device=DEVICE.fingerprint, model=key, role=role, regime="eager", dtype="float32", measurements=tuple(cells)
    )


def overhead(host_ms: float, batches: Sequence[int] = (1, 3)) -> RoundOverhead:
    """Return the same host time for every kind of policy."""
    samples = [
        OverheadSample(kind=kind, batch=batch, draft_forwards=0, nodes=1, host_ms=(host_ms,))
        for kind in KINDS
        for batch in batches
    ]
    return RoundOverhead(device=DEVICE.fingerprint, target=TARGET.key, dtype="float32", samples=tuple(samples))


def inputs(
    trace: AcceptanceTrace,
    *,
    verify_ms: Milliseconds = lambda batch, context, tokens: 10.0 + 0.1 * tokens,
    draft_ms: Milliseconds = lambda batch, context, tokens: 1.0,
    host_ms: float = 0.1,
) -> PlanInputs:
    """Return the inputs of a plan with one drafter."""
    name = trace.drafter_name
    drafter = DrafterInputs(name=name, model=model(name), surface=surface(name, "draft", draft_ms), trace=trace)
    return PlanInputs(
        device=DEVICE,
        target=TARGET,
        dtype="float32",
        verify=surface("large", "verify", verify_ms),
        overhead=overhead(host_ms),
        drafters=(drafter,),
    )
