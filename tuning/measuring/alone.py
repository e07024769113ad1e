"""A round's forwards timed outside the round, the way the profiler times them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...profiler.clock import Call, Clock, clock_for, clock_in
from ...profiler.records.pooling import LONG_MS
from ...profiler.records.role import RESUME
from ...profiler.repeats import SETTLED, SHORT_RUN
from ...runtime.batch.transfer import wait_for
from ...runtime.engine.step_output import StepOutput
from ...runtime.models.block import RoundHead
from ...runtime.models.exit import ExitModel
from ...runtime.models.forward import CausalModel, Resuming
from ...runtime.shapes import ForwardShapes, ResumedShapes, ShapeCaches
from .decoding import Family

_Fed = tuple[str, int]  # a forward's role, and tokens per sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """What the forwards of a round take alone, in milliseconds."""

    verify_ms: float
    draft_ms: float  # all of the drafter's together


class Alone:
    """Times the forwards of rounds one by one, each in the state of the caches in which the profiler meets it."""

    def __init__(self, family: Family, drafter: str | None, batch: int, room: int) -> None:
        """Take room for rounds of a batch with at most `room` positions per sequence, new ones included."""
        self._batch, self._device = batch, family.target.device
        self._clock = clock_for(family.target.device.type, family.target.device.index or 0)
        self._is_block = drafter is not None and isinstance(family.drafters[drafter], RoundHead)
        verify = _shapes(family.target, "verify", batch, room)
        self._shapes: dict[str, ForwardShapes] = {"verify": verify}
        if drafter is not None:  # forwards of one model share its cache
            model = family.drafters[drafter]
            self._shapes["draft"] = draft = _shapes(model, "draft", batch, room)
            self._shapes["read"] = _shapes(model, "verify", batch, room, draft.caches)
            is_of_target = isinstance(model, ExitModel) and model.target is family.target
            if isinstance(model, ExitModel) and isinstance(family.target, Resuming):
                self._shapes[RESUME] = ResumedShapes(
                    model,
                    identity=RESUME,
                    dtype=str(model.dtype),
                    slots=batch,
                    capacity=room,
                    caches=verify.caches if is_of_target else None,
                )
        self._usual_ms: dict[_Fed, float] = {}

    def forwards(self, rounds: Sequence[StepOutput]) -> list[Forwards]:
        """Return the time of each round's forwards; each shape is timed once, after all have run.

        A drafter's is timed behind the target's: behind its own it would find its weights cached, as no visit does.
        """
        fed = [_fed(done, self._is_block) for done in rounds]
        context = {part: done.context for done, parts in zip(rounds, fed, strict=True) for part in parts}
        calls = {part: self._call(part, at) for part, at in context.items()}
        targets = {part: calls[parts[0]] for parts in fed for part in parts}
        took = {part: self._ms(part, call, targets[part]) for part, call in calls.items()}
        return [
            Forwards(verify_ms=took[verify], draft_ms=sum(took[part] for part in drafted)) for verify, *drafted in fed
        ]

    def _call(self, part: _Fed, context: int) -> Call:
        """Return a call that has run and ended once: roles of one model share captured work and its inputs."""
        role, tokens = part
        shapes = self._shapes[role]
        call = shapes.prepare(self._batch, min(context, shapes.longest_before(tokens)), tokens)
        if self._device.type == "cpu" and self._usual_ms.get(part, 0.0) >= LONG_MS:
            return call  # its weights are in no cache, whatever ran before
        call()
        wait_for(self._device)
        if part not in self._usual_ms:
            self._usual_ms[part] = self._clock_of(role).time_ms(call)
        return call

    def _ms(self, part: _Fed, call: Call, target: Call) -> float:
        repeats = SETTLED if part[0] in ("verify", RESUME) else SHORT_RUN
        if repeats is SHORT_RUN:
            target()
        return repeats.time_ms(call, self._clock_of(part[0]), self._usual_ms[part])

    def _clock_of(self, role: str) -> Clock:
        return clock_in(self._clock, self._shapes[role].regime)


def _fed(done: StepOutput, is_block: bool) -> list[_Fed]:
    """Return the forwards of a round, the target's first: role, and tokens per sequence.

    A stack's forwards are pieces of text, here all of one model. A block drafter runs one, whatever its layers.
    """
    verify = (RESUME if done.setup.policy.kind == "resumed" else "verify", done.verify_tokens)
    if done.levels:
        return [verify, *(("read", tokens) for tokens in done.widths)]
    drafted = (done.uncached, *(() if is_block else done.widths[1:])) if done.widths else ()
    return [verify, *(("draft", tokens) for tokens in drafted)]


def _shapes(model: CausalModel, role: str, batch: int, room: int, caches: ShapeCaches | None = None) -> ForwardShapes:
    dtype = str(model.dtype)
    return ForwardShapes(model, identity=role, dtype=dtype, role=role, slots=batch, capacity=room, caches=caches)
