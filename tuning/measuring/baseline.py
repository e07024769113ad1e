"""transformers' own `generate`, measured with the same ruler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from ...runtime.batch.sequence import Request


class GenerateEntrant:
    """Greedy or sampling `generate`, `batch` left-padded prompts at a time."""

    def __init__(self, name: str, model: Any, requests: Sequence[Request], batch: int, **options: Any):
        """Take a loaded transformers model (its `generate` has no types); options go to `generate` as they are."""
        self.name = name
        self.texts: list[tuple[int, ...]] = []
        self._model, self._requests, self._batch, self._options = model, requests, batch, options
        self._tokens, self._seconds = 0, 0.0

    def advance(self, share: float) -> None:
        """Decode further groups of prompts until `share` of the requests are done."""
        while len(self.texts) < round(share * len(self._requests)):
            self._decode(self._requests[len(self.texts) : len(self.texts) + self._batch])

    @property
    def tokens_per_s(self) -> float:
        """Tokens after each sequence's first, over the time after the first; the prompt is not in it."""
        return self._tokens / self._seconds

    @torch.inference_mode()
    def _decode(self, group: Sequence[Request]) -> None:
        longest = max(len(r.prompt) for r in group)
        ids = torch.tensor([[0] * (longest - len(r.prompt)) + list(r.prompt) for r in group])
        mask = torch.tensor([[0] * (longest - len(r.prompt)) + [1] * len(r.prompt) for r in group])
        first = _FirstToken()
        stop = sorted(group[0].stop)
        output = self._model.generate(
            ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            max_new_tokens=group[0].max_new_tokens,
            do_sample=group[0].temperature > 0,
            temperature=group[0].temperature or None,
            top_k=0 if group[0].temperature else None,
            eos_token_id=stop or None,
            pad_token_id=stop[0] if stop else 0,
            stopping_criteria=StoppingCriteriaList([first]),
            **self._options,
        )
        self._seconds += time.perf_counter() - first.seen_s
        for row in output[:, longest:].tolist():
            ends = [place for place, token in enumerate(row) if token in group[0].stop]
            text = tuple(row[: ends[0] + 1] if ends else row)
            self._tokens += len(text) - 1
            self.texts.append(text)


class _FirstToken(StoppingCriteria):
    def __init__(self) -> None:
        self.seen_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        if not self.seen_s:
            self.seen_s = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
