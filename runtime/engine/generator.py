"""Text in, text out: what `spectune.load` returns."""

from __future__ import annotations

from collections.abc import Generator as Pieces
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from transformers import PreTrainedTokenizerBase

from ...errors import DeviceError, RequestError
from ...profiler.prompt import Message
from ...profiler.prompt_forms import message_of
from ...profiler.records.role import CAPTURED
from ..backends.choice import choose
from ..backends.names import Name
from ..batch.faults import is_out_of_memory, reason_of
from ..batch.images import ImagePrompt, PromptLike
from ..batch.sequence import Request, seed_behind
from ..batch.step_config import Schedule
from ..models.forward import CausalModel
from ..models.layout import PREFILL_TOKENS
from ..openmp import let_workers_go, let_workers_go_beside_others
from ..plan_choice import Choice
from .make_engine import EngineMaker, ReusableEngine
from .observer import RoundObserver
from .pad import PivotJudge
from .prompts import chat_ids, request_of, request_of_ids, require_short
from .scheduler import Scheduler
from .settings import Completion, Event, GenerationOptions, GenerationSettings
from .warmup import WarmUp

USUAL_LENGTH = 2048  # tokens of a session's requests, prompt and new ones together
Conversation = Sequence[Message | Mapping[str, Any]]
SHARED_LENGTH = 512  # texts are given room for a multiple of this where the next call may use it


