"""Requests of one engine: they wait in a queue, join as slots free, yield their text, and leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Unpack

from transformers import PreTrainedTokenizerBase

from ...errors import RequestError
from ..batch.faults import is_out_of_memory, reason_of
from ..batch.images import PromptLike
from ..batch.sequence import Request, Sequence
from ..models.image_cache import ImageCache
from ..models.layout import PREFILL_TOKENS
from .detokenizer import Detokenizer
from .engine import Engine
from .observer import RoundObserver
from .prefill import ALL
from .prompts import request_of, require_known, require_room
from .request_state import RequestState
from .settings import Event, FinishReason, GenerationOptions, GenerationSettings

DEFAULTS = GenerationSettings()
Due = tuple[RequestState, Sequence, int]  # who emitted something, with how many tokens there were before


class Scheduler:
    """Requests decoded together, as many at once as the engine has slots; the others wait in order.

    `submit`, `enqueue` and `cancel` may be called between any two steps, and change no other request's output. Use one
    thread at a time. A request that has ended is dropped: its last event has all its output. Without a tokenizer `add`
    takes requests in tokens, `schedule` lets them join, and the caller steps the engine.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        longest: int = 0,  # prompt and new tokens of a request; the engine's caches have room for these and draft nodes
        piecewise: bool = True,
        observer: RoundObserver | None = None,
        gallery: ImageCache | None = None,  # of a target that sees; holds a request's images while it runs
        ends: frozenset[int] | None = None,  # tokens that end a text, see `stop_tokens.py`; None: the tokenizer's own
        prefill_tokens: int = PREFILL_TOKENS,  # of prompts, read at most between two rounds where `piecewise`
        why_longest: str = "",  # reason for a short `longest`, in brackets
    ) -> None:
        """Use an engine that no other scheduler uses at the same time; RequestError where `prefill_tokens` is below 1.

        `piecewise`: events give text after every round; otherwise each request has one event with all of it.
        """
        if prefill_tokens < 1:
            raise RequestError(f"prefill_tokens must be at least 1, got {prefill_tokens}; {PREFILL_TOKENS} are usual")
        self._engine, self._tokenizer = engine, tokenizer
        self._longest, self._piecewise, self._observer = longest, piecewise and tokenizer is not None, observer
        self._why_longest = why_longest
        self._gallery, self._ends, self._prefill_tokens = gallery, ends, prefill_tokens
        self._submitted = 0
        self._states: dict[int, RequestState] = {}  # whose events are read, by handle
        self._waiting: deque[RequestState] = deque()
        self._events: list[Event] = []  # that the next step returns
        self._due: list[Due] = []  # whose news are not read; the next one last
        self._cancelled: list[RequestState] = []  # that have not left yet
        self._cramped_at: int | None = None  # sequences beside which the next request found no memory

    @property
    def longest(self) -> int:
        """The most tokens of a request, prompt and new ones."""
        return self._longest

    @property
    def waiting(self) -> int:
        """Requests that have not joined yet."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs, and no event is pending."""
        return not self._states and not self._events

    def submit(
        self, prompt: PromptLike, settings: GenerationSettings = DEFAULTS, **options: Unpack[GenerationOptions]
    ) -> int:
        """Queue a prompt for a slot; return its handle, counted from 0. Options override the settings' fields.

        RequestError where the prompt has no tokens or, with its new ones, more than fit; a setting is out of range.
        """
        settings = replace(settings, **options)
        seen = None if self._gallery is None else self._gallery.tokens
        return self.enqueue(request_of(self._texts, prompt, settings, seen, self._ends), settings.stop)

    def enqueue(self, request: Request, stop: Many[str] = ()) -> int:
        """Queue a request in tokens for a slot; return its handle. `stop` are strings that end its text.

        RequestError where it does not fit, or has a token that the target lacks.
        """
        require_room(request, self._longest, self._why_longest)
        require_known(request, self._engine.vocabulary)
        shown = len(set(request.images))
        if self._gallery is not None and shown > self._gallery.room:
            raise RequestError(f"a prompt shows {shown} images and there is room for {self._gallery.room}; show fewer")
        detokenizer = Detokenizer(self._texts, len(request.prompt), stop)
        state = self._queued(request, detokenizer, is_read=self._piecewise or bool(stop))
        self._states[state.handle] = state
        return state.handle

    def add(self, request: Request) -> RequestState:
        """Queue a request without events; its state has its sequence once it has joined."""
        return self._queued(request, None, is_read=False)

    def cancel(self, handle: int) -> None:
        """End a request now, unless it has ended; the next step returns its last event. RequestError if unknown."""
        if not 0 <= handle < self._submitted:
            raise RequestError(f"there is no request {handle}; {self._submitted} were submitted, counted from 0")
        state = self._states.get(handle)
        if state is not None:
            self._cancelled.append(state)
            self._end_cancelled()

    def step(self) -> list[Event]:
        """Let waiting requests join, run one round, and return the events since the last step.

        Where `piecewise`, and other requests run, target and drafters read a long prompt over several steps. A request
        whose prompt finds no memory waits until another one has left, and fails if none runs. After an exception the
        next step returns the pending events. MemoryError where the target cannot verify even the newest token of every
        sequence; RequestError: other schedulers hold images whose place the next request needs; it waits.
        """
        self._end_cancelled()
        self._catch_up()
        if self.schedule():
            self._advance()
        events, self._events = self._events, []
        return events

    def events(self) -> Iterator[Event]:
        """Step until no request is left, and yield the events; the next step returns those not fetched."""
        while not self.is_idle:
            unread = deque(self.step())
            try:
                while unread:
                    yield unread.popleft()
            finally:  # the caller may have had enough
                self._events = [*unread, *self._events]

    def schedule(self) -> bool:
        """Let waiting requests join, their prompts read within the budget; return whether any sequence runs."""
        left = self._prefill_tokens if self._piecewise and self._engine.running else ALL
        while self._waiting and left > 0 and self._may_join(self._waiting[0]):
            state = self._waiting[0]
            try:
                left -= self._prefill(state, left)
            except BaseException as error:
                if self._waits_for_memory(state, error):
                    break
                continue
            if state.sequence is not None:
                self._welcome(state, state.sequence)
                self._catch_up()
            if self._piecewise and self._engine.running:
                left = min(left, self._prefill_tokens)
        return bool(self._engine.running)

    @property
    def _texts(self) -> PreTrainedTokenizerBase:
        assert self._tokenizer is not None, "a text needs a tokenizer"
        return self._tokenizer

    def _queued(self, request: Request, detokenizer: Detokenizer | None, *, is_read: bool) -> RequestState:
        state = RequestState(self._submitted, request, detokenizer, is_read=is_read)
        self._submitted += 1
        self._waiting.append(state)
        return state

    def _end_cancelled(self) -> None:
        """End what was cancelled, also after an interruption."""
        while self._cancelled:
            state = self._cancelled[-1]
            if state.handle in self._states:
                self._drop(state)
            self._cancelled.pop()

    def _drop(self, state: RequestState) -> None:
        if state.sequence is None:
            if state in self._waiting:
                self._waiting.remove(state)
            self._abandon(state)
            self._cramped_at = None  # it may be the one that found no memory
        elif state.sequence.is_finished:  # in a step that was broken off
            self._report(state, state.sequence)
            return
        else:
            self._let_go(state.sequence)
        self._end(state, "cancelled")

    def _prefill(self, state: RequestState, most: int) -> int:
        """Read at most `most` tokens of a request's prompt, after the last of which it joins; return how many."""
        if state.sequence is not None:
            return 0  # it has joined in a step that was broken off behind that
        if state.prefill is None:
            if self._gallery is not None:
                state.request = self._gallery.shown(state.request, self)
            state.prefill = self._engine.begin(state.request, state.handle, most)
        prefill, before = state.prefill, state.prefill.left
        self._engine.read_on(prefill, most)
        if not prefill.left:
            state.sequence, state.prefill = prefill.sequence, None
        return before - prefill.left

    def _waits_for_memory(self, state: RequestState, error: BaseException) -> bool:
        """Return whether a prompt waits until another request leaves; else its request fails, or this raises."""
        self._abandon(state)
        state.sequence = next((one for one in self._engine.running if one.index == state.handle), None)
        is_full = self._gallery is not None and isinstance(error, RequestError)  # of others' images
        if state.sequence is not None or state.detokenizer is None or is_full or not isinstance(error, Exception):
            raise error
        is_cramped = is_out_of_memory(error)
        if is_cramped and self._engine.running:
            self._cramped_at = len(self._engine.running)
            return True
        self._waiting.popleft()
        self._end(state, "failed", reason_of(error))
        if not is_cramped:
            raise error
        return False

    def _abandon(self, state: RequestState) -> None:
        if state.prefill is not None:
            self._engine.abandon(state.prefill)
            state.prefill = None

    def _welcome(self, state: RequestState, sequence: Sequence) -> None:
        if state.detokenizer is not None:
            self._due.append((state, sequence, len(sequence.tokens)))
        self._waiting.popleft()

    def _may_join(self, state: RequestState) -> bool:
        """Whether a request has room and, as far as is known, memory, and its images fit or never will better."""
        if state.prefill is not None or state.sequence is not None:
            return True
        running = len(self._engine.running)
        if self._cramped_at is not None and running >= self._cramped_at:
            return False
        self._cramped_at = None
        is_shown = self._gallery is None or not running or self._gallery.has_room(state.request.images)
        return self._engine.has_room and is_shown

    def _advance(self) -> None:
        states = [(self._states[sequence.index], sequence) for sequence in self._engine.running]
        self._due = [(state, sequence, len(sequence.tokens)) for state, sequence in reversed(states)]
        done = self._engine.step()
        self._catch_up()
        if self._observer is not None:  # last: whatever it raises, all events are there
            self._observer.note(done)

    def _catch_up(self) -> None:
        """Report what a round emitted; of an interrupted one, what it had committed."""
        while self._due:
            state, sequence, before = self._due[-1]
            if sequence.is_finished:
                self._let_go(sequence)
            if state.handle in self._states:
                state.rounds += len(sequence.tokens) > before
                self._due[-1] = state, sequence, len(sequence.tokens)
                self._report(state, sequence)
            self._due.pop()

    def _report(self, state: RequestState, sequence: Sequence) -> None:
        detokenizer = state.detokenizer
        assert detokenizer is not None, "a request without events has no news"
        if sequence.is_finished:
            self._end(state, "stop" if sequence.is_stopped else "length")
            return
        if state.is_read:
            detokenizer.read(sequence.tokens)
        if detokenizer.end is not None:
            self._let_go(sequence)
            self._end(state, "stop")
        elif self._piecewise and state.streamed < len(detokenizer.text):
            event = Event(handle=state.handle, piece=detokenizer.text[state.streamed :])
            state.streamed = len(detokenizer.text)
            self._events.append(event)

    def _let_go(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch, unless an interrupted step has."""
        if any(running is sequence for running in self._engine.running):
            self._engine.cancel(sequence)

    def _end(self, state: RequestState, reason: FinishReason, error: str = "") -> None:
        completion = state.completed(reason, error)
        event = Event(handle=state.handle, piece=completion.text[state.streamed :], completion=completion)
        del self._states[state.handle]
        self._events.append(event)
        if self._gallery is not None and not state.request.images:
            self._gallery.release(state.request.prompt, self)
