"""transformers' `generate` as an engine that runs here: one sequence, plain, with an assistant, or by prompt lookup.

`generate` drafts before it has read the prompt: its first round verifies prompt and drafts at once. Here that round has
no drafts (`_Watched`), so that prompts are read before the clock starts; each later round is `generate`'s own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from ...errors import ModelError, RequestError
from ...planner.records.recording import Text
from ...planner.strategies.chain import ChainPolicy
from ...runtime.engine.folder_chats import TOKENIZER_FILE
from ...runtime.engine.loaded_chats import chats_of_tokenizer
from ...runtime.models.loading import first_line, load_tokenizer, positions_of_folder
from ...runtime.models.rehearsal import require_loadable
from ..measured import EngineCounters, EngineFacts, EngineLoad, EngineStart, EngineText, notes_on_version
from ..one_sequence import WARM_UP_TOKENS, RoundCounts, lookups, measurable, require_one_sequence
from ..schema import nearest_recorded
from ..setting import EngineDrafter, Setting
from ..vocabulary import PROBE, require_same_tokens
from .export import EXPORT

NAME = "transformers"


class RunningTransformers:
    """A target and its assistants, loaded once and shared by all settings; a `MeasuredEngine`."""

    def __init__(self, target: Path, drafters: Mapping[str, Path], *, dtype: str, threads: int, folder: Path) -> None:
        """Load the models on the CPU; drafters must have the target's tokenizer.

        `threads` is set for the whole process, since torch has one number of them. Nothing is converted to `folder`.

        Raises:
            RequestError: there is no folder at a path.
            ModelError: a model or the tokenizer cannot be loaded.
        """
        for path in (target, *drafters.values()):
            if not path.is_dir():  # else it would be looked for on the model hub
                raise RequestError(f"no model folder at {path}; give one that transformers reads")
        torch.set_num_threads(threads)
        self._tokenizer = load_tokenizer(str(target))
        self.chats = chats_of_tokenizer(target, self._tokenizer)
        self._target = _loaded(target, dtype)
        self._assistants = {name: _loaded(path, dtype) for name, path in drafters.items()}
        self.drafters = tuple(EngineDrafter(name=name, path=str(path), form="model") for name, path in drafters.items())
        version = transformers.__version__
        recorded = nearest_recorded(NAME, version)
        self.facts = EngineFacts(
            name=NAME,
            version=version,
            recorded=recorded,
            regime=f"engine:transformers-{version}",
            dtype=dtype,
            threads=threads,
            most_concurrency=1,
            sets_acceptance=False,
            positions=positions_of_folder(target),
            notes=notes_on_version(NAME, version, recorded),
        )

    def reading(self) -> AbstractContextManager[object]:
        """Return a context of nothing: the tokenizer is loaded."""
        return nullcontext()

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return texts' token ids."""
        return [tuple(self._tokenizer.encode(text)) for text in texts]

    @torch.inference_mode()
    def next_tokens(self, drafter: EngineDrafter, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return an assistant's own next tokens, by one forward per text; see `MeasuredEngine.next_tokens`."""
        model, found = self._assistants[drafter.name], []
        self._require_same_tokens(drafter)
        for text in texts:
            ids = torch.tensor([[*text.prompt, *text.continuation[:-1]]])
            found.append(tuple(model(ids).logits[0, -text.positions :].argmax(dim=-1).tolist()))
        return found

    def _require_same_tokens(self, drafter: EngineDrafter) -> None:
        sizes = [one.config.get_text_config().vocab_size for one in (self._assistants[drafter.name], self._target)]
        if sizes[0] != sizes[1]:
            raise RequestError(
                f"{drafter.name} has {sizes[0]} tokens and the target {sizes[1]}; transformers would translate its "
                "drafts, and what that keeps and costs is not known here: leave it out"
            )
        if (Path(drafter.path) / TOKENIZER_FILE).is_file():
            own, target = (one.encode(PROBE) for one in (load_tokenizer(drafter.path), self._tokenizer))
            otherwise = "transformers would take its drafts for other words"
            require_same_tokens(drafter.name, own, target, otherwise=otherwise)

    def ngrams(self) -> Sequence[Setting]:
        """Return a few lengths of prompt lookup, the simplest first."""
        return lookups(EXPORT, self.facts.recorded)

    def chain(self, drafter: EngineDrafter, length: int) -> Setting:
        """Return the setting of an assistant that never doubts."""
        return measurable(EXPORT, self.facts.recorded, ChainPolicy(length=length), drafter)

    @contextmanager
    def started(self, setting: Setting | None, load: EngineLoad) -> Iterator[Generation]:
        """Start decoding with a setting; see `MeasuredEngine.started`."""
        require_one_sequence(NAME, load)
        assistant = None if setting is None or setting.drafter is None else self._assistants[setting.drafter.name]
        running = Generation(self._target, assistant, setting)
        running.decode([[0, 1]], WARM_UP_TOKENS)
        yield running


class Generation:
    """`generate` with one setting."""

    def __init__(self, target: Any, assistant: Any, setting: Setting | None) -> None:
        """Use loaded models (their `generate` has no types)."""
        self._target, self._assistant, self._setting = target, assistant, setting
        self._counts = RoundCounts()

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[EngineText, ...]:
        """Continue the one prompt greedily, with counts of each round."""
        (prompt,) = prompts
        text = self._plain(prompt, new_tokens) if self._setting is None else self._drafted(prompt, new_tokens)
        return (text,)

    def counters(self) -> EngineCounters:
        """Return the counts since the start."""
        return self._counts.counters

    def _plain(self, prompt: Sequence[int], new_tokens: int) -> EngineText:
        clock = _Clock()
        tokens = self._generate(prompt, new_tokens, stopping_criteria=StoppingCriteriaList([clock]))
        return EngineText(tokens=tokens, ms=clock.ms, drafted=0, accepted=0, kept=(0,) * (len(tokens) - 1))

    def _drafted(self, prompt: Sequence[int], new_tokens: int) -> EngineText:
        watched: list[_Watched] = []
        make = self._target._get_candidate_generator

        def watching(**options: Any) -> _Watched:
            watched.append(_Watched(make(**options), len(prompt) + new_tokens))
            return watched[0]

        self._target._get_candidate_generator = watching
        try:
            tokens = self._generate(prompt, new_tokens, **self._options())
        finally:
            del self._target._get_candidate_generator  # the class's own is behind it
        (seen,) = watched
        for drafted, kept in seen.rounds:
            self._counts.add(drafted, kept)
        return EngineText(
            tokens=tokens,
            ms=seen.ms,
            drafted=sum(drafted for drafted, _ in seen.rounds),
            accepted=sum(kept for _, kept in seen.rounds),
            kept=tuple(kept for _, kept in seen.rounds),
        )

    def _options(self) -> dict[str, Any]:
        assert self._setting is not None
        knobs = dict(self._setting.knobs)
        if self._assistant is None:
            return {"prompt_lookup_num_tokens": self._setting.length, **knobs}
        self._assistant.generation_config.update(num_assistant_tokens=self._setting.length, **knobs)
        return {"assistant_model": self._assistant}

    @torch.inference_mode()
    def _generate(self, prompt: Sequence[int], new_tokens: int, **options: Any) -> tuple[int, ...]:
        ids = torch.tensor([list(prompt)])
        output = self._target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, **options
        )
        return tuple(output[0, len(prompt) :].tolist())


