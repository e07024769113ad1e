"""Plans that were measured in an engine: its own price of what it does, and a command that runs it so again."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from spectune.engines.export import Exported, export_plan
from spectune.engines.rates import rates_of_plan
from spectune.engines.regime import MeasuredIn, measured_in
from spectune.engines.setting import EngineDrafter
from spectune.engines.table import ENGINES
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy, Occurrence
from spectune.planner.strategies.plain import PlainPolicy

from ..support.engine_policies import cell_with, chains_by_batch, measured
from ..support.priced_cells import plan_with

REGIMES = {
    "llama.cpp": "engine:llama.cpp-b11549",
    "openvino": "engine:openvino-2026.4.1",
    "transformers": "engine:transformers-5.23.0",
    "vllm": "engine:vllm-0.32.0",
}
CHAIN = ChainPolicy(length=3)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
}
LLAMA |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTE_LEVEL = {"model": {"type": "BPE"}, "pre_tokenizer": SPLIT}


def exported(engine: str, plan: Plan, path: str = "drafters/small", version: str | None = None) -> Exported:
    drafters = {"small": EngineDrafter(name="small", path=path, form="model")}
    target = "models/large" if path == "drafters/small" else path.replace("small", "large")
    return export_plan(plan, ENGINES[engine], drafters, target=target, version=version, rates=rates_of_plan(plan))


def own(engine: str, policy: TreePolicy, drafter: str | None, dtype: str = "float32") -> Plan:
    """Return an engine's own plan of one cell."""
    plan = measured(plan_with(cell_with(1, 100, policy, drafter, 200.0)), REGIMES[engine])
    return replace(plan, dtype=dtype)


def lookup(occurrence: Occurrence) -> LookupPolicy:
    return LookupPolicy(length=4, max_ngram=2, min_ngram=1 if occurrence == "first" else 2, occurrence=occurrence)


def flags(found: Exported) -> dict[str, str]:
    words = shlex.split(found.command)
    return {name: value for name, value in pairwise(words) if name.startswith("--")}


def script(found: Exported) -> str:
    return dict(found.files)["generate.py"]


def calls(found: Exported, name: str) -> Sequence[ast.Call]:
    """Return a program's calls of a function."""
    nodes = ast.walk(ast.parse(script(found)))
    return [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)]


@pytest.mark.parametrize(
    ("regime", "found"),
    [
        ("engine:llama.cpp-b11549", MeasuredIn(engine="llama.cpp", version="b11549")),
        ("engine:openvino-2026.4.1@my-own%20code-2", MeasuredIn(engine="openvino", version="2026.4.1")),
        ("engine:tensorrt-llm-1.3.0rc27", MeasuredIn(engine="tensorrt-llm", version="1.3.0rc27")),
        ("eager", None),
    ],
)
def test_a_plan_knows_the_engine_it_was_measured_in(regime: str, found: MeasuredIn | None) -> None:
    assert measured_in(measured(chains_by_batch([(1, 3)]), regime)) == found
    assert measured_in(chains_by_batch([(1, 3)])) is None


@pytest.mark.parametrize(("engine", "occurrence"), [("llama.cpp", "last"), ("openvino", "first"), ("vllm", "first")])
def test_what_an_engine_was_measured_at_is_what_it_does(engine: str, occurrence: Occurrence) -> None:
    found = exported(engine, own(engine, lookup(occurrence), "lookup"))
    assert (found.basis, found.kept, found.dropped) == ("as planned", 1.0, ())
    assert not any("priced" in note for note in found.notes)


@pytest.mark.parametrize(
    ("engine", "occurrence", "says"),
    [("llama.cpp", "last", "loops that are no longer"), ("openvino", "first", "verifies its full length")],
)
def test_our_own_decoder_s_plan_is_carried_nearly_and_says_in_which_way(
    engine: str, occurrence: Occurrence, says: str
) -> None:
    (dropped,) = exported(engine, plan_with(cell_with(1, 100, lookup(occurrence), "lookup", 200.0))).dropped
    assert "priced as" in dropped.gets and says in dropped.reason


def test_another_engine_is_told_where_the_plan_was_measured() -> None:
    found = exported("vllm", own("llama.cpp", lookup("last"), "lookup"))
    assert "measured in it" in found.notes[0] and "llama.cpp" in found.notes[0]
    assert "first occurrence" in found.dropped[0].reason


@pytest.mark.parametrize("engine", REGIMES)
def test_our_own_decoder_s_plan_says_nothing_of_how_an_engine_ran(engine: str) -> None:
    found = exported(engine, plan_with(cell_with(1, 100, CHAIN, "small", 200.0)))
    told = found.command + str(found.files)
    assert not [word for word in ("threads", "f32") if word in told.lower()]


