"""SGLang's and TensorRT-LLM's servers: options and files, and counts that are those of the scripted server's run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.counters import CounterPage
from spectune.engines.load import SamplingParams
from spectune.engines.server import Measured, ServerTimeouts, started
from spectune.engines.server_engine import Source, WrittenFile, placed, written_files
from spectune.engines.setting import EngineDrafter
from spectune.engines.table import SERVERS
from spectune.errors import MeasurementError, PlanError, RequestError

from ..support.openai_program import SGLANG, TENSORRT_LLM, texts

SGLANG_SERVER, TRT_SERVER = SERVERS["sglang"], SERVERS["tensorrt-llm"]
SMALL = EngineDrafter(name="small", path="org/small", form="model")
HEAD = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/head"]
OWN = [*HEAD, "--speculative-num-steps=3", "--speculative-num-draft-tokens", "4", "--speculative-adaptive"]
YAML = """\
kv_cache_config:
  dtype: fp8
speculative_config:
    decoding_type: Eagle3
    max_draft_len: 3
    speculative_model: "org/head"  # ours
    draft_len_schedule:
        4: 3
# as it was trained
    eagle3_layers_to_capture:
    - 1
    allow_advanced_sampling: true
return_perf_metrics: false
cuda_graph_config:
  batch_sizes:
  - 1
