"""The JSON of profiles: one shape, whatever was measured, timed alone or computed, and as the page tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.cli.measured import common_facts, profile_shown
from spectune.cli.report import show
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.tuning.request import Identities

from ..support.synthetic import DEVICE, TARGET, model, surface

ROOT = Path(__file__).parents[2]
SURFACE = surface("large", "verify", lambda batch, context, tokens: 1.0 + batch * tokens, tokens=(1, 2, 4, 8))


def facts_of(surface: LatencySurface) -> dict[str, Any]:
    known = Identities(target=TARGET, drafters={"small": model("small")})
    return common_facts(DEVICE, known, [surface], "store.db")


def test_an_estimate_has_every_key_of_a_measured_profile(tmp_path: Path) -> None:
    asked = ("profile", "--target", str(ROOT / "demo" / "models" / "target"), "--estimate", "H200", "--json")
    result = CliRunner(env={"SPECTUNE_STORE": str(tmp_path / "store.db")}).invoke(main, asked)
    assert result.exit_code == 0, result.output
    told, measured = json.loads(result.stdout), facts_of(SURFACE)
    assert set(measured) < set(told)
    assert set(told["surfaces"][0]) == set(measured["surfaces"][0])


def test_every_key_of_a_profile_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "plan-json.md").read_text()
    about = page.partition("| `profile` |")[2].partition("\n| `plan` |")[0]
    facts = facts_of(SURFACE)
    assert [key for key in (*facts, *facts["surfaces"][0]) if f"`{key}`" not in about] == []


def test_held_out_shapes_that_failed_or_lie_beyond_a_surface_are_none_of_its_cells() -> None:
    failed = Measurement(batch=1, context_tokens=0, tokens=3, failure="out of memory", purpose="held-out")
    beyond = Measurement(batch=1, context_tokens=0, tokens=999, repeats_ms=(1.0, 1.0), purpose="held-out")
    (told,) = facts_of(replace(SURFACE, measurements=(*SURFACE.measurements, failed, beyond)))["surfaces"]
    assert (told["cells"], told["held_out"], told["failures"]) == (len(SURFACE.measurements), 0, 1)


@pytest.mark.parametrize(
    ("ranks", "positions", "is_told"),
    [
        ([0.0, 0.0], 500, True),
        ([0.01, 0.5], 500, True),
        ([0.02, 0.0], 500, False),
        ([0.0], 99, False),
        ([], 500, False),
    ],
)
def test_a_drafter_that_is_next_to_never_right_is_told(
    ranks: list[float], positions: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = {"drafter": "small", "workload": "chat", "temperature": 0.0, "positions": positions}
    told = facts_of(SURFACE) | {"disturbances": [], "is_resumed": False, "seconds": 1.0}
    show(profile_shown(told | {"traces": [trace | {"acceptance_by_rank": ranks}] * 2}))
    assert capsys.readouterr().out.count("small is next to never right") == is_told
