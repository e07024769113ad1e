"""Prometheus' text: a parser written from its description reads back what was counted."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spectune.runtime.watch.prometheus import MetricFamily, exposition
from spectune.runtime.watch.watch import Watch

from ...support.watched_rounds import choice_of, drafting_plan, round_of

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:\\.|[^"\\])*)"(?:,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parsed(text: str) -> Samples:
    """Return every sample of a text, by name and labels; each belongs to the family announced last."""
    assert text.endswith("\n")
    family, samples, families = "", Samples(), []
    for line in text[:-1].split("\n"):
        if announced := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            family = announced[1]
            families.append(family)
        elif not re.match(rf"# HELP {NAME} ", line):
            found = SAMPLE.fullmatch(line)
            assert found and found[1] == family, line
            samples[found[1], labels_of(found[2] or "")] = float(found[3])
    assert len(families) == len(set(families))
    return samples


def labels_of(text: str) -> frozenset[tuple[str, str]]:
    """Return the labels between two braces, nothing left over."""
    found = list(LABEL.finditer(text))
    assert "".join(one[0] for one in found) == text
    return frozenset((one[1], re.sub(r"\\.", lambda escape: ESCAPES[escape[0]], one[2])) for one in found)


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_any_number_come_back(label: str, value: float) -> None:
    family = MetricFamily(name="spectune_x", kind="gauge", about='a "\\"\nb', samples=[({"label": label}, value)])
    assert parsed(exposition([family])) == {("spectune_x", frozenset({("label", label)})): value}


def test_a_family_without_samples_is_left_out() -> None:
    assert exposition([MetricFamily(name="spectune_x", kind="gauge", about="", samples=[])]) == ""


def test_what_a_watch_counted_is_told_by_cell_and_part() -> None:
    choice = replace(choice_of(drafting_plan()), reason='a "quoted"\nreason')
    watch = Watch(choice)
    for kept in ([1], [3], [4]):
        watch.note(round_of(watch.schedule(1, 100), kept, 8.0))
    samples = parsed(watch.prometheus())
    cell = {("batch", "1"), ("context", "100"), ("way", "planned"), ("policy", "chain of 3"), ("drafter", "small")}

    def told(name: str, **more: str) -> float:
        return samples[f"spectune_{name}", frozenset({*cell, *more.items()})]

    assert (told("tokens_total"), told("rounds_total"), told("sequence_rounds_total")) == (8, 3, 3)
    assert [told("accepted_total", depth=depth) for depth in "123"] == [2, 2, 1]
    parts = [told("round_seconds_total", part=part) for part in ("draft", "verify", "host")]
    assert parts == [0.006, 0.012, 0.006]
    assert any(("reason", 'a "quoted"\nreason') in labels for name, labels in samples if name == "spectune_plan_info")


def test_without_a_plan_and_rounds_there_is_only_the_reason() -> None:
    samples = parsed(Watch(choice_of(None)).prometheus())
    assert samples == {
        ("spectune_plan_info", frozenset({("source", "none"), ("reason", "a test")})): 1.0,
        ("spectune_events_total", frozenset()): 0.0,
    }
