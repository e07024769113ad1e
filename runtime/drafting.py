"""The drafters of a decoder, each asked until it has failed too often: a drafter's fault costs drafts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many

from ..planner.records.draft import DraftBatch
from .drafters.lookup import roots_of
from .drafters.protocol import CopiesPrefix, Drafter, ReadsAlong, asked_of
from .faults import MOST_FAULTS, PATIENCE, Fault, is_out_of_memory, reason_of, require_sound
from .prefill import Reading
from .requests import Sequence
from .setup import RoundSetup


class Drafting:
    """Drafters by name, and how often each has failed in a row."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocabulary: int,
        faults: list[Fault],
        absent: Mapping[str, str] | None = None,
    ) -> None:
        """Ask all of them.

        Args:
            drafters: by name.
            vocabulary: the target's.
            faults: where what goes wrong is told.
            absent: why others are not here, by name.
        """
        self.drafters = drafters
        self._vocabulary, self._faults, self._absent = vocabulary, faults, absent or {}
        self._failures = dict.fromkeys(drafters, 0)  # in a row
        self._latest: RoundSetup | None = None  # of the last round, or of one that is expected
        self._late: set[str] = set()  # who has texts to read before it drafts again
        self._resting: dict[str, int] = {}  # who found no memory, and how many texts leave before it is asked again

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter has failed in its last round or for good."""
        return not any(self._failures.values())

    def expect(self, setup: RoundSetup) -> None:
        """Take note of how the next round is likely to be run: who drafts by it alone reads prompts until then."""
        self._latest = setup

    def turn_to(self, asked: RoundSetup) -> RoundSetup:
        """Return how the next round is run: as is asked, but plainly where its drafter is not here or rests."""
        is_alone = asked.drafter is not None and self.asked(asked) is None
        if is_alone and asked.drafter not in self.drafters:
            reason = self._absent.get(asked.drafter or "", "there is no such drafter here")
            self._faults.append(Fault(drafter=asked.drafter, reason=reason))
        self._latest = asked.plain if is_alone else asked
        return self._latest

    def asked(self, setup: RoundSetup) -> Drafter | None:
        """Return who drafts by a setup; None where nobody does, or rests."""
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
        """Return what a drafter has read and drafted; only roots where it hands over no trees of known tokens."""
        name = setup.drafter or ""
        try:
            require_sound(draft, len(batch), self._vocabulary, setup.policy.max_verify_tokens)
        except Exception as error:  # numbers of any kind come from a drafter
            self._note_failure(name, error, 1)
            return 0, roots_of(len(batch))
        self.note_sound(setup)
        return fresh, draft

    def forgive(self) -> None:
        """Forget the failures of drafters that are still asked."""
        for name, failures in self._failures.items():
            if failures < MOST_FAULTS:
                self._failures[name] = 0

    def note_sound(self, setup: RoundSetup) -> None:
        """Take note that a setup's drafter has handed over trees of known tokens."""
        self._failures[setup.drafter or ""] = 0

    def has_read_late(self, setup: RoundSetup, widths: tuple[int, ...]) -> bool:
        """Return whether whoever drafted a round, in forwards so wide, had prompts to read first; it has them now."""
        name = setup.drafter
        if name not in self._late or not widths:
            return False
        self._late.discard(name)
        return True

    def read_along(self, reading: Reading) -> None:
        """Let whoever drafts now read as far in a prompt as the target has, where it can; others read it later."""
        tokens = reading.sequence.request.prompt[: reading.read]

        def read(name: str, drafter: Drafter) -> None:
            if isinstance(drafter, ReadsAlong) and self._reads_at_once(name):
                drafter.read_along(reading.slot, tokens, reading.along.pop(name, 0))
                reading.along[name] = len(tokens)

        self.keep_up(read, reading.slot)

    def copy_prefix(self, source: int, slot: int, tokens: int) -> dict[str, int]:
        """Let a slot begin as another does, with so many tokens at most; return how many each drafter holds there."""
        held: dict[str, int] = {}

        def copy(name: str, drafter: Drafter) -> None:
            if isinstance(drafter, CopiesPrefix):
                held[name] = drafter.copy_prefix(source, slot, tokens)

        self.keep_up(copy, slot)
        return held

    def swap_prefixes(self, one: int, other: int) -> None:
        """Let two slots in which nobody runs exchange what they hold."""

        def swap(_: str, drafter: Drafter) -> None:
            if isinstance(drafter, CopiesPrefix):
                drafter.swap_prefixes(one, other)

        self.keep_up(swap, one, other)

    def join(self, reading: Reading, slot: int) -> None:
        """Let drafters take a sequence whose prompt the target has read into its slot, with what they have read.

        Whoever does not draft now reads it where it is asked to draft: prompts are long, and it may never be.
        """

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
        """Let `target` become the slot of the sequence in `source`."""
        self.keep_up(lambda _, drafter: drafter.move(source, target), target)

    def _reads_at_once(self, name: str) -> bool:
        """Whether a drafter reads prompts before it is asked to draft: who drafted last; all before any is known."""
        return self._latest is None or self._latest.drafter == name

    def keep_up(self, tell: Callable[[str, Drafter], None], *slots: int) -> None:
        """Tell drafters of what came or moved to some slots; who fails at it reads their texts anew, later."""
        for name, drafter in self.drafters.items():
            if self._failures[name] < MOST_FAULTS:
                try:
                    tell(name, drafter)
                except Exception as error:
                    self._note_failure(name, error, 1 if self._has_forgotten(name, slots) else MOST_FAULTS)

    def note_left(self, slots: int) -> None:
        """Take note of a text that has left; who has rested for long enough begins anew, in so many slots."""
        for name in list(self._resting):
            self._resting[name] -= 1
            if not self._resting[name]:
                del self._resting[name]
                if self._has_forgotten(name, range(slots)):
                    self._failures[name] = MOST_FAULTS - 1

    def _has_forgotten(self, name: str, slots: Iterable[int]) -> bool:
        """Let a drafter hold nothing of some slots' texts, and read them when it drafts; return whether it can."""
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
        """Tell what went wrong; who fails too often is not asked again, or not soon where memory was all it lacked."""
        self._failures[name] += weight
        is_memory, is_last, fate = is_out_of_memory(error), False, ""
        if self._failures[name] >= MOST_FAULTS:
            if is_memory and isinstance(self.drafters[name], ReadsAlong):
                self._resting[name] = PATIENCE
                fate = f"; it is not asked again before {PATIENCE} texts have left"
            else:
                is_last, fate = True, "; it is not asked again"
        self._faults.append(Fault(drafter=name, reason=reason_of(error) + fate, is_last=is_last, is_memory=is_memory))