class TestLlamaCpp:
    def test_a_server_runs_as_it_was_measured(self) -> None:
        plan = measured(chains_by_batch([(1, 3), (4, 3)]))
        assert flags(exported("llama.cpp", plan)) == {
            **{"--model": "large.gguf", "--spec-type": "draft-simple", "--spec-draft-model": "small.gguf"},
            **{"--spec-draft-n-max": "3", "--spec-draft-n-min": "0", "--spec-draft-p-min": "0.0"},
            **{"--parallel": "4", "--threads": "2", "--n-gpu-layers": "0", "--spec-draft-ngl": "0"},
            **{"--cache-type-k": "f32", "--cache-type-v": "f32"},
            **{"--spec-draft-type-k": "f32", "--spec-draft-type-v": "f32"},
        }

    def test_keys_and_values_of_half_the_bits_are_its_own_default(self) -> None:
        found = flags(exported("llama.cpp", own("llama.cpp", CHAIN, "small", dtype="bfloat16")))
        assert not [name for name in found if "type-k" in name or "type-v" in name]

    def test_no_draft_model_needs_no_caches(self) -> None:
        found = flags(exported("llama.cpp", own("llama.cpp", lookup("last"), "lookup")))
        assert found["--cache-type-k"] == "f32" and "--spec-draft-type-k" not in found

    def test_plain_decoding_runs_as_it_was_measured_too(self) -> None:
        found = flags(exported("llama.cpp", measured(chains_by_batch([(1, 0), (2, 0)]))))
        assert (found["--parallel"], found["--threads"]) == ("2", "2")

    def test_old_builds_have_old_names(self) -> None:
        found = flags(exported("llama.cpp", own("llama.cpp", CHAIN, "small"), version="b7010"))
        assert (found["--cache-type-k-draft"], found["--n-gpu-layers-draft"]) == ("f32", "0")
        assert not [name for name in found if name.startswith("--spec")]

    def test_several_slots_share_the_context_and_a_note_says_so(self) -> None:
        several, one = (exported("llama.cpp", measured(chains_by_batch(rows))) for rows in ([(1, 3), (4, 3)], [(1, 3)]))
        assert [note for note in several.notes if "--ctx-size 4 times" in note]
        assert not [note for note in one.notes if "--ctx-size" in note]

    def test_unknown_threads_are_left_out_and_a_note_says_so(self) -> None:
        plan = own("llama.cpp", CHAIN, "small")
        gpu = replace(plan.device, kind="cuda", cores=None, threads=None)
        found = exported("llama.cpp", replace(plan, device=gpu))
        assert "--threads" not in flags(found)
        assert any("how many threads" in note for note in found.notes)


class TestVLLM:
    @pytest.mark.parametrize("policy", [CHAIN, PlainPolicy()])
    def test_a_server_computes_on_as_many_cores_as_were_measured(self, policy: TreePolicy) -> None:
        drafter = None if isinstance(policy, PlainPolicy) else "small"
        found = exported("vllm", own("vllm", policy, drafter))
        assert found.command.startswith("VLLM_CPU_OMP_THREADS_BIND=0-1 vllm serve ")
        assert flags(found)["--dtype"] == "float32"
        assert any("as many as were measured" in note for note in found.notes)

    def test_n_grams_are_copied_by_the_runner_that_was_measured(self) -> None:
        words = shlex.split(exported("vllm", own("vllm", lookup("first"), "lookup")).command)
        assert words[:3] == ["VLLM_CPU_OMP_THREADS_BIND=0-1", "VLLM_USE_V2_MODEL_RUNNER=0", "vllm"]

    def test_unknown_threads_are_left_out_and_a_note_says_so(self) -> None:
        plan = own("vllm", CHAIN, "small")
        gpu = replace(plan.device, kind="cuda", cores=None, threads=None)
        found = exported("vllm", replace(plan, device=gpu))
        assert found.command.startswith("vllm serve ") and any("how many threads" in note for note in found.notes)


