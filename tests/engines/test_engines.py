"""What every engine's export keeps to, and each engine's own counting."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from spectune.engines.export import Exported, export_plan
from spectune.engines.rates import Rates, rates_of_plan
from spectune.engines.schema import recorded_version, require_known, schema_of
from spectune.engines.setting import DrafterForm, Setting
from spectune.engines.table import ENGINES
from spectune.errors import PlanError, RequestError
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.automaton import LONGEST_MATCH
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy, Occurrence
from spectune.planner.strategies.plain import PlainPolicy

from ..support.engine_policies import POLICIES, cell_with, chains_by_batch, drafter_of, engine_drafter, plan_of_kind
from ..support.lossy_runs import LOSSY
from ..support.priced_cells import plan_with

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "engines.md").read_text()
FORMS: tuple[DrafterForm, ...] = ("model", "eagle", "eagle3", "unknown")
EXACTLY = {  # what an engine does as our own decoder does it: "KIND FORM", with the first or last recorded version
    "sglang": ("chain model", "chain eagle", "chain eagle3", "eagle2 model", "eagle2 eagle", "eagle2 eagle3"),
    "vllm": ("chain model from 0.20", "chain eagle", "chain eagle3", "first-lookup"),
    "tensorrt-llm": ("chain model", "chain eagle3", "eagle2 eagle3"),
    "transformers": ("chain model", "confident-chain model", "first-lookup"),
    "llama.cpp": ("chain model", "chain eagle3 from b9993", "mapped-lookup from b9993"),
    "openvino": ("chain model", "chain eagle3 from 2026", "eagle2 eagle3 from 2026"),
}
NEARLY = {  # what it does in another way, at the price of this one
    "sglang": ("lookup", "first-lookup", "sized-lookup"),
    "vllm": ("lookup", "sized-lookup", "suffix-tree from 0.20"),
    "tensorrt-llm": ("lookup", "first-lookup"),
    "transformers": ("lookup",),
    "llama.cpp": ("confident-chain model", "confident-chain eagle3 from b9993", "sized-lookup from b9993"),
    "openvino": ("lookup", "first-lookup", "confident-chain model until 2025"),
}
OLDER_RUNNER: list[tuple[DrafterForm, list[tuple[int, int]], bool]] = [  # lengths by batch, and whether it is asked for
    ("model", [(1, 5), (4, 2)], True),
    ("model", [(1, 5), (4, 5)], False),
    ("eagle3", [(1, 5), (4, 2)], False),
]
WAYS = POLICIES | {
    "first-lookup": LookupPolicy(length=10, max_ngram=2, min_ngram=1, occurrence="first"),
    "sized-lookup": LookupPolicy(length=10, max_ngram=2, min_ngram=2),
    "mapped-lookup": LookupPolicy(length=10, max_ngram=2, min_ngram=2, occurrence="mapped"),
}


def exported(
    engine: str, plan: Plan, form: DrafterForm = "model", version: str | None = None, rates: Rates | None = None
) -> Exported:
    drafters = {"small": engine_drafter(form)}
    told = rates or rates_of_plan(plan)
    return export_plan(plan, ENGINES[engine], drafters, target="models/large", version=version, rates=told)


def solved(plan: Plan) -> Rates:
    """Rates under which the plan's own ways are known everywhere, and nothing else can be used."""
    places = [(cell.batch, cell.context) for cell in plan.cells]
    known: dict[tuple[TreePolicy, str | None], dict[tuple[int, int], float]] = {
        (PlainPolicy(), None): dict.fromkeys(places, 100.0)
    }
    for cell in plan.cells:
        if cell.drafter is not None:
            rates = dict.fromkeys(places, 80.0) | known.get((cell.policy, cell.drafter), {})
            known[cell.policy, cell.drafter] = rates | {(cell.batch, cell.context): 150.0}
    return Rates(known=known, is_complete=True)


def by_batch(engine: str, *lengths: tuple[int, int], version: str | None = None) -> Exported:
    plan = chains_by_batch(lengths)
    return exported(engine, plan, "eagle3", version, solved(plan))


