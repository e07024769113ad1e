"""Warnings of what would mislead in a comparison of servers, from requests and answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from ...engines.answers import LoadResult
from ...engines.bundle import Trial
from ...engines.command import value_of
from ...engines.counters import Counts
from ...engines.load import SamplingParams
from ...engines.server_engine import PLAIN_LABEL
from .tuned_server import ServerJob

SLOTS = (
    "-np",
    "--parallel",
    "--max-num-seqs",
    "--max-running-requests",
    "--max_batch_size",
)  # options that say how many are decoded at once
FEW = 16  # prompts of a load, below which an interval says little
BUSY = 0.5  # of a core: the client is what is measured
SHORT = 64  # characters of a prompt on average
STRANGE = 0.5  # share of characters that are no letters or blanks, as in random tokens
WORDS, LONG_WORD = 200, 12.0  # of all prompts, that repeat so few; longer ones are of a writing without blanks
NEW = 0.9  # share of words that stand once, above which they are drawn at random
SHORTER, MANY = 0.5, 100  # share of traffic's prompt tokens, over at least so many of its answers
OTHERS = 0.02  # relative: by so much more tokens than were sent, somebody else uses the server
UNLIKE = 0.2  # share of answers that differ from plain decoding's, above which it is not rounding
WARM = 0.1  # share of prompt tokens that one side had in its cache and another had not
MOVED = 0.1  # relative: by so much one start differs from itself where the clock moves
UNEVEN = 1.5  # times the least of nine in ten plain answers' time per token
TEMPERATURE = ("--temp", "--temperature")
GENERATION = ("--override-generation-config",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLoad:
    """A load that ran, by the name of what was started for it."""

    name: str
    load: LoadResult
    counts: Counts

    @property
    def place(self) -> str:
        """Its name and concurrency."""
        return f"{self.name} at {self.load.concurrency}"

    @property
    def cached(self) -> float | None:
        """Share of the prompts' tokens that the prefix cache held; None where unknown."""
        known = self.counts.prompted and self.counts.cached is not None
        return (self.counts.cached or 0.0) / (self.counts.prompted or 1.0) if known else None


def named(trials: Sequence[Trial]) -> list[NamedLoad]:
    """Return the loads of a bundle."""
    return [NamedLoad(name=one.start.label, load=one.load, counts=one.counts) for one in trials]


def named_by_source(trials: Sequence[Trial]) -> list[NamedLoad]:
    """Return the loads of a race, by who raced."""
    return [NamedLoad(name=one.start.source, load=one.load, counts=one.counts) for one in trials]


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
    if letters < (1.0 - STRANGE) * sum(map(len, texts)) or _are_random(texts):
        yield "most of the prompts is no words; drafts of random text are accepted less, or more, than those of traffic"
    if later := sum(len(prompt.later) for prompt in job.prompts):
        yield f"{later} later turns of conversations are not asked: traffic asks them behind longer prompts"
    told = temperature_of(job.command)
    if told is not None and told != job.sampling.temperature:
        yield (
            f"the command sets the temperature {told:g}, and requests ask for {job.sampling.temperature:g}: drafts are "
            "accepted otherwise; give --temperature of production"
        )
    if job.sampling.ignore_eos:
        yield "answers go on behind their ends (--ignore-eos): what models say there repeats, and drafts fit too well"


def _are_random(texts: Sequence[str]) -> bool:
    """Return whether words of prompts hardly ever stand twice: those of any language or code do."""
    words = " ".join(texts).split()
    if len(words) < WORDS or sum(map(len, words)) > LONG_WORD * len(words):
        return False
    return len(set(words)) > NEW * len(words)


def shorter_than_traffic(traffic: Counts, loads: Sequence[NamedLoad]) -> Iterator[str]:
    """Yield a warning where prompts are far shorter than those that a server answered before."""
    known = [one for one in loads if one.counts.prompted]
    if not known or not traffic.prompted or (traffic.answers or 0.0) < MANY:
        return
    own = sum(one.counts.prompted or 0.0 for one in known) / sum(len(one.load.ended) for one in known)
    usual = traffic.prompted / (traffic.answers or 1.0)
    if own < SHORTER * usual:
        yield (
            f"the prompts have {own:.0f} tokens, and those that the server answered before {usual:.0f}: longer ones "
            "are read and drafted otherwise; give prompts of the traffic"
        )


