"""What an engine counted while it decoded, brought to one definition of acceptance.

Acceptance here is unconditional by position: the share of all rounds that accepted the first k drafted tokens. A round
yields 1 + the sum over positions. Counters do not say at which text they were counted, so they are no acceptance trace:
only chains no longer than those drafted follow from them. docs/reference/import-files.md says what each of `READERS`
converts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from ...engines.counters import CounterNames, CounterPage, Counts, counts_of, page_of, samples_of
from ...engines.table import COUNTERS
from ...errors import RequestError, SpectuneError
from .separate_runs import SLACK, differences, falling, joined

CounterFormat = Literal["sglang-bench", "sglang-sps", "vllm-metrics", "trtllm-bench", "llama-metrics"]
FORMATS: tuple[CounterFormat, ...] = get_args(CounterFormat)
PAGES: dict[CounterFormat, str] = {"vllm-metrics": "vllm", "llama-metrics": "llama.cpp"}
OTHER_PAGES = {"(?:trtllm|tensorrt_llm|nv_trt_llm)_": "TensorRT-LLM"}
OTHER_WAY = "measure several lengths, and read them with spectune import --format sglang-bench or trtllm-bench"
NO_POSITIONS = (
    "SGLang tells no positions: acceptance is taken to fall by one factor, so lengths far below those that run are "
    "less sure; a server without sglang:spec_verify_calls tells tokens a round of its last moments alone"
)
TOLD_MOVE = 5e-4  # less is 0.000 in a note: lengths are rounded to three digits
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedAcceptance:
    """What an engine accepted of its drafts.

    `about` tells it from others of the file, e.g. "batch 4". `by_position` is empty where positions are not known.
    `drafts` are rounds that drafted, `rounds` all; None where not known. `has_first_tokens`: the rounds include the
    first token of each answer, which prefill yields, of unknown number. `step_ms` is a whole round of all sequences,
    host included.
    """

    about: str
    by_position: tuple[float, ...]
    tokens_per_round: float
    drafts: int | None = None
    rounds: int | None = None
    has_first_tokens: bool = False
    step_ms: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        previous = 1.0
        for position, rate in enumerate(self.by_position, start=1):
            if not 0.0 <= rate <= previous + SLACK:
                raise RequestError(
                    f"{self.about}: acceptance at position {position} is {rate:.4g} behind {previous:.4g}; a longer "
                    "prefix cannot be accepted more often: these are not counts of one run"
                )
            previous = rate
        if not 1.0 <= self.tokens_per_round < math.inf:
            raise RequestError(f"{self.about}: a round yields a token or more, got {self.tokens_per_round:.4g}")

    @property
    def by_length(self) -> tuple[float, ...]:
        """Tokens per round of chains of 1, 2, ... tokens, up to what was drafted."""
        return tuple(1.0 + sum(self.by_position[:length]) for length in range(1, len(self.by_position) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step of so many tokens of all sequences together takes, drafting and host included."""

    tokens: int
    step_ms: float

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0.0 < self.step_ms < math.inf:
            raise RequestError(f"a step has a token and a time, got {self.tokens} and {self.step_ms} ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a file of an engine's counters holds."""

    acceptance: tuple[CountedAcceptance, ...] = ()
    steps: tuple[StepCost, ...] = ()


def read_counters(path: Path, file_format: CounterFormat) -> Counted:
    """Return what a file of counters says; RequestError for another format, or counts that contradict each other."""
    text = read_text(path, f"a file of the format {file_format}")
    try:
        return READERS[file_format](text)
    except (KeyError, TypeError, ValueError) as error:  # a field that is missing, or is no number
        raise RequestError(f"{path} is not of the format {file_format}: {type(error).__name__} {error}") from error
    except SpectuneError as error:
        raise RequestError(f"{path}, {error}") from error


def read_text(path: Path, wanted: str) -> str:
    """Return the text of a file; RequestError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read {path} ({reason}); give {wanted}") from error


def require_engine(page: CounterPage, place: str) -> str:
    """Return the engine of a page; RequestError where it has no counters, or none of acceptance by position."""
    known = {name for name, _ in page}
    if engine := next((one for one, own in COUNTERS.items() if known & {own.generated, own.drafts}), ""):
        return engine
    named = (other for name in known for prefix, other in OTHER_PAGES.items() if re.match(prefix, name))
    if (seen := next(named, None)) is not None:
        raise RequestError(f"{place} is a page of {seen}, which has no acceptance by position; {OTHER_WAY}")
    raise RequestError(
        f"{place} has no counter of vLLM, SGLang or llama.cpp; scrape /metrics of a server that speculates"
    )


def _metrics(text: str, file_format: CounterFormat) -> Counted:
    names, page = COUNTERS[PAGES[file_format]], page_of(text)
    for name in (names.drafts, names.drafted, names.accepted):
        if not samples_of(page, name):
            raise RequestError(f"there is no counter {name}; scrape /metrics of a server that speculates")
    return Counted(acceptance=(accepted_of(counts_of(page, names), names),))


def accepted_of(counts: Counts, names: CounterNames) -> CountedAcceptance:
    """Return the acceptance of Prometheus counters: accepted at a position over the rounds that drafted.

    Each round yields a token beside the accepted ones, and prefill the first of each answer. So all rounds are the
    `generated` tokens, less the accepted ones, less one per answer.

    RequestError where nothing drafted, or counts contradict each other.

    Source: vLLM's spec_decode counters; llama.cpp has the same names since pull request 26389.
    """
    drafts, at = counts.drafts, counts.by_position
    if not drafts:
        raise RequestError(
            f"no round drafted: there is no counter {names.drafts}, or it is 0; scrape /metrics of a server that "
            "speculates, behind some requests"
        )
    if at and not math.isclose(sum(at), counts.accepted, rel_tol=1e-6, abs_tol=0.5):
        raise RequestError(f"{sum(at):g} tokens were accepted at positions, {counts.accepted:g} in all; scrape anew")
    notes = []
    if counts.drafted < drafts * len(at):
        notes.append("some rounds drafted fewer tokens: of the far positions these are lower bounds")
    if names.tokens_per_round:
        notes.append(NO_POSITIONS)
    return CountedAcceptance(
        about="all requests",
        by_position=tuple(count / drafts for count in at),
        tokens_per_round=1.0 + counts.accepted / drafts,
        drafts=int(drafts),
        rounds=int(counts.rounds(counts.generated, counts.answers or 0.0)) if counts.generated else None,
        has_first_tokens=bool(counts.generated) and counts.answers is None,
        notes=tuple(notes),
    )


def _sglang_bench(text: str) -> Counted:
    """Return the acceptance of SGLang's `bench_speculative.py`: one JSON object per server that was tried.

    `acc_length` includes a round's own token. At top-k 1, the tokens of k steps less those of k - 1 are the acceptance
    of position k, as far as separate runs tell it; the first gap in the steps ends that.
    """
    rows: list[Json] = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not rows:
        raise RequestError("there is no line in it; run bench_speculative.py with --output")
    found = []
    for batch in sorted({int(row["batch_size"]) for row in rows}):
        own = joined([row for row in rows if int(row["batch_size"]) == batch and int(row["steps"]) > 0])
        chains = {int(row["steps"]): float(row["acc_length"]) for row in own if int(row["topk"]) == 1}
        measured = differences(chains, batch)
        fitted = falling(measured, batch)
        moves = [abs(after - before) for before, after in zip(measured, fitted, strict=True)]
        found += [_benched(row, batch, fitted, moves) for row in own]
    return Counted(acceptance=tuple(found))


def _benched(row: Json, batch: int, fitted: Sequence[float], moves: Sequence[float]) -> CountedAcceptance:
    steps, top_k, tokens = int(row["steps"]), int(row["topk"]), int(row["num_draft_tokens"])
    rates = tuple(fitted[:steps]) if top_k == 1 else ()
    notes = []
    if row["runs"] > 1:
        notes.append(f"the mean of {row['runs']} runs in the file")
    if top_k == 1 and len(rates) < steps:
        notes.append(f"positions beyond {len(rates)} are not told apart: steps {len(rates) + 1} were not tried")
    if top_k > 1:
        notes.append("of a tree: positions of its paths are not told")
    farthest = max(range(len(rates)), key=lambda place: moves[place], default=0)
    if rates and moves[farthest] >= TOLD_MOVE:
        notes.append(
            "lengths of separate runs, whose differences do not fall: by position the nearest that do are told, "
            f"position {farthest + 1} moved farthest, by {moves[farthest]:.3f}"
        )
    return CountedAcceptance(
        about=f"batch {batch}, {steps} steps, top-k {top_k}, {tokens} tokens",
        by_position=rates,
        tokens_per_round=float(row["acc_length"]),
        step_ms=1000.0 * float(row["step_time"]),
        notes=tuple(notes),
    )


def _sglang_sps(text: str) -> Counted:
    table = json.loads(text)
    if "sample_batch_tokens" not in table:
        raise RequestError(
            'the table has no "sample_batch_tokens"; additive tables tell no whole steps, write the plain'
        )
    pairs = zip(table["sample_batch_tokens"], table["sample_steps_per_sec"], strict=True)
    return Counted(steps=tuple(StepCost(tokens=int(n), step_ms=1000.0 / float(rate)) for n, rate in pairs))


def _trtllm_bench(text: str) -> Counted:
    """Return the acceptance of a `trtllm-bench --report_json`: means over requests, nothing by position.

    It divides an answer's N tokens by its iterations with prefill, N / (R + 1) for R rounds. With the mean answer
    length that gives the tokens of a round.

    Source: TensorRT-LLM, `StatsKeeper.generate_statistics_summary`.
    """
    told = json.loads(text)
    stats = told.get("decoding_stats") if isinstance(told, dict) else None
    if not stats or not stats.get("acceptance_length_percentiles"):
        raise RequestError("the report has no decoding_stats with acceptance lengths; run it with speculative decoding")
    length = float(stats["acceptance_length_percentiles"]["average"])
    notes = ["a mean over requests, not over rounds, and nothing by position"]
    answer = (told.get("request_info") or {}).get("avg_output_length")
    if answer is None:
        notes.append("prefill counts as a round: the report does not tell how long answers are, to take it off")
    elif float(answer) > length:
        length *= (float(answer) - 1.0) / (float(answer) - length)
    return Counted(
        acceptance=(
            CountedAcceptance(about="all requests", by_position=(), tokens_per_round=length, notes=tuple(notes)),
        )
    )


READERS: Mapping[CounterFormat, Callable[[str], Counted]] = {
    "sglang-bench": _sglang_bench,
    "sglang-sps": _sglang_sps,
    "vllm-metrics": partial(_metrics, file_format="vllm-metrics"),
    "trtllm-bench": _trtllm_bench,
    "llama-metrics": partial(_metrics, file_format="llama-metrics"),
}
