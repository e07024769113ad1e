"""Many requests through one decoder: they wait, join as slots free, yield their text, and leave."""

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
from .engine import Decoder
from .observer import RoundObserver
from .prompts import request_of, require_known, require_room
from .request_state import RequestState
from .settings import Event, FinishReason, GenerationOptions, GenerationSettings

DEFAULTS = GenerationSettings()
ALL = 2**62  # tokens of prompts: of all of them
Due = tuple[RequestState, Sequence, int]  # who emitted something, with how many tokens there were before


class Session:
    """Requests decoded together, as many at once as the decoder has slots; the others wait in order.

    `submit` and `cancel` may be called between any two steps, and change no other request's output. Use one thread at a
    time. A request that has ended is dropped: its last event has all its output.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        *,
        longest: int,  # prompt and new tokens of any request; the decoder's caches have room for these and draft nodes
        piecewise: bool = True,
        observer: RoundObserver | None = None,
        gallery: ImageCache | None = None,  # of a target that sees; holds a request's images while it runs
        ends: frozenset[int] | None = None,  # tokens that end a text, see `stop_tokens.py`; None: the tokenizer's own
        prefill_tokens: int = PREFILL_TOKENS,  # of prompts, read at most between two rounds where `piecewise`
        why_longest: str = "",  # reason for a short `longest`, in brackets
    ) -> None:
        """Use a decoder of its own.

        Args:
            piecewise: events give text after every round; otherwise each request has one event with all of it.

        Raises:
            RequestError: `prefill_tokens` is below 1.
        """
        if prefill_tokens < 1:
            raise RequestError(f"prefill_tokens must be at least 1, got {prefill_tokens}; {PREFILL_TOKENS} are usual")
        self._decoder, self._tokenizer = decoder, tokenizer
        self._longest, self._piecewise, self._observer = longest, piecewise, observer
        self._why_longest = why_longest
        self._gallery, self._ends, self._prefill_tokens = gallery, ends, prefill_tokens
        self._submitted = 0
        self._jobs: dict[int, RequestState] = {}
        self._waiting: deque[RequestState] = deque()
        self._untold: list[Event] = []  # to be told by the next step
        self._due: list[Due] = []  # whose news are not read; the next one last
        self._cancelled: list[RequestState] = []  # that have not left yet
        self._cramped_at: int | None = None  # sequences beside which the next request found no memory

    @property
    def longest(self) -> int:
        """The most tokens of a request, prompt and new ones."""
        return self._longest

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs, and no event is pending."""
        return not self._jobs and not self._untold

    def submit(
        self, prompt: PromptLike, settings: GenerationSettings = DEFAULTS, **options: Unpack[GenerationOptions]
    ) -> int:
        """Queue a prompt for a slot; return its handle, counted from 0. Options override the settings' fields.

        RequestError where the prompt has no tokens or, with its new ones, more than fit; a setting is out of range.
        """
        settings = replace(settings, **options)
        seen = None if self._gallery is None else self._gallery.tokens
        return self.enqueue(request_of(self._tokenizer, prompt, settings, seen, self._ends), settings.stop)

    def enqueue(self, request: Request, stop: Many[str] = ()) -> int:
        """Queue a request in tokens for a slot; return its handle. `stop` are strings that end its text.

        RequestError where it does not fit, or has a token that the target lacks.
        """
        require_room(request, self._longest, self._why_longest)
        require_known(request, self._decoder.vocabulary)
        shown = len(set(request.images))
        if self._gallery is not None and shown > self._gallery.room:
            raise RequestError(f"a prompt shows {shown} images and there is room for {self._gallery.room}; show fewer")
        handle, self._submitted = self._submitted, self._submitted + 1
        transcript = Detokenizer(self._tokenizer, len(request.prompt), stop)
        job = RequestState(handle, request, transcript, is_read=self._piecewise or bool(stop))
        self._jobs[handle] = job
        self._waiting.append(job)
        return handle

    def cancel(self, handle: int) -> None:
        """End a request now, unless it has ended; the next step returns its last event. RequestError if unknown."""
        if not 0 <= handle < self._submitted:
            raise RequestError(f"there is no request {handle}; {self._submitted} were submitted, counted from 0")
        job = self._jobs.get(handle)
        if job is not None:
            self._cancelled.append(job)
            self._end_cancelled(self._untold)

    def step(self) -> list[Event]:
        """Let waiting requests join, run one round, and return the events since the last step.

        Where `piecewise`, and other requests run, target and drafters read a long prompt over several steps. A request
        whose prompt finds no memory waits until another one has left, and fails if none runs. After an exception the
        next step returns the pending events. MemoryError where the target cannot verify even the newest token of every
        sequence; RequestError: other sessions hold images whose place the next request needs; it waits.
        """
        events, self._untold = self._untold, []
        try:
            self._end_cancelled(events)
            self._catch_up(events)
            self._join(events)
            self._advance(events)
        except BaseException:
            self._untold = events + self._untold
            raise
        return events

    def events(self) -> Iterator[Event]:
        """Step until the session is idle, and yield the events; the next step returns those not fetched."""
        while not self.is_idle:
            told = deque(self.step())
            try:
                while told:
                    yield told.popleft()
            finally:  # whoever listens may have had enough
                self._untold = [*told, *self._untold]

    def _end_cancelled(self, events: list[Event]) -> None:
        """End what was cancelled, also after an interruption."""
        while self._cancelled:
            job = self._cancelled[-1]
            if job.handle in self._jobs:
                self._drop(job, events)
            self._cancelled.pop()

    def _drop(self, job: RequestState, events: list[Event]) -> None:
        if job.sequence is None:
            if job in self._waiting:
                self._waiting.remove(job)
            self._abandon(job)
            self._cramped_at = None  # it may be the one that found no memory
        elif job.sequence.is_finished:  # in a step that was broken off
            self._tell(job, job.sequence, events)
            return
        else:
            self._let_go(job.sequence)
        self._end(job, "cancelled", events)

    def _join(self, events: list[Event]) -> None:
        left = self._prefill_tokens if self._piecewise and self._decoder.running else ALL
        while self._waiting and left > 0 and self._may_join(self._waiting[0]):
            job = self._waiting[0]
            try:
                left -= self._read(job, left)
            except BaseException as error:
                self._abandon(job)
                self._adopt(job)
                if job.sequence is not None:  # it is decoded: what came behind that was broken off
                    raise
                is_full = self._gallery is not None and isinstance(error, RequestError)  # of others' images
                if is_full or not isinstance(error, Exception):
                    raise
                is_cramped = is_out_of_memory(error)
                if is_cramped and self._decoder.running:
                    self._cramped_at = len(self._decoder.running)
                    return
                self._waiting.popleft()
                self._end(job, "failed", events, reason_of(error))
                if not is_cramped:
                    raise
                continue
            if job.sequence is not None:
                self._welcome(job, job.sequence)
                self._catch_up(events)
            if self._piecewise and self._decoder.running:
                left = min(left, self._prefill_tokens)

    def _read(self, job: RequestState, most: int) -> int:
        """Read at most `most` tokens of a request's prompt, after the last of which it joins; return how many."""
        if job.sequence is not None:
            return 0  # it has joined in a step that was broken off behind that
        if job.reading is None:
            if self._gallery is not None:
                job.request = self._gallery.shown(job.request, self)
            unread = self._decoder.unread(job.request)
            if unread <= most:
                job.sequence = self._decoder.admit(job.request, job.handle)
                return unread
            job.reading = self._decoder.begin(job.request, job.handle)
        before = job.reading.left
        self._decoder.read_on(job.reading, most)
        if not job.reading.left:
            job.sequence, job.reading = job.reading.sequence, None
            return before
        return before - job.reading.left

    def _abandon(self, job: RequestState) -> None:
        if job.reading is not None:
            self._decoder.abandon(job.reading)
            job.reading = None

    def _adopt(self, job: RequestState) -> None:
        """Set a request's sequence if it is in the batch: then only later work was interrupted."""
        job.sequence = next((one for one in self._decoder.running if one.index == job.handle), None)

    def _welcome(self, job: RequestState, sequence: Sequence) -> None:
        self._due.append((job, sequence, len(sequence.tokens)))
        self._waiting.popleft()

    def _may_join(self, job: RequestState) -> bool:
        """Whether a request has room and, as far as is known, memory, and its images fit or never will better."""
        if job.reading is not None or job.sequence is not None:
            return True
        running = len(self._decoder.running)
        if self._cramped_at is not None and running >= self._cramped_at:
            return False
        self._cramped_at = None
        is_shown = self._gallery is None or not running or self._gallery.has_room(job.request.images)
        return self._decoder.has_room and is_shown

    def _advance(self, events: list[Event]) -> None:
        jobs = [(self._jobs[sequence.index], sequence) for sequence in self._decoder.running]
        if not jobs:
            return
        self._due = [(job, sequence, len(sequence.tokens)) for job, sequence in reversed(jobs)]
        done = self._decoder.step()
        self._catch_up(events)
        if self._observer is not None:  # last: whatever it raises, all is told
            self._observer.note(done)

    def _catch_up(self, events: list[Event]) -> None:
        """Report what a round emitted; of an interrupted one, what it had committed."""
        while self._due:
            job, sequence, before = self._due[-1]
            if sequence.is_finished:
                self._let_go(sequence)
            if job.handle in self._jobs:
                job.rounds += len(sequence.tokens) > before
                self._due[-1] = job, sequence, len(sequence.tokens)
                self._tell(job, sequence, events)
            self._due.pop()

    def _tell(self, job: RequestState, sequence: Sequence, events: list[Event]) -> None:
        if sequence.is_finished:
            self._end(job, "stop" if sequence.is_stopped else "length", events)
            return
        if job.is_read:
            job.transcript.read(sequence.tokens)
        if job.transcript.end is not None:
            self._let_go(sequence)
            self._end(job, "stop", events)
        elif self._piecewise and job.told < len(job.transcript.text):
            event = Event(handle=job.handle, piece=job.transcript.text[job.told :])
            job.told = len(job.transcript.text)
            events.append(event)

    def _let_go(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch, unless an interrupted step has."""
        if any(running is sequence for running in self._decoder.running):
            self._decoder.cancel(sequence)

    def _end(self, job: RequestState, reason: FinishReason, events: list[Event], error: str = "") -> None:
        completion = job.completed(reason, error)
        event = Event(handle=job.handle, piece=job.transcript.text[job.told :], completion=completion)
        del self._jobs[job.handle]
        events.append(event)
        if self._gallery is not None and not job.request.images:
            self._gallery.release(job.request.prompt, self)
