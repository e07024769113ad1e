"""`spectune advise`: counters and token times in, a length out."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.engines.load import SamplingParams, closed_loop
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.table import SERVERS

from ..support.metrics_pages import Rounds
from ..support.openai_program import VLLM, texts
from ..tuning.engines.test_counters import metrics

KEPT = [3] * 50 + [1] * 30 + [0] * 20  # of 3 drafted tokens and more: 0.8, 0.5 and 0.5 by position
MODEL = 'model_name="a \\"b\\", c"'  # as the page of `metrics` has it


def advised(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "counters").write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["advise", str(folder / "counters"), *arguments])


def test_counters_and_two_times_tell_the_length_to_draft(tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.0", "--tpot", "3=6.0", "--json")
    facts = json.loads(result.output)
    assert [one["tokens_per_round"] for one in facts["lengths"]] == pytest.approx([1.0, 1.8, 2.3, 2.8])
    assert facts["best"]["length"] == 1
    assert facts["best"]["tpot_ms"] == pytest.approx((7.0 + (16.8 - 7.0) / 3) / 1.8)
    assert facts["open"] == [1, 2] and not facts["is_longest"]


def test_people_are_told_what_to_set_and_what_is_not_sure(tmp_path: Path) -> None:
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.0", "--tpot", "3=6.0").output
    assert "draft 1: 5.70 ms a token, 1.23 times plain decoding" in said
    assert "that is guessed between lengths that were measured; to be sure run it and add --tpot 1=MS" in said
    assert "not measured, and may be faster still: 2" in said
    assert "note: the page does not tell rounds that drafted nothing" in said
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=4.0", "--tpot", "3=5.0").output
    assert "do not speculate" in said


@pytest.mark.parametrize(
    ("file_format", "prefix", "generated"),
    [("vllm-metrics", "vllm:", "generation_tokens_total"), ("llama-metrics", "llamacpp:", "tokens_predicted_total")],
)
def test_rounds_that_drafted_nothing_are_among_those_that_times_are_of(
    file_format: str, prefix: str, generated: str, tmp_path: Path
) -> None:
    rounds, answers = 2 * len(KEPT), 7  # half of the rounds drafted nothing
    text = metrics(KEPT, prefix, "_total") + f"{prefix}{generated}{{{MODEL}}} {rounds + sum(KEPT) + answers}\n"
    times = {length: 7.0 / (1.0 + sum((0.4, 0.25, 0.25)[:length])) for length in range(4)}  # rounds of 7 ms
    named = [word for length, time in times.items() for word in ("--tpot", f"{length}={time}")]
    if prefix == "vllm:":
        text += f"vllm:request_success_total{{{MODEL}}} {answers}\n"
    else:
        named += ["--answers", str(answers)]
    result = advised(tmp_path, text, "--format", file_format, *named, "--json")
    facts = json.loads(result.output)
    assert [one["tokens_per_round"] for one in facts["lengths"]] == pytest.approx([1.0, 1.4, 1.65, 1.9])
    assert facts["best"]["length"] == 3
    assert "50 % of the rounds drafted anything; acceptance is told of all of them" in facts["notes"]


def page(prefix: str, generated: str, drafts: int, at: tuple[int, ...], tokens: int) -> str:
    """Return a page of rounds that all drafted as many tokens as there are positions."""
    counts = {"drafts": drafts, "draft_tokens": drafts * len(at), "accepted_tokens": sum(at)}
    lines = [f"{prefix}spec_decode_num_{name}_total {n}" for name, n in counts.items()]
    name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{position="{place}"}} {n}' for place, n in enumerate(at)]
    return "\n".join([*lines, f"{prefix}{generated}_total {tokens}"]) + "\n"


EIGHT = (2100, (1300, 1000, 800, 600, 500), 7200)  # 900 answers of 8 tokens
FOUR = (1000, (680, 500, 380, 270, 170), 4000)  # 1000 answers of 4 tokens
TIMES = ("--tpot", "0=7.0", "--tpot", "5=4.8")
ANSWERS = [
    'time_to_first_token_seconds_count{engine="0"} 500\nvllm:time_to_first_token_seconds_count{engine="1"} 400',
    'request_success_total{finished_reason="stop"} 300\nvllm:request_success_total{finished_reason="length"} 600',
    "e2e_request_latency_seconds_count 900",
    "request_generation_tokens_count 900",
]


@pytest.mark.parametrize("answers", ANSWERS)
def test_first_tokens_of_vllm_s_answers_are_prefill_s_and_no_rounds(tmp_path: Path, answers: str) -> None:
    text = page("vllm:", "generation_tokens", *EIGHT) + f"vllm:{answers}\n"
    facts = json.loads(advised(tmp_path, text, *TIMES, "--json").output)
    assert facts["lengths"][5]["tokens_per_round"] == pytest.approx(3.0)
    assert facts["notes"] == []  # 100 % of the rounds drafted


def test_first_tokens_of_llama_cpp_s_answers_are_named(tmp_path: Path) -> None:
    text = page("llamacpp:", "tokens_predicted", *EIGHT)
    facts = json.loads(advised(tmp_path, text, *TIMES, "--answers", "900", "--json").output)
    assert facts["lengths"][5]["tokens_per_round"] == pytest.approx(3.0) and facts["notes"] == []
    facts = json.loads(advised(tmp_path, text, *TIMES, "--json").output)
    assert facts["lengths"][5]["tokens_per_round"] == pytest.approx(2.4)
    assert "70 % of the rounds drafted anything" in facts["notes"][0] and "give --answers N" in facts["notes"][1]


def test_first_tokens_of_short_answers_would_change_the_best_length(tmp_path: Path) -> None:
    text = page("vllm:", "generation_tokens", *FOUR)
    known = json.loads(advised(tmp_path, text + "vllm:request_success_total 1000\n", *TIMES, "--json").output)
    assert known["best"]["length"] == 3 and known["notes"] == []
    unknown = json.loads(advised(tmp_path, text, *TIMES, "--json").output)
    assert unknown["best"]["length"] == 4 and "give --answers N" in unknown["notes"][-1]


def test_two_pages_tell_of_what_lies_between_them(tmp_path: Path) -> None:
    """What was counted before, of another length, counts no more."""
    tail = "vllm:request_success_total {answers}\n"
    drafts, at, tokens = EIGHT
    (tmp_path / "one").write_text(
        page("vllm:", "generation_tokens", 500, (400, 10, 0, 0, 0), 1010) + tail.format(answers=100)
    )
    both = (drafts + 500, (at[0] + 400, at[1] + 10, *at[2:]), tokens + 1010)
    (tmp_path / "two").write_text(page("vllm:", "generation_tokens", *both) + tail.format(answers=1000))
    words = ["advise", "--before", str(tmp_path / "one"), "--after", str(tmp_path / "two"), *TIMES, "--json"]
    facts = json.loads(CliRunner().invoke(main, words).output)
    assert facts["lengths"][5]["tokens_per_round"] == pytest.approx(3.0) and facts["notes"] == []
    turned = CliRunner().invoke(main, [*words[:2], words[4], "--after", words[2], *TIMES])
    assert turned.exit_code == 1 and "the server started again in between" in turned.stderr


def test_a_url_is_counted_for_a_while(tmp_path: Path) -> None:
    command = (*VLLM, "--speculative-config", '{"num_speculative_tokens": 3}')
    with started(SERVERS["vllm"], command, ServerTimeouts(start_s=30.0)) as server:
        send = partial(closed_loop, server.address, texts(4), 2, SamplingParams(max_tokens=24))
        send()
        with ThreadPoolExecutor() as pool:
            loads = pool.submit(lambda: [pool.submit(send) for _ in range(3)])
            words = ["advise", server.address.url, "--for", "1s", "--tpot", "0=7.1", "--tpot", "3=4.9", "--json"]
            result = CliRunner().invoke(main, words)
            assert all(len(load.result().ended) == 4 for load in loads.result())
        whole = CliRunner().invoke(main, [*words[:2], *words[4:]])
    rounds = [json.loads(one.output)["lengths"][3]["tokens_error"] for one in (result, whole)]
    assert rounds[0] > rounds[1]  # fewer rounds in a second than since the start
    assert CliRunner().invoke(main, ["advise", "page.txt", "--for", "1s", *TIMES]).exit_code == 2
    assert CliRunner().invoke(main, ["advise", "--before", "page.txt", *TIMES]).exit_code == 2
    assert CliRunner().invoke(main, ["advise", server.address.url, "--for", "0s", *TIMES]).exit_code == 2


@pytest.mark.parametrize(("answers", "known"), [(901, False), (900, True)])
def test_answers_that_do_not_fit_the_counters_are_refused(tmp_path: Path, answers: int, known: bool) -> None:
    text = page("vllm:", "generation_tokens", *EIGHT) + "vllm:request_success_total 900\n" * known
    result = advised(tmp_path, text, *TIMES, "--answers", str(answers))
    told = "leave --answers out" if known else "leaves 2099 rounds behind the first tokens of 901 answers"
    assert result.exit_code == 1 and told in result.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sglang:spec_accept_length 2.5\n", "has no counter of vLLM, SGLang or llama.cpp"),
        ("trtllm_request_success_total 3\n", "is a page of TensorRT-LLM"),
        ("go_goroutines 3\n", "has no counter of vLLM, SGLang or llama.cpp"),
    ],
)
def test_pages_without_positions_are_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    result = advised(tmp_path, text, *TIMES)
    assert result.exit_code == 1 and told in result.stderr


@pytest.mark.parametrize("counts_rounds", [True, False])
def test_sglang_s_page_tells_the_length_and_that_positions_are_not_known(
    tmp_path: Path, *, counts_rounds: bool
) -> None:
    rounds = Rounds(3)
    rounds.decode(4000, (0.7, 0.49, 0.343))
    text = rounds.sglang_page(0.0, counts_rounds=counts_rounds)
    facts = json.loads(advised(tmp_path, text, "--tpot", "0=7.0", "--tpot", "3=4.0", "--json").output)
    tokens = [one["tokens_per_round"] for one in facts["lengths"]]
    assert tokens == pytest.approx([1.0, 1.7, 2.19, 2.533], abs=0.05)
    said = advised(tmp_path, text, "--tpot", "0=7.0", "--tpot", "3=4.0").output
    assert "SGLang tells no positions" in said


@pytest.mark.parametrize("wrong", ["3", "x=1", "3=", "0=7.0"])
def test_a_time_that_does_not_read_is_refused(wrong: str, tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.1", "--tpot", wrong)
    assert result.exit_code == 2 and "is no LENGTH=MS, or repeats a length" in result.stderr
