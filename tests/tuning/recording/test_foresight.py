"""How long recording takes is foretold, and kept, on fast and on slow machines: forwards take what a law says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from transformers import LlamaForCausalLM

from spectune.demo.story import family_folder
from spectune.errors import RequestError
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import HeadShape
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model, load_pretrained, load_tokenizer
from spectune.runtime.models.recycling import RecyclingHead
from spectune.tuning.family import identify_all
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.trial import ForwardTrial, TrialCell
from spectune.tuning.profile import TimeBudgets
from spectune.tuning.recording.effort import LEAST_AT_ONCE, RecordingBudget
from spectune.tuning.recording.foresight import Foresight
from spectune.tuning.recording.recipe import Recipe, recipe_of
from spectune.tuning.recording.traces import Workload, record_workloads
from spectune.tuning.request import Models, ProfileRequest

from ...support.memory_journal import MemoryJournal
from ...support.tiny_heads import head_weights, layer_config

TEXTS = (
    "def main(argv):\n",
    "import os\n",
    "class Tree:\n",
    "for number in range(10):\n",
    "def read(path):\n",
    "x = [\n",
)
COUNT, NEW_TOKENS, FEWEST, LIMIT_S = 12, 64, 2, 60.0
LAWS = {  # milliseconds of a forward and of each of its rows, of the target and of its drafter
    "fast": ((2.0, 0.5), (0.5, 0.1)),
    "middling": ((60.0, 12.0), (15.0, 3.0)),
    "head": ((60.0, 12.0), (0.1, 0.02)),  # of one layer behind the target
    "slow": ((150.0, 30.0), (40.0, 9.0)),
    "slower": ((400.0, 80.0), (100.0, 25.0)),
    "slowest": ((1500.0, 400.0), (500.0, 120.0)),
}


@dataclass
class Machine:
    """A clock that stands still but in forwards."""

    now_s: float = 0.0
    laws: dict[int, tuple[float, float]] = field(default_factory=dict)  # by the model's id
    compiling_s: float = 0.0  # of the next forward

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    def slowed(forward: Callable[..., object]) -> Callable[..., object]:
        def run(model: object, *given: object) -> object:
            (rows,) = (each.tokens.numel() for each in given if isinstance(each, ForwardInput))
            base_ms, row_ms = made.laws[id(model)]
            made.now_s += (base_ms + row_ms * rows) / 1000.0 + made.compiling_s
            made.compiling_s = 0.0
            return forward(model, *given)

        return run

    for kind, name in (
        (LeanModel, "forward"),
        (LeanModel, "features"),
        (EagleHead, "read"),
        (EagleHead, "forward"),
        (RecyclingHead, "keep"),
    ):
        monkeypatch.setattr(kind, name, slowed(getattr(kind, name)))
    monkeypatch.setattr("spectune.tuning.recording.effort.NARROW", 0.0)  # no interval is: time alone decides
    return made


@pytest.fixture(scope="module")
def models() -> tuple[CausalModel, CausalModel]:
    folder = family_folder()
    found = [load_model(str(folder / name), dtype="float32") for name in ("target", "small")]
    return found[0], found[1]


@pytest.fixture(scope="module")
def readers(models: tuple[CausalModel, CausalModel]) -> dict[str, CausalModel]:
    """Return drafters that read the target's hidden states."""
    target, shown = models[0], load_pretrained(str(family_folder() / "target"), dtype="float32")
    assert isinstance(target, LeanModel) and isinstance(shown, LlamaForCausalLM)
    shape = HeadShape(form="eagle", config=layer_config(shown), reads=(len(target.anatomy.layers),))
    weights = {name: 0.1 * weight for name, weight in head_weights("eagle", shown).items()}  # deep drafts stay finite
    return {
        "head": EagleHead(weights, shape, target),
        "recycling": RecyclingHead(target, 8),
    }


