"""The drafters of an engine, each used until it fails too often: a drafter's fault costs only its drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many

from ...planner.records.draft import DraftBatch
from ..batch.faults import MOST_FAULTS, PATIENCE, Fault, is_out_of_memory, reason_of, require_sound
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..drafters.base import Drafter
from ..drafters.lookup import roots_of
from .prefill import Prefill


class Drafting:
    """Drafters by name and their failures in a row; `absent` says why others are missing."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocabulary: int,
        faults: list[Fault],
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self.drafters = drafters
        self._vocabulary, self._faults, self._absent = vocabulary, faults, absent or {}
        self._failures = dict.fromkeys(drafters, 0)  # in a row
        self._latest: StepConfig | None = None  # of the last round, or of one that is expected
        self._late: set[str] = set()  # who has texts to read before it drafts again
        self._resting: dict[str, int] = {}  # who found no memory, and how many texts leave before it is asked again

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter failed in its last round or for good."""
        return not any(self._failures.values())

    def expect(self, config: StepConfig) -> None:
        """Set the likely configuration of the next round: until then only its drafter reads prompts."""
        self._latest = config

    def usable(self, planned: StepConfig) -> StepConfig:
        """Return the next round's configuration: as planned, but plain where its drafter is missing or rests."""
        is_alone = planned.drafter is not None and self.drafter_of(planned) is None
        if is_alone and planned.drafter not in self.drafters:
            reason = self._absent.get(planned.drafter or "", "there is no such drafter here")
            self._faults.append(Fault(drafter=planned.drafter, reason=reason))
        self._latest = planned.plain if is_alone else planned
        return self._latest

    def drafter_of(self, config: StepConfig) -> Drafter | None:
        """Return the drafter of a configuration; None where there is none, or it rests."""
        name = config.drafter
        if name is None or self._failures.get(name, MOST_FAULTS) >= MOST_FAULTS:
            return None
        return self.drafters[name]

    def draft(self, batch: Many[Sequence], config: StepConfig) -> tuple[int, DraftBatch]:
        """Return how many tokens the drafter had to read first, and its trees; only roots where it fails."""
        drafter = self.drafter_of(config)
        if drafter is None:
            return 0, roots_of(len(batch))
        try:
            uncached, draft = drafter.uncached(batch), drafter.draft(batch, drafter.policy_for(config.policy))
        except Exception as error:  # whatever a drafter does wrong, the target goes on
            self._note_failure(config.drafter or "", error, 1)
            return 0, roots_of(len(batch))
        return self.sound(batch, config, uncached, draft)

    def sound(
        self, batch: Many[Sequence], config: StepConfig, uncached: int, draft: DraftBatch
    ) -> tuple[int, DraftBatch]:
        """Return what a drafter read and drafted; only roots where its trees are malformed."""
        name = config.drafter or ""
        try:
            require_sound(draft, len(batch), self._vocabulary, config.policy.max_verify_tokens)
        except Exception as error:  # numbers of any kind come from a drafter
            self._note_failure(name, error, 1)
            return 0, roots_of(len(batch))
        self.note_sound(config)
        return uncached, draft

    def draft_behind(self, batch: Many[Sequence], config: StepConfig, uncached: int) -> None:
        """Draft with so many unread tokens of every sequence, and drop the draft; only a drafter that rewinds does."""
        drafter = self.drafter_of(config)
        if drafter is None or not drafter.rewind(()):  # which crops no slot
            return
        if drafter.uncached(batch) > uncached:
            self.draft(batch, config)
        drafter.rewind([len(s.tokens) - uncached for s in batch])
        self.draft(batch, config)

    def forgive(self) -> None:
        """Clear the failures of drafters that are still in use."""
        for name, failures in self._failures.items():
            if failures < MOST_FAULTS:
                self._failures[name] = 0

    def note_sound(self, config: StepConfig) -> None:
        """Note that a configuration's drafter has drafted well-formed trees."""
        self._failures[config.drafter or ""] = 0

    def has_read_late(self, config: StepConfig, widths: tuple[int, ...]) -> bool:
        """Return whether the drafter of a round of such forwards read prompts late in it; clears that mark."""
        name = config.drafter
        if name not in self._late or not widths:
            return False
        self._late.discard(name)
        return True

    def read_along(self, reading: Prefill) -> None:
        """Let the current drafter read as much of a prompt as the target has; others read it later."""
        tokens = reading.sequence.request.prompt[: reading.read]

        def read(name: str, drafter: Drafter) -> None:
            if self._reads_at_once(name):
                reading.along[name] = drafter.read_along(reading.slot, tokens, reading.along.pop(name, 0))

        self.keep_up(read, reading.slot)

    def copy_prefix(self, source: int, slot: int, tokens: int) -> dict[str, int]:
        """Copy at most `tokens` of a slot over another in every drafter; return how many each then holds."""
        held: dict[str, int] = {}

        def copy(name: str, drafter: Drafter) -> None:
            held[name] = drafter.copy_prefix(source, slot, tokens)

        self.keep_up(copy, slot)
        return held

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots in which no sequence runs."""
        self.keep_up(lambda _, drafter: drafter.swap_prefixes(one, other), one, other)

    def join(self, reading: Prefill, slot: int) -> None:
        """Let drafters take a sequence into its slot; those not in use read the prompt when they first draft."""

        def take(name: str, drafter: Drafter) -> None:
            held = reading.along.get(name, 0)
            if held and slot != reading.slot:
                drafter.move(reading.slot, slot)
            if self._reads_at_once(name) or not (held or drafter.forget(slot)):
                drafter.admit(slot, reading.sequence, held)
            else:
                self._late.add(name)

        self.keep_up(take, slot)

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self.keep_up(lambda _, drafter: drafter.move(source, target), target)

    def _reads_at_once(self, name: str) -> bool:
        return self._latest is None or self._latest.drafter == name

    def keep_up(self, tell: Callable[[str, Drafter], None], *slots: int) -> None:
        """Apply a change of slots to every drafter; one that fails reads their texts again later."""
        for name, drafter in self.drafters.items():
            if self._failures[name] < MOST_FAULTS:
                try:
                    tell(name, drafter)
                except Exception as error:
                    self._note_failure(name, error, 1 if self._has_forgotten(name, slots) else MOST_FAULTS)

    def note_left(self, slots: int) -> None:
        """Note a text that has left; a drafter that has rested long enough starts again, in so many slots."""
        for name in list(self._resting):
            self._resting[name] -= 1
            if not self._resting[name]:
                del self._resting[name]
                if self._has_forgotten(name, range(slots)):
                    self._failures[name] = MOST_FAULTS - 1

    def _has_forgotten(self, name: str, slots: Iterable[int]) -> bool:
        """Let a drafter drop some slots' texts, to read them when it drafts; return whether it can."""
        try:
            can_forget = all(self.drafters[name].forget(slot) for slot in slots)
        except Exception:  # what has failed before is reported
            return False
        if can_forget:
            self._late.add(name)
        return can_forget

    def _note_failure(self, name: str, error: Exception, weight: int) -> None:
        """Report a failure; too many end a drafter, or let it rest where it only lacked memory."""
        self._failures[name] += weight
        is_memory, is_last, fate = is_out_of_memory(error), False, ""
        if self._failures[name] >= MOST_FAULTS:
            if is_memory and self._has_forgotten(name, (0,)):  # it reads all texts again when it starts again
                self._resting[name] = PATIENCE
                fate = f"; it is not asked again before {PATIENCE} texts have left"
            else:
                is_last, fate = True, "; it is not asked again"
        self._faults.append(Fault(drafter=name, reason=reason_of(error) + fate, is_last=is_last, is_memory=is_memory))
