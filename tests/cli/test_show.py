"""`spectune show --plot`: a picture beside the facts, or one line that says why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.measured import profile_shown
from spectune.cli.report import show
from spectune.db import open_store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import PublishedPrice
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.document import SurfaceDocument
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json

from ..support.drawn_pages import parsed
from ..support.priced_cells import PLAIN, cell_of, plan_with, priced
from ..support.synthetic import DEVICE, Language, SkilledDrafter, every_node, model, overhead, record, surface, texts

SURFACE = surface("large", "verify", lambda batch, context, tokens: 1.0 + batch * tokens, tokens=(1, 2, 4, 8))
LANGUAGE = Language(seed=1)
TRACE = record(SkilledDrafter(LANGUAGE, 0.7), texts(LANGUAGE, 2, lambda place: 6), every_node(2, 2))
PUBLISHED = PublishedPrice(name="their chain", drafter="small", tokens_per_s=400.0)
PLAN = plan_with(cell_of([PLAIN, priced(ChainPolicy(length=3), 2.5)], published=[PUBLISHED]))


def surface_key(timed: LatencySurface) -> SurfaceKey:
    return SurfaceKey(device=timed.device, model=timed.model, role=timed.role, regime=timed.regime, dtype=timed.dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a store that knows a device, two models, a surface, a trace and a plan."""
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_device(DEVICE)
        store.add_model(model("large"))
        store.add_model(model("small"))
        store.add_measurements(surface_key(SURFACE), SURFACE.measurements)
        store.add_trace(TRACE)
        store.add_plan(
            plan_to_json(PLAN),
            device=DEVICE.fingerprint,
            device_kind=DEVICE.kind_key,
            target=PLAN.target.key,
            workload=PLAN.workload,
            temperature=0.0,
        )
    return tmp_path


def shown(folder: Path, *arguments: str) -> Result:
    return CliRunner(env={"SPECTUNE_STORE": str(folder / "store.db")}).invoke(main, ["show", *arguments])


def test_a_surface_is_drawn_with_the_names_of_its_device_and_model(folder: Path) -> None:
    result = shown(folder, "surface", "--plot", str(folder / "surface.html"))
    assert result.exit_code == 0, result.output
    page = parsed((folder / "surface.html").read_text())
    assert page.all("h1")[0].text == "large: what one verify forward costs"
    assert page.all("p")[0].text == f"on {DEVICE.label}"
    assert len(page.all("g", "mark")) == len(SURFACE.measurements)


def test_a_surface_is_written_with_the_host_times_of_its_regime(folder: Path) -> None:
    with open_store(str(folder / "store.db")) as store:
        for ms, regime in ((0.5, SURFACE.regime), (0.25, "cuda-graph")):
            store.add_overhead(replace(overhead(ms), regime=regime))
    assert shown(folder, "surface", "-o", str(folder / "surface.json")).exit_code == 0
    document = from_json(SurfaceDocument, (folder / "surface.json").read_text())
    assert document.overhead == replace(overhead(0.5), regime=SURFACE.regime)


def test_without_a_number_the_target_s_surface_that_was_timed_last_is_shown(folder: Path) -> None:
    with open_store(str(folder / "store.db")) as store:
        (own,) = store.surface_rows()
        for key in (replace(own.key, regime="cuda-graph"), own.key, replace(own.key, role="draft")):
            store.add_measurements(key, SURFACE.measurements)
    facts = json.loads(shown(folder, "surface", "--json").stdout)
    assert (facts["id"], facts["role"], facts["cells"]) == (own.id, "verify", len(SURFACE.measurements))


def test_where_no_target_was_timed_the_surface_timed_last_is_shown(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_device(DEVICE)
        for role in ("read", "draft"):
            store.add_measurements(replace(surface_key(SURFACE), role=role), SURFACE.measurements)
    assert json.loads(shown(tmp_path, "surface", "--json").stdout)["role"] == "draft"


def test_a_trace_is_drawn_with_the_names_of_its_models(folder: Path) -> None:
    assert shown(folder, "trace", "--plot", str(folder / "trace.html")).exit_code == 0
    page = parsed((folder / "trace.html").read_text())
    assert page.all("h1")[0].text == "small: how often its choices hold large's token"


def test_ranks_count_from_1_wherever_they_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = f"{TRACE.rank_acceptance()[0]:.3g}"
    table = shown(folder, "trace").stdout.partition("rank")[2]
    rows = [line.split() for line in table.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert rows[0][0] == "1" and rows[0][1].startswith(first[:4])
    of_profile = {
        "workload": "chat",
        "temperature": 0.0,
        "positions": 9,
        "drafter": "small",
        "acceptance_by_rank": [0.5],
    }
    facts = {"device": {"label": "Abacus"}, "surfaces": [], "traces": [of_profile]}
    show(profile_shown(facts | {"disturbances": [], "is_resumed": False, "seconds": 1.0}))
    shown_ranks = capsys.readouterr().out
    assert "rank 1" in shown_ranks and "rank 0" not in shown_ranks


def test_the_picture_is_named_and_the_facts_are_printed_too(folder: Path) -> None:
    result = shown(folder, "surface", "--plot", str(folder / "surface.png"))
    assert f"written to {folder / 'surface.png'}" in result.stderr
    assert "median ms" in result.stdout
    assert (folder / "surface.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_is_drawn_with_its_published_defaults_and_its_trees(folder: Path) -> None:
    result = shown(folder, "plan", "--plot", str(folder / "plan.html"))
    assert result.exit_code == 0, result.output
    page = parsed((folder / "plan.html").read_text())
    assert page.all("h1")[0].text == "large: what the plan promises"
    assert {"the plan", "runner-up", "their chain", "plain decoding"} <= {text.text for text in page.all("text", "end")}
    assert "chain of 3 by small" in {text.text for text in page.all("text", "heading")}


def test_a_plan_is_shown_beside_published_defaults(folder: Path) -> None:
    result = shown(folder, "plan")
    assert "published defaults, as shares of the plan's speed" in result.stdout
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("their chain"))
    assert row.split()[2:] == ["0.50", "0.50", "0.50", "1", "1"]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("surface", "surface.svg", "end the name in .png or .html"),
        ("surface", "absent/surface.png", "there is no folder"),
        ("plan", "plan.pdf", "end the name in .png or .html"),
    ],
)
def test_a_picture_that_cannot_be_is_refused_in_one_line(kind: str, name: str, words: str, folder: Path) -> None:
    result = shown(folder, kind, "--plot", str(folder / name))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert words in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["store.db"]


def test_outcomes_that_cannot_be_read_hide_no_plan_and_validations_are_counted(folder: Path) -> None:
    with open_store(str(folder / "store.db")) as store:
        store.add_validation(1, "{}")
        store.add_observation(1, "{}")
    result = shown(folder, "plan")
    assert result.exit_code == 0 and "unreadable validations" in result.stdout
    facts = json.loads(shown(folder, "plan", "--json").stdout)
    assert (facts["validations"], facts["unreadable_validations"], facts["imported"]) == ([], 1, [])