def single(engine: str, policy: TreePolicy, form: DrafterForm = "model", version: str | None = None) -> Exported:
    return exported(engine, plan_with(cell_with(1, 100, policy, drafter_of(policy.kind), 200.0)), form, version)


def speculative(found: Exported) -> Any:
    """Return the JSON object behind vLLM's flag, as its own parser would see it."""
    words = shlex.split(found.command)
    return json.loads(words[words.index("--speculative-config") + 1])


def flags(found: Exported) -> dict[str, str]:
    """Return the flags of a command with their values."""
    words = shlex.split(found.command)
    return {
        w: v if not v.startswith("--") else "" for w, v in zip(words, [*words[1:], "--"], strict=True) if w[:2] == "--"
    }


def config(found: Exported) -> Any:
    return yaml.safe_load(dict(found.files)["speculative.yaml"])["speculative_config"]


def generation(found: Exported) -> Any:
    return json.loads(dict(found.files)["generation.json"])


def carried(engine: str, kind: str, form: DrafterForm, version: str) -> str:
    """Return how an engine carries a policy of a kind, by its export: exactly, nearly, or "" where it says why not."""
    found = single(engine, WAYS[kind], form, version)
    if not found.dropped:
        assert (found.basis, found.kept) == ("as planned", 1.0)
        return "exactly"
    (one,) = found.dropped
    assert one.wanted == WAYS[kind].code and one.wanted_drafter == drafter_of(WAYS[kind].kind) and one.reason
    return "nearly" if one.gets.endswith(f"priced as {WAYS[kind].code}") else ""


def span(engine: str, versions: Sequence[str]) -> str:
    """Return which of an engine's recorded versions these are, in words; "" where they are all."""
    known = schema_of(engine).versions
    if tuple(versions) == known:
        return ""
    return f" from {versions[0]}" if versions[-1] == known[-1] else f" until {versions[-1]}"


@pytest.mark.parametrize("engine", ENGINES)
class TestContract:
    def test_it_carries_what_the_table_says_and_nothing_else(self, engine: str) -> None:
        found: dict[str, set[str]] = {"exactly": set(), "nearly": set()}
        for kind, way in WAYS.items():
            is_model = drafter_of(way.kind) != "lookup"
            for form in FORMS if is_model else FORMS[:1]:
                told = {version: carried(engine, kind, form, version) for version in schema_of(engine).versions}
                for how, rows in found.items():
                    if versions := [version for version, own in told.items() if own == how]:
                        rows.add((f"{kind} {form}" if is_model else kind) + span(engine, versions))
        assert found == {"exactly": set(EXACTLY[engine]), "nearly": set(NEARLY[engine])}

    def test_a_plan_of_plain_decoding_needs_no_settings(self, engine: str) -> None:
        found = exported(engine, chains_by_batch([(1, 0), (8, 0)]))
        told = {
            "llama.cpp": ("--parallel", "8"),  # other servers have their own number of slots
            "sglang": ("--dtype", "float32"),
            "vllm": ("--dtype", "float32"),
        }
        assert (found.flags, found.dropped, found.kept) == (told.get(engine, ()), (), 1.0)
        assert any(
            name in found.command + str(found.files) for name in ("models/large", "large.gguf", "large.openvino")
        )

    @pytest.mark.parametrize("dtype", ["bfloat16", "float64", "q4_K_M"])
    def test_the_plan_s_number_format_is_set_or_a_note_says_who_decides(self, engine: str, dtype: str) -> None:
        """No server has a word for float64, and nobody but llama.cpp for a format of imported measurements."""
        for plan in (plan_of_kind("chain"), chains_by_batch([(1, 0)])):
            found = exported(engine, replace(plan, dtype=dtype))
            is_flag = engine in ("sglang", "vllm") and dtype == "bfloat16"
            assert (flags(found).get("--dtype") == dtype) == is_flag
            program = dict(found.files).get("generate.py", "")
            is_loaded = engine == "transformers" and dtype != "q4_K_M"
            assert ("dtype=torch." in program) == (f"dtype=torch.{dtype}" in program) == is_loaded
            told = any(f"priced with models in {dtype}" in note for note in found.notes)
            assert told == (not is_flag and not is_loaded)

    def test_an_unrecorded_version_is_refused_with_the_recorded_ones(self, engine: str) -> None:
        with pytest.raises(RequestError, match=schema_of(engine).versions[0]):
            recorded_version(engine, "0.0.1")

    def test_the_newest_recorded_version_is_the_default(self, engine: str) -> None:
        assert exported(engine, plan_of_kind("chain")).version == schema_of(engine).versions[-1]

    def test_a_schema_says_where_it_was_read_and_when_options_came_and_went(self, engine: str) -> None:
        schema = schema_of(engine)
        assert schema.engine == engine and schema.sources
        for section in schema.sections.values():
            for option in section.values():
                assert {option.since, option.until} <= {"", *schema.versions}
                assert bool(option.choices) == (option.type == "choice")

    def test_the_programs_and_files_are_well_formed(self, engine: str) -> None:
        for kind in ("chain", "lookup", "eagle2"):
            for name, text in exported(engine, plan_of_kind(kind), "eagle3").files:
                {".py": ast.parse, ".json": json.loads, ".yaml": yaml.safe_load}[Path(name).suffix](text)


