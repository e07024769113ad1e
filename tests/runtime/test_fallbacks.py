"""Loading with a plan that is damaged, or whose drafters are not there: said, and never felt in the output."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from spectune.db import open_store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.observation import Observation
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.records.wire import from_json
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.engine.generator import Generator
from spectune.runtime.fallbacks import models_of
from spectune.runtime.load import load
from spectune.runtime.watch.options import WatchOptions
from spectune.runtime.watch.watch import Watch

from ..support.tiny_family import save_model
from ..support.watched_rounds import drafting_plan

pytestmark = pytest.mark.lossless

PROMPT = "def main():"


@dataclass(frozen=True)
class Family:
    """A target and two drafters as folders."""

    folder: Path

    @cached_property
    def plan(self) -> Plan:
        """A plan of chains for exactly this device."""
        drafters = tuple((name, identify(self.folder / name, name)) for name in ("small", "other"))
        made = replace(drafting_plan([(1, 10), (4, 10)]), device=detect("cpu"), drafters=drafters, workload="default")
        return replace(made, target=identify(self.folder / "target"))

    def load(self, plan: str = "auto", **options: object) -> Generator:
        """Return the target, loaded."""
        wanted: dict[str, object] = {"device": "cpu", "store": str(self.folder / "store.db"), "dtype": "float32"}
        return load(self.folder / "target", plan=plan, **(wanted | options))  # type: ignore[arg-type]

    def filed(self, plan: Plan, **options: object) -> Generator:
        """Return the target, loaded with a plan file."""
        (self.folder / "plan.json").write_text(plan_to_json(plan))
        return self.load(str(self.folder / "plan.json"), **options)

    @cached_property
    def text(self) -> tuple[int, ...]:
        """What the target itself says."""
        return self.load("none").generate(PROMPT, max_new_tokens=12).tokens


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family")
    for seed, name in enumerate(("target", "small", "other")):
        save_model(folder / name, layers=1, seed=seed)
    return Family(folder)


def said(generator: Generator) -> tuple[int, ...]:
    return generator.generate(PROMPT, max_new_tokens=12).tokens


def ways(generator: Generator) -> list[tuple[str, str | None]]:
    """Return how the cells of its plan are run."""
    choice = generator.choice
    setups = [choice.setup(cell) for cell in choice.plan.cells] if choice.plan else []
    return [(setup.policy.code, setup.drafter) for setup in setups]


def test_a_sound_plan_is_followed(family: Family) -> None:
    generator = family.filed(family.plan)
    assert ways(generator) == [("chain of 3", "small")] * 2
    assert said(generator) == family.text
    assert isinstance(generator.observer, Watch)
    assert 'spectune_rounds_total{batch="1",context="10",way="planned"' in generator.observer.prometheus()


def test_a_missing_drafter_is_replaced_by_the_next_alternative_that_is_there(family: Family) -> None:
    generator = family.filed(family.plan, drafters={"small": "nowhere"})
    assert ways(generator) == [("chain of 2", "other")] * 2
    assert said(generator) == family.text
    reason = generator.choice.reason
    assert "batch 1, context 10 by chain of 2 by other instead of chain of 3 by small" in reason
    assert "a drafter is missing: small: no model folder at nowhere" in reason


def test_where_no_drafter_is_there_the_text_itself_drafts(family: Family) -> None:
    generator = family.filed(family.plan, drafters={"small": "nowhere", "other": "nowhere"})
    assert {drafter for _, drafter in ways(generator)} == {"lookup"}
    assert said(generator) == family.text


def test_a_drafter_with_other_weights_counts_as_missing(family: Family) -> None:
    generator = family.filed(family.plan, drafters={"small": family.folder / "other"})
    assert "has other weights" in generator.choice.reason
    assert said(generator) == family.text


def test_only_the_cells_that_need_a_missing_drafter_are_changed(family: Family) -> None:
    first, second = family.plan.cells
    plan = replace(family.plan, cells=(first, replace(second, drafter="other")))
    generator = family.filed(plan, drafters={"small": "nowhere"})
    assert ways(generator) == [("chain of 2", "other"), ("chain of 3", "other")]
    assert "batch 4" not in generator.choice.reason


def test_a_drafter_that_no_cell_needs_may_be_missing(family: Family) -> None:
    generator = family.filed(family.plan, drafters={"other": "nowhere"})
    assert ways(generator) == [("chain of 3", "small")] * 2
    assert "missing" not in generator.choice.reason


def test_alternatives_slower_than_plain_decoding_are_not_taken(family: Family) -> None:
    slow = [
        replace(cell, alternatives=tuple(replace(one, tokens_per_s=40.0) for one in cell.alternatives))
        for cell in family.plan.cells
    ]
    generator = family.filed(replace(family.plan, cells=tuple(slow)), drafters={"small": "nowhere"})
    assert (generator.choice.plan, generator.choice.source) == (None, "none")
    assert generator.choice.reason.startswith("plain decoding, no cell of the plan can be run; a drafter is missing")
    assert said(generator) == family.text


def test_a_cell_that_needs_more_room_than_the_target_has_is_replaced(family: Family) -> None:
    first, second = family.plan.cells
    long = replace(first, policy=ChainPolicy(length=600), run_tokens=tuple(range(602)))
    generator = family.filed(replace(family.plan, cells=(long, second)))
    assert ways(generator) == [("chain of 2", "small"), ("chain of 3", "small")]
    assert said(generator) == family.text


def test_a_plan_in_an_unknown_number_format_means_plain_decoding(family: Family) -> None:
    generator = family.filed(replace(family.plan, dtype="float3"), dtype=None)
    assert generator.choice.plan is None and "unknown dtype 'float3'" in generator.choice.reason


def test_another_number_format_than_the_plan_s_is_said_and_held_to_no_promise(family: Family) -> None:
    generator = family.filed(family.plan, dtype="float64")
    words = "it was made for float32 and decodes in float64; its prediction may be off"
    assert words in generator.choice.reason
    assert isinstance(generator.observer, Watch)
    assert "spectune_promised" not in generator.observer.prometheus()
    exact = family.filed(family.plan, dtype="float32")
    assert isinstance(exact.observer, Watch) and "spectune_promised" in exact.observer.prometheus()


def kept(folder: Path, plan: Plan) -> int:
    """Return the number of a plan that a store in a folder keeps for its device."""
    with open_store(str(folder / "store.db")) as store:
        return store.add_plan(
            plan_to_json(plan),
            device=plan.device.fingerprint,
            device_kind=plan.device.kind_key,
            target=plan.target.key,
            workload="default",
            temperature=0.0,
        )


def test_of_stored_plans_one_for_the_wanted_number_format_goes_before_a_newer_one(
    family: Family, tmp_path: Path
) -> None:
    wanted, newer = (kept(tmp_path, replace(family.plan, dtype=dtype)) for dtype in ("float64", "float32"))
    choices = [family.load(store=str(tmp_path / "store.db"), dtype=dtype).choice for dtype in ("float64", "float32")]
    assert [choice.plan_id for choice in choices] == [wanted, newer]
    assert "decodes in" not in choices[0].reason


def test_what_a_stored_plan_did_is_written_beside_it(family: Family) -> None:
    number = kept(family.folder, family.plan)
    generator = family.load()
    assert said(generator) == family.text
    del generator
    with open_store(str(family.folder / "store.db")) as store:
        (document,) = store.observations(number)
    seen = from_json(Observation, document)
    assert (seen.plan_id, seen.source, seen.dtype) == (number, "this device", "float32")
    assert sum(cell.tokens for cell in seen.cells) == len(family.text) - 1  # the first one is the prefill's


def cut(text: bytes, source: random.Random) -> bytes:
    return text[: source.randrange(len(text))]


def flipped(text: bytes, source: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(source.choice([1, 1, 3])):
        damaged[source.randrange(len(text))] ^= 1 << source.randrange(8)
    return bytes(damaged)


def shuffled(text: bytes, source: random.Random) -> bytes:
    """Replace a value of the document by another value of it."""
    document = json.loads(text)
    found: list[tuple[Any, Any]] = []  # where something stands: an object or a list, and the key or place in it
    _places(document, found)
    (here, key), (there, other) = source.sample(found, 2)
    here[key] = deepcopy(there[other])
    return json.dumps(document, default=str).encode()


def _places(value: object, found: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)


@pytest.mark.parametrize("damage", [cut, flipped, shuffled])
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_plan_never_breaks_generation(
    damage: Callable[[bytes, random.Random], bytes], seed: int, family: Family
) -> None:
    text, source = plan_to_json(family.plan).encode(), random.Random(seed)
    (family.folder / "damaged.json").write_bytes(damage(text, source))
    generator = family.load(str(family.folder / "damaged.json"))
    assert said(generator) == family.text
    assert generator.choice.reason


@pytest.mark.parametrize(
    ("plain", "rival", "way"), [(0.5, 0.0, 'way="plain",policy="plain"'), (0.01, 0.5, 'way="rival",policy="lookup')]
)
def test_comparisons_with_plain_decoding_and_rivals_change_no_text(
    family: Family, plain: float, rival: float, way: str
) -> None:
    quick = WatchOptions(probe_share=plain, rival_share=rival, block_rounds=4, block_texts=1)
    watched = family.filed(family.plan, watch=quick)
    texts = [watched.generate_batch([PROMPT, "1 2", "return"], slots=1, max_new_tokens=80) for _ in range(2)]
    told = family.load("none").generate_batch([PROMPT, "1 2", "return"], max_new_tokens=80)
    assert [[one.tokens for one in text] for text in texts] == [[one.tokens for one in told]] * 2
    assert isinstance(watched.observer, Watch)
    assert way in watched.observer.prometheus()


def test_a_stack_needs_all_of_its_models_and_no_lookup() -> None:
    stack = StackPolicy(drafters=("other", "small", "lookup"), lengths=(4, 2, 2))
    assert models_of(StepConfig(policy=stack, drafter="other+small+lookup")) == ("other", "small")
    assert models_of(StepConfig(policy=LookupPolicy(length=2, max_ngram=2), drafter="lookup")) == ()
