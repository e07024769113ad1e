"""`spectune promote`, `retire` and `restore`: which plan counts, in a database and at a service alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import Store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan

from ..support.fresh_store import fresh_store
from ..support.plans import plan_of
from ..support.served_store import served_store

PLAN = plan_of([(1, 100)])
WHY = ("--reason", "tried it")


def keep(store: Store, plan: Plan = PLAN) -> int:
    return store.add_plan(
        plan_to_json(plan),
        device=plan.device.fingerprint,
        device_kind=plan.device.kind_key,
        target=plan.target.key,
        workload=plan.workload,
        temperature=plan.temperature,
    )


@pytest.fixture(params=["file", "service"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield where a store with two plans of one setup, and one of another, lies."""
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    with fresh_store(tmp_path, "served.db") as store:
        for plan in (PLAN, PLAN, replace(PLAN, workload="another")):
            keep(store, plan)
    if request.param == "file":
        yield str(tmp_path / "served.db")
    else:
        with served_store(tmp_path) as served:
            yield served.url


def typed(place: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--store", place])


def states(place: str) -> list[tuple[str, bool]]:
    """Return the state of each plan, and whether it counts."""
    rows: list[dict[str, Any]] = json.loads(typed(place, "list", "--json").stdout)["plans"]
    return [(row["state"], row["counts"]) for row in rows]


def shown(place: str) -> int:
    return int(json.loads(typed(place, "show", "--json").stdout)["id"])


def test_a_promoted_plan_counts_until_it_is_retired_and_restored_once_it_is_promoted_again(place: str) -> None:
    assert states(place) == [("kept", False), ("kept", True), ("kept", True)]
    for action, state, counting in (
        ("promote", ("promoted", True), 1),
        ("retire", ("retired", False), 2),
        ("restore", ("restored", False), 2),
        ("promote", ("promoted", True), 1),
    ):
        result = typed(place, action, "1", *WHY, "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["state"], told["counting"]) == (state[0], counting)
        assert states(place)[0] == state


def test_the_plan_promoted_last_counts(place: str) -> None:
    for plan in ("2", "1"):
        assert typed(place, "promote", plan, *WHY).exit_code == 0
    assert states(place) == [("promoted", True), ("promoted", False), ("kept", True)]


def test_a_setup_whose_plans_are_all_retired_has_none_that_counts(place: str) -> None:
    result = typed(place, "retire", "3", *WHY)
    assert result.stdout.startswith("plan 3 is retired\nno plan counts for target ")
    assert states(place)[2] == ("retired", False)


def test_without_a_number_the_plan_is_shown_that_counts_for_what_was_planned_last(place: str) -> None:
    assert shown(place) == 3
    typed(place, "retire", "3", *WHY)
    assert shown(place) == 2
    typed(place, "promote", "1", *WHY)
    assert shown(place) == 1
    for plan in ("1", "2"):
        typed(place, "retire", plan, *WHY)
    assert shown(place) == 3  # none counts: the newest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("promote", "9"), "there is no plan 9"),
        (("retire", "9"), "there is no plan 9"),
        (("restore", "1"), "only a retired plan can be restored"),
        (("show", "--id", "99999999999999999999"), ""),
    ],
)
def test_a_plan_that_is_not_there_or_not_retired_is_told_in_one_line(
    place: str, arguments: tuple[str, ...], words: str
) -> None:
    result = typed(place, *arguments, *(() if "show" in arguments else WHY))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ") and words in result.stderr and result.stderr.count("\n") == 1


def test_a_retired_plan_is_not_promoted(place: str) -> None:
    typed(place, "retire", "1", *WHY)
    result = typed(place, "promote", "1", *WHY)
    assert result.exit_code == 1 and "restore it first" in result.stderr


def test_the_reason_and_who_gave_it_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    with fresh_store(tmp_path) as store:
        keep(store)
        typed(str(tmp_path / "store.db"), "promote", "1", *WHY)
        assert [(each.by, each.reason) for each in store.plan_events(1)] == [("somebody", "tried it")]


def test_a_user_without_a_name_decides_under_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nobody)
    with fresh_store(tmp_path) as store:
        keep(store)
        typed(str(tmp_path / "store.db"), "promote", "1", *WHY)
        assert store.plan_events(1)[0].by.startswith("user ")


def test_a_reason_must_be_given_and_no_store_is_made(tmp_path: Path) -> None:
    assert typed(str(tmp_path / "store.db"), "promote", "1").exit_code == 2
    result = typed(str(tmp_path / "store.db"), "promote", "1", *WHY)
    assert result.exit_code == 1 and "there is no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []
