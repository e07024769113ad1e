"""t(batch, context, tokens): what one forward costs on one device, and never a guess beyond what was measured."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError
from .measurement import Measurement

Role = Literal["verify", "draft"]
Source = Literal["measured", "interpolated"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = dict[int, dict[int, float]]  # context -> tokens -> milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One looked-up cost and where it comes from."""

    ms: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedCosts:
    """Cost of n = 0..up_to tokens per sequence when a forward may run padded to a larger measured shape."""

    ms: Floats  # (up_to + 1,), entry 0 is 0.0
    run_tokens: Ints  # (up_to + 1,), the tokens per sequence to run for n; entry 0 is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySurface:
    """Every cell measured for one model in one role on one device; cells are distinct, failures are among them."""

    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: Role
    regime: str  # how it ran: "eager", "compiled", "cuda-graph", an engine's name
    dtype: str
    measurements: tuple[Measurement, ...]
    _grid: dict[int, Rows] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.role not in ("verify", "draft"):
            raise MeasurementError(f"surface role is {self.role!r}; use 'verify' or 'draft'")
        if not (self.device and self.model and self.regime and self.dtype and self.measurements):
            raise MeasurementError("a surface needs device, model, regime, dtype and at least one measurement")
        cells = [(cell.batch, cell.context_tokens, cell.tokens) for cell in self.measurements]
        if len(set(cells)) < len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise MeasurementError(f"(batch, context, tokens) = {twice} stands twice in one surface; keep one of them")
        object.__setattr__(self, "_grid", _grid_of(self.measurements))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes with at least one cell that ran, ascending."""
        return tuple(sorted(self._grid))

    def contexts(self, batch: int) -> tuple[int, ...]:
        """Return the context lengths measured at a batch size, ascending.

        Raises:
            MeasurementError: the batch size was not measured.
        """
        return tuple(sorted(self._at(batch)))

    def latency(self, batch: int, context: int, tokens: int) -> Latency:
        """Return the cost of one forward of `tokens` tokens per sequence after `context` committed tokens.

        Exact at measured cells, linear in tokens and then in context between them; the batch must be measured.

        Raises:
            MeasurementError: the point lies outside the measured range, or is a cell that could not run.
        """
        self._refuse_failed(batch, context, tokens)
        rows = self._at(batch)
        covering = _covering(rows, tokens)
        if not covering or not covering[0] <= context <= covering[-1]:
            self._outside(batch, context, tokens)
        upper = covering[bisect_left(covering, context)]
        lower = upper if upper == context else covering[bisect_left(covering, context) - 1]
        ends = [(length, _along_tokens(rows[length], tokens)) for length in (lower, upper)]
        is_measured = lower == upper and tokens in rows[lower]
        return Latency(ms=_line(ends[0], ends[1], context), source="measured" if is_measured else "interpolated")

    def table(self, batch: int, context: int, up_to: int) -> Floats:
        """Return the cost of n = 0..up_to tokens per sequence, unpadded: (up_to + 1,) milliseconds, entry 0 is 0.0.

        Raises:
            MeasurementError: some n in 1..up_to lies outside the measured range.
        """
        _check_up_to(up_to)
        return np.array([0.0] + [self.latency(batch, context, tokens).ms for tokens in range(1, up_to + 1)])

    def padded(self, batch: int, context: int, up_to: int) -> PaddedCosts:
        """Return t*(n) = min over measured n' >= n of t(n') for n = 0..up_to, and the n' that gives it.

        Raises:
            MeasurementError: no measured shape holds up_to tokens, or batch or context are outside the range.
        """
        _check_up_to(up_to)
        shapes = [(shape, self.latency(batch, context, shape).ms) for shape in self._shapes(batch, context)]
        if not shapes or shapes[-1][0] < up_to:
            self._outside(batch, context, up_to)
        ms, run_tokens = np.zeros(up_to + 1), np.zeros(up_to + 1, dtype=np.int64)
        best, best_shape = math.inf, 0
        for shape, cost in reversed(shapes):
            if cost <= best:  # an equal cost goes to the smaller shape
                best, best_shape = cost, shape
            ms[1 : shape + 1], run_tokens[1 : shape + 1] = best, best_shape
        return PaddedCosts(ms=ms, run_tokens=run_tokens)

    def relative_error(self) -> float:
        """Return the median over cells of the standard error of the median over the median.

        Raises:
            MeasurementError: every cell failed.
        """
        ran = [cell for cell in self.measurements if cell.failure is None]
        if not ran:
            raise MeasurementError(f"all {len(self.measurements)} cells failed; {self.measurements[0].failure}")
        return statistics.median(cell.spread_ms / cell.median_ms for cell in ran)

    def _at(self, batch: int) -> Rows:
        if batch not in self._grid:
            raise MeasurementError(f"batch {batch} was not measured ({self._name}); measured: {list(self.batches)}")
        return self._grid[batch]

    def _shapes(self, batch: int, context: int) -> list[int]:
        """Return the token counts measured at this batch that can be looked up at this context, ascending."""
        rows = self._at(batch)
        failed = {m.tokens for m in self.measurements if m.failure and (m.batch, m.context_tokens) == (batch, context)}
        known = set().union(*rows.values()) - failed
        spans = {shape: _covering(rows, shape) for shape in known}
        return sorted(shape for shape, lengths in spans.items() if lengths[0] <= context <= lengths[-1])

    def _refuse_failed(self, batch: int, context: int, tokens: int) -> None:
        for cell in self.measurements:
            if cell.failure and (cell.batch, cell.context_tokens, cell.tokens) == (batch, context, tokens):
                shape = f"batch {batch}, context {context}, tokens {tokens}"
                raise MeasurementError(f"{shape} could not run ({self._name}): {cell.failure}; choose another shape")

    def _outside(self, batch: int, context: int, tokens: int) -> NoReturn:
        rows = self._at(batch)
        covering = _covering(rows, tokens)
        counts = set().union(*rows.values())
        of_tokens = f"tokens {min(counts)}..{max(counts)}"
        of_context = f"{tokens} tokens at context {covering[0]}..{covering[-1]}" if covering else ""
        raise MeasurementError(
            f"batch {batch}, context {context}, tokens {tokens} lies outside what was measured ({self._name}): "
            f"{of_context or of_tokens}; profile that shape first"
        )

    @property
    def _name(self) -> str:
        return f"{self.role} of {self.model}, {self.regime}, {self.dtype}"


def _grid_of(measurements: Iterable[Measurement]) -> dict[int, Rows]:
    grid: dict[int, Rows] = {}
    for cell in measurements:
        if cell.failure is None:
            grid.setdefault(cell.batch, {}).setdefault(cell.context_tokens, {})[cell.tokens] = cell.median_ms
    return grid


def _covering(rows: Rows, tokens: int) -> list[int]:
    """Return the contexts whose measured token counts reach around `tokens`, ascending."""
    return sorted(length for length, row in rows.items() if min(row) <= tokens <= max(row))


def _along_tokens(row: dict[int, float], tokens: int) -> float:
    if tokens in row:
        return row[tokens]
    below = max(known for known in row if known < tokens)
    above = min(known for known in row if known > tokens)
    return _line((below, row[below]), (above, row[above]), tokens)


def _line(left: tuple[int, float], right: tuple[int, float], at: int) -> float:
    if left[0] == right[0]:
        return left[1]
    share = (at - left[0]) / (right[0] - left[0])
    return left[1] + share * (right[1] - left[1])


def _check_up_to(up_to: int) -> None:
    if up_to < 0:
        raise MeasurementError(f"up_to must be at least 0, got {up_to}")
