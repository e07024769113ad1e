"""What prompts cost that go on with what was decoded before: read anew, and from where they differ (prefix caching).

The demo's target, and its small model in a hybrid with copies of the text, decode chats over pieces of held-out sources
in sessions that differ in `prefix_caching` and `spare_slots` alone, turn by turn one after the other:

    one chat       begins with 256 tokens; each of 8 turns adds 64 and is answered by 32
    taking turns   4 chats in 5 slots, one turn at a time, so that each one's text has to wait in a free slot
    alike          8 requests that share 512 tokens and differ in 32 come at once
    full           8 chats ask at once, again and again, where 4 are decoded at once: also with 8 spare slots

Told are milliseconds until the first piece of an answer, of all where several come at once, and of a full batch until
the end of the last answer, medians over repeats. `holds` is true where every answer is the same token for token, where
behind 512 tokens the first piece of a turn comes in half the time, where requests that begin alike are all under way in
half the time, where a prompt that begins like nothing comes no later than in 1.1 times the time, and where the chats of
a full batch, behind 512 tokens, are answered in half of it with spare slots. The last line is one JSON object.

    python benchmarks/chats.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo_corpus import held_out_texts
from transformers import PreTrainedTokenizerBase

from spectune.demo.story import family_folder, family_models
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.profiler.device import detect
from spectune.runtime.backends.choice import choose
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.engine.make_engine import EngineMaker
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.family import load_family
from spectune.tuning.measuring.decoding import Family

from sweep import DTYPE  # isort: skip
from result import print_result  # isort: skip

BEGINNING, ASKED, ANSWER, TURNS = 256, 64, 32, 8  # tokens of a chat, and how often it asks
CHATS, ALIKE, SHARED, OWN = 4, 8, 512, 32
LONG = 512  # tokens from which on a turn has to come in half the time
HALF, NO_LATER = 0.5, 1.1
WAYS: dict[str, dict[str, Any]] = {"anew": {"prefix_caching": False}, "cached": {}}  # of making a session
FULL = {**WAYS, "spare": {"spare_slots": 2 * CHATS}}
SETUP = StepConfig(policy=HybridPolicy(text=SuffixPolicy(length=8), model=ChainPolicy(length=3)), drafter="small")


@dataclass
class Turn:
    """One prompt and what became of it, by each way."""

    prompt: int  # tokens
    ms: dict[str, float] = field(default_factory=dict)  # until the first piece, or the last one's end
    cached: dict[str, int] = field(default_factory=dict)  # tokens of the prompt that were not read
    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Time with prefix caching over that without."""
        return self.ms["cached"] / self.ms["anew"]


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of everything, whose medians count")
    asked = parser.parse_args()
    models = family_models(family_folder())
    family = load_family(models, dtype=DTYPE, device="cpu")
    tokenizer = load_tokenizer(str(models.target))
    texts = long_texts(tokenizer)
    one, taking, alike, full = list[list[Turn]](), list[list[Turn]](), list[Turn](), list[list[Turn]]()
    for repeat in range(asked.repeats):
        one.append(chatted(family, tokenizer, [texts[repeat % len(texts)]], slots=2))
        taking.append(chatted(family, tokenizer, [texts[(repeat + n) % len(texts)] for n in range(CHATS)], CHATS + 1))
        alike.append(came_at_once(family, tokenizer, texts[repeat % len(texts)], texts[(repeat + 1) % len(texts)]))
        full.append(asked_at_once(family, tokenizer, texts))
        print(f"repeat {repeat + 1} of {asked.repeats}", flush=True)
    rows = {"one chat": rows_of(one), "taking turns": rows_of(taking), "alike": rows_of([[turn] for turn in alike])}
    crowded = rows_of(full)
    every = [turn for run in (*one, *taking, alike, *full) for turn in run]
    first = [turn.ratio for run in (*one, *taking) for turn in run if turn.cached["cached"] == 0]
    checks = {
        "every answer is the same": all(len(set(turn.answers.values())) == 1 for turn in every),
        **{
            f"{name}: half the time behind {LONG} tokens": max(
                row["ratio"] for row in rows[name] if row["prompt"] >= LONG
            )
            <= HALF
            for name in rows
        },
        "a prompt that begins like nothing comes no later": statistics.median(first) <= NO_LATER,
        f"full: half the time by spare slots behind {LONG} tokens": all(
            row["spare_ms"] <= HALF * row["cached_ms"] for row in crowded if row["prompt"] >= LONG
        ),
    }
    rows["full"] = crowded
    for name, found in rows.items():
        for row in found:
            print(f"{name:<13} {json.dumps(row)}")
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "chats",
        "device": detect("cpu").label,
        "dtype": DTYPE,
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200"],
    }
    print_result(result)


