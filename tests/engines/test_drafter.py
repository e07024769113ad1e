"""What kind of drafter lies in a folder, told by the names of its tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spectune.engines.drafter import drafter_form, engine_drafters, own_reads, require_language_model
from spectune.engines.export import expressible
from spectune.engines.schema import recorded_version
from spectune.engines.setting import PADDED, DrafterForm, Setting
from spectune.engines.table import ENGINES
from spectune.engines.vllm.export import EAGLE
from spectune.errors import RequestError
from spectune.planner.plans.plan import Plan
from spectune.planner.plans.provenance import SurfaceSource
from spectune.planner.strategies.chain import ChainPolicy
from spectune.training.eagle import ARCHITECTURES
from spectune.tuning.export import ExportRequest, export

from ..support.engine_policies import cell_with, engine_drafter
from ..support.priced_cells import plan_with


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("fc.weight", "midlayer.self_attn.q_proj.weight"), "eagle3"),
        (("fc.weight", "layers.0.self_attn.q_proj.weight"), "eagle"),
        (("fc.weight", "another.weight"), "unknown"),
        (("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"), "model"),
    ],
)
def test_tensors_tell_a_head_from_a_model(tmp_path: Path, names: tuple[str, ...], form: DrafterForm) -> None:
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "model.safetensors")
    assert drafter_form(tmp_path, follows_text=True) == form


@pytest.mark.parametrize(("follows_text", "form"), [(True, "model"), (False, "unknown")])
def test_without_files_what_follows_the_text_is_a_model(tmp_path: Path, follows_text: bool, form: DrafterForm) -> None:
    assert drafter_form(tmp_path / "gone", follows_text) == form


def test_a_block_drafter_is_nothing_an_engine_loads(tmp_path: Path) -> None:
    save_file({"heads.weight": torch.zeros(2), "heads.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert drafter_form(tmp_path, follows_text=False) == "unknown"


@pytest.mark.parametrize("kind", ["exit", "recycling", "medusa"])
def test_a_drafter_of_our_own_kinds_is_nothing_an_engine_loads(tmp_path: Path, kind: str) -> None:
    save_file({"some.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"spectune": {"kind": kind}}))
    assert drafter_form(tmp_path, follows_text=True) == "unknown"
    with pytest.raises(RequestError, match=r"small at .+ works beside its target and is no language model"):
        require_language_model("small", tmp_path, "llama.cpp")


@pytest.mark.parametrize("role", ["draft", "self", "block"])
def test_without_files_the_plan_s_timings_tell_what_works_beside_the_target(role: str) -> None:
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    timed = SurfaceSource(
        model=dict(plan.drafters)["small"].key,
        role=role,
        regime="eager",
        dtype="float32",
        measurements=2,
        relative_error=None,
    )
    known = replace(plan, provenance=replace(plan.provenance, surfaces=(timed,)))
    assert engine_drafters(known, {})["small"].form == ("model" if role == "draft" else "unknown")


def head(folder: Path, **said: object) -> Path:
    """Write an EAGLE-3 head whose config.json says so much, and a target of 8 layers beside it."""
    for name, config in (("head", said), ("target", {"num_hidden_layers": 8})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    tensors = {name: torch.zeros(2) for name in ("fc.weight", "midlayer.self_attn.q_proj.weight")}
    save_file(tensors, folder / "head" / "model.safetensors")
    return folder / "head"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("reads", "is_refused"), [([2, 4, 5], False), ([2, 4, 7], True), ([5, 4, 2], True)])
def test_a_head_that_reads_other_layers_than_engines_do_is_refused_with_the_reason(
    tmp_path: Path, engine: str, reads: list[int], is_refused: bool
) -> None:
    place = head(tmp_path, spectune={"reads": reads})
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    found = engine_drafters(plan, {"small": place}, tmp_path / "target")
    assert found["small"].form == ("unknown" if is_refused else "eagle3")
    assert ("small reads the target's states after" in found["small"].refused) == is_refused
    able = expressible(ENGINES[engine], plan, found, recorded_version(engine, None))
    assert not (is_refused and any(name == "small" for _, name in able))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [96, 100])
@pytest.mark.parametrize("is_named", [False, True], ids=["here", "by a name"])
def test_a_drafter_whose_table_is_padded_otherwise_goes_to_no_engine_that_refuses_it(
    tmp_path: Path, engine: str, rows: int, is_named: bool
) -> None:
    for name, size in (("small", rows), ("target", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": size}))
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    small, target = tmp_path / "small", tmp_path / "target"
    if is_named:
        plan, small, target = profiled_at(tmp_path, plan), Path("org/small"), Path("org/large")
    found = engine_drafters(plan, {"small": small}, target)
    assert found["small"].path == str(small)
    able = expressible(ENGINES[engine], plan, found, recorded_version(engine, None))
    refuses = engine == "transformers" and rows != 100
    assert any(name == "small" for _, name in able) != refuses


def test_vllm_drafts_with_a_table_that_is_padded_otherwise_where_a_version_can() -> None:
    vllm, padded = ENGINES["vllm"], replace(engine_drafter(), tables=(96, 100))
    taken, plain = (vllm.setting(ChainPolicy(length=3), one, "0.25") for one in (padded, engine_drafter()))
    assert isinstance(taken, Setting) and taken.knobs == (("use_heterogeneous_vocab", True),) and not taken.differs
    assert isinstance(plain, Setting) and plain.knobs == ()
    refused = vllm.setting(ChainPolicy(length=3), padded, "0.20")
    assert refused == PADDED.format(engine="vLLM 0.20", name="small", tables=(96, 100))


def profiled_at(folder: Path, plan: Plan) -> Plan:
    """Return a plan whose target and drafters lay in a folder, by their names, the target by "target"."""
    drafters = ((name, replace(model, location=str(folder / name))) for name, model in plan.drafters)
    return replace(plan, target=replace(plan.target, location=str(folder / "target")), drafters=tuple(drafters))


def test_a_head_that_goes_by_a_name_is_told_by_the_files_that_were_profiled(tmp_path: Path) -> None:
    head(tmp_path).rename(tmp_path / "small")
    plan = profiled_at(tmp_path, plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0)))
    assert engine_drafters(plan, {"small": Path("org/head")})["small"].form == "eagle3"


def test_the_reason_for_a_head_s_layers_is_told_in_the_export(tmp_path: Path) -> None:
    place = head(tmp_path, spectune={"reads": [2, 4, 7]})
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    told = export(plan, ExportRequest(engine="vllm", target=tmp_path / "target", drafters={"small": place}), None)
    assert told.dropped[0].reason.startswith("small reads the target's states after 2, 4, 7 layers, and engines read")


@pytest.mark.parametrize(("reads", "own"), [([2, 4, 5], ()), ([2, 4, 7], (2, 4, 7)), ([], ())])
def test_without_the_target_a_head_s_last_layer_says_how_many_there_are(
    tmp_path: Path, reads: list[int], own: tuple[int, ...]
) -> None:
    assert own_reads(head(tmp_path, spectune={"reads": reads}), None) == own


def test_what_a_head_names_for_engines_they_read(tmp_path: Path) -> None:
    named = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    assert own_reads(head(tmp_path, spectune={"reads": [2, 4, 7]}, eagle_config=named), 8) == ()


@pytest.mark.parametrize(
    ("architecture", "bias", "is_loaded"),
    [
        ("LlamaForCausalLM", (), True),
        ("LlamaForCausalLM", ("fc.bias",), False),
        ("LlamaForCausalLMEagle", (), False),
    ],
)
def test_vllm_loads_no_eagle_head_with_a_bias_or_of_sglang_s_architecture(
    tmp_path: Path, architecture: str, bias: tuple[str, ...], is_loaded: bool
) -> None:
    names = ("fc.weight", "layers.0.self_attn.q_proj.weight", *bias)
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    plan = plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))
    for engine in ("vllm", "sglang"):
        told = export(plan, ExportRequest(engine=engine, drafters={"small": tmp_path}), None)
        assert (not told.dropped) == (is_loaded or engine == "sglang")
        assert all(one.reason.startswith("vLLM does not load small") for one in told.dropped)


def test_a_head_that_is_trained_here_is_told_from_what_vllm_loads() -> None:
    """The name under which they are written, so that neither changes without the other."""
    assert ARCHITECTURES["eagle"] == EAGLE
