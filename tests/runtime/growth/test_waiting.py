"""While a tree grows, nothing is read from the device: checked on tensors that have no values, and on a GPU if any.

A tensor on torch's device "meta" has a shape and no values. Code that grows a tree there cannot have read one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.profiler.records.calibration import SurvivalCurve
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.host_pass import DraftPass
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.growth.grow import grow_on_device
from spectune.runtime.growth.scorer import News
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import POLICIES
from ...support.host_reads import HostReadError, NoHostReads
from ...support.tiny_models import tiny_llama
from ...support.toy_device import RandomScorer

SURVIVAL = SurvivalCurve(log_probs=(-5.0, -1.0), survivals=(0.1, 0.9), nodes=5)


def calibrated(policy: TreePolicy) -> CastPolicy:
    assert isinstance(policy, CastPolicy)
    return replace(policy, survival=(SURVIVAL,))


GROWN = {kind: policy for kind, policy in POLICIES.items() if kind != "lookup"}
GROWN["cast by survival"] = calibrated(GROWN["cast"])


@pytest.mark.thinned
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", GROWN)
def test_growing_reads_nothing(kind: str, batch: int, device: str) -> None:
    with NoHostReads():
        draft = grow_on_device(GROWN[kind], RandomScorer(batch, 24, torch.device(device)), batch)
    assert draft.tokens.device.type == device and len(draft.tokens) == batch


def drafter_on(device: str, batch: int, temperature: float) -> tuple[ModelDrafter, list[Sequence]]:
    """Return a drafter on a device and sequences that it has read, of different lengths."""
    llama = tiny_llama(layers=2, seed=0)
    llama.to(device)  # type: ignore[arg-type]  # transformers types the self of what it wraps as its first argument
    drafter = ModelDrafter(LeanModel(llama), slots=batch, capacity=120)
    sequences = [
        Sequence(Request(prompt=tuple(range(1, 4 + row)), max_new_tokens=9, temperature=temperature), row)
        for row in range(batch)
    ]
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    return drafter, sequences


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", GROWN)
def test_a_whole_round_of_a_model_reads_nothing(kind: str, batch: int, temperature: float) -> None:
    drafter, sequences = drafter_on("meta", batch, temperature)
    with NoHostReads():
        draft = drafter.draft_on_device(sequences, GROWN[kind])
    assert len(draft.widths) == GROWN[kind].draft_forwards  # the host never learns that nobody drafts


def test_the_planners_own_growth_reads_every_layer() -> None:
    drafter, sequences = drafter_on("meta", 2, 0.0)
    with pytest.raises(NotImplementedError, match="meta"):
        grow(GROWN["chain"], DraftPass(drafter, sequences), 2)


def test_a_draft_is_read_when_it_is_asked_for() -> None:
    drafter, sequences = drafter_on("meta", 2, 0.0)
    with pytest.raises(NotImplementedError, match="meta"):
        drafter.draft_on_device(sequences, GROWN["chain"]).host()


READING: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda scores: scores.sum().item(),
    "a condition": lambda scores: bool((scores > 0).all()),
    "an index": lambda scores: scores[0][scores[0].argmax()],
    "a shape": lambda scores: scores[scores > 0],
    "places": lambda scores: torch.nonzero(scores),
    "a comparison": lambda scores: torch.equal(scores, scores),
}


@pytest.mark.parametrize("way", READING)
def test_every_way_of_reading_is_caught(way: str) -> None:
    with pytest.raises(HostReadError), NoHostReads():
        READING[way](torch.eye(3))


@pytest.mark.parametrize("is_open", [[True, True], [True, False], [False, False]])
def test_on_a_cpu_the_host_knows_at_once_whether_anybody_drafts(is_open: list[bool]) -> None:
    assert News(torch.device("cpu")).none_open(torch.tensor(is_open)) == (not any(is_open))


class Sent:
    """Stands for an event of a GPU that is `behind`: word of a layer arrives so many layers later, or is waited for."""

    behind = 0
    sent: ClassVar[list[Sent]] = []

    def __init__(self) -> None:
        self.waited = False

    def record(self, stream: object) -> None:
        self.sent.append(self)

    def query(self) -> bool:
        return self.sent.index(self) < len(self.sent) - self.behind

    def synchronize(self) -> None:
        self.waited = not self.query()


@pytest.mark.parametrize(
    ("behind", "heard", "waited"),
    [(0, [False, False, True], 0), (1, [False, False, False, True], 0), (3, [False, False, False, True], 3)],
)
def test_a_gpu_is_at_most_one_layer_behind(
    monkeypatch: pytest.MonkeyPatch, behind: int, heard: list[bool], waited: int
) -> None:
    """Sequences stop drafting in the third layer."""
    monkeypatch.setattr(Sent, "behind", behind)
    monkeypatch.setattr(Sent, "sent", [])
    monkeypatch.setattr(torch.cuda, "Event", Sent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    news, told = News(torch.device("cuda")), list[bool]()
    for is_open in ([True, True], [False, True], [False, False], [False, False]):
        told.append(news.none_open(torch.tensor(is_open)))
        if told[-1]:
            break
    assert told == heard and sum(event.waited for event in Sent.sent) == waited


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", GROWN)
def test_on_a_gpu_a_round_waits_for_nothing(kind: str, temperature: float) -> None:
    drafter, sequences = drafter_on("cuda", 3, temperature)
    expected = grow(GROWN[kind], DraftPass(drafter, sequences), 3)
    drafter.rewind([len(s.tokens) - 1 for s in sequences])
    drafter.draft_on_device(sequences, GROWN[kind]).host()  # libraries set themselves up
    drafter.rewind([len(s.tokens) - 1 for s in sequences])
    torch.cuda.set_sync_debug_mode("error")
    try:
        draft = drafter.draft_on_device(sequences, GROWN[kind])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert draft.host().tokens.tolist() == expected.tokens.tolist()
