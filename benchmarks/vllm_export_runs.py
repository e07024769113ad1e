"""An exported command that vLLM ran, held to what its plan meant; `vllm_exports.py` says to what."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from spectune.engines.export import export_plan
from spectune.engines.rates import rates_of_plan
from spectune.engines.setting import EngineDrafter
from spectune.engines.table import ENGINES
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.lookup import LookupPolicy, find_continuation
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.tuning.measuring.decoding import LOOKUP, Family, decode_timed, room_for
from spectune.tuning.measuring.exact import judge

from engine_parsers import MODELS, typed  # isort: skip

CHILD = Path(__file__).with_name("vllm_export_child.py")
PROMPTS, TOKENS = 12, 48
ALL = 4096  # sequences: more than run
SMALL = EngineDrafter(name="small", path=str(MODELS / "small"), form="model")
EAGLE3 = EngineDrafter(name="small", path=str(MODELS / "eagle3"), form="eagle3")
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan, and what vLLM must do on its export.

    Attributes:
        policy: that drafts where drafts are the longest; None where nothing drafts.
        rows: how long drafts are: first and last number of sequences, and the length.
        waves: how many prompts are decoded together, one wave after the other.
        is_own: whether rounds are those of our own decoder.
        like: the case whose drafts these must be.
        swap: what is replaced in the exported command, and by what.
    """

    name: str
    plan: Plan
    policy: TreePolicy | None
    drafter: EngineDrafter = SMALL
    rows: tuple[tuple[int, int, int], ...]
    waves: tuple[int, ...] = (PROMPTS,)
    is_own: bool = False
    like: str = ""
    swap: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """What texts and rounds are held to."""

    prompts: list[list[int]]
    original: PreTrainedModel  # transformers' target
    family: Family  # ours
    plain: list[list[int]]  # vLLM's own plain texts, longer than the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What one sequence did in one step.

    Attributes:
        text: its tokens before the step, the prompt's among them.
        emitted: how many of these are no prompt's.
        drafts: that the step verified.
        running: sequences in the step before, which the drafts were made in.
    """

    sequence: int
    text: list[int]
    emitted: int
    drafts: list[int]
    running: int


def exported(plan: Plan, drafter: EngineDrafter, version: str) -> str:
    """Return the command that spectune exports for a plan; nothing of it may be dropped but suffixes' siblings."""
    target, rates = str(MODELS / "target"), rates_of_plan(plan)
    return export_plan(plan, ENGINES["vllm"], {"small": drafter}, target=target, version=version, rates=rates).command


def run(
    python: str,
    command: str,
    prompts: Sequence[Sequence[int]],
    waves: Sequence[int],
    *,
    tokens: int = TOKENS,
    temperature: float = 0.0,
) -> Json:
    """Return what vLLM did on a command, see `vllm_export_child.py`.

    Raises:
        RuntimeError: it ended with an error.
    """
    variables, words = typed(command)
    asked = {"words": words, "prompts": prompts, "waves": waves, "tokens": tokens, "temperature": temperature}
    found: Json = json.loads(answer([python, str(CHILD)], json.dumps(asked), variables))
    return found


def answer(words: Sequence[str], said: str, variables: Json | None = None) -> str:
    """Return the last line that a process prints."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(words, input=said, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return done.stdout.strip().splitlines()[-1]


def row_of(case: Case, command: str, ran: Mapping[str, Json], judges: Judges) -> Json:
    """Return what vLLM did for a case, and under "misses" what it should not have."""
    waves = ran[case.name]["waves"]
    steps = [drafted for wave in waves for drafted in steps_of(wave, judges.prompts)]
    requests = [Request(prompt=tuple(prompt), max_new_tokens=TOKENS) for prompt in judges.prompts]
    texts = [(index, text) for wave in waves for index, text in enumerate(wave["texts"])]
    judged = judge(judges.original, [requests[index] for index, _ in texts], [text for _, text in texts])
    own, told = own_rounds(case, requests, judges.family), _counted(waves)
    checks = {
        "texts are the target's own": judged.wrong == 0,
        "drafts are as long as planned": all(_is_as_long(case, one) for one in steps if one.emitted),
        "its counters tell the same": told == _expected(steps, judges.plain),
        "rounds begin where ours do": not case.is_own or own == _begun(steps),
        "copies are the lookup's": all(one.drafts == copy for one, copy in _copies(case, steps)),
        f"drafts are those of {case.like}": not case.like or _drafts(waves) == _drafts(ran[case.like]["waves"]),
    }
    return {
        "case": case.name,
        "command": command,
        "together": case.waves,
        "texts": len(texts),
        "texts_as_plain": sum(text == judges.plain[index][:TOKENS] for index, text in texts),
        "near_ties": judged.near_ties,
        "rounds": sum(one.emitted > 0 for one in steps),
        "own_rounds": sum(map(len, own)) if own else None,
        **told,
        "past_the_end": sum(max(0, one.emitted + len(one.drafts) - TOKENS) for one in steps),
        "steps": [len(wave["steps"]) for wave in waves],
        "drafter_forwards": [wave["forwards"] for wave in waves],
        "misses": [check for check, holds in checks.items() if not holds],
    }


def _counted(waves: Sequence[Json]) -> dict[str, int]:
    """Return what vLLM's own counters told."""
    names = {"drafts": "num_drafts", "draft_tokens": "num_draft_tokens", "accepted": "num_accepted_tokens"}
    return {name: sum(wave["counters"].get(theirs, 0) for wave in waves) for name, theirs in names.items()}


