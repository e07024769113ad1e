"""What would mislead in a comparison of servers is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spectune.engines.answers import Answer, LoadResult
from spectune.engines.base import Start
from spectune.engines.bundle import Trial
from spectune.engines.counters import Counts
from spectune.engines.load import Sampling
from spectune.engines.table import ENGINES
from spectune.errors import RequestError
from spectune.planner.engines.served import PLAIN
from spectune.profiler.prompt import Prompt
from spectune.tuning.engines.honest import warnings_before, warnings_behind
from spectune.tuning.engines.tuned_server import ServerJob

from .openai_program import texts

GREEDY = Sampling(max_tokens=32)
JOB = ServerJob(
    engine=ENGINES["llama.cpp"],
    command=("llama-server", "-np", "4"),
    prompts=texts(32),
    sampling=GREEDY,
    concurrencies=(1, 4),
    requests=16,
    longest=8,
)


def said(**changed: Any) -> str:
    return "\n".join(warnings_before(replace(JOB, **changed)))


def test_a_good_load_is_not_warned_of() -> None:
    assert said() == ""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"prompts": [*texts(31), texts(1)[0]]}, "1 prompts are given twice"),
        ({"prompts": texts(31)}, "its prefix cache may be warm"),
        ({"requests": 8}, "8 requests a load are few"),
        ({"prompts": [Prompt(text=f"say {number}") for number in range(32)]}, "the prompts are short"),
        ({"prompts": [Prompt(text=f"{number:03d}" + "#7%!" * 40) for number in range(32)]}, "is no words"),
        ({"sampling": replace(GREEDY, ignore_eos=True)}, "answers go on behind their ends"),
        ({"concurrencies": (4, 8), "requests": 16}, "decodes 4 at once, and 8 are sent"),
    ],
)
def test_what_misleads_is_said_before(changed: dict[str, Any], expected: str) -> None:
    assert expected in said(**changed)


def test_loads_that_do_not_fill_a_concurrency_are_refused() -> None:
    with pytest.raises(RequestError, match="2 requests do not fill 4 at once; give --requests 8 or more"):
        replace(JOB, requests=2)


def trial(source: str, digests: Sequence[str], *, counted: float = 320.0, share: float = 0.1) -> Trial:
    answers = tuple(
        Answer(prompt=number, ttft_ms=1.0, e2e_ms=9.0, tokens=32, digest=one) for number, one in enumerate(digests)
    )
    return Trial(
        start=Start.of(source, {1: 0 if source == PLAIN else 3}),
        concurrency=1,
        load=LoadResult(concurrency=1, answers=answers, wall_s=1.0, client_share=share),
        counts=Counts(generated=counted),
    )


def behind(*trials: Trial, sampling: Sampling = GREEDY) -> str:
    return "\n".join(warnings_behind(trials, sampling))


def test_what_misleads_is_said_behind() -> None:
    plain = trial(PLAIN, "abcdefghij")
    assert behind(plain, trial("small", "abcdefghij")) == ""
    assert "3 of 10 greedy answers differ" in behind(trial("small", "xyzdefghij"), plain)
    assert behind(trial("small", "xyzdefghij"), plain, sampling=replace(GREEDY, temperature=0.8)) == ""
    assert "somebody else uses it" in behind(trial(PLAIN, "abcdefghij", counted=400.0))
    assert "the client used 70% of a core" in behind(trial(PLAIN, "abcdefghij", share=0.7))