def long_texts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return held-out texts in tokens, as long as all that a chat asks."""
    needed = max(BEGINNING + TURNS * ASKED, SHARED + ALIKE * OWN)
    found = [tokenizer(text[: 20 * needed])["input_ids"] for text in held_out_texts() if len(text) > 8 * needed]
    return [tokens[:needed] for tokens in found if len(tokens) >= needed][: 2 * CHATS]


def session(family: Family, tokenizer: PreTrainedTokenizerBase, slots: int, **options: Any) -> Scheduler:
    """Return a running batch that has decoded once, so that nothing is set up in what is timed."""
    maker = EngineMaker(
        target=family.target,
        models=family.drafters,
        setups_within=lambda batch, context: (PLAIN, SETUP),
        schedule=always(SETUP),
        judges={},
        allow_lossy=False,
        backend=choose(family.target),
    )
    held = maker.make(slots, 2 * LONG + BEGINNING, **options)
    made = Scheduler(held.engine, tokenizer, longest=held.longest)
    answered(made, list(range(8)))
    return made


def answered(running: Scheduler, prompt: Sequence[int]) -> tuple[float, tuple[int, ...], int]:
    """Return milliseconds until a request's first piece, its answer, and how much of its prompt was not read."""
    start = time.perf_counter()
    running.enqueue(Request(prompt=tuple(prompt), max_new_tokens=ANSWER))
    first_ms = 0.0
    for event in running.events():
        first_ms = first_ms or 1e3 * (time.perf_counter() - start)
        if event.completion is not None:
            return first_ms, event.completion.tokens, event.completion.cached_tokens
    raise AssertionError("a request ends")


def chatted(
    family: Family, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Sequence[int]], slots: int
) -> list[Turn]:
    """Let chats over some texts take turns; return the turns."""
    running = {name: session(family, tokenizer, slots, **options) for name, options in WAYS.items()}
    histories = [list(text[:BEGINNING]) for text in texts]
    turns = []
    for turn in range(TURNS):
        for history, text in zip(histories, texts, strict=True):
            begin = BEGINNING + turn * ASKED
            history += text[begin : begin + ASKED]
            done = Turn(prompt=len(history))
            for name in sorted(WAYS, reverse=bool(turn % 2)):
                done.ms[name], done.answers[name], done.cached[name] = answered(running[name], history)
            history += done.answers["anew"]
            turns.append(done)
    return turns


def came_at_once(family: Family, tokenizer: PreTrainedTokenizerBase, text: Sequence[int], other: Sequence[int]) -> Turn:
    """Let requests that begin alike come at once; return what the last of them to be under way waited for."""
    turn = Turn(prompt=SHARED + OWN)
    for name, options in WAYS.items():
        running = session(family, tokenizer, ALIKE, **options)
        start, told = time.perf_counter(), dict[int, float]()
        handles = [
            running.enqueue(Request(prompt=(*text[:SHARED], *other[n * OWN : (n + 1) * OWN]), max_new_tokens=ANSWER))
            for n in range(ALIKE)
        ]
        answers = dict[int, tuple[int, ...]]()
        for event in running.events():
            told.setdefault(event.handle, 1e3 * (time.perf_counter() - start))
            if event.completion is not None:
                answers[event.handle] = event.completion.tokens
                turn.cached[name] = event.completion.cached_tokens
        turn.ms[name] = max(told[handle] for handle in handles)
        turn.answers[name] = tuple(token for handle in handles for token in answers[handle])
    return turn


def asked_at_once(family: Family, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Sequence[int]]) -> list[Turn]:
    """Let twice as many chats as are decoded at once all ask, turn by turn; return until when all were answered."""
    running = {name: session(family, tokenizer, CHATS, **options) for name, options in FULL.items()}
    histories = [list(text[:BEGINNING]) for text in texts[: 2 * CHATS]]
    turns = []
    for turn in range(TURNS):
        begin = BEGINNING + turn * ASKED
        for history, text in zip(histories, texts, strict=False):
            history += text[begin : begin + ASKED]
        done = Turn(prompt=len(histories[0]))
        answers = list[tuple[int, ...]]()
        for name in sorted(FULL, reverse=bool(turn % 2)):
            start = time.perf_counter()
            handles = [
                running[name].enqueue(Request(prompt=tuple(history), max_new_tokens=ANSWER)) for history in histories
            ]
            ended = {event.handle: event.completion for event in running[name].events() if event.completion is not None}
            done.ms[name] = 1e3 * (time.perf_counter() - start)
            answers = [ended[handle].tokens for handle in handles]
            done.answers[name] = tuple(token for answer in answers for token in answer)
            done.cached[name] = sum(one.cached_tokens for one in ended.values())
        for history, answer in zip(histories, answers, strict=True):
            history += answer
        turns.append(done)
    return turns


def rows_of(runs: Sequence[Sequence[Turn]]) -> list[dict[str, Any]]:
    """Return medians over runs and chats, of turns whose prompts are as long."""
    by_length = dict[int, list[Turn]]()
    for run in runs:
        for turn in run:
            by_length.setdefault(turn.prompt, []).append(turn)
    return [
        {
            "prompt": length,
            **{
                name: round(statistics.median(turn.cached[name] for turn in same))
                for name in same[0].ms
                if name != "anew"
            },
            **{f"{name}_ms": statistics.median(turn.ms[name] for turn in same) for name in same[0].ms},
            "ratio": statistics.median(turn.ratio for turn in same),
        }
        for length, same in by_length.items()
    ]


if __name__ == "__main__":
    main()
