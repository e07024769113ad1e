"""`spectune import` and the files that `spectune show -o` writes for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.db.url import resolve_url, shown
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import to_json

from ..support.older_store import is_older, make_older
from ..support.synthetic import (
    DEVICE,
    TARGET,
    Language,
    SkilledDrafter,
    every_node,
    model,
    overhead,
    record,
    surface,
    texts,
)
from ..tuning.engines.test_counters import metrics

HEADER = "role,dtype,attention,batch,context_tokens,tokens,ms,failure\n"
TIMINGS = f"{HEADER}verify,bfloat16,flash,1,64,1,2.5,\nverify,bfloat16,flash,1,64,8,2.75,\n"
OPTIONS = ("--model", "large", "--regime-name", "vllm")
MEASURED = surface("large", "verify", lambda batch, context, tokens: 1 / 3 + batch * tokens)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table, a device's facts and a store that knows a model, a surface and a trace."""
    (tmp_path / "timings.csv").write_text(TIMINGS)
    (tmp_path / "device.json").write_text(to_json(DEVICE))
    language = Language(seed=1)
    trace = record(SkilledDrafter(language, 0.7), texts(language, 2, lambda i: 6), every_node(2, 2))
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_device(DEVICE)
        for name in ("large", "small"):
            store.add_model(model(name))
        store.add_measurements(key_of(MEASURED), MEASURED.measurements)
        store.add_trace(trace)
    return tmp_path


def key_of(found: LatencySurface) -> SurfaceKey:
    return SurfaceKey(device=found.device, model=found.model, role=found.role, regime=found.regime, dtype=found.dtype)


def typed(folder: Path, *arguments: str, store: str = "store.db") -> Result:
    return CliRunner(env={"SPECTUNE_STORE": str(folder / store)}).invoke(main, arguments)


def imported(folder: Path, *arguments: str, store: str = "store.db") -> Any:
    result = typed(folder, "import", *arguments, "--json", store=store)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def timings(folder: Path) -> tuple[str, ...]:
    return (str(folder / "timings.csv"), "--device", "Abacus", *OPTIONS)


def test_a_table_enters_the_store_under_a_regime_of_its_own(folder: Path) -> None:
    facts = imported(folder, *timings(folder))
    assert facts["new"] == {"devices": 0, "models": 0, "cells": 2, "traces": 0, "overheads": 0}
    with open_store(str(folder / "store.db")) as store:
        (found,) = store.surfaces(regime="imported:vllm")
        assert [cell.repeats_ms for cell in found.measurements] == [(2.5,), (2.75,)]
        assert store.surfaces(regime="eager") == [MEASURED]


def test_a_second_import_says_that_there_is_nothing_to_add(folder: Path) -> None:
    imported(folder, *timings(folder))
    result = typed(folder, "import", *timings(folder))
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert "holds all of it already; nothing was added" in result.stderr
    with open_store(str(folder / "store.db")) as store:
        assert len(store.surfaces()) == 2


def test_the_device_may_be_a_file_of_its_facts(folder: Path) -> None:
    named = (str(folder / "timings.csv"), "--device", str(folder / "device.json"), *OPTIONS)
    assert imported(folder, *named)["surfaces"][0]["device"] == DEVICE.label


def test_a_dry_run_says_what_is_new_and_adds_nothing(folder: Path) -> None:
    facts = imported(folder, *timings(folder), "--dry-run")
    assert facts["new"]["cells"] == 2
    with open_store(str(folder / "store.db")) as store:
        assert len(store.surfaces()) == 1


