"""The commands one after the other on a tiny family: profile, plan, run, validate, show, list."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import LlamaForCausalLM

from spectune.cli import main
from spectune.planner.plans.document import plan_from_json
from spectune.profiler.remembered import cache_folder

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import byte_tokenizer, save_model

__all__ = ["timed_coarsely"]

TINY = (
    *("--dtype", "float32", "--batch", "1,2", "--budget", str(BUDGET_S)),
    *("--record", "quick", "--max-new-tokens", "12", "--max-prompt-tokens", "8"),
)
FEW = ("--trials", "2")
PROMPT = "def main("


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """A folder with a family, prompts and a store in which a profile and a plan lie."""

    folder: Path
    profile: Result
    plan: Result

    def typed(self, *arguments: str) -> Result:
        return typed(self.folder, *arguments)

    def facts(self, *arguments: str) -> Any:
        result = self.typed(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def typed(folder: Path, command: str, *arguments: str) -> Result:
    """Run a command with everything it reads and writes under one folder."""
    places = {"SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_CACHE": str(folder / "run")}
    target = () if command in ("show", "list") else ("--target", str(folder / "target"))
    return CliRunner(env=places).invoke(main, [command, *target, *arguments])


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "run").mkdir(mode=0o700)
    save_model(folder / "target", layers=2, seed=1)
    save_model(folder / "small", layers=1, seed=2)
    (folder / "prompts.txt").write_text("\n\n".join(f"def f{place}(x): return {place}" for place in range(4)))
    family = ("--drafter", f"small={folder / 'small'}", "--prompts", str(folder / "prompts.txt"))
    profile = typed(folder, "profile", *family, *TINY, "--json")
    plan = typed(folder, "plan", "--dtype", "float32", *FEW, "-o", str(folder / "plan.json"), "--json")
    return Workshop(folder=folder, profile=profile, plan=plan)


def test_profile_prints_one_object_of_what_it_measured(workshop: Workshop) -> None:
    assert workshop.profile.exit_code == 0, workshop.profile.output
    facts = json.loads(workshop.profile.stdout)
    surfaces = [(s["model"], s["role"], s["regime"], s["attention"]) for s in facts["surfaces"]]
    assert surfaces == [("target", "verify", "eager", "sdpa"), ("small", "draft", "eager", "sdpa")]
    assert all(s["cells"] >= 2 * (5 + 3) and s["held_out"] == 15 for s in facts["surfaces"])
    assert [trace["drafter"] for trace in facts["traces"]] == ["small"]
    assert facts["store"].endswith("store.db")


def test_profile_says_how_far_its_surfaces_are_from_shapes_they_never_used(workshop: Workshop) -> None:
    for surface in json.loads(workshop.profile.stdout)["surfaces"]:
        assert 0.0 < surface["held_out_error_median"] <= surface["held_out_error_p95"]
        assert 0.0 < surface["repeat_noise"] < 1.0


def test_progress_goes_to_stderr(workshop: Workshop) -> None:
    assert "timing forwards" in workshop.profile.stderr
    assert "timing forwards" not in workshop.profile.stdout


def test_a_dry_run_lists_what_the_profile_measures_and_writes_nothing(workshop: Workshop, tmp_path: Path) -> None:
    family = ("--drafter", f"small={workshop.folder / 'small'}", "--prompts", str(workshop.folder / "prompts.txt"))
    new_store = ("--store", str(tmp_path / "new.db"))
    facts = workshop.facts("profile", *family, *TINY, "--dry-run", *new_store)
    cells = workshop.facts("show", "surface", "--id", "1")["measurements"]
    timed = {(cell["batch"], cell["context_tokens"], cell["tokens"]) for cell in cells}
    assert [(m["model"], m["role"]) for m in facts["models"]] == [("target", "verify"), ("small", "draft")]
    assert {tuple(shape) for shape in facts["models"][0]["first_cells"]} <= timed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("beyond", "complaint"),
    [
        (("--context", "16,9999"), "no token fits behind a context of 9999"),
        (("--max-new-tokens", "9999"), "lower --max-new-tokens or --max-prompt-tokens"),
    ],
)
def test_what_goes_behind_the_model_s_last_position_is_refused_before_anything_is_recorded(
    beyond: tuple[str, str], complaint: str, dry: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    family = ("--drafter", f"small={workshop.folder / 'small'}", "--prompts", str(workshop.folder / "prompts.txt"))
    result = workshop.typed("profile", *family, *TINY, *beyond, *dry, "--store", str(tmp_path / "new.db"))
    assert result.exit_code == 1 and complaint in result.output
    assert "decoding" not in result.output


def test_ctrl_c_keeps_what_was_timed_and_exits_130(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "kernels").symlink_to(cache_folder() / "kernels")  # machine code that other runs have made
    places = {"SPECTUNE_STORE": str(tmp_path / "store.db"), "SPECTUNE_CACHE": str(tmp_path / "run")}
    asked = (*TINY, "--prompts", str(workshop.folder / "prompts.txt"), "--budget", "60")
    command = [sys.executable, "-m", "spectune", "profile", "--target", str(workshop.folder / "target"), *asked]
    heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | places, preexec_fn=heeds_ctrl_c
    ) as process:
        assert process.stderr is not None
        assert "timing forwards\n" in iter(process.stderr.readline, "")
        while process.poll() is None and timed_calls(tmp_path) <= 10:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert re.fullmatch(r"stopped; what was done is kept in .*store\.db, and the same command resumes there", last[0])
    assert timed_calls(tmp_path) > 10


def timed_calls(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "store.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM spectune_visit").fetchone()
    return int(found)


def test_plan_prints_the_document_it_writes(workshop: Workshop) -> None:
    assert workshop.plan.exit_code == 0, workshop.plan.output
    written = (workshop.folder / "plan.json").read_text()
    assert workshop.plan.stdout == written + "\n"
    assert sorted({cell.batch for cell in plan_from_json(written).cells}) == [1, 2]


def test_plan_tells_programs_what_it_promises(workshop: Workshop) -> None:
    facts = json.loads(workshop.plan.stdout)
    assert {"device", "target", "cells", "provenance"} <= set(facts)
    keys = ("batch", "context", "policy", "drafters", "predicted_tokens_per_s", "interval", "predicted_speedup")
    for cell in facts["cells"]:
        assert {*keys, "runner_up"} <= set(cell)
        assert cell["interval"][0] <= cell["predicted_tokens_per_s"] <= cell["interval"][1]


@pytest.mark.slow
def test_plan_solves_in_processes_what_it_solves_alone(workshop: Workshop) -> None:
    alone, together = (workshop.facts("plan", "--dtype", "float32", *FEW, "--jobs", jobs)["cells"] for jobs in "12")
    assert alone == together


def test_what_show_writes_is_planned_without_its_store(workshop: Workshop, tmp_path: Path) -> None:
    files = []
    for number in range(1, 5):  # forwards, then what reading prompts takes, of the target and the drafter
        files += ["--surface", str(tmp_path / f"{number}.json")]
        workshop.typed("show", "surface", "--id", str(number), "-o", files[-1])
    workshop.typed("show", "trace", "--id", "1", "-o", str(tmp_path / "trace.json"))
    result = CliRunner().invoke(main, ["plan", *files, "--trace", str(tmp_path / "trace.json"), *FEW, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cells"] == json.loads(workshop.plan.stdout)["cells"]
    asked = ["plan", *files, "--trace", str(tmp_path / "trace.json"), *FEW, "--json"]
    asked += ["--new-tokens", "6", "--cached-share", "0.5"]
    cells = json.loads(CliRunner().invoke(main, asked).stdout)["cells"]
    assert cells and all(cell["reading"]["new_tokens"] == 6 for cell in cells)
    assert all(cell["reading"]["cached_tokens"] == cell["reading"]["prompt_tokens"] // 2 for cell in cells)


def test_plan_names_the_file_it_wrote(workshop: Workshop) -> None:
    assert f"written to {workshop.folder / 'plan.json'}" in workshop.plan.stderr


def test_plan_takes_a_name_the_store_knows_and_explains_each_cell(workshop: Workshop) -> None:
    store = str(workshop.folder / "store.db")
    named = ["--target", "target", "--store", store]
    arguments = ["plan", *named, "--dtype", "float32", "--batch", "1", *FEW, "--explain"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "batch 1, context" in result.stdout
    assert "tokens/s" in result.stdout


def test_run_streams_the_target_s_own_text(workshop: Workshop) -> None:
    result = workshop.typed("run", "--prompt", PROMPT, "--max-new-tokens", "6")
    assert result.stdout == greedy(workshop.folder / "target", 6) + "\n"
    assert "plan made on this device" in result.stderr


@pytest.mark.parametrize("plan", ["auto", "none", "FILE"])
def test_run_prints_the_same_tokens_whatever_the_plan(workshop: Workshop, plan: str) -> None:
    place = str(workshop.folder / "plan.json") if plan == "FILE" else plan
    facts = workshop.facts("run", "--prompt", PROMPT, "--max-new-tokens", "6", "--plan", place, "--dtype", "float32")
    sources = {"auto": "this device", "none": "none", "FILE": "file"}
    assert facts["text"] == greedy(workshop.folder / "target", 6)
    assert facts["plan"]["source"] == sources[plan]


def test_run_reads_the_prompt_from_stdin(workshop: Workshop) -> None:
    arguments = ["-q", "run", "--target", str(workshop.folder / "target"), "--prompt", "-", "--plan", "none"]
    result = CliRunner().invoke(main, [*arguments, "--dtype", "float32", "--max-new-tokens", "6"], input=PROMPT)
    assert (result.stdout, result.stderr) == (greedy(workshop.folder / "target", 6) + "\n", "")


def test_validate_keeps_what_it_measured_and_fails_above_the_limit(workshop: Workshop) -> None:
    prompts = ("--prompts", str(workshop.folder / "prompts.txt"), "--max-new-tokens", "12", "--rounds", "1")
    result = workshop.typed("validate", *prompts, "--batch", "1", "--fail-above", "0", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    speeds = {"predicted_tokens_per_s", "measured_tokens_per_s", "plain_tokens_per_s"}
    assert {"batch", "context", "policy", *speeds} <= set(row)
    assert result.exit_code == 1
    assert "the prediction for batch 1" in result.stderr.splitlines()[-1]
    (kept,) = workshop.facts("show", "--id", str(json.loads(result.stdout)["plan"]))["validations"]
    assert kept["rows"][0]["measured_tokens_per_s"] == row["measured_tokens_per_s"]


def test_show_writes_the_plan_byte_for_byte(workshop: Workshop, tmp_path: Path) -> None:
    result = workshop.typed("show", "plan", "--id", "1", "-o", str(tmp_path / "plan.json"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "plan.json").read_bytes() == (workshop.folder / "plan.json").read_bytes()


def test_show_tells_the_cells_of_a_surface(workshop: Workshop) -> None:
    facts = workshop.facts("show", "surface", "--id", "1")
    assert (facts["model"], facts["role"], len(facts["measurements"])) == ("target", "verify", facts["cells"])


def test_show_tells_the_acceptance_of_a_trace(workshop: Workshop) -> None:
    facts = workshop.facts("show", "trace")
    (trace,) = json.loads(workshop.profile.stdout)["traces"]
    assert (facts["drafter"], facts["acceptance_by_rank"]) == ("small", trace["acceptance_by_rank"])


def test_show_tells_how_far_a_drafter_s_confidence_is_from_what_came_true(workshop: Workshop) -> None:
    facts = workshop.facts("show", "trace")
    count = sum(one["count"] for one in facts["reliability"])
    error = sum(one["count"] * abs(one["confidence"] - one["frequency"]) for one in facts["reliability"]) / count
    assert facts["expected_calibration_error"] == pytest.approx(error)
    assert 0.0 < facts["bytes_per_node"] <= 8.0 < facts["bytes_per_position"]


def test_list_counts_what_is_there(workshop: Workshop) -> None:
    facts = workshop.facts("list")
    counts = {name: len(rows) for name, rows in facts.items() if name not in ("store", "plans")}
    assert counts == {"devices": 1, "models": 2, "surfaces": 4, "traces": 1}
    assert {plan["target"] for plan in facts["plans"]} == {"target"}


@pytest.mark.parametrize("arguments", [("show",), ("show", "surface"), ("show", "trace"), ("list",)])
def test_tables_for_people_go_to_stdout(workshop: Workshop, arguments: tuple[str, ...]) -> None:
    result = workshop.typed(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "device" in result.stdout or "drafter" in result.stdout


def test_a_plan_for_another_device_means_plain_decoding_and_a_line_says_so(workshop: Workshop, tmp_path: Path) -> None:
    document = json.loads((workshop.folder / "plan.json").read_text())
    document["device"]["name"] = "another processor"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    result = workshop.typed("run", "--prompt", PROMPT, "--max-new-tokens", "2", "--plan", str(tmp_path / "plan.json"))
    assert result.exit_code == 0 and result.stdout
    assert re.fullmatch("plain decoding, .* it is for another device .*\n2 tokens in 1 round, .*\n", result.stderr)


@pytest.mark.parametrize("keep", [0, 1, 0.5, 0.99])
def test_a_corrupt_plan_means_plain_decoding_and_one_line_says_so(
    workshop: Workshop, keep: float, tmp_path: Path
) -> None:
    text = (workshop.folder / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(
        text[: int(keep * len(text))] if keep != 1 else text.replace("policy", "polity")
    )
    given = ("--max-new-tokens", "6", "--dtype", "float32", "--plan", str(tmp_path / "plan.json"))
    result = workshop.typed("run", "--prompt", PROMPT, *given)
    assert result.stdout == greedy(workshop.folder / "target", 6) + "\n"
    assert re.fullmatch("plain decoding, .* is of no use: .*\n6 tokens in 5 rounds, .*\n", result.stderr)


def test_a_drafter_the_plan_does_not_know_is_refused(workshop: Workshop) -> None:
    result = workshop.typed("run", "--prompt", PROMPT, "--drafter", f"tall={workshop.folder / 'small'}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the plan knows no drafter called tall; it was made with small" in result.stderr


def test_a_plan_changed_in_the_store_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    shutil.copy(workshop.folder / "store.db", tmp_path / "store.db")
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")  # which refuse every change
        database.execute("UPDATE spectune_plan SET document = replace(document, 'default', 'another')")
    result = CliRunner().invoke(main, ["show", "--store", str(tmp_path / "store.db")])
    assert result.exit_code == 1
    assert "was changed after it was stored" in result.stderr


def greedy(folder: Path, count: int) -> str:
    """Return what transformers itself continues the prompt with, in fp32."""
    tokenizer = byte_tokenizer("def main(): return 1")
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    new = model.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))