class TestSGLang:
    def test_a_chain_of_n_takes_n_steps_and_counts_the_root(self) -> None:
        found = flags(single("sglang", ChainPolicy(length=3)))
        assert found["--speculative-algorithm"] == "STANDALONE"
        assert (found["--speculative-num-steps"], found["--speculative-num-draft-tokens"]) == ("3", "4")
        assert found["--speculative-eagle-topk"] == "1"

    def test_its_own_default_tree_comes_back(self) -> None:
        found = flags(single("sglang", Eagle2Policy(verify_tokens=8, depth=4, top_k=4), "eagle"))
        names = ("num-steps", "eagle-topk", "num-draft-tokens")
        assert [found[f"--speculative-{name}"] for name in names] == ["5", "4", "8"]

    @pytest.mark.parametrize("depth", range(4))
    def test_a_tree_never_asks_for_more_than_its_pool_holds(self, depth: int) -> None:
        found = flags(single("sglang", Eagle2Policy(verify_tokens=60, depth=depth, top_k=3), "eagle3"))
        steps, top_k, tokens = (
            int(found[f"--speculative-{name}"]) for name in ("num-steps", "eagle-topk", "num-draft-tokens")
        )
        assert top_k + (steps - 1) * top_k**2 >= tokens - 1

    def test_steps_follow_the_batch_in_a_file_with_first_batches(self) -> None:
        found = by_batch("sglang", (1, 5), (4, 2), (16, 0))
        assert json.loads(dict(found.files)["adaptive.json"]) == {
            "1": {"candidate_steps": [5]},
            "3": {"candidate_steps": [2]},
            "9": {"candidate_steps": [0]},
        }
        assert found.flags == (
            *("--dtype", "float32"),
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "drafters/small"),
            *("--speculative-num-steps", "5", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"),
            *("--speculative-adaptive", "--speculative-adaptive-config", "adaptive.json"),
        )
        assert not found.dropped

    @pytest.mark.parametrize(("most", "told"), [(16, None), (48, None), (64, "64")])
    def test_as_many_requests_run_as_the_plan_has_sequences(self, most: int, told: str | None) -> None:
        found = by_batch("sglang", (1, 5), (most, 2))
        assert flags(found).get("--max-running-requests") == told
        assert any(f"{max(most, 48)} requests run at once" in note for note in found.notes)

    def test_plain_decoding_holds_whatever_it_holds(self) -> None:
        found = exported("sglang", chains_by_batch([(1, 0), (64, 0)]))
        assert "--max-running-requests" not in found.flags and not found.notes

    def test_a_draft_model_of_its_own_keeps_one_length(self) -> None:
        plan = chains_by_batch([(1, 5), (4, 2)])
        found = exported("sglang", plan, "model", rates=solved(plan))
        assert not found.files and len(found.dropped) == 1

    def test_an_older_version_has_one_length_and_says_so(self) -> None:
        found = by_batch("sglang", (1, 5), (4, 2), version="0.5.10")
        assert "--speculative-adaptive" not in found.flags
        assert "one length for all batches" in found.dropped[0].reason

    @pytest.mark.parametrize(("length", "is_carried"), [(17, True), (18, False)])
    def test_a_draft_is_no_longer_than_what_its_trie_holds_behind_a_token(self, length: int, is_carried: bool) -> None:
        (dropped,) = single("sglang", LookupPolicy(length=length)).dropped
        assert ("NGRAM" in dropped.gets) == is_carried != ("finds 17 at most" in dropped.reason)

    def test_a_lookup_is_told_to_be_another_thing(self) -> None:
        found = single("sglang", LookupPolicy(length=7, max_ngram=3))
        assert flags(found)["--speculative-num-draft-tokens"] == "8"
        assert found.dropped[0].gets == "NGRAM, priced as lookup of 7 after 3..1-grams"
        assert "its trie covers all requests" in found.dropped[0].reason


