"""Devices, models, measurements and host times: what they refuse and what they say of themselves."""

from __future__ import annotations

import math
import random
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from spectune.errors import DeviceError, MeasurementError, ModelError
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead, joined

CPU = Device(kind="cpu", name="Test CPU", index=0, memory_bytes=2**34, cores=4, threads=2, isa=("avx2",))
GPU = Device(kind="cuda", name="Test GPU", index=0, memory_bytes=2**36, uuid="GPU-1", power_limit_w=700.0)
MODEL = ModelIdentity(
    name="toy", weights_hash="a" * 64, parameters=7, config_hash="b" * 64, tokenizer_hash="", location="/models/toy"
)


def measured(*repeats_ms: float) -> Measurement:
    return Measurement(batch=1, context_tokens=0, tokens=1, repeats_ms=repeats_ms)


def sample(draft_forwards: int, nodes: int, *host_ms: float) -> OverheadSample:
    return OverheadSample(kind="chain", batch=1, draft_forwards=draft_forwards, nodes=nodes, host_ms=host_ms)


def overhead(*samples: OverheadSample) -> RoundOverhead:
    return RoundOverhead(device="d", target="t", dtype="float32", samples=samples)


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CPU.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "change", [{"kind": "tpu"}, {"name": ""}, {"index": -1}, {"memory_bytes": 0}, {"threads": None}]
)
def test_an_impossible_device_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DeviceError):
        replace(CPU, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"threads": 1}, {"libraries": (("torch", "9.9"),)}, {"isa": ("avx2", "avx512f")}, {"memory_bytes": 2**35}],
)
def test_what_changes_a_measurement_changes_the_fingerprint(change: dict[str, object]) -> None:
    assert replace(CPU, **change).fingerprint != CPU.fingerprint  # type: ignore[arg-type]


def test_a_fingerprint_is_sixteen_hex_digits_and_the_same_every_time() -> None:
    assert len(CPU.fingerprint) == 16
    assert int(CPU.fingerprint, 16) == int(replace(CPU).fingerprint, 16)


def test_a_gpu_keeps_its_fingerprint_when_its_index_moves() -> None:
    assert replace(GPU, index=3).fingerprint == GPU.fingerprint


def test_two_gpus_of_one_model_share_the_kind_but_not_the_fingerprint() -> None:
    twin = replace(GPU, uuid="GPU-2", driver="999.1", libraries=(("torch", "9.9"),))
    assert (twin.kind_key, twin.fingerprint == GPU.fingerprint) == (GPU.kind_key, False)


def test_a_device_label_names_the_place_it_is_addressed_by() -> None:
    assert GPU.label == "Test GPU (cuda:0, 64 GiB)"
    assert CPU.label == "Test CPU (cpu, 4 cores, 2 threads)"


def test_a_model_is_keyed_by_its_weights_and_not_by_its_place() -> None:
    assert replace(MODEL, name="other", location="/elsewhere").key == MODEL.key == "a" * 16


@pytest.mark.parametrize("change", [{"weights_hash": "xyz"}, {"parameters": 0}, {"name": ""}, {"config_hash": "xyz"}])
def test_an_impossible_model_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        replace(MODEL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("repeats_ms", [(0.0,), (-1.0,), (math.nan,), (1.0, math.inf), ()])
def test_a_repeat_that_is_no_time_is_refused(repeats_ms: tuple[float, ...]) -> None:
    with pytest.raises(MeasurementError):
        measured(*repeats_ms)


@pytest.mark.parametrize("change", [{"batch": 0}, {"tokens": 0}, {"context_tokens": -1}, {"failure": "out of memory"}])
def test_an_impossible_cell_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        replace(measured(1.0), **change)  # type: ignore[arg-type]


def test_a_failed_cell_has_no_median() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=4096, failure="out of memory")
    with pytest.raises(MeasurementError, match="out of memory"):
        _ = failed.median_ms


@pytest.mark.parametrize("outliers", range(1, 5))
def test_tenfold_outliers_in_under_half_of_the_repeats_do_not_move_the_estimate(outliers: int) -> None:
    noise = random.Random(outliers)
    honest = [noise.uniform(0.98, 1.02) for _ in range(10 - outliers)]
    assert measured(*honest, *[10.0] * outliers).median_ms == pytest.approx(1.0, rel=0.02)


