"""Text in, text out: what `spectune.load` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from .choice import Choice
from .decoder import Decoder
from .drafters.lookup import LookupDrafter
from .drafters.model import ModelDrafter
from .drafters.protocol import Drafter
from .models.forward import CausalModel
from .requests import Request
from .requests import Sequence as Decoded
from .setup import PLAIN, RoundSetup, Schedule, draft_room, setup_of

UNFINISHED = "\ufffd"  # what a tokenizer shows for the first bytes of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated for one prompt."""

    text: str
    tokens: tuple[int, ...]
    rounds: int  # target forwards this sequence took part in, its prompt apart


class Generator:
    """A target and its drafters, ready to decode by a schedule.

    Attributes:
        choice: the plan it follows, or why there is none.
    """

    def __init__(
        self,
        target: CausalModel,
        tokenizer: PreTrainedTokenizerBase,
        drafters: Mapping[str, CausalModel],
        schedule: Schedule,
        choice: Choice,
    ) -> None:
        """Take loaded models; caches are allocated per call."""
        self.choice = choice
        self._target, self._tokenizer = target, tokenizer
        self._drafters, self._schedule = drafters, schedule

    def generate(
        self, prompt: str, *, max_new_tokens: int = 128, temperature: float = 0.0, seed: int = 0
    ) -> Completion:
        """Return the target's continuation of one prompt."""
        return self.generate_batch([prompt], max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)[0]

    def generate_batch(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        slots: int = 8,
    ) -> list[Completion]:
        """Return the continuations of all prompts; prompt i draws with seed + i.

        Args:
            prompts: any number.
            max_new_tokens: per prompt.
            temperature: 0 is greedy.
            seed: of the first prompt's draws.
            slots: sequences decoded at once; the others wait for a free slot.

        Raises:
            RequestError: a prompt has no tokens or does not fit into the model.
        """
        requests = [self._request(p, max_new_tokens, temperature, seed + i) for i, p in enumerate(prompts)]
        decoder = self._decoder(requests, min(slots, len(requests)))
        sequences: list[Decoded] = []
        rounds = [0] * len(requests)
        while len(sequences) < len(requests) or decoder.running:
            while len(sequences) < len(requests) and decoder.has_room:
                sequences.append(decoder.admit(requests[len(sequences)], len(sequences)))
            if decoder.running:
                for sequence in decoder.running:
                    rounds[sequence.index] += 1
                decoder.step()
        return [self._completion(s, rounds[s.index]) for s in sequences]

    def stream(
        self, prompt: str, *, max_new_tokens: int = 128, temperature: float = 0.0, seed: int = 0
    ) -> Iterator[str]:
        """Yield the continuation of one prompt piece by piece, as rounds commit it."""
        request = self._request(prompt, max_new_tokens, temperature, seed)
        decoder = self._decoder([request], 1)
        sequence = decoder.admit(request)
        shown = ""
        while True:
            is_finished = sequence.is_finished
            text = self._text(sequence)
            ready = text if is_finished else text.removesuffix(UNFINISHED)
            if len(ready) > len(shown) and ready.startswith(shown):
                yield ready[len(shown) :]
                shown = ready
            if is_finished:
                return
            decoder.step()

    def _request(self, prompt: str, max_new_tokens: int, temperature: float, seed: int) -> Request:
        ids = tuple(self._tokenizer(prompt)["input_ids"])
        if not ids:
            raise RequestError("the prompt is empty; write some text")
        end = self._tokenizer.eos_token_id
        stop = frozenset() if end is None else frozenset([int(end)])
        return Request(prompt=ids, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, stop=stop)

    def _decoder(self, requests: Sequence[Request], slots: int) -> Decoder:
        room = max(len(r.prompt) + r.max_new_tokens for r in requests)
        if room > self._target.longest_context:
            raise RequestError(
                f"prompt and new tokens need {room} positions and the model has {self._target.longest_context}; "
                "shorten the prompt or lower --max-new-tokens"
            )
        capacity = room + draft_room(self._setups(), slots)
        drafters: dict[str, Drafter] = {
            name: ModelDrafter(model, slots=slots, capacity=capacity) for name, model in self._drafters.items()
        }
        drafters["lookup"] = LookupDrafter()
        return Decoder(self._target, drafters, self._schedule, slots=slots, capacity=capacity)

    def _setups(self) -> list[RoundSetup]:
        """Return how rounds may be run: any way the plan has, or plainly."""
        cells = [] if self.choice.plan is None else self.choice.plan.cells
        return [PLAIN, *(setup_of(cell) for cell in cells)]

    def _text(self, sequence: Decoded) -> str:
        return str(self._tokenizer.decode(sequence.emitted, skip_special_tokens=True))

    def _completion(self, sequence: Decoded, rounds: int) -> Completion:
        return Completion(text=self._text(sequence), tokens=tuple(sequence.emitted), rounds=rounds)