class TestVLLM:
    def test_the_root_is_not_counted(self) -> None:
        found = speculative(single("vllm", ChainPolicy(length=3), "eagle3"))
        assert found == {"method": "eagle3", "model": "drafters/small", "num_speculative_tokens": 3}

    def test_rows_hold_both_ends_and_zero_is_off(self) -> None:
        found = speculative(by_batch("vllm", (1, 5), (4, 2), (16, 0)))
        assert found["num_speculative_tokens"] == 5
        assert found["num_speculative_tokens_per_batch_size"] == [[1, 2, 5], [3, 8, 2], [9, 4096, 0]]

    @pytest.mark.parametrize(("most", "on_cpu", "on_gpu"), [(128, None, None), (256, "256", None), (512, "512", "512")])
    def test_as_many_sequences_run_as_the_plan_has(self, most: int, on_cpu: str | None, on_gpu: str | None) -> None:
        """Its server runs 128 at once on a CPU, 256 on most GPUs."""
        plan = chains_by_batch([(1, 5), (most, 0)])
        for one, told in ((plan, on_cpu), (replace(plan, device=replace(plan.device, kind="cuda")), on_gpu)):
            assert flags(exported("vllm", one, "eagle3", rates=solved(one))).get("--max-num-seqs") == told
        assert "--max-num-seqs" not in exported("vllm", chains_by_batch([(1, 0), (most, 0)])).flags

    def test_a_lookup_says_its_n_grams(self) -> None:
        found = speculative(single("vllm", LookupPolicy(length=7, max_ngram=4, min_ngram=2)))
        assert found == {
            **{"method": "ngram", "num_speculative_tokens": 7},
            **{"prompt_lookup_max": 4, "prompt_lookup_min": 2},
        }

    def test_a_copy_behind_the_first_occurrence_is_its_own(self) -> None:
        found = single("vllm", LookupPolicy(length=7, max_ngram=4, min_ngram=2, occurrence="first"))
        assert not found.dropped and speculative(found)["num_speculative_tokens"] == 7
        assert "first occurrence" in single("vllm", LookupPolicy(length=7, max_ngram=4)).dropped[0].reason

    def test_n_grams_are_left_to_the_runner_that_searches_as_was_priced(self) -> None:
        policy = LookupPolicy(length=7, max_ngram=4, min_ngram=2, occurrence="first")
        newest, before = single("vllm", policy), single("vllm", policy, version="0.26")
        assert newest.command.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve ")
        assert "VLLM_USE_V2_MODEL_RUNNER=0 belongs into the server's environment" in newest.notes[0]
        assert "VLLM_USE_V2_MODEL_RUNNER" not in before.command + str(before.notes)  # which had no other one for them

    @pytest.mark.parametrize(("form", "lengths", "is_older"), OLDER_RUNNER)
    def test_a_draft_model_s_rows_are_left_to_the_runner_that_drafts_no_longer(
        self, form: DrafterForm, lengths: list[tuple[int, int]], is_older: bool
    ) -> None:
        plan = chains_by_batch(lengths)
        assert exported("vllm", plan, form, rates=solved(plan)).command.startswith("VLLM_USE") == is_older

    def test_a_note_tells_that_a_drafter_reads_on_where_nothing_is_drafted(self) -> None:
        def reads_on(found: Exported) -> bool:
            return any("the drafter still reads every token" in note for note in found.notes)

        assert reads_on(by_batch("vllm", (1, 5), (4, 0))) and not reads_on(by_batch("vllm", (1, 5), (4, 2)))

    def test_a_version_without_rows_has_one_length(self) -> None:
        found = by_batch("vllm", (1, 5), (4, 2), version="0.20.1")
        assert found.version == "0.20"
        assert "num_speculative_tokens_per_batch_size" not in speculative(found)

    @pytest.mark.parametrize("version", ["0.11", "0.25"])
    def test_a_static_tree_is_refused_also_by_the_version_that_had_an_option_for_it(self, version: str) -> None:
        (dropped,) = exported("vllm", plan_of_kind("static"), "eagle", version).dropped
        assert "verified no siblings" in dropped.reason

    def test_suffixes_need_a_package_that_a_note_names(self) -> None:
        suffixes = exported("vllm", plan_of_kind("suffix-tree"))
        assert speculative(suffixes)["method"] == "suffix"
        assert any("pip install" in note and "arctic-inference" in note for note in suffixes.notes)
        assert not any("arctic" in note for note in single("vllm", ChainPolicy(length=3)).notes)

    def test_a_suffix_may_be_as_long_as_those_that_were_priced_and_its_draft_behind_it(self) -> None:
        found = speculative(exported("vllm", plan_of_kind("suffix-tree")))
        assert found["suffix_decoding_max_tree_depth"] == LONGEST_MATCH + found["num_speculative_tokens"]

    def test_an_old_version_takes_no_draft_model(self) -> None:
        (dropped,) = single("vllm", ChainPolicy(length=3), "model", "0.11").dropped
        assert dropped.reason == "vLLM 0.11 takes no draft model of its own"


