"""The request to train a pivot classifier, checked before anything runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from ..errors import TrainingError
from ..planner.kernels.arrays import Bools, Floats, Ints
from ..planner.lossy.quality import share_interval
from ..planner.records.pad_rule import FLOOR
from ..runtime.models.pivots import PivotNet, PivotShape, pivot_config
from .cards import course_of
from .pad_labels import RolloutSettings
from .trainer import TrainingSettings

RESAMPLES = 1000
CONFIDENCE = 0.95
DIGITS = 4  # of a threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """A threshold's effect on labelled tokens: it rejects chances from there on.

    `recall` is the share of rejected pivots, `passed` of accepted other tokens, with 95 % intervals; None without any.
    """

    threshold: float
    recall: float | None
    recall_95: tuple[float, float] | None
    passed: float | None
    passed_95: tuple[float, float] | None


def auroc(chances: Floats, is_pivot: Bools) -> float | None:
    """Return how often a pivot has a higher chance than another token, ties counting half; None with one class only.

    O(n log n): the ranks of Mann and Whitney 1947.
    """
    pivots, others = int(is_pivot.sum()), int((~is_pivot).sum())
    if not pivots or not others:
        return None
    _, places, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]  # of equal values the mean of their places, from 1
    return float((ranks[is_pivot].sum() - pivots * (pivots + 1) / 2.0) / (pivots * others))


def auroc_interval(chances: Floats, is_pivot: Bools, problems: Ints, seed: int) -> tuple[float, float] | None:
    """Return a 95 % interval of the AUROC by resampling problems, since tokens of one problem are alike.

    All arrays are (n,). None with tokens of one class only; resamples with one class only are left out.
    """
    if auroc(chances, is_pivot) is None:
        return None
    rng, own = np.random.default_rng(seed), np.unique(problems)
    members = {problem: np.flatnonzero(problems == problem) for problem in own.tolist()}
    found = []
    for _ in range(RESAMPLES):
        drawn = rng.choice(own, size=len(own)).tolist()
        rows = np.concatenate([members[problem] for problem in drawn])
        value = auroc(chances[rows], is_pivot[rows])
        if value is not None:
            found.append(value)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(found, [tail, 100.0 - tail])
    return float(low), float(high)


def at_threshold(chances: Floats, is_pivot: Bools, threshold: float) -> AtThreshold:
    """Return a threshold's effect on labelled tokens."""
    rejected = chances >= threshold
    recall = _share(rejected[is_pivot])
    passed = _share(~rejected[~is_pivot])
    return AtThreshold(
        threshold=threshold,
        recall=None if recall is None else recall[0],
        recall_95=None if recall is None else recall[1],
        passed=None if passed is None else passed[0],
        passed_95=None if passed is None else passed[1],
    )


def threshold_of_recall(chances: Floats, is_pivot: Bools, recall: float) -> float:
    """Return the largest threshold in [0, 1] of four digits that rejects at least that share of the pivots.

    It is rounded down, so that writing it with few digits accepts no further pivot; a chance equal to it is rejected.
    Without pivots it is 0, which accepts nothing. A recall outside (0, 1] is a TrainingError.
    """
    if not 0.0 < recall <= 1.0:
        raise TrainingError(f"a recall must be in (0, 1], got {recall}")
    own = np.sort(chances[is_pivot])[::-1]
    if not len(own):
        return 0.0
    wanted = int(np.ceil(recall * len(own) - 1e-9))
    found = Decimal(repr(float(own[wanted - 1])))
    return float(found.quantize(Decimal(1).scaleb(found.adjusted() - DIGITS + 1), ROUND_FLOOR))


