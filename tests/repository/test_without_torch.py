"""What needs no decoder of ours runs where `pip install .` alone was typed: without torch and the like."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.cli.commands import GROUPS
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import RUN_PACKAGES, NotInstalledError
from spectune.planner.plans.document import plan_from_json
from spectune.runtime.models.gguf import write_gguf

from ..support.engine_profiles import profiled, saved_models
from ..support.light_process import absent_modules, light
from ..support.llama_program import use_fake
from ..support.openai_program import VLLM
from ..tuning.engines.test_counters import metrics
from .test_version_0320424 import FAMILY, HERE, differences, unpacked

KEPT = [3] * 50 + [1] * 30 + [0] * 20  # drafts that a server kept, of 3
QUICKLY = "--trials 0 --jobs 1"
TARGET, SMALL = FAMILY / "target", FAMILY / "small"
COMMANDS = {
    "help": "--help",
    "list": "list",
    "show": "show plan 1",
    "show the target's surface": "show surface {verify} -o verify.json",
    "show the drafter's surface": "show surface {draft} -o draft.json",
    "show its trace": "show trace {trace} -o trace.json",
    "plan": "plan --target {target} --device {device} --dtype float32 --batch 1,4 --context 40 --trials 4 --seed 3 "
    "--jobs 1 --json",
    "plan from files": "plan --surface verify.json --surface draft.json --trace trace.json --batch 1 --plot plan.png "
    + QUICKLY,
    "plan for a catalogued device": "plan --target {target} --estimate H200 --batch 1 --context 40 " + QUICKLY,
    "estimate": f"profile --target {TARGET} --drafter small={SMALL} --estimate H200 --batch 1 --context 40",
    "profile a server": "profile --engine llama.cpp --target {gguf} --drafter small={gguf} --prompts chats.jsonl "
    "--batch 1 --max-new-tokens 8 --dtype float32 --store served.db",
    "plan for a server": "plan --engine llama.cpp --target {gguf} --store served.db",
    "validate on a server": "validate --engine llama.cpp --target {gguf} --prompts chats.jsonl --store served.db",
    "tune a server": "tune --engine vllm --prompts chats.jsonl --concurrency 1 --requests 4 --starts 2 "
    "--max-new-tokens 8 -- {server}",
    "plan for an engine": "plan --engine llama.cpp --target engines/target --device {engine_device}",
    "export to vLLM": "export --engine vllm --plan {made} -o vllm",
    "export to SGLang": "export --engine sglang --plan {made}",
    "export to llama.cpp": "export --engine llama.cpp --plan {made}",
    "export to OpenVINO": "export --engine openvino --plan {made}",
    "advise": "advise metrics.txt --tpot 0=7.0 --tpot 3=6.0",
    "report": "report -o report.html",
    "db check": "db check",
    "db export": "db export exchange",
    "import": "import verify.json",
    "import counters": "import metrics.txt --format vllm-metrics",
    "promote": "promote 1 --reason tried",
    "token": "token create ci",
    "doctor": "doctor",
}
NEEDS = {  # torch
    "demo": "demo",
    "profile": f"profile --target {TARGET}",
    "validate": f"validate --target {TARGET}",
    "run": f"run --target {TARGET} --prompt x",
    "endpoint": f"endpoint --target {TARGET}",
    "train": f"train eagle --target {TARGET} --data text.txt -o head",
    "convert": f"convert {TARGET} --engine llama.cpp -o target.gguf",
    "edge": f"edge serve --target {TARGET}",
    "lossy": f"lossy --target {TARGET} --drafter small={SMALL} --prompts text.txt",
}
ALL_IN_TURN = """
import json, sys, traceback
from click.testing import CliRunner
from spectune.cli import main

said = {}
for name, words in json.load(sys.stdin).items():
    result = CliRunner().invoke(main, words)
    why = "" if result.exit_code == 0 else "".join(traceback.format_exception(*result.exc_info))
    said[name] = {"status": result.exit_code, "stdout": result.stdout, "stderr": result.stderr + why}
print(json.dumps(said))
"""
ONE = "from spectune.cli import main; main({words})"
SERVICE = """
import json
from spectune.service import planning, server
from spectune.service.app import create_app
from spectune.service.settings import ServiceSettings

print(json.dumps([*create_app("store.db", ServiceSettings(workers=0)).openapi()["paths"]]))
"""
THREADS = "from spectune.profiler.device import detect; print(detect('cpu').threads, detect('cpu').cores)"
LOAD = """
import spectune
from spectune.errors import NotInstalledError

try:
    spectune.load("target")