class TestTensorRTLLM:
    def test_a_tree_leaves_out_the_root(self) -> None:
        found = config(single("tensorrt-llm", Eagle2Policy(verify_tokens=16, depth=3, top_k=4), "eagle3"))
        assert found == {
            **{"decoding_type": "Eagle3", "max_draft_len": 4, "speculative_model": "drafters/small"},
            **{"use_dynamic_tree": True, "dynamic_tree_max_topK": 4, "max_total_draft_tokens": 15},
        }

    @pytest.mark.parametrize(("tokens", "is_carried"), [(4, False), (5, True), (17, True), (18, False)])
    def test_a_tree_holds_its_depth_at_least_and_width_times_depth_at_most(self, tokens: int, is_carried: bool) -> None:
        found = single("tensorrt-llm", Eagle2Policy(verify_tokens=tokens, depth=3, top_k=4), "eagle3")
        assert (not found.dropped) == is_carried

    def test_keys_are_last_batches_and_beyond_them_nothing_is_drafted(self) -> None:
        found = by_batch("tensorrt-llm", (1, 5), (4, 2), (16, 0))
        assert config(found)["draft_len_schedule"] == {2: 5, 8: 2}
        assert config(found)["max_draft_len"] == 5 and not any("beyond" in note for note in found.notes)

    def test_drafting_at_the_largest_batch_ends_there_and_a_note_says_so(self) -> None:
        found = by_batch("tensorrt-llm", (1, 5), (16, 2))
        assert config(found)["draft_len_schedule"] == {4: 5, 16: 2}
        assert "beyond batch 16" in found.notes[0]

    def test_the_smallest_batch_has_the_longest_length(self) -> None:
        found = by_batch("tensorrt-llm", (1, 2), (16, 5))
        lengths = config(found).get("draft_len_schedule", {1: config(found)["max_draft_len"]})
        assert lengths[min(lengths)] == config(found)["max_draft_len"] == max(lengths.values())
        assert len(found.dropped) == 1

    @pytest.mark.parametrize(("occurrence", "is_oldest"), [("first", True), ("last", False)])
    def test_either_occurrence_may_be_copied_behind(self, occurrence: Occurrence, is_oldest: bool) -> None:
        found = single("tensorrt-llm", LookupPolicy(length=7, occurrence=occurrence))
        assert config(found)["is_use_oldest"] is is_oldest

    def test_a_draft_model_follows_the_batch_as_a_head_does(self) -> None:
        plan = chains_by_batch([(1, 5), (4, 2), (16, 0)])
        found = exported("tensorrt-llm", plan, "model", rates=solved(plan))
        assert config(found) == {
            **{"decoding_type": "Draft_Target", "max_draft_len": 5, "speculative_model": "drafters/small"},
            "draft_len_schedule": {2: 5, 8: 2},
        }
        assert not found.dropped

    def test_that_a_draft_model_may_draft_where_nothing_is_scheduled_is_told(self) -> None:
        plan = chains_by_batch([(1, 5), (4, 0)])
        forms: dict[DrafterForm, bool] = {"model": True, "eagle3": False}
        for form, is_told in forms.items():
            found = exported("tensorrt-llm", plan, form, rates=solved(plan))
            assert any("or one token with a draft model" in note for note in found.notes) == is_told

    def test_n_grams_end_above_a_batch(self) -> None:
        copies = cell_with(1, 100, LookupPolicy(length=7), "lookup", 200.0)
        plan = plan_with(copies, cell_with(4, 100, PlainPolicy(), None, 100.0))
        found = exported("tensorrt-llm", plan, rates=solved(plan))
        assert (config(found)["decoding_type"], config(found)["max_concurrency"]) == ("NGram", 2)