def _expected(steps: Sequence[Drafted], plain: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return what the counters must tell of the drafts that were seen; what is past the end of a text counts, too."""
    rounds = [one for one in steps if one.drafts]
    return {
        "drafts": len(rounds),
        "draft_tokens": sum(len(one.drafts) for one in rounds),
        "accepted": sum(_common(one.drafts, plain[one.sequence][one.emitted :]) for one in rounds),
    }


def steps_of(wave: Json, prompts: Sequence[list[int]]) -> Iterator[Drafted]:
    """Yield what every sequence of a wave did in every step."""
    emitted, before = [0] * len(wave["texts"]), 0
    for step in wave["steps"]:
        for name, kept in step["kept"].items():
            index = int(name)
            yield Drafted(
                sequence=index,
                text=prompts[index] + wave["texts"][index][: emitted[index]],
                emitted=emitted[index],
                drafts=step["drafts"].get(name, []),
                running=before,
            )
            emitted[index] += kept
        before = step["running"]


def own_rounds(case: Case, requests: Sequence[Request], family: Family) -> list[list[int]]:
    """Return where the rounds of our own decoder begin in every text; none where the length follows the batch."""
    if case.policy is None or len(case.rows) > 1 or case.drafter.form not in family.drafters or case.like:
        return []
    name = LOOKUP if case.policy.kind in ("lookup", "suffix-tree") else case.drafter.form
    setup = StepConfig(policy=case.policy, drafter=name)
    capacity = room_for(requests, [setup], 1)
    decoder = family.decoder(always(setup), names=[name], batch=1, capacity=capacity)
    return decode_timed(decoder, requests, 1).visited()


def _length(case: Case, running: int) -> int:
    return next(length for first, last, length in case.rows if first <= running <= last)


def _is_as_long(case: Case, one: Drafted) -> bool:
    most = _length(case, one.running)
    is_chain = case.policy is not None and case.policy.kind == "chain"
    return len(one.drafts) == most if is_chain else len(one.drafts) <= most


def _copies(case: Case, steps: Sequence[Drafted]) -> Iterator[tuple[Drafted, list[int]]]:
    """Yield what every step of a lookup had to draft."""
    policy = case.policy
    if not isinstance(policy, LookupPolicy):
        return
    for one in steps:
        most = _length(case, one.running) if one.emitted else 0
        found = find_continuation(one.text, most, policy.max_ngram, policy.min_ngram, "first") if most else []
        yield one, found


def _begun(steps: Sequence[Drafted]) -> list[list[int]]:
    """Return where rounds began in every text: tokens emitted by then, less the first, which comes with the prompt."""
    found: dict[int, list[int]] = {}
    for one in steps:
        if one.emitted:
            found.setdefault(one.sequence, []).append(one.emitted - 1)
    return [found[index] for index in sorted(found)]


def _drafts(waves: Sequence[Json]) -> list[Json]:
    return [step["drafts"] for wave in waves for step in wave["steps"]]


def _common(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens two begin with together."""
    differs = (place for place, (draft, own) in enumerate(zip(drafts, text, strict=False)) if draft != own)
    return next(differs, min(len(drafts), len(text)))
