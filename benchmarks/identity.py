"""Is greedy output the target's own, whatever drafts it? 200 prompts of 64 tokens, in fp32 judged by transformers.

    python benchmarks/identity.py [--prompts 200] [--tokens 64] [--batch 8] [--dtype bfloat16]

The demo family decodes pieces of held-out standard-library sources by chains, trees, copies of the text and stacks,
eight at a time. Each emitted token is compared with the first choice of transformers' own forward over the whole text.
Logits closer than 1e-4 may be ordered either way by fp32 forwards of different shapes; such near-ties are counted
apart. Counts of tokens and rounds are printed, so that one sees that drafts were accepted and refused. The last line is
one JSON object.

In another number format two implementations round differently, so the judge is our own plain decoding there, every
prompt by itself, and no near-tie is excused.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from demo_corpus import held_out_texts

from spectune.demo.story import family_folder, family_models
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.device import detect
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.loading import load_pretrained, load_tokenizer
from spectune.tuning.family import EXACT_DTYPE, load_family
from spectune.tuning.measuring.decoding import DecodingRun, Family, decode_timed, room_for
from spectune.tuning.measuring.exact import Judgement, judge

from result import print_result  # isort: skip

Judging = Callable[[Sequence[Request], Sequence[Sequence[int]]], Judgement]

LOOKUP = "lookup"
PROMPT_TOKENS = (8, 64)  # shortest and longest
CAST = CastPolicy(
    breadth=0.02,
    depth=0.02,
    rerank=0.05,
    max_width=6,
    max_depth=4,
    max_verify_tokens=20,
    ratio_window=3,
    draft_cost_ms=(0.0, *(1 + 0.05 * width for width in range(6))),
    verify_cost_ms=(0.0, *(8 + 0.2 * tokens for tokens in range(20))),
)
BUSHY = TokenTree(parents=(-1, 0, 0, 0, 1, 1, 2, 4, 7), ranks=(0, 0, 1, 2, 0, 1, 0, 0, 0))
STACKS = (
    StackPolicy(drafters=("medium", "small"), lengths=(4, 2)),
    StackPolicy(drafters=("medium", "small", "lookup"), lengths=(5, 3, 3), siblings=1),
)
WAYS: Mapping[str, StepConfig] = {
    "plain": StepConfig(policy=PlainPolicy(), run_tokens=(0, 2)),
    "chain": StepConfig(policy=ChainPolicy(length=4), drafter="small"),
    "confident chain": StepConfig(policy=ConfidentChainPolicy(length=8, confidence=0.4), drafter="medium"),
    "static": StepConfig(policy=StaticPolicy(tree=BUSHY), drafter="small"),
    "EAGLE-2": StepConfig(policy=Eagle2Policy(verify_tokens=24, depth=3, top_k=6), drafter="medium"),
    "TALON": StepConfig(policy=TalonPolicy(nodes=16, gate=0.1), drafter="small"),
    "OPT-Tree": StepConfig(policy=OptTreePolicy(nodes=12, least_gain=0.2, max_depth=4, children=5), drafter="medium"),
    "CAST": StepConfig(policy=CAST, drafter="small"),
    "lookup": StepConfig(policy=LookupPolicy(length=6), drafter=LOOKUP),
    "suffixes": StepConfig(policy=SuffixPolicy(length=8), drafter=LOOKUP),
    "suffix tree": StepConfig(policy=SuffixTreePolicy(nodes=12), drafter=LOOKUP),
    "Cacheback": StepConfig(policy=CachebackPolicy(nodes=12), drafter=LOOKUP),
    "hybrid": StepConfig(
        policy=HybridPolicy(text=SuffixPolicy(length=6, min_match=4), model=ChainPolicy(length=3)), drafter="small"
    ),
    **{stack_name(policy): StepConfig(policy=policy, drafter=stack_name(policy)) for policy in STACKS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one way of decoding emitted."""

    way: str
    tokens: int
    rounds: int  # summed over sequences
    near_ties: int
    wrong: int
    seconds: float


