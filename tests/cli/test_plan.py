"""`spectune plan` as people type it: from a store, from files on a machine that has none, and for another device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main, options
from spectune.db import open_store
from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_from_json
from spectune.planner.reasons.duration import duration
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.records.document import SurfaceDocument, TraceDocument
from spectune.profiler.records.wire import from_json, to_json
from spectune.tuning.foreign.importing import read_import
from spectune.tuning.foreign.told import Given

from ..support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, record, texts

FAMILY = Path(__file__).parents[2] / "demo" / "models"
CELL = ("--batch", "1", "--context", "40", "--trials", "2", "--jobs", "1")


@click.command()
@click.option("--size", callback=options.size)
def echo(size: int | None) -> None:
    click.echo(size)


@cache
def measured() -> PlanInputs:
    spoken = Language(3)
    return inputs(record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 12), every_node(2, 2)))


def typed(folder: Path, *arguments: str) -> Result:
    """Run a command whose default store and caches would lie in a folder."""
    places = {"SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_CACHE": str(folder / "run")}
    return CliRunner(env=places).invoke(main, arguments)


def answered(folder: Path, *arguments: str) -> Any:
    result = typed(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Files that `spectune show` wrote on a machine with a store; the store itself is not among them."""
    elsewhere, folder = tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("files")
    found, drafter = measured(), measured().drafters[0]
    for name, document in {
        "v": SurfaceDocument(surface=found.verify, device=DEVICE, model=TARGET, overhead=found.overhead),
        "d": SurfaceDocument(surface=drafter.surface, device=DEVICE, model=drafter.model),
        "t": TraceDocument(trace=drafter.trace, target=TARGET, drafter=drafter.model),
    }.items():
        (elsewhere / f"{name}.json").write_text(to_json(document))
        with open_store(str(elsewhere / "store.db")) as opened:
            opened.add_records(read_import(elsewhere / f"{name}.json", Given()))
    wanted = {"verify": ("surface", "1"), "draft": ("surface", "2"), "trace": ("trace", "1")}
    for name, (kind, number) in wanted.items():
        result = typed(elsewhere, "show", kind, "--id", number, "-o", str(folder / f"{name}.json"))
        assert result.exit_code == 0, result.output
    return {name: str(folder / f"{name}.json") for name in wanted}


def given(files: Mapping[str, str]) -> tuple[str, ...]:
    return ("--surface", files["verify"], "--surface", files["draft"], "--trace", files["trace"])


def test_show_writes_a_verify_surface_with_its_host_times(files: Mapping[str, str]) -> None:
    written = from_json(SurfaceDocument, Path(files["verify"]).read_text())
    assert written.overhead == measured().overhead
    assert from_json(SurfaceDocument, Path(files["draft"]).read_text()).overhead is None


def test_files_are_planned_without_a_device_a_store_or_a_model(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL)
    assert (facts["device"]["name"], facts["target"]["name"]) == ("Abacus", "large")
    assert [(cell["batch"], cell["context"]) for cell in facts["cells"]] == [(1, 40)]
    assert {place.name for place in tmp_path.iterdir()} <= {"run"}  # where kernels are kept once they are compiled


def test_the_document_has_what_programs_look_for(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL)
    (cell,) = facts["cells"]
    assert {"device", "target", "cells", "provenance"} <= set(facts)
    assert {"batch", "context", "policy", "drafters", "predicted_tokens_per_s", "interval", "runner_up"} <= set(cell)
    low, high = cell["interval"]
    assert low <= cell["predicted_tokens_per_s"] <= high
    assert cell["predicted_speedup"] == cell["prediction"]["speedup_over_plain"]
    assert cell["drafters"] == ([cell["drafter"]] if cell["drafter"] else [])


def test_a_plan_from_files_is_that_from_the_store(files: Mapping[str, str], tmp_path: Path) -> None:
    result = typed(tmp_path, "plan", *given(files), *CELL, "-o", str(tmp_path / "plan.json"), "--json")
    assert plan_from_json(result.stdout) == plan_from_json((tmp_path / "plan.json").read_text())
    assert f"kept in no store, written to {tmp_path / 'plan.json'}" in result.stderr


def test_a_plan_from_files_is_kept_where_a_store_is_named(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL, "--store", str(tmp_path / "mine.db"))
    with open_store(str(tmp_path / "mine.db")) as opened:
        (row,) = opened.plans()
        assert json.loads(opened.plan(row.id)) == facts
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == ["mine.db"]


