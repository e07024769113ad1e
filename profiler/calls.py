"""The calls of a session: held ready as far as there is room, a drafter's run behind the target's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import MeasurementError
from .clock import Call
from .protocols import ShapeRunner
from .tally import Cell


class PreparedCalls:
    """Prepared calls by cell, up to a limit, the least recently used dropped first; it also tracks cached weights.

    A drafter's forward is timed as behind one of the target (`repeats.py`): where the drafter ran last, the target's
    shortest call goes between.
    """

    def __init__(self, runners: Sequence[ShapeRunner], most: int) -> None:
        self._runners, self._most = runners, most
        self._calls: dict[Cell, Call] = {}
        self._last_model = ""  # ModelIdentity.key of the cell used last
        self._is_warm = False  # whether the cell used last finds its own model's weights in the caches
        self._short_runs, self._cooling_ms = 0, 0.0

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._calls

    def use(self, cell: Cell) -> Call:
        """Return the call of a cell, prepared if it is not, to be run next; raises what `prepare` does."""
        runner, is_new = self._runners[cell.surface], cell not in self._calls
        call = runner.prepare(*cell.shape) if is_new else self._calls.pop(cell)
        self._calls[cell] = call  # the last one is the one used last
        if len(self._calls) > self._most:
            del self._calls[next(iter(self._calls))]
        self._is_warm = is_new or self._last_model == runner.identity  # a new one warms up first
        self._last_model = runner.identity
        return call

    def tried(self, cell: Cell, timed: Callable[[], float]) -> float:
        """Return a cell call's timing; a failed one is tried again without the others, which hold memory."""
        try:
            return timed()
        except MeasurementError:  # it fits in no memory
            raise
        except Exception:
            self.drop(cell)
            if not self._calls:
                raise
            self._calls.clear()
        return timed()

    def drop(self, cell: Cell) -> None:
        """Forget the call of a cell, if there is one."""
        self._calls.pop(cell, None)

    def cool(self) -> None:
        """Run the target's shortest ready call, untimed, where the last cell would find its weights in the caches."""
        self._short_runs += 1
        target = self._shortest_of_target() if self._is_warm else None
        if target is None:
            return
        self._calls[target] = call = self._calls.pop(target)
        try:
            call()
        except Exception:  # its own next visit meets it again and keeps it as its own failure
            self.drop(target)
        self._cooling_ms += 0.0 if math.isnan(target.ms) else target.ms

    @property
    def cooling_ms(self) -> float:
        """What `cool` took on average, 0 before it was called."""
        return self._cooling_ms / max(self._short_runs, 1)

    def _shortest_of_target(self) -> Cell | None:
        targets = [cell for cell in self._calls if self._runners[cell.surface].role == "verify"]
        return min(targets, key=lambda cell: math.inf if math.isnan(cell.ms) else cell.ms, default=None)