@pytest.fixture(scope="module")
def requests() -> tuple[Request, ...]:
    tokenizer = load_tokenizer(str(family_folder() / "target"))
    texts = [f"# {number}\n{TEXTS[number % len(TEXTS)]}" for number in range(COUNT)]
    return tuple(Request(prompt=tuple(tokenizer.encode(text)), max_new_tokens=NEW_TOKENS) for text in texts)


def foresight_of(law: str, drafter: CausalModel) -> Foresight:
    cells = [
        TrialCell(surface=surface, batch=1, tokens=tokens, ms=base_ms + row_ms * tokens)
        for surface, (base_ms, row_ms) in enumerate(LAWS[law])
        for tokens in (1, 2, 4, 8, 16, 32, 64)
    ]
    return Foresight(trial=ForwardTrial(cells=tuple(cells)), drafters=(drafter,))


def recorded(
    effort: RecordingBudget,
    law: str,
    machine: Machine,
    models: tuple[CausalModel, CausalModel],
    requests: tuple[Request, ...],
) -> tuple[AcceptanceTrace, list[str]]:
    """Record by a machine's law; return the drafter's trace and what was reported."""
    machine.laws = {id(model): own for model, own in zip(models, LAWS[law], strict=True)}
    places = Models(target=family_folder() / "target", drafters={"small": family_folder() / "small"})
    asked = ProfileRequest(models=places, prompts=[Prompt(text=text) for text in TEXTS], batches=(1,))
    family = Family(target=models[0], drafters={"small": models[1]})
    said: list[str] = []
    found = record_workloads(
        [Workload(request=asked, requests=requests)],
        identify_all(places),
        family,
        replace(effort, clock=machine),
        MemoryJournal(),
        lambda what, share: said.append(what),
    )
    return found.traces[0], said


@pytest.mark.parametrize("law", [law for law in LAWS if law != "head"])
def test_recording_takes_what_was_foretold_and_ends_by_its_share_with_the_fewest_texts(
    law: str, machine: Machine, models: tuple[CausalModel, CausalModel], requests: tuple[Request, ...]
) -> None:
    foresight = foresight_of(law, models[1])
    effort = foresight.effort(LIMIT_S, FEWEST, [requests])
    trace, _ = recorded(effort, law, machine, models, requests)
    assert machine.now_s == pytest.approx(foresight.seconds(requests, effort), rel=0.25)
    assert len(trace.prompts) >= FEWEST
    assert machine.now_s <= 1.1 * max(LIMIT_S, foresight.least_s(requests, effort))
    assert len(trace.prompts) == {"fast": COUNT, "slowest": LEAST_AT_ONCE}.get(law, len(trace.prompts))


@pytest.mark.parametrize("kind", ["head", "recycling"])
def test_what_the_target_reads_for_a_drafter_is_foretold(
    kind: str,
    machine: Machine,
    models: tuple[CausalModel, CausalModel],
    readers: dict[str, CausalModel],
    requests: tuple[Request, ...],
) -> None:
    foresight = foresight_of("head", readers[kind])
    effort = foresight.effort(LIMIT_S, FEWEST, [requests[:4]])
    recorded(effort, "head", machine, (models[0], readers[kind]), requests[:4])
    assert machine.now_s == pytest.approx(foresight.seconds(requests[:4], effort), rel=0.25)


def test_nodes_that_are_looked_up_take_no_time(readers: dict[str, CausalModel], requests: tuple[Request, ...]) -> None:
    effort = RecordingBudget(limit_s=1e9, fewest_texts=FEWEST)
    seconds = [foresight_of("middling", readers[kind]).seconds(requests, effort) for kind in ("recycling", "head")]
    assert 3.0 * seconds[0] < seconds[1]


def test_rich_trees_are_tried_where_kernels_are_compiled_first(
    machine: Machine, models: tuple[CausalModel, CausalModel], requests: tuple[Request, ...]
) -> None:
    machine.laws, machine.compiling_s = {id(models[1]): (0.5, 0.1)}, 1000.0
    assert richest(models[1], machine, requests[0]) == recipe_of("standard")


