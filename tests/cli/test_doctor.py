"""`spectune doctor`: what it looks at, and when it says that something is broken."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.findings import library_findings
from spectune.db import open_store
from spectune.db.url import resolve_url, shown
from spectune.profiler.bandwidth import known_bandwidth, remember_bandwidth
from spectune.profiler.device import detect
from spectune.profiler.lock import device_lock
from spectune.profiler.records.ceilings import Bandwidth
from spectune.profiler.records.device import Device
from spectune.profiler.records.state import OtherProcess

from ..support.fake_nvml import Gpu, Slice, install
from ..support.mutated_drafters import DEMO
from ..support.older_store import is_older, make_older

DISTURBED = "other processes kept 1.00 of 2 cores busy"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what is measured once: a fresh one for every test, in which this CPU is known."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPECTUNE_CACHE", str(folder))
    monkeypatch.setattr("spectune.profiler.bandwidth.last_level_cache_bytes", lambda cores: 2**20)  # some have 480 MiB
    know(folder)
    return folder


def know(folder: Path, *disturbances: str, gb_per_s: float = 25.0) -> None:
    """Remember a bandwidth of this CPU."""
    device = detect("cpu")
    moved = round(gb_per_s * 1e7)
    remember_bandwidth(
        device,
        Bandwidth(device=device.fingerprint, moved_bytes=moved, repeats_ms=(10.0,), disturbances=disturbances),
        folder,
    )


def doctor(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--store", str(store), *arguments])


def facts(store: Path, *arguments: str) -> Any:
    """Return what the doctor says as JSON."""
    return json.loads(doctor(store, "--json", *arguments).stdout)


def seen(found: Any, name: str) -> Any:
    """Return the one finding of a name."""
    (finding,) = [each for each in found["findings"] if each["name"] == name]
    return finding


def test_a_sound_machine_exits_0_and_names_its_processor_and_torch(tmp_path: Path) -> None:
    result = doctor(tmp_path / "store.db")
    assert result.exit_code == 0
    assert "torch threads" in result.stdout
    assert version("torch") in result.stdout


def test_a_store_that_is_not_there_is_a_note_and_is_not_made(tmp_path: Path) -> None:
    found = json.loads(doctor(tmp_path / "deep" / "store.db", "--json").stdout)
    assert found["findings"][-1] | {"seen": ""} == {
        "name": "store",
        "seen": "",
        "verdict": "note",
        "advice": "spectune profile makes it",
        "command": "",
    }
    assert not list(tmp_path.iterdir())


def test_a_store_that_opens_is_ok(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store.db")).close()
    assert json.loads(doctor(tmp_path / "store.db", "--json").stdout)["findings"][-1]["verdict"] == "ok"


def test_a_store_of_an_older_schema_is_a_note_and_is_not_upgraded(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store.db")).close()
    make_older(tmp_path / "store.db")
    finding = seen(facts(tmp_path / "store.db"), "store")
    advice = f"spectune db upgrade --store {shown(resolve_url(str(tmp_path / 'store.db')))}"
    assert (finding["verdict"], finding["advice"]) == ("note", advice)
    assert "has schema 0004, this spectune's is" in finding["seen"]
    assert is_older(tmp_path / "store.db")


def test_a_database_of_something_else_is_not_taken_for_an_older_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE theirs (id INTEGER)")
    place = shown(resolve_url(str(tmp_path / "other.db")))
    finding = seen(facts(tmp_path / "other.db"), "store")
    assert finding["seen"] == f"{place} has nothing of spectune in it"
    assert (finding["verdict"], finding["advice"]) == ("note", f"spectune db upgrade --store {place}")


@pytest.mark.parametrize("name", ["store.db", "store.db/below.db"])
def test_a_store_that_cannot_be_used_is_broken_and_stays_as_it_was(name: str, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no database")
    result = doctor(tmp_path / name, "--json")
    assert (result.exit_code, json.loads(result.stdout)["is_sound"]) == (1, False)
    assert result.stderr.startswith("Error: broken: store")
    assert (tmp_path / "store.db").read_text() == "no database"


@pytest.mark.parametrize(
    ("requirement", "verdict"),
    [
        ("click>=1", "ok"),
        ("click>=999.1", "broken"),
        ("surely-not-installed>=1.0", "broken"),
        (f"click>={version('click')}.0", "ok"),  # trailing zeros do not count
    ],
)
def test_a_library_below_its_minimum_or_missing_is_broken(requirement: str, verdict: str) -> None:
    (found,) = library_findings([requirement])
    assert found.verdict == verdict
    assert bool(found.advice) == (verdict == "broken")


def test_extras_are_not_looked_at() -> None:
    assert not list(library_findings(['click>=999.1; extra == "dev"', 'surely-not-installed>=1.0; extra == "run"']))


def test_what_decodes_is_held_to_its_minimum_where_it_is_installed() -> None:
    (found,) = library_findings(['torch>=999.1; extra == "run"'])
    assert (found.name, found.verdict) == ("torch", "broken")


def test_this_processor_is_shown_reading_by_reading(tmp_path: Path) -> None:
    found = facts(tmp_path / "store.db")
    device = detect("cpu")
    assert seen(found, "cpu fingerprint")["seen"] == f"{device.fingerprint}, {device.label}"
    assert seen(found, "cpu cores allowed")["seen"] == str(device.cores)
    assert seen(found, "cpu vector extensions")["seen"] == (" ".join(device.isa) or "not reported")
    assert found["devices"][0]["device"]["fingerprint"] == found["devices"][0]["state"]["device"]


def test_every_reading_of_a_device_names_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, Gpu(letter="a"))
    findings = facts(tmp_path / "store.db", "--no-measure")["findings"]
    readings = [each for each in findings if each["name"].startswith(("cpu ", "cuda:0 "))]
    assert [each["name"] for each in readings if not each["command"]] == ["cuda:0 fingerprint", "cpu fingerprint"]


@pytest.mark.parametrize("name", ["cpu sockets", "cpu memory", "cpu load average", "cpu time kept back by the host"])
@pytest.mark.skipif(shutil.which("lscpu") is None, reason="no lscpu")
def test_a_named_command_runs_and_says_something(name: str, tmp_path: Path) -> None:
    command = seen(facts(tmp_path / "store.db"), name)["command"]
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.strip()


def test_people_see_the_commands_when_they_ask(tmp_path: Path) -> None:
    assert "/proc/loadavg" not in doctor(tmp_path / "store.db").stdout
    assert "/proc/loadavg" in doctor(tmp_path / "store.db", "--commands").stdout


def test_a_gpu_is_shown_with_what_it_does_not_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, Gpu(letter="a", power_limit_w=None))
    found = facts(tmp_path / "store.db", "--no-measure")
    assert seen(found, "cuda:0 power limit")["seen"] == "not reported"
    assert seen(found, "cuda:0 SM clock") | {"verdict": "", "advice": ""} == {
        "name": "cuda:0 SM clock",
        "seen": "990 MHz",
        "verdict": "",
        "advice": "",
        "command": "nvidia-smi -i GPU-a --query-gpu=clocks.sm --format=csv",
    }


def test_a_slice_is_shown_by_its_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, Gpu(letter="a", slices=[Slice(uuid="MIG-1")]))
    found = facts(tmp_path / "store.db", "--no-measure")
    assert seen(found, "cuda:0 MIG profile")["seen"] == "1g.10gb"
    assert "-i " not in seen(found, "cuda:0 SM clock")["command"]  # nvidia-smi does not query slices


def test_other_processes_on_a_gpu_are_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, Gpu(letter="a", processes=[OtherProcess(pid=4242, memory_bytes=2**31)]))
    finding = seen(facts(tmp_path / "store.db", "--no-measure"), "cuda:0 other processes")
    assert (finding["verdict"], finding["seen"]) == ("note", "job4242 (pid 4242, 2.0 GiB)")


@pytest.mark.parametrize(("order", "notes"), [(None, 1), ("PCI_BUS_ID", 0)])
def test_gpus_of_several_models_need_one_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str | None, notes: int
) -> None:
    install(monkeypatch, Gpu(letter="a"), Gpu(letter="b"))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if order:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    findings = facts(tmp_path / "store.db", "--no-measure")["findings"]
    assert len([each for each in findings if each["name"] == "GPU order"]) == notes


def test_a_gpu_torch_cannot_use_has_no_bandwidth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, Gpu(letter="a"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    finding = seen(facts(tmp_path / "store.db"), "cuda:0 memory bandwidth")
    assert (finding["verdict"], finding["seen"]) == ("note", "not measured")
    assert "torch cannot use" in finding["advice"]


def test_a_known_bandwidth_is_shown_and_not_measured_again(tmp_path: Path) -> None:
    found = facts(tmp_path / "store.db")
    assert found["devices"][-1]["bandwidth"]["bytes_per_s"] == 25e9
    assert seen(found, "cpu memory bandwidth")["seen"].startswith("25.0 GB/s, the best of 1 passes")


def test_an_unknown_bandwidth_is_measured_and_remembered(cache: Path, tmp_path: Path) -> None:
    shutil.rmtree(cache)
    rates = facts(tmp_path / "store.db")["devices"][-1]["bandwidth"]
    known = known_bandwidth(detect("cpu"), cache)
    assert known is not None
    assert rates["bytes_per_s"] == known.bytes_per_s > 0.0


def test_a_bandwidth_that_may_not_be_measured_is_a_note_and_leaves_no_trace(cache: Path, tmp_path: Path) -> None:
    shutil.rmtree(cache)
    finding = seen(facts(tmp_path / "store.db", "--no-measure"), "cpu memory bandwidth")
    assert (finding["verdict"], finding["advice"]) == ("note", "leave out --no-measure")
    assert not cache.exists()


def test_a_disturbed_bandwidth_is_shown_with_what_disturbed_it(cache: Path, tmp_path: Path) -> None:
    know(cache, DISTURBED)
    finding = seen(facts(tmp_path / "store.db", "--no-measure"), "cpu memory bandwidth")
    assert (finding["verdict"], finding["advice"]) == ("note", f"measure again in peace: {DISTURBED}")


def test_a_disturbed_bandwidth_gives_way_to_a_better_one(cache: Path, tmp_path: Path) -> None:
    know(cache, DISTURBED, gb_per_s=1e-3)
    assert facts(tmp_path / "store.db")["devices"][-1]["bandwidth"]["bytes_per_s"] > 1e6


def test_a_device_that_is_being_profiled_is_left_alone(cache: Path, tmp_path: Path) -> None:
    for file in cache.iterdir():
        file.unlink()
    with device_lock(detect("cpu"), cache):
        finding = seen(facts(tmp_path / "store.db"), "cpu memory bandwidth")
    assert (finding["verdict"], finding["seen"]) == ("note", "not measured")
    assert "is being measured by process" in finding["advice"]


def kept(store: Path, *devices: Device) -> Any:
    """Return what the doctor says of a store that knows these devices."""
    with open_store(str(store)) as opened:
        for device in devices:
            opened.add_device(device)
    return facts(store)


def test_each_device_of_the_store_is_graded_the_nearest_first(tmp_path: Path) -> None:
    here = detect("cpu")
    found = kept(tmp_path / "store.db", replace(here, name="Other"), replace(here, threads=99), here)
    assert [each["grade"] for each in found["kept_devices"]] == ["same", "same-kind", "other"]
    assert found["kept_devices"][0]["device"] == here.fingerprint


def test_what_differs_from_a_device_of_the_store_is_named(tmp_path: Path) -> None:
    here = detect("cpu")
    other = replace(here, threads=99)
    found = kept(tmp_path / "store.db", other)
    (difference,) = found["kept_devices"][0]["differences"]
    assert difference == {"aspect": "setting", "field": "threads", "wanted": str(here.threads), "seen": "99"}
    finding = seen(found, f"measured {other.fingerprint}")
    assert (finding["verdict"], finding["advice"]) == ("note", "profile again for exact predictions")
    assert f"threads 99 instead of {here.threads}" in finding["seen"]


def test_values_that_differ_are_printed_where_more_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectune.cli.report.PIPE_WIDTH", 400)  # so that no cell is wrapped
    here = detect("cpu")
    place = str(tmp_path / "store.db")
    kept(tmp_path / "store.db", replace(here, threads=99))
    usual, more = (
        " ".join(CliRunner().invoke(main, [*flags, "doctor", "--no-measure", "--store", place]).stdout.split())
        for flags in ((), ("-v",))
    )
    assert "but other threads" in usual and "instead of" not in usual
    assert "threads 99 instead of" in more and "other threads" not in more


def test_the_backend_that_would_decode_is_named(tmp_path: Path) -> None:
    assert seen(facts(tmp_path / "store.db", "--no-measure"), "backend on cpu")["seen"] == "cpu"


def test_drafts_are_compared_with_the_targets_own_text_at_each_depth(tmp_path: Path) -> None:
    models = ("--target", str(DEMO / "target"), "--drafter", f"head={DEMO / 'eagle3'}")
    found = facts(tmp_path / "store.db", *models)
    assert found["is_sound"] and seen(found, "drafter head: agreement")["verdict"] == "ok"
    assert [each["depth"] for each in found["agreement"]] == [1, 2, 3, 4]
    first = found["agreement"][0]
    assert first["positions"] == 200 and first["agrees"] > 0.6 and "vLLM" in first["source"]


def test_models_may_be_looked_at_without_a_forward(tmp_path: Path) -> None:
    models = ("--no-measure", "--target", str(DEMO / "target"), "--drafter", f"small={DEMO / 'small'}")
    found = facts(tmp_path / "store.db", *models)
    assert found["agreement"] == [] and seen(found, "drafter small: vocabulary")["verdict"] == "ok"
