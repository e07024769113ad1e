"""Pages of counters: several engines, timestamps and `_created` lines, differences, and what shows a new start."""

from __future__ import annotations

import pytest

from spectune.engines.counters import Counts, counts_between, counts_of, falling, page_of, restart, since
from spectune.engines.table import COUNTERS
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
    counts = counts_of(page_of(PAGE), COUNTERS["vllm"], "m")
    assert (counts.drafts, counts.drafted, counts.accepted) == (160.0, 320.0, 200.0)
    assert (counts.by_position, counts.generated, counts.answers) == ((130.0, 70.0), 380.0, 20.0)
    assert counts.rounds(380.0, 20.0) == 160.0
    assert counts.acceptance(160.0) == (130.0 / 160.0, 70.0 / 160.0)


def test_rounds_that_draft_nothing_are_rounds() -> None:
    counts = Counts(drafts=10.0, drafted=20.0, accepted=15.0, by_position=(8.0, 7.0))
    assert counts.rounds(generated=70.0, answers=5.0) == 50.0
    assert counts.acceptance(50.0) == (0.16, 0.14)
    assert counts.rounds(generated=20.0, answers=1.0) == 10.0  # accepted behind an answer's end


BEFORE = page_of(PAGE)


def grown(**by_engine: float) -> str:
    """Return a later page on which the drafts of engines are others."""
    page = PAGE.replace("num_drafts_created", "num_drafts_made")
    for engine, drafts in by_engine.items():
        old = {"first": '"0",model_name="m"} 100.0 1760000000000', "second": '"1",model_name="m"} 60.0'}[engine]
        assert old in page
        page = page.replace(old, old.split(" ")[0] + f" {drafts} 1760000060.5")
    return page


def test_two_pages_tell_what_was_counted_between_them() -> None:
    whole = counts_of(BEFORE, COUNTERS["vllm"], "m")
    assert counts_between(BEFORE, {}, COUNTERS["vllm"], "m") == whole
    nothing = counts_between(BEFORE, BEFORE, COUNTERS["vllm"], "m")
    assert (nothing.drafts, nothing.by_position, nothing.generated) == (0.0, (0.0, 0.0), 0.0)
    later = page_of(grown(first=130.0, second=90.0))
    assert counts_between(later, BEFORE, COUNTERS["vllm"], "m").drafts == 60.0


def test_a_counter_that_fell_is_a_new_start_also_where_the_sum_over_engines_grew() -> None:
    later = page_of(grown(first=500.0, second=10.0))
    with pytest.raises(MeasurementError, match="fell from 60 to 10; the server started again in between"):
        counts_between(later, BEFORE, COUNTERS["vllm"], "m")
    assert restart(BEFORE, BEFORE, COUNTERS["vllm"]) == ""
    assert counts_of(since(later, BEFORE), COUNTERS["vllm"], "m").drafts == 410.0  # 400 more, and 10 since its start


def test_an_engine_that_is_gone_is_a_new_start_and_a_gauge_that_falls_is_none() -> None:
    without = page_of("\n".join(line for line in PAGE.splitlines() if 'engine="1"' not in line))
    assert "started again" in restart(without, BEFORE, COUNTERS["vllm"])
    gauge = 'vllm:num_requests_running{engine="0",model_name="m"}'
    assert restart(page_of(f"{gauge} 1\n"), page_of(f"{gauge} 7\n"), COUNTERS["vllm"]) == ""


def test_several_models_are_refused_unless_one_is_named() -> None:
    with pytest.raises(MeasurementError, match=r"counters are of several models \(m, other\); name one"):
        counts_of(BEFORE, COUNTERS["vllm"])


def test_of_several_models_the_one_that_is_asked_for_is_counted_whoever_drafts() -> None:
    """Only the other model drafts, so that drafts alone would tell of one model."""
    page = page_of(
        'vllm:generation_tokens_total{model_name="plain"} 50\n'
        'vllm:request_success_total{model_name="plain"} 2\n'
        'vllm:generation_tokens_total{model_name="fast"} 70\n'
        'vllm:spec_decode_num_drafts_total{model_name="fast"} 20\n'
        'vllm:spec_decode_num_accepted_tokens_total{model_name="fast"} 30\n'
    )
    plain, fast = (counts_of(page, COUNTERS["vllm"], model) for model in ("plain", "fast"))
    assert (plain.generated, plain.answers, plain.drafts, plain.accepted) == (50.0, 2.0, 0.0, 0.0)
    assert (fast.generated, fast.answers, fast.drafts, fast.accepted) == (70.0, None, 20.0, 30.0)
    with pytest.raises(MeasurementError, match=r"several models \(fast, plain\)"):
        counts_of(page, COUNTERS["vllm"])
    with pytest.raises(MeasurementError, match="counters are of fast, plain, none of alias; name one of these"):
        counts_of(page, COUNTERS["vllm"], "alias")


def test_vllm_s_n_grams_that_seldom_draft_count_all_rounds() -> None:
    """Of 100 rounds 20 found something to copy: acceptance is over all of them, and so are tokens of a round."""
    drafted = [(4, 3)] * 10 + [(4, 1)] * 5 + [(2, 0)] * 5
    rounds, answers = 100, 4
    accepted = sum(kept for _, kept in drafted)
    lines = [
        f"vllm:spec_decode_num_drafts_total {len(drafted)}",
        f"vllm:spec_decode_num_draft_tokens_total {sum(length for length, _ in drafted)}",
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}",
        f"vllm:generation_tokens_total {rounds + accepted + answers}",
        f"vllm:request_success_total {answers}",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} '
            f"{sum(kept > place for _, kept in drafted)}"
            for place in range(4)
        ),
    ]
    counts = counts_of(page_of("\n".join(lines)), COUNTERS["vllm"])
    assert counts.rounds(counts.generated or 0.0, counts.answers or 0.0) == rounds
    assert counts.acceptance(rounds) == (0.15, 0.1, 0.1, 0.0)
    assert sum(counts.acceptance(rounds)) * rounds == pytest.approx(accepted)


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 1.0])
def test_acceptance_that_falls_by_one_factor_is_found_by_its_sum(length: int, factor: float) -> None:
    wanted = [factor**place for place in range(1, length + 1)]
    assert falling(sum(wanted), length) == pytest.approx(wanted, abs=1e-9)


def test_a_page_without_drafts_is_plain_decoding() -> None:
    counts = counts_of(page_of("llamacpp:tokens_predicted_total 50\n"), COUNTERS["llama.cpp"])
    assert (counts.drafts, counts.by_position, counts.generated, counts.answers) == (0.0, (), 50.0, None)


def test_a_missing_position_is_named() -> None:
    page = PAGE.replace('position="0"', 'position="2"')
    with pytest.raises(MeasurementError, match="lacks positions"):
        counts_of(page_of(page), COUNTERS["vllm"], "m")