def test_the_drift_of_rounds_is_divided_out_of_the_estimate_but_not_of_the_repeats() -> None:
    cell = replace(measured(4.0, 4.0, 4.0, 2.0, 2.0), drift=(2.0, 2.0, 2.0, 1.0, 1.0))
    assert (cell.median_ms, cell.spread_ms) == (2.0, 0.0)
    assert cell.repeats_ms == (4.0, 4.0, 4.0, 2.0, 2.0)


@pytest.mark.parametrize("drift", [(1.0,), (1.0, 0.0), (1.0, math.nan)])
def test_a_drift_that_does_not_fit_the_repeats_is_refused(drift: tuple[float, ...]) -> None:
    with pytest.raises(MeasurementError, match="drift"):
        replace(measured(1.0, 1.0), drift=drift)


def test_the_spread_of_normal_noise_is_the_scatter_of_its_medians() -> None:
    noise = random.Random(1)
    sessions = [measured(*(noise.gauss(100.0, 5.0) for _ in range(41))) for _ in range(400)]
    scatter = np.std([session.median_ms for session in sessions])
    assert np.mean([session.spread_ms for session in sessions]) == pytest.approx(scatter, rel=0.15)


def test_one_repeat_says_nothing_about_its_spread() -> None:
    assert measured(1.0).spread_ms == math.inf


def test_what_drafts_without_a_model_has_a_constant_of_its_own_and_pays_for_its_nodes() -> None:
    def drawn(kind: str, nodes: int) -> float:
        return 0.3 + {"plain": 0.0, "lookup": 0.2, "cacheback": 0.6}[kind] + 0.05 * nodes

    shapes = [("plain", 1), ("lookup", 3), ("lookup", 9), ("cacheback", 6), ("cacheback", 24)]
    host = overhead(*(replace(sample(0, nodes, drawn(kind, nodes)), kind=kind) for kind, nodes in shapes))
    for kind, nodes in (("plain", 1), ("lookup", 21), ("cacheback", 8), ("cacheback", 48)):
        assert host.host_ms(kind, 1, 0, nodes) == pytest.approx(drawn(kind, nodes))


def test_host_time_recovers_the_lines_it_was_drawn_from() -> None:
    def drawn(kind: str, forwards: int, nodes: int) -> float:
        return 0.1 + {"chain": 0.05, "eagle2": 0.2}[kind] * forwards + 0.02 * nodes

    shapes = [("chain", 1, 2), ("chain", 4, 5), ("eagle2", 2, 6), ("eagle2", 5, 24)]
    host = overhead(*(replace(sample(f, n, drawn(kind, f, n)), kind=kind) for kind, f, n in shapes))
    assert host.host_ms("chain", 1, 7, 30) == pytest.approx(drawn("chain", 7, 30))
    assert host.host_ms("eagle2", 1, 1, 3) == pytest.approx(drawn("eagle2", 1, 3))


def hybrid_host_ms(kind: str, forwards: int, nodes: int) -> float:
    text = {"plain": 0.0, "suffix": 0.4, "hybrid": 0.4, "chain": 0.0}[kind]
    both = 0.3 if kind == "hybrid" and forwards else 0.0
    return 0.1 + text + both + {"hybrid": 0.1, "chain": 0.1}.get(kind, 0.0) * forwards + 0.02 * nodes


def test_a_hybrid_s_round_pays_for_asking_the_text_whether_or_not_a_drafter_ran() -> None:
    """Its samples are means of both ways, as an older profile's are."""
    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 4, 5)]
    shapes += [("hybrid", 1, 2), ("hybrid", 2, 6)]
    host = overhead(*(replace(sample(f, n, hybrid_host_ms(kind, f, n)), kind=kind) for kind, f, n in shapes))
    for forwards, nodes in ((0, 2), (0, 33), (1, 2), (4, 5)):
        assert host.host_ms("hybrid", 1, forwards, nodes) == pytest.approx(hybrid_host_ms("hybrid", forwards, nodes))
    assert host.host_ms("hybrid", 1, 0, 9) == pytest.approx(host.host_ms("suffix", 1, 0, 9))
    assert host.host_ms("hybrid", 1, 0, 9) > host.host_ms("plain", 1, 0, 9) + 0.3


def test_a_hybrid_whose_samples_asked_the_text_alone_costs_what_the_text_does() -> None:
    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("hybrid", 0, 4), ("hybrid", 0, 9)]
    host = overhead(*(replace(sample(f, n, hybrid_host_ms(kind, f, n)), kind=kind) for kind, f, n in shapes))
    assert host.host_ms("hybrid", 1, 0, 5) == pytest.approx(hybrid_host_ms("suffix", 0, 5))


