"""An engine that runs here is taken for the newest recorded version that is no newer."""

from __future__ import annotations

import pytest

from spectune.engines.measured import notes_on_version
from spectune.engines.schema import nearest_recorded, schema_of
from spectune.engines.table import RUNNING


@pytest.mark.parametrize("engine", RUNNING)
def test_a_recorded_version_is_its_own_nearest_and_so_are_its_patches(engine: str) -> None:
    for recorded in schema_of(engine).versions:
        assert nearest_recorded(engine, recorded) == nearest_recorded(engine, f"{recorded}.1") == recorded
        assert notes_on_version(engine, recorded, recorded) == notes_on_version(engine, f"{recorded}.1", recorded) == ()


@pytest.mark.parametrize(
    ("engine", "runs", "recorded"),
    [
        ("transformers", "5.20.0", "5.17"),
        ("transformers", "5.24.0.dev0", "5.23"),
        ("transformers", "6.0.1", "5.23"),
        ("transformers", "4.9.2", "4.45"),  # 9 comes before 45
        ("llama.cpp", "b11600", "b11549"),
        ("llama.cpp", "b9999", "b9993"),
        ("llama.cpp", "b9992", "b7010"),
        ("llama.cpp", "b999", "b7010"),
        ("openvino", "2027.0.0", "2026"),
        ("openvino", "2024.6.0", "2025"),
    ],
)
def test_another_version_takes_the_options_of_the_newest_that_is_no_newer_and_says_so(
    engine: str, runs: str, recorded: str
) -> None:
    assert nearest_recorded(engine, runs) == recorded
    (note,) = notes_on_version(engine, runs, recorded)
    assert note == f"the options of {engine} {runs} were not recorded; those of {recorded} are taken for its own"