def test_a_dry_run_upgrades_no_store(folder: Path) -> None:
    make_older(folder / "store.db")
    (folder / "metrics.txt").write_text(metrics([1, 2, 3], "vllm:", "_total"))
    kept = (str(folder / "metrics.txt"), "--format", "vllm-metrics", "--plan", "1")
    for arguments in (timings(folder), kept):
        result = typed(folder, "import", *arguments, "--dry-run")
        assert (result.exit_code, is_older(folder / "store.db")) == (1, True)
        assert "run: spectune db upgrade" in result.stderr


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_counters_of_a_plan_in_no_store_name_where_there_is_none(options: tuple[str, ...], folder: Path) -> None:
    (folder / "metrics.txt").write_text(metrics([1, 2, 3], "vllm:", "_total"))
    arguments = (str(folder / "metrics.txt"), "--format", "vllm-metrics", "--plan", "3", *options)
    result = typed(folder, "import", *arguments, store="absent.db")
    place = shown(resolve_url(str(folder / "absent.db")))
    assert result.stderr == f"Error: there is no store at {place}, so no plan either; run: spectune plan\n"
    assert not (folder / "absent.db").exists()


@pytest.mark.parametrize("kind", ["surface", "trace"])
def test_a_dry_run_makes_no_store(kind: str, folder: Path) -> None:
    assert typed(folder, "show", kind, "-o", str(folder / "own.json")).exit_code == 0
    assert imported(folder, str(folder / "own.json"), "--dry-run", store="absent.db")["dry_run"]
    assert not (folder / "absent.db").exists()


@pytest.mark.parametrize("kind", ["surface", "trace"])
def test_what_show_writes_comes_back_byte_for_byte(kind: str, folder: Path) -> None:
    typed(folder, "show", kind, "-o", str(folder / "own.json"))
    imported(folder, str(folder / "own.json"), store="another.db")
    typed(folder, "show", kind, "-o", str(folder / "again.json"), store="another.db")
    assert (folder / "again.json").read_bytes() == (folder / "own.json").read_bytes()


def test_what_show_writes_brings_the_names_of_its_device_and_models(folder: Path) -> None:
    typed(folder, "show", "surface", "-o", str(folder / "own.json"))
    imported(folder, str(folder / "own.json"), store="another.db")
    with open_store(str(folder / "another.db")) as store:
        assert (store.devices(), store.models()) == ([DEVICE], [TARGET])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("2.75", "soon"), "line 3, column ms: 'soon'"),
        (("role", "part"), "line 1: there is no column 'part'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_of_the_file_is_kept(
    change: tuple[str, str], words: str, folder: Path
) -> None:
    (folder / "timings.csv").write_text(TIMINGS.replace(*change))
    result = typed(folder, "import", *timings(folder))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert words in result.stderr
    with open_store(str(folder / "store.db")) as store:
        assert len(store.surfaces()) == 1


def test_a_mistake_makes_no_store(folder: Path) -> None:
    result = typed(folder, "import", str(folder / "device.json"), store="absent.db")
    assert (result.exit_code, result.stdout) == (1, "")
    assert not (folder / "absent.db").exists()


def test_a_device_nobody_knows_is_refused(folder: Path) -> None:
    result = typed(folder, "import", str(folder / "timings.csv"), "--device", "Hal", *OPTIONS)
    assert result.exit_code == 1
    assert "'Hal' is no auto, cpu, cuda:N or file" in result.stderr and "Abacus" in result.stderr


def test_tables_for_people_name_the_surface_and_stderr_counts_what_was_added(folder: Path) -> None:
    result = typed(folder, "import", *timings(folder))
    assert "imported:vllm" in result.stdout
    assert result.stderr.startswith("added 2 cells, 0 host times, 0 traces, 0 devices, 0 models to ")


def test_host_times_that_a_file_brings_are_counted(folder: Path) -> None:
    with open_store(str(folder / "store.db")) as store:
        store.add_overhead(overhead(0.1))
    assert typed(folder, "show", "surface", "-o", str(folder / "own.json")).exit_code == 0
    told = typed(folder, "import", str(folder / "own.json"), "--dry-run", store="another.db")
    assert ", 1 host times, " in told.stderr
    with open_store(str(folder / "another.db")) as store:
        store.add_measurements(key_of(MEASURED), MEASURED.measurements)
    facts = imported(folder, str(folder / "own.json"), store="another.db")
    assert (facts["new"]["cells"], facts["new"]["overheads"]) == (0, 1)
