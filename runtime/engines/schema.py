"""The options of each engine's versions, recorded from its source and documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ...errors import PlanError, RequestError
from ...profiler.records.wire import from_json
from .engine import Option

FOLDER = Path(__file__).parent / "schemas"
Kind = Literal["int", "float", "bool", "str", "choice", "ranges", "lengths"]
TYPES: Mapping[Kind, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "choice": str,
    "ranges": tuple,
    "lengths": tuple,
}
ROW_NUMBERS: Mapping[Kind, int] = {"ranges": 3, "lengths": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOption:
    """One option.

    Attributes:
        type: "ranges" are rows of (first batch, last batch, length), "lengths" rows of (last batch, length); batches
            rise from row to row.
        least, most: of a number, or of the lengths of rows.
        since, until: first and last recorded version with it; empty where all before or behind have it.
    """

    type: Kind
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The options of one engine: versions, oldest first; where they were read; options by section and name."""

    engine: str
    versions: tuple[str, ...]
    sources: tuple[str, ...]
    sections: dict[str, dict[str, SchemaOption]]

    def knows(self, section: str, name: str, version: str) -> bool:
        """Return whether a recorded version has an option."""
        option = self.sections.get(section, {}).get(name)
        if option is None:
            return False
        at = self.versions.index(version)
        first = self.versions.index(option.since) if option.since else 0
        last = self.versions.index(option.until) if option.until else len(self.versions)
        return first <= at <= last


@cache
def schema_of(engine: str) -> Schema:
    """Return the recorded options of an engine."""
    found: Schema = from_json(Schema, (FOLDER / f"{engine}.json").read_text(encoding="utf-8"))
    return found


def recorded_version(engine: str, version: str | None) -> str:
    """Return a version's recorded version: itself or its release; None: the newest; RequestError if there is none."""
    known = schema_of(engine).versions
    if version is None:
        return known[-1]
    plain = version.removeprefix("v")
    found = [one for one in known if plain == one or plain.startswith(f"{one}.")]
    if not found:
        raise RequestError(
            f"the options of {engine} {version} were not recorded, those of {', '.join(known)} were; give one of these "
            "with --engine-version if you know that it fits"
        )
    return found[-1]


