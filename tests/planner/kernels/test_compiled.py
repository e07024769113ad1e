"""Kernels that several threads call first, and kernels that are loaded before the first round, in a process of its own.

Machine code lives as long as the process, and other tests have long loaded most of it: only a fresh one can tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from spectune.planner.kernels import compiled as compiled_module
from spectune.planner.kernels.compiled import Kernel, compiled, kernel_cache
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.texts import load_kernels

from ...support.fresh_process import exit_of

COUNT = """
import sys
from spectune.planner.kernels.compiled import Kernel

def loaded():
    # What kernels have been called with so far; those that others call have become numba's own.
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("spectune."):
            for function in vars(module).values():
                made = function._machine_code if isinstance(function, Kernel) else function
                if hasattr(made, "signatures"):
                    found[id(made)] = len(made.signatures)
    return sum(found.values())
"""
TEXTS = """
from spectune.planner.strategies import *
from spectune.planner.strategies.texts import TextState
from spectune.planner.strategies.texts import Texts, load_kernels

policies = (
    LookupPolicy(length=4),
    SuffixPolicy(length=4),
    SuffixTreePolicy(nodes=9),
    CachebackPolicy(nodes=9),
    HybridPolicy(text=SuffixPolicy(length=4), model=ChainPolicy(length=3)),
    StackPolicy(drafters=("small", "lookup"), lengths=(4, 3)),
)
own = policies[{place}:{place} + 1]
if {is_loaded}:
    load_kernels(own)
known, state, texts = loaded(), TextState(), Texts()
texts.admit(0)
copies = own[0].text if isinstance(own[0], HybridPolicy) else getattr(own[0], "lookup", own[0])
for length in range(5, 30):
    text = [1, 2, 3, 4] * 2 + list(range(length)) + [1, 2]
    state.draft(text, copies)
    texts.draft([text], copies)
    state.behind(list(range(length)), [1, 2], LookupPolicy(length=4)) if isinstance(own[0], StackPolicy) else None
sys.exit(0 if (0 < known == loaded()) else 3)
"""
TREES = """
import numpy as np
import torch
from spectune.planner.records.draft import DraftBatch
from spectune.runtime.batch.faults import require_sound
from spectune.runtime.backends.compiled import prepare
from spectune.runtime.backends.tree_input import TreeInput
from spectune.runtime.models.layout import Masks
from spectune.runtime.batch.sequence import Request, Sequence

cpu = torch.device("cpu")
if {is_loaded}:
    prepare(torch.{dtype}, cpu)
known = loaded()
rows = lambda *numbers: np.array([numbers] * 2, dtype=np.int64)
draft = DraftBatch(
    tokens=rows(-1, 4, 5), parents=rows(-1, 0, 0), depths=rows(0, 1, 1), sizes=np.array([3, 3]), widths=()
)
require_sound(draft, 2, 24, 3)
batch = [Sequence(Request(prompt=(1,) * length, max_new_tokens=2), length) for length in (4, 7)]
TreeInput(batch, draft, 3).laid_out(Masks(torch.{dtype}, cpu, slots=2, capacity=32))
sys.exit(0 if (0 < known == loaded()) else 3)
"""

ROUNDS = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import HybridPolicy, StaticPolicy, SuffixPolicy
from spectune.planner.strategies.texts import load_kernels
from spectune.runtime.engine.engine import Engine
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always

torch.manual_seed({seed})
shape = dict(hidden_size={hidden}, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
config = LlamaConfig(vocab_size={vocabulary}, num_hidden_layers=1, initializer_range=0.3, **shape)
model = LeanModel(LlamaForCausalLM(config).to(torch.{dtype}))
policy = HybridPolicy(
    text=SuffixPolicy(length=4, min_match=2),
    model=StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 1, 0, 0))),
)
drafters = dict(small=HybridDrafter(ModelDrafter(model, slots=2, capacity=64)))
setup = StepConfig(policy=policy, drafter="small")
decoder = Engine(model, drafters, always(setup), slots=2, capacity=64)
load_kernels([policy])
for length in (5, 8):
    decoder.admit(Request(prompt=tuple(range(length)), max_new_tokens=40))
known, kept, drafted = loaded(), set(), set()
while decoder.running:
    done = decoder.step()
    kept.update(done.kept)
    drafted.add(bool(done.widths))
sys.exit(0 if known == loaded() and drafted == {{True, False}} and 2 in kept else 3)
"""