except NotInstalledError as error:
    print(error.package)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with an older version's store, whose models lie here, and with an engine's profile in it."""
    place = tmp_path_factory.mktemp("light")
    (place / "metrics.txt").write_text(metrics(KEPT, "vllm:", "_total"))
    (place / "engines").mkdir()
    (place / "chats.jsonl").write_text("".join(f'{{"turns": ["main {n}", "return"]}}\n' for n in range(4)))
    write_gguf(FAMILY / "target", place / "model.gguf", dtype="f32")
    with SqlStore(resolve_url(str(unpacked(place)))) as store:
        for model in store.models():
            store.add_model(replace(model, location=str(FAMILY / model.name)))
        profiled(saved_models(place / "engines"), store)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPECTUNE_STORE", str(place / "store.db"))
        patched.setenv("SPECTUNE_CACHE", str(place / "cache"))  # another test may hold the device
        use_fake(patched, place)
        yield place


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, Any]:
    """Return what became of every command, one behind the other in one process."""
    typed = {name: shlex.split(text.format(**known_of(folder / "store.db"))) for name, text in COMMANDS.items()}
    done = light(ALL_IN_TURN, folder, given=json.dumps(typed))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def known_of(file: Path) -> dict[str, object]:
    """Return what commands name: devices by fingerprint, all else by its number."""
    planned = plan_from_json((HERE / "plan.json").read_text())
    keys = {"target": planned.target.key, **{name: model.key for name, model in planned.drafters}}
    with SqlStore(resolve_url(str(file))) as store:
        device = planned.device.fingerprint
        (other,) = {each.fingerprint for each in store.devices()} - {device}
        surfaces = {(row.model, row.role): row.id for row in store.surface_rows(device=device)}
        (trace,) = [row.id for row in store.trace_rows() if row.drafter == keys["small"]]
        made = len(store.plans()) + 1
    verify, draft = surfaces[keys["target"], "verify"], surfaces[keys["small"], "draft"]
    return {
        "target": keys["target"],
        "device": device,
        "engine_device": other,
        "verify": verify,
        "draft": draft,
        "trace": trace,
        "made": made,
        "gguf": file.with_name("model.gguf"),
        "server": shlex.join(VLLM),
    }


def test_what_is_absent_is_what_extras_bring() -> None:
    assert set(RUN_PACKAGES) <= absent_modules()
    assert absent_modules().isdisjoint({"numpy", "numba", "click", "optuna", "fastapi", "gguf"})


def test_torch_cannot_be_imported_there(tmp_path: Path) -> None:
    assert "No module named 'torch'" in light("import torch", tmp_path).stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_measures_nothing_runs(name: str, said: dict[str, Any]) -> None:
    assert said[name]["status"] == 0, said[name]["stderr"]


def test_a_plan_is_the_one_that_is_made_beside_torch(said: dict[str, Any]) -> None:
    found, expected = json.loads(said["plan"]["stdout"]), json.loads((HERE / "solved.json").read_text())
    assert list(differences(found, expected)) == []


def test_a_plan_for_another_device_is_not_to_be_validated_here(said: dict[str, Any]) -> None:
    for name in ("plan", "plan for an engine"):
        assert ", kept in " in said[name]["stderr"] and "validate" not in said[name]["stderr"]


def test_an_exported_command_says_how_its_models_are_converted(said: dict[str, Any]) -> None:
    for engine in ("llama.cpp", "OpenVINO"):
        assert "spectune convert" in said[f"export to {engine}"]["stdout"]


def test_doctor_says_what_measuring_needs(said: dict[str, Any]) -> None:
    assert "pip install 'spectune[run]'" in said["doctor"]["stdout"]


def test_the_service_s_application_is_made(folder: Path) -> None:
    done = light(SERVICE, folder)
    assert done.returncode == 0, done.stderr
    assert "/v1/jobs" in json.loads(done.stdout)


def test_a_processor_is_described(tmp_path: Path) -> None:
    threads, cores = light(THREADS, tmp_path).stdout.split()
    assert threads == cores


def test_a_device_that_nobody_knows_is_refused_with_those_of_the_store(folder: Path) -> None:
    done = light(ONE.format(words=["plan", "--target", "target", "--device", "tpu"]), folder)
    assert done.returncode == 1
    assert "'tpu' is no auto, cpu, cuda:N or file" in done.stderr and "knows AMD EPYC" in done.stderr


def test_an_id_that_was_never_profiled_is_not_looked_for(folder: Path) -> None:
    done = light(ONE.format(words=["plan", "--target", "org/name"]), folder)
    assert done.returncode == 1
    assert "there is no model folder at org/name" in done.stderr


def test_of_every_group_that_needs_torch_a_command_is_tried() -> None:
    tried = {title for title, group in GROUPS.items() if not group.keys().isdisjoint(NEEDS)}
    assert tried == {"Start", "Measure", "Use", "More"}


@pytest.mark.parametrize("command", NEEDS)
def test_a_command_that_needs_torch_says_how_it_is_installed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTUNE_STORE", str(tmp_path / "store.db"))
    (tmp_path / "text.txt").write_text("a text\n" * 100)
    done = light(ONE.format(words=["-q", *shlex.split(NEEDS[command])]), tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "which is not installed" in line and line.endswith("pip install 'spectune[run]'")


def test_loading_a_model_says_how_torch_is_installed(tmp_path: Path) -> None:
    done = light(LOAD, tmp_path)
    assert done.stdout.strip() in RUN_PACKAGES, done.stderr


def test_a_missing_package_of_no_extra_stays_a_bug() -> None:
    assert NotInstalledError.of(ModuleNotFoundError("No module named 'numpy'", name="numpy")) is None
