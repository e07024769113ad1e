"""Tensor parallelism on two CPU processes: the single model's logits, and ranks that never lose each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import tensor
from torch.testing import assert_close
from transformers import GPT2Config, LlamaConfig

from spectune.errors import DeviceError, ModelError
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.parallel import load_parallel, rank, require_divisible

from ...support.tiny_models import plain_logits, tiny_llama
from ...support.two_ranks import SHAPES, TEXT

SOURCE = tiny_llama(layers=2, seed=0)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what rank 0 saw, and how many forwards the other rank followed."""
    pytest.importorskip("accelerate", reason="transformers' tensor parallelism needs it")
    folder = tmp_path_factory.mktemp("parallel")
    SOURCE.save_pretrained(folder / "model")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parents[4] / "support" / "two_ranks.py"
    command = [*launch, str(script), str(folder / "model"), str(folder / "seen")]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((folder / "seen").read_text())
    return found | {"followed": json.loads((folder / "seen.follower").read_text())}


@pytest.mark.slow
def test_two_ranks_compute_the_logits_of_one(seen: dict[str, Any]) -> None:
    assert_close(tensor(seen["logits"]).double(), plain_logits(SOURCE, TEXT)[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_each_rank_caches_its_own_heads_only(seen: dict[str, Any]) -> None:
    assert 2 * seen["width"] == LeanModel(SOURCE).new_cache(1, 1).states.shape[-1]


@pytest.mark.slow
def test_two_ranks_are_a_regime_of_their_own(seen: dict[str, Any]) -> None:
    assert seen["regime"] == "engine:transformers-tp2"


@pytest.mark.slow
def test_the_other_rank_runs_every_forward_of_the_first_and_one_more_per_change(seen: dict[str, Any]) -> None:
    called = [*SHAPES, SHAPES[0], SHAPES[0], SHAPES[3], SHAPES[3]]
    order = [(1, 0, 1), *SHAPES, *called, "end"]  # prepared one after the other, then called
    changes = sum(before != after for before, after in pairwise(order))
    assert seen["followed"] == len(called) + changes


@pytest.mark.slow
def test_a_shape_that_does_not_fit_is_refused_before_the_others_hear_of_it(seen: dict[str, Any]) -> None:
    assert "batch 9" in seen["refusal"]


def test_one_process_is_no_tensor_parallelism() -> None:
    with pytest.raises(DeviceError, match="torchrun --nproc-per-node 4"):
        load_parallel("anywhere", dtype="float32", ranks=4)


def test_a_process_that_torchrun_did_not_start_measures() -> None:
    assert rank() == 0


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match="8 query and 2 key-value heads, which 4 devices"):
        require_divisible(LlamaConfig(num_attention_heads=8, num_key_value_heads=2), "model", 4)


def test_a_family_without_a_plan_is_refused() -> None:
    with pytest.raises(ModelError, match="no tensor-parallel plan for gpt2"):
        require_divisible(GPT2Config(), "model", 2)