class TestTransformers:
    def test_a_confident_chain_is_its_own(self) -> None:
        found = exported("transformers", plan_of_kind("confident-chain"))
        assert generation(found) == {
            **{"num_assistant_tokens": 8, "num_assistant_tokens_schedule": "constant"},
            "assistant_confidence_threshold": 0.4,
        }
        assert not found.dropped

    def test_its_fields_are_those_of_the_installed_generation_config(self) -> None:
        from transformers import GenerationConfig

        known = vars(GenerationConfig())
        assert set(schema_of("transformers").sections["generation"]) <= set(known)

    def test_a_copy_behind_the_first_occurrence_is_its_own(self) -> None:
        found = single("transformers", LookupPolicy(length=10, max_ngram=2, occurrence="first"))
        assert generation(found) == {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}
        assert not found.dropped
        assert single("transformers", LookupPolicy(length=10, max_ngram=2)).dropped

    def test_what_is_known_exactly_does_not_stand_beside_what_is_known_nearly(self) -> None:
        """One setting, two prices: that of what the engine does counts, however good the other looks."""
        last, first = (LookupPolicy(length=7, max_ngram=2, occurrence=which) for which in ("last", "first"))
        plan = plan_with(cell_with(1, 100, last, "lookup", 200.0))
        rates: dict[tuple[TreePolicy, str | None], dict[tuple[int, int], float]] = {
            (PlainPolicy(), None): {(1, 100): 100.0},
            (last, "lookup"): {(1, 100): 200.0},
        }
        nearly = exported("transformers", plan, rates=Rates(known=rates, is_complete=True))
        assert (nearly.kept, nearly.dropped[0].gets_tokens_per_s) == (1.0, 200.0)
        known = Rates(known=rates | {(first, "lookup"): {(1, 100): 150.0}}, is_complete=True)
        exact = exported("transformers", plan, rates=known)
        assert exact.dropped[0].gets == first.code
        assert exact.kept == pytest.approx(0.75) and not any("occurrence" in note for note in exact.notes)

    def test_larger_batches_are_decoded_plainly(self) -> None:
        plan = chains_by_batch([(1, 5), (4, 5)])
        (dropped,) = exported("transformers", plan, rates=solved(plan)).dropped
        assert (dropped.batch, dropped.gets) == (4, "plain")
        assert dropped.reason == "it drafts up to batch 1 only"


