"""The drafters of a decoder, each used until it fails too often: a drafter's fault costs only its drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many

from ...planner.records.draft import DraftBatch
from ..batch.faults import MOST_FAULTS, PATIENCE, Fault, is_out_of_memory, reason_of, require_sound
from ..batch.sequence import Sequence
from ..batch.step_config import RoundSetup
from ..drafters.lookup import roots_of
from ..drafters.protocol import CopiesPrefix, Drafter, ReadsAlong, asked_of
from .prefill import Reading


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
        self._latest: RoundSetup | None = None  # of the last round, or of one that is expected
        self._late: set[str] = set()  # who has texts to read before it drafts again
        self._resting: dict[str, int] = {}  # who found no memory, and how many texts leave before it is asked again

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter failed in its last round or for good."""
        return not any(self._failures.values())

    def expect(self, setup: RoundSetup) -> None:
        """Set the likely setup of the next round: until then only its drafter reads prompts."""
        self._latest = setup

    def turn_to(self, asked: RoundSetup) -> RoundSetup:
        """Return the next round's setup: as wanted, but plain where its drafter is missing or rests."""
        is_alone = asked.drafter is not None and self.asked(asked) is None
        if is_alone and asked.drafter not in self.drafters:
            reason = self._absent.get(asked.drafter or "", "there is no such drafter here")
            self._faults.append(Fault(drafter=asked.drafter, reason=reason))
        self._latest = asked.plain if is_alone else asked
        return self._latest

    def asked(self, setup: RoundSetup) -> Drafter | None:
        """Return the drafter of a setup; None where there is none, or it rests."""
        name = setup.drafter
        if name is None or self._failures.get(name, MOST_FAULTS) >= MOST_FAULTS:
            return None
        return self.drafters[name]

    def draft(self, batch: Many[Sequence], setup: RoundSetup) -> tuple[int, DraftBatch]:
        """Return how many tokens the drafter had to read first, and its trees; only roots where it fails."""
        drafter = self.asked(setup)
        if drafter is None:
            return 0, roots_of(len(batch))
        try:
            fresh, draft = drafter.fresh(batch), drafter.draft(batch, asked_of(drafter, setup.policy))
        except Exception as error:  # whatever a drafter does wrong, the target goes on
            self._note_failure(setup.drafter or "", error, 1)
            return 0, roots_of(len(batch))
        return self.sound(batch, setup, fresh, draft)

    def sound(self, batch: Many[Sequence], setup: RoundSetup, fresh: int, draft: DraftBatch) -> tuple[int, DraftBatch]:
        """Return what a drafter read and drafted; only roots where its trees are malformed."""
        name = setup.drafter or ""
        try:
            require_sound(draft, len(batch), self._vocabulary, setup.policy.max_verify_tokens)
        except Exception as error:  # numbers of any kind come from a drafter
            self._note_failure(name, error, 1)
            return 0, roots_of(len(batch))
        self.note_sound(setup)
        return fresh, draft

    def forgive(self) -> None:
        """Clear the failures of drafters that are still in use."""
        for name, failures in self._failures.items():
            if failures < MOST_FAULTS:
                self._failures[name] = 0

    def note_sound(self, setup: RoundSetup) -> None:
        """Note that a setup's drafter has drafted well-formed trees."""
        self._failures[setup.drafter or ""] = 0

    def has_read_late(self, setup: RoundSetup, widths: tuple[int, ...]) -> bool:
        """Return whether the drafter of a round of such forwards read prompts late in it; clears that mark."""
        name = setup.drafter
        if name not in self._late or not widths:
            return False
        self._late.discard(name)
        return True

    def read_along(self, reading: Reading) -> None:
        """Let the current drafter read as much of a prompt as the target has; others read it later."""
        tokens = reading.sequence.request.prompt[: reading.read]

        def read(name: str, drafter: Drafter) -> None:
            if isinstance(drafter, ReadsAlong) and self._reads_at_once(name):
                drafter.read_along(reading.slot, tokens, reading.along.pop(name, 0))
                reading.along[name] = len(tokens)

        self.keep_up(read, reading.slot)

    def copy_prefix(self, source: int, slot: int, tokens: int) -> dict[str, int]:
        """Copy at most `tokens` of a slot over another in every drafter; return how many each then holds."""
        held: dict[str, int] = {}

        def copy(name: str, drafter: Drafter) -> None:
            if isinstance(drafter, CopiesPrefix):
                held[name] = drafter.copy_prefix(source, slot, tokens)

        self.keep_up(copy, slot)
        return held

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots in which no sequence runs."""

        def swap(_: str, drafter: Drafter) -> None:
            if isinstance(drafter, CopiesPrefix):
                drafter.swap_prefixes(one, other)

        self.keep_up(swap, one, other)

    def join(self, reading: Reading, slot: int) -> None:
        """Let drafters take a sequence into its slot; those not in use read the prompt when they first draft."""

        def take(name: str, drafter: Drafter) -> None:
            if not isinstance(drafter, ReadsAlong):
                drafter.admit(slot, reading.sequence)
                return
            held = reading.along.get(name, 0)
            if held and slot != reading.slot:
                drafter.move(reading.slot, slot)
            if self._reads_at_once(name):
                drafter.read_along(slot, reading.sequence.tokens[:-1], held)
                return
            self._late.add(name)
            if not held:
                drafter.read_along(slot, (), 0)

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
        drafter = self.drafters[name]
        if not isinstance(drafter, ReadsAlong):
            return False
        try:
            for slot in slots:
                drafter.read_along(slot, (), 0)
        except Exception:  # what has failed before is told
            return False
        self._late.add(name)
        return True

    def _note_failure(self, name: str, error: Exception, weight: int) -> None:
        """Report a failure; too many end a drafter, or let it rest where it only lacked memory."""
        self._failures[name] += weight
        is_memory, is_last, fate = is_out_of_memory(error), False, ""
        if self._failures[name] >= MOST_FAULTS:
            if is_memory and isinstance(self.drafters[name], ReadsAlong):
                self._resting[name] = PATIENCE
                fate = f"; it is not asked again before {PATIENCE} texts have left"
            else:
                is_last, fate = True, "; it is not asked again"
        self._faults.append(Fault(drafter=name, reason=reason_of(error) + fate, is_last=is_last, is_memory=is_memory))
