"""Pages of counters: several engines, timestamps and `_created` lines, differences, and what shows a new start."""

from __future__ import annotations

import pytest

from spectune.engines.counters import NAMES, Counts, counts_of
from spectune.errors import MeasurementError

PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0 1760000000000
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 60.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_drafts_total{engine="0",model_name="other"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 320.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 200.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 70.0
vllm:generation_tokens_total{engine="0",model_name="m"} 380.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 12.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 8.0
"""


def test_a_page_is_read_of_one_model_over_all_of_its_engines() -> None:
    counts = counts_of(PAGE, NAMES["vllm"], "m")
    assert (counts.drafts, counts.drafted, counts.accepted) == (160.0, 320.0, 200.0)
    assert (counts.by_position, counts.generated, counts.answers) == ((130.0, 70.0), 380.0, 20.0)
    assert counts.rounds(380.0, 20.0) == 160.0
    assert counts.acceptance(160.0) == (130.0 / 160.0, 70.0 / 160.0)


def test_rounds_that_draft_nothing_are_rounds() -> None:
    counts = Counts(drafts=10.0, drafted=20.0, accepted=15.0, by_position=(8.0, 7.0))
    assert counts.rounds(generated=70.0, answers=5.0) == 50.0
    assert counts.acceptance(50.0) == (0.16, 0.14)
    assert counts.rounds(generated=20.0, answers=1.0) == 10.0  # accepted behind an answer's end


def test_two_pages_tell_what_was_counted_between_them() -> None:
    before = counts_of(PAGE, NAMES["vllm"], "m")
    assert before.since(Counts()) == before
    nothing = before.since(before)
    assert (nothing.drafts, nothing.by_position, nothing.generated) == (0.0, (0.0, 0.0), 0.0)


def test_a_counter_that_fell_is_a_new_start() -> None:
    with pytest.raises(MeasurementError, match="the counter of drafts fell from 3 to 1; the server started again"):
        Counts(drafts=1.0).since(Counts(drafts=3.0))


def test_a_page_without_drafts_is_plain_decoding() -> None:
    counts = counts_of("llamacpp:tokens_predicted_total 50\n", NAMES["llama.cpp"])
    assert (counts.drafts, counts.by_position, counts.generated, counts.answers) == (0.0, (), 50.0, None)


def test_a_missing_position_is_named() -> None:
    page = PAGE.replace('position="0"', 'position="2"')
    with pytest.raises(MeasurementError, match="lacks positions"):
        counts_of(page, NAMES["vllm"], "m")
