"""`profile`, `plan` and `validate` of servers: the parts of `tune`, by what a store keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.engines.bundle import Trial
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.table import SERVERS
from spectune.tuning.engines.server_profile import ServerProfile, newest_bundle
from spectune.tuning.engines.tuned_server import job_of

from ..support.openai_program import LLAMA, SGLANG, TENSORRT_LLM, VLLM, texts

KEY = "sesame-123"
DRAFTED = (*LLAMA, "-md", "small.gguf")
HEAD = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/head")
LOAD = ("--batch", "1,2", "--requests", "4", "--max-new-tokens", "24", "--longest", "4", "--starts", "3")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps({'prompt': prompt.text})}\n" for prompt in texts(8)))
    return str(file)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def typed(store: str, *words: str) -> Result:
    return CliRunner(env={"SPECTUNE_STORE": store}).invoke(main, list(words))


def profiled(store: str, prompts: str, *words: str, engine: str = "llama.cpp") -> Result:
    result = typed(store, "profile", "--engine", engine, "--prompts", prompts, *LOAD, *words)
    assert result.exit_code == 0, result.output
    return result


def test_a_profile_is_kept_as_surfaces_of_the_server_s_regime(prompts: str, store: str) -> None:
    result = profiled(store, prompts, "--", *DRAFTED, "--api-key", KEY)
    assert "4 by small" in result.stdout and "chosen" not in result.stdout
    with open_store(store) as opened:
        surfaces = {surface.role: surface for surface in opened.surfaces()}
    assert {"round:plain", "round:small"} <= set(surfaces)
    regimes = {surface.regime for surface in surfaces.values()}
    assert len(regimes) == 1
    assert next(iter(regimes)).startswith("server:llama.cpp-b11549@")
    plain = surfaces["round:plain"]
    assert [(cell.batch, cell.tokens, len(cell.repeats_ms)) for cell in plain.measurements] == [(1, 1, 4), (2, 1, 4)]
    assert all(3.0 < cell.median_ms < 30.0 for cell in plain.measurements)  # 5 ms by the server's own rule
    assert KEY.encode() not in Path(store).read_bytes()
    assert KEY not in result.output


def test_a_plan_measures_nothing_and_is_what_tune_chooses(prompts: str, store: str) -> None:
    missing = typed(store, "plan", "--engine", "llama.cpp", "--", *DRAFTED)
    assert missing.exit_code == 1 and "spectune profile" in missing.stderr
    tuned = typed(
        store, "tune", "--engine", "llama.cpp", "--prompts", prompts, "--concurrency", *LOAD[1:], "--", *DRAFTED
    )
    assert tuned.exit_code == 0, tuned.output
    planned = typed(store, "plan", "--engine", "llama.cpp", "--", *DRAFTED)
    assert planned.exit_code == 0, planned.output
    assert planned.stdout.splitlines()[-1] == tuned.stdout.splitlines()[-1]
    assert "start 1" not in planned.stderr
    bounded = typed(store, "plan", "--engine", "llama.cpp", "--slo", "tpot<=0.001ms", "--json", "--", *DRAFTED)
    assert not any(choice["fits"] for choice in json.loads(bounded.stdout)["choices"])
    assert bounded.exit_code == 1
    assert "the choice does not keep tpot<=0.001ms: at 1 at once TPOT is " in bounded.stderr
    other = typed(store, "plan", "--engine", "llama.cpp", "--", *DRAFTED, "--another")
    assert other.exit_code == 1 and "no loads of this server" in other.stderr


def test_a_profile_that_ended_begins_anew_and_one_that_did_not_goes_on(prompts: str, store: str) -> None:
    first = profiled(store, prompts, "--", *DRAFTED)
    again = profiled(store, prompts, "--", *DRAFTED)
    assert "resuming" not in first.stderr + again.stderr
    assert "start 1 of" in again.stderr


def test_a_plan_of_the_store_is_raced_against_the_server_as_it_was(prompts: str, store: str) -> None:
    profiled(store, prompts, "--", *DRAFTED)
    words = ("--engine", "llama.cpp", "--prompts", prompts, "--rounds", "1", "--json", "--", *DRAFTED)
    result = typed(store, "validate", *words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [row["concurrency"] for row in told["rows"]] == [1, 2]
    assert told["start"]["source"] == "small"


def test_a_bound_chooses_what_is_planned_and_raced(prompts: str, store: str) -> None:
    """Drafts are made to take 40 ms to the first token, plain decoding 10 ms."""

    def timed(trial: Trial) -> Trial:
        ttft_ms = 40.0 if trial.start.longest else 10.0
        answers = [replace(one, ttft_ms=ttft_ms, e2e_ms=one.e2e_ms - one.ttft_ms + ttft_ms) for one in trial.load.ended]
        return replace(trial, load=replace(trial.load, answers=tuple(answers)))

    profiled(store, prompts, "--", *DRAFTED)
    with open_store(store) as opened:
        bundle = newest_bundle("llama.cpp", DRAFTED, opened)
        kept = ServerProfile(job_of(bundle, DRAFTED, (), ""), opened)
        kept.save(replace(bundle, setup=kept.bundle.setup, trials=tuple(map(timed, bundle.trials))))
    for bound, source in (("ttft<=50ms", "small"), ("tpot<=5s,ttft<=12ms", "plain")):
        words = ("--engine", "llama.cpp", "--slo", bound, "--json")
        planned = typed(store, "plan", *words, "--", *DRAFTED)
        assert planned.exit_code == 0, planned.output
        assert json.loads(planned.stdout)["start"]["source"] == source
        raced = typed(store, "validate", *words, "--prompts", prompts, "--rounds", "1", "--", *DRAFTED)
        assert raced.exit_code == 0, raced.output
        assert json.loads(raced.stdout)["start"]["source"] == source


def test_tune_races_its_choice_where_rounds_are_asked_for(prompts: str, store: str) -> None:
    words = ("tune", "--engine", "llama.cpp", "--prompts", prompts, "--concurrency", *LOAD[1:], "--rounds", "1")
    result = typed(store, *words, "--", *DRAFTED)
    assert result.exit_code == 0, result.output
    assert "the choice against the server as it was" in result.stdout
    told = json.loads(typed(store, *words, "--json", "--", *DRAFTED).stdout)
    assert told["start"]["source"] == "small"
    assert [row["concurrency"] for row in told["race"]["rows"]] == [1, 2]


def test_a_server_at_a_url_says_which_restarts_would_tell_more(prompts: str, store: str) -> None:
    """It is restarted by its owner in between, plainly and with drafts, on one port."""
    engine = SERVERS["llama.cpp"]
    limits = ServerTimeouts(start_s=30.0)
    with started(engine, LLAMA, limits) as running:
        url = running.address.url
        plain = profiled(store, prompts, "--server", url)
        assert "restart the server with its longest chain" in plain.stdout
    port = ("--port", url.rpartition(":")[2])
    flags = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4")
    with started(engine, (*LLAMA, *port, *flags), limits):
        both = profiled(store, prompts, "--server", url)
        assert "spectune plan tells the length" in both.stdout
        planned = typed(store, "plan", "--engine", "llama.cpp", "--server", url)
        assert planned.exit_code == 0, planned.output
        assert f"draft 4 tokens: restart the server at {url} so" in planned.stdout
        words = ("--engine", "llama.cpp", "--server", url, "--prompts", prompts, "--json")
        rows = json.loads(typed(store, "validate", *words).stdout)["rows"]
    with open_store(store) as opened:
        trials = newest_bundle("llama.cpp", [url], opened).trials
    assert len(trials) == 4 and all(one.ms is not None for trial in trials for one in trial.pace)
    assert [(row["concurrency"], row["length"], row["chosen_length"]) for row in rows] == [(1, 4, 4), (2, 4, 4)]
    for kind in ("measured_tokens_per_s", "at_pace_tokens_per_s"):
        assert all(0.5 < row[kind] / row["planned_tokens_per_s"] < 2.0 for row in rows)


def test_drafts_alone_are_no_plan(prompts: str, store: str) -> None:
    flags = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4")
    with started(SERVERS["llama.cpp"], (*LLAMA, *flags), ServerTimeouts(start_s=30.0)) as running:
        url = running.address.url
        assert "restart the server without drafts" in profiled(store, prompts, "--server", url).stdout
    planned = typed(store, "plan", "--engine", "llama.cpp", "--server", url)
    assert planned.exit_code == 1
    assert "restart the server without drafts" in planned.stderr


@pytest.mark.parametrize(
    ("engine", "command", "word"),
    [
        (
            "sglang",
            (*SGLANG, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/head"),
            "EAGLE3",
        ),
        ("tensorrt-llm", TENSORRT_LLM, "Draft_Target"),
        ("vllm", VLLM, "draft_model"),
    ],
)
def test_every_engine_s_settings_are_found_and_written(
    prompts: str, store: str, engine: str, command: tuple[str, ...], word: str
) -> None:
    words = ("--drafter", "small=org/small") if engine != "sglang" else ()
    profiled(store, prompts, *words, "--", *command, engine=engine)
    result = typed(store, "plan", "--engine", engine, "--json", "--", *command)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["start"]["source"] in ("small", "head")
    assert word in " ".join([*told["command"], *told["files"].values()])
    shown = typed(store, "plan", "--engine", engine, "--", *command)
    checked = "0.32" if engine == "vllm" else "run on a scripted server alone"
    assert f"({engine}: {checked})" in shown.stdout
    for text in told["files"].values():
        assert text in shown.stdout


def test_what_is_not_of_a_server_is_refused(store: str) -> None:
    for words, said in (
        (("profile", "--engine", "openvino", "--", "x"), "openvino has no server that is measured"),
        (("profile", "--server", "http://127.0.0.1:1"), "--server needs --engine"),
        (("plan", "3"), "see a plan with: spectune show plan 3"),
        (("profile", "stray"), "name the model with --target MODEL"),
        (("profile", "--target", "m", "--starts", "4"), "--starts is of a server"),
        (("validate", "--target", "m", "--start-timeout", "4"), "--start-timeout is of a server"),
        (("profile", "--engine", "vllm", "--budget", "9", "--", "x"), "--budget is not of a server"),
        (("profile", "--engine", "vllm", "--server", "http://127.0.0.1:1", "--", "x"), "behind --, or --server URL"),
        (("plan", "--engine", "sglang", "--target", "m"), "sglang does not run here; give --server URL"),
        (
            ("plan", "--engine", "vllm", "--slo", "p90_tpot<=9ms", "--", "x"),
            "Invalid value for '--slo': mean latencies",
        ),
        (("plan", "--target", "m", "--slo", "ttft<=9ms"), "Invalid value for '--slo': a plan keeps one bound"),
        (("validate", "--target", "m", "--slo", "tpot<=9ms"), "--slo chooses the plan of a server"),
        (("validate", "--bundle", "b", "--slo", "tpot<=9ms", "--", "x"), "--slo is of a plan of the store"),
    ):
        result = typed(store, *words)
        assert result.exit_code == 2 and said in result.stderr, (words, result.output)


def test_a_file_of_the_command_that_changed_since_is_no_basis_of_a_plan(
    prompts: str, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("cuda_graph_config:\n  max_batch_size: 8\n")
    command = (*TENSORRT_LLM, "--config", str(file))
    profiled(store, prompts, "--drafter", "small=org/small", "--", *command, engine="tensorrt-llm")
    words = ("plan", "--engine", "tensorrt-llm", "--", *command)
    planned = typed(store, *words)
    assert planned.exit_code == 0 and "max_batch_size: 8" in planned.stdout
    file.write_text("cuda_graph_config:\n  max_batch_size: 9\n")
    changed = typed(store, *words)
    assert changed.exit_code == 1
    assert "a file that the command reads is another one than was measured" in changed.stderr
