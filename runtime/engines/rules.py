"""Rules between the options of one configuration, which schemas lack; engines' own parsers refuse what breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .engine import Option

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
    if algorithm not in (None, "NGRAM"):  # its trie has draft tokens alone
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
