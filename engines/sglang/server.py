"""SGLang's server: flags configure drafting; a file gives EAGLE heads another length by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

from ...errors import MeasurementError, RequestError
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ..answers import LoadResult
from ..command import value_of, without
from ..counters import CounterPage, Counts, counts_between, page_of, samples_of
from ..load import Address
from ..schema import nearest_recorded, require_known, schema_of
from ..server_engine import Lengths, ServerEngine, Source, WrittenFile, json_at, stages_of
from ..setting import EngineDrafter, Schedule, Setting
from .counters import COUNTERS
from .export import ADAPTIVE, ALGORITHMS, BLOCKS, DEPTH, EXPORT, NGRAM

START = "--speculative-"
ALGORITHM = (f"{START}algorithm", f"{START}algo")
MODEL = (f"{START}draft-model-path", f"{START}draft-model")
DRAFTING = (  # options of how drafts are made, each with a value; the others are the user's business
    *(*ALGORITHM, *MODEL),
    *(f"{START}{name}" for name in ("num-steps", "eagle-topk", "num-draft-tokens", "adaptive-config")),
    *(f"{START}accept-threshold-{name}" for name in ("single", "acc")),  # they would change the output
    *(f"{START}ngram-{end}-bfs-breadth" for end in ("min", "max")),
    *(f"{START}{algorithm}-block-size" for algorithm in ("dflash", "dspark")),
)
ROOM = ("--max-running-requests",)  # the user's business, too
TOKENS = "speculative_num_draft_tokens"  # of a round, in what the server says of itself
CHECKED, PARSED = "run on a scripted server alone", "parsed only"


class SGLangServer(ServerEngine):
    """`python -m sglang.launch_server`.

    Each answer tells its drafts where it is asked for (`return_spec_tokens_details`, pull request 33518). Older servers
    count verifications of all answers (25689), the oldest have a gauge of tokens per round: these tell no positions.
    """

    name = "sglang"
    takes_table = True
    counters = COUNTERS
    example = "python -m sglang.launch_server --model-path MODEL"

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without anything that drafts."""
        return self.counted(without(command, DRAFTING, (f"{START}adaptive",)))

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters."""
        return [*command, *(() if "--enable-metrics" in command else ("--enable-metrics",))]

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return draft models, what the command itself drafts with, and SGLang's n-gram trie."""
        known = nearest_recorded(self.name, version)
        chain = ChainPolicy(length=longest)
        settings = [(drafter.name, EXPORT.setting(chain, drafter, known)) for drafter in drafters]
        settings += [(own.drafter.name if own.drafter else own.method, own) for own in _own(command, longest, known)]
        trie = LookupPolicy(length=longest, max_ngram=DEPTH, min_ngram=1)
        settings.append(("n-grams", EXPORT.setting(trie, None, known)))
        return tuple(
            Source(
                name=name,
                is_model=setting.method != NGRAM,
                setting=setting,
                checked=PARSED if setting.method in BLOCKS else CHECKED,
            )
            for name, setting in settings
            if isinstance(setting, Setting)
        )

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the flags of a source, and the adaptive file where lengths differ by batch."""
        known = nearest_recorded(self.name, version)
        setting = replace(source.setting, length=max(lengths.values()))
        schedule = Schedule(setting=setting, stages=stages_of(lengths), most_batch=max(lengths))
        written = EXPORT.written(schedule, "", known)
        require_known(self.name, known, written.options)
        texts = dict(written.files)
        flags = without(written.flags, ROOM)
        return tuple(WrittenFile.of(word, texts[word]) if word in texts else word for word in flags)

    def version(self, address: Address) -> str:
        """Return the version that the server names."""
        return str(_info(address).get("version", ""))

    def body(self) -> Mapping[str, Any]:
        """Let every answer tell its drafts; SGLang's prefix cache is empty after a start."""
        return {"return_spec_tokens_details": True}

    def page(self, address: Address) -> CounterPage:
        """Return the page of counters, empty without --enable-metrics, and how many tokens a round verifies."""
        answer = address.get("/metrics")
        tokens, verified = _info(address).get(TOKENS), self.counters.verified
        page = page_of("" if answer.is_error else answer.text)
        if not tokens:
            return page
        kept = {series: value for series, value in page.items() if series[0] != verified}
        return {**kept, (verified, ()): float(tokens)}

    def counts(self, after: CounterPage, before: CounterPage, load: LoadResult, model: str) -> Counts:
        """Return the sum of what the answers tell; else what the server's counters or its gauge do."""
        counted = counts_between(after, before, self.counters, model)
        told = [one.timings for one in load.ended if "spec_verify_ct" in one.timings]
        drafted = int(max((value for _, value in samples_of(after, self.counters.verified)), default=1.0)) - 1
        if told:
            return replace(_told(told, drafted), generated=counted.generated, answers=counted.answers)
        if drafted > 0 and not counted.drafts:
            raise MeasurementError(
                "SGLang tells neither of its answers nor of itself how many drafts were accepted; start it with "
                "--enable-metrics"
            )
        return counted


def _own(command: Sequence[str], longest: int, version: str) -> list[Setting]:
    """Return what a command itself drafts with, with another length."""
    algorithm, model = value_of(command, ALGORITHM), value_of(command, MODEL)
    if algorithm in (None, NGRAM):
        return []
    known = (*ALGORITHMS.values(), "NEXTN", *(one for one in BLOCKS if _knows(BLOCKS[one].option, version)))
    if algorithm not in known:
        raise RequestError(
            f"how {algorithm} takes a length is not known here, of SGLang {version}; leave out {ALGORITHM[0]}, or give "
            f"one of {', '.join(known)}"
        )
    can_adapt = algorithm in ADAPTIVE and _knows(f"{START[2:]}adaptive", version)
    drafter = None if model is None else EngineDrafter(name=PurePath(model).name, path=model, form="unknown")
    return [
        Setting(method=algorithm, drafter=drafter, knobs=(("topk", 1),), length=longest, by_batch=can_adapt, off="any")
    ]


def _knows(option: str, version: str) -> bool:
    return schema_of("sglang").knows("flags", option, version)


def _told(told: Sequence[Mapping[str, Any]], drafted: int) -> Counts:
    """Return counts of answers: `spec_correct_drafts_histogram[k]` rounds accepted k of `drafted` tokens.

    It ends with the most that was ever accepted.
    """
    rows = [one.get("spec_correct_drafts_histogram") or () for one in told]
    exactly = [sum(column) for column in zip_longest(*rows, [0] * (drafted + 1), fillvalue=0)]
    return Counts(
        drafts=float(sum(one["spec_verify_ct"] for one in told)),
        drafted=float(sum(one.get("spec_num_proposed_drafts", 0) for one in told)),
        accepted=float(sum(one.get("spec_num_correct_drafts", 0) for one in told)),
        by_position=tuple(float(sum(exactly[place:])) for place in range(1, len(exactly))),
    )


def _info(address: Address) -> Mapping[str, Any]:
    return json_at(address, "/server_info") or json_at(address, "/get_server_info") or {}


SERVER = SGLangServer()