def nearest_recorded(engine: str, version: str) -> str:
    """Return the newest recorded version not newer than a running one, compared by numbers; else the oldest."""
    known = schema_of(engine).versions
    return max((one for one in known if _numbers(one) <= _numbers(version)), key=_numbers, default=known[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def require_known(engine: str, version: str, options: Iterable[Option]) -> None:
    """Raise PlanError for options unknown to the version, of wrong type or range, or that break a common rule."""
    schema, told = schema_of(engine), list(options)
    for section, name, value in told:
        wrong = _wrong(schema, section, name, version, value)
        if wrong:
            raise PlanError(
                f"{engine} {version} would not take {name} = {json.dumps(value)} ({section}): {wrong}; give another "
                "--engine-version, or report this"
            )
    broken = broken_rule(engine, told)
    if broken:
        raise PlanError(f"{engine} {version} would not take these options together: {broken}; report this")


def _wrong(schema: Schema, section: str, name: str, version: str, value: object) -> str:
    if not schema.knows(section, name, version):
        return "it has no such option"
    option = schema.sections[section][name]
    if not isinstance(value, TYPES[option.type]) or (isinstance(value, bool) and option.type != "bool"):
        return f"it takes {option.type}"
    if option.choices and value not in option.choices:
        return f"it takes one of {', '.join(option.choices)}"
    if isinstance(value, tuple):
        return _wrong_row(value, option)
    if isinstance(value, int | float) and not _is_within(value, option):
        return f"it takes {_range(option)}"
    return ""


def _wrong_row(rows: Sequence[object], option: SchemaOption) -> str:
    """Say what is wrong with the first wrong row; empty where all are right."""
    count, before = ROW_NUMBERS[option.type], 0
    for row in rows:
        if not isinstance(row, tuple) or len(row) != count or any(type(number) is not int for number in row):
            return f"it takes rows of {count} whole numbers, not {row}"
        first, last, length = row[0], row[-2], row[-1]  # where a row has one batch, that is both
        if not before < first <= last:
            return f"it takes batches that rise from row to row, not {first} to {last} behind {before}"
        if not _is_within(length, option):
            return f"it takes lengths of {_range(option)}, not {length}"
        before = last
    return "" if rows else "it takes a row or more"


def _range(option: SchemaOption) -> str:
    least = 0.0 if option.least is None else option.least
    return f"{least:g} or more" if option.most is None else f"{least:g} to {option.most:g}"


def _is_within(value: float, option: SchemaOption) -> bool:
    return (option.least is None or value >= option.least) and (option.most is None or value <= option.most)


Rule = tuple[bool, str]  # whether it holds, and what it says; none is asked for behind one that does not hold
Told = Mapping[str, Any]  # values by name; Any: each has its schema's type, which was checked before


def broken_rule(engine: str, options: Sequence[Option]) -> str:
    """Return the first rule that options, each valid by its schema, break together; empty where none."""
    rules = RULES.get(engine)
    return "" if rules is None else next((said for holds, said in rules(options) if not holds), "")


def _vllm(options: Sequence[Option]) -> Iterator[Rule]:
    """Yield vLLM's rules.

    Source: vllm/config/speculative.py, and vllm/v1/spec_decode/dynamic/utils.py for rows. There a row longer than
    `num_speculative_tokens` is no error but is cut to it, so it would not be as planned. Rows beside suffix decoding
    end the engine in its first round (vllm/v1/spec_decode/suffix_decoding.py).
    """
    told = _by_name(options)
    method = told.get("method")
    rows, most = told.get("num_speculative_tokens_per_batch_size"), told.get("num_speculative_tokens")
    if rows is not None:
        longest = max(length for *_, length in rows)
        yield method != "suffix", "suffix decoding has one length at every batch"
        yield rows[0][0] == 1, f"the first row begins at batch 1, not at {rows[0][0]}"
        yield most is not None and longest <= most, f"no row drafts more than num_speculative_tokens: {longest}, {most}"
    shortest, largest = told.get("prompt_lookup_min"), told.get("prompt_lookup_max")
    if shortest is not None and largest is not None:
        yield shortest <= largest, f"prompt_lookup_min is prompt_lookup_max at most: {shortest}, {largest}"
    if told.get("use_heterogeneous_vocab"):
        yield method == "draft_model", f"use_heterogeneous_vocab is of draft_model, not of {method}"
        drawn = told.get("draft_sample_method") == "probabilistic"
        yield not drawn, "use_heterogeneous_vocab and draft_sample_method probabilistic exclude each other"


def _sglang(options: Sequence[Option]) -> Iterator[Rule]:
    """Yield SGLang's rules.

    Source: the speculative arguments of python/sglang/srt/arg_groups and adaptive_spec_params.py, as of 2026-08.
    """
    told = _by_name(options)
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    steps, width, tokens = (told.get(f"speculative-{name}") for name in names)
    algorithm = told.get("speculative-algorithm")
    if algorithm not in (None, "NGRAM", "DFLASH", "DSPARK"):  # these have draft tokens, or a block, alone
        yield len({steps is None, width is None, tokens is None}) == 1, f"{', '.join(names)}: all are set, or none is"
    if steps is not None and width is not None and tokens is not None:
        pool = width + (steps - 1) * width**2
        yield width > 1 or tokens == steps + 1, f"at top-k 1 a draft token more than steps: {tokens}, {steps}"
        yield tokens - 1 <= pool, f"{steps} steps at top-k {width} find {pool} tokens, not {tokens - 1}"
    candidates = [value for section, _, value in options if section == "adaptive"]
    if candidates or told.get("speculative-adaptive"):
        yield algorithm in ("EAGLE", "EAGLE3") and width == 1, "steps follow the batch with EAGLE and EAGLE3 at top-k 1"
        yield steps in candidates, f"speculative-num-steps is one of the candidate steps: {steps}, {candidates}"
        yield "speculative-adaptive-config" in told, "candidate steps stand in the file of speculative-adaptive-config"


def _tensorrt_llm(options: Sequence[Option]) -> Iterator[Rule]:
    """Yield TensorRT-LLM's rules.

    Source: `DecodingBaseConfig` and `Eagle3DecodingConfig` of tensorrt_llm/llmapi/llm_args.py.
    """
    told = _by_name(options)
    rows, longest = told.get("draft_len_schedule"), told.get("max_draft_len")
    if rows is not None:
        lengths = [length for _, length in rows]
        yield lengths[0] == longest, f"the smallest batch drafts max_draft_len: {lengths[0]}, {longest}"
        yield max(lengths) == longest, f"no batch drafts more than max_draft_len: {max(lengths)}, {longest}"
        yield "max_concurrency" not in told, "max_concurrency and draft_len_schedule exclude each other"
    if told.get("use_dynamic_tree"):
        names = ("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens")
        yield set(names) <= set(told), f"a dynamic tree has {', '.join(names)}"
        longest, width, tokens = (told[name] for name in names)
        most = width * longest
        yield longest <= tokens <= most, f"{longest} layers of width {width} have {longest} to {most} tokens: {tokens}"


def _openvino(options: Sequence[Option]) -> Iterator[Rule]:
    """Yield OpenVINO GenAI's rules.

    Source: src/cpp/include/openvino/genai/generation_config.hpp, and validate() of src/cpp/src/generation_config.cpp.
    """
    told = _by_name(options)
    drafted, depth, width = told.get("num_assistant_tokens"), told.get("tree_depth", 0), told.get("branching_factor", 1)
    is_one = drafted is None or "assistant_confidence_threshold" not in told
    yield is_one, "num_assistant_tokens and assistant_confidence_threshold exclude each other"
    if depth:
        most = width**2 * (depth - 1) + width
        fits = drafted is not None and depth <= drafted <= most
        yield fits, f"a tree of {depth} layers and {width} branches has {depth} to {most} tokens: {drafted}"
        yield not told.get("do_sample"), f"trees are searched for greedy decoding only: do_sample, {depth} layers"


def _by_name(options: Sequence[Option]) -> Told:
    return {name: value for _, name, value in options}


RULES: Mapping[str, Callable[[Sequence[Option]], Iterator[Rule]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "openvino": _openvino,
}
