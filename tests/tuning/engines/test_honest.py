"""What would mislead in a comparison of servers is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spectune.engines.answers import LoadResult, RequestResult
from spectune.engines.bundle import Trial
from spectune.engines.counters import Counts
from spectune.engines.load import SamplingParams, closed_loop
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.server_engine import Start
from spectune.engines.table import SERVERS
from spectune.errors import RequestError
from spectune.planner.engines.served import PLAIN
from spectune.profiler.prompt import Prompt
from spectune.tuning.engines.honest import MANY, named, shorter_than_traffic, unsure, warnings_before, warnings_behind
from spectune.tuning.engines.look import look
from spectune.tuning.engines.tuned_server import ServerJob

from ...support.openai_program import VLLM, texts

GREEDY = SamplingParams(max_tokens=32)
JOB = ServerJob(
    engine=SERVERS["llama.cpp"],
    command=("llama-server", "-np", "4"),
    prompts=texts(32),
    sampling=GREEDY,
    concurrencies=(1, 4),
    requests=16,
    longest=8,
)


def drawn(seed: int) -> Prompt:
    """Return words of random letters, as random tokens read."""
    letters = np.random.default_rng(seed).integers(ord("a"), ord("z"), size=(20, 8), endpoint=True)
    return Prompt(text=" ".join("".join(map(chr, row)) for row in letters))


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
        ({"prompts": [drawn(number) for number in range(32)]}, "is no words"),
        ({"prompts": [replace(one, later=("and now?",)) for one in texts(32)]}, "32 later turns"),
        ({"sampling": replace(GREEDY, ignore_eos=True)}, "answers go on behind their ends"),
        ({"concurrencies": (4, 8), "requests": 16}, "decodes 4 at once, and 8 are sent"),
        ({"command": ("llama-server", "--temp", "0.7")}, "sets the temperature 0.7, and requests ask for 0"),
        ({"command": ("vllm", "serve", "--override-generation-config", '{"temperature": 1}')}, "the temperature 1,"),
    ],
)
def test_what_misleads_is_said_before(changed: dict[str, Any], expected: str) -> None:
    assert expected in said(**changed)


def test_loads_that_do_not_fill_a_concurrency_are_refused() -> None:
    with pytest.raises(RequestError, match="2 requests do not fill 4 at once; give --requests 8 or more"):
        replace(JOB, requests=2)


@pytest.mark.parametrize("command", [("llama-server", "--temp", "0"), ("vllm", "--override-generation-config", "{")])
def test_a_command_of_the_same_temperature_or_of_none_is_not_warned_of(command: tuple[str, ...]) -> None:
    assert "temperature" not in said(command=command)


def trial(
    source: str,
    digests: Sequence[str],
    *,
    counted: float = 320.0,
    share: float = 0.1,
    cached: float | None = None,
    ms: float = 9.0,
) -> Trial:
    answers = tuple(
        RequestResult(prompt=number, ttft_ms=1.0, e2e_ms=ms, tokens=32, digest=one)
        for number, one in enumerate(digests)
    )
    return Trial(
        start=Start.of(source, {1: 0 if source == PLAIN else 3}),
        concurrency=1,
        load=LoadResult(concurrency=1, answers=answers, wall_s=1.0, client_share=share),
        counts=Counts(generated=counted, prompted=None if cached is None else 1000.0, cached=cached),
    )


def behind(*trials: Trial, sampling: SamplingParams = GREEDY) -> str:
    return "\n".join(warnings_behind(named(trials), sampling))


def test_what_misleads_is_said_behind() -> None:
    plain = trial(PLAIN, "abcdefghij")
    assert behind(plain, trial("small", "abcdefghij")) == ""
    assert "3 of 10 greedy answers differ" in behind(trial("small", "xyzdefghij"), plain)
    assert behind(trial("small", "xyzdefghij"), plain, sampling=replace(GREEDY, temperature=0.8)) == ""
    assert "somebody else uses it" in behind(trial(PLAIN, "abcdefghij", counted=400.0))
    assert "the client used 70% of a core" in behind(trial(PLAIN, "abcdefghij", share=0.7))


@pytest.mark.parametrize(
    "text",
    [
        "快速的棕色狐狸跳过懒狗,然后继续在森林里寻找食物和水。",  # Chinese has no blanks
        "def add(first, second):\n    # return the sum of both\n    return first + second\n\n",
    ],
)
def test_prompts_of_other_writings_and_of_code_are_words(text: str) -> None:
    assert said(prompts=[Prompt(text=text * 4 + str(number)) for number in range(32)]) == ""


def test_prompts_shorter_than_traffic_are_said() -> None:
    traffic = Counts(prompted=120_000.0, answers=200.0)
    own = trial(PLAIN, "abcdefghij", cached=0.0)  # 1000 tokens of 10 prompts
    (line,) = shorter_than_traffic(traffic, named([own]))
    assert "the prompts have 100 tokens, and those that the server answered before 600" in line
    for other in (Counts(), Counts(prompted=30_000.0, answers=200.0), replace(traffic, answers=99.0)):
        assert list(shorter_than_traffic(other, named([own]))) == []
    assert list(shorter_than_traffic(traffic, named([trial(PLAIN, "abc")]))) == []  # the load's are not known


def test_a_server_that_runs_is_compared_with_the_traffic_that_it_had() -> None:
    long = [Prompt(text=f"{number} " + "a long prompt of many words " * 20) for number in range(MANY)]
    job = replace(JOB, engine=SERVERS["vllm"], concurrencies=(4,), requests=8, sampling=replace(GREEDY, max_tokens=8))
    with started(job.engine, VLLM, ServerTimeouts(start_s=30.0)) as server:
        fresh = look(job, server, lambda what, share: None)
        closed_loop(server.address, long, 20, SamplingParams(max_tokens=2))
        busy = look(job, server, lambda what, share: None)
    told = [any("answered before" in note for note in one.notes) for one in (fresh, busy)]
    assert told == [False, True]


def test_a_prefix_cache_that_is_warm_on_one_side_is_said() -> None:
    plain = trial(PLAIN, "abcdefghij", cached=20.0)
    assert behind(plain, trial("small", "abcdefghij", cached=100.0)) == ""
    warm = behind(plain, trial("small", "abcdefghij", cached=700.0))
    assert "held 70% of the prompts' tokens for small, 3 tokens at 1, and 2% for plain decoding at 1" in warm
    assert behind(plain, trial("small", "abcdefghij")) == ""  # not known


def test_a_clock_that_moves_is_said_where_one_start_ran_twice() -> None:
    plain, slower = (trial(PLAIN, "abcdefghij", ms=ms) for ms in (9.0, 11.0))
    assert "ran at 2909.1 and at 3555.6 tokens/s: the machine's pace moves" in behind(plain, slower)
    assert behind(plain, trial(PLAIN, "abcdefghij", ms=9.5)) == ""
    assert behind(plain, trial("small", "abcdefghij", ms=2.0)) == ""  # that is what drafts are for


def test_a_clock_that_moves_within_plain_decoding_is_said() -> None:
    def uneven(source: str) -> Trial:
        even = trial(source, "abcdefghij")
        answers = tuple(replace(one, e2e_ms=9.0 + 9.0 * (one.prompt % 2)) for one in even.load.answers)
        return replace(even, load=replace(even.load, answers=answers))

    assert "a token took 0.3 ms in some answers and 0.5 in others: the machine's pace moves" in behind(uneven(PLAIN))
    assert behind(uneven("small")) == ""  # how long drafts take hangs on the text


def test_too_few_prompts_for_a_claim_are_said_and_how_many_would_do() -> None:
    assert list(unsure(4, 1.10, (1.05, 1.15), 16)) == list(unsure(4, 0.9, (0.8, 1.0), 16)) == []
    (line,) = unsure(4, 1.05, (0.95, 1.15), 16)
    assert "a gain of 1.05 is not sure: 0.95 to 1.15 over 16 prompts; about 64 would tell" in line
