"""Acceptance read from an engine's counters is that of the run that they counted.

The pages of llama.cpp and vLLM, and vLLM's counts, are of runs here. What is said to be after a public report was
not run here: its numbers are those that others published.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spectune.engines.counters import counts_between, counts_of, page_of
from spectune.engines.table import COUNTERS
from spectune.tuning.engines.advice import counted_pages
from spectune.tuning.engines.counters import READERS, accepted_of

PAGES = Path(__file__).parents[1] / "data" / "pages"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "vllm-exports.json"
LLAMA = COUNTERS["llama.cpp"]


def test_llama_cpp_s_pages_count_what_its_answers_say() -> None:
    before, after = (page_of((PAGES / f"llama.cpp-{when}.txt").read_text()) for when in ("before", "after"))
    answers = json.loads((PAGES / "llama.cpp-timings.json").read_text())
    told = {name: sum(one[name] for one in answers) for name in answers[0]}
    counts = counts_between(after, before, LLAMA)
    assert (counts.drafted, counts.accepted, counts.generated) == (
        told["draft_n"],
        told["draft_n_accepted"],
        told["predicted_n"],
    )
    decodes = "llamacpp:n_decode", ()  # llama_decode is called for every prompt and round; answers came one by one
    rounds = after[decodes] - before[decodes] - len(answers)
    assert counts.rounds(told["predicted_n"], len(answers)) == rounds
    found = counted_pages("pages", after, before)
    assert found.tokens_per_round == pytest.approx(1.0 + told["draft_n_accepted"] / counts.drafts)
    logged = (0.695, 0.401, 0.107, 0.059)  # by the server's own log, of all answers since its start
    assert accepted_of(counts_of(after, LLAMA), LLAMA).by_position == pytest.approx(logged, abs=5e-4)


def test_vllm_s_pages_count_what_the_load_client_counted() -> None:
    """24 answers of 64 tokens each; three of four rounds find no n-gram, and so are no drafts."""
    before, after = (page_of((PAGES / f"vllm-{when}.txt").read_text()) for when in ("before", "after"))
    counts = counts_between(after, before, COUNTERS["vllm"], "smollm2")
    assert (counts.generated, counts.answers) == (24 * 64, 24)
    assert counts.accepted == sum(counts.by_position) == 574
    found = accepted_of(counts, COUNTERS["vllm"])
    assert (found.rounds, found.drafts) == (24 * 63 - 574, 277)
    assert found.tokens_per_round == pytest.approx(1.0 + 574 / 277)  # of the rounds that drafted


def test_vllm_s_counters_count_the_rounds_of_our_own_decoder_on_the_same_texts() -> None:
    """VLLM 0.32 decoded the export of a chain here; `own_rounds` is what our decoder took for the same texts."""
    results = json.loads(RESULTS.read_text())
    (row,) = (row for row in results["rows"] if row["case"] == "chain by a model")
    told = {
        "spec_decode_num_drafts": row["drafts"],
        "spec_decode_num_draft_tokens": row["draft_tokens"],
        "spec_decode_num_accepted_tokens": row["accepted"],
        "generation_tokens": results["prompts"] * results["tokens"],
        "request_success": results["prompts"],
    }
    page = page_of("".join(f'vllm:{name}_total{{engine="0"}} {count}\n' for name, count in told.items()))
    found = accepted_of(counts_of(page, COUNTERS["vllm"]), COUNTERS["vllm"])
    assert found.rounds == found.drafts == row["own_rounds"]
    assert found.tokens_per_round == pytest.approx(1.0 + row["accepted"] / row["own_rounds"])


def test_vllm_s_positions_are_those_of_a_public_report() -> None:
    """After github.com/vllm-project/vllm/pull/24127: a log of 59 drafts of 5 tokens, rates by position, their mean."""
    at, rates = (58, 56, 54, 52, 42), (0.983, 0.949, 0.915, 0.881, 0.712)
    told = {"drafts": 59, "draft_tokens": 295, "accepted_tokens": 262}
    lines = [f"vllm:spec_decode_num_{name}_total {count}" for name, count in told.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}'
        for place, count in enumerate(at)
    ]
    found = accepted_of(counts_of(page_of("\n".join(lines)), COUNTERS["vllm"]), COUNTERS["vllm"])
    assert found.by_position == pytest.approx(rates, abs=5e-4)
    assert found.tokens_per_round == pytest.approx(5.44, abs=5e-3)


def test_sglang_s_and_tensorrt_llm_s_lengths_are_those_of_public_reports() -> None:
    """After github.com/sgl-project/sglang/pull/4247 (5 steps, 8 steps) and github.com/NVIDIA/TensorRT-LLM/pull/5146."""
    row = {"batch_size": 1, "topk": 1, "step_time": 0.01, "speed": 1.0, "completion_tokens": 1.0}
    lengths = {5: 4.68, 8: 5.39}
    lines = [json.dumps({**row, "steps": n, "num_draft_tokens": n + 1, "acc_length": x}) for n, x in lengths.items()]
    found = READERS["sglang-bench"]("\n".join(lines)).acceptance
    assert [one.tokens_per_round for one in found] == list(lengths.values())
    report = {"decoding_stats": {"acceptance_length_percentiles": {"average": 1.83}}}
    (one,) = READERS["trtllm-bench"](json.dumps(report)).acceptance
    assert one.tokens_per_round == 1.83