class _Watched:
    """transformers' own source of candidates; drops the first ones and records every other round.

    Prompt lookup copies past the end of a text; what is cut after the forward is not counted.
    """

    def __init__(self, inner: Any, end: int) -> None:
        self._inner, self._end = inner, end
        self._candidates = 0
        self._ends_ns: list[int] = []
        self.rounds: list[tuple[int, int]] = []  # drafted, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def ms(self) -> float:
        """From the end of the round that read the prompt to the end of the last one."""
        return (self._ends_ns[-1] - self._ends_ns[0]) / 1e6

    def get_candidates(self, input_ids: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return transformers' drafts; none in the first round, in which the assistant reads the prompt, too."""
        candidates, logits = self._inner.get_candidates(input_ids, **more)
        if not self._ends_ns:
            candidates, logits = input_ids, None
        self._candidates = min(candidates.shape[1], self._end - 1) - input_ids.shape[1]
        return candidates, logits

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: Any) -> None:
        if self._ends_ns:
            self.rounds.append((self._candidates, int(num_matches)))
            self._inner.update_candidate_strategy(input_ids, scores, num_matches)
        self._ends_ns.append(time.perf_counter_ns())


class _Clock(StoppingCriteria):
    """Never stops; records the times of the tokens."""

    def __init__(self) -> None:
        self._ends_ns: list[int] = []

    @property
    def ms(self) -> float:
        return (self._ends_ns[-1] - self._ends_ns[0]) / 1e6

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._ends_ns.append(time.perf_counter_ns())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _loaded(path: Path, dtype: str) -> Any:
    """Return a model that does not stop at end-of-text, and has no penalties and no sampling of its own."""
    require_loadable(str(path))
    try:
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype)).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"transformers cannot load {path}: {first_line(error)}") from error
    own = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id)
    return model


RUNNING: EngineStart = RunningTransformers