"""


def ran(engine: str, command: Sequence[str], source: Source | None, lengths: dict[int, int]) -> tuple[Measured, Any]:
    """Return what was counted of a load of two at once, and what the server did meanwhile."""
    known = SERVERS[engine]
    whole = known.plain(command)
    if source is not None:
        whole = known.joined(whole, known.flags(source, lengths, "9999"))
    with started(known, whole, ServerTimeouts(start_s=30.0)) as server:
        sampling = SamplingParams(max_tokens=24, more=known.body())
        found = server.measure(texts(6), sampling, concurrency=2)
        return found, server.address.get("/truth").json()


def sources_of(engine: str, command: Sequence[str]) -> dict[str, Source]:
    return {source.name: source for source in SERVERS[engine].sources(command, [SMALL], 4, "9999")}


def test_sglang_decodes_plainly_without_its_drafts_and_shows_its_counters() -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", "M", *OWN, "--tp", "2"]
    plain = ["python", "-m", "sglang.launch_server", "--model-path", "M", "--tp", "2", "--enable-metrics"]
    assert SGLANG_SERVER.plain(command) == plain == SGLANG_SERVER.plain(plain)
    assert SGLANG_SERVER.counted(command) == [*command, "--enable-metrics"]


def test_sglang_drafts_by_models_heads_and_its_trie() -> None:
    small, head, trie = SGLANG_SERVER.sources(OWN, [SMALL], 6, "2026-08")
    assert [small.is_model, head.is_model, trie.is_model] == [True, True, False]
    assert {one.checked for one in (small, head, trie)} == {"run on a scripted server alone"}
    assert SGLANG_SERVER.flags(small, {1: 5, 8: 5}, "2026-08") == (
        *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "org/small"),
        *("--speculative-num-steps", "5", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"),
    )
    flags = SGLANG_SERVER.flags(head, {1: 5, 8: 2}, "2026-08")
    assert flags[:4] == tuple(HEAD) and "--speculative-adaptive" in flags
    ((_, text),) = written_files(flags).items()
    assert json.loads(text) == {"1": {"candidate_steps": [5]}, "3": {"candidate_steps": [2]}}
    assert SGLANG_SERVER.flags(trie, {1: 6}, "2026-08")[:4] == (
        *("--speculative-algorithm", "NGRAM"),
        *("--speculative-num-draft-tokens", "7"),
    )


def test_sglang_drafts_with_the_target_s_own_layers_and_refuses_what_it_does_not_know() -> None:
    mtp, _ = SGLANG_SERVER.sources(["--speculative-algorithm", "NEXTN"], [], 3, "2026-08")
    assert SGLANG_SERVER.flags(mtp, {1: 2}, "2026-08") == (
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "2"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
    )
    for algorithm, version in (("FROZEN_KV_MTP", "2026-08"), ("DSPARK", "0.5.10")):
        with pytest.raises(
            RequestError, match=f"how {algorithm} takes a length is not known here, of SGLang {version}"
        ):
            SGLANG_SERVER.sources(["--speculative-algorithm", algorithm], [], 3, version)


@pytest.mark.parametrize(
    ("algorithm", "option", "written"),
    [
        ("DFLASH", "--speculative-num-draft-tokens", "6"),  # a block counts the root
        ("DSPARK", "--speculative-dspark-block-size", "5"),
    ],
)
def test_sglang_s_blocks_take_a_length_by_their_own_option(algorithm: str, option: str, written: str) -> None:
    own = ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", "org/block", option, "16"]
    assert SGLANG_SERVER.plain(["serve", *own, "--tp", "2"]) == ["serve", "--tp", "2", "--enable-metrics"]
    block, _ = SGLANG_SERVER.sources(own, [], 8, "2026-08")
    assert (block.is_model, block.setting.by_batch, block.checked) == (True, False, "parsed only")
    assert SGLANG_SERVER.flags(block, {1: 5, 8: 5}, "2026-08") == (*own[:-1], written)


def test_only_heads_of_a_newest_sglang_take_a_length_by_batch() -> None:
    small, head, _ = SGLANG_SERVER.sources(OWN, [SMALL], 6, "2026-08")
    assert (small.setting.by_batch, head.setting.by_batch) == (False, True)
    assert not SGLANG_SERVER.sources(OWN, [], 6, "0.5.10")[0].setting.by_batch


@pytest.mark.parametrize("tells", ["details", "counters", "gauge"])
def test_sglang_s_counts_are_those_of_the_run(tells: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TELLS", tells)
    found, (_, drafted, accepted, at, tokens, answers) = ran(
        "sglang", SGLANG, sources_of("sglang", SGLANG)["small"], {2: 4}
    )
    rounds = tokens - answers - accepted
    counts = found.counts
    assert counts.rounds(found.load.tokens, len(found.load.ended)) == pytest.approx(rounds, rel=0.1)
    assert counts.accepted == pytest.approx(accepted, rel=0.1)
    if tells == "details":
        assert (counts.drafts, counts.drafted, counts.accepted) == (rounds, drafted, accepted)
        assert counts.by_position == tuple(at[:4])
    elif tells == "counters":
        assert (counts.drafts, counts.accepted) == (rounds, accepted)
    assert sum(counts.by_position) == pytest.approx(counts.accepted, rel=1e-6)


@pytest.mark.parametrize("accepted", [0, 5])
def test_sglang_s_positions_are_those_that_were_drafted(accepted: int) -> None:
    """Its histogram ends with the most that was ever accepted; 9 tokens are verified, 8 of them drafted."""
    told = {
        "spec_verify_ct": 10,
        "spec_num_proposed_drafts": 80,
        "spec_num_correct_drafts": accepted,
        "spec_correct_drafts_histogram": [9, *[0] * (accepted - 1), 1] if accepted else [10],
    }
    load = LoadResult(
        concurrency=1,
        answers=(RequestResult(prompt=0, tokens=11 + accepted, timings=told),),
        wall_s=1.0,
        client_share=0.0,
    )
    page: CounterPage = {("sglang:spec_num_draft_tokens", ()): 9.0}
    counts = SGLANG_SERVER.counts(page, page, load, "")
    assert counts.by_position == (*[1.0] * accepted, *[0.0] * (8 - accepted))


def test_sglang_s_plain_decoding_counts_no_drafts() -> None:
    found, _ = ran("sglang", SGLANG, None, {})
    assert (found.counts.drafts, found.counts.accepted, found.counts.by_position) == (0.0, 0.0, ())


def test_an_sglang_that_decodes_a_token_before_it_says_so_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HEALTH_S", "1.2")
    with started(SGLANG_SERVER, SGLANG, ServerTimeouts(start_s=30.0)) as server:
        assert server.version == "2026-08"


def test_an_answer_that_comes_after_the_limit_of_a_start_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HEALTH_S", "5.0")
    late = started(SGLANG_SERVER, SGLANG, ServerTimeouts(start_s=2.0))
    with pytest.raises(MeasurementError, match="was not up after 2 s"), late:
        pass


@pytest.fixture
def trtllm(tmp_path: Path) -> list[str]:
    file = tmp_path / "own.yaml"
    file.write_text(YAML)
    return [*TENSORRT_LLM, "--config", str(file), "--tp_size", "2"]


def config_of(command: Sequence[str]) -> dict[str, Any]:
    ((_, text),) = written_files(command).items()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_tensorrt_llm_s_file_loses_its_drafts_and_tells_of_requests(trtllm: list[str]) -> None:
    plain = TRT_SERVER.plain(trtllm)
    assert plain[:-1] == [*TENSORRT_LLM, "--tp_size", "2", "--config"]
    told = {"return_perf_metrics": True, "perf_metrics_max_requests": 10000}
    assert config_of(plain) == {"kv_cache_config": {"dtype": "fp8"}, "cuda_graph_config": {"batch_sizes": [1]}, **told}
    assert config_of(TRT_SERVER.counted(trtllm))["speculative_config"]["max_draft_len"] == 3
    assert config_of(TRT_SERVER.plain(TENSORRT_LLM)) == told


def test_tensorrt_llm_drafts_by_models_heads_and_n_grams(trtllm: list[str]) -> None:
    small, head, ngrams = TRT_SERVER.sources(trtllm, [SMALL], 5, "1.4.0rc1")
    assert [(one.name, one.is_model, one.setting.by_batch) for one in (small, head, ngrams)] == [
        ("small", True, True),
        ("head", True, True),
        ("n-grams", False, False),
    ]
    whole = config_of(TRT_SERVER.joined(TRT_SERVER.plain(trtllm), TRT_SERVER.flags(head, {1: 5, 8: 2}, "1.4.0rc1")))
    assert whole["kv_cache_config"]["dtype"] == "fp8" and whole["return_perf_metrics"] is True
    assert whole["speculative_config"] == {
        "decoding_type": "Eagle3",
        "max_draft_len": 5,
        "speculative_model": "org/head",
        "draft_len_schedule": {2: 5, 8: 2},
        "eagle3_layers_to_capture": [1],
        "allow_advanced_sampling": True,
    }
    plain = TRT_SERVER.flags(small, {1: 5, 8: 5}, "1.4.0rc1")
    assert "eagle3_layers_to_capture" not in config_of(plain)["speculative_config"]
    with pytest.raises(PlanError, match="begins with its longest length"):
        TRT_SERVER.flags(head, {1: 2, 8: 5}, "1.4.0rc1")


def test_tensorrt_llm_drafts_with_the_target_s_own_layers(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 1, relaxed_topk: 1}\n")
    mtp, _ = TRT_SERVER.sources([*TENSORRT_LLM, "--config", str(file)], [], 5, "1.4.0rc1")
    assert (mtp.name, mtp.is_model, mtp.checked) == ("MTP", True, "parsed only")
    assert config_of(TRT_SERVER.flags(mtp, {1: 3, 8: 1}, "1.4.0rc1"))["speculative_config"] == {
        "decoding_type": "MTP",
        "max_draft_len": 3,
        "draft_len_schedule": {2: 3, 8: 1},
        "relaxed_topk": 1,
    }


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (" Eagle3", "decoding_type None"),
        ("\n  decoding_type: MTP\n  use_mtp_vanilla: true", "decoding_type MTP, speculative_model None"),
        ("\n  decoding_type: Eagle\n  speculative_model: org/head", "decoding_type Eagle, speculative_model org/head"),
        ("\n  decoding_type: Eagle3\n  max_draft_len: 3", "decoding_type Eagle3, speculative_model None"),
        ("\n  decoding_type: Eagle3\n  speculative_model: org/head\n  use_dynamic_tree: true", "a chain of"),
    ],
)
def test_drafts_of_a_tensorrt_llm_file_whose_length_is_not_known_are_refused(
    block: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"speculative_config:{block}\n")
    with pytest.raises(RequestError, match=f"take a length is not known here: .*{said}"):
        TRT_SERVER.sources([*TENSORRT_LLM, "--config", str(file)], [SMALL], 5, "1.4.0rc1")


@pytest.mark.parametrize("block", [" null", "", "\n  decoding_type: NGram\n  max_draft_len: 4"])
def test_a_tensorrt_llm_file_with_n_grams_or_no_drafts_has_no_model_of_its_own(block: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"speculative_config:{block}\n")
    found = TRT_SERVER.sources([*TENSORRT_LLM, "--config", str(file)], [], 5, "1.4.0rc1")
    assert [one.name for one in found] == ["n-grams"]


def test_tensorrt_llm_s_counts_are_those_of_the_run() -> None:
    source = sources_of("tensorrt-llm", TENSORRT_LLM)["small"]
    found, (_, drafted, accepted, _, tokens, answers) = ran("tensorrt-llm", TENSORRT_LLM, source, {2: 4})
    counts = found.counts
    assert (counts.drafted, counts.accepted) == (drafted, accepted)
    assert counts.drafts == tokens - answers - accepted
    assert sum(counts.by_position) == pytest.approx(accepted, rel=1e-6)
    assert list(counts.by_position) == sorted(counts.by_position, reverse=True)
    plain, _ = ran("tensorrt-llm", TENSORRT_LLM, None, {})
    assert plain.counts.drafts == 0.0


def test_a_tensorrt_llm_that_tells_nothing_of_requests_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("cuda_graph_config:\n  max_batch_size: 8\n")
    command = [*TENSORRT_LLM, "--config", str(file)]
    running = started(TRT_SERVER, command, ServerTimeouts(start_s=30.0))
    with running as server, pytest.raises(MeasurementError, match="return_perf_metrics: true"):
        server.measure(texts(2), SamplingParams(max_tokens=8), concurrency=1)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*none\.yaml"):
        TRT_SERVER.plain(["trtllm-serve", "M", "--config", str(tmp_path / "none.yaml")])
    for text, said in (("- 1", "holds list; write options"), ("a: [", "cannot read .*bad.yaml of the command")):
        bad = tmp_path / "bad.yaml"
        bad.write_text(text)
        with pytest.raises(RequestError, match=said):
            TRT_SERVER.plain(["trtllm-serve", "M", "--extra_llm_api_options", str(bad)])
    flow = tmp_path / "flow.yaml"
    flow.write_text("{kv_cache_config: {dtype: fp8}}")
    found = config_of(TRT_SERVER.plain(["trtllm-serve", "M", "--extra_llm_api_options", str(flow)]))
    assert found["kv_cache_config"] == {"dtype": "fp8"}


def test_files_of_a_command_are_written_where_it_starts_and_named_by_their_text(tmp_path: Path) -> None:
    word = WrittenFile.of("speculative.yaml", "a: 1\n")
    other = WrittenFile.of("speculative.yaml", "a: 2\n")
    assert word != other and word.endswith(".yaml")
    command = placed(["serve", "--config", word], tmp_path)
    assert command == ["serve", "--config", str(tmp_path / word)]
    assert Path(command[-1]).read_text() == "a: 1\n"
