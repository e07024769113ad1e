"""Bad input: one clear line on stderr, exit code 1, and nothing lost or half written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

import spectune
from spectune.cli import main
from spectune.db import open_store
from spectune.planner.plans.document import plan_to_json

from ..support.plans import plan_of
from ..support.tiny_family import save_model

COMMANDS = {
    "profile": ("--batch", "1"),
    "plan": (),
    "run": ("--prompt", "def"),
    "validate": (),
}


def typed(folder: Path, *arguments: str) -> Result:
    """Run a command quietly; its store would be `folder/store.db`."""
    places = {"SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_CACHE": str(folder / "run")}
    return CliRunner(env=places).invoke(main, ["-q", *arguments])


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not [word for word in words if word not in result.stderr], result.stderr


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    (tmp_path / "prompts.txt").write_text("def f(x):\n\ndef g(y):")
    return str(tmp_path / "prompts.txt")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("family") / "target", layers=1, seed=1))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_model_is_named(command: str, prompts: str, tmp_path: Path) -> None:
    given = ("--prompts", prompts) if command in ("profile", "validate") else ()
    assert_refused(typed(tmp_path, command, "--target", "nowhere", *COMMANDS[command], *given), "no", "nowhere")


@pytest.mark.parametrize("text", ["while True: pass", "def main(): return 2 + 2"])
def test_a_drafter_with_another_tokenizer_is_refused_before_anything_is_stored(
    text: str, target: str, prompts: str, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other", layers=1, seed=2, text=text)
    family = ("--target", target, "--drafter", f"other={other}", "--prompts", prompts, "--batch", "1")
    assert_refused(typed(tmp_path, "profile", *family), "a drafter must share its target's tokenizer")
    listed = CliRunner().invoke(main, ["list", "--json", "--store", str(tmp_path / "store.db")])
    assert '"models": []' in listed.stdout


FOLDERS = {
    "adapter": ({"adapter_config.json": '{"peft_type": "LORA"}'}, "holds a LoRA adapter (adapter_config.json); merge"),
    "pickles": ({"config.json": '{"model_type": "llama"}', "pytorch_model.bin": ""}, "holds only pickles (pytorch_mod"),
    "empty": ({}, "holds no config.json"),
    "speculators": (
        {"config.json": '{"speculators_config": {"algorithm": "eagle3"}}'},
        "is in the format speculators (ea",
    ),
}


@pytest.mark.parametrize("command", ["profile", "run"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_holds_no_target_is_refused_by_what_it_holds(
    command: str, kind: str, prompts: str, tmp_path: Path
) -> None:
    files, told = FOLDERS[kind]
    (tmp_path / "given").mkdir()
    for name, text in files.items():
        (tmp_path / "given" / name).write_text(text)
    if kind == "speculators":
        save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "given" / "model.safetensors")
    more = ("--prompts", prompts, "--batch", "1", "--dry-run") if command == "profile" else ("--prompt", "def")
    for said in ((), ("-q",)):
        places = {"SPECTUNE_STORE": str(tmp_path / "store.db"), "SPECTUNE_CACHE": str(tmp_path / "run")}
        given = [*said, command, "--target", str(tmp_path / "given"), *more]
        result = CliRunner(env=places).invoke(main, given)
        assert result.exit_code == 1 and told in result.stderr.splitlines()[-1], result.output


@pytest.mark.parametrize(
    ("drafter", "called"), [("eagle3", "a head"), ("medusa", "a block drafter"), ("exit", "an exit")]
)
def test_what_drafts_beside_a_target_is_refused_as_one(drafter: str, called: str, prompts: str, tmp_path: Path) -> None:
    folder = Path(spectune.__file__).parent / "demo" / "models" / drafter
    words = f"holds {called}, which drafts beside a target and is no language model; give a language model there, and"
    assert_refused(
        typed(tmp_path, "profile", "--target", str(folder), "--prompts", prompts, "--batch", "1", "--dry-run"), words
    )
    assert_refused(typed(tmp_path, "run", "--target", str(folder), "--prompt", "def", "--device", "cpu"), words)
    found = typed(tmp_path, "doctor", "--no-measure", "--json", "--target", str(folder))
    assert found.exit_code == 1 and words in found.stdout


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--dtype", "q4_k_m"), "not q4_k_m; give a GGUF file in that format"),
        (("--regime", "cuda-graph"), "CUDA graphs need models on a GPU"),
        (("--context", "4096"), "no token fits behind a context of 4096"),
    ],
)
@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_what_cannot_be_profiled_is_refused_before_anything_is_measured(
    asked: tuple[str, str], told: str, dry: tuple[str, ...], target: str, prompts: str, tmp_path: Path
) -> None:
    given = ("profile", "--target", target, "--prompts", prompts, "--batch", "1", "--device", "cpu")
    assert_refused(typed(tmp_path, *given, *asked, *dry), told)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--latency-only", "--context", "100000"), "no token fits behind a context of 100000"),
        (("--latency-only", "--context", "64", "--dtype", "q8_0"), "not q8_0; give a GGUF file in that format"),
        (("--latency-only", "--context", "64", "--regime", "cuda-graph"), "CUDA graphs need models on a GPU"),
        (("--estimate", "L4", "--context", "100000"), "context 100,000 is beyond the 512 positions of target"),
    ],
)
def test_what_cannot_be_timed_or_estimated_is_refused_before_a_weight_is_read(
    asked: tuple[str, ...], told: str, target: str, tmp_path: Path
) -> None:
    where = () if "--estimate" in asked else ("--device", "cpu")
    assert_refused(typed(tmp_path, "profile", "--target", target, *where, *asked), told)


@pytest.mark.parametrize("content", ["", "\n \n\n", None])
def test_a_file_without_prompts_is_refused_and_no_store_is_made(
    content: str | None, target: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "empty.txt").write_text(content)
    given = ("--target", target, "--prompts", str(tmp_path / "empty.txt"))
    assert_refused(typed(tmp_path, "profile", *given), "empty.txt", "prompt")
    assert not (tmp_path / "store.db").exists()


def test_an_empty_prompt_is_refused(target: str, tmp_path: Path) -> None:
    assert_refused(typed(tmp_path, "run", "--target", target, "--prompt", ""), "the prompt is empty")


def test_a_plan_file_that_is_not_there_is_refused(target: str, tmp_path: Path) -> None:
    given = ("--target", target, "--prompt", "def", "--plan", str(tmp_path / "absent.json"))
    assert_refused(typed(tmp_path, "run", *given), "absent.json", "spectune plan -o")


@pytest.mark.parametrize("command", [("list",), ("show",), ("plan", "--target", "any")])
def test_a_corrupt_database_is_refused_and_left_as_it_was(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("this is no database")
    assert_refused(typed(tmp_path, *command), "store.db", "not an SQLite file")
    assert (tmp_path / "store.db").read_text() == "this is no database"


def test_run_decodes_plainly_without_a_readable_store_and_says_so(target: str, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("this is no database")
    arguments = ["run", "--target", target, "--prompt", "def", "--max-new-tokens", "2", "--dtype", "float32"]
    result = CliRunner().invoke(main, [*arguments, "--store", str(tmp_path / "store.db")])
    assert result.exit_code == 0
    assert "plain decoding, the stored plan is of no use" in result.stderr


@pytest.mark.parametrize("command", [("list",), ("show",), ("plan", "--target", "any")])
def test_a_store_below_a_file_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert_refused(typed(tmp_path, *command, "--store", str(tmp_path / "file" / "store.db")), "file")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("command", [("show",), ("plan", "--target", "any")])
def test_an_output_below_a_file_is_refused_before_any_work(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert_refused(typed(tmp_path, *command, "-o", str(tmp_path / "file" / "plan.json")), "there is no folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_that_cannot_be_written_is_refused(target: str, prompts: str, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    given = ("--target", target, "--prompts", prompts, "--batch", "1")
    assert_refused(typed(tmp_path, "profile", *given), "cannot write the lock")


@pytest.mark.parametrize("kind", ["plan", "surface", "trace"])
def test_an_empty_store_has_nothing_to_show(kind: str, tmp_path: Path) -> None:
    """Where there is none yet, looking makes none."""
    assert_refused(typed(tmp_path, "show", kind), "there is no store at", "run: spectune profile")
    assert_refused(typed(tmp_path, "list"), "there is no store at", "run: spectune profile")
    assert not list(tmp_path.glob("*.db"))
    with open_store(str(tmp_path / "store.db")):
        pass
    assert_refused(typed(tmp_path, "show", kind), kind, "run: spectune")


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--target", "any"),
        ("plan", "--target", "any", "--estimate", "H200"),
        ("plan", "--target", "any", "--engine", "llama.cpp"),
        ("validate", "--target", "{target}", "--prompts", "{prompts}"),
        ("edge", "plan", "--target", "{target}", "--drafter", "small", "--rtt-ms", "1"),
        ("show",),
        ("show", "plan", "{plan}"),
        ("export", "--engine", "vllm", "--plan", "{plan}"),
    ],
)
def test_a_mistyped_store_is_named_and_not_made(
    command: tuple[str, ...], target: str, prompts: str, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(plan_to_json(plan_of([(1, 100)])))
    words = [word.format(target=target, prompts=prompts, plan=tmp_path / "plan.json") for word in command]
    asked = (*words, "--store", str(tmp_path / "mistyped.db"))
    assert_refused(typed(tmp_path, *asked), f"there is no store at sqlite:///{tmp_path}/mistyped.db, so", "run: ")
    assert not list(tmp_path.glob("*.db"))


def test_a_plan_without_a_profile_says_what_to_run(target: str, tmp_path: Path) -> None:
    assert_refused(typed(tmp_path, "plan", "--target", target), "run: spectune profile --target")


def test_a_validation_without_a_plan_says_what_to_run(target: str, prompts: str, tmp_path: Path) -> None:
    given = ("--target", target, "--prompts", prompts)
    with open_store(str(tmp_path / "store.db")):
        pass
    assert_refused(typed(tmp_path, "validate", *given), "no plan for", "run: spectune plan")


def test_a_batch_larger_than_the_prompts_is_refused(target: str, prompts: str, tmp_path: Path) -> None:
    given = ("--target", target, "--prompts", prompts, "--batch", "3")
    assert_refused(typed(tmp_path, "profile", *given), "batch 3 needs as many prompts")