class TestLlamaCpp:
    def test_a_chain_is_a_length_without_the_root(self) -> None:
        found = single("llama.cpp", ChainPolicy(length=3))
        assert shlex.split(found.command) == [
            *("llama-server", "--model", "large.gguf", "--spec-type", "draft-simple"),
            *("--spec-draft-model", "small.gguf", "--spec-draft-n-max", "3"),
            *("--spec-draft-n-min", "0", "--spec-draft-p-min", "0.0", "--parallel", "1"),
        ]

    def test_old_builds_have_old_names(self) -> None:
        found = flags(single("llama.cpp", ChainPolicy(length=3), version="b7010"))
        assert (found["--draft-max"], found["--model-draft"]) == ("3", "small.gguf")
        assert not [name for name in found if name.startswith("--spec")]

    def test_only_one_size_of_n_gram_is_looked_for(self) -> None:
        found = flags(single("llama.cpp", LookupPolicy(length=7, max_ngram=2, min_ngram=2)))
        assert (found["--spec-ngram-simple-size-n"], found["--spec-ngram-simple-size-m"]) == ("2", "7")
        assert single("llama.cpp", LookupPolicy(length=7, max_ngram=2)).dropped
        assert single("llama.cpp", LookupPolicy(length=7, max_ngram=2, min_ngram=2, occurrence="first")).dropped

    def test_its_own_memory_of_n_grams_is_a_type_of_its_own(self) -> None:
        mapped = LookupPolicy(length=7, max_ngram=2, min_ngram=2, occurrence="mapped")
        found = flags(single("llama.cpp", mapped))
        assert found["--spec-type"] == "ngram-map-k"
        assert (found["--spec-ngram-map-k-size-n"], found["--spec-ngram-map-k-size-m"]) == ("2", "7")

    @pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"llama.cpp"}))
    def test_no_other_engine_remembers_so(self, engine: str) -> None:
        mapped = LookupPolicy(length=7, max_ngram=2, min_ngram=2, occurrence="mapped")
        refused = ENGINES[engine].setting(mapped, None, recorded_version(engine, None))
        assert isinstance(refused, str) and refused


class TestOpenVINO:
    def test_a_tree_has_a_layer_more_than_its_beam_is_deep(self) -> None:
        found = single("openvino", Eagle2Policy(verify_tokens=8, depth=4, top_k=4), "eagle3")
        assert generation(found) == {"branching_factor": 4, "tree_depth": 5, "num_assistant_tokens": 7}

    def test_prompts_are_continued_as_they_are(self) -> None:
        """From 2025.1 a chat model's template would be put around them unless told otherwise."""
        program = dict(single("openvino", ChainPolicy(length=3)).files)["generate.py"]
        told = [ast.unparse(node) for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Assign)]
        assert "config.apply_chat_template = False" in told

    def test_an_older_version_drafts_no_trees(self) -> None:
        found = single("openvino", Eagle2Policy(verify_tokens=8, depth=4, top_k=4), "eagle3", "2025.3")
        assert found.version == "2025" and found.dropped

    def test_a_threshold_stands_without_a_length(self) -> None:
        found = exported("openvino", plan_of_kind("confident-chain"), version="2025.3")
        assert generation(found) == {"assistant_confidence_threshold": 0.4}
        assert "no length beside it" in found.dropped[0].reason

    def test_a_threshold_is_not_written_where_it_has_no_effect(self) -> None:
        found = exported("openvino", plan_of_kind("confident-chain"), version="2026.4")
        assert "one token a round with any threshold" in found.dropped[0].reason
        assert generation(found) == {}

    def test_a_lookup_says_which_occurrence_and_that_its_rounds_are_padded(self) -> None:
        first, last = (single("openvino", LookupPolicy(length=4, occurrence=which)) for which in ("first", "last"))
        assert generation(first) == generation(last) == {"max_ngram_size": 3, "num_assistant_tokens": 4}
        assert "first occurrence" in last.dropped[0].reason and "first occurrence" not in first.dropped[0].reason
        assert "whatever its lookup found" in first.dropped[0].reason


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_pads_its_lookups_says_so(engine: str) -> None:
    lookups = [LookupPolicy(length=4, max_ngram=2, min_ngram=least, occurrence="last") for least in (1, 2)]
    told = [ENGINES[engine].setting(one, None, recorded_version(engine, None)) for one in lookups]
    (setting, *_) = [one for one in told if isinstance(one, Setting)]
    pads = engine in ("sglang", "tensorrt-llm", "openvino")
    assert setting.is_padded == pads == ("verifies its full length in every round" in setting.differs)


