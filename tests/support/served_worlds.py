"""Worlds in which a server decodes: who is right where, what a round costs, and what noise adds.

Nothing of spectune is imported here. A text is a row of places; a drafter is right at some of them, in stretches, as
real ones are. A chain of k tokens behind a place yields the places from there on at which it is right, at most k, and
one token of the target. A round costs what its tokens cost together: flat while memory is awaited, in steps behind, and
more behind a cliff.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

TOKENS = 96  # of every answer
NOISE = 0.05  # of one answer's time


@dataclass
class Drafter:
    """Who drafts: where it is right, in what share of places it drafts at all, and what a token costs it."""

    right: np.ndarray  # (prompts, places), bool
    drafts: np.ndarray  # likewise: whether it has anything to say
    forward_ms: float


@dataclass
class World:
    """One server on one device, with its prompts."""

    drafters: dict[str, Drafter]
    plain_ms: float
    token_ms: float
    step: int  # tokens of a tile
    step_ms: float
    cliff: int  # tokens of a forward behind which all is slower
    cliff_factor: float
    drafting_ms: float
    prefill_ms: float
    thrash: float = 1.0  # by how much rounds are slower where lengths differ by batch
    walked: dict[tuple[str, int, int], list[tuple[int, int]]] = field(default_factory=dict)  # what `walk` returned
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def round_ms(self, concurrency: int, source: str, length: int) -> float:
        """Return what a round costs, without noise."""
        tokens = concurrency * (length + 1)
        ms = self.plain_ms + self.token_ms * tokens + self.step_ms * ((tokens - 1) // self.step)
        if tokens > self.cliff:
            ms *= self.cliff_factor
        if length:
            ms += self.drafting_ms + self.drafters[source].forward_ms * length
        return ms

    def walk(self, source: str, length: int, prompt: int) -> list[tuple[int, int]]:
        """Return (drafted, accepted) of every round of an answer; its first token is there before."""
        known = self.walked.get((source, length, prompt))
        if known is None:
            known = self.walked[source, length, prompt] = self._walk(source, length, prompt)
        return known

    def _walk(self, source: str, length: int, prompt: int) -> list[tuple[int, int]]:
        found, place = [], 1
        while place < TOKENS:
            drafted = accepted = 0
            if length and self.drafters[source].drafts[prompt, place]:
                drafted = length
                while accepted < length and self.drafters[source].right[prompt, place + accepted]:
                    accepted += 1
            found.append((drafted, accepted))
            place += accepted + 1
        return found

    def answer_ms(self, concurrency: int, source: str, length: int, prompt: int) -> float:
        """Return what decoding an answer takes behind its first token, without noise."""
        plain = self.round_ms(concurrency, source, 0)
        drafting = self.round_ms(concurrency, source, length)
        return sum(drafting if drafted else plain for drafted, _ in self.walk(source, length, prompt))

    def speed(self, concurrency: int, source: str, length: int, prompts: range) -> float:
        """Return the true tokens per second of all sequences together."""
        ms = sum(self.prefill_ms + self.answer_ms(concurrency, source, length, prompt) for prompt in prompts)
        return 1000.0 * concurrency * TOKENS * len(prompts) / ms


def world_of(seed: int, prompts: int) -> World:
    """Return a world: drafters from poor to very good, devices that wait for memory or compute."""
    rng = np.random.default_rng(seed)
    places = TOKENS + 40
    good = rng.uniform(0.45, 0.9)
    drafters = {
        "small": Drafter(
            right=stretches(rng, prompts, places, good, rng.uniform(0.1, 0.4)),
            drafts=np.ones((prompts, places), dtype=bool),
            forward_ms=rng.uniform(0.02, 0.25) * 10.0,
        ),
        "n-grams": Drafter(
            right=stretches(rng, prompts, places, rng.uniform(0.3, 0.8), 0.3),
            drafts=stretches(rng, prompts, places, rng.uniform(0.1, 0.5), 0.3),
            forward_ms=0.0,
        ),
    }
    return World(
        drafters=drafters,
        plain_ms=10.0,
        token_ms=rng.choice([0.005, 0.05, 0.3]),
        step=int(rng.choice([8, 16, 64])),
        step_ms=rng.uniform(0.0, 3.0),
        cliff=int(rng.choice([12, 24, 48, 10_000])),
        cliff_factor=rng.uniform(1.3, 3.0),
        drafting_ms=rng.uniform(0.0, 1.5),
        prefill_ms=rng.uniform(20.0, 200.0),
        rng=rng,
    )


def stretches(rng: np.random.Generator, prompts: int, places: int, mean: float, spread: float) -> np.ndarray:
    """Return bools that come in stretches, with another mean for every prompt."""
    own = np.clip(mean + spread * rng.standard_normal(prompts), 0.05, 0.97)[:, None]
    easy = np.zeros((prompts, places), dtype=bool)
    easy[:, 0] = rng.random(prompts) < 0.5
    for place in range(1, places):
        stays = rng.random(prompts) < 0.85
        easy[:, place] = np.where(stays, easy[:, place - 1], rng.random(prompts) < 0.5)
    chance = np.where(easy, np.sqrt(own), own**1.5)
    return rng.random((prompts, places)) < chance
