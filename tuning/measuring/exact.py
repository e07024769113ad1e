"""Check in fp32 that what was decoded is the target's own, with transformers as the judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ...runtime.batch.sequence import Request
from ...runtime.sampling.noise import gumbel

NEAR_TIE = 1e-4  # logits closer than this may be ordered either way by fp32 forwards of different shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Emitted tokens that are not the judge's first choice: by a near-tie, or wrong."""

    near_ties: int
    wrong: int

    @property
    def is_identical(self) -> bool:
        """Whether every emitted token is the target's own, near-ties aside."""
        return self.wrong == 0


def judge(
    model: PreTrainedModel,
    requests: Sequence[Request],
    texts: Iterable[Sequence[int]],
    *,
    near_tie: float = NEAR_TIE,
) -> Judgement:
    """Compare every emitted token with the draw of the target's own teacher-forced forward in fp32.

    Each text is judged behind its own earlier tokens, so one near-tie does not spoil what follows. Scores closer than
    `near_tie` may be ordered either way; the default is for fp32.
    """
    near_ties = wrong = 0
    for request, text in zip(requests, texts, strict=True):
        gaps = _gaps(model, request, text)
        near_ties += int(((gaps > 0) & (gaps < near_tie)).sum())
        wrong += int((gaps >= near_tie).sum())
    return Judgement(near_ties=near_ties, wrong=wrong)


@torch.inference_mode()
def _gaps(model: PreTrainedModel, request: Request, text: Sequence[int]) -> torch.Tensor:
    """Return (len(text),): how far each emitted token's score lies below the best one's."""
    ids = torch.tensor([[*request.prompt, *text]], device=model.device)
    logits = model(input_ids=ids[:, :-1]).logits[0, len(request.prompt) - 1 :].float()
    if request.temperature > 0:
        places = torch.arange(len(request.prompt), ids.shape[1], device=ids.device)
        noise = gumbel(torch.full_like(places, request.seed), places, logits.shape[-1])
        logits = logits / request.temperature + noise
    chosen = logits.gather(1, ids[0, len(request.prompt) :, None])[:, 0]
    gaps: torch.Tensor = logits.max(dim=1).values - chosen
    return gaps
