"""What a recorded schema and the rules between options take and refuse, spoilt one thing at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from spectune.engines.base import Option
from spectune.engines.export import export_plan
from spectune.engines.rates import rates_of_plan
from spectune.engines.schema import broken_rule, require_known, schema_of
from spectune.engines.setting import DrafterForm, Schedule, Setting, Stage
from spectune.engines.table import ENGINES
from spectune.errors import PlanError
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy

from ..support.engine_policies import cell_with, chains_by_batch, engine_drafter
from ..support.priced_cells import plan_with

ROWS, LENGTHS = "num_speculative_tokens_per_batch_size", "draft_len_schedule"
FORMS: tuple[DrafterForm, ...] = ("model", "eagle", "eagle3")


def options(section: str, values: dict[str, Any], adaptive: tuple[int, ...] = ()) -> list[Option]:
    """Return options as an exporter lists them; None leaves one out."""
    found: list[Option] = [(section, name, value) for name, value in values.items() if value is not None]
    return [*found, *(("adaptive", "candidate_steps", steps) for steps in adaptive)]


class TestRows:
    GOOD = ((1, 2, 5), (3, 8, 2), (9, 4096, 0))

    def take(self, rows: object) -> None:
        values = {"method": "ngram", "num_speculative_tokens": 5, ROWS: rows}
        require_known("vllm", "0.26", options("config", values))

    def test_rows_that_rise_are_taken(self) -> None:
        self.take(self.GOOD)
        self.take(((1, 2, 5), (5, 8, 2)))  # vLLM goes on with the row before in a gap

    @pytest.mark.parametrize(
        ("place", "row", "told"),
        [
            (1, (3, 8), "rows of 3 whole numbers"),
            (1, (3, 8, 2, 1), "rows of 3 whole numbers"),
            (1, (3, 8, 2.0), "rows of 3 whole numbers"),
            (1, (3, 8, True), "rows of 3 whole numbers"),
            (1, (3, "8", 2), "rows of 3 whole numbers"),
            (1, [3, 8, 2], "rows of 3 whole numbers"),
            (1, 3, "rows of 3 whole numbers"),
            (1, (8, 3, 2), "batches that rise"),
            (1, (2, 8, 2), "batches that rise"),
            (2, (8, 4096, 0), "batches that rise"),
            (0, (0, 2, 5), "batches that rise"),
            (1, (3, 8, -1), "lengths of 0 or more"),
            (0, (1, 2, 6), "no row drafts more than num_speculative_tokens"),
        ],
    )
    def test_one_spoilt_row_is_refused(self, place: int, row: object, told: str) -> None:
        with pytest.raises(PlanError, match=told):
            self.take((*self.GOOD[:place], row, *self.GOOD[place + 1 :]))

    def test_no_rows_and_no_tuple_are_refused(self) -> None:
        with pytest.raises(PlanError, match="a row or more"):
            self.take(())
        with pytest.raises(PlanError, match="it takes ranges"):
            self.take([[1, 2, 5]])

    def test_rows_in_another_order_are_refused(self) -> None:
        with pytest.raises(PlanError, match="batches that rise"):
            self.take(self.GOOD[::-1])


class TestLengths:
    GOOD = ((2, 5), (8, 2), (16, 0))

    def take(self, rows: object) -> None:
        values = {"decoding_type": "Eagle3", "max_draft_len": 5, LENGTHS: rows}
        require_known("tensorrt-llm", "1.4.0rc1", options("config", values))

    def test_lengths_by_rising_last_batches_are_taken(self) -> None:
        self.take(self.GOOD)

    @pytest.mark.parametrize(
        ("place", "row", "told"),
        [
            (1, (3, 8, 2), "rows of 2 whole numbers"),
            (1, (8,), "rows of 2 whole numbers"),
            (1, (8, None), "rows of 2 whole numbers"),
            (1, (2, 2), "batches that rise"),
            (0, (0, 5), "batches that rise"),
            (2, (4, 0), "batches that rise"),
            (1, (8, -2), "lengths of 0 or more"),
            (0, (2, 4), "the smallest batch drafts max_draft_len"),
            (1, (8, 6), "no batch drafts more than max_draft_len"),
        ],
    )
    def test_one_spoilt_row_is_refused(self, place: int, row: object, told: str) -> None:
        with pytest.raises(PlanError, match=told):
            self.take((*self.GOOD[:place], row, *self.GOOD[place + 1 :]))


KEPT: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {  # engine, section, options, candidate steps
    "rows": ("vllm", "config", {"num_speculative_tokens": 5, ROWS: ((1, 2, 5), (3, 4096, 0))}, ()),
    "padded": (
        "vllm",
        "config",
        {"method": "draft_model", "use_heterogeneous_vocab": True, "num_speculative_tokens": 5},
        (),
    ),
    "n-grams": ("vllm", "config", {"num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}, ()),
    "lengths": ("tensorrt-llm", "config", {"max_draft_len": 5, LENGTHS: ((2, 5), (8, 2))}, ()),
    "dynamic tree": (
        "tensorrt-llm",
        "config",
        {"max_draft_len": 4, "use_dynamic_tree": True, "dynamic_tree_max_topK": 4, "max_total_draft_tokens": 15},
        (),
    ),
    "chain": (
        "sglang",
        "flags",
        {
            "speculative-algorithm": "EAGLE3",
            "speculative-num-steps": 5,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 6,
        },
        (),
    ),
    "beam": (
        "sglang",
        "flags",
        {
            "speculative-algorithm": "STANDALONE",
            "speculative-num-steps": 2,
            "speculative-eagle-topk": 3,
            "speculative-num-draft-tokens": 13,
        },
        (),
    ),
    "trie": ("sglang", "flags", {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8}, ()),
    "adaptive": (
        "sglang",
        "flags",
        {
            "speculative-algorithm": "EAGLE3",
            "speculative-num-steps": 5,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 6,
            "speculative-adaptive": True,
            "speculative-adaptive-config": "adaptive.json",
        },
        (5, 2, 0),
    ),
    "length": ("openvino", "generation", {"num_assistant_tokens": 5}, ()),
    "threshold": ("openvino", "generation", {"assistant_confidence_threshold": 0.4}, ()),
    "tree": ("openvino", "generation", {"branching_factor": 2, "tree_depth": 3, "num_assistant_tokens": 10}, ()),
}
SPOILT: list[tuple[str, dict[str, Any], str]] = [  # of which options, what is changed, what is said
    ("rows", {"num_speculative_tokens": 4}, "no row drafts more than num_speculative_tokens: 5, 4"),
    ("rows", {"num_speculative_tokens": None}, "no row drafts more than num_speculative_tokens"),
    ("rows", {ROWS: ((2, 8, 5),)}, "the first row begins at batch 1, not at 2"),
    ("rows", {"method": "suffix"}, "suffix decoding has one length at every batch"),
    ("padded", {"method": "eagle3"}, "use_heterogeneous_vocab is of draft_model, not of eagle3"),
    ("padded", {"draft_sample_method": "probabilistic"}, "draft_sample_method probabilistic exclude each other"),
    ("n-grams", {"prompt_lookup_min": 5}, "prompt_lookup_min is prompt_lookup_max at most: 5, 4"),
    ("lengths", {"max_draft_len": 6}, "the smallest batch drafts max_draft_len: 5, 6"),
    ("lengths", {"max_draft_len": None}, "the smallest batch drafts max_draft_len"),
    ("lengths", {LENGTHS: ((2, 5), (8, 6))}, "no batch drafts more than max_draft_len: 6, 5"),
    ("lengths", {"max_concurrency": 8}, "exclude each other"),
    ("dynamic tree", {"max_total_draft_tokens": 3}, "4 layers of width 4 have 4 to 16 tokens: 3"),
    ("dynamic tree", {"max_total_draft_tokens": 17}, "4 layers of width 4 have 4 to 16 tokens: 17"),
    ("dynamic tree", {"dynamic_tree_max_topK": None}, "a dynamic tree has"),
    ("chain", {"speculative-num-draft-tokens": 5}, "at top-k 1 a draft token more than steps: 5, 5"),
    ("chain", {"speculative-num-draft-tokens": None}, "all are set, or none is"),
    ("chain", {"speculative-eagle-topk": None}, "all are set, or none is"),
    ("beam", {"speculative-num-draft-tokens": 14}, "2 steps at top-k 3 find 12 tokens, not 13"),
    ("adaptive", {"speculative-algorithm": "STANDALONE"}, "with EAGLE and EAGLE3 at top-k 1"),
    ("adaptive", {"speculative-eagle-topk": 2}, "with EAGLE and EAGLE3 at top-k 1"),
    (
        "adaptive",
        {"speculative-num-steps": 4, "speculative-num-draft-tokens": 5},
        r"one of the candidate steps: 4, \[5, 2, 0\]",
    ),
    ("adaptive", {"speculative-adaptive-config": None}, "the file of speculative-adaptive-config"),
    ("length", {"assistant_confidence_threshold": 0.4}, "exclude each other"),
    ("tree", {"num_assistant_tokens": 11}, "a tree of 3 layers and 2 branches has 3 to 10 tokens: 11"),
    ("tree", {"num_assistant_tokens": 2}, "a tree of 3 layers and 2 branches has 3 to 10 tokens: 2"),
    ("tree", {"num_assistant_tokens": None}, "a tree of 3 layers"),
    ("tree", {"do_sample": True}, "trees are searched for greedy decoding only"),
]


class TestRules:
    @pytest.mark.parametrize("name", KEPT)
    def test_options_that_go_together_are_taken(self, name: str) -> None:
        engine, section, values, adaptive = KEPT[name]
        require_known(engine, schema_of(engine).versions[-1], options(section, values, adaptive))

    @pytest.mark.parametrize(("name", "change", "told"), SPOILT)
    def test_one_spoilt_option_is_refused(self, name: str, change: dict[str, Any], told: str) -> None:
        engine, section, values, adaptive = KEPT[name]
        with pytest.raises(PlanError, match=told):
            require_known(engine, schema_of(engine).versions[-1], options(section, values | change, adaptive))

    def test_an_engine_without_rules_breaks_none(self) -> None:
        assert broken_rule("transformers", []) == ""


def schedules(setting: Setting) -> Iterator[Schedule]:
    """Yield what one server may do with a setting: one length, fewer at larger batches, nothing beyond some."""
    whole, length = Stage(first=1, last=None, length=setting.length), setting.length
    yield Schedule(setting=setting, stages=(whole,), most_batch=16)
    if setting.off in ("above", "any") and setting.most_batch is None:
        off = Stage(first=5, last=None, length=0)
        yield Schedule(setting=setting, stages=(replace(whole, last=4), off), most_batch=16)
    if setting.by_batch and length > 1:
        shorter, off = Stage(first=3, last=8, length=1), Stage(first=9, last=None, length=0)
        yield Schedule(setting=setting, stages=(replace(whole, last=2), shorter, off), most_batch=16)
        yield Schedule(setting=setting, stages=(replace(whole, last=2), replace(shorter, last=None)), most_batch=16)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_an_engine_writes_of_its_own_grid_keeps_the_rules(engine: str) -> None:
    written = 0
    for version, drafter in product(schema_of(engine).versions, [None, *map(engine_drafter, FORMS)]):
        for policy in ENGINES[engine].candidates(drafter, version):
            setting = ENGINES[engine].setting(policy, drafter, version)
            for schedule in schedules(setting) if isinstance(setting, Setting) else ():
                require_known(engine, version, ENGINES[engine].written(schedule, "models/large", version).options)
                written += 1
    assert written


def test_lookups_by_batch_are_rows_of_vllm_and_keep_its_rules() -> None:
    long, short = (LookupPolicy(length=length, max_ngram=3, occurrence="first") for length in (7, 3))
    plan = plan_with(
        cell_with(1, 100, long, "lookup", 200.0),
        cell_with(4, 100, short, "lookup", 150.0),
        cell_with(16, 100, PlainPolicy(), None, 100.0),
    )
    found = export_plan(plan, ENGINES["vllm"], {}, target="models/large", version=None, rates=rates_of_plan(plan))
    assert f'"{ROWS}": [[1, 2, 7], [3, 8, 3], [9, 4096, 0]]' in found.command and not found.dropped


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_lengths_by_batch_that_were_planned_keep_the_rules(engine: str) -> None:
    plan = chains_by_batch([(1, 5), (4, 2), (16, 0)])
    drafter = {"small": engine_drafter("eagle3")}
    found = export_plan(plan, ENGINES[engine], drafter, target="models/large", version=None, rates=rates_of_plan(plan))
    assert not found.dropped
