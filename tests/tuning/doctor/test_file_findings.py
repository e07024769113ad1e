"""What the doctor says of drafters by their files: one thing is wrong with each, and it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spectune.tuning.doctor.registry import file_findings

from ...support.dflash_folders import DATA as DFLASH
from ...support.mutated_drafters import DEMO, LAYER, Tensors, mutated, reading
from ...support.tiny_family import save_model
from ...support.tiny_models import tiny_llama

TARGET = DEMO / "target"
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


def named(drafter: Path, target: Path = TARGET) -> dict[str, str]:
    """Return what is wrong, by check."""
    return {each.check: each.seen for each in file_findings("x", target, drafter) if each.severity != "ok"}


def adapted(folder: Path, kind: str = "LORA", source: str = "small") -> Path:
    (mutated(folder, source) / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
    return folder


def renumbered(folder: Path) -> Path:
    """Exchange the ids of a tokenizer's last two tokens."""
    file = folder / "tokenizer.json"
    told = json.loads(file.read_text())
    numbers = told["model"]["vocab"]
    *_, one, other = sorted(numbers, key=numbers.__getitem__)
    numbers[one], numbers[other] = numbers[other], numbers[one]
    file.write_text(json.dumps(told))
    return folder


def in_eight_bits(*names: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn) for name in names})


def turned(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensors[name].T.contiguous()})


def without(*names: str) -> Callable[[Tensors], None]:
    def drop(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return drop


def with_ids(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def with_ids_alone(tensors: Tensors) -> None:
    with_ids(tensors)
    del tensors["t2d"]


def scaled(tensors: Tensors) -> None:
    in_eight_bits("fc.weight")(tensors)
    tensors["fc.weight_scale"] = torch.ones(1)


MUTATIONS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "LoRA": ("adapter", adapted),
    "IA3": ("adapter", lambda place: adapted(place, "IA3")),
    "LoRA beside a head": ("adapter", lambda place: adapted(place, source="eagle3")),
    "float8 fc": ("numbers", lambda place: mutated(place, change=in_eight_bits("fc.weight"))),
    "float8 MLP": ("numbers", lambda place: mutated(place, change=in_eight_bits(f"{LAYER}mlp.up_proj.weight"))),
    "float8 draft model": (
        "numbers",
        lambda place: mutated(place, "small", change=in_eight_bits("model.layers.0.mlp.up_proj.weight")),
    ),
    "float8 with scales": ("numbers", lambda place: mutated(place, change=scaled)),
    "turned fc": ("transposed", lambda place: mutated(place, change=turned("fc.weight"))),
    "turned MLP": ("transposed", lambda place: mutated(place, change=turned(f"{LAYER}mlp.down_proj.weight"))),
    "turned lm_head": ("transposed", lambda place: mutated(place, change=turned("lm_head.weight"))),
    "no d2t": ("vocabulary", lambda place: mutated(place, change=without("d2t"))),
    "no tables": ("vocabulary", lambda place: mutated(place, change=without("d2t", "t2d"))),
    "ids in d2t": ("vocabulary", lambda place: mutated(place, change=with_ids)),
    "ids in d2t alone": ("vocabulary", lambda place: mutated(place, change=with_ids_alone)),
    "layers behind the last": ("layers", lambda place: reading(place, 2, 4, 9)),
    "64 positions": ("positions", lambda place: mutated(place, "small", said={"max_position_embeddings": 64})),
    "512 positions": ("positions", lambda place: mutated(place, "medium", said={"max_position_embeddings": 512})),
    "64 positions of a head": ("positions", lambda place: mutated(place, said={"max_position_embeddings": 64})),
    "two tokens exchanged": ("vocabulary", lambda place: renumbered(mutated(place, "small"))),
    "speculators": ("format", lambda place: mutated(place, said={"speculators_config": {"algorithm": "eagle3"}})),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_wrong_with_a_drafter_is_named_alone(name: str, tmp_path: Path) -> None:
    check, mutate = MUTATIONS[name]
    assert named(mutate(tmp_path / "drafter")).keys() == {check}


@pytest.mark.parametrize("hidden", [32, 64, 128])
def test_a_head_of_a_target_of_another_width_is_named(hidden: int, tmp_path: Path) -> None:
    tiny_llama(layers=8, seed=0, vocabulary=4096, hidden=hidden).float().save_pretrained(tmp_path / "target")
    seen = named(DEMO / "eagle3", tmp_path / "target")["widths"]
    assert seen == f"hidden size 384, and the target's states have {hidden} numbers"


@pytest.mark.parametrize(
    ("own", "is_named"),
    [(CHATML, False), (CHATML.replace("<", "["), True), (CHATML + "answer:", True), ("x" + CHATML, True), ("", False)],
)
def test_a_chat_template_that_writes_other_tokens_is_named(own: str, is_named: bool, tmp_path: Path) -> None:
    for name, template in (("target", CHATML), ("drafter", own)):
        save_model(tmp_path / name, layers=1, seed=0)
        if template:
            (tmp_path / name / "chat_template.jinja").write_text(template)
    assert ("template" in named(tmp_path / "drafter", tmp_path / "target")) == is_named


@pytest.mark.parametrize("source", ["eagle3", "small", "medium", "medusa", "ctc", "specformer", "exit", "recycling"])
def test_the_demo_s_drafters_are_sound_by_their_files(source: str) -> None:
    assert named(DEMO / source) == {}


@pytest.mark.parametrize(
    "said",
    [
        {"torch_dtype": "float16"},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    ],
)
def test_what_does_not_matter_is_no_alarm(said: dict[str, Any], tmp_path: Path) -> None:
    assert named(mutated(tmp_path / "drafter", said=said)) == {}


def test_a_dflash_drafter_is_called_what_it_is() -> None:
    found = {each.check: each.seen for each in file_findings("x", DFLASH / "target", DFLASH / "drafter")}
    assert found["format"].startswith("a DFlash drafter as its authors publish them")
    assert "DFlashDraftModel" in found["layers"]
