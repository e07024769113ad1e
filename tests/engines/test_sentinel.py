"""The sentinel's prompts are alike in every start and met by no cache, and their readings are of prefill alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spectune.engines.load import Address
from spectune.engines.sentinel import LONG, PAIRS, SHORT, Reading, read_pace, sentinel_prompts
from spectune.engines.server import Server, ServerTimeouts, started
from spectune.engines.table import SERVERS

from ..support.fake_openai_server import FREE_WORDS, READ_MS
from ..support.metrics_pages import shown
from ..support.openai_program import VLLM


@pytest.fixture
def server() -> Iterator[Server]:
    with started(SERVERS["vllm"], VLLM, ServerTimeouts(start_s=30.0)) as running:
        yield running


def test_a_reading_is_what_long_prompts_take_to_be_read(server: Server) -> None:
    found = read_pace(server.address, {}, 0)
    assert found.words == LONG[1]  # the shorter ones are read in less than 100 ms
    assert len(found.long_ms) == len(found.short_ms) == PAIRS
    assert found.ms == pytest.approx(READ_MS * (LONG[1] + 4 - FREE_WORDS), rel=0.3)
    assert read_pace(server.address, {}, 1, words=LONG[0]).words == LONG[0]


def test_prompts_that_are_read_as_fast_as_short_ones_are_no_reading() -> None:
    assert Reading(words=96, long_ms=(9.0, 30.0, 9.1), short_ms=(8.0, 8.2, 8.1)).ms is None
    assert Reading(words=96, long_ms=(29.0, 30.0, 90.0), short_ms=(8.0, 9.0, 10.0)).ms == 21.0
    assert Reading(words=96).ms is None


def test_a_server_that_answers_nothing_is_asked_once() -> None:
    with shown(lambda: "") as (url, asked):
        assert read_pace(Address(url=url), {}, 0) == Reading(words=LONG[0])
    assert asked == ["POST /v1/completions"]


def test_no_two_prompts_of_a_start_begin_alike_and_all_starts_read_the_same() -> None:
    prompts = [prompt.text for place in range(4) for prompt in sentinel_prompts(place, LONG[0])]
    assert len({text.partition(" pace:")[0] for text in prompts}) == len(prompts) == 4 * 2 * PAIRS
    assert prompts[: 2 * PAIRS] == [prompt.text for prompt in sentinel_prompts(0, LONG[0])]
    assert {len(text.split()) for text in prompts[::2]} == {LONG[0] + 4}
    assert {len(text.split()) for text in prompts[1::2]} == {SHORT + 4}