def test_a_hybrid_none_of_whose_samples_ran_a_drafter_pays_for_one_like_a_chain() -> None:
    """As in profiles of texts that repeat themselves, and in older ones, whose means may hide the drafter."""

    def drawn(kind: str, forwards: int, nodes: int) -> float:
        return 0.2 + {"plain": 0.0, "suffix": 0.4, "hybrid": 0.4, "chain": 0.3 + 0.1 * forwards}[kind] + 0.02 * nodes

    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 5, 6), ("hybrid", 0, 4)]
    host = overhead(*(replace(sample(f, n, drawn(kind, f, n)), kind=kind) for kind, f, n in shapes))
    assert host.host_ms("hybrid", 1, 0, 9) == pytest.approx(host.host_ms("suffix", 1, 0, 9))
    asked = host.host_ms("hybrid", 1, 3, 9) - host.host_ms("hybrid", 1, 0, 9)
    assert asked == pytest.approx(0.3 + 0.1 * 3)


def test_a_hybrid_s_two_kinds_of_rounds_tell_what_its_drafter_costs() -> None:
    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 4, 5)]
    shapes += [("hybrid", 0, 3), ("hybrid", 0, 9), ("hybrid", 4, 5)]
    host = overhead(*(replace(sample(f, n, hybrid_host_ms(kind, f, n)), kind=kind) for kind, f, n in shapes))
    for forwards, nodes in ((0, 5), (1, 2), (4, 5)):
        assert host.host_ms("hybrid", 1, forwards, nodes) == pytest.approx(hybrid_host_ms("hybrid", forwards, nodes))


def test_a_hybrid_of_a_profile_without_the_text_s_own_rounds_still_has_host_time() -> None:
    shapes = [("plain", 0, 1), ("chain", 1, 2), ("chain", 4, 5), ("hybrid", 1, 2), ("hybrid", 4, 6)]
    host = overhead(*(replace(sample(f, n, 0.2 + 0.1 * f + 0.02 * n), kind=kind) for kind, f, n in shapes))
    assert host.host_ms("hybrid", 1, 4, 6) == pytest.approx(0.2 + 0.4 + 0.12)


def test_what_a_drafter_does_to_the_target_s_forward_is_no_cost_of_plain_rounds() -> None:
    """Every drafted round is longer by the same, whatever it drafts: a target out of the caches."""

    def drawn(kind: str, forwards: int, nodes: int) -> float:
        return 0.3 + (0.0 if kind == "plain" else 0.4) + 0.1 * forwards + 0.02 * (nodes - 1)

    shapes = [("plain", 0, 1), ("chain", 1, 2), ("chain", 8, 9), ("eagle2", 2, 6), ("eagle2", 5, 24)]
    host = overhead(*(replace(sample(f, n, drawn(kind, f, n)), kind=kind) for kind, f, n in shapes))
    assert host.host_ms("plain", 1, 0, 1) == pytest.approx(0.3)
    assert host.host_ms("chain", 1, 4, 5) == pytest.approx(drawn("chain", 4, 5))


def test_the_scatter_of_drafted_rounds_lengthens_no_plain_one() -> None:
    plain = replace(sample(0, 1, 0.3, 0.3, 0.3), kind="plain")
    drafted = [sample(1, 2, 0.9, 1.0, 2.0), sample(8, 9, 2.4, 2.5, 3.5)]
    host = overhead(plain, *drafted)
    assert host.host_ms("plain", 1, 0, 1) == pytest.approx(0.3)
    assert host.host_ms("chain", 1, 1, 2) > 1.1  # a median of 1.0, and some of what the slow one took more


def test_a_forward_that_grows_a_tree_is_not_cheaper_than_a_chain_s_whatever_its_noisy_samples_say() -> None:
    shapes = [("plain", 0, 1), ("chain", 1, 2), ("chain", 8, 9)]
    steady = [replace(sample(f, n, 0.5 + 0.2 * f + 0.02 * n), kind=kind) for kind, f, n in shapes]
    noisy = [replace(sample(2, 6, 2.0), kind="eagle2"), replace(sample(5, 24, 1.0), kind="eagle2")]
    lines = overhead(*steady, *noisy).lines(1)
    assert lines["eagle2"].forward_ms >= lines["chain"].forward_ms > 0.1


