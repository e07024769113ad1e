"""The lossy job: decode a workload by lossy ways, and keep their rounds and what they cost in quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..errors import RequestError
from ..planner.kernels.slots import NOBODY
from ..planner.lossy.quality import Quality, accuracy_loss, ends_with, mean_loss
from ..planner.lossy.run import LossyRun, LossyWay
from ..planner.strategies.lossy import classifiers_of
from ..planner.strategies.stack import StackPolicy, stack_name
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.prompts import Prompt
from ..profiler.records.device import AUTO_DTYPE
from ..runtime.batch.faults import memory_for
from ..runtime.batch.sequence import Request
from ..runtime.batch.step_config import StepConfig, always
from ..runtime.load import require_recorded
from ..runtime.models.forward import CausalModel
from ..runtime.models.layout import lay_out_text
from ..runtime.models.loading import load_tokenizer
from ..runtime.models.pivots import require_pivots_of
from .conversations import with_own_answers
from .family import identify_all, load_family, torch_device
from .measuring.decoding import DecodingRun, Family, decode_timed, names_of, room_for
from .prompts import requests_of, shown_to
from .recording.continuations import continuations
from .request import Identities, Models, ProfileRequest
from .steps import Progress, silent

Texts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyRequest:
    """Which lossy policies to decode, and on what.

    Prompts must be those of a profile, else a plan cannot compare them with its traces. `answers` are the ends that
    each prompt's text must have, or empty. `drafter` drafts chains; a stack's policy names its own. `classifiers` are
    the folders of PAD's pivot classifiers by name. `dtype` is the number format in which the plan will decode.
    """

    models: Models
    prompts: Sequence[Prompt]
    policies: Sequence[LossyWay]
    answers: Sequence[str] = ()
    classifiers: Mapping[str, Path] = field(default_factory=dict)
    drafter: str = ""
    workload: str = "default"
    temperature: float = 0.0
    device: str = "auto"
    dtype: str = AUTO_DTYPE
    batches: tuple[int, ...] = (1,)
    max_new_tokens: int = 128
    max_prompt_tokens: int | None = None  # see `prompt_room`
    seed: int = 0

    def __post_init__(self) -> None:
        if self.answers and len(self.answers) != len(self.prompts):
            raise RequestError(f"there are {len(self.prompts)} prompts and {len(self.answers)} answers; give every one")
        if not self.policies:
            raise RequestError("no lossy way was named; give at least one --setting")
        named = {name for policy in self.policies for name in models_of(policy, self.drafter)}
        if missing := sorted(named - set(self.models.drafters)):
            raise RequestError(f"no drafter called {missing[0]!r} was given; pass it with --drafter NAME=PATH")
        if missing := sorted({name for name, _ in classifiers_of(self.policies)} - set(self.classifiers)):
            raise RequestError(f"no classifier called {missing[0]!r} was given; pass it with --drafter NAME=PATH")

    @property
    def as_profile(self) -> ProfileRequest:
        """The profile that decodes the same requests."""
        return ProfileRequest(
            models=self.models,
            prompts=self.prompts,
            workload=self.workload,
            temperature=self.temperature,
            device=self.device,
            dtype=self.dtype,
            batches=self.batches,
            max_new_tokens=self.max_new_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            seed=self.seed,
        )


def models_of(policy: LossyWay, drafter: str) -> tuple[str, ...]:
    """Return the names of the models that a lossy way drafts with."""
    return policy.draft.models if isinstance(policy.draft, StackPolicy) else (drafter,)


def setup_for(policy: LossyWay, drafter: str) -> StepConfig:
    """Return how rounds of a lossy way are run."""
    name = stack_name(policy.draft) if isinstance(policy.draft, StackPolicy) else drafter
    return StepConfig(policy=policy, drafter=name)


@memory_for("decoding lossily", "free some, or ask for smaller batches or shorter texts")
def measure_lossy(request: LossyRequest, *, progress: Progress = silent) -> tuple[LossyRun, ...]:
    """Decode every policy at every batch size beside the target's own texts, and return the runs.

    Raises:
        ModelError: a model cannot be loaded or a drafter failed.
        NoRoomError: memory has no room for a text or a batch.
        RequestError: a batch is larger than the number of prompts.
    """
    profile, device = request.as_profile, detect(request.device)
    identities = identify_all(request.models)
    for name, recorded in classifiers_of(request.policies):
        require_recorded(name, identify(request.classifiers[name], name), recorded, kind="classifier")
        require_pivots_of(request.classifiers[name], identities.target)
    dtype = device.dtype_for(request.dtype)
    tokenizer = load_tokenizer(str(request.models.target))
    requests = requests_of(with_own_answers(profile, progress=progress), tokenizer)
    family = load_family(request.models, dtype=dtype, device=torch_device(device), classifiers=request.classifiers)
    requests = shown_to(family.target, requests)
    progress("decoding the target's own texts", 0.0)
    judge = Judge(family.target, tokenizer, requests, continuations(family.target, requests), request.answers)
    found: list[LossyRun] = []
    wanted = [(policy, batch) for policy in request.policies for batch in request.batches]
    for place, (policy, batch) in enumerate(wanted):
        progress(f"batch {batch}: {policy.code}", place / len(wanted))
        run = decode_lossy(family, requests, setup_for(policy, request.drafter), batch)
        found.append(_kept(request, identities, dtype, policy, requests, run, judge.quality(run)))
    return tuple(found)


def decode_lossy(family: Family, requests: Sequence[Request], setup: StepConfig, batch: int) -> DecodingRun:
    """Return what decoding all requests by one setup did, lossily where the setup is lossy."""
    room = room_for(requests, [setup], batch)
    names = names_of(setup)
    decoder = family.decoder(always(setup), names=names, batch=batch, capacity=room, allow_lossy=setup.is_lossy)
    return decode_timed(decoder, requests, batch, keeps_full=True)


class Judge:
    """Says what texts are worth beside the target's own: by answers where there are any, else by the target itself."""

    def __init__(
        self,
        target: CausalModel,
        tokenizer: PreTrainedTokenizerBase,
        requests: Sequence[Request],
        own: Texts,
        answers: Sequence[str] = (),
    ) -> None:
        self._target, self._tokenizer, self._requests, self._answers = target, tokenizer, requests, answers
        self._own = [tuple(text) for text in own]
        self._own_scores = self._scores(self._own)

    def right(self, texts: Texts) -> list[bool]:
        """Return whether each text ends with its answer, word by word."""
        decoded = (str(self._tokenizer.decode(list(text), skip_special_tokens=True)) for text in texts)
        return [ends_with(text, answer) for text, answer in zip(decoded, self._answers, strict=True)]

    def quality(self, run: DecodingRun) -> Quality:
        """Return what a run's texts cost."""
        scores = self._scores(run.texts)
        if self._answers:
            loss, low, high = accuracy_loss([one > 0 for one in self._own_scores], [one > 0 for one in scores])
        else:
            loss, low, high = mean_loss(self._own_scores, scores)
        emitted = sum(len(text) for text in run.texts)
        return Quality(
            measure="accuracy" if self._answers else "log-prob",
            prompts=len(self._own),
            target=float(np.mean(self._own_scores)),
            lossy=float(np.mean(scores)),
            loss=loss,
            low=low,
            high=high,
            same_texts=float(np.mean([one == tuple(text) for one, text in zip(self._own, run.texts, strict=True)])),
            lossy_tokens=sum(sum(each.round.lossy) for each in run.rounds) / emitted,
        )

    def _scores(self, texts: Texts) -> list[float]:
        if self._answers:
            return [float(right) for right in self.right(texts)]
        pairs = zip(self._requests, texts, strict=True)
        return [mean_log_prob(self._target, request.prompt, text) for request, text in pairs]