def test_the_contract_knows_every_kind_of_policy() -> None:
    kinds = {field.default for one in get_args(TreePolicy) for field in fields(one) if field.name == "kind"}
    assert kinds == {"plain", *LOSSY, *POLICIES}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_is_told_to_be_lossy(engine: str) -> None:
    forms: tuple[DrafterForm, ...] = ("model", "eagle3")
    for version, form, way in product(schema_of(engine).versions, forms, LOSSY.values()):
        assert isinstance(ENGINES[engine].setting(way, engine_drafter(form), version), str)


def test_every_recorded_version_is_documented() -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith("| versions recorded")]
    told = [cell.strip().split(", ") for cell in row.strip("|").split("|")[1:]]
    assert told == [list(schema_of(engine).versions) for engine in ENGINES]


def test_an_option_of_another_version_is_not_written() -> None:
    with pytest.raises(PlanError, match="no such option"):
        require_known("vllm", "0.20", [("config", "num_speculative_tokens_per_batch_size", ((1, 2, 3),))])


@pytest.mark.parametrize("value", [0, True, "three", 1.5])
def test_a_value_that_the_schema_does_not_take_is_not_written(value: int | bool | str | float) -> None:
    with pytest.raises(PlanError, match="it takes"):
        require_known("vllm", "0.25", [("config", "num_speculative_tokens", value)])


def test_a_choice_takes_only_its_own_words() -> None:
    with pytest.raises(PlanError, match="one of ngram"):
        require_known("vllm", "0.25", [("config", "method", "medusa")])


class TestReasons:
    """Why a cell gets something else, no more than is known."""

    def test_a_plan_of_one_context_says_nothing_of_contexts(self) -> None:
        plan = chains_by_batch([(1, 2), (4, 5)])
        assert len({cell.context for cell in plan.cells}) == 1
        reasons = [one.reason for one in exported("tensorrt-llm", plan, "eagle3", rates=solved(plan)).dropped]
        assert reasons and all("not the context" not in reason for reason in reasons)
        assert all(reason.startswith("the smallest batch must have the longest length") for reason in reasons)

    def test_a_plan_of_two_contexts_says_that_lengths_do_not_follow_them(self) -> None:
        cells = [
            cell_with(1, context, ChainPolicy(length=length), "small", 200.0)
            for context, length in ((100, 5), (900, 2))
        ]
        plan = plan_with(*cells)
        (dropped,) = exported("tensorrt-llm", plan, "eagle3", rates=solved(plan)).dropped
        assert dropped.reason.startswith(
            "lengths follow the batch and not the context, and this one is as good or better"
        )

    @pytest.mark.parametrize(("engine", "version"), [("vllm", "0.20"), ("sglang", "0.5.10")])
    def test_nothing_is_as_good_or_better_whose_speed_is_not_known(self, engine: str, version: str) -> None:
        plan = chains_by_batch([(1, 5), (4, 2)])
        unknown = exported(engine, plan, "eagle3", version).dropped
        assert unknown and all(
            "one length for all batches, and another one was chosen" in one.reason for one in unknown
        )
        assert all("as good or better" not in one.reason for one in unknown)
        known = exported(engine, plan, "eagle3", version, solved(plan)).dropped
        assert known and all("another one is as good or better over all cells" in one.reason for one in known)