def test_a_hybrid_whose_model_grows_trees_pays_for_its_forwards_what_these_take_more_than_a_chain_s() -> None:
    def drawn(kind: str, forwards: int, nodes: int) -> float:
        return hybrid_host_ms("chain" if kind == "eagle2" else kind, forwards, nodes) + 0.15 * forwards * (
            kind == "eagle2"
        )

    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 4, 5)]
    shapes += [("hybrid", 0, 3), ("hybrid", 4, 5), ("eagle2", 2, 6), ("eagle2", 5, 24)]
    lines = overhead(*(replace(sample(f, n, drawn(kind, f, n)), kind=kind) for kind, f, n in shapes)).lines(1)
    assert lines["hybrid of eagle2"].at(2, 6) == pytest.approx(lines["hybrid"].at(2, 6) + 0.3)
    assert lines["hybrid of eagle2"].at(0, 6) == pytest.approx(lines["suffix"].at(0, 6))
    assert "hybrid over suffix trees" not in lines


@pytest.mark.parametrize("more_ms", [0.2, -0.06])
def test_a_hybrid_whose_text_drafts_trees_pays_for_asking_it_what_these_take_more_than_chains(more_ms: float) -> None:
    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 4, 5)]
    shapes += [("hybrid", 0, 3), ("hybrid", 4, 5)]
    told = [replace(sample(f, n, hybrid_host_ms(kind, f, n)), kind=kind) for kind, f, n in shapes]
    trees = [replace(sample(0, n, hybrid_host_ms("suffix", 0, n) + more_ms), kind="suffix-tree") for n in (6, 24)]
    lines = overhead(*told, *trees).lines(1)
    for forwards, nodes in ((0, 6), (3, 4)):
        apart = lines["hybrid over suffix trees"].at(forwards, nodes) - lines["hybrid"].at(forwards, nodes)
        assert apart == pytest.approx(more_ms, abs=1e-6)


def test_a_forward_of_a_whole_draft_may_take_less_than_one_that_is_timed_alone() -> None:
    """Then long chains take less than short ones beyond their forwards, and nobody else's rounds are shorter for it."""

    def drawn(kind: str, forwards: int, nodes: int) -> float:
        once = {"plain": 0.0, "suffix": 0.1, "hybrid": 0.1}.get(kind, 0.0) + (0.2 if forwards else 0.0)
        return 0.05 + once + {"chain": -0.04, "hybrid": -0.04, "cast": 0.03}.get(kind, 0.0) * forwards + 0.001 * nodes

    shapes = [("plain", 0, 1), ("suffix", 0, 3), ("suffix", 0, 9), ("chain", 1, 2), ("chain", 8, 9), ("cast", 5, 24)]
    shapes += [("hybrid", 0, 5), ("hybrid", 4, 5)]
    host = overhead(*(replace(sample(f, n, drawn(kind, f, n)), kind=kind) for kind, f, n in shapes))
    for kind, forwards, nodes in [*shapes, ("chain", 12, 13), ("hybrid", 2, 3)]:
        assert host.host_ms(kind, 1, forwards, nodes) == pytest.approx(drawn(kind, forwards, nodes))
    assert drawn("chain", 8, 9) < 0.0 < host.host_ms("plain", 1, 0, 1)


def test_rounds_in_which_no_drafter_runs_are_as_they_were_timed_last_whoever_was_there() -> None:
    """A profile of before roles were told, of a head alone, was taken for a model's; the next one is not."""
    old = [sample(1, 2, 9.0), sample(4, 5, 9.0)] + [
        replace(sample(0, 1, 5.0), kind=kind) for kind in ("plain", "suffix")
    ]
    new = [replace(each, role="head", host_ms=(each.host_ms[0] - 4.0,)) for each in old]
    both = joined([overhead(*new), overhead(*old)])
    assert both.roles(1) == ("head", "draft")
    assert [both.host_ms(kind, 1, 0, 1) for kind in ("plain", "suffix")] == pytest.approx([1.0, 1.0])
    assert both.host_ms("chain", 1, 1, 2) == pytest.approx(9.0)
    lines = both.lines(1, "head")
    assert [lines[kind].at(*shape) for kind, shape in (("plain", (0, 1)), ("chain", (1, 2)))] == pytest.approx(
        [1.0, 5.0]
    )


