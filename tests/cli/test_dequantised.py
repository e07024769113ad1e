"""Commands of our own decoder on quantised GGUF files, as people type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.runtime.models.loading import load_pretrained
from spectune.runtime.models.packed import has_packed_products

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model
from ..support.tiny_gguf import write_tiny_gguf

__all__ = ["timed_coarsely"]
SAID = ".gguf: dequantised from Q8_0 to bfloat16"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a target and a drafter, quantised."""
    place = tmp_path_factory.mktemp("files")
    for seed, name in enumerate(("target", "small"), start=1):
        folder = save_model(place / name, layers=3 - seed, seed=seed)
        model = load_pretrained(str(folder), dtype="float32")
        write_tiny_gguf(model, place / f"{name}.gguf", family="llama", format="Q8_0", tokenizer=folder)
    return place


def typed(*arguments: object) -> Result:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


def test_run_says_what_becomes_of_the_weights(files: Path, tmp_path: Path) -> None:
    done = typed(
        "run", "--target", files / "target.gguf", "--prompt", "def main():", "--plan", "none", "--device", "cpu",
        "--store", tmp_path / "store.db", "--max-new-tokens", 4, "--json",
    )  # fmt: skip
    assert f"target{SAID}" in done.stderr and json.loads(done.stdout)["tokens"]


def test_a_profile_of_gguf_files_is_planned_and_exported_for_the_same_files(files: Path, tmp_path: Path) -> None:
    store, target, small = tmp_path / "store.db", files / "target.gguf", files / "small.gguf"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"def f{n}(x): return {n}"}) + "\n" for n in range(3)))
    profiled = typed(
        "profile", "--target", target, "--drafter", f"small={small}", "--prompts", prompts,
        "--device", "cpu", "--batch", 1, "--budget", BUDGET_S, "--max-new-tokens", 8, "--max-prompt-tokens", 8,
        "--held-out", 4, "--record", "quick", "--store", store,
    )  # fmt: skip
    assert f"target{SAID}" in profiled.stderr and f"small{SAID}" in profiled.stderr
    typed("plan", "--target", target, "--store", store)
    exported = typed("export", "--engine", "llama.cpp", "--store", store)
    assert f"llama-server --model {target.resolve()}" in exported.stdout
    assert "does not read" not in exported.output
    elsewhere = typed("export", "--engine", "vllm", "--store", store)
    assert "is a form of llama.cpp's, and vllm may not read it" in elsewhere.output


@pytest.mark.skipif(not has_packed_products(), reason="needs a processor that multiplies bytes")
def test_validate_says_nothing_of_dequantised_weights_where_the_plan_is_for_packed_ones(
    files: Path, tmp_path: Path
) -> None:
    store, target = tmp_path / "store.db", files / "target.gguf"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"def f{n}(x): return {n}"}) + "\n" for n in range(3)))
    short = ["--prompts", prompts, "--device", "cpu", "--batch", 1, "--max-new-tokens", 8, "--store", store]
    profiled = typed(
        "profile", "--target", target, "--dtype", "q8_0", "--budget", BUDGET_S, "--held-out", 4, "--record", "quick",
        *short,
    )  # fmt: skip
    typed("plan", "--target", target, "--store", store, "--dtype", "q8_0")
    packed = typed("validate", "--target", target, *short)
    whole = typed("validate", "--target", target, "--dtype", "bfloat16", *short)
    assert "dequantised" not in profiled.stderr + packed.stderr and f"target{SAID}" in whole.stderr