class TestOpenVINO:
    def test_target_and_draft_model_compute_as_they_were_measured(self) -> None:
        found = exported("openvino", own("openvino", CHAIN, "small"))
        properties: Any = ast.literal_eval(script(found).partition("properties = ")[2].partition("  #")[0])
        assert properties == {
            **{"INFERENCE_NUM_THREADS": 2},
            **{"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
        }
        for name in ("LLMPipeline", "draft_model"):
            (call,) = calls(found, name)
            assert [ast.unparse(word.value) for word in call.keywords if word.arg is None] == ["properties"]

    def test_weights_in_half_leave_the_rest_to_it(self) -> None:
        found = exported("openvino", own("openvino", CHAIN, "small", dtype="float16"))
        assert "properties = " + json.dumps({"INFERENCE_NUM_THREADS": 2}) in script(found)

    def test_models_in_another_form_are_named_as_converted_ones_and_notes_say_how(self) -> None:
        found = exported("openvino", own("openvino", CHAIN, "small"))
        assert '"large.openvino"' in script(found) and '"small.openvino"' in script(found)
        convert = "spectune convert {} --engine openvino --dtype float32 -o {}.openvino"
        told = " ".join(found.notes)
        assert convert.format("models/large", "large") in told and convert.format("drafters/small", "small") in told

    def test_folders_of_its_own_are_read_where_they_lie(self, tmp_path: Path) -> None:
        for name in ("large", "small"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "openvino_model.xml").touch()
        found = exported("openvino", own("openvino", CHAIN, "small"), path=str(tmp_path / "small"))
        assert all(json.dumps(str(tmp_path / name)) in script(found) for name in ("large", "small"))
        assert not found.notes


class TestTransformers:
    def test_target_and_assistant_are_loaded_as_they_were_measured(self) -> None:
        found = exported("transformers", own("transformers", CHAIN, "small"))
        assert "import torch\n" in script(found) and "torch.set_num_threads(2)\n" in script(found)
        loads = calls(found, "AutoModelForCausalLM.from_pretrained")
        assert [ast.unparse(call.keywords[0]) for call in loads] == ["dtype=torch.float32"]

    def test_an_old_version_knows_the_number_format_by_another_name(self) -> None:
        found = exported("transformers", own("transformers", CHAIN, "small"), version="4.45")
        assert script(found).count("torch_dtype=torch.float32") == 1

    def test_plain_decoding_is_loaded_as_it_was_measured_too(self) -> None:
        found = exported("transformers", measured(chains_by_batch([(1, 0)]), REGIMES["transformers"]))
        assert "dtype=torch.float32" in script(found) and "generation.json" not in dict(found.files)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_program_computes_on_the_kind_of_device_that_was_planned_for_or_says_that_it_does_not(kind: str) -> None:
    plan = plan_with(cell_with(1, 100, CHAIN, "small", 200.0))
    if kind == "cuda":
        plan = replace(plan, device=replace(plan.device, kind="cuda", name="H100", cores=None, threads=None))
    moves = script(exported("transformers", plan)).count('.to("cuda")')
    told = [note for note in exported("openvino", plan).notes if "was made on H100" in note]
    assert (moves, len(told)) == ((1, 1) if kind == "cuda" else (0, 0))


@pytest.mark.parametrize(("engine", "is_written"), [("llama.cpp", True), ("openvino", False)])
def test_our_own_decoder_s_models_are_converted_to_their_number_format_where_it_is_written(
    engine: str, is_written: bool
) -> None:
    """OpenVINO's files hold no bfloat16."""
    plan = replace(plan_with(cell_with(1, 100, CHAIN, "small", 200.0)), dtype="bfloat16")
    told = " ".join(exported(engine, plan).notes)
    assert ("--dtype bfloat16" in told) == is_written and "priced with models in bfloat16" in told


def test_models_of_llama_cpp_s_own_need_no_conversion_and_others_say_how() -> None:
    folders = exported("llama.cpp", own("llama.cpp", CHAIN, "small"))
    convert = "spectune convert models/large --engine llama.cpp --dtype float32 -o large.gguf"
    assert convert in folders.notes[0]
    theirs = "python convert_hf_to_gguf.py models/large --outfile large.gguf --outtype f32"
    assert theirs in folders.notes[0]  # the folder is not here, so who converts it is not known
    ready = exported("llama.cpp", own("llama.cpp", CHAIN, "small"), path="small.gguf")
    assert not any("convert" in note for note in ready.notes)


@pytest.mark.parametrize(
    ("engine", "theirs"),
    [
        ("llama.cpp", "python convert_hf_to_gguf.py {} --outfile large.gguf --outtype f32"),
        ("openvino", "optimum-cli export openvino -m {} --weight-format fp32 large.openvino"),
    ],
)
def test_who_converts_a_model_that_is_here_is_known(engine: str, theirs: str, tmp_path: Path) -> None:
    folder, plan = tmp_path / "large", own(engine, CHAIN, "small")
    for config, is_ours in ((LLAMA, True), ({**LLAMA, "model_type": "gemma2"}, False)):
        if is_ours:
            LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(BYTE_LEVEL))
        note = next(n for n in exported(engine, plan, path=str(tmp_path / "small")).notes if f" {folder};" in n)
        assert note.endswith(theirs.format(folder)) != is_ours
        assert ("spectune convert" in note) == is_ours


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_s_requests_ask_for_the_plan_s_temperature_and_programs_have_it(engine: str) -> None:
    for temperature in (0.0, 0.7):
        plan = replace(plan_with(cell_with(1, 100, CHAIN, "small", 200.0)), temperature=temperature)
        found = exported(engine, plan)
        program = dict(found.files).get("generate.py", "")
        drawn = f"temperature={temperature}" if temperature else "do_sample=False"
        assert (drawn in program) == (engine in ("transformers", "openvino"))
        assert any(f"temperature {temperature:g}:" in note for note in found.notes) == (not program)


def test_a_head_is_no_model_that_spectune_converts() -> None:
    plan = plan_with(cell_with(1, 100, CHAIN, "small", 200.0))
    head = {"small": EngineDrafter(name="small", path="heads/small", form="eagle3")}
    for engine, tool in (("llama.cpp", "convert_hf_to_gguf.py"), ("openvino", "optimum-cli")):
        found = export_plan(plan, ENGINES[engine], head, target="large", version=None, rates=rates_of_plan(plan))
        assert any("heads/small" in note and tool in note for note in found.notes)
