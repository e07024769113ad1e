"""How fast a text came is told beside what its plan promises, where that promises anything about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.cli.run import Pace
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.match import DeviceMatch, match_devices
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.engine.settings import Completion, GenerationSettings
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.plan_choice import Choice, plainly

from ..support.plans import plan_of
from ..support.synthetic import DEVICE

SETUP = StepConfig(policy=PlainPolicy())
HERE = DeviceMatch(grade="same")
PLANNED = Choice(plan=plan_of([(1, 100), (8, 100)]), source="this device", reason="", match=HERE)
GREEDY = GenerationSettings()


class Watch:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.noted: list[StepOutput] = []

    def note(self, done: StepOutput, /) -> None:
        self.noted.append(done)


def round_of(ms: float) -> StepOutput:
    return StepOutput(
        setup=SETUP,
        context=90,
        sequences=[0],
        kept=[1],
        verify_tokens=1,
        widths=(),
        uncached=0,
        finished=[],
        round_ms=ms,
    )


def told(*rounds_ms: float, tokens: int, choice: Choice = PLANNED, wanted: GenerationSettings = GREEDY) -> str:
    watch = Watch()
    pace = Pace(watch)
    for ms in rounds_ms:
        pace.note(round_of(ms))
    assert [done.round_ms for done in watch.noted] == list(rounds_ms)
    done = Completion(text="", tokens=tuple(range(tokens)), rounds=len(rounds_ms), finish_reason="length")
    return pace.told(done, wanted, choice)


def test_a_text_is_told_with_its_speed_and_what_is_planned() -> None:
    assert told(8.0, 10.0, 12.0, tokens=7) == (
        "7 tokens in 3 rounds, 2.00 a round behind the first: about 200 tokens/s; planned are 100 (90 to 110) over all "
        "texts of workload made up"
    )


def test_a_round_in_which_something_was_compiled_counts_as_three() -> None:
    assert "about 100 tokens/s" in told(10.0, 10.0, 10.0, 10.0, 5000.0, tokens=8)


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_text_of_one_token_has_no_speed(tokens: int) -> None:
    assert told(10.0, tokens=tokens) == told(tokens=5) == ""


@pytest.mark.parametrize(
    "choice",
    [
        plainly("none"),
        replace(PLANNED, match=match_devices(DEVICE, replace(DEVICE, driver="other"))),
        replace(PLANNED, dtype="bfloat16"),
        replace(PLANNED, plan=plan_of([(8, 100)])),
        replace(PLANNED, substitutes=(((1, 100), SETUP),)),
    ],
    ids=["no plan", "other settings", "another number format", "no cell of one text", "a drafter that is not here"],
)
def test_where_nothing_is_promised_nothing_is_told(choice: Choice) -> None:
    assert told(10.0, 10.0, tokens=5, choice=choice).endswith("about 200 tokens/s")


def test_a_plan_promises_nothing_at_another_temperature() -> None:
    assert told(10.0, 10.0, tokens=5, wanted=GenerationSettings(temperature=0.5)).endswith("about 200 tokens/s")