def main() -> int:
    """Decode and judge by every way; return 1 where a token is not the target's own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", default=EXACT_DTYPE)
    asked = parser.parse_args()
    models = family_models(family_folder())
    family = load_family(models, dtype=asked.dtype, device="cpu")
    requests = [
        Request(prompt=prompt, max_new_tokens=asked.tokens)
        for prompt in random_prompts(asked.prompts, np.random.default_rng(0))
    ]
    if asked.dtype == EXACT_DTYPE:
        judging: Judging = partial(judge, load_pretrained(str(models.target), dtype=EXACT_DTYPE))
    else:
        judging = OwnJudge(decoded(WAYS["plain"], family, requests, batch=1).texts)
    rows = [judged(way, setup, family, judging, requests, asked.batch) for way, setup in WAYS.items()]
    checks = {
        f"{len(requests)} prompts x {asked.tokens} tokens": len(requests) >= 200 and asked.tokens >= 64,
        "every token is the target's own": all(row.wrong == 0 for row in rows),
        "drafts were accepted": all(row.tokens > row.rounds for row in rows if row.way != "plain"),
        "all ways emit as many tokens": len({row.tokens for row in rows}) == 1,
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "identity",
        "device": detect("cpu").label,
        "dtype": asked.dtype,
        "rows": [asdict(row) for row in rows],
    }
    print_result({**result, "checks": checks, "holds": all(checks.values()), "not_run": ["H200"]})
    return 0 if all(checks.values()) else 1


@dataclass(frozen=True, slots=True)
class OwnJudge:
    """Compares texts with those that plain decoding wrote."""

    texts: Sequence[Sequence[int]]

    def __call__(self, requests: Sequence[Request], texts: Sequence[Sequence[int]]) -> Judgement:
        """Return how many tokens are others."""
        pairs = [
            (own, token)
            for mine, text in zip(self.texts, texts, strict=True)
            for own, token in zip(mine, text, strict=True)
        ]
        return Judgement(near_ties=0, wrong=sum(own != token for own, token in pairs))


def judged(
    way: str, setup: StepConfig, family: Family, judging: Judging, requests: Sequence[Request], batch: int
) -> Row:
    """Decode all requests one way and count the tokens that are not the target's own."""
    started = time.monotonic()
    run = decoded(setup, family, requests, batch)
    judgement = judging(requests, run.texts)
    row = Row(
        way=way,
        tokens=sum(sum(timed.round.kept) for timed in run.rounds),
        rounds=sum(len(timed.round.kept) for timed in run.rounds),
        near_ties=judgement.near_ties,
        wrong=judgement.wrong,
        seconds=time.monotonic() - started,
    )
    print(
        f"{way:16} {row.tokens:6} tokens in {row.rounds:6} rounds, {row.near_ties} near-ties, {row.wrong} wrong, "
        f"{row.seconds:.0f} s",
        flush=True,
    )
    return row


def decoded(setup: StepConfig, family: Family, requests: Sequence[Request], batch: int) -> DecodingRun:
    """Decode all requests one way."""
    capacity = room_for(requests, [setup], batch)
    decoder = Engine(
        family.target, drafters_of(family, [setup], batch, capacity), always(setup), slots=batch, capacity=capacity
    )
    return decode_timed(decoder, requests, batch)


def drafters_of(family: Family, setups: Iterable[StepConfig], slots: int, capacity: int) -> dict[str, Drafter]:
    """Return what the setups draft with, by name; a name that is not in the family is left out."""
    drafters: dict[str, Drafter] = {}
    for setup in setups:
        name = setup.drafter
        if isinstance(setup.policy, StackPolicy):
            drafters[str(name)] = stack_drafter(setup.policy, family.drafters, slots=slots, capacity=capacity)
        elif name == LOOKUP:
            drafters[name] = LookupDrafter()
        elif name is not None and name in family.drafters and name not in drafters:
            drafters[name] = HybridDrafter(model_drafter(family.drafters[name], slots=slots, capacity=capacity))
    return drafters


def random_prompts(count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return pieces of random length from random places of sources that the family was not trained on."""
    tokenizer = load_tokenizer(str(family_models(family_folder()).target))
    texts = [tokenizer(text)["input_ids"] for text in held_out_texts()]
    texts = [ids for ids in texts if len(ids) > 4 * PROMPT_TOKENS[1]]
    prompts = []
    for _ in range(count):
        ids = texts[int(rng.integers(len(texts)))]
        start, length = int(rng.integers(len(ids) - PROMPT_TOKENS[1])), int(rng.integers(*PROMPT_TOKENS, endpoint=True))
        prompts.append(tuple(ids[start : start + length]))
    return prompts


if __name__ == "__main__":
    raise SystemExit(main())
