"""A plan has one name in every command: its number, or the file that was written of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.db.store import Store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy

from ..support.priced_cells import PLAIN, cell_of, plan_with, priced
from ..support.synthetic import DEVICE, model

FIRST = plan_with(cell_of([PLAIN, priced(ChainPolicy(length=3), 2.5)], batch=1))
SECOND = plan_with(cell_of([PLAIN, priced(ChainPolicy(length=2), 2.25)], batch=1))
STRANGER = plan_with(cell_of([PLAIN, priced(ChainPolicy(length=1), 1.9)], batch=2))


def typed(folder: Path, *arguments: str) -> Result:
    return CliRunner(env={"SPECTUNE_STORE": str(folder / "store.db")}).invoke(main, arguments, terminal_width=200)


def shown(folder: Path, *arguments: str) -> int | None:
    """Return the number of the plan that `show` shows; None of a plan that has none."""
    result = typed(folder, "show", *arguments, "--json")
    assert result.exit_code == 0, result.output
    number: int | None = json.loads(result.stdout).get("id")
    return number


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder: a store with two plans, their files, and the file of a third."""
    monkeypatch.chdir(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_device(DEVICE)
        store.add_model(model("large"))
        for plan in (FIRST, SECOND):
            add(store, plan)
    for name, plan in {"first": FIRST, "second": SECOND, "stranger": STRANGER}.items():
        (tmp_path / f"{name}.json").write_text(plan_to_json(plan))
    return tmp_path


def add(store: Store, plan: Plan) -> None:
    store.add_plan(
        plan_to_json(plan),
        device=DEVICE.fingerprint,
        device_kind=DEVICE.kind_key,
        target=plan.target.key,
        workload=plan.workload,
        temperature=0.0,
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((), 2),
        (("plan",), 2),
        (("plan", "1"), 1),
        (("1",), 1),
        (("first.json",), 1),
        (("plan", "first.json"), 1),
        (("plan", "second.json"), 2),
        (("--plan", "1"), 1),
        (("--plan", "first.json"), 1),
        (("--id", "1"), 1),
        (("plan", "--id", "1"), 1),
        (("plan", "stranger.json"), None),
    ],
)
def test_show_takes_a_number_or_a_file(words: tuple[str, ...], number: int | None, folder: Path) -> None:
    assert shown(folder, *words) == number


def test_a_file_is_shown_where_there_is_no_store(folder: Path) -> None:
    (folder / "store.db").unlink()
    result = typed(folder, "show", "plan", "first.json")
    assert (result.exit_code, result.stdout.startswith("batch 1: ")) == (0, True)
    assert sorted(path.name for path in folder.iterdir()) == ["first.json", "second.json", "stranger.json"]


@pytest.mark.parametrize("name", [("1",), ("plan", "1"), ("first.json",), ("plan", "first.json"), ("--plan", "1")])
@pytest.mark.parametrize(("command", "state"), [("promote", "promoted"), ("retire", "retired")])
def test_decisions_take_a_number_or_a_file(command: str, state: str, name: tuple[str, ...], folder: Path) -> None:
    result = typed(folder, command, *name, "--reason", "measured", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["id"], facts["state"]) == (1, state)


@pytest.mark.parametrize("name", [("1",), ("plan", "1"), ("first.json",), ("--plan", "1")])
def test_a_retired_plan_is_restored_by_the_same_names(name: tuple[str, ...], folder: Path) -> None:
    typed(folder, "retire", "1", "--reason", "slow")
    assert typed(folder, "restore", *name, "--reason", "again").stdout.startswith("plan 1 is restored")


@pytest.mark.parametrize("name", [("1",), ("plan", "1"), ("first.json",), ("--plan", "1"), ("--plan", "first.json")])
def test_report_takes_a_number_or_a_file(name: tuple[str, ...], folder: Path) -> None:
    result = typed(folder, "report", *name, "-o", "report.html")
    assert result.exit_code == 0, result.output
    assert "<title>Plan 1" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "arguments",
    [("promote", "{}", "--reason", "x"), ("report", "{}", "-o", "r.html"), ("report", "--plan", "{}", "-o", "r")],
)
def test_a_file_of_no_plan_of_the_store_is_refused_with_the_list(arguments: tuple[str, ...], folder: Path) -> None:
    result = typed(folder, *(word.replace("{}", "stranger.json") for word in arguments))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "does not hold the plan of stranger.json; spectune list" in result.stderr


@pytest.mark.parametrize("command", [("show",), ("promote", "--reason", "x"), ("report", "-o", "report.html")])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (("plan", "absent.json"), "there is no such file"),
        (("plan", "0"), "numbered from 1"),
        (("plan", "1", "2"), "more than one plan"),
        (("plan", "1", "--plan", "2"), "named twice"),
    ],
)
def test_another_name_is_a_usage_error(
    command: tuple[str, ...], name: tuple[str, ...], words: str, folder: Path
) -> None:
    result = typed(folder, *command, *name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize("words", [("surface", "first.json"), ("trace", "1", "2"), ("model",), ("surface", "0")])
def test_surfaces_and_traces_have_numbers_alone(words: tuple[str, ...], folder: Path) -> None:
    assert typed(folder, "show", *words).exit_code == 2


def test_decisions_need_a_plan(folder: Path) -> None:
    result = typed(folder, "promote", "--reason", "x")
    assert result.exit_code == 2
    assert "Missing argument 'PLAN'" in result.stderr


def test_a_plan_begins_with_its_verdict_and_ends_with_its_fingerprints(folder: Path) -> None:
    lines = typed(folder, "show", "plan", "1").stdout.rstrip().splitlines()
    assert lines[0].startswith("batch 1: ") and " x (" in lines[0]
    assert [line.split()[0] for line in lines[-3:]] == ["device", "device_kind", "content_hash"]
    assert json.loads(typed(folder, "show", "plan", "1", "--json").stdout)["verdict"] == [lines[0]]
    assert DEVICE.fingerprint not in "\n".join(lines[:-3])
