"""The request to train a pivot classifier, checked before anything runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file

from ..errors import TrainingError
from ..planner.records.pad_rule import FLOOR
from ..runtime.models.pivots import PivotNet, PivotShape, pivot_config
from .language_model import TrainingSettings
from .pad_labels import RolloutSettings
from .pad_quality import AtThreshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A problem: the tokens of its prompt, and the words that a right text ends with."""

    prompt: tuple[int, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PadRequest:
    """The classifier to train, and its exercises.

    Attributes:
        least_share: alpha; a token is no pivot if it preserves this share of the plain rollouts' right answers.
    """

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
    seconds: float  # of the run that finished it, without earlier stopped runs

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


def save_pad_card(folder: Path, card: PadCard) -> None:
    """Write card.json and card.md."""
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=1) + "\n")
    (folder / "card.md").write_text(_page(card))


def _page(card: PadCard) -> str:
    rows = "\n".join(
        f"| {each.threshold:.4g} | {_percent(each.recall, each.recall_95)} | {_percent(each.passed, each.passed_95)} |"
        for each in card.thresholds
    )
    last = card.losses[-20:]
    mean = sum(last) / len(last)
    return f"""# A pivot classifier for `{card.target}`

LOSSY decoding by PAD asks it which drafted tokens may stay. Reads the target's hidden state after {card.reads} layers.
{card.parameters:,} parameters. Target's weights: `{card.target_hash[:16]}`; drafter: `{card.drafter}`,
`{card.drafter_hash[:16]}`.

**Labels.** {card.candidates:,} drafted tokens that strict verification rejects, in {card.problems:,} problems of
{len(card.files)} files, and whose probability by the target is {card.floor:g} or more. {card.rollouts} rollouts a side
at temperature {card.rollout_temperature:g}; {card.pivots:,} are pivots: with them fewer than {card.least_share:g} times
as many are right.

**Training.** {card.steps:,} steps of {card.batch} x 2 tokens, seed {card.seed}. Loss of the first step
{card.losses[0]:.3f}, mean of the last {len(last)} {mean:.3f}. {card.seconds:.0f} seconds in the run that finished it.

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