def test_how_far_samples_are_from_their_lines_is_no_large_share_of_what_is_next_to_nothing() -> None:
    shapes = [("plain", 0, 1, 0.1), ("chain", 1, 2, 0.2), ("chain", 4, 5, 0.001), ("chain", 8, 9, -0.2)]
    left = overhead(*(replace(sample(f, n, ms), kind=kind) for kind, f, n, ms in shapes)).residuals(1)
    assert len(left) == len(shapes) and max(left) < 2.0


def test_a_kind_with_noisy_samples_leans_on_the_others() -> None:
    shapes = [(kind, f, n) for kind in ("chain", "static", "talon") for f, n in ((1, 2), (2, 8), (5, 24))]
    steady = [replace(sample(f, n, 0.5 + 0.2 * f + 0.02 * n), kind=kind) for kind, f, n in shapes]
    small, large = sample(2, 6, 0.2), sample(5, 24, 2.1)  # a line of their own would start far below 0
    host = overhead(*steady, replace(small, kind="eagle2"), replace(large, kind="eagle2"))
    assert host.host_ms("eagle2", 1, 1, 2) > 0.3


def test_no_node_takes_less_than_none_even_where_the_samples_fall() -> None:
    host = overhead(sample(1, 10, 1.0), sample(1, 20, 0.1))
    assert host.host_ms("chain", 1, 1, 1000) >= 0.0


def test_a_repeat_may_be_negative_for_it_is_a_difference() -> None:
    assert sample(1, 2, -0.1, 0.3, 0.4).median_ms == 0.3


@pytest.mark.parametrize(("kind", "batch"), [("eagle2", 1), ("chain", 2)])
def test_an_unmeasured_kind_of_round_names_what_was_measured(kind: str, batch: int) -> None:
    with pytest.raises(MeasurementError, match=r"\[\('chain', 1\)\]"):
        overhead(sample(1, 2, 0.1)).host_ms(kind, batch, 1, 2)


@pytest.mark.parametrize(
    "change",
    [{"kind": ""}, {"batch": 0}, {"draft_forwards": -1}, {"nodes": -1}]
    + [{"host_ms": repeats} for repeats in ((), (math.nan,), (math.inf,))],
)
def test_an_impossible_overhead_sample_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        replace(sample(1, 2, 0.1), **change)  # type: ignore[arg-type]


def test_rounds_that_ran_ahead_of_the_host_say_nothing_of_those_that_wait_for_it() -> None:
    """The host of a GPU grows some drafts launch by launch; what that takes is no part of others' rounds."""
    ahead = [("plain", 0, 1, 0.0), ("suffix", 0, 3, 0.02), ("chain", 1, 2, 0.05), ("chain", 8, 9, 0.06)]
    ahead += [("eagle2", 5, 24, 0.08), ("hybrid", 1, 3, 0.07)]
    waiting = [("talon", 5, 24, 1.8), ("cast", 5, 24, 1.4), ("stack", 4, 8, 4.7), ("cacheback", 0, 14, 0.7)]
    first = overhead(*(replace(sample(f, n, ms), kind=kind, is_ahead=True) for kind, f, n, ms in ahead))
    others = tuple(replace(sample(f, n, ms), kind=kind) for kind, f, n, ms in waiting)
    both = replace(first, samples=first.samples + others)
    lines, alone = both.lines(1), first.lines(1)
    assert {kind: lines[kind] for kind in alone} == alone
    assert [lines[kind].at(f, n) for kind, f, n, _ in waiting] == pytest.approx([ms for *_, ms in waiting])
    stalls = replace(both, samples=(*both.samples[:-4], *(replace(s, host_ms=(*s.host_ms, 99.0, 1.0)) for s in others)))
    assert stalls.lines(1)["hybrid"] == lines["hybrid"]  # nor is what they vary by
    assert lines["hybrid of talon"].forward_ms >= lines["hybrid"].forward_ms
    assert len(both.residuals(1)) == len(both.samples)


def test_of_a_kind_some_of_whose_rounds_ran_ahead_those_alone_tell() -> None:
    told = [replace(sample(f, n, 0.1), is_ahead=True) for f, n in ((1, 2), (4, 5))]
    late = replace(sample(0, 3, 9.0), kind="hybrid")
    hybrid = replace(sample(2, 3, 0.1), kind="hybrid", is_ahead=True)
    found = overhead(*told, late, hybrid)
    assert found.lines(1) == overhead(*told, hybrid).lines(1) and len(found.residuals(1)) == 3
