"""`spectune export` as people type it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.db.store import Store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy

from ..support.engine_policies import POLICIES, cell_with, measured
from ..support.priced_cells import plan_with
from ..support.tiny_family import save_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a plan that an engine can carry in part, as a file and in a store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere").mkdir()  # where the plan's models were profiled
    text = plan_to_json(plan())
    (tmp_path / "plan.json").write_text(text)
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_plan(text, device="d", device_kind="k", target="t", workload="w", temperature=0.0)
    return tmp_path


def plan() -> Plan:
    return plan_with(
        cell_with(1, 100, ChainPolicy(length=5), "small", 200.0),
        cell_with(4, 100, POLICIES["talon"], "small", 200.0, {(ChainPolicy(length=2), "small"): 160.0}),
    )


def keep_for_llama_cpp(store: Store) -> None:
    """Keep a plan that llama.cpp was measured for, as its planning job does."""
    made = measured(plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0)))
    store.add_plan(
        plan_to_json(made),
        device="engine:d",
        device_kind="engine:k",
        target="t",
        workload="w (llama.cpp)",
        temperature=0.0,
    )


def typed(folder: Path, *arguments: str) -> Result:
    return CliRunner(env={"SPECTUNE_STORE": str(folder / "store.db")}).invoke(main, ["export", *arguments])


def answered(folder: Path, *arguments: str) -> Any:
    result = typed(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def words_behind(word: str, command: str) -> list[str]:
    words = shlex.split(command)
    return words[words.index(word) + 1 :]


def test_the_command_comes_first_and_what_is_dropped_follows(folder: Path) -> None:
    result = typed(folder, "--engine", "vllm", "--plan", str(folder / "plan.json"))
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout.splitlines()[0])
    assert words[:4] == ["VLLM_USE_V2_MODEL_RUNNER=0", "vllm", "serve", "nowhere"]
    assert json.loads(words[-1])["num_speculative_tokens_per_batch_size"] == [[1, 2, 5], [3, 4096, 2]]
    assert "vLLM has no talon drafting" in result.stdout
    assert "keeps 89.4% of the plan's speed" in result.stdout


def test_the_newest_plan_of_the_store_is_exported(folder: Path) -> None:
    assert answered(folder, "--engine", "vllm") == answered(folder, "--engine", "vllm", "--plan", "1")


def test_a_plan_for_another_engine_is_not_taken_for_the_newest(folder: Path) -> None:
    ours = answered(folder, "--engine", "vllm")
    with open_store(str(folder / "store.db")) as store:
        keep_for_llama_cpp(store)
    assert answered(folder, "--engine", "vllm") == ours
    assert answered(folder, "--engine", "llama.cpp")["basis"] == "as planned"
    assert "made for llama.cpp" in answered(folder, "--engine", "vllm", "--plan", "2")["notes"][0]


def test_plans_for_other_engines_alone_are_refused(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        keep_for_llama_cpp(store)
    result = typed(tmp_path, "--engine", "vllm")
    assert result.exit_code == 1
    assert "for other engines than vllm; name one with --plan" in result.stderr


def test_facts_for_programs_name_what_is_dropped(folder: Path) -> None:
    found = answered(folder, "--engine", "vllm", "--engine-version", "0.25.1")
    assert (found["version"], found["basis"], found["written"]) == ("0.25", "alternatives", [])
    (dropped,) = found["dropped"]
    assert (dropped["batch"], dropped["gets"], dropped["gets_tokens_per_s"]) == (4, "chain of 2", 160.0)


def test_files_are_written_to_a_new_folder(folder: Path) -> None:
    result = typed(folder, "--engine", "tensorrt-llm", "-o", str(folder / "deploy"))
    assert result.exit_code == 0, result.output
    assert {path.name for path in (folder / "deploy").iterdir()} == {"speculative.yaml", "command.sh"}
    assert (folder / "deploy" / "command.sh").read_text().startswith("trtllm-serve nowhere --config speculative.yaml")
    assert f"written to {folder / 'deploy' / 'command.sh'}" in result.stderr


def test_paths_that_are_given_hold_in_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("target", "small"):
        (folder / name).mkdir()
    command = answered(folder, "--engine", "vllm", "--target", "target", "--drafter", "small=./small")["command"]
    assert words_behind("serve", command)[0] == str(folder / "target")
    assert json.loads(shlex.split(command)[-1])["model"] == str(folder / "small")
    elsewhere = answered(folder, "--engine", "vllm", "--target", "served/name")["command"]
    assert words_behind("serve", elsewhere)[0] == "served/name"  # nothing of that name lies here


def test_a_what_if_says_so_before_it_is_deployed(folder: Path) -> None:
    with open_store(str(folder / "store.db")) as store:
        guess = store.add_plan(
            plan_to_json(plan()), device="what-if:d", device_kind="k", target="t", workload="w", temperature=0.0
        )
    assert f"plan {guess} is a what-if" in answered(folder, "--engine", "vllm", "--plan", str(guess))["notes"][0]
    assert "what-if" not in " ".join(answered(folder, "--engine", "vllm")["notes"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--engine-version", "0.1"), "were not recorded, those of 0.11, 0.20, 0.25, 0.26, 0.32 were"),
        (("--plan", "nothing.json"), "there is no plan file nothing.json"),
        (("--plan", "7"), "no plan 7"),
        (("--drafter", "huge=x"), "the plan has no drafter 'huge'"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(folder: Path, arguments: tuple[str, ...], told: str) -> None:
    result = typed(folder, "--engine", "vllm", *arguments)
    assert result.exit_code == 1
    assert told in result.stderr and result.stderr.count("\n") == 1


def test_an_empty_store_is_not_made(tmp_path: Path) -> None:
    assert typed(tmp_path, "--engine", "vllm").exit_code == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [(), ("--plan", "3")])
def test_a_store_that_is_not_there_is_named_and_none_is_made(tmp_path: Path, number: tuple[str, ...]) -> None:
    found = typed(tmp_path, "--engine", "vllm", *number)
    assert found.exit_code == 1 and not (tmp_path / "store.db").exists()
    assert f"there is no store at sqlite:///{tmp_path}/store.db" in found.output and "--plan FILE" in found.output


def test_a_target_in_the_cache_of_the_hub_is_named_by_its_id(folder: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    place = folder / "models--org--tiny" / "snapshots" / commit
    place.mkdir(parents=True)
    asked = ("--plan", str(folder / "plan.json"), "--target", str(place))
    vllm, sglang, program = (typed(folder, "--engine", name, *asked) for name in ("vllm", "sglang", "transformers"))
    assert words_behind("serve", vllm.stdout.splitlines()[0])[:3] == ["org/tiny", "--revision", commit]
    assert words_behind("--model-path", sglang.stdout.splitlines()[0])[:3] == ["org/tiny", "--revision", commit]
    assert f"{place} is org/tiny of Hugging Face at revision {commit}" in program.stdout
    assert "of Hugging Face" not in vllm.stdout


def test_a_target_that_lies_here_and_is_another_is_told(folder: Path) -> None:
    save_model(folder / "another", layers=1, seed=1)
    there, nowhere = (typed(folder, "--engine", "vllm", "--target", str(folder / name)) for name in ("another", "none"))
    assert there.exit_code == nowhere.exit_code == 0
    assert f"note: the model at {folder / 'another'} is not the plan's target" in there.stdout
    assert "is not the plan's target" not in nowhere.stdout


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((), "the target large is no longer at nowhere, where it was profiled; say where it lies"),
        (("--target", "models/large"), "the drafter small is no longer at nowhere"),
        (("--drafter", "small=models/small"), "the target large is no longer at nowhere"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_a_model_that_is_gone_is_no_command(folder: Path, engine: str, named: tuple[str, ...], told: str) -> None:
    (folder / "nowhere").rmdir()
    result = typed(folder, "--engine", engine, "--plan", str(folder / "plan.json"), *named)
    assert result.exit_code == 1 and told in result.stderr and not result.stdout


def test_models_that_lie_elsewhere_are_named(folder: Path) -> None:
    (folder / "nowhere").rmdir()
    named = ("--target", "models/large", "--drafter", "small=models/small")
    result = typed(folder, "--engine", "vllm", "--plan", str(folder / "plan.json"), *named)
    assert result.exit_code == 0 and words_behind("serve", result.stdout.splitlines()[0])[0] == "models/large"
