"""Measuring lossy ways on tiny models, and following a lossy plan: from the command line and from a program."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from transformers import LlamaForCausalLM

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import RequestError
from spectune.planner.lossy.quality import ends_with
from spectune.planner.lossy.run import LossyRun
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.prompts import Prompt, answers_of, read_prompts
from spectune.runtime.engine.generator import Generator
from spectune.runtime.load import load
from spectune.runtime.watch.watch import Watch
from spectune.tuning.lossy import LossyRequest, mean_log_prob, measure_lossy
from spectune.tuning.request import Models
from spectune.tuning.validate import ValidateRequest, validate_stored

from ..support.lossy_runs import QUALITY
from ..support.stack_family import LLAMA, TARGET
from ..support.tiny_family import save_model
from ..support.tiny_models import perturbed, plain_logits
from ..support.watched_rounds import drafting_plan

OPEN = FlyRule(threshold=0.0, window=1)
CHAIN = FlyPolicy(draft=ChainPolicy(length=5), rule=OPEN)
STACK = FlyPolicy(draft=StackPolicy(drafters=("small", "lookup"), lengths=(4, 3), max_ngram=4), rule=OPEN)
NEUTRAL = replace(CHAIN, rule=replace(OPEN, threshold=1e6))
PROMPTS = [Prompt(text=f"def f{place}(x): return") for place in range(4)]
PROMPT = "def main():"


@dataclass(frozen=True)
class Family:
    """A target and a drafter that mostly agrees, as folders."""

    folder: Path

    def request(self, *policies: FlyPolicy, **changes: Any) -> LossyRequest:
        made = LossyRequest(
            models=Models(target=self.folder / "target", drafters={"small": self.folder / "small"}),
            prompts=PROMPTS,
            policies=policies,
            drafter="small",
            device="cpu",
            dtype="float32",
            max_new_tokens=16,
        )
        return replace(made, **changes)

    @property
    def plan(self) -> Plan:
        """A plan for this device whose one cell is a lossy chain."""
        base = drafting_plan([(1, 10)])
        cell = replace(base.cells[0], policy=CHAIN, quality=QUALITY, run_tokens=tuple(range(7)))
        identity = identify(self.folder / "target")
        return replace(
            base,
            device=detect("cpu"),
            target=identity,
            cells=(cell,),
            drafters=(("small", identify(self.folder / "small", "small")), base.drafters[1]),
            workload="default",
            version=0,
        )

    def load(self, **options: Any) -> Generator:
        """Return the target, loaded with the lossy plan from a file."""
        (self.folder / "plan.json").write_text(plan_to_json(self.plan))
        return load(self.folder / "target", device="cpu", plan=str(self.folder / "plan.json"), **options)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family")
    save_model(folder / "target", layers=1, seed=0)
    save_model(folder / "small", layers=1, seed=0)
    near = perturbed(LlamaForCausalLM.from_pretrained(folder / "target"), 0.1, seed=1)
    near.save_pretrained(folder / "small")
    return Family(folder)


@pytest.fixture(scope="module")
def runs(family: Family) -> tuple[LossyRun, ...]:
    return measure_lossy(family.request(CHAIN, STACK, NEUTRAL, batches=(1, 2)))


def test_every_way_runs_at_every_batch(runs: tuple[LossyRun, ...]) -> None:
    assert [(run.policy, run.batch) for run in runs] == [(p, b) for p in (CHAIN, STACK, NEUTRAL) for b in (1, 2)]


def test_a_run_again_has_the_same_rounds(family: Family, runs: tuple[LossyRun, ...]) -> None:
    (again,) = measure_lossy(family.request(CHAIN, batches=(2,)))
    for name in ("contexts", "nodes", "catch_up", "widths", "texts", "kept"):
        assert np.array_equal(getattr(again, name), getattr(runs[1], name)), name


def test_the_rounds_of_a_chain_are_told_as_a_replay_prices_them(runs: tuple[LossyRun, ...]) -> None:
    replay = runs[0].replay
    assert set(replay.nodes.tolist()) == {6} and replay.widths.tolist() == [[1] * 5] * replay.rounds
    by_text = {text: int(replay.kept[replay.texts == text].sum()) for text in range(4)}
    assert (
        sorted(by_text.values())[1:] == [15] * 3
    )  # the first of 16 tokens comes with the prompt; one text ends itself
    entered = np.flatnonzero(np.diff(replay.texts[:, 0], prepend=-1))
    expected = np.concatenate([[1], replay.kept[:-1, 0]])
    expected[entered] = 1
    assert replay.catch_up.tolist() == expected.tolist()


def test_a_stacks_forwards_are_told_with_who_ran_them(runs: tuple[LossyRun, ...]) -> None:
    stack = runs[2]
    assert ((stack.widths > 0) == (stack.levels == 0)).all()
    assert stack.drafter == "small+lookup"


def test_neutral_settings_cost_nothing_and_open_ones_something(runs: tuple[LossyRun, ...]) -> None:
    neutral, open_ = runs[4].quality, runs[0].quality
    assert (neutral.same_texts, neutral.lossy_tokens, neutral.loss) == (1.0, 0.0, 0.0)
    assert open_.measure == "log-prob"
    assert open_.lossy_tokens > 0.0 and open_.same_texts < 1.0 and open_.loss > 0.0


def test_answers_are_counted_where_there_are_any(family: Family) -> None:
    (run,) = measure_lossy(family.request(CHAIN, answers=["7"] * 4))
    assert (run.quality.measure, run.quality.target, run.quality.prompts) == ("accuracy", 0.0, 4)


@pytest.mark.parametrize(
    ("text", "answer", "is_right"),
    [
        ("so 83", "83", True),
        ("so 183", "83", False),
        ("so 83 no", "83", False),
        ("", "83", False),
        ("a b c", "b c", True),
    ],
)
def test_a_text_is_right_where_its_last_words_are_the_answer(text: str, answer: str, is_right: bool) -> None:
    assert ends_with(text, answer) == is_right


def test_the_targets_own_judgement_is_the_mean_log_probability_by_transformers() -> None:
    prompt, text = (5, 1, 9), (2, 7, 7, 3)
    logs = plain_logits(LLAMA, [*prompt, *text]).log_softmax(-1)
    expected = np.mean([float(logs[len(prompt) - 1 + place, token]) for place, token in enumerate(text)])
    assert mean_log_prob(TARGET, prompt, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"answers": ["1"]}, "4 prompts and 1 answers"), ({"policies": ()}, "no lossy way"), ({"drafter": "x"}, "'x'")],
)
def test_requests_that_cannot_be_measured_are_refused(family: Family, changes: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        family.request(CHAIN, **changes)


# --- a plan that is lossy


def test_without_permission_a_lossy_plan_is_run_without_loss_and_that_is_said(family: Family) -> None:
    generator, own = family.load(), load(family.folder / "target", device="cpu", plan="none", dtype="float32")
    assert "the plan is lossy, and that was not allowed" in generator.choice.reason
    assert not any(setup.is_lossy for setup in generator.choice.setups)
    done = generator.generate(PROMPT, max_new_tokens=24)
    assert done.tokens == own.generate(PROMPT, max_new_tokens=24).tokens and done.lossy == ()


def test_with_permission_it_is_run_and_every_foreign_token_is_told(family: Family) -> None:
    generator = family.load(allow_lossy=True)
    done = generator.generate(PROMPT, max_new_tokens=24)
    own = load(family.folder / "target", device="cpu", plan="none", dtype="float32").generate(PROMPT, max_new_tokens=24)
    assert done.tokens != own.tokens and done.lossy
    assert done.tokens[: done.lossy[0]] == own.tokens[: done.lossy[0]]
    assert isinstance(generator.observer, Watch)
    assert f"spectune_lossy_tokens_total {float(len(done.lossy))!r}" in generator.observer.prometheus()


@pytest.fixture
def stored(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    plan, url = family.plan, str(tmp_path / "store.db")
    with open_store(url) as store:
        store.add_plan(
            plan_to_json(plan), device=plan.device.fingerprint, device_kind=plan.device.kind_key,
            target=plan.target.key, workload=plan.workload, temperature=plan.temperature,
        )  # fmt: skip
    return url


def test_validate_measures_a_lossy_cell_only_where_that_is_allowed(family: Family, stored: str) -> None:
    plan = replace(family.plan, drafters=family.plan.drafters[:1])
    plan = replace(plan, cells=(replace(plan.cells[0], alternatives=()),))
    asked = ValidateRequest(target=family.folder / "target", prompts=PROMPTS, device="cpu", max_new_tokens=6, rounds=1)
    with open_store(stored) as store:
        store.add_plan(
            plan_to_json(plan), device=plan.device.fingerprint, device_kind=plan.device.kind_key,
            target=plan.target.key, workload=plan.workload, temperature=plan.temperature,
        )  # fmt: skip
        with pytest.raises(RequestError, match="allow that with --allow-lossy"):
            validate_stored(asked, store, progress=lambda what, share: None)
        done = validate_stored(replace(asked, allow_lossy=True), store, progress=lambda what, share: None)
    assert done.rows[0].policy.startswith("LOSSY") and done.rows[0].measured_tokens_per_s > 0


# --- the command line


def typed(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_command_measures_and_writes_what_plan_reads(family: Family, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": prompt.text, "answer": "1"}) for prompt in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    assert answers_of(read_prompts(tmp_path / "prompts.jsonl")) == ("1",) * 4
    models = ["--target", family.folder / "target", "--drafter", f"small={family.folder / 'small'}"]
    done = typed(
        "lossy", *models, "--prompts", tmp_path / "prompts.jsonl", "--setting", "5,1,0", "--setting", "4+3,1,0.1n",
        "--dtype", "float32", "--device", "cpu", "--max-new-tokens", "8", "-o", tmp_path / "lossy.json", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["lossy"] is True
    assert [run["policy"][:5] for run in facts["runs"]] == ["LOSSY"] * 2
    assert "of ln(vocabulary)" in facts["runs"][1]["policy"] and facts["runs"][1]["drafter"] == "small+lookup"
    assert (tmp_path / "lossy.json").exists()


def test_a_setting_that_is_none_is_refused() -> None:
    done = typed("lossy", "--target", "x", "--prompts", "x", "--setting", "fast")
    assert done.exit_code == 2 and "10,6,0.3" in done.output


def test_run_tells_that_its_text_is_lossy(family: Family) -> None:
    family.load()
    words = ["run", "--target", family.folder / "target", "--plan", family.folder / "plan.json", "--device", "cpu"]
    words += ["--prompt", PROMPT, "--max-new-tokens", "24"]
    strict, loose = typed(*words, "--json"), typed(*words, "--json", "--allow-lossy")
    assert "lossy" not in json.loads(strict.stdout) and json.loads(loose.stdout)["lossy"]
    assert "LOSSY: the plan lets" in typed(*words, "--allow-lossy").stderr
