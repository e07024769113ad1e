"""What the doctor says of drafts along the target's own text: which other reading of a drafter repairs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from spectune.demo.prompts import calibration_prompts
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.tuning.doctor.checkup import Checkup, checked, findings_of
from spectune.tuning.doctor.own_text import OwnText, own_texts
from spectune.tuning.doctor.pair import Pair

from ...support.mutated_drafters import DEMO, LAYER, Tensors, fitted_head, mutated, reading

TARGET = DEMO / "target"


@dataclass(frozen=True, kw_only=True)
class Along:
    """The demo's target and a few of its own texts."""

    target: LeanModel
    texts: Sequence[OwnText]

    def check(self, folder: Path) -> Checkup:
        drafter = load_drafter(str(folder), self.target, dtype="float32")
        return checked(Pair(name="x", target=TARGET, drafter=folder), self.target, drafter, self.texts)


@pytest.fixture(scope="module")
def along() -> Along:
    target = load_model(str(TARGET), dtype="float32")
    assert isinstance(target, LeanModel)
    return Along(target=target, texts=own_texts(target, TARGET, calibration_prompts()))


def swapped_halves(tensors: Tensors) -> None:
    for one in "qkv":
        name = f"{LAYER}self_attn.{one}_proj.weight"
        tensors[name] = tensors[name].roll(tensors[name].shape[1] // 2, dims=1)


def moved_ids(by: int) -> Callable[[Tensors], None]:
    def move(tensors: Tensors) -> None:
        del tensors["t2d"]
        ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        tensors["d2t"] = (ids + by) % 4096 - torch.arange(len(ids))

    return move


def moved_rows(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].roll(1, dims=0)


def rope(base: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": base, "rope_type": "default"}}


MUTATIONS: dict[str, tuple[str, Callable[[Path, Along], Path]]] = {
    "a layer less": ("layers", lambda place, by: fitted_head(place, by.target, by.texts, layer=7)),
    "two layers less": ("layers", lambda place, by: fitted_head(place, by.target, by.texts, layer=6)),
    "five layers less": ("layers", lambda place, by: fitted_head(place, by.target, by.texts, layer=3)),
    "layers turned around": ("layers", lambda place, _: reading(place, 7, 4, 2)),
    "states before the norm": ("norm", lambda place, by: fitted_head(place, by.target, by.texts, is_normed=False)),
    "halves exchanged": ("order", lambda place, _: mutated(place, change=swapped_halves)),
    "ids one further": ("vocabulary", lambda place, _: mutated(place, change=moved_ids(1))),
    "ids two before": ("vocabulary", lambda place, _: mutated(place, change=moved_ids(-2))),
    "rows one further": ("vocabulary", lambda place, _: mutated(place, "small", change=moved_rows)),
    "states of the token two before": ("shift", lambda place, by: fitted_head(place, by.target, by.texts, lag=1)),
    "states of the token itself": ("shift", lambda place, by: fitted_head(place, by.target, by.texts, lag=-1)),
    "base of RoPE": ("rope", lambda place, _: mutated(place, "medium", said=rope(100.0))),
}
QUICK = ("a layer less", "states of the token two before")
CASES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MUTATIONS]


@pytest.mark.parametrize("name", CASES)
def test_the_reading_that_repairs_a_drafter_is_named(name: str, along: Along, tmp_path: Path) -> None:
    check, mutate = MUTATIONS[name]
    done = along.check(mutate(tmp_path / "drafter", along))
    (cause,) = [each for each in findings_of(done) if "likely cause" in each.seen]
    assert (cause.check, cause.severity) == (check, "note")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(name, marks=[] if name == "eagle3" else pytest.mark.slow)
        for name in ("eagle3", "small", "medium", "medusa", "ctc", "specformer", "exit", "recycling")
    ],
)
def test_a_sound_drafter_gives_no_alarm(source: str, along: Along) -> None:
    assert [each.check for each in findings_of(along.check(DEMO / source)) if each.severity != "ok"] == []


def test_a_head_that_says_the_text_exactly_agrees_everywhere_at_first(along: Along, tmp_path: Path) -> None:
    done = along.check(fitted_head(tmp_path / "head", along.target, along.texts))
    assert done.found.hits.mean() > 0.98 and done.repair is None


def test_a_drafter_of_noise_falls_short_and_nothing_repairs_it(along: Along, tmp_path: Path) -> None:
    def as_noise(tensors: Tensors) -> None:
        noise = torch.Generator().manual_seed(0)
        tensors["lm_head.weight"] = torch.randn(tensors["lm_head.weight"].shape, generator=noise)

    (found,) = findings_of(along.check(mutated(tmp_path / "head", change=as_noise)))
    assert (found.check, found.severity) == ("agreement", "note") and "spectune train" in found.advice