class Generator:
    """A target and its drafters, ready to decode by a schedule.

    Everything that generates takes `GenerationSettings`, their fields as keywords, or both: keywords win. A prompt is
    text or, for a target that sees, an `ImagePrompt`.

    Attributes:
        choice: the plan, or why there is none.
        tokenizer: the target's.
        observer: gets every round; of a loaded generator its `Watch`, with events, counters and drift.
    """

    def __init__(
        self,
        target: CausalModel,
        tokenizer: PreTrainedTokenizerBase,
        drafters: Mapping[str, CausalModel],
        schedule: Schedule,
        choice: Choice,
        observer: RoundObserver | None = None,
        *,
        allow_lossy: bool = False,
        judges: Mapping[str, PivotJudge] | None = None,
        ends: frozenset[int] | None = None,
        why_longest: str = "",
    ) -> None:
        """Use loaded models, and judges by name; the observer gets every round.

        `ends` are the tokens that end a text, see `stop_tokens.py`; None: the tokenizer's own. `why_longest` is the
        target's `why_shorter`. A call reuses the last call's caches if they fit, with the work captured over them,
        which can take longer than a text, and with its texts, which prompts may continue. A session has its own and
        frees those.
        """
        self.choice = choice
        self._target, self.tokenizer, self._ends, self.observer = target, tokenizer, ends, observer
        self._why_longest = why_longest
        self._backend = choose(target)
        self._maker = EngineMaker(
            target=target,
            models=drafters,
            setups_within=choice.setups_within,
            schedule=schedule,
            judges=judges or {},
            allow_lossy=allow_lossy,
            backend=self._backend,
        )
        self._spare: ReusableEngine | None = None  # of the last call

    @property
    def backend(self) -> Name:
        """What runs the rounds, chosen when the target was loaded: "cpu", "torch" or "cuda_graph"."""
        return self._backend.name

    def generate(
        self, prompt: PromptLike, settings: GenerationSettings | None = None, **options: Unpack[GenerationOptions]
    ) -> Completion:
        """Return the target's continuation of one prompt.

        RequestError where the prompt has no tokens or does not fit into the model, or a setting is out of range;
        DeviceError where there is no memory for the sequence's keys and values, or to read the prompt.
        """
        return _read(self.generate_batch([prompt], settings, **options)[0])

    def generate_batch(
        self,
        prompts: Sequence[PromptLike],
        settings: GenerationSettings | Sequence[GenerationSettings] | None = None,
        *,
        slots: int = 8,
        **options: Unpack[GenerationOptions],
    ) -> list[Completion]:
        """Return the continuations of all prompts; one whose prompt finds no memory has "failed".

        `settings` are one per prompt, or one for all, with which prompt i has seed + i. `slots` of them decode at once.
        RequestError where a prompt has no tokens or does not fit into the model, or a setting is out of range;
        DeviceError where there is no memory for the slots' keys and values, or for a round of plain decoding.
        """
        if isinstance(prompts, str | ImagePrompt):
            raise RequestError("generate_batch takes several prompts, got one; write [prompt]")
        each = _one_per_prompt(settings, options, len(prompts))
        requests = [self.request(*pair) for pair in zip(prompts, each, strict=True)]
        return self._completed(requests, each, slots) if requests else []

    def _completed(
        self, requests: Sequence[Request], each: Sequence[GenerationSettings], slots: int
    ) -> list[Completion]:
        held = self._held_for(requests, slots)
        held.engine.expect(held.slots, max(len(request.prompt) for request in requests[: held.slots]))
        session = self._session_over(held, piecewise=False)
        for request, own in zip(requests, each, strict=True):
            session.enqueue(request, own.stop)
        done = {event.handle: event.completion for event in _events(session) if event.completion is not None}
        self._set_aside(held)
        return [done[handle] for handle in range(len(requests))]

    def chat(
        self, messages: Conversation, settings: GenerationSettings | None = None, **options: Unpack[GenerationOptions]
    ) -> Completion:
        """Return the target's answer to a conversation, by its tokenizer's chat template.

        `messages` are turns such as {"role": "user", "content": "Hi"}, as in OpenAI's API. RequestError: as `generate`;
        or there is no such template, or it refuses the conversation; DeviceError: as `generate`.
        """
        (own,) = _one_per_prompt(settings, options, 1)
        return _read(self._completed([self.chat_request(messages, own)], [own], 1)[0])

    def stream_chat(
        self, messages: Conversation, settings: GenerationSettings | None = None, **options: Unpack[GenerationOptions]
    ) -> Pieces[str, None, Completion]:
        """Yield the answer to a conversation piece by piece, as `stream` does; results and errors as in `chat`."""
        (own,) = _one_per_prompt(settings, options, 1)
        return (yield from self._pieces(self.chat_request(messages, own), own))

    def stream(
        self, prompt: PromptLike, settings: GenerationSettings | None = None, **options: Unpack[GenerationOptions]
    ) -> Pieces[str, None, Completion]:
        """Yield the continuation of one prompt piece by piece, as rounds commit it; return what `generate` does.

        A piece never ends inside a character, nor with a possible start of a stop string.

        Raises:
            RequestError, DeviceError: as `generate`.
        """
        (own,) = _one_per_prompt(settings, options, 1)
        return (yield from self._pieces(self.request(prompt, own), own))

    def _pieces(self, request: Request, own: GenerationSettings) -> Pieces[str, None, Completion]:
        held = self._held_for([request], 1)
        held.engine.expect(1, len(request.prompt))
        session = self._session_over(held, piecewise=True)
        handle = session.enqueue(request, own.stop)
        done: Completion | None = None
        try:
            for event in _events(session):
                if event.completion is not None:
                    done = _read(event.completion)
                if event.piece:
                    yield event.piece
        except GeneratorExit:  # whoever listens has had enough
            session.cancel(handle)
            self._set_aside(held)
            raise
        self._set_aside(held)
        assert done is not None, "a session goes on until every request has ended"
        return done

    def session(
        self,
        *,
        slots: int = 8,
        longest: int | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        prefix_caching: bool = True,
        spare_slots: int = 0,
        warm: bool = False,
    ) -> Scheduler:
        """Return a running batch that requests may join and leave at any time.

        Args:
            slots: sequences decoded at once; the others wait.
            longest: most tokens of one request, prompt and new ones, for which memory is allocated; None: 2,048, or the
                model's positions if fewer.
            prefill_tokens: of prompts, read at most between two rounds: fewer keep running requests fast, more let a
                long prompt begin sooner.
            prefix_caching: a prompt that begins like another request's text is read from where they differ. Its faster
                answer reveals to the sender how other prompts begin.
            spare_slots: for texts that have ended while all slots are in use; usually as many as `slots` if memory has
                room, which no plan counts.
            warm: decode throwaway texts at every batch and in all setups of the plan first. It takes seconds, so that
                no request waits for a first capture or compilation.

        Raises:
            RequestError: the model has fewer positions than that, a number is too small, or spare slots have no use.
            DeviceError: there is no memory for the slots' keys and values, or for a round of plain decoding.
        """
        most = self._target.longest_context
        longest = min(USUAL_LENGTH, most) if longest is None else longest
        if not 2 <= longest <= most:
            raise RequestError(
                f"the model has {most} positions{self._why_longest}, and a request takes 2 or more; got "
                f"longest={longest}"
            )
        _require_slots(slots)
        if spare_slots < 0 or (spare_slots and not prefix_caching):
            raise RequestError(f"spare slots are 0 or more, and 0 without prefix_caching, got {spare_slots}")
        self._spare = None  # its caches make room for the new ones
        held = self._maker.make(slots, longest, prefix_caching=prefix_caching, spare_slots=spare_slots)
        if warm:
            self._warm(held)
        let_workers_go()  # another thread may be the one that steps
        return self._session_over(held, piecewise=True, prefill_tokens=prefill_tokens)

    def _warm(self, held: ReusableEngine) -> None:
        plan = self.choice.plan
        run = WarmUp(held.engine, longest=held.longest, temperature=0.0 if plan is None else plan.temperature)
        try:
            run.run(
                lambda batch: self.choice.setups_at(batch, held.longest),
                range(1, held.slots + 1),
                captured=self._is_captured,
            )
        except (MemoryError, RuntimeError) as error:
            raise _no_memory(error) from error

    def chat_request(self, messages: Conversation, settings: GenerationSettings) -> Request:
        """Return a conversation in tokens, by the tokenizer's chat template, as `request` does a prompt.

        RequestError where there is no such template, it refuses the conversation, or a turn is malformed.
        """
        if isinstance(messages, str | Mapping):
            raise RequestError('chat takes turns, got one; write [{"role": "user", "content": "..."}]')
        turns = [message if isinstance(message, Message) else message_of(message) for message in messages]
        self.require_short([turn.content for turn in turns])
        return request_of_ids(self.tokenizer, chat_ids(self.tokenizer, turns), settings, self._ends)

    def request(self, prompt: PromptLike, settings: GenerationSettings) -> Request:
        """Return a prompt in tokens, for a session's `enqueue`; thread-safe, also while another thread decodes.

        RequestError where the prompt has no tokens, or its images do not fit it or the target.
        """
        if isinstance(prompt, PromptLike):
            self.require_short([prompt.text if isinstance(prompt, ImagePrompt) else prompt])
        gallery = self._target.gallery
        seen = None if gallery is None else gallery.tokens
        return request_of(self.tokenizer, prompt, settings, seen, self._ends)

    def require_short(self, texts: Sequence[str], positions: int | None = None) -> None:
        """Raise RequestError where texts surely have more tokens than there are positions; None: the model's."""
        require_short(self.tokenizer, texts, self._target.longest_context if positions is None else positions)

    @property
    def _is_captured(self) -> bool:
        return self._target.regime == CAPTURED

    def _held_for(self, requests: Sequence[Request], slots: int) -> ReusableEngine:
        slots, longest = min(slots, len(requests)), max(len(r.prompt) + r.max_new_tokens for r in requests)
        _require_slots(slots)
        if longest > self._target.longest_context:
            raise RequestError(
                f"prompt and new tokens need {longest} positions and the model has {self._target.longest_context}"
                f"{self._why_longest}; "
                "shorten the prompt or lower max_new_tokens"
            )
        spare, self._spare = self._spare, None
        if spare is not None and spare.serves(slots, longest):
            spare.calls += 1
            return spare
        del spare  # its caches make room for the new ones
        shared = min(-(-longest // SHARED_LENGTH) * SHARED_LENGTH, self._target.longest_context)
        try:
            return self._maker.make(slots, shared)  # one of few lengths, so that it serves again
        except DeviceError:
            if shared == longest:
                raise
        return self._maker.make(slots, longest)

    def _set_aside(self, held: ReusableEngine) -> None:
        self._spare = held
        let_workers_go_beside_others()

    def _session_over(
        self, held: ReusableEngine, *, piecewise: bool, prefill_tokens: int = PREFILL_TOKENS
    ) -> Scheduler:
        return Scheduler(
            held.engine,
            self.tokenizer,
            longest=held.longest,
            piecewise=piecewise,
            observer=self.observer,
            gallery=self._target.gallery,
            ends=self._ends,
            prefill_tokens=prefill_tokens,
            why_longest=self._why_longest if held.longest == self._target.longest_context else "",
        )


def _require_slots(slots: int) -> None:
    if slots < 1:
        raise RequestError(f"slots must be at least 1, got {slots}; 8 are usual")


def _events(session: Scheduler) -> Iterator[Event]:
    try:
        yield from session.events()
    except (MemoryError, RuntimeError) as error:
        raise _no_memory(error) from error


def _no_memory(error: Exception) -> DeviceError:
    """Return the error for a round without memory; raise any other error again."""
    if not is_out_of_memory(error):
        raise error
    return DeviceError(f"a round does not fit into memory: {reason_of(error)}; decode fewer at once")


def _read(completion: Completion) -> Completion:
    if completion.finish_reason == "failed":
        raise DeviceError(f"the prompt could not be read: {completion.error}; shorten it, or decode fewer at once")
    return completion


def _one_per_prompt(
    settings: GenerationSettings | Sequence[GenerationSettings] | None, options: GenerationOptions, prompts: int
) -> list[GenerationSettings]:
    """Return each prompt's settings with the options; settings for all get one seed per prompt."""
    if settings is None or isinstance(settings, GenerationSettings):
        shared = replace(settings or GenerationSettings(), **options)
        return [replace(shared, seed=seed_behind(shared.seed, place)) for place in range(prompts)]
    if len(settings) != prompts:
        raise RequestError(f"there are {prompts} prompts and {len(settings)} settings; give one each, or one for all")
    return [replace(own, **options) for own in settings]