def test_without_host_times_the_table_says_that_speeds_are_bounds(files: Mapping[str, str], tmp_path: Path) -> None:
    document = json.loads(Path(files["verify"]).read_text()) | {"overhead": None}
    (tmp_path / "bare.json").write_text(json.dumps(document))
    result = typed(tmp_path, "plan", *given({**files, "verify": str(tmp_path / "bare.json")}), *CELL)
    assert "note: the host time of rounds is not known and taken as 0, so that speeds are upper bounds" in result.stdout


@pytest.mark.parametrize(
    "extra",
    [
        ("--target", "x"),
        ("--device", "cpu"),
        ("--dtype", "float32"),
        ("--regime", "eager"),
        ("--workload", "x"),
        ("--estimate", "H200"),
    ],
)
def test_what_files_say_themselves_is_not_asked_for(
    extra: tuple[str, str], files: Mapping[str, str], tmp_path: Path
) -> None:
    result = typed(tmp_path, "plan", *given(files), *extra)
    assert result.exit_code == 2
    assert f"{extra[0]} is for a plan from a store" in result.stderr


def test_a_regime_that_was_not_profiled_is_named(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        opened.add_model(identify(FAMILY / "target"))
    result = typed(tmp_path, "plan", "--target", "target", "--device", "cpu", "--regime", "cuda-graph")
    assert (result.exit_code, "in the regime cuda-graph" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments", [(), ("--store", "x.db"), ("--target", "x", "--estimate", "H200", "--device", "cpu")]
)
def test_a_plan_of_nothing_or_of_two_devices_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert typed(tmp_path, "plan", *arguments).exit_code == 2


def test_a_trace_given_as_a_surface_is_refused_in_one_line(files: Mapping[str, str], tmp_path: Path) -> None:
    result = typed(tmp_path, "-q", "plan", "--surface", files["trace"], "--trace", files["trace"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {files['trace']} is no surface of spectune: ")


def test_a_bound_on_latency_is_part_of_the_plan(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL, "--slo", "itl<=30ms")
    assert facts["bound"] == {"metric": "itl", "most_ms": 30.0}


@pytest.mark.parametrize("wrong", [("--slo", "itl<=30"), ("--slo", "speed<=3ms"), ("--jobs", "0"), ("--trials", "-1")])
def test_a_wrong_limit_is_a_usage_error(wrong: tuple[str, str], files: Mapping[str, str], tmp_path: Path) -> None:
    assert typed(tmp_path, "plan", *given(files), *wrong).exit_code == 2


FAR = ("--batch", "1", "--context", "40,500", "--trials", "2", "--jobs", "1")


def test_a_context_beyond_what_was_measured_is_labelled_in_document_table_and_reasons(
    files: Mapping[str, str], tmp_path: Path
) -> None:
    last = measured().verify.contexts(1)[-1]
    assert last < 500
    facts = answered(tmp_path, "plan", *given(files), *FAR)
    near, far = facts["cells"]
    assert "priced_at" not in near and far["priced_at"] == last
    assert any(note.startswith("batch 1, context 500: beyond the measured") for note in facts["provenance"]["notes"])
    assert f"500 (as {last})" in typed(tmp_path, "plan", *given(files), *FAR).stdout
    told = typed(tmp_path, "plan", *given(files), *FAR, "--explain").stdout
    assert f"batch 1, context 500 (beyond what was measured, priced as context {last}): " in told
    assert plan_from_json(json.dumps(facts)).cells[1].priced_at == last


def test_a_label_is_kept_and_shown_again(files: Mapping[str, str], tmp_path: Path) -> None:
    assert typed(tmp_path, "plan", *given(files), *FAR, "--store", str(tmp_path / "mine.db")).exit_code == 0
    shown = typed(tmp_path, "show", "plan", "--id", "1", "--store", str(tmp_path / "mine.db"))
    assert shown.exit_code == 0, shown.output
    assert f"(as {measured().verify.contexts(1)[-1]})" in shown.stdout or "beyond what was measured" in shown.stdout


@pytest.mark.parametrize(("metric", "most"), [("p90_itl", "0.5"), ("itl", "0.00001")])
def test_a_bound_that_nothing_keeps_exits_1_and_says_what_can_be_reached(
    metric: str, most: str, files: Mapping[str, str], tmp_path: Path
) -> None:
    asked = ("plan", *given(files), *CELL, "--slo", f"{metric}<={most}ms")
    result = typed(tmp_path, *asked, "-o", str(tmp_path / "plan.json"), "--json")
    assert result.exit_code == 1
    made = plan_from_json(result.stdout)
    assert made == plan_from_json((tmp_path / "plan.json").read_text())
    (cell,) = made.cells
    assert cell.latency_ms is not None and not cell.keeps_bound
    assert f"{metric}<={float(most):g}ms cannot be reached in 1 of 1 cells" in result.stderr
    assert "retire" not in result.stderr
    stored = typed(tmp_path, *asked, "--store", str(tmp_path / "mine.db"))
    assert stored.stderr.endswith("until it is retired, plan 1 counts: spectune retire 1\n")
    assert f"batch 1, context 40: {duration(cell.latency_ms)} at best" in result.stderr
    kept = typed(tmp_path, "plan", *given(files), *CELL, "--slo", f"{metric}<={1.02 * cell.latency_ms:.6f}ms")
    assert kept.exit_code == 0, kept.output


def test_a_policy_of_an_unknown_kind_is_named(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL)
    for broken in (facts["cells"][0], facts["cells"][0]["alternatives"][0]):
        was, broken["policy"]["kind"] = broken["policy"]["kind"], "sweep-9000"
        with pytest.raises(PlanError, match=r"unknown kind 'sweep-9000'; known are plain, .*chain, .*lossy-pad"):
            plan_from_json(json.dumps(facts))
        broken["policy"]["kind"] = was
    plan_from_json(json.dumps(facts))


def recorded_store(folder: Path, *workloads: str) -> None:
    """Keep a trace of the demo family per workload, in this order, and nothing measured."""
    with open_store(str(folder / "store.db")) as opened:
        for name in ("target", "small"):
            opened.add_model(identify(FAMILY / name))
        keys = {"target": identify(FAMILY / "target").key, "drafter": identify(FAMILY / "small").key}
        for workload in workloads:
            trace = json.loads(to_json(measured().drafters[0].trace)) | keys | {"workload": workload}
            opened.add_trace(from_json(type(measured().drafters[0].trace), json.dumps(trace)))


def test_after_an_estimate_alone_nothing_is_said_to_have_been_measured(tmp_path: Path) -> None:
    recorded_store(tmp_path, "default")
    assert typed(tmp_path, "plan", "--target", "target", "--estimate", "H200", *CELL).exit_code == 0
    result = typed(tmp_path, "plan", "--target", "target", *CELL)
    assert result.exit_code == 1
    assert "it was estimated only, and nothing of it was measured" in result.stderr
    assert "nearest" not in result.stderr


def test_a_context_beyond_the_positions_of_a_target_that_is_here_is_refused(tmp_path: Path) -> None:
    recorded_store(tmp_path, "default")
    asked = ("plan", "--target", "target", "--estimate", "L4", "--context", "1000000")
    result = typed(tmp_path, *asked)
    assert result.exit_code == 1
    assert "context 1,000,000 is beyond the 2,048 positions of target" in result.stderr


def test_memory_of_models_that_are_not_here_cannot_be_limited(files: Mapping[str, str], tmp_path: Path) -> None:
    result = typed(tmp_path, "plan", *given(files), *CELL, "--max-memory", "24GiB")
    assert result.exit_code == 1
    assert "how much memory large takes is not known" in result.stderr


def test_trials_are_kept_in_a_file_of_their_own(files: Mapping[str, str], tmp_path: Path) -> None:
    facts = answered(tmp_path, "plan", *given(files), *CELL, "--optuna-storage", f"sqlite:///{tmp_path / 'trials.db'}")
    assert facts["cells"]
    assert (tmp_path / "trials.db").exists()


def test_a_plan_for_another_device_says_in_table_and_document_that_it_is_computed(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as opened:
        for name in ("target", "small"):
            opened.add_model(identify(FAMILY / name))
        trace = json.loads(to_json(measured().drafters[0].trace))
        keys = {"target": identify(FAMILY / "target").key, "drafter": identify(FAMILY / "small").key}
        opened.add_trace(from_json(type(measured().drafters[0].trace), json.dumps(trace | keys)))
    asked = (
        "plan",
        "--target",
        "target",
        "--estimate",
        "H200",
        "--workload",
        "made up",
        "--max-memory",
        "24GiB",
        *CELL,
    )
    table, facts = typed(tmp_path, *asked), answered(tmp_path, *asked)
    assert "target on NVIDIA H200 (cuda:0, 141 GiB), bfloat16, made up, not measured but bound:eager" in table.stdout
    assert "note: an estimate: every forward on NVIDIA H200 was computed" in " ".join(table.stdout.split())
    assert facts["provenance"]["notes"][0].startswith("an estimate: ")
    assert {source["regime"] for source in facts["provenance"]["surfaces"]} == {"bound:eager"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("512MiB", 2**29),
        ("80kB", 80_000),
        ("7B", 7),
    ],
)
def test_a_size_is_read_in_powers_of_1000_or_1024(text: str, size: int) -> None:
    assert CliRunner().invoke(echo, ["--size", text]).output == f"{size}\n"


@pytest.mark.parametrize("text", ["24", "24X", "GiB", "0GiB", "-1GiB", "24iB", "24 gigabytes", ""])
def test_a_size_without_its_unit_is_a_usage_error(text: str) -> None:
    assert CliRunner().invoke(echo, ["--size", text]).exit_code == 2


@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_a_plan_is_drawn(suffix: str, files: Mapping[str, str], tmp_path: Path) -> None:
    result = typed(tmp_path, "plan", *given(files), *CELL, "--plot", str(tmp_path / f"plan{suffix}"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"plan{suffix}").stat().st_size > 1000
    assert f"written to {tmp_path / 'plan'}{suffix}" in result.stderr


def test_a_picture_of_an_unknown_kind_is_refused_before_any_work(files: Mapping[str, str], tmp_path: Path) -> None:
    result = typed(tmp_path, "-q", "plan", *given(files), *CELL, "--plot", str(tmp_path / "plan.txt"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "plan.txt" in result.stderr


def profiled_here(folder: Path, workload: str, dtype: str) -> None:
    """Keep what a profile of this device would, in a number format and along a workload's texts."""
    here, found, drafter = detect("cpu"), measured(), measured().drafters[0]
    key: dict[str, Any] = {"device": here.fingerprint, "dtype": dtype}
    trace = replace(drafter.trace, workload=workload)
    for document in (
        SurfaceDocument(
            surface=replace(found.verify, **key), device=here, model=TARGET, overhead=replace(found.overhead, **key)
        ),
        SurfaceDocument(surface=replace(drafter.surface, **key), device=here, model=drafter.model),
        TraceDocument(trace=trace, target=TARGET, drafter=drafter.model),
    ):
        (folder / "record.json").write_text(to_json(document))
        with open_store(str(folder / "store.db")) as opened:
            opened.add_records(read_import(folder / "record.json", Given()))


def test_what_was_profiled_last_is_planned_where_nothing_is_named(tmp_path: Path) -> None:
    profiled_here(tmp_path, "default", "float32")
    profiled_here(tmp_path, "chat", "float16")
    wanted = ("plan", "--target", TARGET.name, "--device", "cpu", *CELL)
    result = typed(tmp_path, *wanted, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["dtype"], facts["workload"]) == ("float16", "chat")
    assert "workload 'chat', profiled last; --workload takes another: default" in result.stderr
    named = answered(tmp_path, *wanted, "--dtype", "fp32", "--workload", "default")
    assert (named["dtype"], named["workload"]) == ("float32", "default")


def test_a_number_format_that_was_not_profiled_stands_in_the_command_that_profiles_it(tmp_path: Path) -> None:
    profiled_here(tmp_path, "chat", "float16")
    result = typed(tmp_path, "plan", "--target", TARGET.name, "--device", "cpu", "--dtype", "q8_0", *CELL)
    assert result.exit_code == 1
    assert re.search(
        r"no verify surface of large in q8_0 .*run: spectune profile --target .* --dtype q8_0", result.stderr
    )


@pytest.mark.parametrize(("name", "like"), [("H100 ", "NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe, "), ("Pocket", "A100")])
def test_an_unknown_device_is_told_with_those_known_and_those_that_can_be_estimated(
    name: str, like: str, tmp_path: Path
) -> None:
    profiled_here(tmp_path, "chat", "float16")
    result = typed(tmp_path, "plan", "--target", TARGET.name, "--device", name)
    assert result.exit_code == 1 and f"knows {detect('cpu').name}; give one of them" in result.stderr
    assert "spectune plan --estimate, which knows " in result.stderr and like in result.stderr
    known = typed(tmp_path, "plan", "--target", TARGET.name, "--device", f" {detect('cpu').name} ", *CELL)
    assert known.exit_code == 0, known.output


def test_a_plan_begins_with_its_verdict_and_its_number_is_told(tmp_path: Path) -> None:
    profiled_here(tmp_path, "chat", "float32")
    for number in (1, 2):
        result = typed(tmp_path, "plan", "--model", TARGET.name, "--device", "cpu", *CELL)
        assert result.stdout.startswith("batch 1: "), result.output
        assert f"plan {number}, kept in " in result.stderr
    shown = typed(tmp_path, "show", "plan", "2").stdout
    assert shown.splitlines()[0] == result.stdout.splitlines()[0]