def test_rich_trees_of_a_head_are_tried_however_slow_its_target_is(
    machine: Machine, models: tuple[CausalModel, CausalModel], readers: dict[str, CausalModel],
    requests: tuple[Request, ...],
) -> None:  # fmt: skip
    head = readers["head"]
    machine.laws = {id(models[0]): (1500.0, 400.0), id(head): (0.5, 0.1)}
    assert richest(head, machine, requests[0]) == recipe_of("standard")


def richest(drafter: CausalModel, machine: Machine, request: Request) -> Recipe:
    """Return the recipe that is chosen for 1000 positions in 100 s."""
    effort, text = RecordingBudget(limit_s=1.0, fewest_texts=1, clock=machine), tuple(range(4, 28))
    return effort.recipes({"own": drafter}, [(request, text)], 100.0, 1000, MemoryJournal())["own"]


def test_prompts_that_end_at_once_in_the_first_group_are_passed_over(
    machine: Machine, models: tuple[CausalModel, CausalModel], requests: tuple[Request, ...]
) -> None:
    asked = tuple(replace(request, max_new_tokens=1) for request in requests[:3]) + requests[3:6]
    effort = RecordingBudget(limit_s=1e9, fewest_texts=FEWEST, at_once=LEAST_AT_ONCE)
    trace, _ = recorded(effort, "fast", machine, models, asked)
    assert [prompt.prompt for prompt in trace.prompts] == [request.prompt for request in requests[3:6]]


def test_a_workload_whose_prompts_all_end_at_once_is_refused(
    machine: Machine, models: tuple[CausalModel, CausalModel], requests: tuple[Request, ...]
) -> None:
    asked = tuple(replace(request, max_new_tokens=1) for request in requests[:6])
    effort = RecordingBudget(limit_s=1e9, fewest_texts=FEWEST, at_once=LEAST_AT_ONCE)
    with pytest.raises(RequestError, match="ends nearly every prompt"):
        recorded(effort, "fast", machine, models, asked)


def test_behind_the_first_texts_the_time_left_is_told_anew(
    machine: Machine, models: tuple[CausalModel, CausalModel], requests: tuple[Request, ...]
) -> None:
    short = tuple(replace(request, max_new_tokens=8) for request in requests)
    effort = replace(foresight_of("fast", models[1]).effort(1e9, FEWEST, [short]), at_once=4)
    _, said = recorded(effort, "fast", machine, models, short)
    told = [what for what in said if "more" in what]
    assert [what.split(",")[0] for what in told] == [f"recorded 4 of {COUNT} texts", f"recorded 8 of {COUNT} texts"]


@pytest.mark.parametrize(("spent_s", "more_s"), [(10.0, 30.0), (75.0, 20.0), (99.0, 10.0)])
def test_no_more_is_foretold_than_there_is_time_for(spent_s: float, more_s: float) -> None:
    assert RecordingBudget(limit_s=100.0, fewest_texts=1).more_s(spent_s, 10.0, 3, texts=16) == more_s


def test_the_fewest_texts_are_foretold_whatever_the_limit() -> None:
    assert RecordingBudget(limit_s=100.0, fewest_texts=18, at_once=4).more_s(99.0, 10.0, 9, texts=4) == 40.0


def test_what_is_told_is_what_is_foreseen_and_the_limit_without_a_trial() -> None:
    limits = TimeBudgets.of(60.0)
    assert "recording up to about 77 s" in limits.told(76.6)
    assert "recording up to about 120 s" in limits.told(0.0)
    assert "recording, however long it takes" in limits.told(None)
    assert Foresight(trial=ForwardTrial(), drafters=()).seconds([], RecordingBudget(limit_s=1.0, fewest_texts=1)) == 0.0