def mean_log_prob(target: CausalModel, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Return the mean log-probability, in nats, that a target gives to each token of a text behind a prompt."""
    tokens = [*prompt, *text[:-1]]
    logits = target.forward(lay_out_text(target, tokens), target.new_cache(1, len(tokens)))[0, len(prompt) - 1 :]
    logs = logits.double().log_softmax(-1)
    said = logs.gather(-1, torch.tensor(list(text), device=logs.device).unsqueeze(-1))
    return float(said.mean())


def _kept(
    request: LossyRequest,
    identities: Identities,
    dtype: str,
    policy: LossyWay,
    requests: Sequence[Request],
    run: DecodingRun,
    quality: Quality,
) -> LossyRun:
    names = models_of(policy, request.drafter)
    rounds, texts = [each.round for each in run.rounds], len(requests)
    gates = [gate for each in rounds for index, gate in zip(each.sequences, each.gates, strict=False) if index < texts]
    return LossyRun(
        target=identities.target.key,
        dtype=dtype,
        workload=request.workload,
        temperature=request.temperature,
        seed=request.seed,
        max_new_tokens=request.max_new_tokens,
        batch=run.batch,
        drafters=tuple((name, identities.drafters[name].key) for name in names),
        drafter=setup_for(policy, request.drafter).drafter or "",
        policy=policy,
        quality=quality,
        prompts=tuple(request.prompt for request in requests),
        contexts=_ints([each.context for each in rounds]),
        nodes=_ints([each.verify_tokens for each in rounds]),
        catch_up=_ints([each.uncached for each in rounds]),
        widths=_rows([each.widths for each in rounds], 0),
        levels=_rows([each.levels for each in rounds], NOBODY, like=[each.widths for each in rounds]),
        texts=_ints([[index if index < texts else NOBODY for index in each.sequences] for each in rounds]),
        kept=_ints([each.kept for each in rounds]),
        matched=sum(gate.matched for gate in gates),
        mismatched=sum(gate.mismatched for gate in gates),
        entropies=np.array([value for gate in gates for value in gate.entropies], dtype=np.float32),
        pivots=np.array([value for gate in gates for value in gate.pivots], dtype=np.float32),
    )


def _ints(values: Sequence[object]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _rows(
    rows: Sequence[Sequence[int]], padding: int, like: Sequence[Sequence[int]] | None = None
) -> NDArray[np.int32]:
    """Return rows of different lengths as one array, as wide as the longest of them or of `like`."""
    wide = max(map(len, like or rows), default=0)
    found = np.full((len(rows), wide), padding, dtype=np.int32)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found
