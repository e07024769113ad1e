"""Counters of engines come to unconditional acceptance by position, or are refused."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.import_ import FORMATS as TYPED
from spectune.cli.import_ import TABLES
from spectune.db import open_store
from spectune.errors import RequestError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.observation import Observation
from spectune.profiler.records.wire import from_json, to_json
from spectune.tuning.engines.counters import FORMATS, READERS, Counted, CounterFormat, read_counters

from ...support.engine_policies import chains_by_batch

DRAFTED = 3
CHANCES = (0.8, 0.75, 0.5)  # of each position, given those before it


def read(folder: Path, text: str, file_format: CounterFormat) -> Counted:
    (folder / "file").write_text(text)
    return read_counters(folder / "file", file_format)


def rounds(count: int, seed: int = 0) -> list[int]:
    """Decode rounds one by one and return how many drafts each kept."""
    source = random.Random(seed)
    kept = []
    for _ in range(count):
        accepted = 0
        while accepted < DRAFTED and source.random() < CHANCES[accepted]:
            accepted += 1
        kept.append(accepted)
    return kept


def metrics(kept: list[int], prefix: str, suffix: str, engines: int = 1) -> str:
    """Return the counters a server would show, its rounds dealt out to engines."""
    lines = [f"# HELP {prefix}spec_decode_num_drafts{suffix} rounds", f"# TYPE {prefix}spec_decode_num_drafts counter"]
    for engine in range(engines):
        own, where = kept[engine::engines], f'engine="{engine}",model_name="a \\"b\\", c"'
        counts = {"drafts": len(own), "draft_tokens": DRAFTED * len(own), "accepted_tokens": sum(own)}
        lines += [f"{prefix}spec_decode_num_{name}{suffix}{{{where}}} {float(n)}" for name, n in counts.items()]
        lines += [
            f'{prefix}spec_decode_num_accepted_tokens_per_pos{suffix}{{{where},position="{at}"}} '
            f"{float(sum(one > at for one in own))}"
            for at in range(DRAFTED)
        ]
    return "\n".join([*lines, f"{prefix}spec_decode_num_drafts_created 1.7e9"]) + "\n"


def bench(*rows: tuple[int, int, int, int, float]) -> str:
    names = ("batch_size", "steps", "topk", "num_draft_tokens", "acc_length")
    extra = {"step_time": 0.02, "speed": 1.0, "completion_tokens": 512.0}
    return "".join(json.dumps(dict(zip(names, row, strict=True)) | extra) + "\n" for row in rows)


@pytest.mark.parametrize(("file_format", "prefix"), [("vllm-metrics", "vllm:"), ("llama-metrics", "llamacpp:")])
@pytest.mark.parametrize("suffix", ["_total", ""])
def test_counters_give_the_share_of_rounds_that_kept_so_many(
    tmp_path: Path, file_format: CounterFormat, prefix: str, suffix: str
) -> None:
    kept = rounds(4000)
    (found,) = read(tmp_path, metrics(kept, prefix, suffix, engines=2), file_format).acceptance
    assert found.by_position == tuple(sum(one > at for one in kept) / 4000 for at in range(DRAFTED))
    assert found.by_position == pytest.approx((0.8, 0.6, 0.3), abs=0.03)
    assert found.tokens_per_round == pytest.approx(1 + sum(kept) / 4000)
    assert found.by_length[-1] == pytest.approx(found.tokens_per_round)
    assert (found.drafts, found.notes) == (4000, ())


def test_a_shorter_chain_keeps_the_first_positions(tmp_path: Path) -> None:
    """Chains of two in the same rounds would have kept min(kept, 2)."""
    kept = rounds(4000)
    (found,) = read(tmp_path, metrics(kept, "vllm:", "_total"), "vllm-metrics").acceptance
    assert found.by_length[1] == pytest.approx(1 + sum(min(one, 2) for one in kept) / 4000)


def test_drafts_of_different_lengths_make_far_positions_lower_bounds(tmp_path: Path) -> None:
    text = metrics(rounds(100), "vllm:", "_total").replace("draft_tokens_total", "draft_tokens_total", 1)
    text = text.replace("300.0", "250.0", 1)
    (found,) = read(tmp_path, text, "vllm-metrics").acceptance
    assert "lower bounds" in found.notes[0]


def test_sglang_s_lengths_count_a_round_s_own_token_and_their_differences_are_positions(tmp_path: Path) -> None:
    text = bench((1, 0, 0, 0, 1.0), (1, 1, 1, 2, 1.8), (1, 2, 1, 3, 2.4), (1, 3, 1, 4, 2.7), (4, 1, 1, 2, 1.75))
    found = read(tmp_path, text, "sglang-bench").acceptance
    assert [one.about for one in found][-1] == "batch 4, 1 steps, top-k 1, 2 tokens"
    assert found[2].by_position == pytest.approx((0.8, 0.6, 0.3))
    assert (found[2].tokens_per_round, found[2].step_ms) == (2.7, 20.0)


def test_a_gap_in_sglang_s_steps_ends_what_is_known_by_position(tmp_path: Path) -> None:
    _, found = read(tmp_path, bench((1, 1, 1, 2, 1.8), (1, 3, 1, 4, 2.7)), "sglang-bench").acceptance
    assert found.by_position == pytest.approx((0.8,))
    assert "positions beyond 1 are not told apart" in found.notes[0]


def test_a_tree_of_sglang_tells_no_positions(tmp_path: Path) -> None:
    (found,) = read(tmp_path, bench((1, 3, 4, 8, 3.1)), "sglang-bench").acceptance
    assert (found.by_position, found.tokens_per_round) == ((), 3.1)


def test_an_sps_table_gives_the_time_of_steps(tmp_path: Path) -> None:
    table = {"sample_batch_tokens": [8, 16], "sample_steps_per_sec": [100.0, 80.0], "max_batch_tokens": 16}
    found = read(tmp_path, json.dumps(table), "sglang-sps")
    assert [(step.tokens, step.step_ms) for step in found.steps] == [(8, 10.0), (16, 12.5)]


def test_trtllm_bench_tells_a_length_and_no_positions(tmp_path: Path) -> None:
    report = {"decoding_stats": {"acceptance_length_percentiles": {"average": 2.5, "p50": 2.4}}}
    (found,) = read(tmp_path, json.dumps(report), "trtllm-bench").acceptance
    assert (found.by_position, found.tokens_per_round, found.by_length) == ((), 2.5, ())
    assert "prefill counts as a round" in found.notes[-1]


def test_trtllm_bench_counts_prefill_as_a_round_and_here_it_is_none(tmp_path: Path) -> None:
    """Answers of 8 tokens, 3 a round: 7 / 3 rounds and prefill are 10 / 3 iterations."""
    stats = {"acceptance_length_percentiles": {"average": 8 / (7 / 3 + 1)}}
    report = {"request_info": {"avg_output_length": 8.0}, "decoding_stats": stats}
    (found,) = read(tmp_path, json.dumps(report), "trtllm-bench").acceptance
    assert found.tokens_per_round == pytest.approx(3.0)


def test_every_format_that_can_be_typed_has_a_reader() -> None:
    assert set(TYPED) == {*TABLES, *FORMATS} and set(READERS) == set(FORMATS)


BROKEN: list[tuple[CounterFormat, str, str]] = [
    ("vllm-metrics", "vllm:num_requests 3\n", "there is no counter vllm:spec_decode_num_drafts"),
    ("vllm-metrics", metrics([], "vllm:", "_total"), "no round drafted"),
    ("vllm-metrics", metrics([2, 3], "vllm:", "_total").replace('position="1"', 'position="7"'), "lacks positions"),
    (
        "vllm-metrics",
        metrics([2, 3], "vllm:", "_total") + 'vllm:spec_decode_num_drafts_total{model_name="other"} 3.0\n',
        "several models",
    ),
    (
        "vllm-metrics",
        metrics([2, 3], "vllm:", "_total")
        .replace("accepted_tokens_total{", 'accepted_tokens_total{x="1",')
        .replace(" 5.0", " 9.0"),
        "5 tokens were accepted at positions, 9 in all",
    ),
    (
        "vllm-metrics",
        metrics([2, 3], "vllm:", "_total").replace('"0"} 2.0', '"0"} 1.0').replace('"1"} 2.0', '"1"} 3.0'),
        "a longer prefix cannot be accepted more often",
    ),
    (
        "llama-metrics",
        metrics([2, 3], "llamacpp:", "").replace('"0"} 2.0', '"0"} 1.0').replace('"2"} 1.0', '"2"} 2.0'),
        "a longer prefix cannot be accepted more often",
    ),
    ("sglang-bench", "", "there is no line in it"),
    ("sglang-bench", '{"batch_size": 1}\n', "not of the format sglang-bench"),
    ("sglang-bench", bench((1, 1, 1, 2, 1.3), (1, 2, 1, 3, 2.2)), "a longer prefix cannot be accepted more often"),
    ("sglang-sps", '{"bs_probes": [1]}', "additive tables tell no whole steps"),
    ("sglang-sps", '{"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [1.0]}', "not of the format"),
    ("trtllm-bench", '{"performance": {}}', "no decoding_stats"),
    ("trtllm-bench", "nothing", "not of the format trtllm-bench"),
    ("llama-metrics", "llamacpp:n_decode_total 3\n", "there is no counter llamacpp:spec_decode_num_drafts"),
]


@pytest.mark.parametrize(("file_format", "text", "told"), BROKEN)
def test_what_is_no_count_of_one_run_is_refused(
    tmp_path: Path, file_format: CounterFormat, text: str, told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        read(tmp_path, text, file_format)


class TestCommand:
    def typed(self, folder: Path, *arguments: str) -> Result:
        (folder / "metrics.txt").write_text(metrics(rounds(1000), "vllm:", "_total"))
        words = ["import", str(folder / "metrics.txt"), "--format", "vllm-metrics", *arguments]
        return CliRunner(env={"SPECTUNE_STORE": str(folder / "store.db")}).invoke(main, words)

    def test_counters_are_printed_and_kept_nowhere_unless_a_plan_is_named(self, tmp_path: Path) -> None:
        result = self.typed(tmp_path)
        assert result.exit_code == 0, result.output
        assert "unconditional %" in result.stdout and "1000 rounds" in result.stdout
        assert "kept nowhere" in result.stderr
        assert not (tmp_path / "store.db").exists()

    def test_programs_get_acceptance_by_position_and_chains_by_length(self, tmp_path: Path) -> None:
        found: Any = json.loads(self.typed(tmp_path, "--json").stdout)
        (one,) = found["acceptance"]
        assert found["format"] == "vllm-metrics" and len(one["by_position"]) == len(one["by_length"]) == DRAFTED

    def test_options_of_what_is_kept_are_refused(self, tmp_path: Path) -> None:
        result = self.typed(tmp_path, "--regime-name", "vllm")
        assert result.exit_code == 2
        assert "--regime-name is for measurements of forwards" in result.stderr

    @pytest.fixture
    def planned(self, tmp_path: Path) -> Path:
        """Return a folder whose store holds a plan: chains of three at batch 1, plain decoding at batch 4."""
        plan = chains_by_batch([(1, DRAFTED), (4, 0)])
        with open_store(str(tmp_path / "store.db")) as store:
            store.add_device(plan.device)
            store.add_model(plan.target)
            store.add_plan(
                plan_to_json(plan),
                device=plan.device.fingerprint,
                device_kind=plan.device.kind_key,
                target=plan.target.key,
                workload=plan.workload,
                temperature=plan.temperature,
            )
        return tmp_path

    def observations(self, folder: Path) -> list[Observation]:
        with open_store(str(folder / "store.db")) as store:
            return [from_json(Observation, text) for text in store.observations(1)]

    def test_counters_of_a_plan_are_kept_as_what_was_seen_of_it(self, planned: Path) -> None:
        result = self.typed(planned, "--plan", "1", "--batch", "1")
        assert result.exit_code == 0 and "kept as an observation of plan 1, batch 1" in result.stderr
        (found,) = self.observations(planned)
        (cell,) = found.cells
        kept = rounds(1000)
        assert cell.kept == (0, *(kept.count(n) for n in range(DRAFTED + 1)))
        assert (cell.rounds, cell.tokens, cell.is_planned) == (1000, 1000 + sum(kept), True)
        assert found.source == "imported:vllm-metrics"
        digest = hashlib.sha256((planned / "metrics.txt").read_bytes()).hexdigest()
        assert found.events[0] == f"read from metrics.txt, sha256 {digest}"

    def test_drafts_of_another_length_than_planned_are_not_said_to_be_the_plan_s(self, planned: Path) -> None:
        self.typed(planned, "--plan", "1", "--batch", "4")
        (found,) = self.observations(planned)
        assert (found.cells[0].is_planned, found.cells[0].policy) == (False, "an engine's drafts of 3")

    def test_the_same_file_is_kept_once_per_cell(self, planned: Path) -> None:
        for batch in ("1", "4", "1"):
            result = self.typed(planned, "--plan", "1", "--batch", batch)
        assert "holds this file already" in result.stderr and len(self.observations(planned)) == 2

    def test_a_dry_run_keeps_nothing(self, planned: Path) -> None:
        assert "would be kept" in self.typed(planned, "--plan", "1", "--batch", "1", "--dry-run").stderr
        assert self.observations(planned) == []

    def test_a_cell_must_be_told_where_there_are_several(self, planned: Path) -> None:
        result = self.typed(planned, "--plan", "1")
        assert result.exit_code == 1 and "2 of the plan's fit (batch x context: 1 x 100, 4 x 100)" in result.stderr

    def test_show_tells_what_was_counted_and_where_it_is_from(self, planned: Path) -> None:
        self.typed(planned, "--plan", "1", "--batch", "1")
        shown = CliRunner(env={"SPECTUNE_STORE": str(planned / "store.db")}).invoke(main, ["show", "--json"])
        (told,) = json.loads(shown.stdout)["imported"]
        assert told["source"] == "imported:vllm-metrics" and told["cells"][0]["rounds"] == 1000

    def test_counters_that_name_no_file_are_shown_too(self, planned: Path) -> None:
        self.typed(planned, "--plan", "1", "--batch", "1")
        (found,) = self.observations(planned)
        with open_store(str(planned / "store.db")) as store:
            store.add_observation(1, to_json(replace(found, events=())))
        shown = CliRunner(env={"SPECTUNE_STORE": str(planned / "store.db")}).invoke(main, ["show"])
        assert shown.exit_code == 0 and shown.stdout.count("imported:vllm-metrics") == 2

    def test_counters_without_rounds_are_not_kept(self, planned: Path) -> None:
        (planned / "bench.jsonl").write_text(bench((1, 1, 1, 2, 1.8)))
        words = ["import", str(planned / "bench.jsonl"), "--format", "sglang-bench", "--plan", "1", "--batch", "1"]
        result = CliRunner(env={"SPECTUNE_STORE": str(planned / "store.db")}).invoke(main, words)
        assert result.exit_code == 1 and "of 0 runs" in result.stderr and self.observations(planned) == []

    def test_options_of_counters_are_refused_for_tables(self, tmp_path: Path) -> None:
        (tmp_path / "table.csv").write_text("role\n")
        result = CliRunner().invoke(main, ["import", str(tmp_path / "table.csv"), "--plan", "1"])
        assert result.exit_code == 2 and "--plan is for an engine's counters" in result.stderr
