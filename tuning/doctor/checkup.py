"""What a drafter drafts beside its target: agreement by depth, what is usual, and what would repair it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...profiler.device import detect
from ...profiler.prompt import Prompt
from ...runtime.models.drafter import load_drafter
from ...runtime.models.drafter_shapes import RECYCLING, block_shape, is_recycling
from ...runtime.models.forward import CausalModel
from ...runtime.models.loading import load_model
from ..family import torch_device
from .agreement import DepthAgreement, agreement
from .alternative import Repair
from .causes import likely_cause
from .finding import DrafterFinding
from .own_text import OwnText, own_texts
from .pair import Pair
from .usual import USUAL, Usual

DEVIATIONS = 3.0  # below what is usual, from which on a share falls short
TRAIN = (
    "no other layers, states, norms, prompts or RoPE repair it: it knows other text, or another target; train one on "
    "the target's own texts: spectune train"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One drafter along the target's own text."""

    name: str
    found: DepthAgreement
    usual: Usual
    repair: Repair | None

    @property
    def falls_short(self) -> bool:
        """Whether the first token is the target's less often than published, beyond chance."""
        low = self.usual.low[0]
        return bool(self.found.hits.mean() < low - DEVIATIONS * (low * (1.0 - low) / len(self.found.hits)) ** 0.5)


def check_up(target: Path, drafters: Mapping[str, Path], prompts: Sequence[Prompt]) -> Iterator[Checkup]:
    """Yield a checkup of each drafter on this machine's device, in its own number format.

    SpectuneError where a model cannot be loaded, or the target writes no text.
    """
    here = detect("auto")
    dtype, device = here.dtype_for("auto"), torch_device(here)
    model = load_model(str(target), dtype=dtype, device=device)
    texts = own_texts(model, target, prompts)
    for name, path in drafters.items():
        drafter = load_drafter(str(path), model, dtype=dtype, device=device)
        yield checked(Pair(name=name, target=target, drafter=path), model, drafter, texts)


def checked(pair: Pair, target: CausalModel, drafter: CausalModel, texts: Sequence[OwnText]) -> Checkup:
    """Return the checkup of one loaded drafter along texts of its target."""
    found = agreement(drafter, texts)
    usual = USUAL[_kind(pair)]
    repair = likely_cause(pair, target, drafter, texts, found.hits, usual.high[0])
    return Checkup(name=pair.name, found=found, usual=usual, repair=repair)


def _kind(pair: Pair) -> str:
    if pair.role == "head":
        return pair.head.form
    if pair.role == "self":
        return "exit"
    if pair.role == "draft":
        return "draft"
    return RECYCLING if is_recycling(pair.drafter) else block_shape(pair.drafter).kind


def findings_of(done: Checkup) -> Iterator[DrafterFinding]:
    """Yield the agreement, and the likely cause where another reading agrees more."""
    share, repair = float(done.found.hits.mean()), done.repair
    low, high = done.usual.at(1)
    usual = f"{low:.0%} to {high:.0%}" if low < high else f"{low:.0%}"
    is_short = done.falls_short
    yield DrafterFinding(
        check="agreement",
        seen=f"{share:.0%} of {len(done.found.hits)} first tokens are the target's; usual are {usual}",
        severity="note" if is_short else "ok",
        advice="" if not is_short else "see the likely cause" if repair else TRAIN,
    )
    if repair is not None:
        yield DrafterFinding(
            check=repair.alternative.check,
            seen=f"likely cause: {repair.share:.0%} instead of {share:.0%} with {repair.alternative.reading}",
            severity="note",
            advice=repair.alternative.advice,
        )
