"""The example of docs/dev/strategy.md is a strategy: registered from that text, planned with and decoded by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..support.fresh_process import exit_of

DOCUMENT = Path(__file__).parents[2] / "docs/dev/strategy.md"
REGISTER = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import spectune.planner

name, own = "spectune.planner.strategies", Path({folder!r})
there = Path(spectune.planner.__file__).parent / "strategies"
spec = spec_from_file_location(name, own / "__init__.py", submodule_search_locations=[str(own), str(there)])
sys.modules[name] = module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
"""
PLAN_AND_DECODE = """
from dataclasses import replace

import torch

from spectune.planner.pricing.cells import Cell
from spectune.planner.records.recording import recording_of
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price_all
from spectune.planner.strategies import REGISTRY, policy_from_json, policy_to_json
from spectune.profiler.records.overhead import OverheadSample
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.batch.step_config import StepConfig, always
from tests.support.decoded_runs import CAPACITY, PLAINLY, random_requests, run
from tests.support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts
from tests.support.tiny_models import tiny_llama

sure = REGISTRY["sure-path"]
pairs = texts(Language(2), 5, lambda text: (6, 11, 3, 8, 2)[text])
drafter = SkilledDrafter(Language(2), skill=0.6, seed=2)
found = inputs(record(drafter, pairs, every_node(4, 3), children=3))
timed = OverheadSample(kind="sure-path", batch=1, draft_forwards=0, nodes=1, host_ms=(0.1,))
found = replace(found, overhead=replace(found.overhead, samples=(*found.overhead.samples, timed)))
(contest,) = price_all(Rehearsal(found), [Cell(batch=1, context=8)], SearchOptions())
priced = [one for one in contest.priced if isinstance(one.policy, sure)]
assert len(priced) > 2 and all(one.tokens_per_s > 0.0 for one in priced), contest.left_out()
best = max(priced, key=lambda one: one.tokens_per_s).policy
assert policy_from_json(policy_to_json(best)) == best and best.label.endswith("(sure path)")
target, model = LeanModel(tiny_llama(layers=2, seed=0)), LeanModel(tiny_llama(layers=2, seed=0))
requests = random_requests(3, tokens=20, temperature=0.0)
schedule = always(StepConfig(policy=best, drafter="it"))
drafted = run(target, requests, schedule, {"it": ModelDrafter(model, slots=3, capacity=CAPACITY)})
plain = run(target, requests, PLAINLY, {})
assert drafted.outputs == plain.outputs and len(drafted.rounds) < len(plain.rounds)
"""


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_the_example_is_one_short_file_and_two_lines() -> None:
    file, imported, listed = blocks()
    assert file.count("\n") < 100 and (imported.count("\n"), listed.count("\n")) == (1, 1)


def test_the_example_is_planned_with_and_decoded_by(tmp_path: Path) -> None:
    file, imported, listed = blocks()
    registry = Path(__file__).parents[2] / "planner/strategies/__init__.py"
    text, last = registry.read_text(), "    | PadPolicy\n"
    assert last in text
    text = text.replace("from .talon import", f"{imported}from .talon import").replace(last, last + listed)
    (tmp_path / "sure_path.py").write_text(file)
    (tmp_path / "__init__.py").write_text(text)
    assert exit_of(REGISTER.format(folder=str(tmp_path)) + PLAN_AND_DECODE) == 0


@pytest.mark.parametrize(
    "promised", ["grow", "results", "sweep", "grid", "space", "probes", "published", "engine_grid"]
)
def test_the_table_names_what_a_strategy_promises(promised: str) -> None:
    from spectune.planner.strategies.base import Strategy

    assert f"`{promised}`" in DOCUMENT.read_text() and hasattr(Strategy, promised)
