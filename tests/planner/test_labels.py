"""What people read for a way of drafting, and what documents keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectune.planner.plans.document import plan_from_json
from spectune.planner.plans.observation import CellObservation, Observation
from spectune.planner.plans.promised import is_promised, own_observations
from spectune.planner.reasons.explain import explain_plan
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import REGISTRY, TreePolicy
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy

PLAN = Path(__file__).parents[1] / "data" / "v0320424" / "plan.json"
CHAIN, COPIES = ChainPolicy(length=3), SuffixPolicy(length=40)
LABELS: list[tuple[TreePolicy, str | None, str]] = [
    (PlainPolicy(), None, "plain decoding"),
    (CHAIN, "small", "chain of 3 by small"),
    (CHAIN, "draft by size", "chain of 3 by draft by size"),
    (ConfidentChainPolicy(length=20), "small", "chain of up to 20 by small"),
    (COPIES, "lookup", "copy from the text, up to 40 tokens"),
    (SuffixPolicy(length=1, occurrence="last"), "lookup", "copy from the text, up to 1 token"),
    (LookupPolicy(length=10), "lookup", "copy from the text, up to 10 tokens (prompt lookup)"),
    (LookupPolicy(length=4, occurrence="mapped"), "lookup", "copy from the text, up to 4 tokens (prompt lookup)"),
    (SuffixTreePolicy(nodes=24, min_match=3), "lookup", "tree of 24 nodes from the text (SuffixDecoding)"),
    (CachebackPolicy(nodes=33), "lookup", "tree of 33 nodes from the text (Cacheback)"),
    (TalonPolicy(nodes=24), "head", "tree of 24 nodes by head (TALON)"),
    (TalonPolicy(nodes=24, max_depth=2), "head", "tree of 24 nodes by head (TALON)"),
    (Eagle2Policy(verify_tokens=24), "head", "tree of 24 nodes by head (EAGLE-2)"),
    (Eagle2Policy(verify_tokens=24, depth=0), "head", "tree of 11 nodes by head (EAGLE-2)"),
    (OptTreePolicy(nodes=23), "head", "tree of 24 nodes by head (OPT-Tree)"),
    (StaticPolicy(tree=TokenTree(parents=(-1, 0, 0), ranks=(0, 0, 1))), "head", "tree of 3 nodes by head (fixed)"),
    (ResumedPolicy(draft=CHAIN), "exit", "chain of 3 by exit, verified from the exit"),
    (HybridPolicy(text=COPIES, model=CHAIN), "small", "copy from the text, up to 40 tokens, else chain of 3 by small"),
    (
        StackPolicy(drafters=("small", "lookup"), lengths=(4, 3)),
        "small+lookup",
        "chain of 4 by small, checked copies of 3 from the text",
    ),
    (
        StackPolicy(drafters=("medium", "small"), lengths=(4, 3), siblings=2),
        "medium+small",
        "chain of 4 by medium with 2 siblings, checked chains of 3 by small",
    ),
]


@pytest.mark.parametrize(("policy", "drafter", "label"), LABELS, ids=[label for _, _, label in LABELS])
def test_a_label_says_how_much_is_drafted_by_what(policy: TreePolicy, drafter: str | None, label: str) -> None:
    assert name_of(policy.code, drafter) == label


@pytest.mark.parametrize("policy", [policy for policy, _, _ in LABELS], ids=lambda policy: policy.kind)
def test_a_label_without_a_drafter_names_none(policy: TreePolicy) -> None:
    assert policy.label == name_of(policy.code)


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("LOSSY chain of 4 by FLy, gate 0.3 nats of the best 3, window 6", "LOSSY chain of 4 by small (FLy)"),
        ("LOSSY chain of 4 by PAD, pivots from 0.5, floor 0.1, classifier c", "LOSSY chain of 4 by small (PAD)"),
        pytest.param(
            *("CAST 4/3/2.5, calibrated, at most 16", "tree of up to 16 nodes by small (CAST)"),
            marks=pytest.mark.skipif("cast" not in REGISTRY, reason="nobody knows CAST's codes"),
        ),
        ("an engine's drafts of 5", "an engine's drafts of 5 by small"),
    ],
)
def test_a_code_in_a_document_is_enough(code: str, label: str) -> None:
    assert name_of(code, "small") == label


def test_settings_that_a_label_leaves_out_stand_in_the_code() -> None:
    assert SuffixPolicy(occurrence="last").code == "suffix of m >= 1 (last), 4m+1 up to 40"
    assert len({TalonPolicy(nodes=24, gate=gate).code for gate in (0.03, 0.1, 0.3)}) == 3


def test_a_plan_of_an_older_version_is_explained_by_labels_and_all_settings() -> None:
    plan = plan_from_json(PLAN.read_text())
    text = "\n".join(explain_plan(plan))
    assert "batch 1, context 40: copy from the text, up to 2 tokens" in text
    assert "  settings: suffix of m >= 1 (first), 1m+0 up to 2" in text.splitlines()
    assert "batch 4, context 40: plain decoding; do not speculate" in text
    assert text.count("suffix of m") == 1, text  # the others stand by their labels


def test_what_an_older_version_observed_still_tells_about_its_plan() -> None:
    plan = plan_from_json(PLAN.read_text())
    cell = plan.cells[0]
    part = CellObservation(
        batch=cell.batch,
        context=cell.context,
        is_planned=True,
        policy="suffix of m >= 1 (first), 1m+0 up to 2",  # as version 0320424 wrote it
        drafter="lookup",
        rounds=1,
        tokens=1,
        kept=(0, 1),
        draft_ms=0.0,
        verify_ms=1.0,
        round_ms=1.0,
    )
    seen = Observation(
        plan_id=1,
        device=plan.device.fingerprint,
        dtype=plan.dtype,
        source="file",
        spectune="0.1.0",
        began="2026-11-28T00:00:00+00:00",
        ended="2026-11-28T00:00:01+00:00",
        cells=(part,),
    )
    assert own_observations(plan, [seen]) == [seen]
    assert is_promised(part, cell)