def temperature_of(command: Sequence[str]) -> float | None:
    """Return the temperature that a command gives requests which name none; None where it gives none."""
    text = value_of(command, TEMPERATURE)
    try:
        if text is not None:
            return float(text)
        told = json.loads(value_of(command, GENERATION) or "{}").get("temperature")
        return None if told is None else float(told)
    except (ValueError, AttributeError, TypeError):
        return None


def warnings_behind(loads: Sequence[NamedLoad], sampling: SamplingParams, basis: str = PLAIN_LABEL) -> Iterator[str]:
    """Yield warnings about loads that ran; `basis` is the name of those that the others are compared with."""
    busy = max((one.load.client_share for one in loads), default=0.0)
    if busy > BUSY:
        yield f"the client used {busy:.0%} of a core; on a machine of its own it would measure the server alone"
    for one in loads:
        counted, tokens = one.counts.generated, one.load.tokens
        if counted is not None and counted > (1.0 + OTHERS) * tokens + len(one.load.answers):
            yield (
                f"{one.place}: the server counted {counted:.0f} tokens, and the answers have {tokens}; somebody else "
                "uses it"
            )
    for concurrency in dict.fromkeys(one.load.concurrency for one in loads):
        own = [one for one in loads if one.load.concurrency == concurrency]
        yield from _warm_on_one_side(own)
        yield from _moved(own)
        if sampling.temperature == 0.0:
            yield from _unlike(own, basis)


def unsure(concurrency: int, gain: float, interval: tuple[float, float], prompts: int) -> Iterator[str]:
    """Yield a warning where so few prompts do not show that a gain is one."""
    low, high = interval
    if low <= 1.0 < gain:
        needed = math.ceil(prompts * ((gain - low) / (gain - 1.0)) ** 2)
        yield (
            f"at {concurrency} at once a gain of {gain:.2f} is not sure: {low:.2f} to {high:.2f} over {prompts} "
            f"prompts; about {needed} would tell"
        )


def _warm_on_one_side(loads: Sequence[NamedLoad]) -> Iterator[str]:
    """Yield a warning where the prefix cache held more of the prompts for one side than for another."""
    shares = {one.place: one.cached for one in loads if one.cached is not None}
    if shares and max(shares.values()) - min(shares.values()) > WARM:
        most, least = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
        yield (
            f"the prefix cache held {shares[most]:.0%} of the prompts' tokens for {most}, and {shares[least]:.0%} for "
            f"{least}; the former began warm"
        )


def _moved(loads: Sequence[NamedLoad]) -> Iterator[str]:
    """Yield a warning where the same start ran at several speeds, or plain answers did, which should be alike."""
    speeds: dict[str, list[float]] = {}
    for one in loads:
        tpots_ms = [answer.tpot_ms for answer in one.load.ended]
        if one.name == PLAIN_LABEL and len(tpots_ms) > 1:
            cuts = quantiles(tpots_ms, n=10, method="inclusive")
            if cuts[-1] > UNEVEN * cuts[0]:
                yield (
                    f"{one.place}: a token took {cuts[0]:.1f} ms in some answers and {cuts[-1]:.1f} in others: the "
                    "machine's pace moves, or others use it"
                )
        if one.load.concurrency:
            speeds.setdefault(one.place, []).append(one.load.steady_tokens_per_s)
    for place, own in speeds.items():
        if max(own) > (1.0 + MOVED) * min(own):
            yield (
                f"{place} ran at {min(own):.1f} and at {max(own):.1f} tokens/s: the machine's pace moves, and gains "
                "below that difference may be its own"
            )


def _unlike(loads: Sequence[NamedLoad], basis: str) -> Iterator[str]:
    """Yield loads whose answers are not those of the basis."""
    first = next((one for one in loads if one.name == basis), None)
    said = {} if first is None else {one.prompt: one.digest for one in first.load.ended}
    for one in loads:
        pairs = [(answer.digest, said[answer.prompt]) for answer in one.load.ended if answer.prompt in said]
        unlike = sum(found != known for found, known in pairs)
        if one.name != basis and unlike > UNLIKE * len(pairs):
            yield (
                f"{one.place}: {unlike} of {len(pairs)} greedy answers differ from those of {basis}; rounding differs "
                "with the batch, or the drafts change the output"
            )
