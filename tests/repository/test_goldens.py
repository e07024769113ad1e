"""Goldens: what this version computes, prints and answers is what `tests/data/goldens` holds.

`tests/goldens.py` says when they may be written anew. What other files hold already is not kept twice: the JSON Schemas
of the wire are `db/schemas`, compared with the records by `tests/db/exchange/test_exchange.py`;
what version 0320424 wrote is read and solved again by `test_version_0320424.py`; first lines of help texts stand in
`cli/commands.py` (`tests/cli/test_group.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.strategies import POLICY_KINDS

from ..goldens import DIGITS, GOLDENS, HERE, LIBRARIES, keep, kept, main, other_libraries, unlike
from ..support.golden_plans import ASKED

MOST_BYTES = 400_000  # of all of them


@pytest.mark.parametrize("name", GOLDENS)
def test_what_is_made_now_is_what_is_kept(name: str) -> None:
    golden = GOLDENS[name]
    told = [line for file, text in golden.make().items() for line in unlike(file, text, kept(file))]
    if told and (other := other_libraries(golden)):
        pytest.skip(f"written by other libraries: {other}")
    assert told == []


@pytest.mark.parametrize("name", ASKED)
def test_a_kept_plan_is_read_and_written_byte_for_byte(name: str) -> None:
    text = kept(f"plans/{name}.json.gz")
    assert text and plan_to_json(plan_from_json(text)) == text


def test_every_kind_of_policy_has_a_price_and_rounds() -> None:
    prices = [json.loads(kept(f"prices/{name}.json.gz")) for name in ASKED]
    priced = {each["kind"] for found in prices for cell in found["cells"] for each in cell["priced"]}
    replayed = {name.partition(":")[0] for family in json.loads(kept("replays.json.gz")).values() for name in family}
    assert priced == replayed == set(POLICY_KINDS)


def test_plans_are_of_several_batches_and_contexts_and_choose_several_kinds() -> None:
    cells = plan_from_json(kept("plans/made.json.gz")).cells
    assert (len({cell.batch for cell in cells}), len({cell.context for cell in cells})) == (3, 3)
    assert len({cell.policy.kind for cell in cells}) > 1


def test_no_file_is_left_over_and_together_they_are_small() -> None:
    files = {path.relative_to(HERE).as_posix(): path for path in HERE.rglob("*") if path.is_file()}
    plans = {f"{kind}/{name}.json.gz" for kind in ("plans", "prices") for name in ASKED}
    others = {"replays.json.gz", "sweeps.json.gz", "help.txt", "json_keys.txt", "openapi.json.gz", "endpoint.txt"}
    assert {*files} == {*plans, *others, LIBRARIES}
    assert sum(path.stat().st_size for path in files.values()) < MOST_BYTES


@pytest.mark.parametrize(
    ("found", "expected", "told"),
    [
        ('{"a": [1, 2.5]}', '{"a": [1,2.5]}', []),
        ('{"a": 0.1234567890123}', '{"a": 0.1234567890124}', []),
        ('{"a": 0.12345678902}', '{"a": 0.12345678901}', [".a: 0.12345678902 instead of 0.12345678901"]),
        ('{"a": 1.0}', '{"a": 1}', [".a: 1.0 instead of 1"]),
        ('{"a": true}', '{"a": 1}', [".a: True instead of 1"]),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', ["top: keys ['a', 'b'] instead of ['b', 'a']"]),
        ('{"a": [1, 2]}', '{"a": [1]}', [".a: 2 entries instead of 1"]),
        ('{"a": "x"}', '{"a": "y"}', [".a: 'x' instead of 'y'"]),
    ],
)
def test_values_are_compared_to_12_digits_and_everything_else_exactly(
    found: str, expected: str, told: list[str]
) -> None:
    assert unlike("x.json", found, expected) == [f"x.json: {line}" for line in told]
    assert DIGITS == 12


def test_texts_are_compared_byte_for_byte() -> None:
    assert unlike("help.txt", "a\nb\n", "a\nb\n") == []
    assert unlike("help.txt", "a\nb \n", "a\nb\n")[-2:] == ["help.txt: -b", "help.txt: +b "]
    assert unlike("help.txt", "a\r\n", "a\n") == ["help.txt: the ends of lines differ"]
    assert unlike("help.txt", "a\n", "") != []


def test_only_what_differs_is_written_anew(tmp_path: Path) -> None:
    for name in ("help.txt", "json_keys.txt"):
        keep(name, "another\n", tmp_path)
    told = CliRunner().invoke(main, ["help", "--folder", str(tmp_path)])
    assert told.exit_code == 1 and "-another" in told.output and kept("help.txt", tmp_path) == "another\n"
    written = CliRunner().invoke(main, ["help", "--write", "--folder", str(tmp_path)])
    assert written.exit_code == 0 and written.output.endswith("help.txt: written\n")
    assert kept("help.txt", tmp_path).startswith("$ spectune --help\n")
    assert kept("json_keys.txt", tmp_path) == "another\n"
    assert CliRunner().invoke(main, ["help", "--folder", str(tmp_path)]).output == ""