def _share(hits: Bools) -> tuple[float, tuple[float, float]] | None:
    if not len(hits):
        return None
    return float(hits.mean()), share_interval(int(hits.sum()), len(hits), CONFIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A problem: the tokens of its prompt, and the words that a right text ends with."""

    prompt: tuple[int, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PadRequest:
    """The classifier to train, and its exercises."""

    target: Path
    drafter: Path
    exercises: tuple[Exercise, ...]
    files: tuple[str, ...]  # sources of the exercises, for the card
    rollouts: RolloutSettings
    settings: TrainingSettings  # of the training; `sequence_tokens` is ignored
    max_new_tokens: int = 128
    reads: int = 0  # layers of the target before the hidden state; 0: `usual_reads`
    width: int = 256
    least_share: float = 0.9
    floor: float = FLOOR  # least probability of a candidate
    held_out: float = 0.25  # share of the problems that is not trained on
    recall: float = 0.95  # share of the pivots that the recommended threshold rejects
    device: str = "cpu"
    dtype: str = "float32"  # in which the target decodes

    def __post_init__(self) -> None:
        if len(self.exercises) < 2 or not all(each.prompt and each.answer.strip() for each in self.exercises):
            raise TrainingError(
                "pivots are labelled on problems whose answers are known, two or more; give a .jsonl file whose every "
                'line has "prompt" and "answer"'
            )
        if self.max_new_tokens < 2 or self.reads < 0 or self.width < 1:
            raise TrainingError(
                f"need max_new_tokens >= 2, reads >= 0 and width >= 1, got {self.max_new_tokens}, {self.reads} and "
                f"{self.width}"
            )
        if not 0.0 < self.least_share <= 1.0 or not 0.0 <= self.floor <= 1.0:
            raise TrainingError(
                f"need least_share in (0, 1] and a floor in [0, 1], got {self.least_share} and {self.floor}"
            )
        if not 0.0 < self.held_out < 1.0 or not 0.0 < self.recall <= 1.0:
            raise TrainingError(f"need held_out in (0, 1) and recall in (0, 1], got {self.held_out} and {self.recall}")


def usual_reads(layers: int) -> int:
    """Return the default number of layers before the hidden state: the published 8th last, or the middle."""
    return max(layers - 7, layers // 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PadCard:
    """How a pivot classifier was trained, and how good it is on tokens of held-out problems.

    Attributes:
        candidates, pivots: rejected tokens above the floor, over all problems; those of them that spoil the answer.
        held_out, held_out_pivots: candidates of held-out problems, and pivots among them.
        auroc, auroc_95: how often one of these pivots has a higher chance than another token, None with one class only;
            its interval, by resampled problems.
        recall, threshold: share of held-out pivots to reject; the largest threshold of four digits that does.
        thresholds: effect of this one and the published ones on held-out candidates. The first one's recall was chosen
            on these very candidates.
    """

    target: str
    target_hash: str
    drafter: str
    drafter_hash: str
    reads: int  # layers of the target before the hidden state that it reads
    parameters: int
    files: tuple[str, ...]
    problems: int
    candidates: int
    pivots: int
    rollouts: int  # on each side of a candidate
    rollout_temperature: float
    least_share: float
    floor: float
    steps: int
    batch: int
    seed: int
    losses: tuple[float, ...]
    held_out: int
    held_out_pivots: int
    auroc: float | None
    auroc_95: tuple[float, float] | None
    recall: float
    threshold: float
    thresholds: tuple[AtThreshold, ...]
    seconds: float  # of all runs, but for what stopped ones did after their checkpoints

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        return _page(self)

    @property
    def judgement(self) -> str:
        """The quality of its separation."""
        kept = f"{self.held_out:,} tokens of problems kept from training, {self.held_out_pivots:,} of them pivots"
        if self.auroc is None or self.auroc_95 is None:
            return f"AUROC not known: one class only among {kept}"
        return f"AUROC {self.auroc:.3f} ({self.auroc_95[0]:.3f} to {self.auroc_95[1]:.3f}) on {kept}"


def save_pivots(folder: Path, net: PivotNet, shape: PivotShape) -> None:
    """Write model.safetensors in float32, in which it runs, and config.json."""
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(pivot_config(shape), indent=2, sort_keys=True) + "\n")


def _page(card: PadCard) -> str:
    rows = "\n".join(
        f"| {each.threshold:.4g} | {_percent(each.recall, each.recall_95)} | {_percent(each.passed, each.passed_95)} |"
        for each in card.thresholds
    )
    return f"""# A pivot classifier for `{card.target}`

LOSSY decoding by PAD asks it which drafted tokens may stay. Reads the target's hidden state after {card.reads} layers.
{card.parameters:,} parameters. Target's weights: `{card.target_hash[:16]}`; drafter: `{card.drafter}`,
`{card.drafter_hash[:16]}`.

**Labels.** {card.candidates:,} drafted tokens that strict verification rejects, in {card.problems:,} problems of
{len(card.files)} files, and whose probability by the target is {card.floor:g} or more. {card.rollouts} rollouts a side
at temperature {card.rollout_temperature:g}; {card.pivots:,} are pivots: with them fewer than {card.least_share:g} times
as many are right.

**Training.** {card.steps:,} steps of {card.batch} x 2 tokens, seed {card.seed}.
{course_of(card.losses, card.seconds)}

**Held out.** {card.judgement}.

| threshold | pivots rejected (95 %) | others let be (95 %) |
|--:|--:|--:|
{rows}

The first threshold is the largest that rejects {card.recall:.0%} of these very pivots, so its first column is chosen.
"""


def _percent(share: float | None, interval: tuple[float, float] | None) -> str:
    if share is None or interval is None:
        return "none there"
    return f"{share:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
