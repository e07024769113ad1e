"""The pages of docs/reference say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spectune.engines.table import RUNNING
from spectune.planner.plans.document import RARE
from spectune.profiler.records.role import DRAFT_ROLES, READ, RESUME, ROLE
from spectune.service.text.asked import AskedChat, AskedCompletion

from ..goldens import GOLDENS, other_libraries
from ..reference import PAGES, TABLES, between
from .test_floors import FLOOR

ROOT = Path(__file__).parents[2]
CODE = ("cli", "db", "demo", "engines", "planner", "profiler", "report", "runtime", "service", "training", "tuning")
SCHEMA: dict[str, Any] = json.loads((ROOT / "db" / "schemas" / "plan.json").read_text())["$defs"]
STORED = {"PlanSource", "SharedEvent", "SharedOutcome"}  # of a store's file, around the plan
HEADLINE = {"lossy", "drafters", "predicted_tokens_per_s", "interval", "predicted_speedup"}  # of a cell, for readers
VARIABLE = re.compile(r"\bSPECTUNE_[A-Z_]+\b")


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def in_code(text: str) -> set[str]:
    """Return what stands between backticks, less fenced blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text)))


def first_cells(text: str) -> set[str]:
    """Return what the first cells of a page's tables have in code."""
    return {name for line in text.splitlines() if line.startswith("| `") for name in in_code(line.split(" | ")[0])}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_its_code_makes(name: str) -> None:
    if name == "routes" and (other := other_libraries(GOLDENS["openapi"])):
        pytest.skip(f"written by other libraries: {other}")
    file, make = TABLES[name]
    assert between(page(file), name) == make(), "run: python -m tests.reference --write"


def test_every_variable_of_the_environment_is_listed_and_no_other() -> None:
    files = [file for folder in CODE for file in (ROOT / folder).rglob("*.py")]
    read = {name for file in files for name in VARIABLE.findall(file.read_text())}
    assert set(VARIABLE.findall(page("environment.md"))) == read


def sections() -> dict[str, set[str]]:
    """Return the keys that the page has for each record, by its name."""
    text = page("plan-json.md")
    found = {
        name: first_cells(section)
        for name, section in re.findall(r"(?ms)^## [^\n]*\(`(\w+)`\)\n(.*?)(?=^## |\Z)", text)
    }
    found |= {name: in_code(keys) for name, keys in re.findall(r"(?m)^\| `([A-Z]\w+)` \| (.*) \|$", text)}
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| `(\w+Policy)` \| (.*) \|$", text)
    return found | {name: in_code(keys) | {"kind"} for _, name, keys in rows}


def test_every_record_of_a_plan_is_listed() -> None:
    assert set(sections()) == set(SCHEMA) - STORED


@pytest.mark.parametrize("name", sorted(set(SCHEMA) - STORED))
def test_every_key_of_a_record_is_listed_and_no_other(name: str) -> None:
    own = set(SCHEMA[name]["properties"])
    assert sections()[name] == (own | HEADLINE if name == "PlanCell" else own)


def test_a_policy_is_listed_by_its_kind() -> None:
    rows = dict(re.findall(r"(?m)^\| `([a-z0-9-]+)` \| `(\w+Policy)` \|", page("plan-json.md")))
    assert rows == {
        record["properties"]["kind"]["const"]: name for name, record in SCHEMA.items() if name.endswith("Policy")
    }


def test_keys_that_a_plan_may_lack_are_named() -> None:
    (sentence,) = re.findall(r"(?m)^(.*) are left out where they are null\.$", page("plan-json.md"))
    assert in_code(sentence) == set(RARE)


def test_roles_are_listed_and_are_roles() -> None:
    roles = first_cells(page("glossary.md").partition("| role of a forward |")[2])
    assert {"verify", "prefill", READ, RESUME, *DRAFT_ROLES} <= roles
    assert not [role for role in roles if not ROLE.fullmatch(re.sub(r":[A-Z]+$", ":1", role))]


def test_engines_that_are_measured_themselves_are_listed() -> None:
    start = "`spectune profile --engine NAME` measures an engine itself, on a CPU: "
    sentence = page("support-matrix.md").partition(start)[2].partition("\n")[0]
    assert sorted(re.findall(r"[\w.]*\w", sentence.lower().replace(" and ", ", "))) == sorted(RUNNING)


def test_every_floor_is_a_row_of_the_folders() -> None:
    rows = re.findall(r"(?m)^\| (\d) \| `(\w+)[./]", (ROOT / "docs" / "dev" / "folders.md").read_text())
    assert {folder: int(floor) for floor, folder in rows} == FLOOR


def test_the_endpoint_s_paths_are_listed() -> None:
    golden = (ROOT / "tests" / "data" / "goldens" / "endpoint.txt").read_text()
    paths = re.findall(r"(?m)^(GET|POST)[A-Z ]* (/\S+)$", golden)
    assert len(paths) > 4
    assert {" ".join(path) for path in paths} <= in_code(page("http.md"))


@pytest.mark.parametrize("kind", [AskedCompletion, AskedChat])
def test_the_endpoint_s_fields_are_listed(kind: type[AskedCompletion | AskedChat]) -> None:
    assert set(kind.model_fields) <= in_code(page("http.md"))
