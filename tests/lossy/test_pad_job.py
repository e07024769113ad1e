"""PAD measured, planned, run and refused: with tiny models and a classifier in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import ModelError, PlanError, RequestError
from spectune.planner.lossy.run import LossyRun, read_runs, write_runs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import LOSSY_VERSION, Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.records.pad_rule import PadRule, expected_accepted
from spectune.planner.search.lossy_search import expected_tokens, with_lossy_runs
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lossy import LossyPolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.prompts import Prompt
from spectune.runtime.engine.generator import Generator
from spectune.runtime.load import load
from spectune.tuning.lossy import LossyRequest, measure_lossy
from spectune.tuning.request import Models
from spectune.tuning.validate import ValidateRequest, validate_stored

from ..support.lossy_runs import LENGTH, QUALITY, made_inputs, made_run
from ..support.pad_family import PadFamily, pad_family
from ..support.synthetic import model
from ..support.watched_rounds import drafting_plan

OPEN = PadRule(threshold=1.0, floor=0.0)
PROMPT = "def main():"
PROMPTS = [Prompt(text=f"def f{place}(x): return") for place in range(4)]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> PadFamily:
    made = pad_family(tmp_path_factory.mktemp("pad"))
    made.save_untrained()
    return made


def way(family: PadFamily, rule: PadRule = OPEN) -> PadPolicy:
    found = identify(family.folder / "pivots", "pivots")
    return PadPolicy(draft=ChainPolicy(length=5), rule=rule, classifier=found)


def asked(family: PadFamily, *policies: PadPolicy, **changes: Any) -> LossyRequest:
    made = LossyRequest(
        models=Models(target=family.target, drafters={"small": family.drafter}),
        prompts=PROMPTS,
        policies=policies,
        drafter="small",
        classifiers={"pivots": family.folder / "pivots"},
        device="cpu",
        dtype="float32",
        max_new_tokens=16,
    )
    return replace(made, **changes)


def plan_of(family: PadFamily, classifier: str = "pivots") -> Plan:
    """Return a plan for this device whose one cell decodes by PAD."""
    base = drafting_plan([(1, 10)])
    faster = base.cells[0].alternatives[:1]  # than plain decoding, and lossless: a chain of 2
    policy = replace(way(family), classifier=identify(family.folder / classifier, "pivots"))
    cell = replace(base.cells[0], policy=policy, quality=QUALITY, run_tokens=tuple(range(7)), alternatives=faster)
    return replace(
        base,
        device=detect("cpu"),
        target=identify(family.target),
        cells=(cell,),
        drafters=(("small", identify(family.drafter, "small")),),
        workload="default",
        version=0,
    )


def loaded(family: PadFamily, classifier: str = "pivots", **options: Any) -> Generator:
    (family.folder / "plan.json").write_text(plan_to_json(plan_of(family, classifier)))
    return load(family.target, device="cpu", plan=str(family.folder / "plan.json"), **options)


# --- measuring


def test_runs_tell_rounds_quality_and_what_the_classifier_said(family: PadFamily) -> None:
    strict, loose = measure_lossy(asked(family, way(family, PadRule(threshold=0.0, floor=0.0)), way(family)))
    assert (strict.quality.same_texts, strict.quality.lossy_tokens, strict.quality.loss) == (1.0, 0.0, 0.0)
    assert loose.quality.lossy_tokens > 0.0 and loose.tokens_per_round > strict.tokens_per_round
    for run in (strict, loose):
        assert len(run.pivots) and not len(run.entropies) and 0.0 <= run.pivots.min() <= run.pivots.max() <= 1.0
    assert len(strict.pivots) <= strict.mismatched


def test_runs_come_back_from_their_file(tmp_path: Path) -> None:
    made = replace(made_run(), policy=pad_way(), pivots=np.array([0.25, 0.75], dtype=np.float32))
    write_runs(tmp_path / "lossy.json", [made])
    (found,) = read_runs(tmp_path / "lossy.json")
    assert found.policy == made.policy and found.pivots.tolist() == [0.25, 0.75]


def test_ways_whose_classifier_is_not_there_or_is_another_are_refused(family: PadFamily) -> None:
    with pytest.raises(RequestError, match="no classifier called 'pivots'"):
        asked(family, way(family), classifiers={})
    family.save_untrained("others", seed=7)
    with pytest.raises(ModelError, match=r"classifier pivots at .* has other weights"):
        measure_lossy(asked(family, way(family), classifiers={"pivots": family.folder / "others"}))


# --- planning


def pad_way(threshold: float = 0.5) -> PadPolicy:
    return PadPolicy(draft=ChainPolicy(length=LENGTH), rule=PadRule(threshold=threshold), classifier=model("pivots"))


def planned(runs: Sequence[LossyRun], **options: object) -> Plan:
    wanted = SearchOptions(trials=0, allow_lossy=True, **options)  # type: ignore[arg-type]
    measured = with_lossy_runs(made_inputs(), runs)
    return solve(measured, cells_of([1], [20]), created="", spectune="", options=wanted)


def test_a_plan_takes_pad_where_it_is_fast_and_names_its_classifier() -> None:
    made = planned([replace(made_run(), policy=pad_way())])
    (cell,) = made.cells
    assert (cell.policy, cell.quality, made.version) == (pad_way(), QUALITY, LOSSY_VERSION)
    assert made.is_lossy and made.classifiers == (("pivots", model("pivots")),)
    document = json.loads(plan_to_json(made))
    assert document["lossy"] is True and document["cells"][0]["policy"]["kind"] == "lossy-pad"
    assert plan_from_json(plan_to_json(made)) == made


@pytest.mark.parametrize(("most", "is_taken"), [(0.05, True), (0.04, False)])
def test_the_limit_on_the_loss_is_obeyed(most: float, is_taken: bool) -> None:
    made = planned([replace(made_run(), policy=pad_way())], max_quality_loss=most)
    assert made.is_lossy == is_taken


def test_the_forecast_raises_the_acceptance_by_what_the_classifier_let_be() -> None:
    """80 of 100 matched; of 20 mismatches 3 were below the threshold, the others above or below the floor."""
    pivots = np.array([0.1, 0.2, 0.3, 0.8, 0.9], dtype=np.float32)
    run = replace(made_run(), policy=pad_way(), pivots=pivots)
    assert expected_tokens(run, 6, pad_way().rule) == pytest.approx(1 + expected_accepted(6, 0.8, 3 / 20))
    notes = planned([run]).provenance.notes
    assert any("PAD" in note and "the recurrence says" in note for note in notes)
    assert any("not run, so not chosen" in note and "PAD" in note for note in notes)


def test_a_classifier_is_not_called_like_a_drafter() -> None:
    taken = replace(pad_way(), classifier=model("small"))
    with pytest.raises(PlanError, match="both called 'small'"):
        planned([replace(made_run(), policy=taken)])


# --- running


def test_with_permission_it_is_run_and_every_foreign_token_is_told(family: PadFamily) -> None:
    generator = loaded(family, allow_lossy=True)
    done = generator.generate(PROMPT, max_new_tokens=24)
    own = load(family.target, device="cpu", plan="none", dtype="float32").generate(PROMPT, max_new_tokens=24)
    assert done.tokens != own.tokens and done.lossy
    assert done.tokens[: done.lossy[0]] == own.tokens[: done.lossy[0]]


def test_without_permission_the_text_is_the_target_s_own(family: PadFamily) -> None:
    generator = loaded(family)
    own = load(family.target, device="cpu", plan="none", dtype="float32").generate(PROMPT, max_new_tokens=24)
    assert not any(setup.is_lossy for setup in generator.choice.setups)
    assert "the plan is lossy, and that was not allowed" in generator.choice.reason
    done = generator.generate(PROMPT, max_new_tokens=24)
    assert (done.tokens, done.lossy) == (own.tokens, ())


@pytest.mark.parametrize("what", ["gone", "other weights", "another target"])
def test_without_its_classifier_it_is_run_without_loss_and_that_is_said(family: PadFamily, what: str) -> None:
    family.save_untrained("moved")
    (family.folder / "plan.json").write_text(plan_to_json(plan_of(family, "moved")))
    options: dict[str, Any] = {"allow_lossy": True}
    if what == "gone":
        shutil.rmtree(family.folder / "moved")
        complaint = "no model folder"
    elif what == "other weights":
        family.save_untrained("others", seed=7)
        options["drafters"] = {"pivots": family.folder / "others"}
        complaint = "has other weights"
    else:
        written = json.loads((family.folder / "moved" / "config.json").read_text())
        written["spectune"]["target"] = "f" * 64
        (family.folder / "moved" / "config.json").write_text(json.dumps(written))
        complaint = "was trained for a target"
    generator = load(family.target, device="cpu", plan=str(family.folder / "plan.json"), **options)
    assert not any(setup.is_lossy for setup in generator.choice.setups)
    assert "a classifier is missing: pivots" in generator.choice.reason and complaint in generator.choice.reason
    assert "by chain of 2 by small instead of LOSSY chain of 5" in generator.choice.reason
    own = load(family.target, device="cpu", plan="none", dtype="float32").generate(PROMPT, max_new_tokens=24)
    assert generator.generate(PROMPT, max_new_tokens=24).tokens == own.tokens


def test_its_folder_may_be_given_as_a_drafter_s(family: PadFamily) -> None:
    family.save_untrained("here")
    (family.folder / "plan.json").write_text(plan_to_json(plan_of(family, "here")))
    (family.folder / "here").rename(family.folder / "there")
    given = {"pivots": family.folder / "there"}
    generator = load(
        family.target, device="cpu", plan=str(family.folder / "plan.json"), drafters=given, allow_lossy=True
    )
    assert generator.generate(PROMPT, max_new_tokens=24).lossy


def test_validate_measures_it_only_where_that_is_allowed(
    family: PadFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    plan, request = (
        plan_of(family),
        ValidateRequest(target=family.target, prompts=PROMPTS, device="cpu", max_new_tokens=6, rounds=1),
    )
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_plan(
            plan_to_json(plan), device=plan.device.fingerprint, device_kind=plan.device.kind_key,
            target=plan.target.key, workload=plan.workload, temperature=plan.temperature,
        )  # fmt: skip
        with pytest.raises(RequestError, match="allow that with --allow-lossy"):
            validate_stored(request, store, progress=lambda what, share: None)
        done = validate_stored(replace(request, allow_lossy=True), store, progress=lambda what, share: None)
    assert done.rows[0].policy.startswith("LOSSY") and done.rows[0].measured_tokens_per_s > 0


# --- the command line


def typed(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_command_measures_settings_of_both_rules(family: PadFamily, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n\n".join(prompt.text for prompt in PROMPTS))
    models = ["--target", family.target, "--drafter", f"small={family.drafter}"]
    words = ["lossy", *models, "--prompts", tmp_path / "prompts.txt", "--dtype", "float32", "--device", "cpu"]
    words += ["--max-new-tokens", "8", "--json"]
    pivots = ["--drafter", f"pivots={family.folder / 'pivots'}"]
    done = typed(*words, *pivots, "--setting", "5,1,0", "--setting", "5,pad,0.6", "--setting", "4+3,pad,.5,1e-3")
    assert done.exit_code == 0, done.output
    labels = [run["policy"] for run in json.loads(done.stdout)["runs"]]
    assert all(label.startswith("LOSSY") for label in labels)
    assert "FLy" in labels[0] and "pivots from 0.6, floor 0," in labels[1] and "floor 0.001" in labels[2]
    missing = typed(*words, "--setting", "5,pad,0.6")
    assert missing.exit_code == 1 and "train one: spectune train pad" in missing.output
    wrong = typed(*words, "--setting", "5,pad,high")
    assert wrong.exit_code == 2 and "10,pad,0.5" in wrong.output


def test_run_says_lossy_and_takes_the_classifier_s_folder(family: PadFamily) -> None:
    loaded(family)
    words = ["run", "--target", family.target, "--plan", family.folder / "plan.json", "--device", "cpu"]
    words += ["--prompt", PROMPT, "--max-new-tokens", "24", "--drafter", f"pivots={family.folder / 'pivots'}"]
    strict, loose = typed(*words, "--json"), typed(*words, "--json", "--allow-lossy")
    assert "lossy" not in json.loads(strict.stdout) and json.loads(loose.stdout)["lossy"]
    assert "LOSSY: the plan lets" in typed(*words, "--allow-lossy").stderr


def test_pad_is_a_lossy_policy_like_the_other() -> None:
    assert isinstance(pad_way(), LossyPolicy) and not isinstance(pad_way().draft, LossyPolicy)