@pytest.mark.parametrize("place", range(6))
def test_rounds_that_copy_wait_for_no_kernel(place: int) -> None:
    assert exit_of(COUNT + TEXTS.format(place=place, is_loaded=True)) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_rounds_that_draft_wait_for_no_kernel(dtype: str) -> None:
    assert exit_of(COUNT + TREES.format(dtype=dtype, is_loaded=True)) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_rounds_wait_for_no_kernel(dtype: str) -> None:
    assert exit_of(COUNT + ROUNDS.format(dtype=dtype, hidden=32, vocabulary=9, seed=0)) == 0


@pytest.mark.parametrize(
    "code", [TEXTS.format(place=1, is_loaded=False), TREES.format(dtype="float32", is_loaded=False)]
)
def test_without_loading_them_these_tests_would_fail(code: str) -> None:
    assert exit_of(COUNT + code) == 3


def test_a_policy_of_an_engine_is_nobodys_round_here() -> None:
    load_kernels([LookupPolicy(length=4, occurrence="mapped")])


def called_at_once(kernels: Sequence[Kernel[[float], float]]) -> list[float]:
    """Call every kernel from a thread of its own, all at the same moment."""
    start, found = Barrier(len(kernels)), [0.0] * len(kernels)

    def call(place: int) -> None:
        start.wait()
        found[place] = kernels[place](2.0)

    threads = [Thread(target=call, args=(place,)) for place in range(len(kernels))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@compiled
def half(number: float) -> float:
    return number / 2.0


@compiled
def quarter(number: float) -> float:
    return half(half(number))


@compiled
def eighth(number: float) -> float:
    return half(half(half(number)))


def test_threads_compile_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiling: list[int] = []
    most: list[int] = []

    def slow_cache(key: str) -> str:
        compiling.append(1)
        most.append(len(compiling))
        time.sleep(0.05)
        compiling.pop()
        return str(tmp_path)

    monkeypatch.setattr(compiled_module, "kernel_cache", slow_cache)
    assert called_at_once([quarter, eighth, quarter, eighth]) == [0.5, 0.25, 0.5, 0.25]
    assert len(most) == 3 and max(most) == 1  # the helper and both of its callers, each once


@pytest.mark.parametrize("says", ["no compiled object yet for <Library 'doubled'>", "something else"])
def test_a_kernel_that_numba_cannot_keep_runs_all_the_same(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(number: int) -> int:
        return 2 * number

    def fail(cache: object, signature: object, made: object) -> None:
        raise RuntimeError(says)

    monkeypatch.setattr("numba.core.caching.Cache.save_overload", fail)
    kernel = Kernel(doubled)
    if says == "something else":
        with pytest.raises(RuntimeError, match=says):
            kernel(4)
        with pytest.raises(RuntimeError, match=says):
            Kernel(doubled).load(4)
    else:
        Kernel(doubled).load(4)
    assert kernel(4) == 8


def test_tests_keep_machine_code_where_the_next_run_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))
    assert str(tmp_path) not in str(kernel_cache(quarter.key))


CALLER = """
from typing import NamedTuple

MOST = {most}


class Pair(NamedTuple):
    first: {kind}


@compiled
def helper(number):
    return number + {added}


@compiled
def caller(number):
    return Pair(helper(number)).first + MOST
"""


def key_of(most: int = 3, kind: str = "int", added: int = 1) -> str:
    names: dict[str, Any] = {"compiled": compiled, "__name__": "made"}
    exec(CALLER.format(most=most, kind=kind, added=added), names)
    found: str = names["caller"].key
    return found


@pytest.mark.parametrize("change", [{"most": 4}, {"kind": "float"}, {"added": 2}])
def test_an_edit_of_what_a_kernel_calls_or_reads_is_an_edit_of_it(change: dict[str, Any]) -> None:
    assert key_of() == key_of() != key_of(**change)


def test_a_key_stays_when_what_is_called_is_machine_code_already() -> None:
    before = eighth.key
    assert quarter(2.0) == 0.5 and eighth.key == before


SHARING = """
import numpy as np
from spectune.planner.kernels.compiled import compiled

prange = range


@compiled(parallel=True)
def shared(numbers):
    for place in prange(len(numbers)):
        numbers[place] += 1


@compiled
def alone(numbers):
    for place in range(len(numbers)):
        numbers[place] += 1


@compiled
def either(numbers, is_shared):
    if is_shared:
        shared(numbers)
    else:
        alone(numbers)
"""


def test_a_kernel_from_the_cache_finds_the_threads_of_those_that_it_calls(tmp_path: Path) -> None:
    """Whose machine code was read from there, too, when it was compiled itself."""
    (tmp_path / "sharing.py").write_text(SHARING)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "SPECTUNE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "2"}
    for call in ("shared(numbers)", "either(numbers, False)", "either(numbers, True)"):
        code = f"from sharing import *; numbers = np.zeros(9); {call}; assert (numbers == 1).all()"
        assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=300).returncode == 0
