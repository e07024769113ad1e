"""Warnings of what would mislead in a comparison of servers, from requests and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ...engines.bundle import Trial
from ...engines.command import value_of
from ...engines.load import Sampling
from ...planner.engines.served import PLAIN
from .tuned_server import ServerJob

SLOTS = ("-np", "--parallel", "--max-num-seqs")  # options that say how many are decoded at once
FEW = 16  # prompts of a load, below which an interval says little
BUSY = 0.5  # of a core: the client is what is measured
SHORT = 64  # characters of a prompt on average
STRANGE = 0.5  # share of characters that are no letters or blanks, as in random tokens
OTHERS = 0.02  # relative: by so much more tokens than were sent, somebody else uses the server
UNLIKE = 0.2  # share of answers that differ from plain decoding's, above which it is not rounding


def warnings_before(job: ServerJob) -> Iterator[str]:
    """Yield warnings about a load before it is sent."""
    texts = [prompt.text for prompt in job.prompts]
    slots = value_of(job.command, SLOTS)
    if slots is not None and slots.isdigit() and int(slots) < max(job.concurrencies):
        yield f"the server decodes {slots} at once, and {max(job.concurrencies)} are sent: the others wait for a slot"
    if len(set(texts)) < len(texts):
        yield f"{len(texts) - len(set(texts))} prompts are given twice; a prefix cache answers them faster than traffic"
    if job.repeats:
        yield (
            f"{len(texts)} prompts are fewer than the requests of all concurrencies, so some are sent twice to one "
            "server: its prefix cache may be warm for them; give more prompts or fewer --requests"
        )
    if job.requests < FEW:
        yield f"{job.requests} requests a load are few: intervals below are wide; give {FEW} or more"
    if sum(map(len, texts)) < SHORT * len(texts):
        yield "the prompts are short, below 16 tokens on average; traffic with longer ones reads and drafts otherwise"
    letters = sum(letter.isalpha() or letter.isspace() for text in texts for letter in text)
    if letters < (1.0 - STRANGE) * sum(map(len, texts)):
        yield "most of the prompts is no words; drafts of random text are accepted less, or more, than those of traffic"
    if job.sampling.ignore_eos:
        yield "answers go on behind their ends (--ignore-eos): what models say there repeats, and drafts fit too well"


def warnings_behind(trials: Sequence[Trial], sampling: Sampling) -> Iterator[str]:
    """Yield warnings about loads that ran."""
    busy = max((trial.load.client_share for trial in trials), default=0.0)
    if busy > BUSY:
        yield f"the client used {busy:.0%} of a core; on a machine of its own it would measure the server alone"
    for trial in trials:
        counted, tokens = trial.counts.generated, trial.load.tokens
        if counted is not None and counted > (1.0 + OTHERS) * tokens + len(trial.load.answers):
            yield (
                f"{trial.start.label} at {trial.concurrency}: the server counted {counted:.0f} tokens, and the answers "
                f"have {tokens}; somebody else uses it"
            )
    if sampling.temperature == 0.0:
        yield from _unlike(trials)


def _unlike(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield loads whose answers are not plain decoding's."""
    ordered = sorted(trials, key=lambda trial: (trial.concurrency, trial.start.source != PLAIN))
    for concurrency, own in groupby(ordered, key=lambda trial: trial.concurrency):
        plain, *others = own
        said = {one.prompt: one.digest for one in plain.load.ended}
        for trial in others:
            pairs = [(one.digest, said[one.prompt]) for one in trial.load.ended if one.prompt in said]
            unlike = sum(found != known for found, known in pairs)
            if pairs and unlike > UNLIKE * len(pairs):
                yield (
                    f"{trial.start.label} at {concurrency}: {unlike} of {len(pairs)} greedy answers differ from plain "
                    "decoding's; rounding differs with the batch, or the drafts change the output"
                )
